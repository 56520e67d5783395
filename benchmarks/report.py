"""Tables, a picture, and what was aimed for beside what was measured."""

import dataclasses
from typing import Optional

from benchmarks import growth, paired
from benchmarks.steps import SKIPPED

GENERATIONS = {
    "v1": ("tf.compat.v1, dynamic", ("ours, v1, dynamic", "ours, contrib, exponential")),
    "keras3": ("keras3, dynamic", ("ours, keras3, dynamic",)),
    "tf_keras": ("tf_keras, dynamic", ("ours, tf_keras, dynamic",)),
}
PEERS = [peer for peer, _ in GENERATIONS.values()]
DYNAMIC = [name for _, ours in GENERATIONS.values() for name in ours]
# Generation by generation, the peer first.
COMPARED = [name for peer, ours in GENERATIONS.values() for name in (peer, *ours)]
NUMBERS = (10, 100, 1000)

_COLUMNS = (
    ("ms", "milliseconds", "{:.2f}"),
    ("overhead ms", "overhead", "{:.2f}"),
    ("to peer", "overhead_ratio", "{:.2f}"),
    ("to floor", "overhead_to_floor", "{:.2f}"),
    ("applied ms", "applied_milliseconds", "{:.2f}"),
    ("applied overhead ms", "applied_overhead", "{:.2f}"),
    ("to applied", "overhead_to_applied", "{:.2f}"),
    ("nodes added", "nodes_added", "{:d}"),
    ("to peer", "nodes_added_ratio", "{:.2f}"),
    ("trace s added", "trace_added", "{:.2f}"),
    ("to peer", "trace_added_ratio", "{:.2f}"),
    ("peak MB added", "peak_added", "{:.1f}"),
    ("launches", "launches", "{:.1f}"),
    ("launches added", "launches_added", "{:.1f}"),
)


def _text(figure, form="{:.2f}"):
    """A figure with its interval; a question mark where there were too few rounds for one."""
    if figure.interval is None:
        return form.format(figure.value) + " [?]"
    low, high = (form.format(end) for end in figure.interval)
    low, high = low.replace("+", ""), high.replace("+", "")
    return form.format(figure.value) + (f" [{low}, {high}]" if low != high else "")


def _ratio(row, key, unit="ms"):
    """A ratio, or what is said in its place where what it is to cannot be told from nothing."""
    if row[key] is not None:
        return _text(row[key])
    difference = row.get(key.replace("_ratio", "_difference"))
    return "" if difference is None else _text(difference, "{:+.2f}") + f" {unit}"


def _cell(row, key, form):
    if key.endswith("_ratio") and key in row:
        return _ratio(row, key, "s" if key.startswith("trace") else "ms")
    value = row.get(key)
    if value is None:
        return ""
    if isinstance(value, paired.Figure):
        return _text(value, form)
    return form.format(value / 2**20 if key == "peak_added" else value)


def table(rows):
    """Returns what was measured on one workload in one mode as a Markdown table.

    Where a peer's overhead cannot be told from nothing, there is no ratio to it, but what the
    contender takes more, with a sign and a unit.
    """
    columns = [
        column
        for column in _COLUMNS
        if any(_cell(row, column[1], column[2]) for row in rows.values())
    ]
    lines = [
        "| contender | " + " | ".join(title for title, _, _ in columns) + " |",
        "| --- |" + " ---: |" * len(columns),
    ]
    for name, row in rows.items():
        cells = [_cell(row, key, form) for _, key, form in columns]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def summary(results):
    """Returns a Markdown table of what dynamic loss scales cost in each workload and mode.

    Args:
      results: {(workload, mode): rows}.
    """
    lines = [
        "| overhead, ms (to peer) | " + " | ".join(COMPARED) + " |",
        "| --- |" + " ---: |" * len(COMPARED),
    ]
    for (workload, mode), rows in results.items():
        cells = []
        for name in COMPARED:
            row = rows.get(name, {})
            cell = f"{row['overhead'].value:.2f}" if "overhead" in row else ""
            if "overhead_ratio" in row:
                cell += f" ({_ratio(row, 'overhead_ratio')})"
            cells.append(cell)
        lines.append(f"| {workload}, {mode} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def above_peers(results):
    """Returns a Markdown list: what takes more than its peer, and of what that cannot be told.

    That is read off the difference, which, unlike the ratio, is always there.
    """
    above, unknown = [], []
    for (workload, mode), rows in results.items():
        for name, row in rows.items():
            # The peer of a step with a record is the same step without.
            if "overhead_difference" not in row or row.get("peer", "").startswith("ours"):
                continue
            difference = row["overhead_difference"]
            low, high = difference.interval or (-1, 1)
            line = f"{name}, {workload}, {mode}: {_text(difference, '{:+.2f}')} ms"
            if low > 0:
                above.append(f"- above: {line}")
            elif high > 0:
                unknown.append(f"- cannot tell: {line}")
    return "\n".join(above + unknown) or "- none"


@dataclasses.dataclass(frozen=True)
class Aim:
    """Something that was aimed for.

    Attributes:
      text: str.
      limit: number that the figure is to be at most.
      figure: `paired.Figure`, or None where what it is the ratio to cannot be told from nothing.
      difference: str, what is said of how far the two are apart in that case.
    """

    text: str
    limit: float
    figure: Optional[paired.Figure]
    difference: str = ""

    @property
    def verdict(self):
        """Whether it is met: "yes", "no" or "cannot tell"."""
        return paired.verdict(self.figure, self.limit)


def _ratio_aim(text, limit, own, of, unit="ms"):
    """An `Aim` of the ratio of two figures."""
    return Aim(text, limit, own.over(of), _text(own - of, "{:+.2f}") + f" {unit}")


def _to_peer(workload, mode):
    """How much of its own generation's overhead a dynamic loss scale may take at most."""
    return {("large", "eager"): 0.5, ("small", "eager"): 0.25}.get((workload, mode), 1.0)


def _aims_of_setting(workload, mode, rows):
    """Generates the aims that one workload in one mode says something about."""
    ours = {name: rows[name] for name in DYNAMIC if "overhead" in rows.get(name, {})}
    label = f"{workload}, {mode}"
    peers = [rows[peer]["overhead"] for peer in PEERS if "overhead" in rows.get(peer, {})]
    for name, row in ours.items():
        if "overhead_ratio" in row and not mode.startswith(SKIPPED):
            text = f"{name}, {label}: overhead to its peer's"
            yield _ratio_aim(
                text, _to_peer(workload, mode), row["overhead"], rows[row["peer"]]["overhead"]
            )
    best = {"large": 0.85, "small": 0.6}.get(workload)
    if mode == "graph" and best and peers:
        for name, row in ours.items():
            text = f"{name}, {label}: overhead to the best peer's"
            yield _ratio_aim(text, best, row["overhead"], paired.smallest(peers))
            if workload == "large" and "overhead_to_floor" in row:
                yield Aim(f"{name}, {label}: overhead to the floor", 1.4, row["overhead_to_floor"])
    if mode == "graph" and workload in ("large", "small"):
        for what, key, unit, limit in (
            ("nodes", "nodes", "nodes", 0.5),
            ("trace time", "trace", "s", 0.65),
        ):
            for name, row in ours.items():
                if f"{key}_added_ratio" in row:
                    yield Aim(
                        f"{name}, {label}: {what} added to its peer's",
                        limit,
                        row[f"{key}_added_ratio"],
                        _text(row[f"{key}_added_difference"], "{:+.2f}") + f" {unit}",
                    )
    if mode.startswith(SKIPPED):
        for name, row in ours.items():
            text = f"{name}, {label}: overhead to that of an applied step"
            yield _ratio_aim(text, 0.5, row["overhead"], row["applied_overhead"])


def _aims_of_numbers(results):
    """Generates the aims about many gradients and few."""
    for generation in GENERATIONS:
        name = f"ours, {generation}, fixed"
        nodes = [
            results.get((str(n), "graph"), {}).get(name, {}).get("nodes_added") for n in (10, 100)
        ]
        if None not in nodes:
            figure = paired.Figure.exact((nodes[1] - nodes[0]) / 90)
            yield Aim(f"{name}, graph: nodes added for each gradient", 1, figure)
    for mode in ("graph", "eager"):
        for name in DYNAMIC:
            rows = [results.get((str(n), mode), {}).get(name, {}) for n in (100, 1000)]
            if all("overhead" in row for row in rows):
                text = f"{name}, {mode}: overhead of 1,000 gradients to ten times that of 100"
                yield _ratio_aim(text, 1.5, rows[1]["overhead"], rows[0]["overhead"] * 10)


def _aims_of_growth(results):
    """Generates the aims about many replicas or workers and few, the most and the fewest measured.

    The overhead is that of all replicas together, which share the machine, so that linear means
    as many times as much with as many times as many. What few gradients cost is next to all of it
    what a step costs once on each replica: the conditional, and the one reduction that makes all
    replicas act as one. What many gradients cost more is what each gradient costs on each replica:
    if that is linear too, then what replicas cost beyond each one's own share does not depend on
    the number of gradients. As with the number of gradients, half as much again is let pass.

    Workers are compared with workers, as one alone has nobody to wait for.
    """
    for kind in growth.KINDS:
        counts = [
            count
            for other, count in growth.SETTINGS
            if other == kind
            and all((size, growth.mode(kind, count)) in results for size in growth.WORKLOADS)
        ]
        if len(counts) < 2:
            continue
        low, high = min(counts), max(counts)
        for name in DYNAMIC:
            few, many = (
                [
                    results[workload, growth.mode(kind, count)].get(name, {}).get("overhead")
                    for count in (low, high)
                ]
                for workload in growth.WORKLOADS
            )
            if None in few + many:
                continue
            times = high / low
            beside = f"to {times:g} times that with {growth.mode(kind, low)}"
            label = f"{name}, {growth.mode(kind, high)}"
            text = f"{label}: overhead of 10 gradients {beside}"
            yield _ratio_aim(text, 1.5, few[1], few[0] * times)
            text = f"{label}: overhead of 161 gradients over that of 10 {beside}"
            yield _ratio_aim(text, 1.5, many[1] - few[1], (many[0] - few[0]) * times)


def aims(results, import_milliseconds=None):
    """Returns a list of `Aim`.

    Args:
      results: {(workload, mode): rows}; what was not measured is left out.
      import_milliseconds: `paired.Figure` of what importing the package adds to TensorFlow's, or
        None.
    """
    found = [
        aim
        for (workload, mode), rows in results.items()
        for aim in _aims_of_setting(workload, mode, rows)
    ]
    found += [*_aims_of_numbers(results), *_aims_of_growth(results)]
    if import_milliseconds is not None:
        text = "import of the package over TensorFlow's, ms"
        found.append(Aim(text, 50, import_milliseconds))
    return found


def targets(results, import_milliseconds=None):
    """Returns a Markdown table: what was aimed for, the figure, and whether it was met.

    It is met for certain where the figure is at most what was aimed for and the interval's upper
    end not more than 5 % above that, and missed for certain where the lower end is above it. Where
    a figure is a ratio to something that cannot be told from nothing, its place is taken by how
    much more it is.

    Args:
      results: see `aims`.
      import_milliseconds: see `aims`.
    """
    lines = ["| aim | at most | measured | met |", "| --- | ---: | ---: | --- |"]
    for aim in aims(results, import_milliseconds):
        measured = aim.difference if aim.figure is None else _text(aim.figure)
        lines.append(f"| {aim.text} | {aim.limit} | {measured} | {aim.verdict} |")
    return "\n".join(lines)


def is_sure(workload, mode, rows):
    """Whether of each aim that these rows alone say something about it is known if it is met."""
    return all(aim.verdict != paired.CANNOT_TELL for aim in _aims_of_setting(workload, mode, rows))


def draw(results, path):
    """Draws the overhead against the number of gradients, and of replicas and workers.

    Replicas and workers have a row of their own, where they were measured.
    """
    from matplotlib import pyplot

    panels = [
        [
            (
                f"{mode}, dynamic loss scale",
                "gradients of 8x8",
                NUMBERS,
                [[(str(number), mode) for number in NUMBERS]],
            )
            for mode in ("graph", "eager")
        ]
    ]
    if any((growth.MANY, growth.mode(*setting)) in results for setting in growth.SETTINGS):
        panels.append([])
        for kind in growth.KINDS:
            counts = [count for other, count in growth.SETTINGS if other == kind]
            keys = [
                [(workload, growth.mode(kind, count)) for count in counts]
                for workload in growth.WORKLOADS
            ]
            title = f"graph, several {kind}; 161 gradients, and thin: 10"
            panels[1].append((title, kind, counts, keys))
    size = (13, 5.5 * len(panels))
    figure, axes = pyplot.subplots(len(panels), 2, figsize=size, squeeze=False)
    for axis, panel in zip(axes.flat, [panel for row in panels for panel in row]):
        _draw_panel(axis, results, *panel)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _draw_panel(axis, results, title, label, numbers, keys):
    """Draws lines for each contender, one for each list of keys of `results`, the last one thick.

    What takes nothing or less in one place has a gap there, as axes are logarithmic.
    """
    for width, places in enumerate(keys, 3 - len(keys)):
        for color, (peer, ours) in enumerate(GENERATIONS.values()):
            for name, style in [(peer, "--x")] + [(name, "-o") for name in ours]:
                rows = [results.get(place, {}).get(name, {}) for place in places]
                if not any("overhead" in row for row in rows):
                    continue
                overheads = [row["overhead"].value if "overhead" in row else 0 for row in rows]
                shown = [value if value > 0 else float("nan") for value in overheads]
                options = {"markerfacecolor": "white"} if "contrib" in name else {}
                options.update(
                    color=f"C{color}", linewidth=width, label=name if width > 1 else None
                )
                axis.loglog(numbers, shown, style, **options)
    axis.set(title=title, xlabel=label, ylabel="overhead, ms")
    axis.set_xticks(numbers, [f"{number:,}" for number in numbers], minor=False)
    axis.xaxis.minorticks_off()
    axis.grid(True, alpha=0.3)
    if axis.lines:
        axis.legend(fontsize=8)
