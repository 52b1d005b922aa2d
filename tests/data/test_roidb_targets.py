from __future__ import annotations

import numpy as np
import pytest
from detection_case import settings
from hypothesis import given
from hypothesis import strategies as st

from minicaffe.data.roidb import add_bbox_regression_targets, add_proposals, prepare_roidb, target_statistics
from minicaffe.data.roidb_entry import Entry, Roidb
from minicaffe.ops import bbox_overlaps, bbox_transform


def roidb(seed: int, images: int = 3) -> Roidb:
    rng = np.random.default_rng(seed)
    made, proposals = [], []
    for _ in range(images):
        corner = rng.integers(0, 20, (14, 2))
        boxes = np.column_stack([corner, corner + rng.integers(3, 19, (14, 2))])
        made.append(Entry(image=np.zeros((40, 50, 3), np.uint8), boxes=boxes[:3], gt_classes=rng.integers(1, 4, 3)))
        proposals.append(boxes[3:])
    return prepare_roidb(add_proposals(made, proposals), 4)


@given(st.integers(0, 10**6))
def test_unnormalised_targets_by_the_definition(seed: int) -> None:
    entries = roidb(seed, 2)
    with settings(train_bbox_normalize_targets=False) as made:
        means, stds = add_bbox_regression_targets(entries, made)
    assert not means.any() and (stds == 1).all()
    for entry in entries:
        gt = entry["boxes"][:3].astype(float)
        for box, target in zip(entry["boxes"].astype(float), entry["bbox_targets"], strict=True):
            overlaps = bbox_overlaps(box[None], gt)[0]
            if overlaps.max() < 0.5:
                assert not target.any()
            else:
                assert target[0] in entry["gt_classes"][:3][overlaps == overlaps.max()]
                np.testing.assert_allclose(target[1:], bbox_transform(box[None], gt[[overlaps.argmax()]])[0], atol=1e-6)


def test_normalised_targets_have_mean_0_and_std_1_by_class() -> None:
    entries = roidb(3, 40)
    with settings() as made:
        means, stds = add_bbox_regression_targets(entries, made)
    targets = np.concatenate([entry["bbox_targets"] for entry in entries])
    for k in (1, 2, 3):
        of_class = targets[targets[:, 0] == k, 1:].astype(float)
        assert len(of_class) > 20
        np.testing.assert_allclose(of_class.mean(axis=0), 0, atol=1e-5)
        np.testing.assert_allclose(of_class.std(axis=0), 1, atol=1e-5)
        assert means[k].any()
    assert not means[0].any() and (stds[0] == 1).all()


def test_agnostic_statistics_are_of_all_classes() -> None:
    entries = roidb(3, 40)
    with settings(train_agnostic=True) as made:
        means, _ = add_bbox_regression_targets(entries, made)
    targets = np.concatenate([entry["bbox_targets"] for entry in entries])
    np.testing.assert_allclose(targets[targets[:, 0] > 0, 1:].mean(axis=0), 0, atol=1e-5)
    assert means.shape == (2, 4) and means[1].any() and not means[0].any()


def test_precomputed_means_and_stds() -> None:
    plain, normalised = roidb(1), roidb(1)
    with settings(train_bbox_normalize_targets=False) as made:
        add_bbox_regression_targets(plain, made)
    with settings(train_bbox_normalize_targets_precomputed=True, train_bbox_normalize_means=(0.1, 0.2, 0.3, 0.4)) as made:
        means, stds = add_bbox_regression_targets(normalised, made)
    np.testing.assert_array_equal(means, [[0.1, 0.2, 0.3, 0.4]] * 4)
    np.testing.assert_array_equal(stds, [[0.1, 0.1, 0.2, 0.2]] * 4)
    for a, b in zip(plain, normalised, strict=True):
        at = a["bbox_targets"][:, 0] > 0
        np.testing.assert_allclose(b["bbox_targets"][at, 1:] * stds[0] + means[0], a["bbox_targets"][at, 1:], atol=1e-6)
        assert not b["bbox_targets"][~at].any()


def test_one_target_and_none() -> None:
    """Class 1 has two deltas, class 2 one, whose std of 0 counts as 1, class 3 none."""
    targets = np.array([[1, 1, 0, 0, 0], [1, 3, 0, 0, 0], [2, 5, 6, 7, 8], [0, 0, 0, 0, 0]], float)
    means, stds = target_statistics(targets, 4, False, 1e-14)
    np.testing.assert_array_equal(means, [[0] * 4, [2, 0, 0, 0], [5, 6, 7, 8], [0] * 4])
    np.testing.assert_array_equal(stds, np.ones((4, 4)))


def test_an_image_without_gt_boxes_has_no_targets() -> None:
    entries = prepare_roidb(
        add_proposals([Entry(image=np.zeros((9, 9, 3)), boxes=[], gt_classes=[])], [np.array([[0, 0, 5, 5]])]),
        4,  # type: ignore[typeddict-item]
    )
    with settings() as made:
        add_bbox_regression_targets(entries, made)
    assert entries[0]["bbox_targets"].tolist() == [[0.0] * 5]
    assert entries[0]["max_overlaps"] == pytest.approx(0)
