"""InfogainLoss: cross entropy weighed by a matrix over pairs of classes."""

import numpy as np
import pytest
from golden import cases, run_case
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe.errors import LayerError
from minicaffe.formats.weights import write_binaryproto
from minicaffe.layers.loss.softmax import softmax

pytestmark = pytest.mark.usefixtures("device")

rng = np.random.default_rng(26)
TYPE = 'type: "InfogainLoss"'


@pytest.mark.gpu_barrier
def test_by_hand():
    case = LayerCase(TYPE, [[0.0, np.log(3)], [5.0, 5.0]], [1, 0], [[2, 1], [0, 3]])
    np.testing.assert_allclose(case.forward()[0], -(3 * np.log(0.75) + 3 * np.log(0.5)) / 2)
    np.testing.assert_allclose(case.backward()[0], [[0.375, -0.375], [-0.25, 0.25]])


@pytest.mark.parametrize("case", cases("InfogainLoss"))
def test_golden(case):
    assert run_case(case) >= 1


@pytest.mark.parametrize("text", ["", "loss_param { ignore_label: 1 normalization: FULL } infogain_loss_param { axis: 2 }"])
def test_gradient(text):
    x = rng.normal(size=(2, 3, 3, 5))
    case = LayerCase(f"{TYPE} {text}", x, rng.integers(0, 3, (2, 3, 5)), rng.uniform(size=(3, 3)))
    assert case.check_gradient().elements == 90


@given(st.integers(0, 2**32 - 1))
def test_with_the_identity_it_is_softmax_with_loss(seed):
    random = np.random.default_rng(seed)
    x, labels = random.normal(0, 3, (6, 5, 2)), random.integers(0, 5, (6, 2))
    mine, twin = LayerCase(TYPE, x, labels, np.eye(5)), LayerCase('type: "SoftmaxWithLoss"', x, labels)
    np.testing.assert_allclose(mine.forward()[0], twin.forward()[0])
    np.testing.assert_allclose(mine.backward()[0], twin.backward()[0], atol=1e-12)


def test_second_top_and_matrix_from_a_file(tmp_path):
    matrix = rng.uniform(size=(4, 4)).astype(np.float32)
    write_binaryproto(tmp_path / "h.binaryproto", matrix)
    x, labels = rng.normal(size=(3, 4)), [0, 3, 2]
    text = f'{TYPE} infogain_loss_param {{ source: "{(tmp_path / "h.binaryproto").as_posix()}" }}'
    loss, prob = LayerCase(text, x, labels, tops=2).forward()
    np.testing.assert_allclose(loss, LayerCase(TYPE, x, labels, matrix).forward()[0])
    np.testing.assert_allclose(prob, softmax(x))


def test_second_reshape_to_no_images():
    case = LayerCase(TYPE, np.ones((3, 4)), [0, 1, 2], np.eye(4))
    case.forward()
    np.testing.assert_array_equal(case.bottom[0].data, np.ones((3, 4)))
    case.bottom[0].reshape(0, 4)
    case.bottom[1].reshape(0)
    assert case.forward()[0] == 0
    assert [d.shape for d in case.backward()] == [(0, 4), (0,), (4, 4)]


def test_matrix_of_another_size():
    with pytest.raises(LayerError, match=r"the infogain matrix needs 4 x 4 values for its 4 classes, got shape \(3, 3\)"):
        LayerCase(TYPE, np.zeros((2, 4)), [0, 1], np.eye(3))


def test_no_matrix():
    with pytest.raises(LayerError, match=r'InfogainLoss layer "layer": needs a third bottom or infogain_loss_param\.source'):
        LayerCase(TYPE, np.zeros((2, 4)), [0, 1])


def test_file_that_is_not_there():
    with pytest.raises(LayerError, match=r'InfogainLoss layer "layer": nowhere\.binaryproto: no such file'):
        LayerCase(TYPE + ' infogain_loss_param { source: "nowhere.binaryproto" }', np.zeros((2, 4)), [0, 1])


def test_labels():
    with pytest.raises(LayerError, match="label 4 at position 1 is not a label from 0 to 3"):
        LayerCase(TYPE, np.zeros((2, 4)), [0, 4], np.eye(4)).forward()
