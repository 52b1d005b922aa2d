"""RandomNoise."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe import set_random_seed
from minicaffe.errors import LayerError
from minicaffe.mode import TEST, TRAIN, Phase

pytestmark = pytest.mark.usefixtures("device")


def noise(inside: str, x: np.ndarray, phase: Phase = TRAIN, seed: int = 1) -> np.ndarray:
    """What is added to x."""
    set_random_seed(seed)
    case = LayerCase(f'type: "RandomNoise" random_noise_param {{ {inside} }}', x, phase=phase)
    return case.forward()[0] - x


@pytest.mark.parametrize("phase", [TRAIN, TEST])
def test_mean_and_deviation(phase: Phase) -> None:
    r = noise("mu: 2 sigma: 0.5", np.zeros((100, 100)), phase)
    assert abs(r.mean() - 2) < 0.02 and abs(r.std() - 0.5) < 0.02


def test_adaptive() -> None:
    """The deviation is half of |x|; of the zeros, half of the mean of all |x|, 2 here. mu does not count."""
    x = np.tile([[-2.0], [0], [6], [0]], 10000)
    r = noise("mu: 9 adaptive_sigma: true adaptive_factor: 0.5", x)
    np.testing.assert_allclose(r.std(axis=1), [1, 1, 3, 1], rtol=0.03)
    np.testing.assert_allclose(r.mean(axis=1), 0, atol=0.1)
    assert not noise("adaptive_sigma: true", np.zeros((3, 4))).any()


@settings(max_examples=10)
@given(st.floats(0.125, 8), st.integers(0, 99))
def test_a_seed_repeats_it_and_sigma_scales_it(sigma: float, seed: int) -> None:
    x = np.zeros((2, 3))
    np.testing.assert_allclose(noise(f"sigma: {sigma}", x, seed=seed), np.float32(sigma) * noise("", x, seed=seed), rtol=1e-6)


def test_gradient_and_a_second_reshape() -> None:
    case = LayerCase('type: "RandomNoise"', np.ones((2, 3, 4)))
    case.check_gradient()
    case.bottom[0].reshape(5, 2)
    first, second = case.forward()[0], case.forward()[0]
    assert first.shape == (5, 2) and (first != second).all()
    assert (case.backward(np.full((5, 2), 3.0))[0] == 3).all()


@pytest.mark.parametrize(
    ("inside", "message"),
    [
        ("sigma: 0", "sigma must be > 0, got 0"),
        ("adaptive_sigma: true adaptive_factor: -1", "adaptive_factor must be > 0, got -1"),
    ],
)
def test_errors(inside: str, message: str) -> None:
    with pytest.raises(LayerError, match=message):
        noise(inside, np.zeros((2, 3)))
