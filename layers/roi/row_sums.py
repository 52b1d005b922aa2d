"""Sums of rows of an array, each with any number of terms, for pooling over position-sensitive bins.

Sums with more terms come first. The k-th terms are then those of the first few sums: one take and one addition of whole
rows for each k, at the speed of the cache. A sum reads its own terms only: one NaN spoils the sums that it belongs to.
A row is taken as one item of many bytes: NumPy then copies it whole, and lets other threads run meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from minicaffe.blob import Array
from minicaffe.threads import Scratch

from .roi_geometry import Ints


def longest_first(counts: Ints) -> tuple[Ints, list[int]]:
    """Return the order of sums by falling count (B,), and for each k how many have more than k terms.

    counts (B,): the terms of each sum.
    """
    most = int(counts.max(initial=0))
    # For 8 or 16 bits, NumPy's stable sort is a radix sort.
    order = np.argsort((most - counts).astype(np.min_scalar_type(most)), kind="stable")
    # negated, because searchsorted needs ascending numbers
    having: list[int] = np.searchsorted(-counts[order], -np.arange(most)).tolist()
    return order, having


def items(rows: Array) -> Array:
    """Return contiguous rows (M, D), D > 0, viewed as (M,) items, one for each row."""
    return rows.view(np.dtype((np.void, rows.shape[1] * rows.itemsize)))[:, 0]


def sum_rows(rows: Array, terms: Iterable[Ints], having: Sequence[int], count: int, scratch: Scratch) -> Array:
    """Return the sums (count, D) of rows (M, D), in scratch.

    The k-th of terms is one row of each of the first having[k] sums.
    """
    sums = scratch("sums", count, rows.shape[1], dtype=rows.dtype)
    sums[...] = 0
    _add_terms(rows, terms, having, sums, scratch)
    return sums


def add_rows(rows: Array, source: Ints, target: Ints, total: Array, scratch: Scratch) -> None:
    """Add rows[source[t]], rows (M, D), to total[target[t]] for every t, in rising order of source.

    Each term is added to what is there, so the cuts between calls do not change a bit. The pairs are sorted as numbers, target
    before source, so that the terms of each sum lie side by side.
    """
    bits = len(rows).bit_length()  # enough bits for a source, which is below len(rows)
    keys = (target << bits) + source
    keys = keys.astype(np.int32 if len(total) << bits < 2**31 else np.int64, copy=False)
    keys.sort()
    target, source = keys >> bits, (keys & ((1 << bits) - 1)).astype(np.intp)
    first = np.flatnonzero(np.concatenate([target[:1] == target[:1], target[1:] != target[:-1]]))  # [True], or [] without pairs
    order, having = longest_first(np.diff(first, append=len(keys)))
    first = first[order]
    terms = (source[first[:n] + k] for k, n in enumerate(having))  # with sorted keys, sources ascend within a target
    place = target[first].astype(np.intp)
    sums = scratch("sums", len(first), rows.shape[1], dtype=total.dtype)
    items(total).take(place, out=items(sums), mode="clip")
    _add_terms(rows, terms, having, sums, scratch)
    items(total)[place] = items(sums)  # each place occurs at most once


def _add_terms(rows: Array, terms: Iterable[Ints], having: Sequence[int], sums: Array, scratch: Scratch) -> None:
    """Add terms to sums (B, D): the k-th of terms, rows of rows (M, D), goes to the first having[k] sums."""
    term = scratch("term", *sums.shape, dtype=rows.dtype)
    with np.errstate(invalid="ignore", over="ignore"):
        for n, index in zip(having, terms):
            # The indices are valid. "clip" avoids the copy of out that "raise" makes.
            items(rows).take(index.astype(np.intp, copy=False), out=items(term)[:n], mode="clip")
            sums[:n] += term[:n]
