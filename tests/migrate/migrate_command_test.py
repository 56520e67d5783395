"""`tf-lossscale migrate`: files, folders, options, exit codes, and what is kept of a file."""

import contextlib
import importlib
import io
import json
import os
import stat
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

import pytest
from absl.testing import parameterized

pytest.importorskip("libcst", reason="the migration tool needs LibCST (Python 3.9 or newer)")

from tf_lossscale_compat import __main__ as command
from tf_lossscale_compat.migrate import _command, _files, _source, rewrites

BEFORE = "import tensorflow as tf\nx = tf.contrib.mixed_precision.LossScaleManager, tf.nn\n"
AFTER = (
    "import tensorflow as tf\nimport tf_lossscale_compat\n"
    "x = tf_lossscale_compat.contrib.mixed_precision.LossScaleManager, tf.nn\n"
)
TENSORFLOW_AS = "deepmd.tf.env.tf"
OURS = "tf_lossscale_compat.train.experimental.DynamicLossScale"
FINDING = "import tensorflow as tf\nx = tf.contrib.mixed_precision.Other\n"


class Stream(io.TextIOWrapper):
    """A standard stream as the interpreter makes it, that remembers its bytes."""

    def __init__(self, data=b""):
        super().__init__(io.BytesIO(data), encoding="ascii", newline="\n")

    @property
    def bytes(self):
        self.flush()
        return self.buffer.getvalue()


def call(*arguments, stdin=b""):
    """Runs the command in this process; returns exit code, standard output, standard error."""
    out, err = Stream(), Stream()
    with mock.patch.object(sys, "stdin", Stream(stdin)):
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = command.main(["migrate", *map(str, arguments)])
    return code, out.bytes, err.bytes.decode("utf-8")


class FolderTestCase(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = os.path.realpath(self.enter_context(tempfile.TemporaryDirectory()))

    def path(self, name):
        return os.path.join(self.folder, *name.split("/"))

    def write(self, name, data):
        os.makedirs(os.path.dirname(self.path(name)), exist_ok=True)
        with open(self.path(name), "wb") as file:
            file.write(data.encode("utf-8") if isinstance(data, str) else data)
        return self.path(name)

    def read(self, name):
        with open(self.path(name), "rb") as file:
            return file.read()

    def names(self):
        return sorted(
            os.path.relpath(os.path.join(folder, name), self.folder)
            for folder, _, names in os.walk(self.folder)
            for name in names
        )


class ModesTest(FolderTestCase):
    def test_preview_prints_a_diff_and_writes_nothing(self):
        path = self.write("a.py", BEFORE)
        self.write("b.py", "import os\n")
        code, out, err = call(self.folder)
        self.assertEqual(code, 0)
        self.assertIn(f"--- a{path}\n+++ b{path}\n@@", out.decode())
        self.assertIn("\n+import tf_lossscale_compat\n", out.decode())
        self.assertEqual(
            err, "2 files looked at, 1 to rewrite, 0 places left to a person, 0 not handled\n"
        )
        self.assertEqual(self.read("a.py").decode(), BEFORE)

    def test_the_diff_can_be_applied(self):
        contents = {"a.py": BEFORE, "b.py": BEFORE.replace("\n", "\r\n"), "c.py": BEFORE[:-1]}
        for name, text in contents.items():
            self.write(name, text)
        # What else there is to say does not stand among it.
        self.write("d.py", FINDING)
        self.write("e.py", "class\ntf.mixed_precision")
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(self.folder)
        _, out, err = call(".")
        self.assertIn("1 place left to a person, 1 not handled", err)
        subprocess.run(
            ["git", "apply", "-p1", "-"], input=out, cwd=self.folder, check=True, timeout=60
        )
        for name, text in contents.items():
            self.assertEqual(self.read(name).decode(), _source.migrate(text).text)

    def test_write(self):
        self.write("a.py", BEFORE)
        self.write("deep/er/b.pyi", BEFORE)
        code, out, err = call(self.folder, "--write")
        self.assertEqual(code, 0)
        self.assertEqual(out.decode().count("rewrote "), 2)
        self.assertIn("2 rewritten", err)
        self.assertEqual(self.read("a.py").decode(), AFTER)
        self.assertEqual(self.read("deep/er/b.pyi").decode(), AFTER)
        self.assertEqual(self.names(), ["a.py", "deep/er/b.pyi"])
        before = os.stat(self.path("a.py"))
        code, out, err = call(self.folder, "--write")
        self.assertEqual((code, out), (0, b""))
        self.assertEqual(os.stat(self.path("a.py")).st_mtime_ns, before.st_mtime_ns)

    def test_check(self):
        path = self.write("a.py", BEFORE)
        code, out, _ = call(path, "--check")
        self.assertEqual((code, out.decode()), (1, f"would rewrite {path}\n"))
        self.assertEqual(self.read("a.py").decode(), BEFORE)
        self.write("a.py", AFTER)
        self.assertEqual(call(path, "--check")[:2], (0, b""))

    @parameterized.parameters((), ("--write",), ("--check",))
    def test_places_left_to_a_person(self, *options):
        path = self.write("a.py", FINDING)
        code, out, err = call(path, *options)
        self.assertEqual((code, out), (1, b""))
        self.assertStartsWith(
            err, f"{path}:2:5: LSC212 `tf.contrib.mixed_precision.Other` was not public"
        )
        self.assertEqual(self.read("a.py").decode(), FINDING)

    def test_places_as_json(self):
        path = self.write("a.py", BEFORE + FINDING.replace("import tensorflow as tf\n", ""))
        bad = self.write("b.py", "print 'tf.contrib.mixed_precision'\n")
        code, out, err = call(path, bad, "--format", "json")
        self.assertEqual(code, 2)
        place, failure = json.loads(out)
        message = place.pop("message")
        self.assertEqual(place, {"path": path, "line": 3, "column": 5, "code": "LSC212"})
        self.assertStartsWith(message, "`tf.contrib.mixed_precision.Other` was not public")
        self.assertEqual((failure["path"], failure["line"], failure["code"]), (bad, 1, ""))
        self.assertNotIn("LSC212", err)
        self.assertIn("1 place left to a person, 1 not handled", err)
        code, out, _ = call("-", "--format", "json", stdin=FINDING.encode())
        self.assertEqual((code, [each["line"] for each in json.loads(out)]), (1, [2]))

    @parameterized.parameters(
        ("makes = tf.keras.mixed_precision.LossScaleOptimizer(tf.keras.optimizers.SGD(0.1))", 0),
        ("class Own(tf.keras.optimizers.Adam):\n    def get_scaled_loss(self, loss): ...", 0),
        ("enable = tf.train.experimental.enable_mixed_precision_graph_rewrite", 0),
        ("LossScaleOptimizer = print 8", 0),  # Of Python 2, which is not handled.
        ("is_one = isinstance(opt, tf.keras.mixed_precision.LossScaleOptimizer)", 1),
    )
    def test_another_file_may_make_the_optimizer(self, line, reported):
        """Of 56 public files with such a step, 36 have the optimizer from another file."""
        step = self.write("a.py", "import tensorflow as tf\nloss = opt.get_scaled_loss(loss)\n")
        self.assertIn(f"{step}:2:8: LSC105 ", call(step)[2])
        self.write("b.py", f"import tensorflow as tf\n{line}\n")
        err = call(self.folder)[2]
        self.assertEqual(f"{step}:2:8: LSC105 " in err, bool(reported))
        self.assertIn(f"{reported} place{'s' * (not reported)} left to a person", err)
        codes = [each["code"] for each in json.loads(call("--format=json", self.folder)[1])]
        self.assertEqual("LSC105" in codes, bool(reported))

    def test_places_are_those_after_the_change(self):
        text = BEFORE + "tf.contrib.mixed_precision.x\n"
        path = self.write("a.py", text)
        self.assertIn(f"{path}:3:1: ", call(path)[2])
        self.assertIn(f"{path}:4:1: ", call(path, "--write")[2])
        self.assertIn("<stdin>:4:1: ", call("-", stdin=text.encode())[2])

    def test_a_file_named_twice_is_done_once(self):
        path = self.write("a.py", BEFORE)
        self.assertStartsWith(call(path, self.folder, path)[2], "1 file looked at")

    def test_standard_input(self):
        code, out, err = call("-", stdin=BEFORE.encode())
        self.assertEqual((code, out.decode(), err), (0, AFTER, ""))
        crlf = b"\xef\xbb\xbf" + ("# é\n" + BEFORE).replace("\n", "\r\n").encode()
        wanted = b"\xef\xbb\xbf" + ("# é\n" + AFTER).replace("\n", "\r\n").encode()
        self.assertEqual(call("-", stdin=crlf)[:2], (0, wanted))
        self.assertEqual(call("-", "--check", stdin=crlf)[:2], (1, b""))
        self.assertEqual(call("-", stdin=FINDING.encode())[:2], (1, FINDING.encode()))
        # In a pipe nothing gets lost.
        bad = b"print 'tf.mixed_precision \xff'"
        self.assertEqual(call("-", stdin=bad)[:2], (2, bad))

    @parameterized.parameters(
        (("-", "x.py"), "standard input (-) excludes other paths"),
        (("-", "--write"), "standard input (-) excludes other paths and --write"),
        (("x.py", "--write", "--check"), "not allowed with"),
        ((), "PATH"),
    )
    def test_wrong_calls(self, arguments, message):
        code, _, err = call(*arguments)
        self.assertEqual(code, 2)
        self.assertIn(message, err)

    def test_a_folder_with_nothing_to_look_at(self):
        self.write("a.txt", BEFORE)
        code, _, err = call(self.folder)
        self.assertEqual(code, 2)
        self.assertStartsWith(err, f"{self.folder}: holds no *.py or *.pyi file")
        self.assertIn("1 not handled", err)

    @parameterized.parameters(
        ((3, 7, 17), "needs Python 3.9 or newer, but this is 3.7: run it with a newer"),
        ((3, 9, 0), "pip install 'tf_lossscale_compat[migrate]', with the path of a"),
    )
    def test_without_libcst(self, version, message):
        with mock.patch.dict(sys.modules, libcst=None):
            with mock.patch.object(sys, "version_info", version):
                code, _, err = call(self.write("a.py", BEFORE))
        self.assertEqual(code, 2)
        self.assertIn(message, err)


class NotHandledTest(FolderTestCase):
    """A file that cannot be handled is reported; the others are done."""

    def check(self, bad, message, data):
        self.write("good.py", BEFORE)
        code, _, err = call(self.folder, "--write")
        self.assertEqual(code, 2)
        self.assertRegex(err, message)
        self.assertIn("1 rewritten, 0 places left to a person, 1 not handled", err)
        self.assertEqual(self.read("good.py").decode(), AFTER)
        if data is not None:
            self.assertEqual(self.read(bad), data)

    @parameterized.parameters(
        (b"print 'tf.contrib.mixed_precision'\n", r"bad\.py:1:\d+: does not parse as Python 3"),
        (b"# tf.mixed_precision \xff\n", r"bad\.py: is not UTF-8 \(byte 21\)"),
        (
            b"# coding: latin-1\n# tf.mixed_precision \xe9\n",
            r"bad\.py: declares the encoding iso8859-1",
        ),
        (
            b"# coding: klingon\n# tf.mixed_precision\n",
            r"bad\.py: has no encoding that Python knows",
        ),
        (b"tf.mixed_precision\0", r"bad\.py(:\d+:\d+)?: "),
        (b"tf.mixed_precision" + b"(" * 3000, r"bad\.py:1:1: .*nested too deeply"),
        (b"tf.mixed_precision" + b"-" * 3000 + b"1", r"bad\.py:1:1: .*nested too deeply"),
        (b"if tf.mixed_precision: 1\n" + b"elif 2: 3\n" * 900, r"bad\.py:1:1: .*nested too deeply"),
        (b"class\ntf.mixed_precision", r"bad\.py:2:1: does not parse"),
    )
    def test_content(self, data, message):
        self.write("bad.py", data)
        self.check("bad.py", message, data)

    def test_a_notebook(self):
        data = b'{"cells": [tf.mixed_precision]}'
        path = self.write("bad.ipynb", data)
        code, _, err = call(path, self.write("good.py", BEFORE), "--write")
        self.assertEqual(
            (code, self.read("bad.ipynb"), self.read("good.py")), (2, data, AFTER.encode())
        )
        command = (
            f"jupytext --warn-only --pipe-fmt py:percent --pipe 'tf-lossscale migrate -' {path}"
        )
        self.assertIn(f"{path}: is a notebook: write `{command}`", err)
        self.assertStartsWith(call(self.folder)[2], "1 file looked at")  # A folder's are skipped.

    def test_a_link_that_leads_out_of_the_folder(self):
        self.write("outside.py", BEFORE)
        self.write("src/good.py", BEFORE)
        os.symlink("../outside.py", self.path("src/bad.py"))
        os.symlink(self.path("nowhere"), self.path("src/nowhere.py"))
        for option in ((), ("--check",), ("--write",)):
            code, out, err = call(self.path("src"), *option)
            self.assertEqual(code, 2)
            self.assertNotIn(b"bad.py", out)
            for name in ("bad", "nowhere"):
                self.assertIn(f"{name}.py: cannot be read: it is a link that leads out", err)
            self.assertIn("1 file looked at", err)
        self.assertEqual(self.read("outside.py").decode(), BEFORE)
        self.assertEqual(self.read("src/good.py").decode(), AFTER)
        # One that is named is followed, and stays a link.
        self.assertEqual(call(self.path("src/bad.py"), "--write")[0], 0)
        self.assertEqual(self.read("outside.py").decode(), AFTER)
        self.assertEqual(os.readlink(self.path("src/bad.py")), "../outside.py")

    def test_a_path_that_is_not_there(self):
        code, _, err = call(self.path("x.py"), self.write("a.py", BEFORE))
        self.assertEqual(code, 2)
        self.assertIn(f"{self.path('x.py')}: cannot be read: No such file", err)
        self.assertIn("2 files looked at, 1 to rewrite", err)

    @unittest.skipUnless(hasattr(os, "mkfifo"), "needs named pipes")
    def test_a_pipe_does_not_block(self):
        os.mkfifo(self.path("bad.py"))
        self.check("bad.py", r"bad\.py: is not a regular file", None)

    def test_read_only(self):
        path = self.write("bad.py", BEFORE)
        real = os.access
        with mock.patch.object(os, "access", lambda *a: a[0] != path and real(*a)):
            self.check("bad.py", r"bad\.py: cannot be written: it is read-only", BEFORE.encode())

    def test_the_disk_is_full(self):
        self.write("bad.py", BEFORE)
        full = OSError(28, "No space left on device")
        with mock.patch.object(os, "fsync", side_effect=[full, None]):
            self.check("bad.py", r"bad\.py: cannot be written: No space left", BEFORE.encode())
        self.assertEqual(self.names(), ["bad.py", "good.py"])

    def test_changed_by_someone_else_meanwhile(self):
        path = self.write("a.py", BEFORE)
        with self.assertRaisesRegex(_files.FileError, "was changed by someone else"):
            _files.replace(path, b"old", b"new")
        self.assertEqual(self.read("a.py").decode(), BEFORE)
        self.assertEqual(self.names(), ["a.py"])

    def test_a_fault_of_the_tool(self):
        self.write("bad.py", "tf.mixed_precision\n")
        real = _source.migrate

        def migrate(text, tensorflow_as):
            if text == "tf.mixed_precision\n":
                raise KeyError("what")
            return real(text, tensorflow_as)

        with mock.patch.object(_source, "migrate", migrate):
            self.check("bad.py", "fault of this tool, please report it: KeyError: 'what'", None)


class KeptTest(FolderTestCase):
    """Of a rewritten file nothing changes but the names."""

    @parameterized.parameters(
        ("# é\n{}",),
        ("\ufeff# é\n{}",),
        ("# -*- coding: utf-8 -*-\n{}",),
        ("\ufeff# coding: utf8\n{}# ü\n",),
        ("# coding: latin-1\n{}",),  # All of it is ASCII.
        ("\f\n{}\t \n\n\n",),
        ("{}x = '''\r\n \r\n'''\t# 1\r\n",),
        ("#!/usr/bin/env python\r\n\r\n{}y = 1 # no end",),
    )
    def test_bytes(self, around):
        before, after = around.format(BEFORE), around.format(AFTER)
        for name, old, new in (
            ("a.py", before, after),
            ("b.py", before.replace("\n", "\r\n"), after.replace("\n", "\r\n")),
        ):
            self.write(name, old)
            self.assertEqual(call(self.path(name), "--write")[0], 0)
            self.assertEqual(self.read(name), new.encode("utf-8"))

    def test_mixed_line_ends(self):
        before = BEFORE.replace("tf\n", "tf\r\n", 1) + "a = 1\r\nb = 2\n"
        after = AFTER.replace("tf\n", "tf\r\n", 1).replace("compat\n", "compat\r\n", 1)
        self.write("a.py", before)
        call(self.folder, "--write")
        self.assertEqual(self.read("a.py").decode(), after + "a = 1\r\nb = 2\n")

    def test_a_file_is_complete_before_it_takes_the_place_of_the_old_one(self):
        path = self.write("a.py", BEFORE)
        os.chmod(path, 0o640)
        real = os.replace
        seen = []

        def replace(temporary, target):
            with open(temporary, "rb") as file:
                seen.append((file.read().decode(), stat.S_IMODE(os.stat(temporary).st_mode)))
            self.assertEqual(os.path.dirname(temporary), self.folder)
            self.assertEqual(self.read("a.py").decode(), BEFORE)
            real(temporary, target)

        with mock.patch.object(os, "replace", replace):
            self.assertEqual(call(path, "--write")[0], 0)
        self.assertEqual(seen, [(AFTER, 0o640)])
        self.assertEqual(self.names(), ["a.py"])

    def test_what_a_kill_may_leave_is_no_file_to_look_at(self):
        path = self.write("a.py", BEFORE)
        with mock.patch.object(os, "unlink"), self.assertRaises(KeyboardInterrupt):
            with mock.patch.object(os, "replace", side_effect=KeyboardInterrupt):
                _files.replace(path, BEFORE.encode(), AFTER.encode())
        (left,) = set(self.names()) - {"a.py"}
        self.assertRegex(left, r"^\.a\.py\..*\.tf-lossscale\.tmp$")
        self.assertStartsWith(call(self.folder)[2], "1 file looked at")


class WalkTest(FolderTestCase):
    def test_links_below_a_folder_are_not_followed(self):
        self.write("real.py", BEFORE)
        self.write("left_out/b.py", BEFORE)
        os.symlink("real.py", self.path("again.py"))
        os.symlink("left_out/b.py", self.path("b.py"))
        code, out, err = call(self.folder, "--write", "--exclude", "left_out")
        self.assertEqual(code, 0, err)
        self.assertEqual(out.decode(), f"rewrote {self.path('real.py')}\n")
        self.assertEqual(self.read("left_out/b.py").decode(), BEFORE)

    def found(self, *arguments):
        _, out, _ = call(*arguments, "--check")
        lines = out.decode().splitlines()
        return [os.path.relpath(line.split(" ", 2)[2], self.folder) for line in lines]

    def test_what_is_looked_at(self):
        for name in (
            "a.py",
            "b/c.pyi",
            "b/.hidden.py",
            "b/readme.txt",
            "b/.#a.py",
            ".git/a.py",
            "b/.tox/a.py",
            "node_modules/a.py",
            "b/__pycache__/a.py",
            "venv/lib/site-packages/a.py",
            "conda/lib/a.py",
            "site-packages/a.py",
        ):
            self.write(name, BEFORE)
        self.write("venv/pyvenv.cfg", "")
        self.write("conda/conda-meta/x", "")
        self.assertEqual(
            self.found(self.folder),
            ["a.py", "b/.hidden.py", "b/c.pyi", "site-packages/a.py"],
        )
        # What is named is taken, whatever it is called.
        for name in ("venv", "node_modules", ".git", "b/readme.txt", "venv/lib/site-packages"):
            self.assertLen(self.found(self.path(name)), 1, name)

    @parameterized.parameters(
        (("tests",), ["a.py", "b/c.py"]),
        (("b/*",), ["a.py", "tests/d.py"]),
        (("*.py",), []),
        (("a.py", "c.py"), ["b/tests/e.py", "tests/d.py"]),
        (("b/tests/",), ["a.py", "b/c.py", "tests/d.py"]),
        (("nothing",), ["a.py", "b/c.py", "b/tests/e.py", "tests/d.py"]),
    )
    def test_exclude(self, patterns, wanted):
        for name in ("a.py", "b/c.py", "b/tests/e.py", "tests/d.py"):
            self.write(name, BEFORE)
        options = [part for pattern in patterns for part in ("--exclude", pattern)]
        self.assertEqual(self.found(self.folder, *options), wanted)

    def test_a_folder_that_cannot_be_listed(self):
        self.write("a.py", BEFORE)
        self.write("b/c.py", BEFORE)
        real = os.scandir

        def scandir(path):
            if path == self.path("b"):
                raise PermissionError(13, "Permission denied", path)
            return real(path)

        with mock.patch.object(os, "scandir", scandir):
            code, _, err = call(self.folder, "--write")
        self.assertEqual(code, 2)
        self.assertIn(f"{self.path('b')}: cannot be read: Permission denied", err)
        self.assertEqual(self.read("a.py").decode(), AFTER)


class TensorFlowAsTest(FolderTestCase):
    """The names of modules that hand TensorFlow on; cases/imports.diff has what is rewritten."""

    def test_option(self):
        before = "from deepmd.tf.env import tf\ntf.train.experimental.DynamicLossScale()\n"
        self.write("a.py", before)
        code, out, _ = call(self.folder)
        self.assertEqual((code, out), (1, b""))
        self.assertEqual(call(self.folder, "--write", "--tensorflow-as", TENSORFLOW_AS)[0], 0)
        self.assertIn(OURS, self.read("a.py").decode())
        code, out, _ = call("-", "--tensorflow-as", TENSORFLOW_AS, stdin=before.encode())
        self.assertEqual((code, out), (0, self.read("a.py")))

    @parameterized.parameters("tf", "", "deepmd/tf/env.py", ".env.tf")
    def test_no_dotted_name(self, name):
        self.write("a.py", "")
        code, _, err = call(self.folder, "--tensorflow-as", name)
        self.assertEqual(code, 2)
        self.assertIn(
            f"--tensorflow-as takes a dotted name such as deepmd.env.tf, not {name!r}", err
        )


class PrefilterTest(parameterized.TestCase):
    """Files are not parsed that cannot hold anything; that must not cost a finding."""

    @parameterized.parameters(
        b"",
        b"# contributors",
        b"from django.contrib import admin\nprint 'x'",
        b"# tensorflow \xff\nimport {{ x }}",
        b"import tensorflow as tf\nprint tf.contrib.slim",
        b"import torch\nprint torch.loss_scale",
        b"import tensorflow as tf\n" + b"(" * 3000,
    )
    def test_nothing_is_parsed_then(self, data):
        with mock.patch.object(_source, "migrate", side_effect=AssertionError):
            outcome = _command.migrate_bytes(data)
        self.assertEqual((outcome.result.findings, outcome.result.failures), ([], []))


@unittest.skipIf(
    importlib.util.find_spec("tensorflow") is None, "looks the names up, which needs TensorFlow"
)
class TargetsTest(parameterized.TestCase):
    @parameterized.parameters(*rewrites.NAMESPACES.values())
    def test_new_names_are_there(self, old, new, members, whole, module, is_meant):
        found = importlib.import_module(new)
        for name in members:
            self.assertTrue(hasattr(found, name), (new, name))
        imported = {"tf_lossscale_compat": importlib.import_module("tf_lossscale_compat")}
        exec(f"import {module}", imported)
        self.assertIs(eval(new, imported), found)
