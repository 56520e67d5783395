"""Development sessions: lint, types, docs, build, demo, and the suite on every TensorFlow.

    nox -s matrix                            the whole suite in all seven environments
    nox -s matrix -- --only tf115 --reuse    one of them, in the environment that is there already
    nox -s "tests(tf221)" -- -k adapters     the same for one; what follows goes to pytest

A missing interpreter is a failure where the variable CI is set and a skip elsewhere.
"""

import argparse
import concurrent.futures
import dataclasses
import glob
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree

import nox

ROOT = pathlib.Path(__file__).resolve().parent
WORK = ROOT / ".nox"
RESULTS = WORK / "results"
ON_CI = bool(os.environ.get("CI"))
# Far above what a suite takes: it ends a process that hangs where pytest's own limit cannot.
SUITE_LIMIT_SECONDS = 2400

nox.needs_version = ">=2025.5.1"
nox.options.default_venv_backend = "venv"
nox.options.download_python = "never"
nox.options.sessions = ["lint", "types"]


@dataclasses.dataclass(frozen=True)
class Environment:
    """One column of the version matrix."""

    name: str
    pythons: tuple  # The first that is found is taken.
    tensorflow: str
    requirements: tuple
    # Installed after the others and alone: tf-keras asks for `tensorflow`, which `tensorflow-cpu`
    # provides under a name that pip does not know as the same.
    alone: tuple = ()


OLD_PINS = ("protobuf<3.21", "numpy<1.19", "h5py<3")
ENVIRONMENTS = {
    environment.name: environment
    for environment in (
        Environment("tf115", ("3.7",), "1.15.5", ("tensorflow==1.15.5", *OLD_PINS)),
        Environment("tf20", ("3.7",), "2.0.4", ("tensorflow==2.0.4", *OLD_PINS)),
        Environment("tf24", ("3.8",), "2.4.4", ("tensorflow==2.4.4",)),
        Environment("tf210", ("3.9", "3.10"), "2.10.1", ("tensorflow-cpu==2.10.1", "numpy<2")),
        Environment("tf215", ("3.11",), "2.15.1", ("tensorflow-cpu==2.15.1",)),
        Environment(
            "tf216", ("3.12",), "2.16.2", ("tensorflow-cpu==2.16.2",), ("tf-keras==2.16.0",)
        ),
        Environment(
            "tf221", ("3.13",), "2.21.0", ("tensorflow-cpu==2.21.0",), ("tf-keras==2.21.0",)
        ),
    )
}


def interpreter_candidates(version):
    """Yields paths that may be a Python of this version, the likeliest first."""
    name = f"python{version}"
    found = shutil.which(name)
    if found:
        yield found
    # Under pyenv the name on PATH is a shim, which runs only versions that are activated; the
    # interpreters themselves are in its folder of versions.
    roots = [os.environ.get("PYENV_ROOT"), os.path.expanduser("~/.pyenv")]
    for root in filter(None, roots):
        paths = glob.glob(os.path.join(root, "versions", f"{version}.*", "bin", name))
        yield from sorted(paths, key=lambda path: [int(n) for n in re.findall(r"\d+", path)])[::-1]


def find_interpreter(versions):
    """Returns the path of the first interpreter that really runs as one of the versions."""
    probe = "import ensurepip, sys, venv; print('%d.%d' % sys.version_info[:2])"
    for version in versions:
        for path in interpreter_candidates(version):
            try:
                answer = subprocess.run(
                    [path, "-c", probe],
                    capture_output=True,
                    text=True,
                    timeout=60,
                    check=False,
                    stdin=subprocess.DEVNULL,
                )
            except (OSError, subprocess.TimeoutExpired):
                continue
            if answer.returncode == 0 and answer.stdout.strip() == version:
                return path
    return None


def venv_python(folder):
    return folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def child_environment(**changes):
    """Returns this process's variables without those that lead to another environment's files."""
    variables = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__")
    }
    variables.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    variables.update(changes)
    return variables


def build_distributions(session, folder):
    """Builds sdist and wheel, the wheel from the sdist; returns both paths."""
    shutil.rmtree(folder, ignore_errors=True)
    session.run("python", "-m", "build", "--outdir", str(folder), str(ROOT), silent=True)
    (sdist,) = folder.glob("*.tar.gz")
    (wheel,) = folder.glob("*.whl")
    return sdist, wheel


def read_junit(path):
    """Returns pytest's counts and the reasons of its skips from the file that it wrote."""
    result = {"passed": 0, "failed": 0, "skipped": 0, "skip_reasons": {}}
    # The cases are counted, not the totals taken: those of newer pytests count subtests too.
    for case in xml.etree.ElementTree.parse(path).iter("testcase"):
        skip = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            result["failed"] += 1
        elif skip is not None:
            result["skipped"] += 1
            reason = skip.get("message") or "no reason"
            result["skip_reasons"][reason] = result["skip_reasons"].get(reason, 0) + 1
        else:
            result["passed"] += 1
    return result


def run_suite(environment, wheel, options):
    """Makes one environment, installs the wheel, and runs the suite there; returns the outcome."""
    result = {
        "environment": environment.name,
        "python": "/".join(environment.pythons),
        "tensorflow": environment.tensorflow,
        "status": "failed",
        "passed": 0,
        "failed": 0,
        "skipped": 0,
        "install_seconds": 0.0,
        "seconds": 0.0,
        "detail": "",
    }
    interpreter = find_interpreter(environment.pythons)
    if interpreter is None:
        result["status"] = "failed" if ON_CI else "skipped"
        result["detail"] = f"no Python {' or '.join(environment.pythons)} found"
        return result

    folder = WORK / "environments" / environment.name
    python = venv_python(folder)
    junit = RESULTS / f"{environment.name}.xml"
    junit.unlink(missing_ok=True)
    log_path = RESULTS / f"{environment.name}.log"
    start = time.monotonic()
    with open(log_path, "w", encoding="utf-8") as log:

        def call(*command, limit=SUITE_LIMIT_SECONDS, **variables):
            log.write("$ " + " ".join(map(str, command)) + "\n")
            log.flush()
            return subprocess.run(
                [str(part) for part in command],
                cwd=ROOT,
                env=child_environment(**variables),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                timeout=limit,
                check=False,
            ).returncode

        try:
            pip = (python, "-m", "pip", "install", "-q", "--disable-pip-version-check")
            if options.reuse and python.exists():
                steps = [(*pip, "--force-reinstall", "--no-deps", wheel)]
            else:
                shutil.rmtree(folder, ignore_errors=True)
                steps = [
                    (interpreter, "-m", "venv", folder),
                    (*pip, f"{wheel}[test]", *environment.requirements),
                ]
                if environment.alone:
                    steps.append((*pip, "--no-deps", *environment.alone))
            for step in steps:
                if call(*step) != 0:
                    result["detail"] = "installation failed"
                    return result
            result.update(installed_versions(python))
            if result["tensorflow"] != environment.tensorflow:
                result["detail"] = f"wanted TensorFlow {environment.tensorflow}"
                return result
            result["install_seconds"] = round(time.monotonic() - start, 1)

            # The script `pytest`, unlike `python -m pytest`, leaves the clone off sys.path: what
            # is tested is what the wheel holds. tests/conftest.py makes sure of it.
            start = time.monotonic()
            code = call(
                python.parent / "pytest",
                "-rfEs",
                "-p",
                "no:cacheprovider",
                f"--junitxml={junit}",
                *options.pytest_arguments,
                TF_LOSSSCALE_TEST_INSTALLED="1",
            )
            result["seconds"] = round(time.monotonic() - start, 1)
            if junit.exists():
                result.update(read_junit(junit))
            if code == 0 and result["failed"] == 0 and result["passed"] > 0:
                result["status"] = "passed"
            else:
                result["detail"] = f"pytest ended with code {code}"
        except subprocess.TimeoutExpired as error:
            result["detail"] = f"ended after {error.timeout:.0f} seconds"
        except Exception as error:  # One broken environment must not hide the others' results.
            result["detail"] = f"{type(error).__name__}: {error}"
    if ON_CI:
        # Seven TensorFlows take several gigabytes, and nobody comes back to them there.
        shutil.rmtree(folder, ignore_errors=True)
    return result


def installed_versions(python):
    """Asks an environment's interpreter for its own version and TensorFlow's."""
    probe = (
        "import json, platform, tensorflow as tf; "
        "print(json.dumps({'python': platform.python_version(), 'tensorflow': tf.__version__}))"
    )
    output = subprocess.run(
        [str(python), "-c", probe],
        env=child_environment(TF_CPP_MIN_LOG_LEVEL="3"),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    ).stdout
    return json.loads(output.strip().splitlines()[-1])


def describe(result):
    """Returns what a person wants to read of one environment's log when it is done."""
    log_path = RESULTS / f"{result['environment']}.log"
    lines = log_path.read_text(encoding="utf-8").splitlines() if log_path.exists() else []
    title = f"{result['environment']}: {result['status']} {result['detail']}".rstrip()
    shown = lines[-1:] if result["status"] == "passed" else lines[-200:]
    return "\n".join([title, *("    " + line for line in shown)])


def summary_table(results):
    """Returns the outcome of all environments as a Markdown table."""
    rows = [
        ("Environment", "Python", "TensorFlow", "Result", "Passed", "Failed", "Skipped", "Seconds")
    ]
    for result in results:
        rows.append(
            (
                result["environment"],
                result["python"],
                result["tensorflow"],
                result["status"],
                str(result["passed"]),
                str(result["failed"]),
                str(result["skipped"]),
                f"{result['seconds']:.0f} (+{result['install_seconds']:.0f} to install)",
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths)) + " |"
        for row in rows
    ]
    lines.insert(1, "| " + " | ".join("-" * width for width in widths) + " |")
    return "\n".join(lines)


def parse_matrix_arguments(posargs):
    parser = argparse.ArgumentParser(prog="nox -s matrix --", allow_abbrev=False)
    parser.add_argument(
        "--jobs",
        type=int,
        default=min(2, os.cpu_count() or 1),
        help="how many environments to install and test side by side",
    )
    parser.add_argument("--only", default="", help="names of environments, separated by commas")
    parser.add_argument("--reuse", action="store_true", help="keep environments that exist")
    options, options.pytest_arguments = parser.parse_known_args(posargs)
    options.names = options.only.split(",") if options.only else list(ENVIRONMENTS)
    unknown = sorted(set(options.names) - set(ENVIRONMENTS))
    if unknown:
        parser.error(f"no such environment: {', '.join(unknown)}")
    return options


def run_environments(session, options):
    """Runs the suite in the named environments, `--jobs` at a time, and writes the results."""
    session.install("-q", "build")
    _, wheel = build_distributions(session, WORK / "environments" / "dist")
    RESULTS.mkdir(parents=True, exist_ok=True)
    results = {}
    # One environment installs (disk and network) while another tests (processor).
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        # The newest have the most to test, and what starts last ends last.
        futures = [
            pool.submit(run_suite, ENVIRONMENTS[name], wheel, options)
            for name in reversed(options.names)
        ]
        for future in concurrent.futures.as_completed(futures):
            result = future.result()
            results[result["environment"]] = result
            print(describe(result), flush=True)
    return [results[name] for name in options.names]


@nox.session
def matrix(session):
    """Run the whole suite on every TensorFlow of the matrix and print a table."""
    options = parse_matrix_arguments(session.posargs)
    results = run_environments(session, options)
    path = RESULTS / "matrix.json"
    path.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    print(f"\n{summary_table(results)}\n\nWritten to {path.relative_to(ROOT)}.", flush=True)
    totals = {
        key: sum(result[key] for result in results) for key in ("passed", "failed", "skipped")
    }
    print("\n{passed} passed, {failed} failed, {skipped} skipped".format(**totals), flush=True)
    bad = [result["environment"] for result in results if result["status"] == "failed"]
    if bad:
        session.error(f"failed: {', '.join(bad)}; logs in {RESULTS.relative_to(ROOT)}")


@nox.session
@nox.parametrize("environment", list(ENVIRONMENTS), ids=list(ENVIRONMENTS))
def tests(session, environment):
    """Run the suite on one TensorFlow of the matrix."""
    options = parse_matrix_arguments([*session.posargs, "--only", environment])
    (result,) = run_environments(session, options)
    if result["status"] == "failed":
        session.error(result["detail"] or "failed")
    if result["status"] == "skipped":
        session.skip(result["detail"])


@nox.session
def lint(session):
    """Check style and formatting."""
    session.install("-q", "-e", ".[dev]")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


@nox.session
def types(session):
    """Check the package's types."""
    session.install("-q", "-e", ".[dev]")
    session.run("mypy")


@nox.session
def docs(session):
    """Execute every code block of the documents."""
    session.install("-q", "-e", ".[tensorflow-cpu,test]")
    session.run("python", "-m", "pytest", "tests/docs_test.py", "-rs", *session.posargs)


@nox.session
def build(session):
    """Build sdist and wheel, and try the wheel without and with TensorFlow."""
    session.install("-q", "build")
    _, wheel = build_distributions(session, WORK / "dist")
    folder = pathlib.Path(session.create_tmp()).resolve() / "empty"
    shutil.rmtree(folder, ignore_errors=True)
    session.run("python", "-m", "venv", str(folder))
    python = venv_python(folder)
    variables = child_environment()
    # What nox exports leads to its own environment and to the clone.
    outside = {"cwd": folder, "env": variables, "stdin": subprocess.DEVNULL, "text": True}
    pip = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check"]

    subprocess.run([*pip, wheel], check=True, **outside)
    bare = subprocess.run(
        [python, "-c", "import tf_lossscale_compat"], check=False, capture_output=True, **outside
    )
    last = (bare.stderr.strip().splitlines() or [""])[-1]
    if bare.returncode == 0 or not re.match(r"(\w+\.)*(ImportError|ModuleNotFoundError): ", last):
        session.error(f"without TensorFlow the import should raise ImportError, got: {last!r}")
    for extra in ("[tensorflow]", "[tensorflow-cpu]"):
        if extra not in bare.stderr:
            session.error(f"without TensorFlow the error should name the extra {extra}: {last!r}")
    session.log(f"without TensorFlow: {last}")

    subprocess.run([*pip, f"{wheel}[tensorflow-cpu]"], check=True, **outside)
    code = (
        "import os, tf_lossscale_compat as package; "
        "assert os.path.exists(os.path.join(os.path.dirname(package.__file__), 'py.typed')); "
        "print(package.__version__, package.__file__)"
    )
    subprocess.run([python, "-c", code], check=True, **outside)
    for command in ([python.parent / "tf-lossscale"], [python, "-m", "tf_lossscale_compat"]):
        output = subprocess.run(
            [*command, "--help"], check=True, stdout=subprocess.PIPE, **outside
        ).stdout
        if "demo" not in output:
            session.error(f"{command[-1]} --help does not name the demo:\n{output}")
    session.log("with the extra [tensorflow-cpu]: imports, and tf-lossscale --help works")
    shutil.rmtree(folder, ignore_errors=True)


@nox.session
def demo(session):
    """Run the demo with few steps and look at what it writes."""
    session.install("-q", "-e", ".[tensorflow-cpu,demo]")
    folder = pathlib.Path(session.create_tmp()).resolve()
    report, plot = folder / "demo.json", folder / "demo.png"
    for path in (report, plot):
        path.unlink(missing_ok=True)
    session.run("tf-lossscale", "demo", "--steps", "20", "--json", str(report), "--plot", str(plot))
    wanted = {
        "name",
        "accuracy",
        "loss",
        "zero_gradient_share",
        "final_scale",
        "skipped_steps",
        "seconds",
    }
    runs = json.loads(report.read_text(encoding="utf-8"))["runs"]
    if len(runs) < 6:
        session.error(f"the demo should report at least six runs, not {len(runs)}")
    for run in runs:
        if not wanted <= set(run):
            session.error(f"run {run.get('name')!r} lacks {sorted(wanted - set(run))}")
    if not plot.read_bytes().startswith(b"\x89PNG"):
        session.error("the demo's plot is no PNG file")


if __name__ == "__main__":
    sys.exit("Run this through nox: nox -s matrix")
