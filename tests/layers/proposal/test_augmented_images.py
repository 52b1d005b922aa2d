"""SSD's augmentation in RoIData: boxes stay on their objects, and without it nothing changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from detection_case import python_layer, settings
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase

import minicaffe
from minicaffe import limits
from minicaffe.data.augmentation import distorted
from minicaffe.data.images import prepare_image
from minicaffe.data.roidb import add_flipped, add_proposals, class_overlaps, prepare_roidb
from minicaffe.data.roidb_entry import Entry
from minicaffe.errors import LayerError
from minicaffe.layers.proposal.augmented_images import Augmentation, augmentation_of, seen_entry
from minicaffe.mode import TEST, TRAIN, Phase
from minicaffe.ops import bbox_overlaps, bbox_transform
from minicaffe.rng import generator

GREY, COLOURS = 90, (200, 30, 250)
BOXES = np.array([[4, 6, 19, 25], [30, 2, 55, 12], [28, 20, 33, 37]])
KINDS = np.array([1, 3, 1])
ALL = {"train_distort": 1.0, "train_channel_order": 0.5, "train_expand": 3.0, "train_crop": 0.3}


def picture(height: int = 40, width: int = 60) -> Entry:
    """Return a grey image with three boxes, each of its own colour."""
    pixels = np.full((height, width, 3), GREY, np.uint8)
    for (x1, y1, x2, y2), colour in zip(BOXES, COLOURS, strict=True):
        pixels[y1 : y2 + 1, x1 : x2 + 1] = colour
    return Entry(image=pixels, boxes=BOXES.copy(), gt_classes=KINDS.copy())


def layer(roidb: list[Entry], tops: int = 3, phase: Phase = TRAIN, **changes: Any) -> LayerCase:
    with settings(**{"train_scales": (60,), "train_max_size": 100, **changes}):
        case = LayerCase(python_layer("RoIData", num_classes=4), tops=tops, phase=phase)
    case.layer.set_roidb(roidb)  # type: ignore[attr-defined]
    return case


def made(**changes: float) -> Augmentation:
    with settings(**changes, pixel_means=(7.0, 7.0, 7.0)) as chosen:
        found = augmentation_of(chosen)
    assert found
    return found


def test_without_it_the_random_numbers_are_as_before() -> None:
    """An order of the images and a scale are drawn for a batch, and nothing else."""
    minicaffe.set_random_seed(5)
    layer([picture(), picture()]).forward()
    wanted = np.random.default_rng(5)
    wanted.permutation(2)
    wanted.integers(1)
    assert generator().bit_generator.state == wanted.bit_generator.state


def test_a_test_net_gets_plain_images() -> None:
    minicaffe.set_random_seed(5)
    plain, same = (layer([picture()], phase=TEST, **changes).forward() for changes in ({}, ALL))
    for a, b in zip(plain, same, strict=True):
        np.testing.assert_array_equal(a, b)


@given(st.integers(0, 10**6), st.booleans())
def test_boxes_stay_on_their_objects(seed: int, flipped: bool) -> None:
    """Each box is the extent of its colour, inclusive; a colour without a box has its middle outside the image."""
    entry = prepare_roidb(add_flipped([picture()]), 4)[flipped]
    pixels = entry["image"][:, ::-1] if flipped else entry["image"]
    seen, image = made(train_expand=3, train_crop=0.3)(entry, pixels, np.random.default_rng(seed))
    assert (seen["height"], seen["width"]) == image.shape[:2]
    assert len(seen["boxes"])
    boxes = {(k, *box) for k, box in zip(seen["gt_classes"].tolist(), seen["boxes"].tolist(), strict=True)}
    for colour, k, box in zip(COLOURS, KINDS.tolist(), BOXES, strict=True):
        rows, columns = np.nonzero(image[:, :, 0] == colour)
        if not len(rows):
            continue
        extent = (k, columns.min(), rows.min(), columns.max(), rows.max())
        wide, high = box[2:] - box[:2] + 1
        is_central = 2 * (columns.max() - columns.min() + 1) >= wide and 2 * (rows.max() - rows.min() + 1) >= high
        assert (extent in boxes) == is_central
        boxes.discard(extent)
    assert not boxes


def test_its_parts_by_hand() -> None:
    """A canvas has the colour of the means and at most 3 sides; a crop has at least 0.3 of the sides' mean."""
    entry = prepare_roidb([picture()], 4)[0]
    sizes, small = set(), 0
    for seed in range(60):
        _, image = made(train_expand=3)(entry, entry["image"], np.random.default_rng(seed))
        height, width = image.shape[:2]
        sizes.add((height, width))
        assert 40 <= height <= 120 and 60 <= width <= 180
        assert set(np.unique(image)) <= {7, GREY, *COLOURS}
        assert (image != 7).all(axis=2).sum() == 40 * 60
        _, image = made(train_crop=0.3)(entry, entry["image"], np.random.default_rng(seed))
        area = image.shape[0] * image.shape[1] / (40 * 60)
        assert 0.3**2 * 0.8 <= area <= 1
        small += area < 0.5
    assert len(sizes) > 15 and (40, 60) in sizes and small > 10


def test_colours_change_as_those_of_annotated_data_do() -> None:
    with settings(train_scales=(40,), train_distort=1.0, train_channel_order=0.5) as chosen:
        augmentation = augmentation_of(chosen)
        assert augmentation and augmentation.distort
        case = LayerCase(python_layer("RoIData", num_classes=4), tops=3, phase=TRAIN)
        case.layer.set_roidb([picture()])  # type: ignore[attr-defined]
        changed = 0
        for seed in range(8):
            minicaffe.set_random_seed(seed)
            found = case.forward()[0].copy()
            random = np.random.default_rng(seed)
            if not seed:
                random.permutation(1)  # the later batches are of the same order
            case.layer.order = np.array([0])  # type: ignore[attr-defined]
            random.integers(1)
            pixels = distorted(picture()["image"], augmentation.distort, random)  # type: ignore[arg-type]
            np.testing.assert_array_equal(found, prepare_image(pixels, chosen, TRAIN)[0])
            changed += bool((pixels != picture()["image"]).any())
    assert changed >= 5


def test_what_a_window_shows() -> None:
    """A window of 30 x 20 at 20, 10: objects by their middle, proposals by any part, with what belongs to each box."""
    entry = add_proposals([picture()], [np.array([[10, 0, 40.5, 15.25], [0, 0, 10, 5], [49.5, 10, 59, 39]])])[0]
    entry = prepare_roidb([entry], 4)[0]
    more = {"gt_ishard": np.arange(6), "bbox_targets": np.ones((6, 5)), "flipped": True}
    ignored = {"ignored_boxes": np.array([[0, 0, 25, 12], [0, 0, 5, 5]]), "ignored_classes": np.array([2, 3])}
    seen = seen_entry({**entry, **more, **ignored}, np.array([20, 10, 50, 30]))  # type: ignore[typeddict-item]
    np.testing.assert_array_equal(seen["boxes"], [[8, 10, 13, 19], [0, 0, 20.5, 5.25], [29, 0, 29, 19]])
    np.testing.assert_array_equal(seen["gt_classes"], [1, 0, 0])
    np.testing.assert_array_equal(seen["gt_ishard"], [2, 3, 5])  # type: ignore[typeddict-item]
    np.testing.assert_array_equal(seen["ignored_boxes"], [[0, 0, 5, 2]])
    np.testing.assert_array_equal(seen["ignored_classes"], [2])
    assert (seen["width"], seen["height"], seen["flipped"]) == (30, 20, True)
    np.testing.assert_array_equal(seen["gt_overlaps"], class_overlaps(seen["boxes"], seen["gt_classes"], 4))
    np.testing.assert_array_equal(seen["max_overlaps"], seen["gt_overlaps"].max(axis=1))
    np.testing.assert_array_equal(seen["max_classes"], [1, 0, 0])
    assert "bbox_targets" not in seen
    np.testing.assert_array_equal(entry["boxes"][0], BOXES[0])  # the entry itself stays


def test_crowds_of_the_originals_are_no_objects() -> None:
    entry = picture()
    entry["gt_overlaps"] = class_overlaps(entry["boxes"].astype(np.float32), entry["gt_classes"], 4)
    entry["gt_overlaps"][0] = -1
    entry = prepare_roidb([entry], 4)[0]
    for seed in range(40):
        seen, _ = made(train_crop=0.3)(entry, entry["image"], np.random.default_rng(seed))  # type: ignore[arg-type]
        assert (seen["max_overlaps"] == 1).any()
        assert set(seen["max_overlaps"].tolist()) <= {-1, 1}


def with_proposals(seed: int) -> Entry:
    random = np.random.default_rng(seed)
    near = BOXES[random.integers(3, size=60)] + random.integers(-2, 3, (60, 4))
    return add_proposals([picture()], [np.clip(near, 0, [59, 39, 59, 39])])[0]


def test_rois_and_targets_of_fast_rcnn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rois are boxes of the augmented entries, and their targets are those to its objects, normalised as without."""
    entries: list[Entry] = []
    whole = Augmentation.__call__

    def noted(self: Augmentation, *arguments: Any) -> Any:
        found = whole(self, *arguments)
        entries.append(found[0])
        return found

    monkeypatch.setattr(Augmentation, "__call__", noted)
    roidb = [with_proposals(0), with_proposals(1)]
    rules = {"train_batch_size": 32, "train_bg_thresh_lo": 0.0, "train_max_size": 1000}
    case = layer(roidb, 6, **rules, **ALL)
    means, stds = case.layer.bbox_means, case.layer.bbox_stds  # type: ignore[attr-defined]
    np.testing.assert_array_equal(means, layer(roidb, 6, **rules).layer.bbox_means)  # type: ignore[attr-defined]
    foreground = 0
    for _ in range(10):
        entries.clear()
        tops = case.forward()
        assert len(entries) == 2
        rois, labels, targets = (top.reshape(len(top), -1) for top in tops[1:4])
        for roi, label, target in zip(rois, labels[:, 0].astype(int), targets, strict=True):
            entry = entries[int(roi[0])]
            scale = 60 / min(entry["height"], entry["width"])
            i = int(np.abs(entry["boxes"] * scale - roi[1:]).sum(axis=1).argmin())
            np.testing.assert_allclose(entry["boxes"][i] * scale, roi[1:], rtol=1e-5)
            gt = np.flatnonzero(entry["gt_classes"] > 0)
            overlaps = bbox_overlaps(entry["boxes"][[i]], entry["boxes"][gt])[0]
            assert label == (entry["gt_classes"][gt[overlaps.argmax()]] if overlaps.max() >= 0.5 else 0)
            wanted = np.zeros((4, 4))
            if label:
                foreground += 1
                nearest = entry["boxes"][[gt[overlaps.argmax()]]]
                deltas = bbox_transform(entry["boxes"][[i]].astype(float), nearest.astype(float))[0]
                wanted[label] = (deltas - means[label]) / stds[label]
            np.testing.assert_allclose(target, wanted.ravel(), atol=1e-4)
    assert foreground > 40


@pytest.mark.parametrize("tops", [3, 6])
def test_a_resumed_layer_draws_the_same(tops: int) -> None:
    roidb = [with_proposals(i) for i in range(3)]
    minicaffe.set_random_seed(9)
    case = layer(roidb, tops, **ALL)
    case.forward()
    state, numbers = case.layer.training_state(), generator().bit_generator.state
    straight = [[top.copy() for top in case.forward()] for _ in range(4)]
    again = layer(roidb, tops, **ALL)
    again.forward()
    again.layer.restore_training_state(state)
    generator().bit_generator.state = numbers
    for batch in straight:
        for a, b in zip(again.forward(), batch, strict=True):
            np.testing.assert_array_equal(a, b)


def test_what_is_refused() -> None:
    entry = picture()
    entry["image"] = entry["image"].astype(np.float32)  # type: ignore[union-attr]
    for part, value in (("DISTORT", 1.0), ("EXPAND", 2.0)):
        case = layer([entry], **{f"train_{part.lower()}": value})
        with pytest.raises(LayerError, match=f'RoIData layer "layer": TRAIN.{part} .*needs images of bytes'):
            case.forward()
    large = (
        r"an image of shape \(40, 60, 3\): expanded by TRAIN.EXPAND 3 to 180 x 120 has 21,600 pixels, and the limit is 21,599"
    )
    with limits.raised({"pixels": 40 * 60 * 9 - 1}), pytest.raises(LayerError, match=large):
        layer([picture()], train_expand=3.0)
    own = layer([with_proposals(0)], 6).layer.roidb  # type: ignore[attr-defined]
    with pytest.raises(LayerError, match="brings its own bbox_targets, which do not fit the augmented image: leave them out"):
        layer(own, 6, train_crop=0.5)
