"""Find the loss scale in a checkpoint, whatever wrote it, and show it.

`tf_lossscale_compat.checkpoint.assign` puts it into any other kind.
"""

from __future__ import annotations

import argparse
import json
import sys

from tf_lossscale_compat import checkpoint
from tf_lossscale_compat.checkpoint._reader import format_scale


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds this command's options to an `argparse` parser."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    actions.required = True
    show = actions.add_parser(
        "show",
        help="show the loss scales in a checkpoint",
        description="Shows the dynamic loss scales in a checkpoint, which is only read. Exit code "
        "1 if there is none or it cannot be read.",
    )
    show.add_argument(
        "path",
        metavar="PATH",
        help="prefix of a TensorFlow checkpoint, folder of checkpoints (the latest), SavedModel",
    )
    show.add_argument("--json", action="store_true", help="write JSON instead of a table")


def _printable(text: str) -> str:
    """Returns a file's text without characters that control a terminal."""
    return "".join(character if character.isprintable() else "?" for character in text)


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    try:
        states = checkpoint.find(args.path) or [
            checkpoint.read(args.path)
        ]  # Raises an error that lists the file's contents.
    except checkpoint.CheckpointError as error:
        print(f"tf-lossscale checkpoint: {_printable(str(error))}", file=sys.stderr)
        return 1
    if args.json:
        print(json.dumps([state._asdict() for state in states], indent=2))
        return 0
    width = max(len("key"), *[len(state.key) for state in states])
    print(f"{'key':{width}}  {'loss scale':>22}  good steps  bad steps  layout")
    for scale, good, bad, layout, key in states:
        counts = f"{good:>10}  {'-' if bad is None else bad:>9}"
        print(f"{_printable(key):{width}}  {format_scale(scale):>22}  {counts}  {layout}")
    return 0
