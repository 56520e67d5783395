"""Crossed parameters of tests: as few rows as have each value once.

`parameters` and `product` are absl's, but rows are left out whose values all stand in others.
tests/differential draws some combinations.
"""

import itertools

from absl.testing import parameterized


def needed(rows):
    """Returns those of the rows, dicts or tuples, that it takes for each value to be in one."""
    left = [
        (row, set(map(repr, row.items() if isinstance(row, dict) else enumerate(row))))
        for row in rows
    ]
    found, chosen = set(), []

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
        chosen.append(best[0])
    return chosen


def groups(*groups):
    """As `parameters` of all rows of some lists, of which each is looked at by itself."""
    return parameterized.parameters([*itertools.chain(*map(needed, groups))])


def parameters(*rows):
    return groups(rows)


def product(**values):
    return groups([dict(zip(values, row)) for row in itertools.product(*values.values())])
