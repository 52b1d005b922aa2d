"""The settings of Faster R-CNN in C++: a JSON file of names and texts, such as "scales": "600, 700".

Source: frcnn_config.cpp and frcnn_param.cpp of D-X-Y/caffe-faster-rcnn and makefile/frcnn.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from os import PathLike
from typing import Any

from minicaffe.errors import DataError, os_errors_as
from minicaffe.files import read_text

ONLY_MAKEFILE = (
    *("use_retinex", "use_haze_free", "use_hist_equalize", "data_jitter", "data_rand_scale", "data_rand_rotate"),
    *("data_hue", "data_saturation", "data_exposure", "im_size_align"),
)
"""Keys that makefile/frcnn alone reads."""
LARGEST = 2**31 - 1


@dataclass(frozen=True)
class FrcnnSettings:
    """What data layers read of a file of settings.

    scales: lengths that the short side may have; max_size: the most of the long side; use_flipped: whether images are mirrored;
    pixel_means: of blue, green, red; n_classes: with background. Of makefile/frcnn alone: equalise (0: no, 1: brightness, 2:
    each colour), align: what an image's sides are multiples of. refused: the keys that switch on what minicaffe lacks; own: the
    keys of makefile/frcnn that are there.
    """

    scales: tuple[float, ...]
    max_size: float
    use_flipped: bool
    pixel_means: tuple[float, ...]
    rng_seed: int
    n_classes: int
    equalise: int
    align: int
    refused: tuple[str, ...]
    own: tuple[str, ...]


def read_frcnn_settings(path: str | PathLike[str]) -> FrcnnSettings:
    """The settings in a file. Raises DataError, with the key."""
    with os_errors_as(DataError, f"{path}: cannot read the settings"):
        text = read_text(path, "lists")
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: the settings are not JSON ({error})") from error
    if not isinstance(content, dict):
        raise DataError(f"{path}: the settings must be an object, with names and values")
    values = _Values(str(path), content)
    found = FrcnnSettings(
        scales=values.numbers("scales"),
        max_size=values.numbers("max_size", 1)[0],
        use_flipped=bool(values.whole("use_flipped")),
        pixel_means=values.numbers("pixel_means", 3),
        rng_seed=values.whole("rng_seed"),
        n_classes=values.whole("n_classes"),
        equalise=values.whole("use_hist_equalize", 0),
        align=values.whole("im_size_align", 1),
        refused=(
            *(["data_jitter"] if values.numbers("data_jitter", 1, default="-1")[0] >= 0 else []),
            *(["data_rand_scale"] if values.numbers("data_rand_scale", 1, default="1")[0] != 1 else []),
            *(["data_rand_rotate"] if values.whole("data_rand_rotate", 0) else []),
            *(["use_haze_free"] if values.whole("use_haze_free", 0) else []),
            *(["IMS_PER_BATCH"] if "IMS_PER_BATCH" in content else []),
        ),
        own=tuple(key for key in ONLY_MAKEFILE if key in content),
    )
    if found.n_classes < 2 or min(*found.scales, found.max_size) < 1:
        raise DataError(f"{path}: n_classes must be at least 2, scales and max_size at least 1")
    return found


@dataclass(frozen=True)
class _Values:
    path: str
    content: dict[str, Any]

    def numbers(self, key: str, count: int = 0, default: str = "") -> tuple[float, ...]:
        """Numbers with commas between; count: how many there must be (0: any number)."""
        if key not in self.content and not default:
            raise DataError(f'{self.path}: "{key}" is missing')
        text = str(self.content.get(key, default))
        try:
            found = tuple(float(word) for word in text.split(","))
        except ValueError as error:
            raise DataError(f'{self.path}: "{key}" must be numbers with commas between, got "{text}"') from error
        if not all(math.isfinite(number) and abs(number) <= LARGEST for number in found) or (count and len(found) != count):
            wanted = f"{count} finite number{'s' * (count > 1)}" if count else "finite numbers"
            raise DataError(f'{self.path}: "{key}" must be {wanted}, got "{text}"')
        return found

    def whole(self, key: str, default: int | None = None) -> int:
        """A whole number."""
        number = self.numbers(key, 1, "" if default is None else str(default))[0]
        if number != int(number):
            raise DataError(f'{self.path}: "{key}" must be a whole number, got {number:g}')
        return int(number)
