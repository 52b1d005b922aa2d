"""BoxData: images and true boxes from an LMDB or LevelDB of Datums, for YOLO. Two forks have it, with different labels.

Source: box_data_layer.cpp and data_transformer.cpp of yeahkun/caffe-yolo and of choasup/caffe-yolo9000, which caffe-yolov2 has
from it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minicaffe.blob import Array
from minicaffe.data.box_labels import boxes_of, cells_of_boxes, random_part, rows_of_boxes
from minicaffe.data.data_transformer import DataTransformer
from minicaffe.data.database import Database, datum_array, parse_datum
from minicaffe.data.prefetch import Batch
from minicaffe.data.shard import Shard, current_shard
from minicaffe.errors import DataError
from minicaffe.forked import Forked
from minicaffe.formats.forks import Kind
from minicaffe.layers.data.data import DatumSource, open_source
from minicaffe.layers.data.prefetching import PrefetchingLayer
from minicaffe.proto import caffe_pb2

CELLS, ROWS = "caffe-yolo", "caffe-yolov2"
FIELDS = ("scale", "mean_file", "mean_value", "force_color", "force_gray")
MOST = 30
"""Boxes of an image in caffe-yolov2's labels."""
SIDE = 7


class BoxData(Forked, PrefetchingLayer):
    """The items of a database in the order of their keys, again and again, with their boxes.

    No bottom. top: data (batch_size, C, H, W): (pixel - mean) * scale; labels, one top for each data_param.side (default 7):
    caffe-yolo's (batch_size, 7 side^2), as DetectionLoss takes them, caffe-yolov2's (batch_size, 150), as RegionLoss does: 30
    times class from 0, centre and size, with 0 after the last. In TRAIN, where labels are asked for, a random part of 0.7 to 1
    of the image's sides that has a box's centre, resized to the image's size.
    Raises LayerError for what Data does, items without an encoded image or six numbers for each box, more than 30 boxes
    (caffe-yolov2's), another number of tops than sides, and mirror and crops, which in the forks do not move the boxes.
    """

    type = "BoxData"
    num_top = (1, None)
    param_block = ("data_param", "transform_param")
    kinds = (
        Kind(CELLS, ("yolov1",), "a net with its DetectionLoss or EvalDetection"),
        Kind(ROWS, ("yolov2",), "labels of 30 boxes"),
    )

    def make_source(self, tops: int, generator: np.random.Generator) -> BoxSource:
        param, transform = self.param.data_param, self.param.transform_param
        self.positive(param.batch_size, "data_param.batch_size")
        self.prefetched = self.positive(param.prefetch, "data_param.prefetch")
        for field, value in transform.ListFields():
            if field.name not in FIELDS and value:
                wrong = f"{field.name} is not built in: in the forks it changes the image, and not its boxes"
                raise self.error(wrong, f"transform_param.{field.name}")
        sides = [self.positive(side, "data_param.side") for side in param.side] or [SIDE]
        kind = ""
        if tops > 1:
            if tops != 1 + len(sides):
                raise self.error(f"{len(sides)} sides give {1 + len(sides)} tops, got {tops}", "data_param.side")
            kind = self.choose_by_fork()
            if not kind:
                raise self.ambiguous_kind_error("no field tells; ")
        transformer = DataTransformer(transform, self.phase, generator, self.dtype)
        shard = current_shard(self.phase)
        return BoxSource(open_source(param), param, transformer, shard, sides if tops > 1 else [], in_rows=kind == ROWS)


class BoxSource(DatumSource):
    """Batches of a database's items, transformed, and labels for each of sides. in_rows: use caffe-yolov2's labels."""

    def __init__(
        self,
        database: Database,
        param: caffe_pb2.DataParameter,
        transformer: DataTransformer,
        shard: Shard,
        sides: Sequence[int],
        *,
        in_rows: bool,
    ) -> None:
        super().__init__(database, param, transformer, bool(sides), shard)
        self.sides, self.in_rows, self.is_train = sides, in_rows, transformer.random_crop

    def shapes(self) -> list[tuple[int, ...]]:
        labels = [(self.batch_size, 5 * MOST if self.in_rows else 7 * side * side) for side in self.sides]
        return [*super().shapes()[:1], *labels]

    def next_batch(self) -> Batch:
        if not self.sides:
            return super().next_batch()
        labels = [np.empty(shape, self.transformer.dtype) for shape in self.shapes()[1:]]
        for i in range(self.batch_size):
            key, value = self._next_of_shard()
            try:
                image, boxes = self._boxed(key, value)
                if i == 0:
                    batch = np.empty((self.batch_size, *self.transformer.shape(*image.shape)), self.transformer.dtype)
                self.transformer.transform(image, batch[i])
                for side, rows in zip(self.sides, labels, strict=True):
                    rows[i] = rows_of_boxes(boxes, MOST) if self.in_rows else cells_of_boxes(boxes, side)
            except DataError as error:
                name = self._name(key)
                raise DataError(str(error) if str(error).startswith(name) else f"{name}: {error}") from error
        return (batch, *labels)

    def _boxed(self, key: bytes, value: bytes) -> tuple[Array, Array]:
        """Return an item's image (C, H, W) and boxes (G, 6); in TRAIN those of a random part."""
        datum = parse_datum(value, self._name(key))
        if not datum.encoded:
            raise DataError("the image is not encoded, as convert_box_data stores it")
        image, boxes = datum_array(datum, self._name(key), self.transformer.color), boxes_of(datum)
        if not self.is_train:
            return image, boxes
        part, boxes = random_part(image.transpose(1, 2, 0), boxes, self.transformer.generator)
        return part.transpose(2, 0, 1), boxes
