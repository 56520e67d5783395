"""What a rewrite is: a namespace of TensorFlow, its members, and where they are here."""

from typing import Callable, NamedTuple, Optional, Tuple

# TensorFlow repeats its whole API under these, so `tf.compat.v1.train` is `tf.train`.
_REPEATED = (("compat", "v1"), ("compat", "v2"), ("_api", "v1"), ("_api", "v2"))
ROOTS = ("tensorflow", "tensorflow_core", "keras", "tf_keras")


def canonical(qualified_name):
    """Returns a qualified name as `rewrites` know it: without `compat.v1` and its like.

    Args:
      qualified_name: str, dotted, from the name of a package on.
    """
    parts = qualified_name.split(".")
    if parts[0] == "tensorflow_core":  # What 1.15 and 2.0 had their API in.
        parts[0] = "tensorflow"
    if parts[1:2] == ["api"] and parts[0] in ("keras", "tf_keras"):
        # Below `_v1` and `_v2` it is what `tf.keras` was up to 2.15, as `tf_keras` is today.
        if parts[2:4] in (["_v1", "keras"], ["_v2", "keras"]):
            parts[:4] = ["tf_keras"]
        else:
            del parts[1]
    while parts[0] == "tensorflow" and tuple(parts[1:3]) in _REPEATED:
        del parts[1:3]
    return ".".join(parts)


class Namespace(NamedTuple):
    """One namespace that moves.

    Attributes:
      old: str, its canonical dotted name in TensorFlow.
      new: str, its dotted name here.
      members: names that are there in both.
      whole: whether it has no other public members, so that the namespace itself may be replaced
        wherever it is mentioned.
      module: str, what to import so that `new` can be said.
      is_meant: None, or a function of a `Usage` that returns whether the file uses the members as
        in this namespace (True), as in another API of the same name (False), or both (None).
    """

    old: str
    new: str
    members: Tuple[str, ...]
    whole: bool = False
    module: str = "tf_lossscale_compat"
    is_meant: Optional[Callable] = None

    @property
    def family(self):
        return family(self.new)


def family(name):
    """Returns which classes go together, as a wrapper and the checks for it: "keras" or not.

    Args:
      name: str, a dotted name of this package.
    """
    part = name.split(".")[1]
    return part if part in ("contrib", "keras") else "train"


class Call(NamedTuple):
    """A call of a namespace's member.

    Attributes:
      keywords: the names of its keyword arguments.
      values: the source text of its arguments.
      positional: how many of them, from the first on, are positional.
    """

    keywords: Tuple[str, ...]
    values: Tuple[str, ...]
    positional: int


class Usage(NamedTuple):
    """How a file uses a namespace.

    Attributes:
      calls: list of `Call`, those of the namespace's members.
      attributes: set of all attribute names in the file, of whatever object.
      methods: set of those that are called. An attribute may be any object's, such as a flag's.
    """

    calls: list
    attributes: set
    methods: set
