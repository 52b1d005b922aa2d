"""GenerateAugmentationParameters."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe import TRAIN
from minicaffe.errors import LayerError
from minicaffe.layers.forks.flownet.coefficients import read, stored

TEXT = 'type: "GenerateAugmentationParameters" augmentation_param {{ augment_during_test: true {} }}'
CROP = "crop_height: 3 crop_width: 4 bottomheight: 7 bottomwidth: 8 "
IMAGES = np.zeros((2, 3, 7, 8)), np.zeros((2, 3, 3, 4))


def rows(count: int, **values: float) -> np.ndarray:
    return np.tile(stored(values), (count, 1)).reshape(count, -1, 1, 1)


def drawn(text: str, *bottoms: np.ndarray) -> list[dict[str, float]]:
    """The coefficients of each image, rounded."""
    (y,) = LayerCase(TEXT.format(text), *bottoms).forward()
    return [{name: round(value, 5) for name, value in read(row.reshape(-1)).items()} for row in y]


GENERATORS = "zoom { exp: true mean: 0.1 } gamma { exp: true mean: 0.2 } noise { mean: 0.5 } sat_pow { exp: true mean: 0.3 }"


@pytest.mark.parametrize(
    ("mode", "zoom", "gamma", "noise", "contrast"),
    [
        ("add", 1.2 * math.exp(0.1), 1.5 * math.exp(0.2), 0.75, 2),
        ("replace", math.exp(0.1), math.exp(0.2), 0.5, 2),
        ("regenerate", math.exp(0.1), math.exp(0.2), 0.5, 1),
    ],
)
def test_what_becomes_of_given_ones(mode: str, zoom: float, gamma: float, noise: float, contrast: float) -> None:
    given_ones = rows(2, zoom_x=1.2, zoom_y=1.2, gamma=1.5, noise=0.25, contrast=2)
    for bottoms in ((given_ones, *IMAGES), (given_ones,)):
        for c in drawn(f'mode: "{mode}" {CROP} {GENERATORS}', *bottoms):
            found = [c[name] for name in ("zoom_x", "zoom_y", "gamma", "noise", "contrast")]
            np.testing.assert_allclose(found, [zoom, zoom, gamma, noise, contrast], rtol=1e-4)
            assert c["pow_withmean1"] == c["pow_withmean2"] == pytest.approx(math.exp(0.3), rel=1e-4)


def test_images_alone_begin_anew_and_a_corner_stays_inside() -> None:
    (c, _) = drawn("crop_height: 3 crop_width: 4 translate_x { mean: 0.25 } ", IMAGES[0])
    assert c["dx"] == 0.25 and c["dy"] == 0
    (c, _) = drawn("crop_height: 3 crop_width: 4 translate_x { mean: 2 } ", IMAGES[0])
    assert c["dx"] == 0


def test_in_test_nothing_is_drawn_and_given_ones_stay() -> None:
    text = TEXT.format(CROP + GENERATORS).replace("augment_during_test: true", "")
    (y,) = LayerCase(text, rows(2, gamma=3)).forward()
    np.testing.assert_allclose(y, rows(2, gamma=3))
    assert (LayerCase(text, rows(2, gamma=3), phase=TRAIN).forward()[0] != y).any()


@pytest.mark.parametrize("name", ["half_life", "initial_coeff", "final_coeff"])
@pytest.mark.parametrize("number", ["inf", "nan"])
def test_a_schedule_is_finite(name: str, number: str) -> None:
    text = TEXT.format(CROP + "noise { spread: 1 }") + f" coeff_schedule_param {{ {name}: {number} }}"
    with pytest.raises(LayerError, match=f"{name} must be finite, got {number}"):
        LayerCase(text, rows(1))


def test_the_schedule_is_resumed() -> None:
    text = TEXT.format(CROP + "noise { spread: 1 }") + " coeff_schedule_param { half_life: 4 initial_coeff: 0 final_coeff: 1 }"
    case, other = LayerCase(text, rows(1)), LayerCase(text, rows(1))
    case.forward()
    case.forward()
    other.layer.restore_training_state(case.layer.training_state())
    assert other.layer.training_state() == {"iterations": 2}
    with pytest.raises(ValueError, match=r'"iterations" must be a whole number'):
        other.layer.restore_training_state({"iterations": -1})


@given(st.integers(1, 3), st.floats(0.5, 2))
def test_without_generators_given_ones_pass(count: int, gamma: float) -> None:
    (y,) = LayerCase(TEXT.format(CROP), rows(count, gamma=gamma)).forward()
    np.testing.assert_allclose(y, rows(count, gamma=gamma))


def test_a_second_reshape() -> None:
    case = LayerCase(TEXT.format("crop_height: 3 crop_width: 4 noise { mean: 1 }"), IMAGES[0])
    case.bottom[0].reshape(5, 3, 9, 8)
    assert case.forward()[0].shape == (5, 42, 1, 1)


@pytest.mark.parametrize(
    ("text", "bottoms", "message"),
    [
        ("", (rows(2), IMAGES[0]), "takes one bottom or three"),
        ('mode: "mix"', (rows(2),), 'mode "mix" is none of add, replace, regenerate'),
        ("", (rows(2),), "needs crop_height and crop_width"),
        ("crop_height: 2 crop_width: 2", (rows(2),), "needs bottomheight and bottomwidth, the images' size"),
        (CROP, (np.zeros((2, 5, 1, 1)),), r"the coefficients must have shape \(2, 42, 1, 1\), got \(2, 5, 1, 1\)"),
        (CROP, (np.zeros((2, 5)),), r"the bottom must have four axes, got shape \(2, 5\)"),
        (CROP + 'noise { rand_type: "x" }', (rows(2),), 'rand_type "x" is none of'),
    ],
)
def test_errors(text: str, bottoms: tuple[np.ndarray, ...], message: str) -> None:
    with pytest.raises(LayerError, match=message):
        LayerCase(TEXT.format(text), *bottoms)
