"""HardMining."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe.errors import LayerError

pytestmark = pytest.mark.usefixtures("device")

TEXT = 'type: "HardMining" hard_mining_param { num_roi_per_image: 2 num_image: 2 }'


def rois(*images: int) -> np.ndarray:
    return np.array([[image, 0, 0, i, 9] for i, image in enumerate(images)], float)


def test_by_hand() -> None:
    """Of image 0 two of four; image 1 has but one, so that the next best of image 0 comes too."""
    given_rois, other = rois(0, 0, 1, 0, 0), np.arange(15.0).reshape(5, 3)
    case = LayerCase(TEXT, [0.5, 0.1, 0.05, 0.7, 0.3], given_rois, other, tops=2)
    found, more = case.forward()
    assert found.tolist() == given_rois[[0, 2, 3, 4]].tolist() and more.tolist() == other[[0, 2, 3, 4]].tolist()


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 3)), min_size=1, max_size=9))
def test_no_roi_left_is_harder_than_one_of_its_image(drawn: list[tuple[int, int]]) -> None:
    images, scores = zip(*drawn, strict=True)
    (found,) = LayerCase(TEXT, np.array(scores, float), rois(*images)).forward()
    chosen = set(found[:, 3].astype(int))
    assert len(chosen) == len(found) == min(4, len(images))
    for image in (0, 1):
        kept, left = (
            [scores[i] for i in range(len(images)) if images[i] == image and (i in chosen) is is_in] for is_in in (1, 0)
        )
        assert not kept or not left or min(kept) >= max(left)


def test_a_second_reshape_and_no_gradient() -> None:
    case = LayerCase(TEXT, np.zeros(5), rois(0, 0, 0, 1, 1))
    case.bottom[0].reshape(2, 1, 1, 1)
    case.bottom[1].reshape(2, 5, 1, 1)
    assert case.forward()[0].shape == (2, 5, 1, 1)
    assert not any(diff.any() for diff in case.backward(np.ones((2, 5, 1, 1))))


@pytest.mark.parametrize(
    ("text", "bottoms", "tops", "message"),
    [
        (
            TEXT.replace("num_image: 2", "num_image: 0"),
            [np.zeros(2), rois(0, 0)],
            1,
            "needs num_roi_per_image > 0 and num_image",
        ),
        (TEXT, [np.zeros(2), rois(0, 0)], 2, "takes a top for each bottom but the first, got 2 and 2"),
        (TEXT, [np.zeros(2), rois(0, 0)[:, :4]], 1, r"the rois must be \(R, 5\)"),
        (TEXT, [np.zeros(3), rois(0, 0)], 1, r"3 scores, but bottom 1 has the shape \(2, 5\)"),
        (TEXT, [np.zeros(2), rois(0, 2)], 1, "a roi is of image 2, num_image is 2"),
    ],
)
def test_errors(text: str, bottoms: list[np.ndarray], tops: int, message: str) -> None:
    with pytest.raises(LayerError, match=message):
        LayerCase(text, *bottoms, tops=tops).forward()
