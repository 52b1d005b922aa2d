"""BilinearInterpolate and Resize."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layer_case import LayerCase, check_a_second_reshape
from neuron_checks import normal
from numpy.typing import NDArray

from minicaffe.errors import LayerError

pytestmark = pytest.mark.usefixtures("device")

Array = NDArray[Any]


def interpolate_text(block: str) -> str:
    return f'type: "BilinearInterpolate" bilinear_interpolate_param {{ {block} }}'


def resize_text(block: str) -> str:
    return f'type: "Resize" resize_param {{ {block} }}'


def interpolate_by_loops(x: Array, height: int, width: int, *, aligned: bool) -> Array:
    """bilinear_interpolate_layer.cpp: positions in float32, two neighbours of which the second is always inside."""

    def place(i: int, size: int, out: int) -> tuple[int, float]:
        if aligned:
            found = np.float32(size - 1) / np.float32(out - 1) * np.float32(i)
        else:
            found = np.float32(float(np.float32(size) / np.float32(out)) * (i + 0.5) - 0.5)
        position = float(min(max(found, 0), size - 1))
        return min(math.floor(position), size - 2), position

    y = np.zeros((*x.shape[:2], height, width))
    for h in range(height):
        h0, row = place(h, x.shape[2], height)
        for w in range(width):
            w0, column = place(w, x.shape[3], width)
            upper = (w0 + 1 - column) * x[:, :, h0, w0] + (column - w0) * x[:, :, h0, w0 + 1]
            lower = (w0 + 1 - column) * x[:, :, h0 + 1, w0] + (column - w0) * x[:, :, h0 + 1, w0 + 1]
            y[:, :, h, w] = (h0 + 1 - row) * upper + (row - h0) * lower
    return y


def resize_by_loops(x: Array, height: int, width: int) -> Array:
    """util_img.cpp's BiLinearResizeMat_cpu: neighbours outside of the map are left out."""
    rows, columns = x.shape[2:]
    y = np.zeros((*x.shape[:2], height, width))
    for h in range(height):
        fh = np.float32(h) * (np.float32(rows) / np.float32(height))
        for w in range(width):
            fw = np.float32(w) * (np.float32(columns) / np.float32(width))
            r, c = math.floor(fh), math.floor(fw)
            of_r, of_c = float(fh) - r, float(fw) - c
            y[:, :, h, w] = (1 - of_r) * (1 - of_c) * x[:, :, r, c]
            if c + 1 < columns:
                y[:, :, h, w] += (1 - of_r) * of_c * x[:, :, r, c + 1]
            if r + 1 < rows:
                y[:, :, h, w] += of_r * (1 - of_c) * x[:, :, r + 1, c]
            if c + 1 < columns and r + 1 < rows:
                y[:, :, h, w] += of_r * of_c * x[:, :, r + 1, c + 1]
    return y


SIZES = [(7, 11), (2, 3), (4, 5), (13, 2), (3, 40)]


class TestBilinearInterpolate:
    def test_by_hand(self) -> None:
        x = [[[[0.0, 4.0], [8.0, 12.0]]]]
        case = LayerCase(interpolate_text("dst_w: 5"), x)
        assert case.forward()[0].tolist() == [[[[0, 1, 2, 3, 4], [8, 9, 10, 11, 12]]]]
        case = LayerCase(interpolate_text("scale_factor: 2 align_corners: false"), x)
        assert case.forward()[0][0, 0, 0].tolist() == [0, 1, 3, 4]
        assert case.forward()[0][0, 0, :, 0].tolist() == [0, 2, 6, 8]

    @pytest.mark.parametrize("aligned", [True, False])
    @pytest.mark.parametrize("size", SIZES)
    def test_as_the_forks_loops(self, size: tuple[int, int], aligned: bool) -> None:
        x = normal(2, 3, 4, 5)
        text = interpolate_text(f"dst_h: {size[0]} dst_w: {size[1]} align_corners: {str(aligned).lower()}")
        np.testing.assert_allclose(
            LayerCase(text, x).forward()[0], interpolate_by_loops(x, *size, aligned=aligned), rtol=1e-12, atol=1e-12
        )

    @pytest.mark.parametrize("aligned", ["true", "false"])
    @pytest.mark.parametrize("size", SIZES)
    def test_gradient(self, size: tuple[int, int], aligned: str) -> None:
        text = interpolate_text(f"dst_h: {size[0]} dst_w: {size[1]} align_corners: {aligned}")
        LayerCase(text, normal(2, 3, 4, 5)).check_gradient()

    def test_sizes(self) -> None:
        x = normal(1, 2, 5, 7)
        for block, size in (("scale_factor: 1.5", (7, 10)), ("dst_h: 3", (3, 7)), ("dst_w: 3", (5, 3))):
            assert LayerCase(interpolate_text(block), x).forward()[0].shape == (1, 2, *size)

    def test_one_row(self) -> None:
        assert LayerCase(interpolate_text("dst_h: 1 dst_w: 3"), [[[[1.0, 2.0]]]]).forward()[0].tolist() == [[[[1, 1.5, 2]]]]

    @settings(deadline=None)
    @given(st.integers(1, 9), st.integers(1, 9), st.booleans())
    def test_the_result_is_between_the_extremes_of_the_map(self, height: int, width: int, aligned: bool) -> None:
        x = normal(1, 2, 4, 5)
        text = interpolate_text(f"dst_h: {height} dst_w: {width} align_corners: {str(aligned).lower()}")
        (y,) = LayerCase(text, x).forward()
        assert x.min() - 1e-9 <= y.min() and y.max() <= x.max() + 1e-9

    def test_a_second_reshape(self) -> None:
        check_a_second_reshape(
            interpolate_text("scale_factor: 2 align_corners: false"),
            lambda case: case.layer.rows.before,  # type: ignore[attr-defined]
        )

    @pytest.mark.parametrize(
        ("block", "message"),
        [
            ("", "give dst_h and dst_w, or scale_factor"),
            ("dst_h: 2 scale_factor: 2", "give dst_h and dst_w, or scale_factor"),
            ("dst_h: 0 dst_w: 2", "a map of 4x5 would become 0x2"),
            ("scale_factor: 0.1", "a map of 4x5 would become 0x0"),
            ("scale_factor: nan", "scale_factor nan is too large, or not a number"),
        ],
    )
    def test_errors(self, block: str, message: str) -> None:
        with pytest.raises(LayerError, match=message):
            LayerCase(interpolate_text(block), np.zeros((1, 1, 4, 5)))


class TestResize:
    def test_by_hand(self) -> None:
        """The last column lies half a pixel past the map's last, which fades out."""
        case = LayerCase(resize_text("height: 1 width: 4"), [[[[2.0, 4.0]]]])
        assert case.forward()[0].tolist() == [[[[2, 3, 4, 2]]]]
        assert case.backward(np.array([[[[1.0, 10.0, 100.0, 1000.0]]]]))[0].tolist() == [[[[6, 605]]]]

    @pytest.mark.parametrize("size", SIZES)
    def test_as_the_forks_loops(self, size: tuple[int, int]) -> None:
        x = normal(2, 3, 4, 5)
        case = LayerCase(resize_text(f"height: {size[0]} width: {size[1]}"), x)
        np.testing.assert_allclose(case.forward()[0], resize_by_loops(x, *size), rtol=1e-12, atol=1e-12)
        case.check_gradient()

    def test_scales(self) -> None:
        text = resize_text("is_pyramid_test: true out_height_scale: 0.5 out_width_scale: 1.5")
        assert LayerCase(text, normal(1, 2, 5, 7)).forward()[0].shape == (1, 2, 2, 10)

    def test_a_second_reshape(self) -> None:
        check_a_second_reshape(
            resize_text("height: 3 width: 2"),
            lambda case: case.layer.rows.before,  # type: ignore[attr-defined]
        )

    @pytest.mark.parametrize(
        ("block", "shape", "message"),
        [
            ("height: 2", (1, 1, 4, 5), "needs height and width"),
            ("is_pyramid_test: true height: 2 width: 3", (1, 1, 4, 5), "needs out_height_scale and out_width_scale with is"),
            ("height: 2 width: 0", (1, 1, 4, 5), "a map of 4x5 would become 2x0"),
            ("height: 2 width: 3", (4, 5), r"the bottom must have 4 axes \(N, C, H, W\), its shape is \(4, 5\)"),
        ],
    )
    def test_errors(self, block: str, shape: tuple[int, ...], message: str) -> None:
        with pytest.raises(LayerError, match=message):
            LayerCase(resize_text(block), np.zeros(shape))
