"""Setup of all tests: quiet TensorFlow, the right copy of the package."""

import gc
import importlib.util
import os
import pathlib
import platform
import sys

import pytest

# Set before any test imports TensorFlow.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

ROOT = pathlib.Path(__file__).resolve().parent.parent
# For `from tests import ...`. At the end: where a wheel is installed, it goes before the clone.
sys.path.append(str(ROOT))


def package_folder():
    """Returns the folder of the package under test, found without importing it."""
    spec = importlib.util.find_spec("tf_lossscale_compat")
    return None if spec is None else pathlib.Path(spec.origin).resolve().parent


def tensorflow_version():
    """Returns the installed TensorFlow's version without the seconds that its import takes."""
    try:
        from importlib import metadata
    except ImportError:  # Python 3.7
        import importlib_metadata as metadata
    for name in ("tensorflow", "tensorflow-cpu", "tf-nightly", "tf-nightly-cpu"):
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            pass
    return "unknown"


@pytest.hookimpl(tryfirst=True)  # Before that of pytest-xdist.
def pytest_cmdline_main(config):
    """Sets the options of pytest-xdist that the command line does not, where it is installed."""
    options = config.option
    if not hasattr(options, "numprocesses") or hasattr(config, "workerinput"):
        return
    if options.numprocesses is None:
        options.numprocesses = "auto"
    if options.dist == "no":
        options.dist = "loadfile"  # What a file's tests share is made once in each process.
    if options.maxprocesses is None:
        options.maxprocesses = 4
    if options.maxworkerrestart is None:
        # A worker that took the place of one that crashed would crash at the same test again.
        options.maxworkerrestart = 0


def pytest_configure(config):
    if os.environ.get("TF_LOSSSCALE_TEST_INSTALLED") != "1":
        return
    folder = package_folder()
    if folder is None or folder == ROOT / "tf_lossscale_compat":
        raise pytest.UsageError(
            f"TF_LOSSSCALE_TEST_INSTALLED is set, but the package under test is at {folder}:"
            " install the wheel and run the script `pytest` instead of `python -m pytest`"
        )


@pytest.fixture
def kept_kernels(monkeypatch):
    """Keeps the kernels of eager operations and functions from one test to the next.

    For tests that draw no random numbers from TensorFlow in eager mode. tf.test.TestCase sets the
    global seed before each test, and with that, in eager mode, throws all kernels away. To make
    those of a function again takes longer than most tests.
    """
    from tensorflow.python.eager import context

    monkeypatch.setattr(context, "set_global_seed", lambda seed: None)


def pytest_report_header(config):
    return (
        f"Python {platform.python_version()}, TensorFlow {tensorflow_version()},"
        f" tf_lossscale_compat from {package_folder()}"
    )


def pytest_collection_modifyitems(items):
    # Every tf.test.TestCase inherits this method, which is no test and skips itself.
    items[:] = [item for item in items if item.name != "test_session"]


def pytest_collection_finish(session):
    if "tensorflow" in sys.modules and tensorflow_version().startswith("2.16."):
        # There autograph rewrites tf_keras line by line, which later versions leave alone like any
        # Keras, and which takes half the time of its tests. Examples still run with it.
        from tensorflow.python.autograph.core import config

        config.CONVERSION_RULES = (config.DoNotConvert("tf_keras"), *config.CONVERSION_RULES)
    # What is imported by now stays. Looking through it for garbage takes half a second, which every
    # `clear_session` of Keras did.
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config):
    """For `-n auto`: one file is not worth the start of workers, each with its TensorFlow."""
    if len(config.args) == 1 and ".py" in config.args[0]:
        return 0
    return None  # As many as pytest-xdist takes by itself.
