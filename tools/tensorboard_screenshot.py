"""Shows that TensorBoard draws the loss scale: starts it, opens it in Chromium, saves what is seen.

    python tools/tensorboard_screenshot.py LOGDIR FILE.png

TensorBoard is that of the Python which runs this; Chromium (Debian's package `chromium`) is found
on PATH. Exit code 0 says that TensorBoard served the loss scale of every run in LOGDIR that has one
and that the page held a drawn chart for each of the tags; 1, with a message, that it did not in the
time that --limit gives; 2, that something is missing. Both programs are ended in any case.
"""

import argparse
import base64
import collections
import contextlib
import fcntl
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

PREFIX = "loss_scale/"
SCALE = PREFIX + "scale"
CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
WIDTH, HEIGHT = 1500, 1000
# Without smoothing. Polymer keeps what it makes in shadow roots.
PAGE = "/#scalars&_smoothingWeight=0"
FIND = """
const find = (root, selector, found = []) => {
  if (root.shadowRoot) find(root.shadowRoot, selector, found);
  for (const element of root.querySelectorAll('*')) {
    if (element.matches(selector)) found.push(element);
    if (element.shadowRoot) find(element.shadowRoot, selector, found);
  }
  return found;
};
"""
# Of each chart that is there: its tag, and at how many lines a mark is at the last point, which is
# drawn last. A line that is not there yet has none.
CARDS = """
(() => {FIND return JSON.stringify(find(document, 'tf-scalar-card').map(card => ({
  tag: card.tag || '',
  lines: find(card, '.render-area path.symbol').filter(mark => mark.getBoundingClientRect().width)
    .length,
})))})()
""".replace("FIND", FIND)
# The scale is looked at on a logarithmic axis, with all of its values.
SET_AXES = """
(() => {FIND
  for (const box of find(document, '#ignore-y-outlier')) if (box.checked) box.click();
  for (const card of find(document, 'tf-scalar-card'))
    if (card.tag === 'SCALE')
      for (const button of find(card, '[title="Toggle y-axis log scale"]')) button.click();
})()
""".replace("FIND", FIND).replace("SCALE", SCALE)


class ScreenshotError(Exception):
    """What ends this program with a message; `code` is its exit code."""

    def __init__(self, message, code=1):
        super().__init__(message)
        self.code = code


class Clock:
    """The time that is left."""

    def __init__(self, limit):
        self._end = time.monotonic() + limit

    def left(self):
        return max(0.0, self._end - time.monotonic())

    def wait(self, waiting_for, seconds=0.2):
        """Sleeps a little; raises when the time is up."""
        if not self.left():
            raise ScreenshotError(f"the time was up while waiting for {waiting_for}")
        time.sleep(min(seconds, self.left()))


def text_of(file, most=2000):
    file.seek(0)
    return file.read().decode("utf-8", "replace").strip()[-most:]


@contextlib.contextmanager
def program(command, **options):
    """Starts a program in a session of its own, and ends all of that when the block ends."""
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, **options)
    try:
        yield process
    finally:
        for number, seconds in ((signal.SIGTERM, 5), (signal.SIGKILL, 5)):
            # To the whole group, also when its leader has ended: it has helpers.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(seconds)
        process.wait()


# -- TensorBoard --------------------------------------------------------------------------------


@contextlib.contextmanager
def tensorboard(logdir, clock):
    """Runs TensorBoard on a free port of this machine only; yields its address."""
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", logdir]
    command += ["--host", "127.0.0.1", "--port", "0", "--reload_interval", "1"]
    with tempfile.TemporaryFile() as log:
        with program(command, stdout=log, stderr=log) as process:
            while True:
                said = text_of(log)
                match = re.search(r"TensorBoard \S+ at (http://\S+?)/? ", said + " ")
                if match:
                    break
                if process.poll() is not None:
                    raise ScreenshotError(f"TensorBoard ended with {process.returncode}:\n{said}")
                clock.wait("TensorBoard to start")
            yield match.group(1)


def ask(address, path, clock):
    """Returns the JSON that TensorBoard answers, None if it does not answer yet."""
    # Not through a proxy that the environment may name.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(address + path, timeout=max(1.0, clock.left())) as answer:
            return json.loads(answer.read().decode("utf-8"))
    except (OSError, ValueError):
        return None


def folders_with_events(logdir):
    """The folders that TensorBoard takes for runs, by the names that it gives them."""
    return {
        os.path.relpath(folder, logdir)
        for folder, _, files in os.walk(logdir)
        if any("tfevents" in name for name in files)
    }


def served_tags(address, expected, clock):
    """Waits until TensorBoard has read all runs; returns {run: tags of the loss scale}."""
    before = None
    while True:
        runs = ask(address, "/data/runs", clock)
        tags = ask(address, "/data/plugin/scalars/tags", clock) or {}
        found = {run: sorted(tag for tag in tags[run] if tag.startswith(PREFIX)) for run in tags}
        found = {run: names for run, names in found.items() if SCALE in names}
        # It reads while it answers, so the answer must stay the same.
        if found and found == before and expected <= set(runs or ()):
            return found
        before = found
        waiting = f"TensorBoard to serve {SCALE!r}; it has the runs {runs} and the tags {tags}"
        clock.wait(waiting, seconds=1)


# -- Chromium -----------------------------------------------------------------------------------


class Browser:
    """A Chromium that is told what to do over two pipes, as `--remote-debugging-pipe` has it."""

    def __init__(self, process, to_browser, from_browser, clock):
        self._process = process
        self._to, self._from = to_browser, from_browser
        self._clock = clock
        self._number = 0
        self._read = b""
        self.session = None
        self.purpose = ""  # For the message when the time is up.

    def _next(self, waiting_for):
        while b"\0" not in self._read:
            if self._process.poll() is not None:
                raise ScreenshotError(f"Chromium ended with {self._process.returncode}")
            if not select.select([self._from], [], [], min(0.2, self._clock.left()))[0]:
                self._clock.wait(waiting_for, seconds=0)
                continue
            piece = os.read(self._from, 1 << 16)
            if not piece:
                raise ScreenshotError("Chromium closed the connection")
            self._read += piece
        message, self._read = self._read.split(b"\0", 1)
        return json.loads(message.decode("utf-8"))

    def call(self, method, **parameters):
        """Calls a method of the DevTools protocol; returns its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self._to, json.dumps(message).encode("utf-8") + b"\0")
        while True:
            answer = self._next(f"Chromium to answer {method} {self.purpose}".rstrip())
            if answer.get("id") == self._number:
                break
        if "error" in answer:
            raise ScreenshotError(f"Chromium answered {method} with {answer['error']}")
        return answer["result"]

    def evaluate(self, expression):
        """Returns what a JavaScript expression is in the page."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in result:
            raise ScreenshotError(f"the page raised {result['exceptionDetails']}")
        return result["result"].get("value")

    def picture(self):
        """Returns what the page looks like, a PNG file's bytes."""
        return base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])


@contextlib.contextmanager
def chromium(path, clock):
    """Runs Chromium without a window; yields a `Browser` with one empty page."""
    with contextlib.ExitStack() as stack:
        # Chromium writes into it until its last process has ended.
        profile = tempfile.mkdtemp(prefix="tensorboard_screenshot.")
        stack.callback(shutil.rmtree, profile, ignore_errors=True)
        log = stack.enter_context(tempfile.TemporaryFile())
        command = [path, "--headless=new", "--remote-debugging-pipe", "--no-first-run"]
        command += ["--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
        command += ["--no-proxy-server", "--disable-background-networking"]
        command += [f"--user-data-dir={profile}", "about:blank"]
        if hasattr(os, "geteuid") and os.geteuid() == 0:
            command.insert(1, "--no-sandbox")  # It refuses to be root with one.

        def pipe():
            ends = os.pipe()
            # Away from 3 and 4, which Chromium reads from and writes to.
            high = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends]
            for end in ends:
                os.close(end)
            for end in high:
                stack.callback(os.close, end)
            return high

        its_input, to_browser = pipe()
        from_browser, its_output = pipe()

        def take_pipes():
            os.dup2(its_input, 3)
            os.dup2(its_output, 4)

        process = stack.enter_context(
            program(command, stdout=log, stderr=log, close_fds=False, preexec_fn=take_pipes)
        )
        browser = Browser(process, to_browser, from_browser, clock)
        try:
            target = browser.call("Target.createTarget", url="about:blank")["targetId"]
            attached = browser.call("Target.attachToTarget", targetId=target, flatten=True)
            browser.session = attached["sessionId"]
            yield browser
        except ScreenshotError as failure:
            said = text_of(log, 500)
            raise ScreenshotError(
                f"{failure}\nChromium said:\n{said}" if said else str(failure)
            ) from None


def charts(browser, address, tags, clock):
    """Opens TensorBoard's scalars and waits until they are drawn; returns the picture."""
    browser.call("Page.enable")
    browser.call(
        "Emulation.setDeviceMetricsOverride",
        width=WIDTH,
        height=HEIGHT,
        deviceScaleFactor=1,
        mobile=False,
    )
    browser.call("Page.navigate", url=address + PAGE)
    wanted = collections.Counter(tag for names in tags.values() for tag in names)
    axes_set, before = False, None
    browser.purpose = f"about charts of {sorted(wanted)}"
    while True:
        cards = json.loads(browser.evaluate(CARDS) or "[]")
        lines = {card["tag"]: card["lines"] for card in cards}
        missing = {tag for tag in wanted if lines.get(tag, 0) < wanted[tag]}
        if not missing and not axes_set:
            browser.evaluate(SET_AXES)
            axes_set = True
        elif not missing:
            picture = browser.picture()
            if picture == before:  # Lines move to their places at first.
                return picture
            before = picture
        there = f"charts of {sorted(missing)}; lines there are {lines}, to be {dict(wanted)}"
        browser.purpose = "about " + there
        clock.wait(there, seconds=0.7)


# -- the command --------------------------------------------------------------------------------


def screenshot(logdir, path, limit):
    """Does all of it; returns what was seen, in words."""
    logdir = os.path.abspath(logdir)
    if not os.path.isdir(logdir):
        raise ScreenshotError(f"there is no folder {logdir!r}", 2)
    expected = folders_with_events(logdir)
    if not expected:
        raise ScreenshotError(f"there are no event files in {logdir!r} and the folders in it", 2)
    browser_path = next(filter(None, map(shutil.which, CHROMIUM_NAMES)), None)
    if browser_path is None:
        raise ScreenshotError(f"there is no {' or '.join(CHROMIUM_NAMES)} on PATH", 2)
    try:
        import tensorboard as _  # noqa: F401
    except ImportError:
        raise ScreenshotError(
            "this Python has no TensorBoard: pip install tensorboard", 2
        ) from None
    folder, name = os.path.split(os.path.realpath(path))
    if not name.lower().endswith(".png") or not os.path.isdir(folder):
        raise ScreenshotError(
            f"cannot write {path!r}: it must end in .png, in a folder that exists", 2
        )

    clock = Clock(limit)
    with tensorboard(logdir, clock) as address:
        tags = served_tags(address, expected, clock)
        with chromium(browser_path, clock) as browser:
            picture = charts(browser, address, tags, clock)
    temporary = os.path.join(folder, f".{name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(picture)
        os.replace(temporary, os.path.join(folder, name))
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.remove(temporary)
        raise
    drawn = sorted({tag for names in tags.values() for tag in names})
    return f"{path}: charts of {', '.join(drawn)} for {len(tags)} run(s)"


def main(argv=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("logdir", metavar="LOGDIR")
    parser.add_argument("output", metavar="FILE.png")
    parser.add_argument("--limit", type=float, default=120, help="seconds (default: %(default)s)")
    args = parser.parse_args(argv)
    # So that what this has started is ended, too.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        print(screenshot(args.logdir, args.output, args.limit))
    except (ScreenshotError, OSError) as failure:
        print(f"tensorboard_screenshot: {failure}", file=sys.stderr)
        return getattr(failure, "code", 1)
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
