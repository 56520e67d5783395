"""The command `tf-lossscale`: one subcommand for each tool."""

import argparse
import sys

from tf_lossscale_compat import _version, checkpoint, demo, migrate, plot

# Each tool brings `add_arguments(parser)` and `run(args)`, which returns the exit code; the first
# line of its module's docstring is its line in the help.
COMMANDS = {
    "checkpoint": checkpoint,
    "demo": demo,
    "migrate": migrate,
    "plot": plot,
}


def _parser():
    parser = argparse.ArgumentParser(
        prog="tf-lossscale", description="Tools around TensorFlow's removed loss-scale APIs."
    )
    parser.add_argument("--version", action="version", version=_version.__version__)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    commands.required = True
    for name, module in COMMANDS.items():
        summary, _, rest = (module.__doc__ or "").partition("\n")
        command = commands.add_parser(
            name,
            help=summary,
            description=summary + "\n" + rest,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return parser


def main(argv=None):
    """Runs one command.

    Args:
      argv: list of strings, what follows the program's name; None for `sys.argv`.

    Returns:
      The exit code: 0 when all went well, 2 for a call that cannot be served (bad arguments,
      something missing), 1 for a failure under way, 130 when interrupted.
    """
    try:
        args = _parser().parse_args(argv)
        return args.run(args)
    except SystemExit as stop:  # This is how argparse ends, after it has said why.
        return stop.code if isinstance(stop.code, int) else 0
    except KeyboardInterrupt:
        print("tf-lossscale: interrupted", file=sys.stderr)
        return 130
