"""AnnotatedData: images with boxes from an LMDB or LevelDB of AnnotatedDatums, or from a roidb.

    item -> distorted, expanded, cropped, resized, mirrored -> mean and scale

Source: the SSD fork's annotated_data_layer.cpp.

AnnotatedData changes an image and its boxes before the mean and the scale:

    distort_param -> expand_param -> crop by a batch sampler -> resize_param -> noise_param -> crop_size -> mirror

Source: the SSD fork's annotated_data_layer.cpp and data_transformer.cpp.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from minicaffe import rng
from minicaffe.blob import Array
from minicaffe.data.annotated import entry_image, entry_rows, parse_annotated
from minicaffe.data.augmentation import check_distortion, distorted, expanded
from minicaffe.data.data_transformer import (
    DataTransformer,
    ResizeAndNoise,
    Window,
    check_bytes,
    crop_of,
    read_mean,
    warn_of_no_effect,
)
from minicaffe.data.database import Database, datum_array
from minicaffe.data.prefetch import Batch, Prefetcher
from minicaffe.data.resizing import extrapolation
from minicaffe.data.roidb import image_name, prepare_roidb
from minicaffe.data.roidb_entry import LARGEST, Entry, Roidb
from minicaffe.data.shard import WHOLE, Shard, current_shard
from minicaffe.data.state_fields import Fields
from minicaffe.errors import DataError
from minicaffe.formats.arrays import checksum
from minicaffe.layers.data.data import DatumSource, open_source
from minicaffe.layers.data.prefetching import Order, PrefetchingLayer
from minicaffe.layers.ssd.batch_samplers import check_sampler, cut, draw_crop, seen_in
from minicaffe.layers.ssd.detection_files import labels_by_name
from minicaffe.mode import TRAIN, Phase
from minicaffe.proto import caffe_pb2

OWN_FIELDS = (
    "distort_param", "expand_param", "resize_param", "noise_param", "emit_constraint",
    "mirror", "crop_size", "crop_h", "crop_w",
)  # fmt: skip


MOST_TRIALS = 10_000
"""Most boxes drawn for one image; SSD draws 300."""


class AnnotatedTransform:
    """The parts of transform_param that move boxes or need bytes, and the batch samplers. Raises DataError."""

    def __init__(
        self,
        param: caffe_pb2.TransformationParameter,
        samplers: Sequence[caffe_pb2.BatchSampler],
        phase: Phase,
        random: np.random.Generator,
    ) -> None:
        self.param, self.samplers, self.random, self.random_crop = param, list(samplers), random, phase == TRAIN
        self.emit = param.emit_constraint if param.HasField("emit_constraint") else None
        self.change, self.crop = ResizeAndNoise(param), crop_of(param)
        self.distort = param.distort_param if param.HasField("distort_param") else None
        self.expand = param.expand_param if param.HasField("expand_param") else None
        check_distortion(param.distort_param)
        for sampler in samplers:
            check_sampler(sampler.sampler)
        if (trials := sum(sampler.max_trials for sampler in samplers)) > MOST_TRIALS:
            raise DataError(f"max_trials of the batch samplers are at most {MOST_TRIALS} together, got {trials}")
        if not 1 <= param.expand_param.max_expand_ratio < np.inf:
            raise DataError(
                f"expand_param.max_expand_ratio must be >= 1 and finite, got {param.expand_param.max_expand_ratio:g}"
            )
        mean = read_mean(param, np.float32) if self.expand is not None else None
        self.canvas = None if mean is None else mean.mean(axis=(1, 2))

    def plain(self) -> caffe_pb2.TransformationParameter:
        """Return the other fields of transform_param: mean and scale, and how images are decoded."""
        plain = caffe_pb2.TransformationParameter()
        plain.CopyFrom(self.param)
        for field in OWN_FIELDS:
            plain.ClearField(field)  # type: ignore[arg-type]
        return plain

    def size(self, height: int, width: int) -> tuple[int, int]:
        """Return the height and width of the result, for an image of this size that no sampler crops."""
        return self.crop if self.crop[0] else self.change.size(height, width)

    def __call__(self, image: Array, boxes: Array) -> tuple[Array, Array, Window]:
        """Return the transformed image (C, H, W), the boxes still visible, and where crop_size cut the image.

        boxes (n, 7): class, instance, corners, difficult.
        """
        pixels = image.transpose(1, 2, 0)
        if self.distort is not None:
            check_bytes(pixels, "distort_param")
            pixels = distorted(pixels, self.distort, self.random)
        if self.expand is not None:
            check_bytes(pixels, "expand_param")
            pixels, canvas = expanded(pixels, self.expand, self._canvas(len(image)), self.random)
            boxes = self._seen(canvas, boxes)
        crop = draw_crop(self.samplers, boxes[:, 2:6], self.random)
        boxes = self._seen(crop, boxes)
        pixels, frame = self.change(pixels if crop is None else cut(pixels, crop), self.random)
        boxes = self._seen(frame, boxes)
        pixels, window, seen = self._cropped(pixels)
        boxes = self._seen(seen, boxes)
        if self.param.mirror and self.random.integers(2):
            pixels = pixels[:, ::-1]
            boxes[:, [2, 4]] = 1 - boxes[:, [4, 2]]  # xmin and xmax are exchanged
        factors = extrapolation(pixels.shape[:2], self.param.resize_param)
        if factors is not None:
            boxes[:, 2:6] *= factors
        return pixels.transpose(2, 0, 1), boxes, window

    def _canvas(self, channels: int) -> Array | None:
        """Return the colour around an expanded image: mean values, or a mean image's average."""
        if self.canvas is not None and len(self.canvas) not in (1, channels):
            given = "channels in the mean_file" if self.param.mean_file else "mean_value given"
            raise DataError(f"{len(self.canvas)} {given} for {channels} channels: give one, or one for each")
        return self.canvas

    def _seen(self, frame: Array | None, boxes: Array) -> Array:
        """Return the boxes that count in frame (4,), relative to it; all without a frame."""
        if frame is None:
            return boxes
        boxes = boxes.copy()
        boxes[:, 2:6], counts = seen_in(frame, boxes[:, 2:6], self.emit)
        return boxes[counts]

    def _cropped(self, pixels: Array) -> tuple[Array, Window, Array | None]:
        """Return the crop of pixels (H, W, C), its window, and its relative corners (4,).

        It is random in phase TRAIN, else central. Without a crop size it is the whole image, without corners.
        """
        (high, wide), (height, width) = self.crop, pixels.shape[:2]
        if not high:
            return pixels, Window(slice(None), slice(None), height, width), None
        if high > height or wide > width:
            raise DataError(f"the crop, {wide} wide and {high} high, is larger than the image, {width} wide and {height} high")
        free = (height - high, width - wide)
        top, left = (int(self.random.integers(n + 1)) if self.random_crop else n // 2 for n in free)
        window = Window(slice(top, top + high), slice(left, left + wide), height, width)
        seen = np.array([left / width, top / height, (left + wide) / width, (top + high) / height])
        return pixels[window.rows, window.columns], window, seen


class AnnotatedData(PrefetchingLayer):
    """The items of a database in the order of their keys, or the images of a roidb, again and again, with their boxes.

    No bottom. top: data (batch_size, C, H, W); optionally labels (1, 1, G, 8), a row for each box of the batch as
    MultiBoxLoss takes them, one of -1 if there are none. annotated_data_param: batch_sampler. transform_param: scale,
    mean_file, mean_value, mirror, force_color, force_gray, crop_size, crop_h, crop_w, resize_param, distort_param,
    expand_param, noise_param, emit_constraint. With resize_param's FIT_SMALL_SIZE, height_scale and width_scale corners are in
    units of these pixels, not of the image.
    A database may be missing where transform_param gives the size of the images. Batches then need set_roidb.
    Raises LayerError for what Data does, items that are no AnnotatedDatums of boxes, fields of transform_param that
    contradict each other, and an image smaller than the crop or than height_scale x width_scale.
    """

    type = "AnnotatedData"
    num_top = (1, 2)
    param_block = ("data_param", "annotated_data_param", "transform_param")

    def make_source(self, tops: int, generator: np.random.Generator) -> AnnotatedSource | RoidbSource:
        param = self.param.data_param
        self.positive(param.batch_size, "data_param.batch_size")
        self.prefetched = self.positive(param.prefetch, "data_param.prefetch")
        warn_of_no_effect(self, boxes=True)
        self.shard, self.labelled = current_shard(self.phase), tops > 1
        self.roidb: Roidb = []
        steps = self._steps(generator)
        if steps.fixed_size and not (param.source and os.path.exists(param.source)):
            return RoidbSource([], param, steps, shard=self.shard)
        return AnnotatedSource(open_source(param), param, steps, self.shard)

    @property
    def needs_roidb(self) -> bool:
        """Whether batches need set_roidb, because the layer has no database."""
        return isinstance(self.source_of_batches, RoidbSource) and not self.roidb

    def set_roidb(self, roidb: Sequence[Entry], classes: Sequence[str] = (), num_classes: int = LARGEST) -> None:
        """Read the images of roidb (see minicaffe.roidb) from the next batch on, in phase TRAIN in random order.

        classes: the names of the roidb's classes, background first. Where the layer has a label_map_file, it gives their
        labels; otherwise a label is the class's number. num_classes: of the net, background included. Raises LayerError.
        """
        largest = 1 + max((int(np.max(entry["gt_classes"], initial=0)) for entry in roidb), default=0)
        generator = np.random.default_rng(int(rng.shared_generator().integers(2**63)))  # the same in all ranks
        try:
            labels = self._labels(classes)
            # Without a label map, a class that the net lacks is an error that names the image.
            entries = prepare_roidb(roidb, largest if labels else min(largest, num_classes))
            if labels and max(labels) >= num_classes:
                file = self.param.annotated_data_param.label_map_file
                raise DataError(f"{file}: a class has the label {max(labels)}, but the net has {num_classes} classes")
            if not any((entry["gt_classes"] > 0).any() for entry in entries):
                raise DataError(f"a roidb of {len(roidb)} images has no image with boxes to train on")
            steps = self._steps(generator)
        except DataError as error:
            raise self.error(str(error)) from error
        source = RoidbSource(entries, self.param.data_param, steps, labels, self.phase == TRAIN, self.shard)
        self.roidb, self.source_of_batches = entries, source
        self.prefetcher = Prefetcher(source, self.prefetched)

    def _steps(self, generator: np.random.Generator) -> Steps:
        samplers = self.param.annotated_data_param.batch_sampler
        change = AnnotatedTransform(self.param.transform_param, samplers, self.phase, generator)
        return Steps(DataTransformer(change.plain(), self.phase, generator, self.dtype), change, self.labelled)

    def _labels(self, classes: Sequence[str]) -> Sequence[int] | None:
        """Return the label of each class by the label map; None without one. Raises DataError."""
        file = self.param.annotated_data_param.label_map_file
        if not (file and classes):
            return None
        if os.path.exists(file):
            return labels_by_name(file, classes)
        self.warn(f"{file} is missing: labels are the numbers of the classes", "annotated_data_param.label_map_file")
        return None


@dataclass(frozen=True)
class Steps:
    """The steps from an image and its boxes to a batch. labelled: whether a batch has the boxes too."""

    transformer: DataTransformer
    change: AnnotatedTransform
    labelled: bool

    @property
    def fixed_size(self) -> bool:
        """Whether all images get one size, whatever theirs is."""
        resize = self.change.param.resize_param if self.change.param.HasField("resize_param") else None
        return bool(self.change.crop[0]) or (resize is not None and resize.resize_mode != resize.FIT_SMALL_SIZE)

    def shapes(self, count: int, channels: int, height: int, width: int) -> list[tuple[int, ...]]:
        """Return the shapes of a batch's arrays, for images of this shape."""
        images = (count, channels, *self.change.size(height, width))
        labels: tuple[int, ...] = (1, 1, 1, 8)
        return [images, labels][: 1 + self.labelled]

    def batch(self, count: int, items: Iterable[tuple[str, Array, Array]]) -> Batch:
        """Return a batch of items: name, image (C, H, W), boxes (n, 7). Raises DataError, which names the item."""
        rows = [np.zeros((0, 8))]
        for i, (name, original, all_boxes) in enumerate(items):
            try:
                image, boxes, window = self.change(original, all_boxes)
                if i == 0:
                    batch = np.empty((count, *image.shape), self.transformer.dtype)
                self.transformer.transform(image, batch[i], window)
            except DataError as error:
                raise DataError(f"{name}: {error}") from error
            rows.append(np.column_stack([np.full(len(boxes), i), boxes]))
        # As in the fork, MultiBoxLoss skips a row with image -1.
        table = np.concatenate(rows) if sum(map(len, rows)) else np.full((1, 8), -1.0)
        return (batch, table.astype(batch.dtype)[None, None]) if self.labelled else (batch,)


class AnnotatedSource(DatumSource):
    """Batches of a database's items, transformed, and their boxes."""

    def __init__(self, database: Database, param: caffe_pb2.DataParameter, steps: Steps, shard: Shard = WHOLE) -> None:
        super().__init__(database, param, steps.transformer, steps.labelled, shard)
        self.steps = steps

    def shapes(self) -> list[tuple[int, ...]]:
        # The size after crop and resize may differ from the item's.
        return self.steps.shapes(self.batch_size, *self._annotated(*self._item_of(self.database.items()))[1].shape)

    def next_batch(self) -> Batch:
        return self.steps.batch(self.batch_size, (self._annotated(*self._next_of_shard()) for _ in range(self.batch_size)))

    def _annotated(self, key: bytes, value: bytes) -> tuple[str, Array, Array]:
        """Return an item's name, its image (C, H, W) and its boxes (n, 7)."""
        name = self._name(key)
        datum, rows = parse_annotated(value, name)
        return name, datum_array(datum, name, self.transformer.color), rows


class RoidbSource:
    """Batches of a roidb's images, transformed, and their boxes. labels: see entry_rows."""

    def __init__(
        self,
        roidb: Roidb,
        param: caffe_pb2.DataParameter,
        steps: Steps,
        labels: Sequence[int] | None = None,
        shuffle: bool = False,
        shard: Shard = WHOLE,
    ) -> None:
        self.roidb, self.param, self.steps, self.labels, self.shard = roidb, param, steps, labels, shard
        # All ranks draw the order alike. Only then does each rank use its own generator.
        self.order = Order(len(roidb), shuffle, steps.transformer.generator)
        shard.rank_stream(steps.transformer.generator)

    def shapes(self) -> list[tuple[int, ...]]:
        count, color = self.param.batch_size, self._color
        height, width = (self.roidb[0]["height"], self.roidb[0]["width"]) if self.roidb else (1, 1)
        return self.steps.shapes(count, 3 if color else 1, height, width)

    def next_batch(self) -> Batch:
        if not self.roidb:
            name = self.param.source
            database = f"there is no database {name} (in {os.getcwd()})" if name else "it has no source"
            raise DataError(f"has no images: {database}; give --roidb to `minicaffe train`, or call set_roidb before forward")
        return self.steps.batch(self.param.batch_size, (self._next() for _ in range(self.param.batch_size)))

    def state(self) -> dict[str, Any]:
        return {"order": self.order.state(), **self.shard.state(self.steps.transformer.generator)}

    def restore(self, state: dict[str, Any]) -> None:
        self.order.restore(Fields(state).inner("order"))
        self.shard.restore(self.steps.transformer.generator, state)

    def fingerprint(self) -> dict[str, Any]:
        boxes = (entry_rows(entry, entry["height"], entry["width"], self.labels) for entry in self.roidb)
        return {"images": len(self.roidb), "checksum": checksum(*boxes)}

    @property
    def _color(self) -> bool:
        return self.steps.transformer.color is not False

    def _next(self) -> tuple[str, Array, Array]:
        """Return this rank's next entry: its name, its image (C, H, W) and its boxes (n, 7)."""
        # Each rank draws for all ranks, to keep their orders equal.
        entry = self.roidb[[self.order.next() for _ in range(self.shard.count)][self.shard.rank]]
        image = entry_image(entry, self._color).transpose(2, 0, 1)
        return image_name(entry), image, entry_rows(entry, entry["height"], entry["width"], self.labels)
