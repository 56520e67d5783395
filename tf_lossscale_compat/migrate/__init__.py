"""Rewrite code from TensorFlow's loss-scale APIs to this package's.

Without an option it shows the changes as a diff on standard output and writes nothing. It does not
change what it cannot change safely. It reports such a place as `file:line:column: LSC104 message`,
with what to do. The comment `# tf-lossscale: checked LSC104` on that line ends the report; without
a code it ends all reports there. docs/migrate-command.md lists the codes.
In folders it reads *.py and *.pyi files. It skips hidden folders, virtual environments,
node_modules and __pycache__ unless they are named, and does not follow links there. For a notebook:
jupytext --warn-only --pipe-fmt py:percent --pipe 'tf-lossscale migrate -' train.ipynb

exit codes:
  0  nothing is left to do (without --check, and apart from the changes shown or made)
  1  something is left: places for a person, or with --check files that would change
  2  a file could not be handled (not Python 3, not UTF-8, not readable, not writable) and was
     skipped, or the command was called wrongly
"""

import sys

from tf_lossscale_compat._core import _install


def add_arguments(parser):
    """Adds this command's options to an `argparse` parser."""
    add, many = parser.add_argument, {"action": "append", "default": []}
    text = "a file or a folder; - reads standard input and writes the result to standard output"
    add("paths", nargs="+", metavar="PATH", help=text)
    mode = parser.add_mutually_exclusive_group()
    for name, text in (
        ("--write", "change the files, each of them in one step"),
        ("--check", "only say which files would change; exit code 1 if any"),
        ("--diff", "show the changes as a diff, as without an option"),
    ):
        mode.add_argument(name, action="store_true", help=text)
    text = "skip what matches in folders, by name or by path below the folder; repeatable"
    add("--exclude", metavar="GLOB", help=text, **many)
    text = "a dotted name by which another module passes TensorFlow on, as deepmd.env.tf for"
    text += " `from deepmd.env import tf`; repeatable"
    add("--tensorflow-as", metavar="NAME", help=text, **many)
    text = "json: write the places left to a person to standard output, for editors"
    add("--format", choices=["text", "json"], default="text", help=text)
    # `run` finds out more about the arguments, and can then complain as argparse does.
    parser.set_defaults(error=parser.error)


def run(args):
    """Runs the command; returns the exit code."""
    try:
        import libcst  # noqa: F401
    except ImportError:
        if sys.version_info < (3, 9):
            # The extra would install nothing here.
            args.error(
                "this needs Python 3.9 or newer, but this is {}.{}: run it with a newer one that "
                "has tf_lossscale_compat[migrate]. The code that it rewrites may be for an older "
                "Python.".format(*sys.version_info[:2])
            )
        args.error(
            "this needs libcst, which the extra `migrate` installs: " + _install.command("migrate")
        )
    if "-" in args.paths and (len(args.paths) > 1 or args.write):
        args.error("standard input (-) excludes other paths and --write")
    for name in args.tensorflow_as:
        if not all(part.isidentifier() for part in name.split(".")) or "." not in name:
            args.error(f"--tensorflow-as takes a dotted name such as deepmd.env.tf, not {name!r}")

    from tf_lossscale_compat.migrate import _command

    run = _command.Run(args.write, args.check, args.tensorflow_as, args.format == "json")
    if args.paths == ["-"]:
        run.pipe(sys.stdin.buffer.read())
    else:
        run.paths(args.paths, args.exclude)
    return run.exit_code
