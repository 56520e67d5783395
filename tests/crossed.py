"""Crossed parameters of tests: each value runs by default, the other combinations are slow.

`parameters` and `product` are absl's, but rows are marked slow whose values all stand in others.
"""

import itertools

import pytest
from absl.testing import parameterized


def spare(rows):
    """Returns the rows, dicts or tuples, that are not needed for each value to be in one."""
    left = [
        (row, set(map(repr, row.items() if isinstance(row, dict) else enumerate(row))))
        for row in rows
    ]
    found = set()

    def gain(entry):
        new = len(entry[1] - found)
        # Rows under XLA last, as some skip themselves: what else they have then has another row.
        return new > 0, not any("'jit'" in value for value in entry[1]), new

    while left:
        best = max(left, key=gain)  # The first of several.
        if best[1] <= found:
            break
        left.remove(best)
        found |= best[1]
    return [row for row, _ in left]


def groups(*groups):
    """As `parameters` of all rows of some lists, of which each is looked at by itself."""

    def decorate(test):
        slow = {id(row) for rows in groups for row in spare(rows)}
        rows = list(itertools.chain(*groups))
        return [
            pytest.mark.slow(function) if id(row) in slow else function
            for row, function in zip(rows, parameterized.parameters(rows)(test))
        ]

    return decorate


def parameters(*rows):
    return groups(rows)


def product(**values):
    return groups([dict(zip(values, row)) for row in itertools.product(*values.values())])
