"""Runs a program with the original and with the package."""

from tests.differential import eager_side, graph_side, history, keras_side


def run(program, library):
    """Runs a program with a library, "original" or "package".

    Returns:
      A list of (action, {key: observed}), which ends with the first error.
    """
    if " " in program["family"]:
        side = keras_side.side
    else:
        side = graph_side.graph if program["place"].startswith("graph") else eager_side.eager
    entries, action = [], ["make"]
    try:
        with side(program, library) as running:
            for action in program["actions"]:
                entries.append((action, running.do(action)))
    except Exception as error:
        entries.append((action, {"error": type(error).__name__, "message": str(error)[:400]}))
    return entries


def compare(program):
    """Returns (differences, the original's history, the package's) of a program."""
    both = [run(program, library) for library in ("original", "package")]
    return (history.differences(program, *both), *both)


def main(program):
    """Prints both histories, side by side, and the first difference: the body of a script."""
    found, original, package = compare(program)
    for index in range(max(len(original), len(package))):
        for name, entries in (("original", original), ("package", package)):
            if index < len(entries):
                action, seen = entries[index]
                print(f"{index} {action} {name}")
                for key, value in seen.items():
                    print(f"    {key}: {history.short(value)}")
    print(f"\nFirst difference: {found[0]}" if found else "\nNo difference.")
    return found
