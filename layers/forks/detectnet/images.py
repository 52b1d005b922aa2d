"""The changes of DetectNet's images: hue and saturation, rotation, and a part that may lie outside.

Source: NVIDIA/caffe's detectnet_transform_layer.cpp; OpenCV's BGR2HSV and HSV2BGR of floats, RotatedRect and warpAffine, which
takes positions to a 32nd of a pixel.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from minicaffe.blob import Array

EPSILON = float(np.finfo(np.float32).eps)


def recoloured(image: Array, hue: float, saturation: float) -> Array:
    """Return image (H, W, 3), blue, green, red from 0 to 1, with hue degrees added and the saturation multiplied."""
    h, s, v = _hsv(image.astype(np.float32))
    return _bgr(h + np.float32(hue), s * np.float32(saturation), v)


def _hsv(image: Array) -> tuple[Array, Array, Array]:
    """Return the hue in degrees, the saturation and the value."""
    blue, green, red = np.moveaxis(image, -1, 0)
    value = image.max(axis=-1)
    spread = value - image.min(axis=-1)
    factor = np.float32(60) / (spread + np.float32(EPSILON))
    from_red = (green - blue) * factor
    from_green, from_blue = (blue - red) * factor + 120, (red - green) * factor + 240
    hue = np.where(value == red, from_red, np.where(value == green, from_green, from_blue))
    return np.where(hue < 0, hue + 360, hue), spread / (np.abs(value) + np.float32(EPSILON)), value


def _bgr(hue: Array, saturation: Array, value: Array) -> Array:
    """Return the image (H, W, 3) of a hue in degrees, saturation and value."""
    sixth = np.mod(hue / 60, 6)
    sector = np.floor(sixth)
    part = sixth - sector
    low = value * (1 - saturation)
    falling, rising = value * (1 - saturation * part), value * (1 - saturation * (1 - part))
    which = sector.astype(np.int64) % 6
    blue = np.choose(which, [low, low, rising, value, value, falling])
    green = np.choose(which, [rising, value, value, falling, low, low])
    red = np.choose(which, [value, falling, low, low, rising, value])
    return np.stack([blue, green, red], axis=-1)


class Turn(NamedTuple):
    """A rotation by degrees of an image of width x height about its middle. The result holds all of its corners."""

    width: int
    height: int
    degrees: float

    def ends(self, centre: Array) -> tuple[Array, Array]:
        """Return the least and the largest whole place of the rotated corners, each rounded away from the others."""
        corners = np.array([[-1, 1], [-1, -1], [1, -1], [1, 1]]) * self.centre @ self.matrix.T + centre
        return np.floor(corners.min(axis=0)), np.ceil(corners.max(axis=0))

    @property
    def matrix(self) -> Array:
        """The matrix (2, 2) of (x, y)."""
        sine, cosine = math.sin(math.radians(self.degrees)), math.cos(math.radians(self.degrees))
        return np.array([[cosine, -sine], [sine, cosine]])

    @property
    def centre(self) -> Array:
        return np.array([self.width, self.height]) / 2

    @property
    def size(self) -> tuple[int, int]:
        """The width and height of the result. The original takes the middle in whole pixels here."""
        low, high = self.ends(np.rint(self.centre))
        width, height = (high - low + 1).astype(int).tolist()
        return width, height

    def places(self, points: Array) -> Array:
        """Return where points (n, 2) of x, y lie in the result."""
        moved: Array = (points - self.centre) @ self.matrix.T + self.centre - self.ends(self.centre)[0]
        return moved

    def image(self, image: Array) -> Array:
        """Return the rotated image, bilinear; a pixel whose four neighbours are not all in the old one is 0."""
        width, height = self.size
        grid = np.stack(np.meshgrid(np.arange(width), np.arange(height)), axis=-1).reshape(-1, 2)
        old = (grid - self.centre + self.ends(self.centre)[0]) @ self.matrix + self.centre
        x, y = np.floor(old).astype(np.int64).T
        inside = (x >= 0) & (y >= 0) & (x < self.width - 1) & (y < self.height - 1)
        x, y, part = x[inside], y[inside], (old - np.floor(old))[inside].astype(image.dtype)
        right, down = part[:, :1], part[:, 1:]
        upper, lower = (image[row, x] * (1 - right) + image[row, x + 1] * right for row in (y, y + 1))
        result = np.zeros((height * width, image.shape[2]), image.dtype)
        result[inside] = upper * (1 - down) + lower * down
        return result.reshape(height, width, -1)


def part_of(image: Array, left: int, upper: int, width: int, height: int) -> Array:
    """Return the part of image (H, W, C) that begins at (left, upper), and 0 where it lies outside."""
    result = np.zeros((height, width, image.shape[2]), image.dtype)
    rows, columns = (slice(max(at, 0), max(at + size, 0)) for at, size in ((upper, height), (left, width)))
    found = image[rows, columns]
    y, x = max(-upper, 0), max(-left, 0)
    result[y : y + found.shape[0], x : x + found.shape[1]] = found
    return result
