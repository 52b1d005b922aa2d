from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from detection_case import settings
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from minicaffe.data.roidb import add_flipped, add_proposals, prepare_roidb, usable
from minicaffe.data.roidb_entry import Entry
from minicaffe.errors import DataError
from minicaffe.ops import bbox_overlaps


def entry(**changes: Any) -> Entry:
    made = Entry(
        image=np.zeros((30, 40, 3), np.uint8), boxes=np.array([[2, 3, 20, 25], [10, 0, 39, 12]]), gt_classes=np.array([1, 3])
    )
    return {**made, **changes}  # type: ignore[typeddict-item]


def test_prepare_by_hand() -> None:
    """Two gt boxes of classes 1 and 3, and a proposal that is the upper half of the first."""
    (made,) = prepare_roidb(add_proposals([entry(boxes=[[0, 0, 9, 9], [20, 20, 29, 29]])], [np.array([[0, 0, 9, 4]])]), 5)
    assert (made["width"], made["height"], made["flipped"]) == (40, 30, False)
    np.testing.assert_array_equal(made["gt_overlaps"], [[0, 1, 0, 0, 0], [0, 0, 0, 1, 0], [0, 0.5, 0, 0, 0]])
    np.testing.assert_array_equal(made["max_overlaps"], [1, 1, 0.5])
    np.testing.assert_array_equal(made["max_classes"], [1, 3, 1])


@given(st.integers(0, 10**6), st.integers(0, 4), st.integers(0, 9))
def test_overlaps_by_class(seed: int, boxes: int, proposals: int) -> None:
    rng = np.random.default_rng(seed)
    corner = rng.integers(0, 15, (boxes + proposals, 2))
    every = np.column_stack([corner, corner + rng.integers(0, 15, corner.shape)])
    classes = rng.integers(1, 3, boxes)
    (made,) = prepare_roidb(add_proposals([entry(boxes=every[:boxes], gt_classes=classes)], [every[boxes:]]), 3)
    for k in (1, 2):
        gt = every[:boxes][classes == k]
        expected = bbox_overlaps(every, gt).max(axis=1, initial=0)
        np.testing.assert_allclose(made["gt_overlaps"][:, k], expected, rtol=1e-6)
    assert made["gt_overlaps"].shape == (boxes + proposals, 3)


def test_entries_are_copied() -> None:
    given_entry = entry()
    before = dict(given_entry)
    prepare_roidb([given_entry], 4)
    add_flipped([given_entry])
    assert given_entry == before


def test_sizes_come_from_the_file(tmp_path: Path) -> None:
    Image.new("RGB", (50, 31)).save(tmp_path / "a.png")
    (made,) = prepare_roidb([entry(image=tmp_path / "a.png")], 4)
    assert (made["width"], made["height"]) == (50, 31)


def test_flipping() -> None:
    plain, flipped = add_flipped([entry()])
    np.testing.assert_array_equal(plain["boxes"], entry()["boxes"])
    np.testing.assert_array_equal(flipped["boxes"], [[19, 3, 37, 25], [0, 0, 29, 12]])
    assert flipped["flipped"]
    np.testing.assert_array_equal(flipped["gt_classes"], [1, 3])
    np.testing.assert_array_equal(add_flipped([flipped])[1]["boxes"], plain["boxes"])
    assert not add_flipped([flipped])[1]["flipped"]


def test_proposals_keep_sizes_and_mirroring() -> None:
    (made,) = add_proposals([entry(width=40, height=30, flipped=True)], [np.zeros((0, 4))])
    assert (made["width"], made["height"], made["flipped"], len(made["boxes"])) == (40, 30, True, 2)
    with pytest.raises(DataError, match="1 images but proposals for 2"):
        add_proposals([entry()], [np.zeros((0, 4))] * 2)


def test_usable() -> None:
    """One image has gt boxes, one none at all, one a proposal with no overlap: background where BG_THRESH_LO is 0."""
    lone = add_proposals([entry(boxes=[], gt_classes=[])], [np.array([[0, 0, 5, 5]])])[0]
    roidb = prepare_roidb([entry(), entry(boxes=[], gt_classes=[]), lone], 4)
    with settings() as made:
        assert len(usable(roidb, made)) == 1
    with settings(train_bg_thresh_lo=0.0) as made:
        assert len(usable(roidb, made)) == 2


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (Entry(image="a.jpg"), "an entry of a roidb must have image, boxes and gt_classes; this one has image"),
        (Entry(), "this one has nothing"),
        (entry(gt_classes=[1]), r"an image of shape \(30, 40, 3\): 2 boxes but 1 classes"),
        (entry(boxes=[[1, 2, 3], [4, 5, 6]]), r"boxes must be \(N, 4\): x1, y1, x2, y2; got shape \(2, 3\)"),
        (entry(boxes=[[1, 2, 3, np.nan], [4, 5, 6, 7]]), r"box 0, \[1.0, 2.0, 3.0, nan\], is not finite"),
        (entry(boxes=[[1, 2, 3, 4], [4, 5, 6, 3]]), r"box 1, \[4.0, 5.0, 6.0, 3.0\], has x2 < x1 or y2 < y1"),
        (
            entry(boxes=[[1, 2, 3, 4], [-1, 5, 6, 7]]),
            r"box 1, .* is outside the image of 40 x 30 \(x from 0 to 39, y from 0 to 29\)",
        ),
        (entry(boxes=[[1, 2, 3, 30], [1, 5, 6, 7]]), r"box 0, .* is outside the image of 40 x 30"),
        (entry(gt_classes=[1, 7]), "class 7 is not one of the 4 classes"),
        (entry(gt_classes=[1, -1]), "class -1 is not one of the 4 classes"),
        (entry(image="pictures/gone.jpg"), "pictures/gone.jpg: no such file"),
        (entry(image="x.jpg", width=40, height=30, gt_classes=[9, 1]), "x.jpg: class 9"),
    ],
)
def test_errors(made: Entry, message: str) -> None:
    with pytest.raises(DataError, match=message):
        prepare_roidb([made], 4)
