"""What a check yields."""

from typing import NamedTuple


class Finding(NamedTuple):
    """Something that is left to a person.

    Attributes:
      offset: int, where it is in the source, in bytes.
      message: str, what it is and what to do.
    """

    offset: int
    message: str
