"""The known name that a misspelt one is nearest to."""

from __future__ import annotations

from difflib import get_close_matches

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minicaffe.errors import LONGEST_NAME, TRIED, nearest

NAMES = st.lists(st.text("abc_1", min_size=1, max_size=LONGEST_NAME), max_size=TRIED, unique=True)


@given(st.text("abc_1", min_size=1, max_size=LONGEST_NAME), NAMES, st.integers(1, 3), st.sampled_from([0.5, 0.6, 0.75]))
def test_it_is_the_one_that_difflib_finds(name: str, known: list[str], most: int, least: float) -> None:
    found, wanted = nearest(name, known, most, least), get_close_matches(name, known, most, least)
    assert sorted(found) == sorted(wanted) or len(found) == len(wanted) == most  # either may leave out any of equal names


def test_it_is_found_among_many() -> None:
    known = [f"res{block}_branch{branch}" for block in range(200) for branch in "abc"]
    assert nearest("res17_brnach_b", known) == ["res17_branchb"]


@pytest.mark.parametrize(
    ("name", "known"),
    [("", ["", "a"]), ("a", []), ("a" * (LONGEST_NAME + 1), ["a" * (LONGEST_NAME + 1)]), ("a", ["a" * 10**6])],
)
def test_nothing_and_long_names_are_near_none(name: str, known: list[str]) -> None:
    assert nearest(name, known) == []
