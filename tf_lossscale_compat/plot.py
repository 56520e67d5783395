"""Draw the loss scale of training runs from their TensorBoard logs.

Every folder in a LOGDIR that has event files is a run, as in TensorBoard; all runs come into one
picture. It shows the scale on a logarithmic axis, with its floor and ceiling dashed, and marks
skipped steps. Where not every step was written, a mark says that at least one step was skipped
since the point before it.

A run that was restarted from an older checkpoint has written some steps twice; of these the newest
are drawn, and what an earlier start wrote from there on is left out.
"""

from __future__ import annotations

import argparse
import bisect
import collections
import contextlib
import io
import os
import re
import stat
import sys
import tempfile
from typing import Any, Sequence

import numpy as np
from absl import logging

from tf_lossscale_compat import _install, _summary_tags, _tf

FORMATS = (".png", ".svg", ".pdf")
DEFAULT_SIZE = (10.0, 6.0)
MAX_NAME_LENGTH = 80
MAX_TAGS_NAMED = 12
DOTS_PER_INCH = 100

_MEASURED = (
    _summary_tags.SCALE,
    _summary_tags.SKIPPED_STEPS,
    _summary_tags.CONSECUTIVE_SKIPS,
)
_BOUNDS = (_summary_tags.FLOOR, _summary_tags.CEILING)

# Of values over the steps: two arrays of the same length, steps never falling.
Series = collections.namedtuple("Series", "steps values")
# One run. `scale` and the others are each a `Series`, empty where the logs hold nothing of it.
Run = collections.namedtuple("Run", "name scale skipped_steps consecutive_skips floor ceiling")


class LogError(Exception):
    """Logs that cannot be read, or that hold nothing to draw."""


# -- reading ------------------------------------------------------------------------------------


def _number(value):
    """The number in a `Summary.Value` as TensorFlow 1 or 2 writes scalars, or None."""
    from tensorboard.util import tensor_util

    kind = value.WhichOneof("value")
    if kind == "simple_value":
        return float(value.simple_value)
    if kind != "tensor":
        return None
    try:
        array = tensor_util.make_ndarray(value.tensor)
    except (TypeError, ValueError):
        return None
    return float(array.reshape(())) if array.size == 1 and array.dtype.kind in "fiub" else None


def _events(path):
    """Yields the events of a file in the order in which they were written.

    TensorBoard's `EventAccumulator` would keep the images and histograms of all tags in memory and
    lose the order between tags. As there, a file ends before the first record that is not whole.
    """
    from google.protobuf import message
    from tensorboard.backend.event_processing import event_file_loader
    from tensorboard.compat.proto import event_pb2

    rest = size = _tf.tf1.gfile.Stat(path).length
    for record in event_file_loader.RawEventFileLoader(path).Load():
        rest -= len(record) + 16  # Its length and two checksums.
        try:
            yield event_pb2.Event.FromString(record)
        except message.DecodeError as error:
            raise LogError(f"{path!r} is no event file, whatever its name says") from error
    if rest > 0:
        logging.warning(
            "%s: what comes after a damaged or unfinished event, %d of %d bytes, is left out",
            path,
            rest,
            size,
        )


class _Points:
    """The points of one tag, at steps that never fall."""

    def __init__(self):
        self.steps = []
        self.values = []
        self._files = []

    def append(self, step, value, file):
        self.steps.append(step)
        self.values.append(value)
        self._files.append(file)

    def cut(self, step, before_file=None):
        """Drops what is at this step or later; of files before this one only, if it is given."""
        start = bisect.bisect_left(self.steps, step)
        stop = len(self.steps)
        if before_file is not None:
            stop = bisect.bisect_left(self._files, before_file)
        for column in (self.steps, self.values, self._files):
            del column[start : max(start, stop)]

    def series(self):
        return Series(np.array(self.steps, np.int64), np.array(self.values, np.float64))


def _read_folder(folder):
    """Reads the event files that lie in a folder.

    Returns:
      {tag: `Series`} of this package's tags, and the set of all tags.
    """
    from tensorboard.backend.event_processing import io_wrapper

    gfile = _tf.tf1.gfile
    paths = [
        path
        for path in io_wrapper.ListDirectoryAbsolute(folder)
        if io_wrapper.IsTensorFlowEventsFile(path) and not gfile.IsDirectory(path)
    ]
    started = {}
    for path in paths:
        # Names, and the event that says of which version a file is, hold whole seconds only, and a
        # run may be restarted within one.
        first = next((event for event in _events(path) if event.HasField("summary")), None)
        if first is not None:
            started[path] = first.wall_time

    points = {tag: _Points() for tag in _summary_tags.ALL}
    tags = set()
    latest: dict[Any, Any] = {}
    for file, path in enumerate(sorted(started, key=lambda path: (started[path], path))):
        begun = set()
        for event in _events(path):
            for value in event.summary.value:
                tag = value.tag
                tags.add(tag)
                number = _number(value) if tag in points else None
                if number is None:
                    continue
                group = _MEASURED if tag in _MEASURED else _BOUNDS
                step = event.step
                # At an equal step in one file a TensorFlow 1 loop has skipped: the global step
                # stood still. In another file it is the same step once more.
                if group not in begun or step < latest[group]:
                    for each in group:
                        points[each].cut(step)
                    if group is _MEASURED:
                        for each in _BOUNDS:
                            points[each].cut(step, before_file=file)
                begun.add(group)
                latest[group] = step
                points[tag].append(step, number, file)
    return {tag: points[tag].series() for tag in points}, tags


def _folders(logdir):
    """The folders with event files in a LOGDIR, itself among them, sorted."""
    from tensorboard.backend.event_processing import io_wrapper

    gfile = _tf.tf1.gfile
    if not gfile.Exists(logdir):
        raise LogError(f"there is no folder {logdir!r}")
    if not gfile.IsDirectory(logdir):
        raise LogError(f"{logdir!r} is no folder")
    folders = sorted(io_wrapper.GetLogdirSubdirectories(logdir))
    if not folders:
        raise LogError(f"there are no event files in {logdir!r} and the folders in it")
    return folders


def _listed(names):
    names = [repr(name) for name in sorted(names)]
    more = len(names) - MAX_TAGS_NAMED
    shown = ", ".join(names[:MAX_TAGS_NAMED])
    return f"{shown} and {more} more" if more > 0 else shown


def _read_logdir(logdir):
    """Returns {folder: {tag: `Series`}} of those folders in a LOGDIR that hold a loss scale."""
    found, tags = {}, set()
    for folder in _folders(logdir):
        series, tags_there = _read_folder(folder)
        tags |= tags_there
        if len(series[_summary_tags.SCALE].steps):
            found[folder] = series
    if not found:
        there = f"the tags in it are {_listed(tags)}" if tags else "there are no summaries in it"
        raise LogError(f"{logdir!r} holds no scalar {_summary_tags.SCALE!r}; {there}")
    return found


def _without_doubles(paths):
    """The paths, made absolute, each place only once, in the given order."""
    places: Any = collections.OrderedDict()
    for path in paths:
        # Of a path with a scheme, as of an object store, only TensorFlow knows what it means.
        remote = "://" in path
        places.setdefault(
            path if remote else os.path.realpath(path), path if remote else os.path.abspath(path)
        )
    return list(places.values())


def _names(folders, logdirs):
    """Names runs as TensorBoard does, but so that those of several LOGDIRs differ, too."""
    try:
        if any("://" in path for path in logdirs):
            return folders
        base = os.path.commonpath(logdirs)
    except ValueError:  # On several drives.
        return folders
    if base in folders:
        base = os.path.dirname(base)
    return [os.path.relpath(folder, base) for folder in folders]


def read(logdirs: Sequence[str]) -> list[Run]:
    """Reads the loss scale of all runs in some folders of TensorBoard logs.

    Args:
      logdirs: list of str, folders. Each must hold at least one run with a loss scale.

    Returns:
      A list of `Run`, those of each LOGDIR sorted by name.

    Raises:
      LogError: a folder is missing, cannot be read, or holds no loss scale.
    """
    if "" in logdirs:
        raise LogError("there is no folder ''")
    logdirs = _without_doubles(logdirs)
    runs = collections.OrderedDict()
    for logdir in logdirs:
        try:
            runs.update(_read_logdir(logdir))
        except (OSError, ValueError, _tf.tf.errors.OpError) as error:
            reason = getattr(error, "message", None) or error
            raise LogError(f"cannot read {logdir!r}: {reason}") from error
    folders = _without_doubles(runs)
    return [
        Run(name, *(runs[folder][tag] for tag in _summary_tags.ALL))
        for folder, name in zip(folders, _names(folders, logdirs))
    ]


# -- drawing ------------------------------------------------------------------------------------


def skips(run: Run) -> tuple[Series, int]:
    """Returns where a run has skipped steps, and how many.

    Args:
      run: a `Run`.

    Returns:
      A `Series` that has for each point how many steps had been skipped since the point before; and
      their sum, an int.
    """
    steps, totals = _finite(run.skipped_steps)
    if not len(steps):
        return Series(steps, totals), 0
    before = np.concatenate([[0.0], totals[:-1]])
    # A total that falls was begun anew by a start without the checkpoint that had it.
    before = np.where(totals < before, 0.0, before)
    if len(steps) > 2 and steps[0] > 2 * np.diff(steps).max():
        # The logs begin in the middle of the training: of the first total only what is known to
        # be of this step is counted.
        at_first = run.consecutive_skips.values[run.consecutive_skips.steps == steps[0]]
        before[0] = totals[0] - np.nan_to_num(at_first[:1].sum())
    rises = np.maximum(totals - before, 0.0)
    return Series(steps, rises), int(rises.sum())


def _drawable(series):
    """The series with NaN, which is a gap, for what a logarithmic axis has no place for."""
    with np.errstate(invalid="ignore"):
        good = np.isfinite(series.values) & (series.values > 0)
    return Series(series.steps, np.where(good, series.values, np.nan))


def _finite(series):
    good = np.isfinite(series.values)
    return Series(series.steps[good], series.values[good])


def _at(series, steps):
    """The values that a series has at these steps, which may repeat as its own do."""
    if np.array_equal(series.steps, steps):
        return series.values
    return series.values[np.maximum(np.searchsorted(series.steps, steps, "right") - 1, 0)]


def _alone(values):
    """Which values are between gaps, so that a line through them has no length."""
    there = np.concatenate([[False], np.isfinite(values), [False]])
    return there[1:-1] & ~there[:-2] & ~there[2:]


def _shown_name(name):
    """A run's name as matplotlib shows it: nothing in it is a formula or a second line."""
    name = "".join(char if char.isprintable() else "?" for char in name)
    if len(name) > MAX_NAME_LENGTH:
        half = MAX_NAME_LENGTH // 2
        name = name[: half - 1] + "…" + name[-half:]
    return name.replace("$", r"\$")


class _Look:
    """How one of several runs looks, so that runs of the same scale are all seen.

    Args:
      index: int, the number of the run.
    """

    STYLES: Any = (("-", 2.4), ((0, (6, 4)), 2.2), ((0, (2, 3)), 2.2))

    def __init__(self, index):
        place = index % len(self.STYLES)
        self.color = f"C{index % 10}"
        self.style, self.width = self.STYLES[place]
        self.zorder = 2 + place / 10  # Lines with gaps over those that have none.


BOUND_STYLE = {"linestyle": (0, (8, 5)), "linewidth": 1}


def _draw_scale(axes, run, look):
    """Draws a run's scale and its bounds; returns the line."""
    steps, values = _drawable(run.scale)
    (line,) = axes.plot(
        steps,
        values,
        drawstyle="steps-post",
        color=look.color,
        linewidth=look.width,
        linestyle=look.style,
        zorder=look.zorder,
    )
    alone = _alone(values)
    axes.plot(steps[alone], values[alone], ".", color=look.color)
    for bound in map(_drawable, (run.floor, run.ceiling)):
        if len(bound.steps):
            axes.plot(
                np.append(bound.steps, max(steps[-1], bound.steps[-1])),
                np.append(bound.values, bound.values[-1]),
                drawstyle="steps-post",
                color=look.color,
                zorder=3,
                **BOUND_STYLE,
            )
    return line


def _limits(runs):
    """The least and the greatest number on the axis of the scale, powers of two."""
    scales = np.concatenate([_drawable(run.scale).values for run in runs])
    if not np.isfinite(scales).any():
        raise LogError("there is no loss scale above zero and finite in these logs")
    bounds = [_drawable(bound).values for run in runs for bound in (run.floor, run.ceiling)]
    logs = np.log2(np.concatenate([scales, *bounds]))
    # One power beyond: of a scale that never moves there would be no number on the axis.
    return 2 ** (np.floor(np.nanmin(logs)) - 1), 2 ** (np.ceil(np.nanmax(logs)) + 1)


def _label(run):
    label = _shown_name(run.name)
    if len(_finite(run.skipped_steps).steps):
        label += f" ({skips(run)[1]} skipped)"
    bad = int(np.isnan(_drawable(run.scale).values).sum())
    if bad:
        label += f" ({bad} of {len(run.scale.steps)} scales not finite or not above zero)"
    return label


def draw(runs: Sequence[Run], size: tuple[float, float] = DEFAULT_SIZE) -> Any:
    """Draws the loss scale of runs over their steps.

    Args:
      runs: list of `Run`.
      size: width and height in inches, without the legend, which comes below.

    Returns:
      A `matplotlib.figure.Figure`, to be saved with `bbox_inches="tight"`.

    Raises:
      LogError: there is no scale above zero and finite to draw.
    """
    from matplotlib import figure, lines, ticker
    from matplotlib.backends import backend_agg

    limits = _limits(runs)
    skipping = [run.name for run in runs if skips(run)[1]]
    picture = figure.Figure(figsize=size)
    backend_agg.FigureCanvasAgg(picture)
    # One row for each run that skipped.
    rows = min(0.2 + 0.2 * len(skipping), 0.4 * size[1])
    heights = [size[1] - rows, rows] if skipping else [size[1]]
    scale_axes, *rest = picture.subplots(
        len(heights), 1, sharex=True, squeeze=False, gridspec_kw={"height_ratios": heights}
    )[:, 0]

    entries, labels = [], []
    for index, run in enumerate(runs):
        look = _Look(index)
        entries.append(_draw_scale(scale_axes, run, look))
        labels.append(_label(run))
        if run.name in skipping:
            steps, rises = skips(run)[0]
            where = rises > 0
            scales = _at(_drawable(run.scale), steps)[where]
            scale_axes.plot(steps[where], scales, "x", color=look.color, markersize=6, zorder=4)
            row = np.full(where.sum(), skipping.index(run.name))
            rest[0].plot(steps[where], row, "|", color=look.color, markersize=9)
    if skipping:
        entries.append(lines.Line2D([], [], color="0.4", marker="x", linestyle=""))
        labels.append("skipped: this step, or some since the point before")
    if any(np.isfinite(_drawable(bound).values).any() for run in runs for bound in run[-2:]):
        entries.append(lines.Line2D([], [], color="0.4", **BOUND_STYLE))
        labels.append("floor and ceiling")

    scale_axes.set_yscale("log", base=2)
    scale_axes.set_ylim(*limits)
    scale_axes.set_ylabel("loss scale")
    scale_axes.grid(alpha=0.3)
    for axes in rest:
        axes.set_ylim(len(skipping) - 0.4, -0.6)
        axes.set_yticks([])
        axes.set_ylabel("skipped", fontsize="small")
        axes.grid(alpha=0.3, axis="x")
    steps_axis = [scale_axes, *rest][-1].xaxis
    steps_axis.set_label_text("step")
    steps_axis.set_major_locator(ticker.MaxNLocator(integer=True))
    steps_axis.set_major_formatter(ticker.StrMethodFormatter("{x:,.0f}"))
    picture.tight_layout()
    legend = picture.legend(
        entries,
        ["run"] * len(labels),
        loc="upper left",
        bbox_to_anchor=(0.05, 0.0),
        ncol=2 if len(labels) > 4 else 1,
        fontsize="small",
        frameon=False,
    )
    for text, label in zip(legend.get_texts(), labels):
        text.set_text(label)  # A label that begins with _ would be left out by matplotlib.
    return picture


def save(picture: Any, path: str) -> None:
    """Writes a picture, in the format that the path's ending says, whole or not at all."""
    ending = os.path.splitext(path)[1].lower()
    content = io.BytesIO()
    picture.savefig(content, format=ending[1:], dpi=DOTS_PER_INCH, bbox_inches="tight")
    target = os.path.realpath(path)
    folder, name = os.path.split(target)
    if os.path.exists(target):
        mode = stat.S_IMODE(os.stat(target).st_mode)
    else:
        mask = os.umask(0o077)
        os.umask(mask)
        mode = 0o666 & ~mask
    # Of a name that nobody can have put a link at.
    descriptor, temporary = tempfile.mkstemp(".tmp", f".{name}.", folder)
    try:
        with open(descriptor, "wb") as file:
            file.write(content.getvalue())
        os.chmod(temporary, mode)
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.remove(temporary)
        raise


# -- the command --------------------------------------------------------------------------------


def writable(text: str) -> str:
    """A path that can be written to, found out by opening it; nothing is left behind."""
    existed = os.path.lexists(text)
    if existed and not os.path.exists(text):
        raise argparse.ArgumentTypeError(f"cannot write {text!r}: it is a link that leads nowhere")
    try:
        with open(text, "ab"):
            pass
        if not existed:
            os.remove(text)
    except OSError as error:
        raise argparse.ArgumentTypeError(f"cannot write {text!r}: {error.strerror}") from None
    return text


def _output(text):
    if os.path.splitext(text)[1].lower() not in FORMATS:
        raise argparse.ArgumentTypeError(f"must end in {', '.join(FORMATS)}, got {text!r}")
    return writable(text)


def _size(text):
    match = re.match(r"^(\d+(?:\.\d+)?)x(\d+(?:\.\d+)?)$", text)
    size = tuple(float(number) for number in match.groups()) if match else ()
    if not size or min(size) < 2 or max(size) > 100:
        raise argparse.ArgumentTypeError(
            f"must be WIDTHxHEIGHT in inches, each from 2 to 100, got {text!r}"
        )
    return size


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds this command's options to an `argparse` parser."""
    parser.add_argument("logdirs", metavar="LOGDIR", nargs="+", help="folder of TensorBoard logs")
    parser.add_argument(
        "-o",
        "--output",
        type=_output,
        metavar="FILE",
        required=True,
        help=f"the picture to write: {', '.join(FORMATS)}",
    )
    parser.add_argument(
        "--size",
        type=_size,
        metavar="WIDTHxHEIGHT",
        default=DEFAULT_SIZE,
        help=f"in inches of {DOTS_PER_INCH} dots, without the legend (default: 10x6)",
    )
    # `run` finds out more, and can then complain as argparse does.
    parser.set_defaults(error=parser.error)


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    missing = []
    for name in ("matplotlib", "tensorboard"):
        try:
            __import__(name)
        except ImportError:
            missing.append(name)
    if missing:
        args.error(
            f"this needs {' and '.join(missing)}, which the extra `plot` installs: "
            + _install.command("plot")
        )
    try:
        save(draw(read(args.logdirs), args.size), args.output)
    except (LogError, OSError) as error:
        print(f"tf-lossscale plot: {error}", file=sys.stderr)
        return 1
    return 0
