"""Opt-in: makes `tf.contrib.mixed_precision` importable on TensorFlow 2."""

import importlib.abc
import importlib.machinery
import importlib.util
import sys

from tf_lossscale_compat._core import _tf
from tf_lossscale_compat.contrib import mixed_precision

_ROOT = "tensorflow.contrib"
_MIXED_PRECISION = _ROOT + ".mixed_precision"
_PYTHON = _MIXED_PRECISION + ".python"

# The modules of TensorFlow r1.15, and the public names in each of them.
_NAMES = {
    _ROOT: (),
    _MIXED_PRECISION: tuple(mixed_precision.__all__),
    _PYTHON: (),
    _PYTHON + ".loss_scale_manager": tuple(
        name for name in mixed_precision.__all__ if name.endswith("Manager")
    ),
    _PYTHON + ".loss_scale_optimizer": ("LossScaleOptimizer",),
}

# Members of contrib that programs use together with tf.layers, or should replace by Keras 2 APIs.
_KERAS_MEMBERS = ("cudnn_rnn", "keras", "layers", "rnn", "seq2seq", "slim")
KERAS_2_HINT = (
    "In TensorFlow 2.16 and later, tf.layers, tf.nn.rnn_cell and tf.compat.v1.keras need Keras 2: "
    "pip install --no-deps tf_keras with the version number of TensorFlow, and set the environment "
    "variable TF_USE_LEGACY_KERAS=1 before Python starts."
)


def _missing_message(name):
    """Returns the error message for a name of contrib that is not available."""
    from tf_lossscale_compat import _contrib_successors

    name = name.replace("tensorflow", "tf", 1)
    there = ", ".join(sorted(mixed_precision.__all__))
    message = (
        f"{name} is not available: TensorFlow 2 has no tf.contrib, and tf_lossscale_compat."
        f"install_contrib() brings back only tf.contrib.mixed_precision, with {there}."
    )
    successor = _contrib_successors.successor(name)
    if successor:
        message += f" For {name} use {successor}."
    if name.split(".")[2] in _KERAS_MEMBERS and not hasattr(_tf.tf1.layers, "dense"):
        message += f" {KERAS_2_HINT}"
    return message


class _ContribImporter(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds and fills the modules of `_NAMES`; raises an error for other modules of contrib."""

    def __init__(self):
        self.modules: dict = {}
        for fullname in _NAMES:  # Parents come first.
            module = importlib.util.module_from_spec(self.find_spec(fullname))
            self.exec_module(module)
            parent, _, name = fullname.rpartition(".")
            if parent in self.modules:
                setattr(self.modules[parent], name, module)
            self.modules[fullname] = module
        self.apis = _tf.api_modules()
        for api in self.apis:
            api.contrib = self.modules[_ROOT]
        sys.modules.update(self.modules)
        sys.meta_path.append(self)

    def remove(self):
        """Removes the added modules, unless other code has replaced them."""
        for api in self.apis:
            if getattr(api, "contrib", None) is self.modules[_ROOT]:
                del api.contrib
        for fullname, module in self.modules.items():
            if sys.modules.get(fullname) is module:
                del sys.modules[fullname]
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(self, fullname, path=None, target=None):
        del path, target
        if fullname in _NAMES:
            # All are packages, without a folder: Python looks for a missing name as a module, and
            # so calls this, only in a package.
            return importlib.machinery.ModuleSpec(fullname, self, origin=__name__, is_package=True)
        if fullname.startswith(_ROOT + "."):
            # Without `name=fullname`: `from tensorflow.contrib import slim` hides an error with
            # that name, and raises one that does not help.
            raise ModuleNotFoundError(_missing_message(fullname))
        return None

    def exec_module(self, module):
        fullname = module.__name__
        children = [
            name.rpartition(".")[2] for name in _NAMES if name.rpartition(".")[0] == fullname
        ]

        def __getattr__(name):  # noqa: N807  Python calls it for a name that the module lacks.
            raise AttributeError(_missing_message(f"{fullname}.{name}"))

        module.__doc__ = f"`{fullname}` of TensorFlow r1.15, as far as tf_lossscale_compat has it."
        module.__all__ = [*_NAMES[fullname], *children]
        module.__getattr__ = __getattr__
        for name in _NAMES[fullname]:
            setattr(module, name, getattr(mixed_precision, name))


_installed = None


def install_contrib() -> bool:
    """Makes `tf.contrib.mixed_precision` importable, for programs that cannot be changed.

    Afterwards all of these work on TensorFlow 2, in any module of the process:
    `tf.contrib.mixed_precision.X` after `import tensorflow as tf` or
    `import tensorflow.compat.v1 as tf`, `from tensorflow.contrib import mixed_precision`,
    `from tensorflow.contrib.mixed_precision import X`, and imports from
    `tensorflow.contrib.mixed_precision.python.loss_scale_manager` and `.loss_scale_optimizer`.
    For any other name of contrib, an `AttributeError` or, for imports, a `ModuleNotFoundError` says
    which names are available and where to look instead. Nothing else of TensorFlow is changed: on
    TensorFlow 2.16 and later `tf.layers` needs `tf_keras`, and `TF_USE_LEGACY_KERAS=1` set before
    the start. Further calls do nothing.

    Returns:
      Whether this package's contrib is installed: False if there is another `tf.contrib`, as on
      TensorFlow 1.15, which is not changed.
    """
    global _installed  # noqa: PLW0603  There is one TensorFlow in a process.
    if _installed is None:
        if _tf.has_contrib():
            return False
        _installed = _ContribImporter()
    return True


def uninstall_contrib() -> bool:
    """Undoes `install_contrib`; names that were imported in the meantime still work.

    Returns:
      Whether this package's contrib was installed.
    """
    global _installed  # noqa: PLW0603
    if _installed is None:
        return False
    _installed.remove()
    _installed = None
    return True


for _public in (install_contrib, uninstall_contrib):
    _public.__module__ = "tf_lossscale_compat"  # Where users find it.
