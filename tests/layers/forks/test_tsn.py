"""ColorConv: pixel by pixel, written from yjxiong's color_conv_layer.cpp."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from layer_case import LayerCase

from minicaffe.errors import LayerError
from minicaffe.proto import caffe_pb2

pytestmark = pytest.mark.usefixtures("device")

WHITE = (0.95074, 1.0, 1.08883)


def linear(v: float) -> float:
    return v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4


def curved(v: float) -> float:
    return v * 12.92 if v <= 0.0031308 else 1.055 * v ** (1 / 2.4) - 0.055


def xyz_of_rgb(p: list[float]) -> list[float]:
    r, g, b = (linear(v / 255) for v in p)
    return [
        0.4124564 * r + 0.3575761 * g + 0.1804375 * b,
        0.2126729 * r + 0.7151522 * g + 0.0721750 * b,
        0.0193339 * r + 0.1191920 * g + 0.9503041 * b,
    ]


def rgb_of_xyz(p: list[float]) -> list[float]:
    x, y, z = p
    mixed = [
        3.2404542 * x - 1.5371385 * y - 0.4985314 * z,
        -0.9692660 * x + 1.8760108 * y + 0.0415560 * z,
        0.0556434 * x - 0.2040259 * y + 1.0572252 * z,
    ]
    return [255 * curved(v) for v in mixed]


def lab_of_xyz(p: list[float]) -> list[float]:
    parts = [v / w for v, w in zip(p, WHITE, strict=True)]
    fx, fy, fz = (v ** (1 / 3) if v > 0.008867 else (903.3 * v + 16) / 116 for v in parts)
    return [116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)]


def xyz_of_lab(p: list[float]) -> list[float]:
    fy = (p[0] + 16) / 116
    roots = (fy + p[1] / 500, fy, fy - p[2] / 200)
    return [(v**3 if v > 0.206896 else (116 * v - 16) / 903.3) * w for v, w in zip(roots, WHITE, strict=True)]


STEPS = {
    ("RGB", "XYZ"): xyz_of_rgb,
    ("XYZ", "RGB"): rgb_of_xyz,
    ("XYZ", "Lab"): lab_of_xyz,
    ("Lab", "XYZ"): xyz_of_lab,
    ("RGB", "Lab"): lambda p: lab_of_xyz(xyz_of_rgb(p)),
    ("Lab", "RGB"): lambda p: rgb_of_xyz(xyz_of_lab(p)),
    ("RGB", "Gray"): lambda p: [0.2126729 * p[0] + 0.7151522 * p[1] + 0.0721750 * p[2]],
    ("Gray", "RGB"): lambda p: p * 3,
    ("RGB", "RGB"): lambda p: p,
    ("Lab", "Lab"): lambda p: p,
}


def pixels(space: str) -> np.ndarray:
    """Images (2, C, 3, 4) with the darkest colours, too."""
    random = np.random.default_rng(0)
    low, high = {"XYZ": ([0] * 3, [1] * 3), "Lab": ([0, -60, -60], [100, 60, 60])}.get(space, ([0] * 3, [255] * 3))
    x = random.uniform(low, high, (2, 3, 4, 3)).transpose(0, 3, 1, 2).copy()
    x[0, :, 0, :2] *= 0.02
    return x[:, :1] if space == "Gray" else x


SPACES = ("BGR", "RGB", "XYZ", "Lab", "Gray")


@pytest.mark.parametrize(
    ("given", "wanted"),
    [(a, b) for a, b in product(SPACES, SPACES) if (a.replace("BGR", "RGB"), b.replace("BGR", "RGB")) in STEPS],
)
def test_colours_are_their_definition(given: str, wanted: str) -> None:
    x = pixels(given)
    (y,) = LayerCase(f'type: "ColorConv" color_conv_param {{ input: {given} output: {wanted} }}', x).forward()
    step = STEPS[given.replace("BGR", "RGB"), wanted.replace("BGR", "RGB")]
    for n, i, j in product(range(2), range(3), range(4)):
        pixel = x[n, :, i, j].tolist()
        found = step(pixel[::-1] if given == "BGR" else pixel)
        np.testing.assert_allclose(y[n, :, i, j], found[::-1] if wanted == "BGR" else found, rtol=1e-9, atol=1e-9)


def test_defaults() -> None:
    param = caffe_pb2.ColorConvParameter()
    assert (param.input, param.output) == (param.BGR, param.BGR)
    assert [param.BGR, param.RGB, param.XYZ, param.Lab, param.Gray] == [0, 1, 2, 3, 5]


@pytest.mark.parametrize(
    ("words", "shape", "message"),
    [
        ("input: Lab output: Gray", (1, 3, 2, 2), r"converts no Lab to Gray"),
        ("input: Gray output: XYZ", (1, 1, 2, 2), r"converts no Gray to XYZ"),
        ("output: Lab", (1, 1, 2, 2), r"x must be \(N, 3, H, W\) in BGR, got shape \(1, 1, 2, 2\)"),
        ("input: Gray", (2, 3, 4), r"x must be \(N, 1, H, W\) in Gray"),
    ],
)
def test_errors(words: str, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(LayerError, match=message):
        LayerCase(f'type: "ColorConv" color_conv_param {{ {words} }}', np.ones(shape))
