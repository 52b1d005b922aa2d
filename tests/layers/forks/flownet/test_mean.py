"""Mean."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe.errors import LayerError
from minicaffe.formats.weights import write_binaryproto

pytestmark = [pytest.mark.usefixtures("device"), pytest.mark.gpu_barrier]


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape)


TEXT = 'type: "Mean" mean_param {{ {} }}'


def test_by_hand() -> None:
    x = np.arange(12.0).reshape(1, 2, 2, 3)
    case = LayerCase(TEXT.format("operation: SUBTRACT value: 1 value: 4 mean_scale: 2 input_scale: 3 output_scale: 0.5"), x)
    np.testing.assert_allclose(case.forward()[0][0, :, 0], [[-1, 0.5, 2], [5, 6.5, 8]])
    assert (case.backward(np.full((1, 2, 2, 3), 2.0))[0] == 3).all()
    (y,) = LayerCase(TEXT.format("operation: ADD value: 1 value: 4"), x).forward()
    np.testing.assert_allclose(y[0, :, 0], [[1, 2, 3], [10, 11, 12]])


def test_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    mean, x = normal(2, 3, 4), normal(5, 2, 3, 4)
    write_binaryproto(Path("mean.binaryproto"), mean[None])
    (y,) = LayerCase(TEXT.format('operation: SUBTRACT file: "mean.binaryproto"'), x).forward()
    np.testing.assert_allclose(y, x - mean, atol=1e-6)  # the file's numbers are float32
    with pytest.raises(LayerError, match="the mean has 3 x 4 pixels, x has 4 x 3"):
        LayerCase(TEXT.format('operation: SUBTRACT file: "mean.binaryproto"'), normal(5, 2, 4, 3))
    with pytest.raises(LayerError, match=r"gone\.binaryproto"):
        LayerCase(TEXT.format('operation: SUBTRACT file: "gone.binaryproto"'), x)


def test_gradient() -> None:
    LayerCase(TEXT.format("operation: ADD value: 1 value: 2 value: 3 input_scale: 2"), normal(2, 3, 4, 5)).check_gradient()


@given(st.integers(1, 3), st.integers(1, 4))
def test_adding_undoes_subtracting(n: int, channels: int) -> None:
    values = " ".join(f"value: {c + 0.5}" for c in range(channels))
    x = normal(n, channels, 2, 3)
    (y,) = LayerCase(TEXT.format("operation: SUBTRACT " + values), x).forward()
    (back,) = LayerCase(TEXT.format("operation: ADD " + values), y).forward()
    np.testing.assert_allclose(back, x, atol=1e-12)


@pytest.mark.parametrize(
    ("text", "shapes", "message"),
    [
        (TEXT.format("operation: ADD"), [(2, 3, 4, 5)], "give either a file or one value for each channel"),
        (TEXT.format("value: 1"), [(2, 1, 4, 5)], "operation is missing"),
        (TEXT.format("operation: ADD value: 1"), [(2, 3, 4, 5)], "the mean's 1 channels"),
    ],
)
def test_errors(text: str, shapes: list[tuple[int, ...]], message: str) -> None:
    with pytest.raises(LayerError, match=message):
        LayerCase(text, *(np.zeros(shape) for shape in shapes))
