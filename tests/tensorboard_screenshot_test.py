"""tools/tensorboard_screenshot.py: what it says when no chart comes up, what it leaves behind.

The tests with a real Chromium, marked slow, run where one is on PATH; the one with a real
TensorBoard besides needs one that starts.
"""

import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import pytest
import tensorflow as tf
from absl.testing import absltest

ROOT = pathlib.Path(__file__).resolve().parent.parent
TOOL = ROOT / "tools" / "tensorboard_screenshot.py"
CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")

# Stands for TensorBoard: says what it is told to, answers with some tags, and leaves its number.
FAKE_TENSORBOARD = """
import http.server, json, os, sys
folder = os.environ["FAKE_FOLDER"]
with open(os.path.join(folder, "tensorboard.pid"), "w") as file:
    file.write(str(os.getpid()))
if os.environ["FAKE"] == "broken":
    sys.exit("no such port")
answers = {
    "/data/runs": ["."],
    "/data/plugin/scalars/tags": {".": {os.environ["FAKE"]: {}}},
}
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(answers.get(self.path, {})).encode())
    def log_message(self, *args):
        pass
server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
print("TensorBoard 0 at http://127.0.0.1:%d/ (Press CTRL+C)" % server.server_port, flush=True)
server.serve_forever()
"""
# Stands for Chromium: reads what it is sent and never answers.
FAKE_CHROMIUM = """#!/bin/sh
echo $$ > "$FAKE_FOLDER/chromium.pid"
[ "$FAKE_CHROMIUM" != broken ] || { echo "no display" >&2; exit 7; }
exec cat <&3
"""


def is_running(number):
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    # It may have ended and wait for its parent, which is nobody's fault here.
    stat = pathlib.Path("/proc", str(number), "stat")
    return not (stat.exists() and stat.read_text().rpartition(")")[2].split()[0] == "Z")


@pytest.mark.skipif(os.name == "nt", reason="needs POSIX pipes and process groups")
class ScreenshotTest(absltest.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
        self.logs = self.folder / "the logs"
        self.output = self.folder / "shot.png"
        (self.folder / "bin").mkdir()
        self.environment = dict(
            os.environ,
            PATH=str(self.folder / "bin"),
            PYTHONPATH=str(self.folder / "modules"),
            FAKE_FOLDER=str(self.folder),
            FAKE="loss_scale/scale",
            FAKE_CHROMIUM="silent",
        )

    def write_logs(self):
        with tf.Graph().as_default():
            writer = tf.compat.v1.summary.FileWriter(str(self.logs))
        for step in range(1, 4):
            summary = tf.compat.v1.Summary()
            for tag in ("loss_scale/scale", "loss_scale/skipped_steps"):
                summary.value.add(tag=tag, simple_value=2.0**step)
            writer.add_summary(summary, step)
        writer.close()

    def install_fakes(self):
        package = self.folder / "modules" / "tensorboard"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("")
        (package / "main.py").write_text(FAKE_TENSORBOARD)
        for name in ("sh", "cat"):
            (self.folder / "bin" / name).symlink_to(shutil.which(name))
        chromium = self.folder / "bin" / "chromium"
        chromium.write_text(FAKE_CHROMIUM)
        chromium.chmod(0o755)

    def start(self, *options):
        return subprocess.Popen(
            [sys.executable, str(TOOL), str(self.logs), str(self.output), *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self.environment,
            universal_newlines=True,
        )

    def failed(self, code, *options):
        """Runs it, which must fail and leave nothing behind; returns its message."""
        process = self.start(*options)
        out, err = process.communicate(timeout=120)
        self.assertEqual((code, ""), (process.returncode, out), err)
        self.assertStartsWith(err, "tensorboard_screenshot: ")
        self.check_nothing_is_left()
        return err

    def check_nothing_is_left(self):
        self.assertEmpty(list(self.folder.glob("*.png")) + list(self.folder.glob(".*.tmp")))
        for path in self.folder.glob("*.pid"):
            self.assertFalse(is_running(int(path.read_text())), path.name)

    def test_no_such_folder(self):
        self.assertIn("there is no folder", self.failed(2))

    def test_no_event_files(self):
        self.logs.mkdir()
        self.assertIn("no event files", self.failed(2))

    def test_no_chromium(self):
        self.write_logs()
        self.assertIn("no chromium or ", self.failed(2))

    def test_no_tensorboard(self):
        self.write_logs()
        self.install_fakes()
        (self.folder / "modules" / "tensorboard" / "__init__.py").write_text("raise ImportError")
        self.assertIn("no TensorBoard", self.failed(2))

    def test_no_such_output(self):
        self.write_logs()
        self.install_fakes()
        for output in ("shot.jpg", "missing/shot.png"):
            self.output = self.folder / output
            self.assertIn("it must end in .png, in a folder that exists", self.failed(2))

    def test_tensorboard_does_not_start(self):
        self.write_logs()
        self.install_fakes()
        self.environment["FAKE"] = "broken"
        self.assertRegex(self.failed(1), "TensorBoard ended with 1:\nno such port")

    def test_no_loss_scale_is_served(self):
        self.write_logs()
        self.install_fakes()
        self.environment["FAKE"] = "loss"
        err = self.failed(1, "--limit", "5")
        self.assertIn("time was up while waiting for TensorBoard to serve 'loss_scale/scale'", err)
        self.assertIn("the tags {'.': {'loss': {}}}", err)
        self.assertTrue((self.folder / "tensorboard.pid").exists())

    def test_chromium_says_nothing(self):
        self.write_logs()
        self.install_fakes()
        self.assertIn("waiting for Chromium to answer", self.failed(1, "--limit", "6"))
        self.assertTrue((self.folder / "chromium.pid").exists())

    def test_chromium_does_not_start(self):
        self.write_logs()
        self.install_fakes()
        self.environment["FAKE_CHROMIUM"] = "broken"
        self.assertRegex(
            self.failed(1), "Chromium (ended|closed)[^\n]*\nChromium said:\nno display"
        )

    def test_ended_from_outside_it_ends_what_it_has_started(self):
        self.write_logs()
        self.install_fakes()
        process = self.start("--limit", "60")
        end = time.monotonic() + 50
        while not (self.folder / "chromium.pid").exists() and time.monotonic() < end:
            time.sleep(0.1)
        time.sleep(0.5)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        self.assertEqual(128 + signal.SIGTERM, process.returncode)
        self.assertTrue((self.folder / "chromium.pid").exists())
        self.check_nothing_is_left()

    @pytest.mark.slow
    def test_page_without_charts(self):
        self.write_logs()
        self.real()
        self.install_fakes()
        (self.folder / "bin" / "chromium").unlink()
        self.environment["PATH"] += os.pathsep + os.environ["PATH"]
        err = self.failed(1, "--limit", "25")
        self.assertRegex(err, r"time was up while waiting for .*charts of \['loss_scale/scale'\]")

    @pytest.mark.slow
    def test_charts_of_real_tensorboard_in_real_chromium(self):
        self.write_logs()
        self.real()
        start = [sys.executable, "-m", "tensorboard.main", "--version_tb"]
        tried = subprocess.run(
            start, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        if tried.returncode:
            self.skipTest("TensorBoard does not start here: " + tried.stderr.decode()[-200:])
        self.environment["PATH"] = os.environ["PATH"]
        process = self.start("--limit", "200")
        out, err = process.communicate(timeout=240)
        self.assertEqual((0, ""), (process.returncode, err))
        self.assertIn("charts of loss_scale/scale, loss_scale/skipped_steps for 1 run(s)", out)
        content = self.output.read_bytes()
        self.assertStartsWith(content, b"\x89PNG\r\n\x1a\n")
        # An empty page of this size has some 5,000 bytes.
        self.assertGreater(len(content), 20000)

    def real(self):
        if not any(map(shutil.which, CHROMIUM)):
            self.skipTest("there is no Chromium on PATH")


if __name__ == "__main__":
    absltest.main()
