"""DetectionEvaluate."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe.errors import LayerError
from minicaffe.layers.ssd.detection_evaluate import judge

FOUND = [
    (0, 1, 0.6, 0.1, 0.1, 0.5, 0.5),
    (0, 1, 0.9, 0.1, 0.1, 0.5, 0.55),
    (0, 2, 0.8, 0.0, 0.0, 0.3, 0.3),
    (1, 1, 0.7, 0.5, 0.5, 0.9, 0.9),
]
TRUE = [
    (0, 1, 0, 0.1, 0.1, 0.5, 0.5, 0),
    (1, 1, 0, 0.5, 0.5, 0.9, 0.9, 1),
    (-1, -1, -1, -1, -1, -1, -1, -1),
]


def text(inside: str) -> str:
    return f'type: "DetectionEvaluate" detection_evaluate_param {{ {inside} }}'


def case(inside: str = "", found: object = FOUND, true: object = TRUE, dtype: type = np.float64) -> LayerCase:
    bottoms = (np.array(found, float).reshape(1, 1, -1, 7), np.array(true, float).reshape(1, 1, -1, 8))
    return LayerCase(text("num_classes: 3 " + inside), *bottoms, dtype=dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_by_hand(dtype: type) -> None:
    """Of two detections of one box the better is right; of class 2 there is no true box."""
    (y,) = case(dtype=dtype).forward()
    assert y.shape == (1, 1, 6, 5) and y.dtype == dtype
    classes = [[-1, 1, 2, -1, -1], [-1, 2, 0, -1, -1]]
    expected = [*classes, [0, 1, 0.9, 1, 0], [0, 1, 0.6, 0, 1], [0, 2, 0.8, 0, 1], [1, 1, 0.7, 1, 0]]
    np.testing.assert_allclose(y[0, 0], expected, rtol=1e-6)


def test_difficult_boxes_may_count_for_nothing() -> None:
    rows = case("evaluate_difficult_gt: false").forward()[0][0, 0]
    assert rows[0].tolist() == [-1, 1, 1, -1, -1]
    assert rows[-1].tolist() == [1, 1, 0.7, 0, 0]


def test_threshold() -> None:
    """0.4 x 0.4 of 0.4 x 0.45 is an overlap of 8 / 9."""
    rows = case("overlap_threshold: 0.9").forward()[0][0, 0]
    assert rows[2:4, 3].tolist() == [0, 1] and rows[2:4, 4].tolist() == [1, 0]


def test_nothing_found_and_nothing_true() -> None:
    rows = case(found=[(0, -1, -1, -1, -1, -1, -1)]).forward()[0][0, 0]
    assert rows.tolist() == [[-1, 1, 2, -1, -1], [-1, 2, 0, -1, -1]]
    wrong = case(true=np.zeros((0, 8))).forward()[0][0, 0]
    assert wrong[:2, 2].tolist() == [0, 0] and wrong[2:, 4].all()


def test_sizes_from_a_file_turn_with_the_images(tmp_path: Path) -> None:
    """In a picture of 10 x 10 pixels the first box is 5 x 5 inclusive and the better detection 5 x 5.5: still an overlap
    of 0.9; in one of 2 x 2 pixels 1.8 / 1.9."""
    sizes = tmp_path / "sizes.txt"
    sizes.write_text("one 10 10\ntwo 2 2\nthree 10 10\n")
    run = case(f'name_size_file: "{sizes}" overlap_threshold: 0.92')
    best = [run.forward()[0][0, 0, 2, 3] for _ in range(3)]
    assert best == [0, 0, 1]
    other = case(f'name_size_file: "{sizes}" overlap_threshold: 0.92')
    other.layer.restore_training_state(run.layer.training_state())
    assert other.forward()[0].tolist() == run.forward()[0].tolist()
    assert other.layer.training_state() == {"next_image": 2}


def test_boxes_of_a_padded_input(tmp_path: Path) -> None:
    """A picture of 20 x 10 pixels fills the middle half of a square: what overlaps by 1 / 3 there has 5 x 10 and 10 x 10 of
    its pixels, and one more each way as corners are inclusive: 6 x 11 / 11 x 11."""
    sizes = tmp_path / "sizes.txt"
    sizes.write_text("tall 20 10\n")
    found, true = [(0, 1, 0.9, 0.25, 0.0, 0.5, 0.5)], [(0, 1, 0, 0.0, 0.0, 0.75, 0.5, 0)]
    resize = "resize_param { resize_mode: FIT_LARGE_SIZE_AND_PAD height: 8 width: 8 }"
    for threshold, right in ((0.545, 1), (0.546, 0)):
        run = case(f'name_size_file: "{sizes}" {resize} overlap_threshold: {threshold}', found, true)
        assert run.forward()[0][0, 0, 2, 3] == right


@given(st.integers(0, 99), st.integers(0, 6), st.integers(0, 4))
def test_judged_as_plain_loops(seed: int, count: int, boxes: int) -> None:
    random = np.random.default_rng(seed)
    overlaps, ignored = random.integers(0, 5, (count, boxes)) / 4, random.integers(0, 2, boxes) > 0
    right, wrong, taken = [], [], set()
    for row in overlaps.tolist():
        best = max(row, default=0.0)
        own = row.index(best) if row else -1
        near = bool(row) and best >= 0.5
        right.append(near and not ignored[own] and own not in taken)
        wrong.append(not near or (not ignored[own] and own in taken))
        if right[-1]:
            taken.add(own)
    got = judge(overlaps, 0.5, ignored)
    assert got[0].tolist() == right and got[1].tolist() == wrong


def test_no_gradients_and_another_shape() -> None:
    run = case()
    run.forward()
    assert not any(diff.any() for diff in run.backward())
    run.bottom[0].reshape(1, 1, 1, 7)
    assert run.forward()[0].shape == (1, 1, 3, 5)


@pytest.mark.parametrize(
    ("inside", "message"),
    [
        ("num_classes: 0", "needs num_classes > 0"),
        ("overlap_threshold: 0", "overlap_threshold must be > 0, got 0"),
        ("resize_param { resize_mode: FIT_SMALL_SIZE width: 3 }", "resize_param needs a height and a width > 0, got 0 and 3"),
        ('name_size_file: "absent.txt"', "absent.txt: no such file"),
        ("background_label_id: 1", "label 1 in bottom 0 is no object's class"),
    ],
)
def test_errors(inside: str, message: str) -> None:
    with pytest.raises(LayerError, match='DetectionEvaluate layer "layer": ' + message):
        case(inside).forward()


def test_caffe_yolov2s_is_refused() -> None:
    with pytest.raises(LayerError, match="caffe-yolov2's, which counts classes from 0 and has boxes by their centres, is not"):
        LayerCase(text("num_classes: 3"), np.zeros((1, 1, 2, 7)), np.zeros((1, 1, 2, 8)), fork="yolov2")


def test_bad_files_and_shapes(tmp_path: Path) -> None:
    for content, message in (("name ten ten\n", 'its lines must be "name height width"'), ("", "no sizes in it")):
        (tmp_path / "sizes.txt").write_text(content)
        with pytest.raises(LayerError, match=message):
            case(f'name_size_file: "{tmp_path / "sizes.txt"}"')
    with pytest.raises(LayerError, match=r"bottom 1 must have 8 values a row, got shape \(1, 1, 2, 7\)"):
        LayerCase(text("num_classes: 3"), np.zeros((1, 1, 2, 7)), np.zeros((1, 1, 2, 7)))


CASCADE_FOUND = [[0, -1, -1, -1, -1, -1, -1], [0, 10, 10, 29, 29, 1, 0.9], [0, 10, 10, 29, 32, 1, 0.6], [0, 1, 1, 9, 9, 2, 0.8]]
CASCADE_TRUE = [[0, 10, 10, 29, 29, 1, 0, 0], [0, 40, 40, 59, 59, 2, 0, 1], [-1, 0, 0, 0, 0, 0, 0, 0]]


def cascade(folder: Path, more: str = "", **changed: object) -> LayerCase:
    """Cascade R-CNN's; the image of 60 x 80 pixels was read from a file of 120 x 160."""
    (folder / "sizes.txt").write_text("a 120 160\n")
    bottoms = {"found": CASCADE_FOUND, "true": CASCADE_TRUE, "sizes": [[60, 80]]} | changed
    inside = text(f'num_classes: 3 name_size_file: "{folder}/sizes.txt" {more}')
    return LayerCase(inside, *(np.array(given, float) for given in bottoms.values()))


def test_cascade_rcnns_three_bottoms(tmp_path: Path) -> None:
    """Of two detections of one box the better is right; the row of -1s is of the image."""
    case = cascade(tmp_path, "evaluate_difficult_gt: false")
    assert case.layer.choice is not None and case.layer.choice.whose == "Cascade R-CNN"
    (y,) = case.forward()
    classes = [[-1, 1, 1, -1, -1], [-1, 2, 0, -1, -1]]
    assert y.shape == (5, 5, 1, 1)
    assert y[:, :, 0, 0].tolist() == [*classes, [0, 1, 0.9, 1, 0], [0, 1, 0.6, 0, 1], [0, 2, 0.8, 0, 1]]


def test_cascade_rcnns_overlaps_are_of_the_file(tmp_path: Path) -> None:
    """39 x 39 of 39 x 45 pixels, ends inclusive, is 0.867; in the net's 20 x 20 of 20 x 23 it would be 0.870."""
    found = [CASCADE_FOUND[2]]
    right = cascade(tmp_path, "overlap_threshold: 0.866", found=found).forward()[0][2, 3, 0, 0]
    wrong = cascade(tmp_path, "overlap_threshold: 0.868", found=found).forward()[0][2, 3, 0, 0]
    assert (right, wrong) == (1, 0)


@pytest.mark.parametrize(
    ("more", "changed", "message"),
    [
        ("background_label_id: 1", {}, "takes no resize_param or background_label_id"),
        ("", {"true": np.zeros((2, 7))}, r"bottom 1 must be \(N, 8\), got shape \(2, 7\)"),
        ("", {"found": [[1, *CASCADE_FOUND[1][1:]]]}, r"image 1 has no size in bottom 2 of shape \(1, 2\)"),
        ("", {"found": [[np.inf, *CASCADE_FOUND[1][1:]]]}, "image inf has no size"),
        ("", {"found": [[0, 1, 1, 2, 2, 3, 0.5]]}, "label 3 in bottom 0 is no object's class"),
    ],
)
def test_errors_of_cascade_rcnns(more: str, changed: dict[str, object], message: str, tmp_path: Path) -> None:
    with pytest.raises(LayerError, match=message):
        cascade(tmp_path, more, **changed).forward()


def test_cascade_rcnns_needs_the_sizes() -> None:
    with pytest.raises(LayerError, match=r"with 3 bottoms \(Cascade R-CNN's\) it needs a name_size_file"):
        LayerCase(text("num_classes: 3"), np.zeros((1, 7)), np.zeros((1, 8)), np.zeros((1, 2)))
