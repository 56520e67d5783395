"""`tf-lossscale migrate --write`, killed at any moment, leaves whole files."""

import os
import random
import signal
import tempfile
import time
import unittest

import pytest
from absl.testing import absltest

pytest.importorskip("libcst", reason="the migration tool needs LibCST (Python 3.9 or newer)")

from tests import processes
from tf_lossscale_compat.migrate import _command

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("processes")]

KILLS = 50
FILES = 8
# Long enough that writing it in place would take a part of the time that a kill can hit.
PADDING = 400000
LIMIT_SECONDS = 240


def content(number):
    return (
        f"# File {number} {'é' * (PADDING // 2)}\nimport tensorflow as tf\n\n"
        f"x = tf.contrib.mixed_precision.FixedLossScaleManager({number}), tf.float16\n"
    ).encode()


@unittest.skipUnless(hasattr(os, "fork"), "needs os.fork, to kill 50 times after one import")
class KillTest(absltest.TestCase):
    def test_files_are_old_or_new_and_nothing_in_between(self):
        old = {f"module{number}.py": content(number) for number in range(FILES)}
        new = {name: _command.migrate_bytes(data).new for name, data in old.items()}
        choice = random.Random(6)
        mixed = 0
        with tempfile.TemporaryDirectory() as folder:
            for name, data in old.items():
                with open(os.path.join(folder, name), "wb") as file:
                    file.write(data)
            with processes.Child("migrate_and_die.py", folder) as child:
                deadline = time.monotonic() + LIMIT_SECONDS
                ready = child.line(deadline)
                self.assertRegex(ready or "", r"^\d+\.\d+$", child.errors())
                # To where the command rewrites, and to where all it does is replace files.
                longest = 3 * float(ready)
                for _ in range(KILLS):
                    child.say(str(choice.uniform(0, longest)))
                    self.assertEqual(child.line(deadline), str(int(signal.SIGKILL)))
                    states = []
                    for name in sorted(os.listdir(folder)):
                        with open(os.path.join(folder, name), "rb") as file:
                            data = file.read()
                        if name not in old:  # The temporary file, which only its writer takes away.
                            self.assertEndsWith(name, ".tf-lossscale.tmp")
                            continue
                        known = data in (old[name], new[name])
                        self.assertTrue(known, f"{name} holds {len(data)} bytes of neither")
                        states.append(data == new[name])
                    self.assertLen(states, FILES)
                    mixed += 0 < sum(states) < FILES
                    for name, is_new in zip(sorted(old), states):
                        if is_new and choice.random() < 0.5:
                            with open(os.path.join(folder, name), "wb") as file:
                                file.write(old[name])
        # Else the kills came when nothing was being written.
        self.assertGreater(mixed, KILLS // 5)


if __name__ == "__main__":
    absltest.main()
