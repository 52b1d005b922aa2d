"""Overlaps as Cascade R-CNN counts them, at the edges of what counts."""

from __future__ import annotations

import numpy as np
import pytest

from minicaffe.layers.proposal.cascade_boxes import overlaps, paired_overlaps, suppressed

WHOLE, UPPER = [0.0, 0, 9, 9], [0.0, 0, 9, 4]
"""100 pixels, and 50 of them."""


@pytest.mark.parametrize(("divisor", "overlap"), [("IOU", 0.5), ("IOMU", 1.0), ("IOFU", 0.5)])
def test_a_box_stays_whose_overlap_is_the_threshold(divisor: str, overlap: float) -> None:
    boxes = np.array([WHOLE, UPPER])
    assert overlaps(boxes[:1], boxes[1:], divisor).tolist() == [[overlap]]
    assert suppressed(boxes, overlap, divisor).tolist() == [0, 1]
    assert suppressed(boxes, np.nextafter(overlap, 0), divisor).tolist() == [0]


def test_pairs_by_hand() -> None:
    """A part, a shared row, boxes apart, and boxes whose end is before their start."""
    boxes = np.array([WHOLE, WHOLE, [0.0, 0, 1, 2], [3.0, 3, 1, 5], WHOLE])
    others = np.array([UPPER, [0.0, 9, 9, 18], [5.0, 6, 9, 9], [1.0, 3, 3, 5], [5.0, 5, 2, 8]])
    assert paired_overlaps(boxes, others).tolist() == [0.5, 10 / 190, 0, 0, 0]
    assert paired_overlaps(boxes[:1], others[:1], unit=0).tolist() == [36 / 81]
