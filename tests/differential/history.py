"""What a program did, and the comparison of two such histories, bit for bit."""

import numpy as np
import tensorflow as tf

# In ulps. Grappler and XLA see two graphs that differ by a few nodes, and fuse or fold the
# arithmetic around these nodes differently; everywhere else the bits are the same.
APART = {"jit": 4}


def kind(value):
    """A word for what a method returned."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return repr(value)
    if isinstance(value, tf.Variable):
        return "Variable"
    for cls in (tf.Operation, tf.IndexedSlices, tf.Tensor):
        if isinstance(value, cls):
            return cls.__name__.replace("EagerTensor", "Tensor")
    if isinstance(value, (list, tuple)):
        return [kind(each) for each in value]
    return type(value).__name__


def same(one, other, ulps=0):
    """Returns if two observed values are equal; NaNs are, of whichever bits."""
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one) == list(other) and all(same(one[k], other[k], ulps) for k in one)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(same(a, b, ulps) for a, b in zip(one, other))
    if not (isinstance(one, (np.ndarray, np.generic)) and isinstance(other, type(one))):
        return type(one) is type(other) and one == other
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    if one.dtype.kind != "f":
        return bool(np.all(one == other))
    nan = np.isnan(one) & np.isnan(other)
    if ulps:
        with np.errstate(all="ignore"):
            near = np.abs(one - other) <= ulps * np.spacing(np.maximum(np.abs(one), np.abs(other)))
        return bool(np.all(nan | (one == other) | near))
    bits = [np.where(nan, np.zeros((), each.dtype), each).tobytes() for each in (one, other)]
    return bits[0] == bits[1]


class Difference:
    """One observation that two histories do not share."""

    def __init__(self, program, index, action, key, original, package):
        self.program, self.index, self.action, self.key = program, index, action, key
        self.original, self.package = original, package
        self.messages = ["", ""]

    @property
    def signature(self):
        """What finds of one kind have in common: where, in which action, and what differed."""
        # Of an array the name without numbers: v1/Adam:0 and v0/Adam:0 are one kind.
        where = self.program["family"], self.program["place"]
        key = self.key if self.key in LABELS else "state"
        if key == "error":
            key += f" {self.original}/{self.package}"
        return (*where, self.action[0], key)

    def __str__(self):
        sides = [f"{short(self.original)} {self.messages[0]}", f"{short(self.package)} {self.messages[1]}"]
        return (
            f"action {self.index} {self.action}: {self.key}\n"
            f"    original: {sides[0]}\n    package:  {sides[1]}"
        )


# Keys that stand for themselves in a signature; all others are names of state.
LABELS = {
    "error", "operations", "names", "train_op", "returned", "value", "values", "grad_names",
    "name", "slots", "variables", "config", "kept", "files",
}  # fmt: skip


def short(value):
    """A value as text, not too long."""
    text = " ".join(repr(value).split())
    return text if len(text) < 400 else text[:400] + " …"


def differences(program, original, package):
    """Returns every `Difference` of two histories, lists of (action, {key: value}), in order.

    After an action that ended in an error on one side alone, nothing is compared. Where the number
    of operations differed, what the seeds of later random operations change is left out.
    """
    found, shifted = [], False
    ulps = APART.get(program["place"], 0)
    for index, ((action, one), (_, other)) in enumerate(zip(original, package)):

        def note(key, a, b, index=index, action=action):
            found.append(Difference(program, index, action, key, a, b))

        if one.get("error") != other.get("error"):
            note("error", one.get("error"), other.get("error"))
            found[-1].messages = [each.get("message", "") for each in (one, other)]
            break
        named = one.get("names") == other.get("names")
        for key in {**one, **other}:
            if key == "message":
                continue
            if key == "operations":
                shifted = shifted or one.get(key) != other.get(key)
            elif shifted and program["noise"] and key not in LABELS - {"values"}:
                continue
            if (key in one and key in other) or (key in LABELS or named):
                a, b = one.get(key, "not there"), other.get(key, "not there")
                if not same(a, b, ulps):
                    note(key, a, b)
    return found
