from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from detection_case import python_layer, settings
from layer_case import LayerCase
from PIL import Image

import minicaffe
from minicaffe.data.images import prepare_image
from minicaffe.data.roidb import add_flipped, add_proposals
from minicaffe.data.roidb_entry import Entry
from minicaffe.errors import LayerError
from minicaffe.layers.proposal.roi_data import shuffled
from minicaffe.mode import TRAIN
from minicaffe.ops import bbox_overlaps, bbox_transform
from minicaffe.rng import generator

FOUR = python_layer("RoIData", num_classes=4)


def pixels(height: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def entry(height: int = 30, width: int = 40, seed: int = 0) -> Entry:
    return Entry(
        image=pixels(height, width, seed), boxes=np.array([[2, 3, 20, 25], [10, 0, 39, 12]]), gt_classes=np.array([1, 3])
    )


def layer(roidb: list[Entry], tops: int = 3, names: str = "", **changes: Any) -> LayerCase:
    """A RoIData layer with roidb set; images are scaled to a short side of 60. names: the tops', as the prototxt says them."""
    with settings(**{"train_scales": (60,), "train_max_size": 100, **changes}):
        case = LayerCase(FOUR + "".join(f' top: "{name}"' for name in names.split()), tops=tops, phase=TRAIN)
    case.layer.set_roidb(roidb)  # type: ignore[attr-defined]
    return case


def test_with_an_rpn_by_hand() -> None:
    """An image of 30 x 40 becomes 60 x 80: the boxes' coordinates double."""
    data, info, gt_boxes = layer([entry()]).forward()
    np.testing.assert_array_equal(info, [[60, 80, 2]])
    np.testing.assert_array_equal(gt_boxes, [[4, 6, 40, 50, 1], [20, 0, 78, 24, 3]])
    with settings(train_scales=(60,), train_max_size=100) as made:
        expected, _ = prepare_image(pixels(30, 40), made, TRAIN)
    np.testing.assert_array_equal(data, expected)


def test_sides_that_are_multiples() -> None:
    """30 x 41 becomes 56 x 80: x and y are scaled by their own."""
    data, info, gt_boxes = layer([entry(30, 41)], train_scale_multiple_of=8).forward()
    x, y = 80 / 41, 56 / 30
    assert data.shape == (1, 3, 56, 80)
    np.testing.assert_allclose(info, [[56, 80, x, y, x, y]], rtol=1e-6)
    np.testing.assert_allclose(gt_boxes[0], [2 * x, 3 * y, 20 * x, 25 * y, 1], rtol=1e-6)


def test_the_long_side_is_bounded() -> None:
    data, info, _ = layer([entry(30, 100)]).forward()
    assert data.shape == (1, 3, 30, 100)
    np.testing.assert_array_equal(info, [[30, 100, 1]])


def test_a_restored_layer_goes_on_with_the_images_that_were_left() -> None:
    """Five images of other heights, two rounds; the scale tells which it was. The random numbers are set back too."""
    roidb = [entry(30 + i, 60, i) for i in range(5)]
    case = layer(roidb, train_max_size=200)
    for _ in range(3):
        case.forward()
    state, numbers = json.loads(json.dumps(case.layer.training_state())), generator().bit_generator.state
    straight = [float(case.forward()[1][0, 2]) for _ in range(6)]
    again = layer(roidb, train_max_size=200)
    again.forward()
    again.layer.restore_training_state(state)
    generator().bit_generator.state = numbers
    assert [float(again.forward()[1][0, 2]) for _ in range(6)] == straight


def test_a_state_of_another_roidb() -> None:
    state = layer([entry(), entry()]).layer.training_state()
    with pytest.raises(LayerError, match="made with a roidb of 2 images, this one has 1: give the same images"):
        layer([entry()]).layer.restore_training_state(state)


def test_a_flipped_image_is_mirrored_with_its_boxes() -> None:
    plain, flipped = layer([entry()]).forward(), layer(add_flipped([entry()])[1:]).forward()
    np.testing.assert_allclose(flipped[0], plain[0][:, :, :, ::-1], atol=1e-4)
    np.testing.assert_array_equal(flipped[2], [[38, 6, 74, 50, 1], [0, 0, 58, 24, 3]])


def test_files_are_read(tmp_path: Path) -> None:
    Image.fromarray(pixels(30, 40)[:, :, ::-1]).save(tmp_path / "a.png")
    made = entry()
    made["image"] = str(tmp_path / "a.png")
    np.testing.assert_array_equal(layer([made]).forward()[0], layer([entry()]).forward()[0])


def test_every_image_once_an_epoch() -> None:
    """Seven images of other heights; the scale tells which it was. Two epochs, in two orders."""
    roidb = [entry(30 + i, 60, i) for i in range(7)]
    minicaffe.set_random_seed(2)
    case = layer(roidb, train_max_size=200)
    scales = [float(case.forward()[1][0, 2]) for _ in range(14)]
    epochs = scales[:7], scales[7:]
    assert sorted(epochs[0]) == sorted(epochs[1])
    assert sorted(epochs[0]) == pytest.approx(sorted(60 / (30 + i) for i in range(7)))
    assert epochs[0] != epochs[1]


def test_scales_are_drawn() -> None:
    minicaffe.set_random_seed(0)
    case = layer([entry()], train_scales=(30, 60))
    assert {case.forward()[0].shape for _ in range(20)} == {(1, 3, 30, 40), (1, 3, 60, 80)}


def test_aspect_grouping() -> None:
    """Eight wide and five tall images: of six whole batches of two at most one is mixed; every image but one is used."""
    roidb = [Entry(width=8, height=5) for _ in range(8)] + [Entry(width=5, height=8) for _ in range(5)]
    order = shuffled(roidb, 2, True)
    assert sorted(order) == list(range(13))
    mixed = [(a < 8) != (b < 8) for a, b in order[:12].reshape(6, 2)]
    assert sum(mixed) <= 1
    assert sorted(shuffled(roidb, 2, False)) == sorted(shuffled(roidb, 1, True)) == list(range(13))


def with_proposals(seed: int, count: int, height: int = 30, width: int = 40) -> Entry:
    rng = np.random.default_rng(seed)
    corner = rng.integers(0, 20, (count, 2))
    boxes = np.column_stack([corner, np.minimum(corner + rng.integers(3, 25, (count, 2)), [width - 1, height - 1])])
    return add_proposals([entry(height, width, seed)], [boxes])[0]


def test_without_an_rpn_every_roi_has_its_due() -> None:
    """Two images of other sizes in one batch; targets normalised by given means and stds; the rest by the definition."""
    means, stds = (0.1, 0.0, -0.1, 0.2), (0.5, 0.6, 0.7, 0.8)
    entries = [with_proposals(0, 50), with_proposals(1, 60, 30, 60)]
    case = layer(
        entries, 6, train_batch_size=32, train_bg_thresh_lo=0.0, train_bbox_normalize_targets_precomputed=True,
        train_bbox_normalize_means=means, train_bbox_normalize_stds=stds, train_aspect_grouping=False,
    )  # fmt: skip
    np.testing.assert_array_equal(case.layer.bbox_means, [means] * 4)  # type: ignore[attr-defined]
    data, *tops = case.forward()
    rois, labels, targets, inside, outside = (top.reshape(len(top), -1) for top in tops)
    assert data.shape == (2, 3, 60, 100)
    assert tops[0].shape == (32, 5, 1, 1)
    assert (rois[:, 0] == np.repeat([0, 1], 16)).all()
    assert (labels > 0).sum() <= 8
    np.testing.assert_array_equal(outside, inside > 0)
    wide_first = (data[0, :, :, 81:] != 0).any()
    for i, roi in enumerate(rois):
        wide = bool(roi[0]) != wide_first
        gt = np.array([[2, 3, 20, 25], [10, 0, 39, 12]]) * 1.0
        box = roi[1:] / (100 / 60 if wide else 2)
        overlaps = bbox_overlaps(box[None], gt)[0]
        row = np.zeros((4, 4))
        if overlaps.max() >= 0.5:
            k = [1, 3][overlaps.argmax()]
            assert labels[i, 0] == k
            row[k] = (bbox_transform(box[None], gt[[overlaps.argmax()]])[0] - means) / stds
            np.testing.assert_array_equal(np.flatnonzero(inside[i]), np.arange(4 * k, 4 * k + 4))
        else:
            assert labels[i, 0] == 0
        np.testing.assert_allclose(targets[i], row.ravel(), atol=1e-5)


@pytest.mark.parametrize("tops", [3, 5])
def test_fast_rcnns_tops_are_the_first_of_the_six(tops: int) -> None:
    """The same seed samples the same rois; a net without a regression (data, rois, labels) keeps no means and stds."""
    roidb, sampling = [with_proposals(0, 50), with_proposals(1, 60)], {"train_batch_size": 32, "train_bg_thresh_lo": 0.0}
    names = "data rois labels bbox_targets bbox_loss_weights"
    minicaffe.set_random_seed(3)
    six = layer(roidb, 6, **sampling).forward()
    minicaffe.set_random_seed(3)
    case = layer(roidb, tops, " ".join(names.split()[:tops]), **sampling)
    for found, same in zip(case.forward(), six, strict=False):
        np.testing.assert_array_equal(found, same)
    assert (case.layer.bbox_means is None) == (tops == 3)  # type: ignore[attr-defined]
    assert case.layer.dynamic_rois


def test_without_an_rpn_agnostic_and_all_rois() -> None:
    case = layer(
        [with_proposals(0, 50)], 6, train_batch_size=-1, train_agnostic=True, train_bg_thresh_lo=0.0, train_ims_per_batch=1
    )
    _, rois, labels, targets, inside, _ = case.forward()
    assert rois.shape == (52, 5, 1, 1)
    assert targets.shape == inside.shape == (52, 8, 1, 1)
    assert set(labels.ravel()) == {0, 1, 3}
    assert (inside[:, 4:, 0, 0].all(axis=1) == (labels > 0).ravel()).all()


def test_a_background_roi_that_overlaps_has_no_target() -> None:
    """With FG_THRESH 0.7, a roi of overlap 0.6 has a target in the roidb and is background in the batch."""
    one = add_proposals([entry()], [np.array([[2, 3, 20, 17]])])
    case = layer(one, 6, train_fg_thresh=0.7, train_bg_thresh_hi=0.7, train_ims_per_batch=1)
    _, _, labels, targets, inside, _ = case.forward()
    background = np.flatnonzero(labels.ravel() == 0)
    assert len(background) == 1
    assert not targets[background].any() and not inside[background].any()


def test_targets_that_the_roidb_brings_stay() -> None:
    case = layer([with_proposals(0, 50)], 6, train_ims_per_batch=1)
    kept = case.layer.roidb[0]["bbox_targets"].copy()  # type: ignore[attr-defined]
    assert case.layer.bbox_means.shape == (4, 4)  # type: ignore[attr-defined]
    again = layer(case.layer.roidb, 6, train_ims_per_batch=1)  # type: ignore[attr-defined]
    np.testing.assert_array_equal(again.layer.roidb[0]["bbox_targets"], kept)  # type: ignore[attr-defined]
    assert again.layer.bbox_means is None  # type: ignore[attr-defined]


def test_the_seed_decides() -> None:
    runs = []
    for _ in range(2):
        minicaffe.set_random_seed(9)
        case = layer([with_proposals(i, 200) for i in range(3)], 6, train_batch_size=16)
        runs.append([case.forward() for _ in range(3)])
    for first, second in zip(*runs, strict=True):
        for a, b in zip(first, second, strict=True):
            np.testing.assert_array_equal(a, b)


def test_the_original_module_and_entries_of_the_originals_form() -> None:
    class Sparse:
        def toarray(self) -> np.ndarray:
            return np.array([[0, 1, 0, 0], [0, 0, 0, 1]], np.float32)

    text = (
        'type: "Python" python_param { module: "roi_data_layer.layer" layer: "RoIDataLayer" param_str: "\'num_classes\': 4" }'
    )
    with settings(train_scales=(60,), train_max_size=100):
        case = LayerCase(text, tops=3, phase=TRAIN)
    case.layer.set_roidb([{**entry(), "gt_overlaps": Sparse(), "flipped": False, "seg_areas": np.ones(2)}])  # type: ignore[attr-defined]
    assert case.forward()[2].shape == (2, 5)


def test_the_shapes_before_the_first_batch() -> None:
    with settings():
        rpn, fast = LayerCase(FOUR, tops=3), LayerCase(FOUR, tops=6)
    assert [top.shape for top in rpn.top] == [(1, 3, 600, 1000), (1, 3), (1, 5)]
    assert [top.shape for top in fast.top] == [(2, 3, 600, 1000), (1, 5, 1, 1), (1, 1, 1, 1), *[(1, 16, 1, 1)] * 3]


def test_a_new_roidb_takes_over() -> None:
    case = layer([entry()])
    case.forward()
    case.layer.set_roidb([entry(30, 50)])  # type: ignore[attr-defined]
    assert case.forward()[0].shape == (1, 3, 60, 100)


def changed(**values: Any) -> Entry:
    return {**entry(), **values}  # type: ignore[typeddict-item]


@pytest.mark.parametrize(
    ("roidb", "message"),
    [
        ([], "a roidb of 0 images has no image with boxes to train on"),
        ([changed(boxes=[], gt_classes=[])], "a roidb of 1 images has no image with boxes"),
        ([changed(boxes=[[0, 0, np.nan, 5]], gt_classes=[1])], r"an image of shape \(30, 40, 3\): box 0, .* is not finite"),
        ([changed(boxes=[[0, 0, 3, 5], [9, 0, 3, 5]], gt_classes=[1, 1])], "box 1, .* has x2 < x1 or y2 < y1"),
        (
            [changed(boxes=[[0, 0, 40, 5]], gt_classes=[1])],
            r"is outside the image of 40 x 30 \(x from 0 to 39, y from 0 to 29\)",
        ),
        ([changed(gt_classes=[1, 4])], "class 4 is not one of the 4 classes"),
    ],
)
def test_roidb_errors(roidb: list[Entry], message: str) -> None:
    with pytest.raises(LayerError, match=f'RoIData layer "layer": .*{message}'):
        layer(roidb)


def test_errors(tmp_path: Path) -> None:
    with pytest.raises(LayerError, match=r"takes 3 \(with an RPN: data, im_info, gt_boxes; without .*\), 5 or 6, got 4 tops"):
        LayerCase(FOUR, tops=4)
    with pytest.raises(LayerError, match="takes 3 to 6 tops, got 2"):
        LayerCase(FOUR, tops=2)
    with pytest.raises(LayerError, match="param_str must give 'num_classes'"):
        LayerCase('type: "RoIData"', tops=3)
    with pytest.raises(LayerError, match=r"has no images: give --roidb to .* or call set_roidb on this layer before forward"):
        LayerCase(FOUR, tops=3).forward()
    with pytest.raises(LayerError, match=r"gone.jpg: no such file"):
        layer([changed(image=str(tmp_path / "gone.jpg"))])
    case = layer([changed(image=str(tmp_path / "gone.jpg"), width=40, height=30)])
    with pytest.raises(LayerError, match=r"gone.jpg: no such file"):
        case.forward()
    Image.fromarray(pixels(31, 40)).save(tmp_path / "b.png")
    case = layer([changed(image=str(tmp_path / "b.png"), width=40, height=30)])
    with pytest.raises(LayerError, match=r"b.png: the roidb says 40 x 30, the file is 40 x 31"):
        case.forward()
