"""One image's detections of all classes: as compiled and not, and against class by class."""

from __future__ import annotations

import numpy as np
import pytest
from first import first
from hypothesis import given
from hypothesis import strategies as st
from loops_in_python import computing

from minicaffe import kernels
from minicaffe.compiled.detection_rows import largest
from minicaffe.layers.ssd.box_codes import nms
from minicaffe.layers.ssd.detection_rows import image_detections


def boxes_and_scores(seed: int, sets: int, count: int, classes: int, ties: bool, dtype: type) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    corners = random.random((sets, count, 2)) * 0.6
    boxes = np.concatenate([corners, corners + random.random((sets, count, 2)) * 0.4 - 0.02], axis=2)  # some without an area
    scores = random.random((count, classes))
    return boxes.astype(dtype), (np.round(scores * 8) / 8 if ties else scores).astype(dtype).T


WAYS = [("numpy", np.float64), ("definitions", np.float64), ("numba", np.float32)]


@pytest.mark.parametrize(("way", "dtype"), first(2, WAYS))
@given(
    seed=st.integers(0, 2**32 - 1),
    count=st.integers(0, 40),
    classes=st.integers(1, 5),
    own_boxes=st.booleans(),
    ties=st.booleans(),
    missing=st.booleans(),
    background=st.integers(-1, 5),
    least=st.sampled_from([-np.inf, 0.3, 0.5]),
    top_k=st.sampled_from([None, -3, 0, 1, 7, 39]),
    eta=st.sampled_from([1.0, 0.9]),
    threshold=st.sampled_from([0.0, 0.2, 0.7]),
)
def test_all_classes_at_once_are_one_after_the_other(
    way: str,
    dtype: type,
    seed: int,
    count: int,
    classes: int,
    own_boxes: bool,
    ties: bool,
    missing: bool,
    background: int,
    least: float,
    top_k: int | None,
    eta: float,
    threshold: float,
) -> None:
    sets = classes if own_boxes else 1
    boxes, scores = boxes_and_scores(seed, sets, count, classes, ties, dtype)
    scores[:, 3::5] = np.nan  # no score is above anything
    if missing and count:
        boxes[0, count // 2, 2] = np.nan
    rows = []
    with kernels.using("numpy"):
        for k in range(classes):
            if k != background:
                kept = nms(boxes[k % sets], scores[k], threshold, least=least, top_k=top_k, eta=eta)
                rows += [[3, k, scores[k, i], *boxes[k % sets, i]] for i in kept]
    if way != "numpy":
        pytest.importorskip("numba", reason="Numba (the extra fast) is not installed")
    more = {"background": background, "least": least, "nms_threshold": threshold, "top_k": top_k, "keep_top_k": -1, "eta": eta}
    with computing(way):
        found = image_detections(boxes, scores, image=3, **more)
    np.testing.assert_array_equal(found, np.array(rows, dtype).reshape(-1, 7))


@given(st.lists(st.integers(-3, 3) | st.floats(-9, 9, width=16), min_size=1, max_size=40), st.integers(0, 39))
def test_the_largest_but_some(values: list[float], rank: int) -> None:
    """Of numbers that are equal, too."""
    rank %= len(values)
    assert largest.definition(np.array(values, float), rank) == sorted(values, reverse=True)[rank]


@pytest.mark.slow
def test_the_best_of_all_classes_stay_in_order(loops_way: str) -> None:
    boxes, scores = boxes_and_scores(3, 1, 50, 4, False, np.float32)
    all_, best = (
        image_detections(boxes, scores, background=0, least=0.1, nms_threshold=0.4, top_k=30, keep_top_k=most, eta=1.0)
        for most in (-1, 9)
    )
    assert len(best) == 9 < len(all_)
    wanted = all_[all_[:, 2] >= np.sort(all_[:, 2])[-9]]
    np.testing.assert_array_equal(best, wanted)
    assert (np.diff(best[:, 1]) >= 0).all()


@pytest.mark.parametrize("of_boxes, of_scores", [(np.float64, np.float32), (np.float32, np.float64)])
def test_boxes_and_scores_of_two_types(of_boxes: type, of_scores: type, definitions_way: str) -> None:
    boxes, scores = boxes_and_scores(5, 1, 40, 3, False, np.float64)
    settings = {"background": 0, "least": 0.1, "nms_threshold": 0.4, "top_k": 20, "keep_top_k": -1, "eta": 1.0}
    boxes, scores = boxes.astype(of_boxes), scores.astype(of_scores)
    rows = image_detections(boxes, scores, **settings)
    assert rows.dtype == np.float64 and len(rows) > 5
    known = {(float(scores[k, i]), *map(float, boxes[0, i])) for k in (1, 2) for i in range(40)}
    assert {tuple(row[2:]) for row in rows.tolist()} <= known
