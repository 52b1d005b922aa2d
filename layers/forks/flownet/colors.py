"""An augmentation of the colours of images (3, H, W), with shadow and noise.

Source: FlowNet 2's data_augmentation_layer.cu (Ilg et al., 2017). A step runs on all images of a batch if one of them needs it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minicaffe.blob import Array

from .coefficients import COLORS, DEFAULTS, Coefficients, cos_sin

COLOR_NAMES = [name for names in COLORS.values() for name in names]
EIGEN_NAMES = [name for name in DEFAULTS if "mean" in name or name.startswith("lmult") or name == "col_angle"]
LEAST = 1e-2
"""Colours whose greatest extent along an eigenvector is at most this keep it."""


def differs(coefficients: Coefficients, names: Sequence[str]) -> bool:
    """Return whether one of the coefficients differs from its default."""
    return any(coefficients[name] != DEFAULTS[name] for name in names)


def has_effect(coefficients: Coefficients) -> bool:
    """Return whether there is a fog, blur, shadow or noise.

    The original draws a fog and a blur, but no kernel of it applies them.
    """
    fog = coefficients["fog_amount"] != 0 and coefficients["fog_size"] != 0
    return fog or any(coefficients[name] > 0 for name in ("motion_blur_size", "shadow_strength", "noise"))


def change_colors(x: Array, coefficients: Coefficients, most: float) -> None:
    """Change colours at constant brightness, then gamma, brightness and contrast; in place, clipped to [0, most]."""
    factors = np.array([coefficients[f"color{i}"] for i in (1, 2, 3)], x.dtype).reshape(3, 1, 1)
    changed = x * factors
    changed *= x.sum(axis=0) / (changed.sum(axis=0) + x.dtype.type(0.01))
    changed = np.clip(changed, 0, 1) ** x.dtype.type(coefficients["gamma"])
    changed += x.dtype.type(coefficients["brightness"])
    changed -= x.dtype.type(0.5)
    changed *= x.dtype.type(coefficients["contrast"])
    x[...] = np.clip(changed + x.dtype.type(0.5), 0, most)


class EigenSpace:
    """The colours of a batch (N, 3, H, W) along three eigenvectors (3, 3): their mean and greatest extents."""

    def __init__(self, x: Array, vectors: Array) -> None:
        self.vectors = vectors.astype(x.dtype)
        self.mean = x.mean(axis=(0, 2, 3))
        self.extent = abs(np.einsum("kc,nchw->knhw", self.vectors, x)).max(axis=(1, 2, 3))
        self.wide = self.extent > LEAST
        along = self.vectors @ self.mean
        self.mean_along = np.divide(along, self.extent, out=along.copy(), where=self.wide)
        self.longest = float(np.sqrt((self.extent**2).sum()))

    def change(self, x: Array, coefficients: Coefficients, most: float) -> None:
        """Change the colours along the eigenvectors, with and without their mean; in place, clipped to [0, most]."""
        along = np.einsum("kc,chw->khw", self.vectors, x - self.mean.reshape(3, 1, 1))
        for k in np.flatnonzero(self.wide):
            along[k] = _changed(along[k] / self.extent[k], coefficients, f"nomean{k}")
        along += self.mean_along.reshape(3, 1, 1)
        if self.wide[0]:
            along[0] = _changed(along[0], coefficients, "withmean0")
        saturation = np.hypot(along[1], along[2])
        _turn(along, coefficients["col_angle"])
        along[self.wide] *= self.extent[self.wide].reshape(-1, 1, 1)
        length = np.sqrt((along**2).sum(axis=0)) / self.longest if self.longest > LEAST else None
        _saturate(along, saturation, coefficients)
        if length is not None:
            self._lengthen(along, length, coefficients)
        x[...] = np.clip(np.einsum("kc,khw->chw", self.vectors, along), 0, most)

    def _lengthen(self, along: Array, length: Array, coefficients: Coefficients) -> None:
        wanted = length ** along.dtype.type(coefficients["lmult_pow"])
        wanted = np.maximum(wanted + along.dtype.type(coefficients["lmult_add"]), 0)
        wanted *= along.dtype.type(coefficients["lmult_mult"] * self.longest)
        now = np.sqrt((along**2).sum(axis=0))
        lengthened = np.minimum(along / np.where(now > LEAST, now, 1) * wanted, self.extent.reshape(3, 1, 1))
        np.copyto(along, lengthened, where=now > LEAST)


def _changed(along: Array, coefficients: Coefficients, which: str) -> Array:
    power, added, factor = (along.dtype.type(coefficients[f"{kind}_{which}"]) for kind in ("pow", "add", "mult"))
    changed: Array = (np.copysign(abs(along) ** power, along) + added) * factor
    return changed


def _turn(along: Array, angle: float) -> None:
    if angle:
        cos, sin = map(along.dtype.type, cos_sin(angle))
        along[1:] = cos * along[1] - sin * along[2], sin * along[1] + cos * along[2]


def _saturate(along: Array, saturation: Array, coefficients: Coefficients) -> None:
    wanted = saturation ** along.dtype.type(coefficients["pow_withmean1"])
    wanted = np.maximum(wanted + along.dtype.type(coefficients["add_withmean1"]), 0)
    wanted *= along.dtype.type(coefficients["mult_withmean1"])
    where = saturation > LEAST
    along[1:] = np.where(where, along[1:] / np.where(where, saturation, 1) * wanted, along[1:])


def apply_effects(x: Array, coefficients: Coefficients, most: float, random: np.random.Generator) -> None:
    """Apply a shadow over a half-plane, clip to [0, most], then add noise; in place."""
    height, width = x.shape[1:]
    cos, sin = cos_sin(coefficients["shadow_angle"])
    across = (np.arange(width) - width // 2) * cos
    down = (np.arange(height) - height // 2)[:, None] * sin
    shaded = across + down - coefficients["shadow_distance"] > 0
    x -= shaded * x.dtype.type(coefficients["shadow_strength"])
    np.clip(x, 0, most, out=x)
    if coefficients["noise"] > 0:
        x += random.normal(0, coefficients["noise"], x.shape).astype(x.dtype)
