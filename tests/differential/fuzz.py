"""Looks for programs in which the package differs from its originals, for some minutes.

    python -m tests.differential.fuzz --minutes 10
    python -m tests.differential.fuzz --minutes 10 --seed 7 --groups "contrib graph_v1"

`nox -s "fuzz(tf115)"` does it on a TensorFlow of the matrix. Of each kind of difference the
smallest program is kept, as a script that stands alone. Exit status 1 if there was any.
"""

import argparse
import collections
import functools
import json
import logging
import os
import pathlib
import random
import sys
import time
import warnings

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf
from absl import logging as absl_logging

from tests import keras_homes, originals, replicas  # noqa: F401  Before TensorFlow starts.
from tests.differential import differences, programs, run

RACES = ("threads", "both")
SCRIPT = '''\
"""{signature}

{difference}

Found on TensorFlow {version}, by `python -m tests.differential.fuzz --seed {seed}`, after {count}
programs. Run it in the repository's folder: PYTHONPATH=. python {name}
"""

import json

from tests import replicas  # noqa: F401  Before TensorFlow starts.
from tests.differential import run

PROGRAM = json.loads(
    """
{program}
"""
)
run.main(PROGRAM)
'''


def groups():
    """{name: (weight, function)} of all kinds of programs that there is an original for.

    The function makes a program of a number.
    """
    found = {}

    def add(weight, start, place, make, **arguments):
        found[f"{start} {place}"] = weight, functools.partial(make, place=place, **arguments)

    xla = keras_homes.VERSION >= (2, 4)
    for family in ("contrib", "managers", "mixed", "scales"):
        if family in ("contrib", "managers") and originals.contrib() is None:
            continue
        graphs, eager = (7, 10) if family in ("contrib", "mixed") else (5, 12)
        places = {"graph_v1": graphs, "graph_v2": graphs, "eager": eager, "function": 3}
        if xla:
            places["jit"] = 1
        if family == "mixed":
            places["mirrored"] = 2
        for place, weight in places.items():
            add(weight, family, place, programs.v1, family=family)
    if originals.contrib() is None:
        for place, weight in (("graph_v1", 2), ("graph_v2", 3), ("eager", 4)):
            add(weight, "modelled", place, programs.v1, family="modelled")
    homes = keras_homes.available()
    for home in homes:
        for api in ("stable", "experimental"):
            if home.own(api) is None:
                continue
            full = home is homes[0] and api == "stable"
            places = {"eager": 12, "function": 2} if full else {"eager": 5, "function": 1}
            if keras_homes.VERSION < (2, 0):
                places = {"graph": 8}
            elif home.kind == "v2":
                places["graph"] = 1 + full
            if xla and full:
                places["jit"] = 1
            if keras_homes.VERSION >= (2, 2):
                places["mirrored"] = 1 + full
            for place, weight in places.items():
                name = f"{home.name} {api}"
                add(weight, name, place, programs.keras, home=home, api=api)
    return found


class Finds:
    """The kinds of differences that were met, each with its smallest program."""

    def __init__(self):
        self.count = 0
        self.first, self.smallest = {}, {}

    def look(self, program, shrinking=False):
        """Runs a program; returns the signatures of what differs and is not on purpose."""
        self.count += not shrinking
        found, *_ = run.compare(program)
        signatures = set()
        for difference in found:
            if differences.on_purpose(difference):
                continue
            signature = difference.signature
            if (
                signature not in self.first
                and signature[2] in RACES
                and not self.steady(program, signature)
            ):
                continue
            signatures.add(signature)
            self.first.setdefault(signature, self.count)
            smallest = self.smallest.get(signature)
            size = len(json.dumps(program))
            if smallest is None or size < smallest[0]:
                self.smallest[signature] = size, program, difference
        return signatures

    def steady(self, program, signature):
        """True if a race ends in the same difference again and again."""
        return all(signature in {d.signature for d in run.compare(program)[0]} for _ in range(2))


def search(make, number, count, finds, shrink_seconds=0.0):
    """Runs the programs of some consecutive numbers; shrinks each that shows something new."""
    for each in range(number, number + count):
        known, program = set(finds.first), make(each)
        new = finds.look(program) - known
        if new:
            shrink(program, min(new), finds, time.monotonic() + shrink_seconds)


def shrink(program, signature, finds, end):
    """Takes away one thing after the other, as long as the difference stays the same.

    That is all that hypothesis would do for a program that it did not draw.
    """
    going = True
    while going:
        going = False
        for candidate in programs.simpler(program):
            if time.monotonic() > end:
                return
            if signature in finds.look(candidate, shrinking=True):
                program, going = candidate, True
                break


def file_name(signature):
    return "".join(c if c.isalnum() else "_" for c in "_".join(signature)) + ".py"


def script(finds, signature, seed):
    """The text of a script that stands alone, for the smallest program of a kind of difference."""
    _, program, difference = finds.smallest[signature]
    return SCRIPT.format(
        signature=" / ".join(signature),
        difference=str(difference).replace("\\", "/").replace('"""', "'''"),
        version=tf.__version__,
        seed=seed,
        count=finds.first[signature],
        name=file_name(signature),
        program=json.dumps(program, indent=1),
    )


def write(finds, folder, seed):
    """Writes a script for each kind of difference; returns {signature: path}."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = {signature: folder / file_name(signature) for signature in finds.smallest}
    for signature, path in paths.items():
        path.write_text(script(finds, signature, seed), encoding="utf-8")
    return paths


def quiet():
    """Keeps warnings of TensorFlow and the package out of what is printed."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    absl_logging.set_verbosity(absl_logging.ERROR)


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=None, help="by default a new one")
    parser.add_argument("--groups", default="", help="only those whose name has this in it")
    parser.add_argument("--shrink", type=float, default=10.0, help="seconds for each find")
    parser.add_argument("--scripts", type=pathlib.Path, default=pathlib.Path(".nox/fuzz"))
    options = parser.parse_args(arguments)
    seed = random.SystemRandom().randrange(10**6) if options.seed is None else options.seed
    quiet()
    chosen = {name: row for name, row in groups().items() if options.groups in name}
    if not chosen:
        parser.error(f"no such group; there are: {', '.join(groups())}")
    finds, per_group = Finds(), collections.Counter()
    start, number = time.monotonic(), random.Random(seed)
    print(f"TensorFlow {tf.__version__}, seed {seed}, {len(chosen)} groups", flush=True)
    names, weights = list(chosen), [weight for weight, _ in chosen.values()]
    while time.monotonic() < start + 60 * options.minutes:
        (name,) = number.choices(names, weights)
        known = set(finds.first)
        search(chosen[name][1], number.randrange(2**32), 8, finds, options.shrink)
        per_group[name] += 8
        for signature in sorted(set(finds.first) - known):
            print(f"after {finds.first[signature]} programs: {' / '.join(signature)}", flush=True)
    minutes = (time.monotonic() - start) / 60
    print(f"\n{finds.count} programs in {minutes:.1f} minutes, with what shrinking took")
    for name, count in sorted(per_group.items()):
        print(f"    {name}: {count} programs")
    for name in differences.ENTRIES:
        print(f"    on purpose, {name}: {differences.met[name]} times")
    if not finds.first:
        return 0
    paths = write(finds, options.scripts / f"tensorflow-{tf.__version__}", seed)
    print(f"\n{len(paths)} kinds of differences:")
    for signature, path in sorted(paths.items()):
        print(f"\n{' / '.join(signature)}: {path}\n    {finds.smallest[signature][2]}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
