"""Average precision: cases worked by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minicaffe.detection.evaluation import (
    ImageBoxes,
    all_point_area,
    average_precision,
    eleven_point_area,
    precision_recall,
    true_positives,
)

LEFT, RIGHT, FAR = [0, 0, 9, 9], [20, 0, 29, 9], [100, 100, 119, 119]
NONE = np.zeros((0, 4))


def image(boxes, scores=None):
    return ImageBoxes(np.array(boxes, float).reshape(-1, 4), None if scores is None else np.array(scores, float))


def test_worked_by_hand():
    """Three true boxes; ranked hits are yes, no, yes: recall 1/3, 1/3, 2/3, precision 1, 1/2, 2/3."""
    truth = [image([LEFT, RIGHT]), image([FAR])]
    detections = [image([LEFT, FAR], [0.9, 0.8]), image([FAR], [0.7])]
    recall, precision = precision_recall(detections, truth)
    np.testing.assert_allclose(recall, [1 / 3, 1 / 3, 2 / 3])
    np.testing.assert_allclose(precision, [1, 1 / 2, 2 / 3])
    assert average_precision(detections, truth) == pytest.approx(1 / 3 + 2 / 9)
    assert average_precision(detections, truth, voc2007=True) == pytest.approx((4 * 1 + 3 * 2 / 3) / 11)


def test_precision_before_a_later_peak_is_raised():
    recall, precision = np.array([0, 0.5, 1.0]), np.array([0, 0.5, 2 / 3])
    assert all_point_area(recall, precision) == pytest.approx(2 / 3)
    assert eleven_point_area(recall, precision) == pytest.approx(2 / 3)


def test_a_second_detection_of_a_box_is_false():
    assert true_positives(np.array([LEFT, [0, 0, 9, 8]]), np.array([LEFT, RIGHT]), 0.5).tolist() == [True, False]
    assert average_precision([image([LEFT, LEFT], [0.5, 0.9])], [image([LEFT])]) == 1.0


def test_an_overlap_at_the_threshold_hits():
    assert true_positives(np.array([[0, 0, 9, 4]]), np.array([LEFT]), 0.5).tolist() == [True]
    assert true_positives(np.array([[0, 0, 9, 4]]), np.array([LEFT]), 0.51).tolist() == [False]


def test_scores_rank_across_images():
    truth = [image([LEFT]), image([LEFT])]
    wrong_first = [image([FAR], [0.9]), image([LEFT], [0.1])]
    assert average_precision(wrong_first, truth) == pytest.approx(0.5 * 0.5)


def test_nothing_to_find_and_nothing_found():
    assert math.isnan(average_precision([image([LEFT], [0.5])], [image(NONE)]))
    assert math.isnan(average_precision([image(NONE, [])], [image(NONE)]))
    assert average_precision([image(NONE, [])], [image([LEFT])]) == 0.0


def test_as_many_images_on_both_sides():
    with pytest.raises(ValueError, match="longer"):
        average_precision([image([LEFT], [0.5])], [image([LEFT]), image([LEFT])])


@given(st.lists(st.booleans(), min_size=1, max_size=12))
def test_area_is_between_final_recall_times_worst_and_final_recall(hits):
    count = np.cumsum(hits)
    recall, precision = count / 15, count / np.arange(1, len(hits) + 1)
    assert recall[-1] * precision.min() - 1e-12 <= all_point_area(recall, precision) <= recall[-1] + 1e-12
