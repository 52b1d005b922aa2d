"""DiceCoefLoss."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe.errors import LayerError

pytestmark = [pytest.mark.usefixtures("device"), pytest.mark.gpu_barrier]


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape)


TEXT = 'type: "DiceCoefLoss" dice_coef_loss_param {{ {} }}'


def test_by_hand() -> None:
    """One image, two classes, two pixels: overlap 0.5 + 1, squares 0.25 + 1, labels 2, s = 1."""
    x, labels = [[[[0.5, 0.0]], [[0.0, 1.0]]]], [[[[0.0, 1.0]]]]
    case = LayerCase('type: "DiceCoefLoss"', x, labels)
    assert case.forward()[0] == pytest.approx(1 - (2 * 1.5 + 1) / (1.25 + 2 + 1))
    above, below = 4, 4.25
    wanted = [[[[2 * (0.5 * above / below - 1) / below, 0]], [[0, 2 * (above / below - 1) / below]]]]
    np.testing.assert_allclose(case.backward(np.array(1.0))[0], wanted)
    (loss,) = LayerCase(TEXT.format("generalization: MULTICLASS ignore_label: 0"), x, labels).forward()
    assert loss == pytest.approx(1 - (2 + 1) / (1 + 1 + 1))
    (loss,) = LayerCase(TEXT.format("generalization: MULTICLASS_WEIGHTED"), x, labels).forward()
    assert loss == pytest.approx(1 - 2 * 1.5 / (1.25 + 2))  # two volumes of 1: equal weights


@pytest.mark.parametrize(
    "param",
    [
        "",
        "generalization: MULTICLASS ignore_label: 1",
        "generalization: MULTICLASS_WEIGHTED",
        "generalization: MULTICLASS_WEIGHTED weight_mode: EQUALIZE_CLASSES ignore_label: 0",
        "generalization: MULTICLASS_WEIGHTED_BATCH weight_mode: EXTRA_SMALL_VOLUMES",
    ],
)
def test_gradient(param: str) -> None:
    x, labels = np.random.default_rng(3).uniform(0, 1, (2, 3, 4, 5)), np.random.default_rng(4).integers(0, 3, (2, 1, 4, 5))
    LayerCase(TEXT.format(param), x, labels.astype(float)).check_gradient()


@given(st.integers(1, 3), st.integers(2, 4), st.integers(1, 4))
def test_a_perfect_segmentation_has_no_loss(n: int, classes: int, width: int) -> None:
    labels = np.arange(n * 2 * width).reshape(n, 1, 2, width) % classes
    x = (labels == np.arange(classes).reshape(1, -1, 1, 1)).astype(float)
    for param in ("", "generalization: MULTICLASS_WEIGHTED"):
        assert LayerCase(TEXT.format(param), x, labels.astype(float)).forward()[0] == pytest.approx(0, abs=1e-9)


def test_ignore_label_has_no_effect_without_generalization() -> None:
    x, labels = normal(2, 3, 1, 4), np.zeros((2, 1, 1, 4))
    plain, given = (LayerCase(TEXT.format(param), x, labels).forward() for param in ("", "ignore_label: 255"))
    assert plain == given


def test_bad_labels() -> None:
    with pytest.raises(LayerError, match="label 2 at position 0"):
        LayerCase('type: "DiceCoefLoss"', np.zeros((1, 2, 1, 1)), [[[[2.0]]]]).forward()


@pytest.mark.parametrize(
    ("text", "shapes", "message"),
    [
        (TEXT.format(""), [(2,), (2,)], "x must be \\(N, C, ...\\)"),
        (TEXT.format(""), [(2, 3, 4, 5), (2, 1, 4, 4)], "labels"),
        *(
            (
                TEXT.format(f"generalization: {generalization} ignore_label: {label}"),
                [(2, 3, 4, 5), (2, 1, 4, 5)],
                f"ignore_label must be -1, for none, or one of the 3 classes from 0, got {label}",
            )
            for generalization in ("MULTICLASS", "MULTICLASS_WEIGHTED", "MULTICLASS_WEIGHTED_BATCH")
            for label in (255, 3, -2)
        ),
        (TEXT.format("contour_shape: SHARP"), [(2, 3, 4, 5), (2, 1, 4, 5)], "this contour_shape is not built"),
        (
            TEXT.format("generalization: MULTICLASS_WEIGHTED_ALL"),
            [(2, 3, 4, 5), (2, 1, 4, 5)],
            "this generalization is not built",
        ),
    ],
)
def test_errors(text: str, shapes: list[tuple[int, ...]], message: str) -> None:
    with pytest.raises(LayerError, match=message):
        LayerCase(text, *(np.zeros(shape) for shape in shapes))
