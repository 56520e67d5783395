"""What all tests share: quiet TensorFlow, repeatable hypothesis, the right copy of the package."""

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

try:
    import hypothesis
except ImportError:  # Tests that need it skip themselves.
    pass
else:
    # No deadline: the first call of a function traces it. The same examples in every run: a
    # failure seen on one TensorFlow can then be looked at on another.
    hypothesis.settings.register_profile(
        "suite", deadline=None, derandomize=True, database=None, print_blob=False
    )
    hypothesis.settings.load_profile("suite")


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
    for name in ("tensorflow", "tensorflow-cpu"):
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            pass
    return "unknown"


def pytest_configure(config):
    if os.environ.get("TF_LOSSSCALE_TEST_INSTALLED") != "1":
        return
    folder = package_folder()
    if folder is None or folder == ROOT / "tf_lossscale_compat":
        raise pytest.UsageError(
            f"TF_LOSSSCALE_TEST_INSTALLED is set, but the package under test is at {folder}:"
            " install the wheel and run the script `pytest` instead of `python -m pytest`"
        )


def pytest_report_header(config):
    return (
        f"Python {platform.python_version()}, TensorFlow {tensorflow_version()},"
        f" tf_lossscale_compat from {package_folder()}"
    )


def pytest_collection_modifyitems(config, items):
    # Every tf.test.TestCase inherits this method, which is no test and skips itself.
    items[:] = [item for item in items if item.name != "test_session"]
