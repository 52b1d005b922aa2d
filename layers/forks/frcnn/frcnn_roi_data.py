"""FrcnnRoiData: images with their true boxes, scaled, for Faster R-CNN in C++; and its settings.

Two forks have the layer, which differ in details. The settings are a JSON file of names and texts, such as "scales": "600,
700".
Source: frcnn_roi_data_layer.cpp, frcnn_config.cpp and frcnn_param.cpp of D-X-Y/caffe-faster-rcnn, whose repository is known
from its copies, and of makefile/frcnn.
"""

from __future__ import annotations

import json
import math
import zlib
from dataclasses import dataclass
from functools import partial
from os import PathLike
from typing import Any

import numpy as np

from minicaffe.blob import Array
from minicaffe.data.image_bytes import Pixels, check_size
from minicaffe.data.images import image_blob, resize_bilinear
from minicaffe.data.noise import equalised, flat_histogram
from minicaffe.data.prefetch import Batch
from minicaffe.data.resizing import averaged
from minicaffe.data.shard import Shard, current_shard
from minicaffe.data.window_file import LabelledImage, read_frcnn_list
from minicaffe.errors import DataError, read_errors_as
from minicaffe.files import granted, read_text
from minicaffe.forked import Forked
from minicaffe.formats.forks import Kind
from minicaffe.layers.data.image_data import ListSource
from minicaffe.layers.data.prefetching import PrefetchingLayer
from minicaffe.layers.data.scenes import WindowList
from minicaffe.mode import TRAIN

ONLY_MAKEFILE = (
    *("use_retinex", "use_haze_free", "use_hist_equalize", "data_jitter", "data_rand_scale", "data_rand_rotate"),
    *("data_hue", "data_saturation", "data_exposure", "im_size_align"),
)
"""Keys that only makefile/frcnn reads."""
LARGEST = 2**31 - 1


@dataclass(frozen=True)
class FrcnnSettings:
    """The settings that data layers read from a file.

    scales: lengths that the short side may have; max_size: the greatest length of the long side; use_flipped: whether images
    are mirrored; pixel_means: of blue, green, red; n_classes: with background. Only of makefile/frcnn: equalise (0: no, 1:
    brightness, 2: each colour), align: the image's sides are multiples of it. refused: the keys that enable unsupported
    features; own: the keys of makefile/frcnn that are given.
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
    """Return the settings in a file. Raises DataError with the key."""
    with read_errors_as(DataError, f"{path}: cannot read the settings"):
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
        """Return comma-separated numbers. count: how many there must be (0: any number). Raises DataError."""
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
        """Return a whole number. Raises DataError."""
        number = self.numbers(key, 1, "" if default is None else str(default))[0]
        if number != int(number):
            raise DataError(f'{self.path}: "{key}" must be a whole number, got {number:g}')
        return int(number)


F = np.float32
DXY, MAKEFILE = "caffe-faster-rcnn", "makefile/frcnn"


class FrcnnRoiData(Forked, PrefetchingLayer):
    """The images of window_data_param.source, one a batch, in an order drawn from the settings' rng_seed, anew each epoch.

    No bottom. top: data (1, 3, H, W), blue, green, red, pixel - pixel_means: the short side is one of scales, drawn, or less
    where the long one would be above max_size; im_info (1, 3, 1, 1): H, W, scale; gt_boxes (G, 5, 1, 1): x1, y1, x2, y2, class,
    in pixels of the scaled image. window_data_param.config: the JSON file of settings.
    D-X-Y's leaves difficult boxes out, and in TRAIN mirrors half of the images where use_flipped is 1. makefile/frcnn's keeps
    them, mirrors none, shrinks by means of areas, equalises histograms (use_hist_equalize) and pads with 0 on the right and
    below to multiples of im_size_align. makefile/frcnn's is selected by its own settings, else by the net's fork.
    Raises LayerError for a list, settings or an image that cannot be read, a box of an unknown class, for an image without a
    box (makefile/frcnn's), and for settings that are not built: in TRAIN data_jitter, data_rand_scale and data_rand_rotate, and
    use_haze_free and IMS_PER_BATCH.
    """

    type = "FrcnnRoiData"
    num_top = 3
    param_block = ("window_data_param",)
    kinds = (
        Kind(DXY, ("dxy",), "no settings of makefile/frcnn"),
        Kind(MAKEFILE, ("mkfrcnn",), "im_size_align, use_hist_equalize, data_jitter or the like in its settings"),
    )

    def make_source(self, tops: int, generator: np.random.Generator) -> FrcnnSource:
        param = self.param.window_data_param
        if not (param.source and param.config):
            raise self.error("needs a source and a config", "window_data_param")
        settings = read_frcnn_settings(granted(param.config))
        kind = self.choose(MAKEFILE, f"{param.config} has {settings.own[0]}") if settings.own else self.choose_by_fork()
        if not kind:
            raise self.ambiguous_kind_error("they read the same settings differently; ")
        refused = [key for key in settings.refused if not key.startswith("data_") or self.phase == TRAIN]
        if refused:
            raise self.error(f"{param.config} has {refused[0]}, which is not built", "window_data_param.config")
        images = read_frcnn_list(granted(param.source), settings.n_classes)
        if kind == MAKEFILE and (bare := [one for one in images if not len(one.boxes)]):
            raise self.error(f"{param.source}:{bare[0].line}: {bare[0].name} has no box, which the fork cannot train on")
        lines = WindowList(source=param.source, batch_size=1, root_folder=param.root_folder, shuffle=True)
        mirror = kind == DXY and settings.use_flipped and self.phase == TRAIN
        return FrcnnSource(images, lines, settings, current_shard(self.phase), mirror=mirror, own=kind == MAKEFILE)


class FrcnnSource(ListSource[LabelledImage]):
    """Batches of one image. own: makefile/frcnn's."""

    def __init__(
        self, images: list[LabelledImage], lines: WindowList, settings: FrcnnSettings, shard: Shard, *, mirror: bool, own: bool
    ) -> None:
        self.settings, self.mirror, self.own = settings, mirror, own
        super().__init__(images, lines, np.random.default_rng(abs(settings.rng_seed)), shard)

    def shapes(self) -> list[tuple[int, ...]]:
        settings = self.settings
        size = [aligned(int(length), settings.align) for length in (max(settings.scales), settings.max_size)]
        check_size("an image of the settings' scales and max_size", *size)
        return [(1, 3, *size), (1, 3, 1, 1), (1, 5, 1, 1)]

    def fingerprint(self) -> dict[str, Any]:
        return {**super().fingerprint(), "settings": zlib.crc32(repr(self.settings).encode())}

    def next_batch(self) -> Batch:
        listed = self.next_listed()
        mirrored = self.mirror and bool(self.generator.integers(2))
        short = self.settings.scales[int(self.generator.integers(len(self.settings.scales)))]
        pixels = self.pixels(listed)
        kept = np.ones(len(listed.boxes), bool) if self.own else listed.difficult != 1
        boxes = within(listed.boxes[kept], pixels.shape)
        if mirrored:
            pixels, boxes[:, [0, 2]] = pixels[:, ::-1], pixels.shape[1] - 1 - boxes[:, [2, 0]]
        scale = scale_factor(pixels.shape, short, self.settings.max_size)
        image = self.named(listed, partial(self._scaled, pixels), scale)
        boxes *= F(scale)
        most = np.array(image.shape[1::-1], F) - 1
        if not self.own:
            most[1] = np.inf  # D-X-Y's layer does not limit y2 to the last row
        over = boxes[:, 2:] >= most + 1
        boxes[:, 2:] = np.where(over, most, boxes[:, 2:])
        rows = np.column_stack([boxes, listed.classes[kept]]).reshape(-1, 5, 1, 1)
        return image_blob([image]), np.array([*image.shape[:2], scale], F).reshape(1, 3, 1, 1), rows

    def _scaled(self, pixels: Pixels, scale: float) -> Array:
        """Return an image (H, W, 3) less the means, scaled and padded, float32."""
        settings = self.settings
        if settings.equalise == 1:
            pixels = equalised(pixels, flat_histogram)
        elif settings.equalise == 2:
            pixels = np.stack([flat_histogram(pixels[:, :, i]) for i in range(3)], axis=2)
        height, width = (max(round(length * scale), 1) for length in pixels.shape[:2])
        check_size("an image scaled to", height, width)
        if self.own and scale < 1:
            values = averaged(pixels, height, width, scale=scale, means=settings.pixel_means)
        else:
            values = resize_bilinear(pixels, height, width, scale, settings.pixel_means)
        padding = [(0, aligned(length, settings.align) - length) for length in (height, width)]
        return np.pad(values, [*padding, (0, 0)])


def within(boxes: Array, shape: tuple[int, ...]) -> Array:
    """Return boxes (G, 4) cut to the image (H, W, ...): first corners at least 0, second corners inside it."""
    most = np.array([shape[1], shape[0]], F) - 1
    return np.hstack([np.maximum(boxes[:, :2], 0), np.minimum(boxes[:, 2:], most)]).astype(F)


def scale_factor(shape: tuple[int, ...], short: float, most: float) -> float:
    """Return the float32 factor that makes an image's short side `short`, or its long side `most` if that is smaller.

    shape: (H, W, ...). Both lengths are cut to whole pixels.
    """
    scale = F(int(short)) / F(min(shape[:2]))
    return float(F(int(most)) / F(max(shape[:2])) if scale * F(max(shape[:2])) > int(most) else scale)


def aligned(length: int, step: int) -> int:
    """Return the least multiple of step that is at least length. Without a positive step it is length."""
    return -(-length // step) * step if step > 0 else length
