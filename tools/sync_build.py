"""Writes BUILD from what is on disk: `python tools/sync_build.py` (`--check` only compares).

One py_library per room of the package (a module, or a folder with all that it holds), its deps
taken from the imports, and one py_test per test file. tests/build_file_test.py checks the result
on its own terms, without this script.
"""

import argparse
import ast
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PACKAGE = "tf_lossscale_compat"

HEADER = '''\
"""Written by tools/sync_build.py; run it after adding, moving or removing a file.

TensorFlow and the other third-party packages come from the interpreter that runs the tests.
"""

load("@rules_python//python:defs.bzl", "py_library", "py_test")

package(default_visibility = ["//visibility:public"])

# What tests read besides modules: documents, examples, recorded data, the files about packaging.
filegroup(
    name = "test_data",
    srcs = [
        "BUILD",
        "CHANGELOG.md",
        "LICENSE",
        "MODULE.bazel",
        "README.md",
        "migration_guide.md",
        "pyproject.toml",
        "setup.py",
    ] + glob(
        [
            "benchmarks/**",
            "examples/**",
            "tests/**",
            "tf_lossscale_compat/**",
        ],
        exclude = ["**/__pycache__/**"],
    ),
)
'''


def rooms():
    """Returns {library name: [paths of its modules, relative to the root]}."""
    found = {}
    for path in sorted((ROOT / PACKAGE).rglob("*.py")):
        first = path.relative_to(ROOT / PACKAGE).parts[0]
        name = first[:-3] if first.endswith(".py") else first
        # The package itself, and `python -m`, which is another door to the same room.
        name = {"__init__": PACKAGE, "__main__": "cli"}.get(name, name)
        found.setdefault(name, []).append(path.relative_to(ROOT).as_posix())
    return found


def imported(path, known):
    """Returns the names of the libraries that a file imports from the package, anywhere in it."""
    names = set()
    for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                parts = alias.name.split(".")
                if parts[0] == PACKAGE:
                    names.add(parts[1] if len(parts) > 1 else PACKAGE)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            parts = node.module.split(".")
            if parts == [PACKAGE]:
                names.update(alias.name for alias in node.names)
            elif parts[0] == PACKAGE:
                names.add(parts[1])
    return {name if name in known else PACKAGE for name in names}


def starts_processes(path):
    """Whether a test file starts other processes, by itself or through the tests' helpers."""
    for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names = {alias.name for alias in node.names}
        elif isinstance(node, ast.Attribute):
            names = {node.attr} & {"child", "call_in_child", "call_eagerly"}
        else:
            continue
        if names & {"subprocess", "processes", "child", "call_in_child", "call_eagerly"}:
            return True
    return False


def rule(kind, name, srcs, deps=(), **others):
    lines = [f"\n{kind}(", f'    name = "{name}",', *listing("srcs", srcs)]
    lines += [f"    {key} = {value}," for key, value in sorted(others.items())]
    if deps:
        lines += listing("deps", [f":{dep}" for dep in sorted(deps)])
    return "\n".join([*lines, ")\n"])


def listing(key, values):
    values = sorted(values)
    if len(values) == 1:
        return [f'    {key} = ["{values[0]}"],']
    return [f"    {key} = [", *(f'        "{value}",' for value in values), "    ],"]


def build_text():
    libraries = rooms()
    parts = [HEADER]
    for name, srcs in sorted(libraries.items()):
        deps = set().union(*(imported(path, libraries) for path in srcs)) - {name}
        others = {"imports": '["."]'}
        if name == PACKAGE:
            others["data"] = f'["{PACKAGE}/py.typed"]'
        parts.append(rule("py_library", name, srcs, deps, **others))

    python_files = [path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("*.py")]
    tests = sorted(path for path in python_files if path.endswith("_test.py"))
    support = sorted(set(python_files) - set(tests))
    if support:
        deps = set().union(*(imported(path, libraries) for path in support)) | {PACKAGE}
        parts.append(
            rule(
                "py_library",
                "test_support",
                support,
                deps,
                imports='[".", "tests"]',
                testonly="True",
            )
        )
    for path in tests:
        deps = imported(path, libraries) | {PACKAGE}
        if support:
            deps.add("test_support")
        name = pathlib.PurePath(path).relative_to("tests").with_suffix("").as_posix()
        # `--test_tag_filters=-starts-processes` leaves them out.
        others = {"tags": '["starts-processes"]'} if starts_processes(path) else {}
        parts.append(
            rule(
                "py_test",
                name.replace("/", "_"),
                [path],
                deps,
                data='[":test_data"]',
                main=f'"{path}"',
                size='"large"',
                **others,
            )
        )
    return "".join(parts)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="exit with 1 if BUILD would change")
    path, text = ROOT / "BUILD", build_text()
    if parser.parse_args().check:
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            print("BUILD is out of step: run python tools/sync_build.py", file=sys.stderr)
            return 1
        return 0
    path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
