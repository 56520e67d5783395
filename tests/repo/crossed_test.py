"""Crossed parameters keep all rows, and mark those slow that bring no value of their own."""

from absl.testing import absltest, parameterized

from tests import crossed


def rows():
    class Rows(parameterized.TestCase):
        @crossed.product(mode=["graph", "eager", "jit"], case=["a", "b"])
        def test_product(self, mode, case): ...

        @crossed.parameters(("jit", 1), ("graph", 1), ("eager", 2), ("eager", 1))
        def test_parameters(self, mode, number): ...

        @crossed.groups([("x", 1), ("x", 2)], [("y", 1), ("y", 2)])
        def test_groups(self, home, number): ...

    return Rows


class CrossedTest(parameterized.TestCase):
    @parameterized.parameters(
        # Each mode and each case, and no row more.
        ("product", 6, {0, 3, 4}),
        # The one under XLA last: it may skip itself.
        ("parameters", 4, {0, 1, 2}),
        ("groups", 4, {0, 1, 2, 3}),
    )
    def test_rows_that_run_by_default(self, name, count, default):
        tests = {each: test for each, test in vars(rows()).items() if f"test_{name}" in each}
        self.assertEqual(list(tests), [f"test_{name}{index}" for index in range(count)])
        marks = [[mark.name for mark in getattr(test, "pytestmark", [])] for test in tests.values()]
        self.assertEqual(marks, [[] if index in default else ["slow"] for index in range(count)])


if __name__ == "__main__":
    absltest.main()
