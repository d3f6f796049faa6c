"""How findings put numbers into words."""

from __future__ import annotations

from collections.abc import Sequence


def listed(numbers: Sequence[int], most: int = 8) -> str:
    """The first numbers of a list, and how many there are beyond them.

    Example:
        >>> listed([3, 5]), listed(range(10), most=2)
        ('3, 5', '0, 1 and 8 more')
    """
    shown = ", ".join(map(str, numbers[:most]))
    rest = len(numbers) - most
    return f"{shown} and {rest} more" if rest > 0 else shown


def codes_of(count: int, size: int) -> str:
    """How many of the codes, with their share.

    Example:
        >>> codes_of(3, 512)
        '3 of 512 codes (0.6 %)'
    """
    return f"{count} of {size} codes ({100 * count / size:.1f} %)"
