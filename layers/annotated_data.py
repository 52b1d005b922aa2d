"""AnnotatedData: images and the boxes on them from an LMDB or LevelDB of AnnotatedDatums.

    item -> crop by one of the batch samplers -> resized (resize_param: WARP) -> mirrored by chance -> mean and scale

Source: the SSD fork's annotated_data_layer.cpp and data_transformer.cpp.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from minicaffe.data_transformer import DataTransformer
from minicaffe.database import Database, open_database
from minicaffe.datum import datum_array
from minicaffe.errors import DataError
from minicaffe.image_bytes import resized
from minicaffe.prefetch import Batch
from minicaffe.proto import caffe_pb2

from .batch_samplers import draw_crop, seen_in
from .data import DatumSource
from .prefetching import PrefetchingLayer

Array = NDArray[Any]
LINEAR = caffe_pb2.ResizeParameter.LINEAR


class AnnotatedData(PrefetchingLayer):
    """The items of a database in the order of their keys, from the first again after the last, with their boxes.

    No bottom. top: data (batch_size, C, H, W); optionally labels (1, 1, G, 8), a row for each box of the batch as
    MultiBoxLoss takes them, one of -1 where there is none. annotated_data_param: batch_sampler. transform_param: scale,
    mean_file, mean_value, mirror, force_color, force_gray, resize_param (WARP, LINEAR, prob 1), emit_constraint.
    Raises LayerError for what Data does, items that are no AnnotatedDatums of boxes, and transformations that are not
    built in: crop_size, the other resizes, noise_param, distort_param and expand_param.
    """

    type = "AnnotatedData"
    num_top = (1, 2)

    def make_source(self, tops: int, generator: np.random.Generator) -> AnnotatedSource:
        param = self.param.data_param
        self.positive(param.batch_size, "data_param.batch_size")
        self.prefetched = self.positive(param.prefetch, "data_param.prefetch")
        backend = "lmdb" if param.backend == caffe_pb2.DataParameter.LMDB else "leveldb"
        plain = plain_transformation(self.param.transform_param)
        transformer = DataTransformer(plain, self.phase, generator, self.dtype)
        return AnnotatedSource(open_database(param.source, backend), self.param, transformer, tops > 1)


def plain_transformation(param: caffe_pb2.TransformationParameter) -> caffe_pb2.TransformationParameter:
    """What is left to the transformer: mean and scale. Raises DataError for what is not built in."""
    resize = param.resize_param
    if param.crop_size:
        raise DataError("crop_size is not built in for AnnotatedData: use a batch_sampler and resize_param")
    if resize.resize_mode != resize.WARP or resize.prob != 1 or set(resize.interp_mode) - {LINEAR}:
        raise DataError("of resize_param only WARP with interp_mode LINEAR and prob 1 is built in")
    if param.HasField("resize_param") and not (resize.height and resize.width):
        raise DataError(f"resize_param needs a height and a width > 0, got {resize.height} and {resize.width}")
    plain = caffe_pb2.TransformationParameter()
    plain.CopyFrom(param)
    for field in ("resize_param", "emit_constraint", "mirror"):
        plain.ClearField(field)
    return plain


class AnnotatedSource(DatumSource):
    """Batches of a database's items, transformed, and their boxes."""

    def __init__(
        self, database: Database, param: caffe_pb2.LayerParameter, transformer: DataTransformer, labelled: bool
    ) -> None:
        super().__init__(database, param.data_param, transformer, labelled)
        self.samplers = list(param.annotated_data_param.batch_sampler)
        self.mirror, self.resize = param.transform_param.mirror, param.transform_param.resize_param
        emits = param.transform_param.HasField("emit_constraint")
        self.emit = param.transform_param.emit_constraint if emits else None

    def shapes(self) -> list[tuple[int, ...]]:
        first = next(self.database.items(), None)
        if first is None:
            raise DataError(f"{self.database.path}: the database is empty")
        channels, height, width = self._annotated(*first)[0].shape
        images = (self.batch_size, channels, self.resize.height or height, self.resize.width or width)
        labels: tuple[int, ...] = (1, 1, 1, 8)
        return [images, labels][: 1 + self.labelled]

    def next_batch(self) -> Batch:
        rows = [np.zeros((0, 8))]
        for i in range(self.batch_size):
            key, value = self._next()
            image, boxes = self._changed(*self._annotated(key, value))
            if i == 0:
                batch = np.empty((self.batch_size, *image.shape), self.transformer.dtype)
            try:
                self.transformer.transform(image, batch[i])
            except DataError as error:
                raise DataError(f"{self._name(key)}: {error}") from error
            rows.append(np.column_stack([np.full(len(boxes), i), boxes]))
        table = np.concatenate(rows) if sum(map(len, rows)) else np.full((1, 8), -1.0)
        return (batch, table.astype(batch.dtype)[None, None]) if self.labelled else (batch,)

    def _annotated(self, key: bytes, value: bytes) -> tuple[Array, Array]:
        """An item's image (C, H, W) and boxes (n, 7): class, instance, xmin, ymin, xmax, ymax, difficult."""
        item, name = caffe_pb2.AnnotatedDatum(), self._name(key)
        try:
            item.ParseFromString(value)
        except DecodeError as error:
            raise DataError(f"{name}: not an AnnotatedDatum: {error}") from error
        if not item.HasField("datum"):
            raise DataError(f"{name}: not an AnnotatedDatum: it holds no image")
        rows = [
            (group.group_label, one.instance_id, box.xmin, box.ymin, box.xmax, box.ymax, box.difficult)
            for group in item.annotation_group
            for one in group.annotation
            for box in [one.bbox]
        ]
        return datum_array(item.datum, name, self.transformer.color), np.array(rows, float).reshape(-1, 7)

    def _changed(self, image: Array, boxes: Array) -> tuple[Array, Array]:
        """Cropped, resized, mirrored."""
        random = self.transformer.generator
        crop = draw_crop(self.samplers, boxes[:, 2:6], random)
        if crop is not None:
            boxes[:, 2:6], counts = seen_in(crop, boxes[:, 2:6], self.emit)
            image, boxes = cut(image, crop), boxes[counts]
        if self.resize.height:
            if image.dtype != np.uint8:
                raise DataError(f"{self.database.path}: resize_param needs images of bytes, these are floats")
            pixels = np.ascontiguousarray(image.transpose(1, 2, 0))
            image = resized(pixels, self.resize.height, self.resize.width).transpose(2, 0, 1)
        if self.mirror and random.integers(2):
            image, boxes[:, [2, 4]] = image[:, :, ::-1], 1 - boxes[:, [4, 2]]
        return image, boxes


def cut(image: Array, crop: Array) -> Array:
    """The part of image (C, H, W) in crop (4,), at least a pixel; edges are cut to whole pixels."""
    height, width = image.shape[1:]
    x, y, x_end, y_end = np.clip(crop, 0, 1) * [width, height, width, height]
    left, top = min(int(x), width - 1), min(int(y), height - 1)
    return image[:, top : top + max(int(y_end - y), 1), left : left + max(int(x_end - x), 1)]
