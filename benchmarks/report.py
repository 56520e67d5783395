"""Tables and a picture."""

GENERATIONS = {
    "v1": ("tf.compat.v1, dynamic", ("ours, v1, dynamic", "ours, contrib, exponential")),
    "keras3": ("keras3, dynamic", ("ours, keras3, dynamic",)),
    "tf_keras": ("tf_keras, dynamic", ("ours, tf_keras, dynamic",)),
}
# Generation by generation, the peer first.
COMPARED = [name for peer, ours in GENERATIONS.values() for name in (peer, *ours)]
NUMBERS = (10, 100, 1000)

_COLUMNS = (
    ("ms", "milliseconds", "{:.2f}"),
    ("overhead ms", "overhead", "{:.2f}"),
    ("to peer", "overhead_ratio", "{:.2f}"),
    ("applied ms", "applied_milliseconds", "{:.2f}"),
    ("applied overhead ms", "applied_overhead", "{:.2f}"),
    ("to applied", "overhead_to_applied", "{:.2f}"),
    ("nodes added", "nodes_added", "{:.0f}"),
    ("to peer", "nodes_added_ratio", "{:.2f}"),
    ("trace s added", "trace_added", "{:.2f}"),
    ("to peer", "trace_added_ratio", "{:.2f}"),
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
    return "" if row.get(key) is None else _text(row[key], form)


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


def draw(results, path):
    """Draws the overhead against the number of gradients.

    A contender that takes nothing, or less, has a gap there, as axes are logarithmic.
    """
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(13, 5.5))
    for axis, mode in zip(axes, ("graph", "eager")):
        for color, (peer, ours) in enumerate(GENERATIONS.values()):
            for name, style in [(peer, "--x")] + [(name, "-o") for name in ours]:
                rows = [results.get((str(number), mode), {}).get(name, {}) for number in NUMBERS]
                if not any("overhead" in row for row in rows):
                    continue
                overheads = [row["overhead"].value if "overhead" in row else 0 for row in rows]
                shown = [value if value > 0 else float("nan") for value in overheads]
                options = {"markerfacecolor": "white"} if "contrib" in name else {}
                axis.loglog(NUMBERS, shown, style, color=f"C{color}", label=name, **options)
        axis.set(
            title=f"{mode}, dynamic loss scale", xlabel="gradients of 8x8", ylabel="overhead, ms"
        )
        axis.set_xticks(NUMBERS, [f"{number:,}" for number in NUMBERS], minor=False)
        axis.xaxis.minorticks_off()
        axis.grid(True, alpha=0.3)
        if axis.lines:
            axis.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
