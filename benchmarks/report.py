"""Tables, a picture, and what was aimed for beside what was measured."""

GENERATIONS = {
    "v1": ("tf.compat.v1, dynamic", ("ours, v1, dynamic", "ours, contrib, exponential")),
    "keras3": ("keras3, dynamic", ("ours, keras3, dynamic",)),
    "tf_keras": ("tf_keras, dynamic", ("ours, tf_keras, dynamic",)),
}
DYNAMIC = [name for _, ours in GENERATIONS.values() for name in ours]
NUMBERS = (10, 100, 1000)

_COLUMNS = (
    ("ms", "milliseconds", "{:.2f}"),
    ("overhead ms", "overhead", "{:.2f}"),
    ("to peer", "overhead_ratio", "{:.2f}"),
    ("to floor", "overhead_to_floor", "{:.2f}"),
    ("nodes added", "nodes_added", "{:d}"),
    ("to peer", "nodes_added_ratio", "{:.2f}"),
    ("trace s added", "trace_added", "{:.2f}"),
    ("to peer", "trace_added_ratio", "{:.2f}"),
    ("peak MB added", "peak_added", "{:.1f}"),
)


def _shown(row, key, form):
    value = row.get(key)
    if value is None:
        return ""
    return form.format(value / 2**20 if key == "peak_added" else value)


def table(rows):
    """Returns what was measured on one workload in one mode as a Markdown table."""
    columns = [
        column
        for column in _COLUMNS
        if any(row.get(column[1]) is not None for row in rows.values())
    ]
    lines = [
        "| contender | " + " | ".join(title for title, _, _ in columns) + " |",
        "| --- |" + " ---: |" * len(columns),
    ]
    for name, row in rows.items():
        lines.append(
            f"| {name} | " + " | ".join(_shown(row, key, form) for _, key, form in columns) + " |"
        )
    return "\n".join(lines)


def summary(results):
    """Returns a Markdown table of what dynamic loss scales cost in each workload and mode.

    Args:
      results: {(workload, mode): rows}.
    """
    names = [name for peer, ours in GENERATIONS.values() for name in (peer, *ours)]
    lines = [
        "| overhead, ms (to peer) | " + " | ".join(names) + " |",
        "| --- |" + " ---: |" * len(names),
    ]
    for (workload, mode), rows in results.items():
        cells = []
        for name in names:
            row = rows.get(name, {})
            ratio = _shown(row, "overhead_ratio", " ({:.2f})")
            cells.append(_shown(row, "overhead", "{:.2f}") + ratio)
        lines.append(f"| {workload}, {mode} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def targets(results, import_milliseconds=None):
    """Returns a Markdown table: what was aimed for, the figure, and whether it was met.

    Args:
      results: {(workload, mode): rows}; what was not measured is left out.
      import_milliseconds: what importing the package adds to TensorFlow's, or None.
    """
    found = []

    def add(text, figure, limit):
        found.append(f"| {text} | {limit} | {figure:.2f} | {'yes' if figure <= limit else 'no'} |")

    for workload, limit in (("large", 1.0), ("small", 0.6)):
        rows = results.get((workload, "graph"), {})
        peers = [rows[peer]["overhead"] for peer, _ in GENERATIONS.values() if peer in rows]
        for name in DYNAMIC:
            if name in rows and peers:
                text = f"{name}, {workload}, graph: overhead to the best peer's"
                add(text, rows[name]["overhead"] / min(peers), limit)
                if workload == "large":
                    text = f"{name}, {workload}, graph: overhead to the floor"
                    add(text, rows[name]["overhead_to_floor"], 1.4)
    for workload, limit in (("large", 0.5), ("small", 0.25)):
        rows = results.get((workload, "eager"), {})
        for name in DYNAMIC:
            if "overhead_ratio" in rows.get(name, {}):
                text = f"{name}, {workload}, eager: overhead to its peer's"
                add(text, rows[name]["overhead_ratio"], limit)
    for workload in ("large", "small"):
        rows = results.get((workload, "graph"), {})
        for what, key in (("nodes", "nodes_added_ratio"), ("trace time", "trace_added_ratio")):
            for name in DYNAMIC:
                if key in rows.get(name, {}):
                    add(
                        f"{name}, {workload}, graph: {what} added to its peer's",
                        rows[name][key],
                        0.5,
                    )
    for generation in GENERATIONS:
        name = f"ours, {generation}, fixed"
        nodes = [
            results.get((str(n), "graph"), {}).get(name, {}).get("nodes_added") for n in (10, 100)
        ]
        if None not in nodes:
            add(f"{name}, graph: nodes added for each gradient", (nodes[1] - nodes[0]) / 90, 1)
    for mode in ("graph", "eager"):
        for name in DYNAMIC:
            rows = [results.get((str(n), mode), {}).get(name, {}) for n in (100, 1000)]
            if all("overhead" in row for row in rows):
                text = f"{name}, {mode}: overhead of 1,000 gradients to ten times that of 100"
                add(text, rows[1]["overhead"] / rows[0]["overhead"] / 10, 1.5)
    if import_milliseconds is not None:
        add("import of the package over TensorFlow's, ms", import_milliseconds, 50)
    return "\n".join(["| aim | at most | measured | met |", "| --- | ---: | ---: | --- |", *found])


def draw(results, path):
    """Draws the overhead against the number of gradients, 10, 100 and 1,000."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(13, 5.5))
    for axis, mode in zip(axes, ("graph", "eager")):
        rows = [results.get((str(number), mode), {}) for number in NUMBERS]
        for color, (peer, ours) in enumerate(GENERATIONS.values()):
            for name, style in [(peer, "--x")] + [(name, "-o") for name in ours]:
                overheads = [row.get(name, {}).get("overhead") for row in rows]
                if None not in overheads:
                    marker = {"markerfacecolor": "white"} if "contrib" in name else {}
                    axis.loglog(NUMBERS, overheads, style, color=f"C{color}", label=name, **marker)
        axis.set(
            title=f"{mode}, dynamic loss scale", xlabel="gradients of 8x8", ylabel="overhead, ms"
        )
        axis.grid(True, alpha=0.3)
        if axis.lines:
            axis.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
