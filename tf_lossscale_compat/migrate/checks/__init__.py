"""Checks for what cannot be rewritten safely and is reported: one module for each kind.

Each has `find(plan)`, which yields pairs: where a place is in the source, in bytes, and a sentence
with what it is and what to do.
"""

import importlib
import pkgutil

CHECKS = [
    importlib.import_module(f"{__name__}.{each.name}") for each in pkgutil.iter_modules(__path__)
]
