"""The command `tf-lossscale`: one subcommand for each tool."""

from __future__ import annotations

import argparse
import importlib
import platform
import sys
from typing import Iterable

from tf_lossscale_compat import __version__

try:
    from importlib import metadata
except ImportError:  # Python 3.7, where TensorFlow installs `importlib_metadata`.
    try:
        import importlib_metadata as metadata  # type: ignore[no-redef]
    except ImportError:
        metadata = None  # type: ignore[assignment]

# Each command is a module of this package, which is imported when the command is called: `migrate`
# and `--help` do not need TensorFlow or wait for it. A module defines `add_arguments(parser)` and
# `run(args)`, which returns the exit code. The first line of its docstring is repeated here.
COMMANDS = {
    "migrate": (
        "migrate",
        "Rewrite code from TensorFlow's loss-scale APIs to this package's.",
    ),
}

# The distributions that a bug report should name.
_VERSIONED = (
    ("TensorFlow", ("tensorflow", "tensorflow-cpu", "tensorflow-gpu", "tf-nightly")),
    ("Keras", ("keras",)),
    ("tf_keras", ("tf-keras",)),
    ("NumPy", ("numpy",)),
)


def _version_of(distributions: Iterable[str]) -> str | None:
    """Returns the version of the first installed distribution, without importing it."""
    for name in distributions if metadata else ():
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            pass
    return None


def _versions() -> str:
    """Returns the versions of this package and its environment, one line each."""
    others = {name: _version_of(distributions) for name, distributions in _VERSIONED}
    found = {"tf_lossscale_compat": __version__, "Python": platform.python_version(), **others}
    return "\n".join(f"{name} {version}" for name, version in found.items() if version)


def _parser(argv: list[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tf-lossscale",
        description="Tools around TensorFlow's removed loss-scale APIs.",
        formatter_class=argparse.RawDescriptionHelpFormatter,  # Keeps the lines of versions.
    )
    version_help = "show the versions of this, Python, TensorFlow and Keras"
    parser.add_argument("--version", action="version", version=_versions(), help=version_help)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    commands.required = True
    # No option before the command takes a value.
    requested = next((word for word in argv if not word.startswith("-")), None)
    for name, (module_name, summary) in COMMANDS.items():
        command = commands.add_parser(
            name, help=summary, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        if name != requested:
            continue
        module = importlib.import_module(f"tf_lossscale_compat.{module_name}")
        command.description = module.__doc__
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return parser


def main(argv: list[str] | None = None) -> int:
    """Runs one command; returns the exit code.

    The code is 0 for success, 1 for a failure while it runs, 2 for wrong arguments or missing files
    or packages, and 130 for an interruption.
    """
    try:
        argv = sys.argv[1:] if argv is None else argv
        args = _parser(argv).parse_args(argv)
        return args.run(args)
    except SystemExit as stop:  # argparse raises it, after printing the reason.
        return stop.code if isinstance(stop.code, int) else 0
    except KeyboardInterrupt:
        print("tf-lossscale: interrupted", file=sys.stderr)
        return 130
