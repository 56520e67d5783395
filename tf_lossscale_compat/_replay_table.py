"""What a replay found: rows of magnitudes and counts, and the table that is printed."""

from __future__ import annotations

import collections.abc
from typing import (
    TYPE_CHECKING,
    Any,
    Iterable,
    NamedTuple,
    Sequence,
    overload,
)

import numpy as np

# Of longer tables only what is around the marked row is printed, and the other bad rows.
_ROWS_SHOWN = 100
_ROWS_AROUND = 30


class Row(NamedTuple):
    """One tensor of a replay.

    Attributes:
      kind: str, `'variable'` (a value that was not finite before anything ran), `'forward'`,
        `'backward'` or `'gradient'`.
      name: str, of the layer, operation or variable.
      dtype: str.
      shape: tuple of ints.
      abs_min: float, the smallest magnitude of the finite elements that are not zero; None if there
        are none.
      abs_max: float, the largest magnitude of the finite elements; None if there are none.
      nan: int, how many elements are NaN.
      posinf: int, how many are +inf.
      neginf: int, how many are -inf.
      zeros: int, how many are zero.
      subnormals: int, how many float16 elements are closer to zero than 2**-14, and so have lost
        digits or are about to; 0 for other dtypes.
      size: int, the number of elements. A complex number counts as two.
    """

    kind: str
    name: str
    dtype: str
    shape: tuple[int, ...]
    abs_min: float | None
    abs_max: float | None
    nan: int
    posinf: int
    neginf: int
    zeros: int
    subnormals: int
    size: int

    @property
    def nonfinite(self) -> int:
        """How many elements are NaN or infinite, an int."""
        return self.nan + self.posinf + self.neginf

    def what(self) -> str:
        """The elements that are not finite in words, a str such as `'3 NaN, 1 +inf of 64'`."""
        counts = [(self.nan, "NaN"), (self.posinf, "+inf"), (self.neginf, "-inf")]
        return ", ".join(f"{count} {of}" for count, of in counts if count) + f" of {self.size}"


def measure(value):
    """Magnitudes, counts and shape of a NumPy array of floats: a float64 vector for `row_of`."""
    shape, small = value.shape, 2.0**-14 if value.dtype == np.float16 else 0.0
    if value.dtype.itemsize <= 2:
        value = value.astype(np.float32)  # Exact, and many times faster.
    elif np.iscomplexobj(value):
        value = np.stack([value.real, value.imag])
    magnitude = np.abs(value)
    finite = magnitude[np.isfinite(magnitude)]
    nonzero = finite[finite > 0]
    numbers = [
        nonzero.min() if nonzero.size else np.nan,
        finite.max() if finite.size else np.nan,
        np.isnan(value).sum(),
        np.isposinf(value).sum(),
        np.isneginf(value).sum(),
        finite.size - nonzero.size,
        (nonzero < small).sum(),
        value.size,
    ]
    return np.array([*numbers, *shape], np.float64)


def row_of(kind, name, dtype, measured):
    """The row of what `measure` returned."""
    smallest, largest, *counts = measured
    nan, posinf, neginf, zeros, subnormals, size, *shape = map(int, counts)
    return Row(
        kind,
        name,
        dtype,
        tuple(shape),
        None if np.isnan(smallest) else float(smallest),
        None if np.isnan(largest) else float(largest),
        nan,
        posinf,
        neginf,
        zeros,
        subnormals,
        size,
    )


def number(value):
    """A loss scale or magnitude in few characters."""
    if value is None:
        return "-"
    return str(int(value)) if value == int(value) and abs(value) < 2**53 else f"{value:.6g}"


if TYPE_CHECKING:
    _Rows = Sequence[Row]
else:
    _Rows = collections.abc.Sequence


class Replay(_Rows):
    """The rows of a replay, in the order of execution: a sequence of `Row`.

    Variables that held non-finite values come first, then the forward pass, the backward pass, and
    last the gradient of each variable. `str()` makes the table that `replay` prints.

    Attributes:
      first_nonfinite: the `Row` where what spoiled the step came up first, or None if loss and
        gradients are finite. Infinite values that come to nothing, such as those of a mask before
        a softmax, are counted in their rows and not meant.
      cause: str or None. `'forward'`: no loss scale helps. `'backward'`: the loss is finite and the
        gradients are not. None: both are finite.
      loss_scale: float, that of the replay.
      finite_scale: float, the largest of loss_scale / 2, / 4, … down to 1 with which loss and
        gradients came out finite, each tried on this batch; None if none did or none was tried.
      notes: list of str, what was not looked into.
    """

    def __init__(
        self,
        rows: Iterable[Row],
        first_nonfinite: Row | None,
        cause: str | None,
        loss_scale: float,
        finite_scale: float | None,
        notes: list[str],
        explained: str,
    ) -> None:
        self._rows: list[Row] = list(rows)
        self.first_nonfinite = first_nonfinite
        self.cause = cause
        self.loss_scale = loss_scale
        self.finite_scale = finite_scale
        self.notes = notes
        self._explained = explained

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> Row: ...

    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...

    def __getitem__(self, index: Any) -> Any:
        return self._rows[index]

    def __repr__(self) -> str:
        first = self.first_nonfinite
        found = "all finite" if first is None else f"first non-finite: {first.kind} {first.name}"
        return f"<Replay of {len(self)} tensors, loss scale {number(self.loss_scale)}, {found}>"

    def summary(self) -> str:
        """What was found, in a sentence or two: a str of one line."""
        return self._explained

    def _shown(self):
        """The indices of the rows that a table of bounded length has."""
        if len(self) <= _ROWS_SHOWN:
            return list(range(len(self)))
        marked = 0
        for i, row in enumerate(self):
            if row is self.first_nonfinite:
                marked = i
        near = set(range(marked - _ROWS_AROUND, marked + _ROWS_AROUND + 1))
        bad = [i for i, row in enumerate(self) if row.nonfinite and i not in near]
        near.update(bad[: _ROWS_SHOWN - 2 * _ROWS_AROUND], {0, len(self) - 1})
        return sorted(i for i in near if 0 <= i < len(self))

    def table(self, every_row: bool = True) -> str:
        """The table, a str of several lines; the first non-finite row is marked by an arrow.

        Args:
          every_row: bool; False leaves out rows that are far from the marked one if there are many,
            as `str()` does.
        """
        lines = [
            ["kind", "name", "dtype", "shape", "abs min", "abs max"]
            + ["NaN", "+inf", "-inf", "zeros", "subnormal", "size"]
        ]
        shown = list(range(len(self))) if every_row else self._shown()
        for i in shown:
            row = self[i]
            shape = "x".join(map(str, row.shape)) or "scalar"
            sizes = [
                f"{'-' if x is None else format(x, '.3e')}" for x in (row.abs_min, row.abs_max)
            ]
            counts = [row.nan, row.posinf, row.neginf, row.zeros, row.subnormals, row.size]
            name = row.name if len(row.name) <= 60 else "…" + row.name[-59:]
            lines.append([row.kind, name, row.dtype, shape, *sizes, *map(str, counts)])
        widths = [max(map(len, column)) for column in zip(*lines)]
        text, before = [], -1
        for i, line in zip([-1] + shown, lines):
            if i > before + 1:
                text.append(f"   … {i - before - 1} rows left out")
            before = max(i, before)
            arrow = "-> " if i >= 0 and self[i] is self.first_nonfinite else "   "
            cells = [
                cell.ljust(width) if column < 4 else cell.rjust(width)
                for column, (cell, width) in enumerate(zip(line, widths))
            ]
            text.append((arrow + "  ".join(cells)).rstrip())
        return "\n".join(text)

    def __str__(self) -> str:
        return "\n".join([self.table(every_row=False), *self.notes, self.summary()])
