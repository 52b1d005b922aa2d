"""Close matches of a misspelt name, for hints, in linear time for names of any length and number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from difflib import get_close_matches
from heapq import nlargest

LONGEST = 64
"""Most characters of a name that is compared: difflib's time grows with their cube."""
TRIED = 8
"""How many names difflib compares: those with the most letters in common with the misspelt one."""


def nearest(name: str, known: Iterable[str], most: int = 1, least: float = 0.6) -> list[str]:
    """Up to `most` known names with a similarity of at least `least` (1: equal), best first, as difflib.get_close_matches."""
    if not 0 < len(name) <= LONGEST:
        return []
    letters = Counter(name)

    def common(other: str) -> float:
        """An upper bound of the similarity, from the letters alone."""
        return 2 * sum((letters & Counter(other)).values()) / (len(name) + len(other))

    scored = ((common(other), other) for other in known if len(other) <= LONGEST)
    likely = nlargest(TRIED, (pair for pair in scored if pair[0] >= least))
    return get_close_matches(name, [other for _, other in likely], most, least)
