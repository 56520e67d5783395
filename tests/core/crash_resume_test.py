"""A training process that is killed again and again ends where an uninterrupted one does.

SIGKILL comes at random moments, most of them in the middle of a save, as that is what the program
spends its time on.
"""

import concurrent.futures
import json
import os
import random
import signal
import tempfile
import time

import processes
import pytest
import tensorflow as tf
from absl.testing import parameterized

# The first test waits for many starts of TensorFlow, each of which has a limit of its own.
pytestmark = [pytest.mark.timeout(900), pytest.mark.slow, pytest.mark.xdist_group("processes")]

VERSION = tuple(int(part) for part in tf.__version__.split(".")[:2])
# Every kill costs a start of TensorFlow, so most of them happen on the newest only.
KILLS = {"checkpoint": 5, "saver": 2, "mirrored": 2}
if VERSION < (2, 20):
    KILLS = {"checkpoint": 2, "saver": 1, "mirrored": 1}
# Far above what it takes, per process: it ends one that hangs.
LIMIT_SECONDS = 100


def start(*arguments):
    return processes.Child("resumable_training.py", *arguments)


def position(line, child, *words):
    """Returns the number in a line of the program, which must begin with one of the words."""
    word, _, number = (line or "").partition(" ")
    if word not in words:
        raise AssertionError(f"wanted {words}, got {line!r}; standard error:\n{child.errors()}")
    return int(number)


def uninterrupted(folder):
    """Returns the state at the end of each mode's run, from one process that runs them all."""
    deadline = time.monotonic() + LIMIT_SECONDS
    arguments = [part for mode in KILLS for part in (mode, os.path.join(folder, mode))]
    states = []
    with start(*arguments) as child:
        while len(states) < len(KILLS):
            line = child.line(deadline)
            if line is None:
                raise AssertionError(child.errors())
            if line.startswith("done "):
                states.append(json.loads(line[5:]))
    return dict(zip(KILLS, states))


def kill_at_random(mode, folder, choice, most, last):
    """Starts the program, kills it after some steps; returns the last saved and saving positions.

    Args:
      mode: argument of the program.
      folder: where it keeps its checkpoints.
      choice: `random.Random`.
      most: number of steps that the program is let finish at most.
      last: the positions that this function returned for the process before.
    """
    deadline = time.monotonic() + LIMIT_SECONDS
    saved, saving = last
    with start(mode, folder) as child:
        resumed = position(child.line(deadline), child, "resumed")
        if not saved <= resumed <= saving:
            raise AssertionError(f"saved {saved}, was saving {saving}, but resumed at {resumed}")
        for _ in range(choice.randint(1, most)):
            saving = position(child.line(deadline), child, "saving")
            saved = position(child.line(deadline), child, "saved")
        saving = position(child.line(deadline), child, "saving")
        time.sleep(choice.uniform(0, 0.02))
        child.kill()
        status, lines = child.wait(deadline)
        if status != -signal.SIGKILL:
            raise AssertionError(f"ended by itself with {status}:\n{child.errors()}")
        for line in lines:
            reached = position(line, child, "saving", "saved")
            if line.startswith("saving"):
                saving = reached
            else:
                saved = reached
    return saved, saving


def killed(mode, folder, kills):
    """Returns the final state of a run that was killed."""
    choice = random.Random(mode)
    last = (0, 0)
    for _ in range(kills):
        # In all half of the program's 80 steps, as some more are done until the kill strikes.
        last = kill_at_random(mode, folder, choice, 40 // kills, last)
    deadline = time.monotonic() + LIMIT_SECONDS
    with start(mode, folder) as child:
        line = child.line(deadline)
        if not last[0] <= position(line, child, "resumed") <= last[1]:
            raise AssertionError(f"saved and saving were {last}, but {line}")
        while line and not line.startswith("done "):
            line = child.line(deadline)
        if line is None:
            raise AssertionError(child.errors())
    return json.loads(line[5:])


class CrashResumeTest(parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        # A start of TensorFlow keeps one core busy; runs of different modes do not meet.
        cls.folder = tempfile.TemporaryDirectory()
        cls.pool = concurrent.futures.ThreadPoolExecutor(2)
        cls.runs = {
            mode: cls.pool.submit(killed, mode, os.path.join(cls.folder.name, mode), kills)
            for mode, kills in KILLS.items()
        }
        cls.whole = cls.pool.submit(uninterrupted, os.path.join(cls.folder.name, "whole"))

    @classmethod
    def tearDownClass(cls):
        cls.pool.shutdown()
        cls.folder.cleanup()
        super().tearDownClass()

    @parameterized.parameters(*KILLS)
    def test_killed_run_ends_like_an_uninterrupted_one(self, mode):
        state = self.runs[mode].result()
        expected = self.whole.result()[mode]
        self.assertNotEmpty(expected)
        self.assertEqual(state, expected)

    @parameterized.parameters("checkpoint", "mirrored")
    def test_run_skips_and_applies_steps(self, mode):
        state = self.whole.result()[mode]
        (seen,) = state["position"]
        self.assertEqual(set(map(bool, state["count"])), {True})
        self.assertLess(state["count"][0], seen)

    def test_replicas_hold_the_same(self):
        state = self.runs["mirrored"].result()
        for name in ("hidden:0", "output:0", "count", "policy0", "policy1", "policy2"):
            self.assertLen(state[name], 2, name)
        for name, copies in state.items():  # The oldest versions show one copy of a slot only.
            with self.subTest(name):
                self.assertEqual(copies, copies[:1] * len(copies))
