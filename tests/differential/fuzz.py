"""Looks for programs in which the package differs from its originals, for some minutes.

    python -m tests.differential.fuzz --minutes 10
    python -m tests.differential.fuzz --minutes 10 --seed 7 --groups "contrib graph_v1"

`nox -s fuzz` does it on each TensorFlow of the matrix that is named. Of each kind of difference the
smallest program is kept, as a script that stands alone. Exit status 1 if there was any.
"""

import argparse
import json
import logging
import os
import pathlib
import random
import sys
import time
import warnings

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import hypothesis
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
    """{name: (weight, strategy)} of all kinds of programs that there is an original for."""
    found = {}

    def add(weight, family, place, strategy):
        found[f"{family} {place}"] = weight, strategy

    xla = keras_homes.VERSION >= (2, 4)
    for family in ("contrib", "managers", "mixed", "scales"):
        if family in ("contrib", "managers") and originals.contrib() is None:
            continue
        wrapped = 3 if family in ("contrib", "mixed") else 1
        places = {"graph_v1": 2 * wrapped, "graph_v2": 2 * wrapped, "eager": 2, "function": 2}
        if xla:
            places["jit"] = 1
        if family == "mixed":
            places["mirrored"] = 1
        for place, weight in places.items():
            add(weight, family, place, programs.v1(family, place))
    from tests.differential import keras_side

    for home in keras_homes.available():
        for api in ("stable", "experimental"):
            if keras_side.own_class(home, api) is None or (
                api == "stable" and keras_homes.VERSION < (2, 4)
            ):
                continue
            places = {"eager": 4, "function": 2}
            if keras_homes.VERSION < (2, 0):
                places = {"graph": 3}
            elif home.kind == "v2":
                places["graph"] = 2
            if xla:
                places["jit"] = 1
            if keras_homes.VERSION >= (2, 2):
                places["mirrored"] = 1
            for place, weight in places.items():
                name = f"{home.name} {api}"
                add(weight, name, place, programs.keras(home, api, place))
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


def search(strategy, seed, examples, finds, shrink_seconds=0.0):
    """Runs some programs; shrinks the first that shows a new kind of difference."""
    target, ends = [], []
    known = set(finds.first)
    phases = [hypothesis.Phase.generate]
    if shrink_seconds:
        phases.append(hypothesis.Phase.shrink)

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=examples,
        database=None,
        deadline=None,
        phases=phases,
        print_blob=False,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(strategy)
    def programs_agree(program):
        if ends and time.monotonic() > ends[0]:
            return
        signatures = finds.look(program, shrinking=bool(target))
        if not target and shrink_seconds and signatures - known:
            target.append(min(signatures - known))
            ends.append(time.monotonic() + shrink_seconds)
        if target and target[0] in signatures:
            raise AssertionError(target[0])

    try:
        programs_agree()
    except AssertionError:
        pass
    except Exception as error:  # hypothesis' own, of a shrinking that was cut short.
        if not type(error).__module__.startswith("hypothesis"):
            raise


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
    finds, per_group = Finds(), {}
    start, number = time.monotonic(), random.Random(seed)
    print(f"TensorFlow {tf.__version__}, seed {seed}, {len(chosen)} groups", flush=True)
    names, weights = list(chosen), [weight for weight, _ in chosen.values()]
    while time.monotonic() < start + 60 * options.minutes:
        (name,) = number.choices(names, weights)
        before, known = finds.count, set(finds.first)
        began = time.process_time()
        search(chosen[name][1], number.randrange(2**32), 8, finds, options.shrink)
        programs_run, seconds = per_group.get(name, (0, 0.0))
        per_group[name] = (
            programs_run + finds.count - before,
            seconds + time.process_time() - began,
        )
        for signature in sorted(set(finds.first) - known):
            print(f"after {finds.first[signature]} programs: {' / '.join(signature)}", flush=True)
    minutes = (time.monotonic() - start) / 60
    print(f"\n{finds.count} programs in {minutes:.1f} minutes, with what shrinking took")
    for name, (count, seconds) in sorted(per_group.items()):
        print(f"    {name}: {count} programs, {seconds / max(count, 1):.2f} s of CPU each")
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
