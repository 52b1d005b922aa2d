"""An augmentation's coefficients: drawn at random, stored as a row of a blob, and converted to a map of pixels.

A blob of coefficients is (N, 42, 1, 1), in the order of AugmentationCoeff's fields. One whose default is 1 is stored as its
logarithm, so that zeros change nothing and two augmentations are added.
Source: FlowNet 2's augmentation_layer_base.cpp and rng.cpp (Ilg et al., 2017).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import product
from typing import NamedTuple

import numpy as np

from minicaffe.blob import Array
from minicaffe.layer import Layer, check_finite_fields
from minicaffe.proto import caffe_pb2

DEFAULTS = {
    field.name: float(field.default_value) for field in caffe_pb2.AugmentationCoeff.DESCRIPTOR.fields
}  # in the order of the schema
"""The values of coefficients that change nothing, 0 or 1."""
LOGARITHMIC = np.array([value == 1 for value in DEFAULTS.values()])
CLOSE = 1e-3
"""A coefficient this close to its default counts as equal."""
TRIES = 50

Size = tuple[int, int]
Coefficients = dict[str, float]

SPATIAL = ("mirror", "translate", "rotate", "zoom", "squeeze", "translate_x", "translate_y")
COLORS = {
    "gamma": ("gamma",),
    "brightness": ("brightness",),
    "contrast": ("contrast",),
    "color": ("color1", "color2", "color3"),
}
EIGEN = {
    "ladd_pow": ("pow_nomean0",), "col_pow": ("pow_nomean1", "pow_nomean2"),
    "ladd_add": ("add_nomean0",), "col_add": ("add_nomean1", "add_nomean2"),
    "ladd_mult": ("mult_nomean0",), "col_mult": ("mult_nomean1", "mult_nomean2"),
    "sat_pow": ("pow_withmean1",), "sat_add": ("add_withmean1",), "sat_mult": ("mult_withmean1",),
    "lmult_pow": ("lmult_pow",), "lmult_mult": ("lmult_mult",), "lmult_add": ("lmult_add",), "col_rotate": ("col_angle",),
}  # fmt: skip
"""For each generator, the coefficients that draw a number from it. The second coefficient of a saturation equals the first."""
EFFECTS = (
    ("fog_amount", "fog_size"),
    ("motion_blur_angle", "motion_blur_size"),
    ("shadow_angle", "shadow_distance", "shadow_strength"),
    ("noise",),
)
"""Effects whose coefficients are all drawn if one of their generators is given."""
GENERATORS = (*SPATIAL, *COLORS, *EIGEN, *(name for effect in EFFECTS for name in effect))
KINDS = ("uniform", "gaussian", "bernoulli", "uniform_bernoulli", "gaussian_bernoulli")


def stored(coefficients: Coefficients) -> Array:
    """Return coefficients as a row (42,) float32. Missing ones get their defaults."""
    values = np.array([coefficients.get(name, default) for name, default in DEFAULTS.items()], np.float32)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(LOGARITHMIC, np.log(np.where(LOGARITHMIC, values, 1)), values)


def read(row: Array) -> Coefficients:
    """Return the coefficients of a row (42,)."""
    row = np.asarray(row, np.float32)
    return dict(zip(DEFAULTS, np.where(LOGARITHMIC, np.exp(row), row).tolist(), strict=True))


def read_or_default(row: Array) -> Coefficients:
    """Return the coefficients of a row, with values close to a default replaced by the default."""
    return {name: DEFAULTS[name] if abs(DEFAULTS[name] - value) < CLOSE else value for name, value in read(row).items()}


def check_generators(layer: Layer) -> None:
    """Raise LayerError for bad augmentation parameters.

    These are: a generator of unknown kind, a number of a generator or of the schedule that is not finite, a half_life below 0.
    """
    for name in GENERATORS:
        kind = getattr(layer.param.augmentation_param, name).rand_type
        if kind not in KINDS:
            raise layer.error(f'rand_type "{kind}" is none of {", ".join(KINDS)}', f"augmentation_param.{name}.rand_type")
        check_finite_fields(layer, f"augmentation_param.{name}")
    check_finite_fields(layer, "coeff_schedule_param")
    if layer.param.coeff_schedule_param.half_life < 0:
        half_life = layer.param.coeff_schedule_param.half_life
        raise layer.error(f"half_life must be >= 0, got {half_life:g}", "coeff_schedule_param.half_life")


def check_coefficients(layer: Layer, shape: Sequence[int], images: int, place: str) -> None:
    """Raise LayerError unless a bottom holds coefficients for that many images."""
    if tuple(shape) != (images, len(DEFAULTS), 1, 1):
        raise layer.error(f"the coefficients must have shape {(images, len(DEFAULTS), 1, 1)}, got {tuple(shape)}", place)


def schedule(param: caffe_pb2.CoeffScheduleParameter, iteration: float) -> float:
    """Return the factor of the generators' spread in an iteration.

    It goes from initial_coeff (at iteration 0) to final_coeff, halfway after half_life iterations.
    """
    way = 2 / (1 + math.exp(-1.0986 * iteration / param.half_life)) - 1 if param.half_life else 1.0
    return param.initial_coeff + (param.final_coeff - param.initial_coeff) * way


class Draws(NamedTuple):
    """The generators of an augmentation_param, the factor of their spreads, and the source of random numbers."""

    param: caffe_pb2.AugmentationParameter
    spread: float
    random: np.random.Generator

    def given(self, names: Iterable[str]) -> bool:
        """Return whether one of these generators is given."""
        return any(self.param.HasField(name) for name in names)  # type: ignore[arg-type]

    def number(self, name: str, unchanged: float | None = None, spread: float | None = None) -> float:
        """Return a generator's number. unchanged: the value if a generator with a probability draws nothing (None: 0)."""
        generator: caffe_pb2.RandomGeneratorParameter = getattr(self.param, name)
        kind, is_drawn = generator.rand_type, True
        if kind.endswith("bernoulli"):
            is_drawn = generator.prob > 0 and bool(self.random.random() < generator.prob)
            if kind != "bernoulli" and not is_drawn and unchanged is not None:
                return unchanged
        if kind == "bernoulli":
            value = float(is_drawn)
        else:
            value = self._value(generator, spread) if is_drawn else 0.0
            value = _exp(value) if generator.exp else value
        value = math.copysign(np.floor(abs(value) + 0.5), value) if generator.discretize else value
        return value * generator.multiplier

    def _value(self, generator: caffe_pb2.RandomGeneratorParameter, factor: float | None) -> float:
        factor = self.spread if factor is None else factor
        spread = generator.spread * (factor if generator.apply_schedule else 1)
        if spread <= 0:
            return generator.mean
        if generator.rand_type.startswith("uniform"):
            return float(self.random.uniform(generator.mean - spread, generator.mean + spread))
        return float(self.random.normal(generator.mean, spread))

    def spatial(self) -> Coefficients:
        """Return a random mirror, shift, rotation and zoom."""
        drawn: Coefficients = {}
        if self.given(("mirror",)):  # the original's schedule is 0 for mirror
            drawn["mirror"] = float(self.number("mirror", spread=0.0) != 0)
        if self.given(("translate",)):
            drawn |= {"dx": self.number("translate", 0.0), "dy": self.number("translate", 0.0)}
        for name, coefficient in (("translate_x", "dx"), ("translate_y", "dy"), ("rotate", "angle")):
            if self.given((name,)):
                drawn[coefficient] = self.number(name, 0.0)
        zoom = self.number("zoom", 1.0) if self.given(("zoom",)) else 1.0
        squeeze = self.number("squeeze", 1.0) if self.given(("squeeze",)) else 1.0
        return drawn | {"zoom_x": zoom * squeeze, "zoom_y": zoom / squeeze if squeeze else math.inf}

    def inside(self, row: Array, crop: Size, image: Size) -> Coefficients:
        """Return a row's coefficients with spatial ones that keep the crop's corners in the image.

        They are the row's alone if none of TRIES does.
        """
        for _ in range(TRIES - 1):  # one less, because the original discards the last
            tried = read(row + stored(self.spatial()))
            if corners_inside(tried, crop, image):
                return tried
        return read(row)

    def colors(self) -> Coefficients:
        """Return a random gamma, brightness, contrast and colour."""
        return self._each(COLORS)

    def eigen(self) -> Coefficients:
        """Return random powers, sums and products along the eigenvectors of colours."""
        drawn = self._each(EIGEN)
        for kind in ("pow", "add", "mult"):
            if f"{kind}_withmean1" in drawn:
                drawn[f"{kind}_withmean2"] = drawn[f"{kind}_withmean1"]
        return drawn

    def effects(self) -> Coefficients:
        """Return a random fog, blur, shadow and noise."""
        drawn: Coefficients = {}
        for names in filter(self.given, EFFECTS):
            drawn |= {name: self.number(name, None if name == "noise" else 0.0) for name in names}
        return drawn

    def _each(self, generators: dict[str, tuple[str, ...]]) -> Coefficients:
        names = [(name, coefficient) for name, each in generators.items() if self.given((name,)) for coefficient in each]
        return {coefficient: self.number(name) for name, coefficient in names}


def cos_sin(angle: float) -> tuple[float, float]:
    """Return the cosine and sine of an angle; NaN if it is not finite."""
    return (math.cos(angle), math.sin(angle)) if math.isfinite(angle) else (math.nan, math.nan)


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf


def pixel_map(coefficients: Coefficients, crop: Size, image: Size) -> Array:
    """Return the map (2, 3) float32 from (x, y, 1) in a crop to (x, y) in its image. Sizes are (height, width)."""
    (height, width), half = crop, np.float32(0.5)
    sign = -1 if coefficients["mirror"] else 1
    cos, sin = cos_sin(coefficients["angle"])
    with np.errstate(divide="ignore"):
        zoom = np.float32(1) / np.array([coefficients["zoom_x"], coefficients["zoom_y"]], np.float32)
    steps = [
        [[sign, 0, -sign * half * width], [0, 1, -half * height]],
        [[cos, -sin, 0], [sin, cos, 0]],
        [[1, 0, coefficients["dx"] * width], [0, 1, coefficients["dy"] * height]],
        [[zoom[0], 0, 0], [0, zoom[1], 0]],
        [[1, 0, half * image[1]], [0, 1, half * image[0]]],
    ]
    whole = np.eye(3, dtype=np.float32)
    for step in steps:
        whole = np.array([*step, [0, 0, 1]], np.float32) @ whole
    return whole[:2]


def corners_inside(coefficients: Coefficients, crop: Size, image: Size) -> bool:
    """Return whether the crop's corners lie in the image, with a pixel to their right and below."""
    corners = np.array([(x, y, 1) for x, y in product((0, crop[1] - 1), (0, crop[0] - 1))], np.float32)
    x, y = np.floor(pixel_map(coefficients, crop, image) @ corners.T)
    return bool(((x >= 0) & (x <= image[1] - 2) & (y >= 0) & (y <= image[0] - 2)).all())


def inverse(whole: Array) -> Array:
    """Return the inverse of a map (2, 3)."""
    (a, c, e), (b, d, f) = whole
    with np.errstate(all="ignore"):
        inverted: Array = np.array([[d, -c, c * f - d * e], [-b, a, b * e - a * f]], np.float32) / (a * d - b * c)
    return inverted
