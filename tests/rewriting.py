"""Before and after: what tests of `tf-lossscale migrate` are made of."""

import textwrap

import pytest
from absl.testing import parameterized

pytest.importorskip("libcst", reason="the migration tool needs LibCST (Python 3.9 or newer)")

from tf_lossscale_compat.migrate import _source


def text_of(source):
    """Returns an indented literal of a test as the file that it stands for."""
    return textwrap.dedent(source).lstrip("\n")


class RewriteTestCase(parameterized.TestCase):
    """Checks pairs of sources; every result is migrated again, which must change nothing."""

    def migrate(self, before):
        result = _source.migrate(before)
        compile(result.text, "result", "exec")
        again = _source.migrate(result.text)
        self.assertEqual(again.text, result.text, "a second run changed it again")
        self.assertEqual(
            [finding.message for finding in again.findings],
            [finding.message for finding in result.findings],
        )
        return result

    def check_transformed(self, before, after, findings=()):
        """The source becomes `after`; nothing is left to a person but what matches `findings`."""
        result = self.migrate(text_of(before))
        self.assertEqual(result.text, text_of(after))
        self.check_messages(result.findings, findings)

    def check_diff(self, diff, findings=()):
        """The same, of lines that begin with a blank, with "-" before or with "+" after."""
        lines = text_of(diff).splitlines(keepends=True)
        before, after = [
            "".join(line[1:] or line for line in lines if line[0] != other) for other in "+-"
        ]
        self.check_transformed(before, after, findings)

    def check_noop(self, before, findings=()):
        """The source stays; what is left to a person matches `findings`.

        Args:
          before: str.
          findings: list of (line, column, part of the message).
        """
        self.check_transformed(before, before, findings)

    def check_messages(self, found, expected):
        self.assertEqual(
            [(finding.line, finding.column) for finding in found],
            [(line, column) for line, column, _ in expected],
            found,
        )
        for finding, (_, _, part) in zip(found, expected):
            self.assertIn(part, finding.message)
