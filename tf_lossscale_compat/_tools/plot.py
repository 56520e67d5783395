"""Draw the loss scale of training runs from their TensorBoard logs.

Every folder in a LOGDIR that has event files is a run. A tick above the frame marks a skipped step,
or several since the previous point. If a run was restarted from an older checkpoint, only the
newest points are drawn.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import tempfile
from typing import Any

from tf_lossscale_compat._core import _install
from tf_lossscale_compat.monitoring import _summaries

MAX_POINTS = 20000  # Per tag; TensorBoard takes a sample of more points.


def _number(proto: Any) -> float:
    from tensorboard.util import tensor_util

    # Checks the shape first, because a few bytes can claim any number of entries.
    scalar = all(dimension.size == 1 for dimension in proto.tensor_shape.dim)
    return float(tensor_util.make_ndarray(proto).item()) if scalar else math.nan


def _newest(logs: Any, tag: str) -> list[tuple[int, float]]:
    """Returns [(step, value)] of a tag, without points that a later restart has replaced."""
    points: list[tuple[int, float]] = []
    replaced = False
    events = logs.Tensors(tag) if tag in logs.Tags()["tensors"] else []
    for event in sorted(events, key=lambda event: event.wall_time, reverse=True):
        # Equal steps come from a TF1 loop: a skipped step does not increment the global step.
        replaced = bool(points) and event.step >= points[-1][0] + (not replaced)
        if not replaced:
            points.append((event.step, _number(event.tensor_proto)))
    return points[::-1]


def read_runs(logdirs: list[str]) -> dict[str, Any]:
    """Returns {run: {tag: [(step, value)]}} of all folders in `logdirs` with a loss scale."""
    from tensorboard.backend.event_processing import io_wrapper, plugin_event_accumulator
    from tensorboard.compat import tf

    sizes = {"size_guidance": {"tensors": 1}, "tensor_size_guidance": {"scalars": MAX_POINTS}}
    runs = {}
    for logdir in logdirs:
        found = False
        try:
            for folder in sorted(io_wrapper.GetLogdirSubdirectories(logdir)):
                logs = plugin_event_accumulator.EventAccumulator(folder, **sizes).Reload()
                points = {tag: _newest(logs, tag) for tag in _summaries.TAGS}
                if any(0 < scale < math.inf for _, scale in points[_summaries.SCALE]):
                    runs[folder], found = points, True
        except Exception as error:
            raise ValueError(f"cannot read {logdir!r}: {error or type(error).__name__}") from error
        if not found and not tf.io.gfile.exists(logdir):
            raise ValueError(f"{logdir!r} does not exist")
        if not found:
            raise ValueError(f"{logdir!r} has no finite {_summaries.SCALE!r} above zero")
    return runs


def skips_by_step(points: dict[str, Any]) -> list[tuple[int, float]]:
    """Returns [(step, number)] of the steps that were skipped since the previous point."""
    in_a_row = dict(reversed(points[_summaries.CONSECUTIVE_SKIPS]))
    found, before = [], math.inf
    for step, total in points[_summaries.SKIPPED_STEPS]:
        # Where the total starts or restarts, only that step is known.
        new = total - before if total >= before else float(in_a_row.get(step, 0) > 0)
        found += [(step, new)] if new > 0 else []
        before = total
    return found


def draw(axes: Any, runs: dict[str, Any]) -> None:
    """Draws the loss scale of runs over their steps into `matplotlib.axes.Axes`."""
    for index, (name, points) in enumerate(runs.items()):
        scale = [point for point in points[_summaries.SCALE] if 0 < point[1] < math.inf]
        skipped, omitted = skips_by_step(points), len(points[_summaries.SCALE]) - len(scale)
        # Prevents matplotlib from finding a formula, a new line, or a name to leave out.
        label = " " + "".join(char if char.isprintable() else "?" for char in name[-80:]).replace(
            "$", r"\$"
        )
        for first, _ in points[_summaries.SKIPPED_STEPS][:1]:
            label += f" ({sum(number for _, number in skipped):.0f} skipped from step {first} on)"
        label += f" ({omitted} scales left out: not finite or not above zero)" if omitted else ""
        # Lines with gaps are drawn over solid lines, so that overlapping runs are all visible.
        color, style = f"C{index % 10}", ("-", "--", ":")[index % 3]
        (line,) = axes.step(*zip(*scale), where="post", label=label, color=color, ls=style)
        line.set(linewidth=2.4, zorder=2 + index % 3 / 10, marker="." if len(scale) == 1 else "")
        for bounds in (points[_summaries.FLOOR], points[_summaries.CEILING]):
            if bounds and 0 < bounds[-1][1] < math.inf:
                axes.hlines(bounds[-1][1], bounds[0][0], scale[-1][0], color, "dashed")
        above = {"transform": axes.get_xaxis_transform(), "clip_on": False, "color": color}
        axes.plot([step for step, _ in skipped], [1.02 + 0.02 * index] * len(skipped), "|", **above)
    axes.set_yscale("log", base=2)
    axes.set(ylabel="loss scale", xlabel="step (dashed: floor, ceiling; ticks above: skipped)")
    axes.legend(loc="upper left", bbox_to_anchor=(0, -0.15), fontsize="small", frameon=False)


def save(picture: Any, path: str) -> None:
    """Writes a `matplotlib.figure.Figure`, whole or not at all, in the format of the suffix."""
    mask = os.umask(0o077)
    os.umask(mask)
    mode = os.stat(path).st_mode & 0o7777 if os.path.exists(path) else 0o666 & ~mask
    descriptor, temporary = tempfile.mkstemp(dir=os.path.dirname(path) or ".")
    try:
        with open(descriptor, "wb") as file:
            picture.savefig(file, format=path[-3:].lower(), bbox_inches="tight")
        os.chmod(temporary, mode)
        os.replace(temporary, path)
    except BaseException:
        os.remove(temporary)
        raise


def picture_path(text: str) -> str:
    """Returns the path of a picture if it may be written, for `argparse`."""
    folder = os.path.dirname(text) or "."
    if not os.access(folder, os.W_OK) or not text.lower().endswith((".png", ".svg", ".pdf")):
        wanted = "a .png, .svg or .pdf in a folder that can be written to"
        raise argparse.ArgumentTypeError(f"must be {wanted}, got {text!r}")
    return text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds this command's options to an `argparse` parser."""
    parser.add_argument("logdirs", metavar="LOGDIR", nargs="+", help="folder of TensorBoard logs")
    output_help = "the picture to write, a .png, .svg or .pdf"
    parser.add_argument(
        "-o", "--output", type=picture_path, metavar="FILE", required=True, help=output_help
    )


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    try:
        from matplotlib import figure

        picture = figure.Figure(figsize=(10, 6))
        draw(picture.subplots(), read_runs(args.logdirs))
        save(picture, args.output)
    except (ImportError, ValueError, OSError) as error:
        missing = isinstance(error, ImportError)
        what = f"; the extra `plot` has it: {_install.command('plot')}" if missing else ""
        print(f"tf-lossscale plot: {error}{what}", file=sys.stderr)
        return 2 if missing else 1
    return 0
