"""Checks for what cannot be rewritten safely and is reported: one module for each kind.

Each has `find(plan)`, which yields pairs: a place (a node, a chain of names, or a byte of the
source), and a sentence with what it is and what to do.
"""

import importlib
import pkgutil

CHECKS = [
    importlib.import_module(f"{__name__}.{each.name}") for each in pkgutil.iter_modules(__path__)
]
