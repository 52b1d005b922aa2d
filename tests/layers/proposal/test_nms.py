from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from loops_in_python import computing

from minicaffe import kernels
from minicaffe.compiled.nms import suppress
from minicaffe.layers.proposal.nms import BLOCK, PIXELS, Overlaps, suppress_by_definition
from minicaffe.ops import nms


def plain(dets: np.ndarray, threshold: float) -> list[int]:
    """The definition, box by box."""
    order = sorted(range(len(dets)), key=lambda i: -dets[i, 4])  # sorted is stable
    kept: list[int] = []
    for i in order:
        if all(not _overlap(dets[i], dets[k]) > threshold for k in kept):
            kept.append(i)
    return kept


def _overlap(a: np.ndarray, b: np.ndarray) -> float:
    width = max(min(a[2], b[2]) - max(a[0], b[0]) + 1, 0)
    height = max(min(a[3], b[3]) - max(a[1], b[1]) + 1, 0)
    area = [(c[2] - c[0] + 1) * (c[3] - c[1] + 1) for c in (a, b)]
    return float(width * height / (area[0] + area[1] - width * height))


def random_dets(seed: int, n: int, spread: int, scores: int = 1000) -> np.ndarray:
    rng = np.random.default_rng(seed)
    corner, size = rng.integers(0, spread, (n, 2)), rng.integers(0, 40, (n, 2))
    return np.column_stack([corner, corner + size, rng.integers(0, scores, n)]).astype(np.float64)


def test_by_hand() -> None:
    """Box 1 is best; box 0 shares 8 of 10 + 10 - 8 pixels with it, 0.67; box 2 is far away; box 3 overlaps box 0 alone."""
    dets = np.array([[2, 0, 11, 0, 0.8], [0, 0, 9, 0, 0.9], [50, 0, 59, 0, 0.1], [10, 0, 19, 0, 0.5]])
    assert nms(dets, 0.5).tolist() == [1, 3, 2]
    assert nms(dets.tolist(), 0.7).tolist() == [1, 0, 3, 2]


def test_an_overlap_of_exactly_the_threshold_stays() -> None:
    """5 of 10 pixels."""
    dets = np.array([[0, 0, 9, 0, 2.0], [0, 0, 4, 0, 1.0]])
    assert nms(dets, 0.5).tolist() == [0, 1]
    assert nms(dets, 0.4999).tolist() == [0]


def test_the_lower_index_wins_a_tie() -> None:
    dets = np.array([[0, 0, 9, 9, 0.5], [0, 0, 9, 9, 0.5], [30, 0, 39, 9, 0.5]])
    assert nms(dets, 0.5).tolist() == [0, 2]


def test_a_nan_score_sorts_last() -> None:
    dets = np.array([[0, 0, 9, 9, np.nan], [0, 0, 9, 9, 0.1]])
    assert nms(dets, 0.5).tolist() == [1]


def test_no_boxes() -> None:
    assert nms(np.zeros((0, 5)), 0.5).shape == (0,)


def test_boxes_of_no_area_are_kept() -> None:
    dets = np.array([[5, 5, 4, 9, 0.9], [5, 5, 4, 9, 0.8]])
    assert nms(dets, 0.5).tolist() == [0, 1]


@given(st.integers(0, 10**6), st.integers(0, 60), st.integers(1, 80), st.sampled_from([3, 1000]), st.floats(0, 1))
def test_agrees_with_the_definition(seed: int, n: int, spread: int, scores: int, threshold: float) -> None:
    dets = random_dets(seed, n, spread, scores)
    assert nms(dets, threshold).tolist() == plain(dets, threshold)


@pytest.mark.slow
@pytest.mark.parametrize("n", [BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 7])
def test_agrees_across_blocks(n: int) -> None:
    dets = random_dets(n, n, 150, 50)
    expected = plain(dets, 0.3)
    assert nms(dets, 0.3).tolist() == expected
    for limit in (1, 7, len(expected), len(expected) + 5):
        assert nms(dets, 0.3, limit).tolist() == expected[:limit]


def test_inputs_stay() -> None:
    dets = random_dets(1, 20, 30)
    before = dets.copy()
    nms(dets, 0.3)
    np.testing.assert_array_equal(dets, before)


def test_no_box_is_compared_after_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 6000 boxes the best 300 are among the first two blocks, which are compared with these and with themselves."""
    compared, above = [], Overlaps.__call__

    def counted(overlaps: Overlaps, boxes: np.ndarray, areas: np.ndarray) -> np.ndarray:
        found = above(overlaps, boxes, areas)
        compared.append(found.size)
        return found

    monkeypatch.setattr(Overlaps, "__call__", counted)
    with kernels.using("numpy"):
        assert len(nms(random_dets(2, 6000, 1000).astype(np.float32), 0.7, 300)) == 300
    assert sum(compared) <= 3 * BLOCK**2


def odd_boxes(seed: int, n: int, dtype: type) -> np.ndarray:
    """On a grid of fifths, so that many overlaps are the threshold; some turned inside out, empty, huge or not finite."""
    rng = np.random.default_rng(seed)
    corner, size = rng.integers(0, 25, (n, 2)) / 5, rng.integers(-1, 15, (n, 2)) / 5
    dets = np.column_stack([corner, corner + size, rng.integers(0, 40, n)])
    for value in (np.nan, np.inf, 1e38) if seed % 2 else (1e38,):
        dets[rng.integers(0, n, 2), rng.integers(0, 4, 2)] = value
    return dets.astype(dtype)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "dtype", "seeds"), [("numba", np.float32, range(8)), ("definitions", np.float64, range(8, 10))]
)
def test_compiled_suppression_keeps_the_same(way: str, dtype: type, seeds: range) -> None:
    pytest.importorskip("numba", reason="Numba (the extra fast) is not installed")
    for seed, threshold, limit in product(seeds, (0.0, 0.2, 0.5, 0.7, 1.0, -1.0), (0, 9)):
        dets, found = odd_boxes(seed, 400 if way == "numba" else 90, dtype), []
        for one in ("numpy", way):
            with computing(one), np.errstate(all="ignore"):
                found.append(nms(dets, threshold, limit).tolist())
        assert found[0] == found[1], (seed, threshold, limit)


def test_the_definition_and_the_loop() -> None:
    dets = random_dets(5, 50, 60)
    best = dets[np.argsort(-dets[:, 4], kind="stable")]
    given = np.ascontiguousarray(best[:, :4]), PIXELS.areas(best)
    kept = suppress_by_definition(*given, 1, 0.4)
    assert kept == plain(best, 0.4)
    assert kept == suppress.definition(*given, np.float64(1), 0.4, 1.0, 0).tolist()
    assert len(kept) < 40
