"""AnnotatedData: images and the boxes on them from an LMDB or LevelDB of AnnotatedDatums.

    item -> distorted, expanded, cropped, resized, mirrored (annotated_transform.py) -> mean and scale

Source: the SSD fork's annotated_data_layer.cpp.
"""

from __future__ import annotations

import numpy as np
from google.protobuf.message import DecodeError

from minicaffe.access import granted_folder
from minicaffe.blob import Array
from minicaffe.data.data_transformer import DataTransformer, warn_of_no_effect
from minicaffe.data.database import Database, open_database
from minicaffe.data.datum import datum_array
from minicaffe.data.prefetch import Batch
from minicaffe.data.shard import WHOLE, Shard, current_shard
from minicaffe.errors import DataError
from minicaffe.layers.data.data import DatumSource
from minicaffe.layers.data.prefetching import PrefetchingLayer
from minicaffe.proto import caffe_pb2

from .annotated_transform import AnnotatedTransform


class AnnotatedData(PrefetchingLayer):
    """The items of a database in the order of their keys, from the first again after the last, with their boxes.

    No bottom. top: data (batch_size, C, H, W); optionally labels (1, 1, G, 8), a row for each box of the batch as
    MultiBoxLoss takes them, one of -1 where there is none. annotated_data_param: batch_sampler. transform_param: scale,
    mean_file, mean_value, mirror, force_color, force_gray, crop_size, crop_h, crop_w, resize_param, distort_param,
    expand_param, noise_param, emit_constraint. With resize_param's FIT_SMALL_SIZE, height_scale and width_scale corners are
    in units of these pixels, not of the image.
    Raises LayerError for what Data does, items that are no AnnotatedDatums of boxes, fields of transform_param that
    contradict each other, and an image smaller than the crop or than height_scale x width_scale.
    """

    type = "AnnotatedData"
    num_top = (1, 2)
    param_block = ("data_param", "annotated_data_param", "transform_param")

    def make_source(self, tops: int, generator: np.random.Generator) -> AnnotatedSource:
        param = self.param.data_param
        self.positive(param.batch_size, "data_param.batch_size")
        self.prefetched = self.positive(param.prefetch, "data_param.prefetch")
        backend = "lmdb" if param.backend == caffe_pb2.DataParameter.LMDB else "leveldb"
        samplers = self.param.annotated_data_param.batch_sampler
        warn_of_no_effect(self, boxes=True)
        change = AnnotatedTransform(self.param.transform_param, samplers, self.phase, generator)
        transformer = DataTransformer(change.plain(), self.phase, generator, self.dtype)
        database, shard = open_database(granted_folder(param.source), backend), current_shard(self.phase)
        return AnnotatedSource(database, param, transformer, change, tops > 1, shard)


class AnnotatedSource(DatumSource):
    """Batches of a database's items, transformed, and their boxes."""

    def __init__(
        self,
        database: Database,
        param: caffe_pb2.DataParameter,
        transformer: DataTransformer,
        change: AnnotatedTransform,
        labelled: bool,
        shard: Shard = WHOLE,
    ) -> None:
        super().__init__(database, param, transformer, labelled, shard)
        self.change = change

    def shapes(self) -> list[tuple[int, ...]]:
        channels, height, width = self._annotated(*self._item_of(self.database.items()))[0].shape
        # the size after crop and resize, which may differ from the item's
        images = (self.batch_size, channels, *self.change.size(height, width))
        labels: tuple[int, ...] = (1, 1, 1, 8)
        return [images, labels][: 1 + self.labelled]

    def next_batch(self) -> Batch:
        rows = [np.zeros((0, 8))]
        for i in range(self.batch_size):
            key, value = self._next_of_shard()
            image, boxes = self._annotated(key, value)
            try:
                image, boxes, window = self.change(image, boxes)
                if i == 0:
                    batch = np.empty((self.batch_size, *image.shape), self.transformer.dtype)
                self.transformer.transform(image, batch[i], window)
            except DataError as error:
                raise DataError(f"{self._name(key)}: {error}") from error
            rows.append(np.column_stack([np.full(len(boxes), i), boxes]))
        # the fork's convention: MultiBoxLoss skips a row of image -1
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
