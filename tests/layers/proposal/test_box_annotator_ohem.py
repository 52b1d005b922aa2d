"""BoxAnnotatorOHEM: the hardest rois of each image."""

import numpy as np
import pytest
from golden import cases, run_case
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe.errors import LayerError
from minicaffe.layers.proposal.ohem import hardest

pytestmark = pytest.mark.usefixtures("device")


def annotator(images, losses, labels, weights, text="roi_per_img: 2"):
    rois = np.zeros((len(images), 5))
    rois[:, 0] = images
    rois[:, 1:] = 99
    return LayerCase(f'type: "BoxAnnotatorOHEM" box_annotator_ohem_param {{ {text} }}', rois, losses, labels, weights, tops=2)


@pytest.mark.gpu_barrier
def test_by_hand():
    weights = np.arange(1, 13).reshape(6, 2)
    case = annotator([0, 1, 0, 0, 1, 0], [1, 5, 3, 2, 4, 3], [10, 11, 12, 13, 14, 15], weights)
    labels, kept = case.forward()
    np.testing.assert_array_equal(labels, np.reshape([-1, 11, 12, -1, 14, 15], (6, 1, 1, 1)))
    np.testing.assert_array_equal(kept, np.where(labels != -1, weights.reshape(6, 2, 1, 1), 0))


@pytest.mark.parametrize("case", cases("BoxAnnotatorOHEM"))
def test_golden(case):
    assert run_case(case) == 2


def test_ties_go_to_the_earlier_roi():
    np.testing.assert_array_equal(hardest(np.zeros(40), np.ones(40), 7), np.arange(40) < 7)


def test_ignore_label():
    labels, _ = annotator([0, 0, 0], [1, 2, 3], [4, 5, 6], np.ones((3, 4)), "roi_per_img: 1 ignore_label: 255").forward()
    np.testing.assert_array_equal(labels.ravel(), [255, 255, 6])


def test_spatial_rois():
    rois = np.zeros((1, 5, 2, 3))
    losses = np.arange(6.0).reshape(1, 1, 2, 3)
    labels, weights = losses + 10, np.arange(24.0).reshape(1, 4, 2, 3)
    text = 'type: "BoxAnnotatorOHEM" box_annotator_ohem_param { roi_per_img: 2 }'
    got, kept = LayerCase(text, rois, losses, labels, weights, tops=2).forward()
    np.testing.assert_array_equal(got, [[[[-1, -1, -1], [-1, 14, 15]]]])
    np.testing.assert_array_equal(kept, weights * (got != -1))


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(0, 9)), max_size=40), st.integers(1, 9))
def test_keeps_the_largest_losses_of_each_image(rois, per_image):
    images, losses = (np.array(column, float) for column in (zip(*rois, strict=True) if rois else ([], [])))
    chosen = hardest(images, losses, per_image)
    for image in set(images):
        mine = images == image
        assert chosen[mine].sum() == min(per_image, mine.sum())
        left = losses[mine & ~chosen]
        assert not len(left) or left.max() <= losses[mine & chosen].min()


def test_every_bottom_gets_a_zero_diff():
    case = annotator([0, 0, 0], [1, 2, 3], [4, 5, 6], np.ones((3, 4)))
    case.forward()
    for blob in case.bottom:
        blob.diff[...] = 7
    assert not any(d.any() for d in case.backward())


def test_no_rois_and_a_second_reshape():
    case = annotator([0, 0, 0], [1, 2, 3], [4, 5, 6], np.ones((3, 4)))
    case.forward()
    for blob, shape in zip(case.bottom, [(0, 5), (0,), (0, 1, 1, 1), (0, 8)], strict=True):
        blob.reshape(shape)
    assert [t.shape for t in case.forward()] == [(0, 1, 1, 1), (0, 8, 1, 1)]


def test_roi_per_img_zero():
    with pytest.raises(LayerError, match='BoxAnnotatorOHEM layer "layer": roi_per_img must be > 0, got 0'):
        annotator([0], [1], [4], np.ones((1, 4)), "roi_per_img: 0")


@pytest.mark.parametrize(
    "shapes, message",
    [
        ([(3, 4), (3,), (3,), (3, 4)], r"bottom 0 \(rois\) must have shape \(3, 5, 1, 1\), got \(3, 4\)"),
        ([(3, 5), (2,), (3,), (3, 4)], r"bottom 1 \(losses\) must have shape \(3, 1, 1, 1\), got \(2,\)"),
        ([(3, 5), (3,), (3, 2), (3, 4)], r"bottom 2 \(labels\) must have shape \(3, 1, 1, 1\), got \(3, 2\)"),
        ([(3, 5), (3,), (3,), (3, 4, 2)], r"bottom 3 \(box weights\) must have shape \(3, 4, 1, 1\), got \(3, 4, 2\)"),
    ],
)
def test_shapes(shapes, message):
    with pytest.raises(LayerError, match=message):
        LayerCase('type: "BoxAnnotatorOHEM" box_annotator_ohem_param { roi_per_img: 2 }', *map(np.zeros, shapes), tops=2)


@pytest.mark.parametrize("index", [-1, 0.5, np.nan])
def test_batch_index(index):
    with pytest.raises(LayerError, match=f"roi 1 has batch index {index:g}, which is not a whole number >= 0"):
        annotator([0, index], [1, 2], [4, 5], np.ones((2, 4))).forward()
