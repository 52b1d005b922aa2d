"""FlowAugmentation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe.errors import LayerError
from minicaffe.layers.forks.flownet.coefficients import pixel_map, read, stored

TEXT = 'type: "FlowAugmentation" augmentation_param { crop_height: 3 crop_width: 4 }'


def rows(*each: dict[str, float]) -> np.ndarray:
    return np.stack([stored(values) for values in each]).reshape(len(each), -1, 1, 1)


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape)


def test_the_same_augmentation_of_both_images_by_hand() -> None:
    flow = normal(1, 2, 7, 8)
    (y,) = LayerCase(TEXT, flow, rows({}), rows({})).forward()
    np.testing.assert_allclose(y[0], flow[0, :, 2:5, 2:6], atol=1e-6)
    (y,) = LayerCase(TEXT, flow, rows({"dx": 0.25}), rows({"dx": 0.25})).forward()
    np.testing.assert_allclose(y[0], flow[0, :, 2:5, 3:7], atol=1e-5)
    twice = {"zoom_x": 2, "zoom_y": 2}  # what moves by 1 moves by 2 in the enlarged crop
    (y,) = LayerCase(TEXT, np.ones((1, 2, 7, 8)), rows(twice), rows(twice)).forward()
    np.testing.assert_allclose(y, 2, atol=1e-5)


def test_only_the_second_image_is_moved() -> None:
    (y,) = LayerCase(TEXT, np.zeros((2, 2, 7, 8)), rows({}, {}), rows({}, {"dx": 0.25, "dy": 1 / 3})).forward()
    np.testing.assert_allclose(y[0], 0, atol=1e-6)
    np.testing.assert_allclose(y[1, 0], -1, atol=1e-5)
    np.testing.assert_allclose(y[1, 1], -1, atol=1e-5)


@given(st.floats(-0.5, 0.5), st.floats(0.7, 1.4), st.floats(-0.1, 0.1), st.booleans())
def test_a_place_and_where_it_goes_to(angle: float, zoom: float, dx: float, mirror: bool) -> None:
    """By the definition, place by place; the second map is solved for."""
    flow = normal(1, 2, 9, 11)
    first, second = {"angle": angle, "zoom_x": zoom}, {"zoom_y": zoom, "dx": dx, "mirror": float(mirror)}
    (y,) = LayerCase(TEXT, flow, rows(first), rows(second)).forward()
    maps = [pixel_map(read(stored(c)), (3, 4), (9, 11)).astype(np.float64) for c in (first, second)]
    for i, j in ((0, 0), (2, 3), (1, 2)):
        place = maps[0] @ [j, i, 1]
        at = np.trunc(place + 0.5).astype(int)
        if np.abs(place + 0.5 - np.round(place + 0.5)).min() < 1e-4 or (at < 0).any() or (at >= (11, 9)).any():
            continue
        there = place + flow[0, :, at[1], at[0]]
        expected = np.linalg.solve(maps[1][:, :2], there - maps[1][:, 2]) - [j, i]
        np.testing.assert_allclose(y[0, :, i, j], expected, atol=1e-4)


def test_places_beyond_the_image_take_the_edge() -> None:
    flow = np.zeros((1, 2, 7, 8))
    flow[:, 0, :, 7] = 3
    far = {"dx": 5.0}
    (y,) = LayerCase(TEXT, flow, rows(far), rows(far)).forward()
    np.testing.assert_allclose(y[0, 0], 3, atol=1e-4)


def test_a_second_reshape() -> None:
    case = LayerCase(TEXT, np.zeros((1, 2, 7, 8)), rows({}), rows({}))
    for blob, shape in zip(case.bottom, ((2, 2, 5, 4), (2, 42, 1, 1), (2, 42, 1, 1)), strict=True):
        blob.reshape(shape)
    assert case.forward()[0].shape == (2, 2, 3, 4)


@pytest.mark.parametrize(
    ("text", "shapes", "message"),
    [
        ('type: "FlowAugmentation"', [(1, 2, 3, 4), (1, 42, 1, 1), (1, 42, 1, 1)], "needs crop_height and crop_width"),
        (TEXT, [(1, 3, 3, 4), (1, 42, 1, 1), (1, 42, 1, 1)], r"the flow must be \(N, 2, H, W\), got shape \(1, 3, 3, 4\)"),
        (TEXT, [(2, 2, 3, 4), (2, 42, 1, 1), (1, 42, 1, 1)], r"must have shape \(2, 42, 1, 1\), got \(1, 42, 1, 1\)"),
    ],
)
def test_errors(text: str, shapes: list[tuple[int, ...]], message: str) -> None:
    with pytest.raises(LayerError, match=message):
        LayerCase(text, *(np.zeros(shape) for shape in shapes))
