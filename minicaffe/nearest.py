"""The known name that a misspelt one is nearest to, for hints: names of any length and number take linear time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from difflib import get_close_matches
from heapq import nlargest

LONGEST = 64
"""Letters of a name that is compared: nobody misspells a longer one, and difflib's time grows with their cube."""
TRIED = 8
"""How many names difflib compares: those that have most letters in common with the one sought."""


def nearest(name: str, known: Iterable[str], most: int = 1, least: float = 0.6) -> list[str]:
    """Up to `most` of the known names that are at least so alike (1: equal), the nearest first, as difflib.get_close_matches
    finds them."""
    if not 0 < len(name) <= LONGEST:
        return []
    letters = Counter(name)

    def common(other: str) -> float:
        """What the likeness is at most, by letters alone."""
        return 2 * sum((letters & Counter(other)).values()) / (len(name) + len(other))

    scored = ((common(other), other) for other in known if len(other) <= LONGEST)
    likely = nlargest(TRIED, (pair for pair in scored if pair[0] >= least))
    return get_close_matches(name, [other for _, other in likely], most, least)
