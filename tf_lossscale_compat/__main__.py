"""The command `tf-lossscale`, also `python -m tf_lossscale_compat`; it needs no TensorFlow."""

from __future__ import annotations

import argparse
import contextlib
import platform
import sys

from tf_lossscale_compat import __version__, migrate

# The distributions that a bug report should name.
_TENSORFLOWS = ("tensorflow", "tensorflow-cpu", "tensorflow-gpu", "tf-nightly")
_REPORTED = (*_TENSORFLOWS, "keras", "tf-keras", "numpy")


def _version_of(distribution: str) -> str:
    """Returns an installed distribution's version without importing it, or raises ImportError."""
    try:
        from importlib import metadata
    except ImportError:  # Python 3.7, where TensorFlow installs `importlib_metadata`.
        import importlib_metadata as metadata  # type: ignore[no-redef]
    return metadata.version(distribution)


def _parser() -> argparse.ArgumentParser:
    lines = [f"tf_lossscale_compat {__version__}", f"Python {platform.python_version()}"]
    for name in _REPORTED:
        with contextlib.suppress(ImportError):
            lines.append(f"{name} {_version_of(name)}")
    as_written = argparse.RawDescriptionHelpFormatter  # Keeps the lines.
    parser = argparse.ArgumentParser(
        prog="tf-lossscale",
        description="Tools around TensorFlow's removed loss-scale APIs.",
        formatter_class=as_written,
    )
    version_help = "show the versions of this, Python, TensorFlow and Keras"
    parser.add_argument("--version", action="version", version="\n".join(lines), help=version_help)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    summary = "Rewrite code from TensorFlow's loss-scale APIs to this package's."
    command = commands.add_parser(
        "migrate", help=summary, description=migrate.__doc__, formatter_class=as_written
    )
    migrate.add_arguments(command)
    return parser


def main(argv: list[str] | None = None) -> int:
    """Runs the command; returns the exit code, that of `migrate` or 130 for an interruption."""
    try:
        return migrate.run(_parser().parse_args(argv))
    except SystemExit as stop:  # argparse raises it, after printing the reason.
        return stop.code if isinstance(stop.code, int) else 0
    except KeyboardInterrupt:
        print("tf-lossscale: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
