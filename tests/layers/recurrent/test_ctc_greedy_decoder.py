"""CTCGreedyDecoder."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe.errors import LayerError
from minicaffe.layers.recurrent.ctc import edit_distance

pytestmark = pytest.mark.usefixtures("device")


def scores(*paths: list[int]) -> np.ndarray:
    """(T, N, 3) in which each path's classes are the best, with score 2."""
    return 2 * np.eye(3)[np.array(paths).T]


def on(steps: int, *lengths: int) -> np.ndarray:
    indicators = np.zeros((steps, len(lengths)))
    for n, length in enumerate(lengths):
        indicators[1:length, n] = 1
    return indicators


def test_by_hand() -> None:
    """Blank 2. The second sequence ends after three steps."""
    case = LayerCase('type: "CTCGreedyDecoder"', scores([0, 0, 2, 0, 1], [2, 1, 1, 0, 0]), on(5, 5, 3), tops=2)
    labels, sums = case.forward()
    assert labels.shape == (2, 5, 1, 1)
    assert labels[..., 0, 0].tolist() == [[0, 0, 1, -1, -1], [1, -1, -1, -1, -1]]
    assert sums.reshape(-1).tolist() == [-10, -6]


def test_without_merging_and_with_another_blank() -> None:
    text = 'type: "CTCGreedyDecoder" ctc_decoder_param { blank_index: 0 ctc_merge_repeated: false }'
    assert LayerCase(text, scores([0, 1, 1, 2]), on(4, 4)).forward()[0].reshape(-1).tolist() == [1, 1, 2, -1]


def test_accuracy() -> None:
    """0 1 where 0 is true: one of two wrong. 0 1 where it is true: right."""
    bottoms = scores([0, 2, 1], [0, 1, 2]), on(3, 3, 3), [[0.0, 0.0], [-1.0, 1.0], [-1.0, -1.0]]
    assert LayerCase('type: "CTCGreedyDecoder"', *bottoms, tops=2).forward()[1].reshape(-1).tolist() == [0.75]
    _, sums, accuracy = LayerCase('type: "CTCGreedyDecoder"', *bottoms, tops=3).forward()
    assert sums.reshape(-1).tolist() == [-6, -6]
    assert accuracy.reshape(-1).tolist() == [0.75]


def test_nothing_spelt_where_nothing_is_true_is_right() -> None:
    bottoms = scores([2, 2]), on(2, 2), [[-1.0], [-1.0]]
    assert LayerCase('type: "CTCGreedyDecoder"', *bottoms, tops=2).forward()[1].item() == 1


words = st.lists(st.integers(0, 2), max_size=5)


@given(words, words, words)
def test_edit_distance_is_a_metric(a: list[int], b: list[int], c: list[int]) -> None:
    assert (edit_distance(a, b) == 0) == (a == b)
    assert edit_distance(a, b) == edit_distance(b, a) <= max(len(a), len(b))
    assert edit_distance(a, c) <= edit_distance(a, b) + edit_distance(b, c)


@given(st.lists(st.integers(0, 1), min_size=1, max_size=5))
def test_labels_with_blanks_between_are_spelt(labels: list[int]) -> None:
    path = [c for label in labels for c in (label, 2)]
    spelt = LayerCase('type: "CTCGreedyDecoder"', scores(path), on(len(path), len(path))).forward()[0].reshape(-1)
    assert spelt.tolist() == labels + [-1] * len(labels)


def test_no_gradient_and_a_second_reshape() -> None:
    case = LayerCase('type: "CTCGreedyDecoder"', scores([0, 1]), on(2, 2))
    case.bottom[0].reshape(3, 2, 3)
    case.bottom[0].data[...] = scores([1, 0, 1], [2, 2, 0])
    case.bottom[1].reshape(3, 2)
    case.bottom[1].data[...] = on(3, 3, 3)
    assert case.forward()[0][..., 0, 0].tolist() == [[1, 0, 1], [0, -1, -1]]
    assert not any(diff.any() for diff in case.backward(np.ones((2, 3, 1, 1))))


@pytest.mark.parametrize(
    ("shapes", "tops", "text", "message"),
    [
        (((2, 3), (2, 3)), 1, "", r"the scores must be \(T, N, C\), got shape \(2, 3\)"),
        (((2, 3, 4), (5, 2)), 1, "", r"the indicators must be \(T, N\) as the scores, \(2, 3\), got shape \(5, 2\)"),
        (((2, 3, 4), (2, 3)), 3, "", "a third top, the accuracy, needs the true labels as a third bottom"),
        (((2, 3, 4), (2, 3)), 1, "blank_index: 4", "the blank must be one of the 4 classes, 0 to 3, got 4"),
    ],
)
def test_errors(shapes: tuple[tuple[int, ...], ...], tops: int, text: str, message: str) -> None:
    with pytest.raises(LayerError, match='CTCGreedyDecoder layer "layer": ' + message):
        LayerCase(f'type: "CTCGreedyDecoder" ctc_decoder_param {{ {text} }}', *(np.zeros(s) for s in shapes), tops=tops)


# caffe_ocr's.


def test_scores_alone() -> None:
    """Its blank is 0; every time step counts."""
    case = LayerCase('type: "CTCGreedyDecoder"', scores([0, 1, 1, 0, 1], [2, 2, 0, 0, 0]))
    assert case.forward()[0][..., 0, 0].tolist() == [[1, 1, -1, -1, -1], [2, -1, -1, -1, -1]]
    assert str(case.layer.choice) == "CTCGreedyDecoder of caffe_ocr: it has one bottom"
    text = 'type: "CTCGreedyDecoder" ctc_decoder_param { blank_index: 2 }'
    assert LayerCase(text, scores([0, 2, 1])).forward()[0].reshape(-1).tolist() == [0, 1, -1]


def test_accuracies_of_labels_without_indicators() -> None:
    """The first is right, without its blank; of two labels the second has one; the third, where nothing is true and nothing
    is spelt, counts an error among the whole sequences alone."""
    labels = [[0.0, 1, 2, -1], [1, 1, -1, 2], [0, 0, 0, 0]]
    case = LayerCase('type: "CTCGreedyDecoder"', scores([1, 0, 2, 2, 0], [1, 1, 0, 0, 0], [0] * 5), labels)
    np.testing.assert_allclose(case.forward()[0], [[[[1 - 0.5 / 3]], [[1 / 3]]]])


def test_as_many_sequences_as_time_steps_leave_it_open() -> None:
    bottoms = scores([1, 2], [2, 1]), np.array([[0.0, 0], [1, 1]])
    with pytest.raises(LayerError, match="there are as many time steps as sequences; give --fork NAME"):
        LayerCase('type: "CTCGreedyDecoder"', *bottoms)
    assert LayerCase('type: "CTCGreedyDecoder"', *bottoms, fork="ctc").forward()[0].shape == (2, 2, 1, 1)
    assert LayerCase('type: "CTCGreedyDecoder"', *bottoms, fork="caffeocr").forward()[0].shape == (1, 2, 1, 1)


def test_errors_of_scores_alone() -> None:
    with pytest.raises(LayerError, match="caffe_ocr's takes 1 top, got 2"):
        LayerCase('type: "CTCGreedyDecoder"', scores([0, 1]), tops=2)
