"""What a program did, and the comparison of two such histories, bit for bit."""

import numpy as np
import tensorflow as tf

# In ulps of an array's largest entry. Grappler and XLA see two graphs that differ by a few nodes,
# and fuse or fold arithmetic around these differently; everywhere else the bits are the same.
APART = {"jit": 16, "function": 4}


def kind(value):
    """A word for what a method returned."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return repr(value)
    if isinstance(value, tf.Variable):
        return f"Variable {value.dtype.base_dtype.name} {'handle' in dir(value)}"
    if isinstance(value, tf.IndexedSlices):
        return f"IndexedSlices {value.dtype.name} {value.dense_shape is not None}"
    if isinstance(value, tf.Tensor):
        return f"Tensor {value.dtype.base_dtype.name}"
    if isinstance(value, tf.Operation):
        return "Operation"
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
        return type(one) is type(other) and (one == other or (one != one and other != other))
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    if one.dtype.kind != "f":
        return bool(np.all(one == other))
    nan = np.isnan(one) & np.isnan(other)
    if ulps:
        largest = max(np.abs(each[np.isfinite(each)]).max(initial=0) for each in (one, other))
        if one.dtype == np.float64:  # Of a loss in float32.
            largest = np.float32(largest)
        with np.errstate(all="ignore"):
            near = np.abs(one - other) <= ulps * np.spacing(largest)
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
    def theme(self):
        return THEMES.get(self.key, "state")

    @property
    def signature(self):
        """What finds of one kind have in common: where, in which action, and what differed."""
        # Of an array the name without numbers: v1/Adam:0 and v0/Adam:0 are one kind.
        where = self.program["family"], self.program["place"]
        key = self.key if self.key in THEMES else "state"
        if key == "error":
            key += f" {self.original}/{self.package}"
        # A train op is built by the first action that needs it.
        action = "step" if key == "operations" and self.action[0] in STEPS else self.action[0]
        return (*where, action, key)

    def __str__(self):
        path, *values = narrowed(self.original, self.package)
        sides = [f"{short(value)} {text}" for value, text in zip(values, self.messages)]
        return (
            f"action {self.index} {self.action}: {self.key}{path}\n"
            f"    original: {sides[0]}\n    package:  {sides[1]}"
        )


STEPS = ("step", "many", "branching", "fetch", "finalize", "both", "threads", "retrace", "cross")
# What a key of an observation is about; all that is not named here is a value of some state.
THEMES = {"value": "numbers", "values": "numbers"}
for each in ("error", "operations", "names", "train_op", "returned", "grad_names", "name", "slots"):
    THEMES[each] = each
THEMES.update(variables="variables", config="config", kept="kept")


def narrowed(one, other, path=""):
    """The first place in which two nested structures differ, and what is there in each."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in {**one, **other}:
            pair = one.get(key, "not there"), other.get(key, "not there")
            if not same(*pair):
                return narrowed(*pair, path=f"{path}/{key}")
    return path, one, other


def short(value):
    """A value as text, not too long."""
    text = " ".join(repr(value).split())
    return text if len(text) < 400 else text[:400] + " …"


def differences(program, original, package):
    """Returns every `Difference` of two histories, lists of (action, {key: value}), in order.

    What follows from a difference is left out: all that comes after an error on one side alone;
    the numbers after a number that differed; random numbers after the operations differed, which
    seed them.
    """
    found, noted = [], set()
    ulps = APART.get(program["place"], 0)
    for index, ((action, one), (_, other)) in enumerate(zip(original, package)):
        if one.get("error") != other.get("error"):
            pair = one.get("error"), other.get("error")
            found.append(Difference(program, index, action, "error", *pair))
            found[-1].messages = [each.get("message", "") for each in (one, other)]
            break
        for key in {**one, **other}:
            a, b = one.get(key, "not there"), other.get(key, "not there")
            if key == "message" or same(a, b, ulps):
                continue
            theme = THEMES.get(key, "state")
            numbers = theme in ("state", "numbers")
            if numbers and ("numbers" in noted or ("operations" in noted and program["noise"])):
                continue
            if "names" in noted and (theme == "names" or not (key in one and key in other)):
                continue
            noted.add("numbers" if numbers else theme)
            found.append(Difference(program, index, action, key, a, b))
    return found
