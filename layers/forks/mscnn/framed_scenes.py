"""Batches of images in frames of one size, with anchor labels, for ImageGtData and DetectionData; and EvalData.

The next image of the list, mirrored and resized -> rescaled around one of its boxes -> placed on the frame -> label maps
Source: MS-CNN's image_gt_data_layer.cpp; Cascade R-CNN's detection_data_layer.cpp and eval_data_layer.cpp.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from minicaffe.blob import Array
from minicaffe.data.image_bytes import Pixels
from minicaffe.data.prefetch import Batch
from minicaffe.data.shard import Shard, current_shard
from minicaffe.data.window_file import LabelledImage, read_labelled_windows
from minicaffe.errors import DataError
from minicaffe.files import granted
from minicaffe.layer import Layer
from minicaffe.layers.data.image_data import ListSource
from minicaffe.layers.data.prefetching import PrefetchingLayer
from minicaffe.layers.data.scenes import Scaling, Scene, WindowList, box_rows, mean_values, placed, put, rounded, scene_of
from minicaffe.layers.forks.mscnn.anchor_fields import Field, Objects, Rules, label_maps
from minicaffe.proto import caffe_pb2

NOISE = 20
"""An image is shifted by up to half as many pixels to each side."""


@dataclass(frozen=True, kw_only=True)
class Labelling:
    """The labels, and the scaling of images to data.

    empty: the row of boxes for a batch without any; least (width, height): narrower or lower boxes are ignored.
    """

    fields: list[Field]
    rules: Rules
    scaling: Scaling
    mirror: bool
    least: tuple[float, float]
    empty: tuple[int, ...]
    gives_boxes: bool


class FramedSource(ListSource[LabelledImage]):
    """Batches of data (N, 3, h, w), a map (N, 6, ...) for each field, and the boxes (M, ..., 1, 1). block: the layer's."""

    def __init__(
        self,
        images: list[LabelledImage],
        lines: WindowList,
        generator: np.random.Generator,
        shard: Shard,
        labelling: Labelling,
        block: Any,
    ) -> None:
        self.labelling, self.block = labelling, block
        super().__init__(images, lines, generator, shard)

    # Methods that a layer's source defines.

    def changed(self, pixels: Pixels) -> Pixels:
        """Return the pixels read, with random changes."""
        return pixels

    def size(self, scene: Scene) -> tuple[int, int]:
        """Return the height and width to resize an image to."""
        raise NotImplementedError

    def frame(self, scene: Scene) -> tuple[int, int]:
        """Return the height and width of the batch's data, given its first image."""
        raise NotImplementedError

    def factors(self, scene: Scene, chosen: int | None) -> tuple[float, float]:
        """Return the factors to rescale an image by, to the right and down. chosen: the box in its centre."""
        raise NotImplementedError

    def begin(self) -> None:
        """Begin a batch."""

    # Methods common to both sources.

    def shapes(self) -> list[tuple[int, ...]]:
        first, count = self.images[0], self.param.batch_size
        scene = scene_of(first, self.pixels(first))
        scene = self.named(first, scene.resized, *self.size(scene))
        frame = self.frame(scene)
        maps = [(count, 6, *field.map_size(frame)) for field in self.labelling.fields]
        boxes = [(1, len(self.labelling.empty), 1, 1)] * self.labelling.gives_boxes
        return [(count, 3, *frame), *maps, *boxes]

    def next_batch(self) -> Batch:
        self.begin()
        rows, arrays, labelling = [], [], self.labelling
        frame, dtype = (0, 0), labelling.scaling.mean.dtype
        for i in range(self.param.batch_size):
            listed = self.next_listed()
            scene = self._scene(listed)
            if i == 0:
                frame, count = self.frame(scene), self.param.batch_size
                sizes = [(3, *frame), *((6, *field.map_size(frame)) for field in labelling.fields)]
                arrays = [np.zeros((count, *size), dtype) for size in sizes]
            objects, maps = self.named(listed, self.put, listed, scene, frame, arrays[0][i])
            for array, label in zip(arrays[1:], maps, strict=True):
                array[i] = label
            rows.append(box_rows(i, objects.boxes, objects.classes, objects.ignored, listed.difficult))
        if labelling.gives_boxes:
            found = np.concatenate(rows)[:, : len(labelling.empty)]
            found = found if len(found) else np.array([labelling.empty])
            arrays.append(found.astype(dtype).reshape(*found.shape, 1, 1))
        return tuple(arrays)

    def _scene(self, listed: LabelledImage) -> Scene:
        scene = scene_of(listed, self.changed(self.pixels(listed)))
        if self.labelling.mirror and self.generator.integers(2):
            scene = scene.mirrored()
        return self.named(listed, scene.resized, *self.size(scene))

    def put(self, listed: LabelledImage, scene: Scene, frame: tuple[int, int], out: Array) -> tuple[Objects, list[Array]]:
        """Place an image in the frame out. Return its boxes there and the label maps."""
        chosen = int(self.generator.integers(len(scene.boxes))) if len(scene.boxes) else None
        centre = self._centre(scene, frame, chosen)
        right, down = self.factors(scene, chosen)
        scene, (x, y) = scene.rescaled(centre, right, down)
        noise = self.generator.integers(NOISE, size=2) - NOISE // 2
        across = placed(scene.size[1], frame[1], x * right, int(noise[0]))
        along = placed(scene.size[0], frame[0], y * down, int(noise[1]))
        scene = scene.moved(across.to - across.of, along.to - along.of)
        put(scene.pixels, across, along, self.labelling.scaling, out)
        objects = self._objects(listed, scene, frame)
        return objects, label_maps(frame, (across, along), objects, scene.regions, self.labelling.fields, self.labelling.rules)

    def _centre(self, scene: Scene, frame: tuple[int, int], chosen: int | None) -> tuple[float, float]:
        """Return x and y of the centre of the part to show."""
        if chosen is not None:
            x1, y1, x2, y2 = scene.boxes[chosen].tolist()
            return (x1 + x2) / 2, (y1 + y2) / 2
        at = []
        for size, wanted in zip(scene.size[::-1], frame[::-1], strict=True):
            free = size - wanted
            at.append(size / 2 if free < 0 else float(self.generator.integers(free + 1)) + wanted / 2)
        return at[0], at[1]

    def _objects(self, listed: LabelledImage, scene: Scene, frame: tuple[int, int]) -> Objects:
        """Return the boxes in the frame. Small boxes, and those whose centre is outside of it, are ignored too."""
        corners = scene.boxes
        centre, size = (corners[:, :2] + corners[:, 2:]) / 2, corners[:, 2:] - corners[:, :2] + 1
        outside = (centre < 0) | (centre >= np.array(frame[::-1], np.float32))
        small = size < np.array(self.labelling.least, np.float32)
        return Objects(corners, listed.classes, (listed.ignored != 0) | (outside | small).any(axis=1))


def read_fields(layer: Layer, block: str, strides: str) -> list[Field]:
    """Return the fields of a block with field_h, field_w and strides.

    Raises LayerError if their numbers differ, and for sizes of 0.
    """
    param = getattr(layer.param, block)
    columns = [list(getattr(param, name)) for name in (strides, "field_h", "field_w")]
    if len({len(column) for column in columns}) > 1:
        counts = ", ".join(
            f"{len(column)} {name}" for column, name in zip(columns, (strides, "field_h", "field_w"), strict=True)
        )
        raise layer.error(f"give as many of each, got {counts}", block)
    if any(value < 1 for column in columns for value in column):
        raise layer.error(f"{strides}, field_h and field_w must be at least 1", block)
    if param.coord_num != 4:
        raise layer.error(f"coord_num must be 4, got {param.coord_num}", f"{block}.coord_num")
    return [Field(*values) for values in zip(*columns, strict=True)]


def check_tops(layer: Layer, tops: int, labelling: Labelling) -> None:
    """Raise LayerError unless there is a top for the data, each field and the boxes."""
    wanted = 1 + len(labelling.fields) + labelling.gives_boxes
    if tops != wanted:
        boxes = " and the boxes" * labelling.gives_boxes
        raise layer.error(f"has {tops} tops, but the data, {len(labelling.fields)} fields{boxes} make {wanted}", "top")


def check_frame(frame: tuple[int, int], size: tuple[int, int]) -> None:
    """Raise DataError if an image (height, width) is smaller than the frame."""
    if frame[0] > size[0] or frame[1] > size[1]:
        raise DataError(f"the crop, {frame[1]} wide and {frame[0]} high, is larger than the image, {size[1]} x {size[0]}")


MULTIPLE = 32
"""Heights and widths are rounded to multiples of it."""


class EvalData(PrefetchingLayer):
    """The images of eval_data_param.source, in order, again and again.

    No bottom. top: data (batch_size, 3, H, W), blue, green, red: (pixel - mean) * transform_param.scale; boxes (N, 8, 1, 1):
    the image's number in the batch, x1, y1, x2, y2 in pixels of data, class, ignored, difficult; one row of -1 if there are
    none; optionally the images' height and width in data (batch_size, 2, 1, 1). resize_height and resize_width, else short_size
    and long_size (the shorter side's length, and each side's limit), set the size; it is rounded to multiples of 32.
    Raises LayerError for a window file or an image that cannot be read, a batch of several images without a resize_height and
    resize_width, and fields of transform_param that it does not take.
    """

    type = "EvalData"
    num_top = (2, 3)
    param_block = ("eval_data_param", "transform_param")

    def make_source(self, tops: int, generator: np.random.Generator) -> EvalSource:
        param = self.param.eval_data_param
        self.positive(param.batch_size, "eval_data_param.batch_size")
        fixed = param.HasField("resize_width") and param.HasField("resize_height")
        if param.batch_size > 1 and not fixed:
            raise self.error("a batch of several images needs resize_width and resize_height", "eval_data_param.batch_size")
        mean = mean_values(self, ("scale", "mean_value"))
        images = read_labelled_windows(granted(param.source), has_difficult=True)
        lines = WindowList(source=param.source, batch_size=param.batch_size, root_folder=param.root_folder)
        scaling = Scaling(mean, self.param.transform_param.scale)
        return EvalSource(images, lines, generator, current_shard(self.phase), (param, scaling, tops))


class EvalSource(ListSource[LabelledImage]):
    """Batches of images and their boxes. more: the layer's parameters, the scaling of pixels, and the number of tops."""

    def __init__(
        self,
        images: list[LabelledImage],
        lines: WindowList,
        generator: np.random.Generator,
        shard: Shard,
        more: tuple[caffe_pb2.EvalDataParameter, Scaling, int],
    ) -> None:
        super().__init__(images, lines, generator, shard)
        self.eval_param, self.scaling, self.tops = more

    def shapes(self) -> list[tuple[int, ...]]:
        size, first = self.param.batch_size, self._scene(self.images[0])
        shapes: list[tuple[int, ...]] = [(size, 3, *first.size), (max(len(first.boxes), 1), 8, 1, 1), (size, 2, 1, 1)]
        return shapes[: self.tops]

    def next_batch(self) -> Batch:
        dtype = self.scaling.mean.dtype
        rows, sizes = [], np.empty((self.param.batch_size, 2, 1, 1), dtype)
        for i in range(self.param.batch_size):
            listed = self.next_listed()
            scene = self._scene(listed)
            if i == 0:
                data = np.empty((self.param.batch_size, 3, *scene.size), dtype)
            data[i] = self.scaling(scene.pixels)
            sizes[i, :, 0, 0] = scene.size
            rows.append(box_rows(i, scene.boxes, listed.classes, listed.ignored, listed.difficult))
        found = np.concatenate(rows).astype(dtype)
        boxes = found if len(found) else np.full((1, 8), -1, dtype)
        return (data, boxes.reshape(-1, 8, 1, 1), sizes)[: self.tops]

    def _scene(self, listed: LabelledImage) -> Scene:
        scene = scene_of(listed, self.pixels(listed))
        return self.named(listed, scene.resized, *self._size(*scene.size))

    def _size(self, height: int, width: int) -> tuple[int, int]:
        """Return the height and width of data."""
        param = self.eval_param
        if param.HasField("resize_width") and param.HasField("resize_height"):
            height, width = param.resize_height, param.resize_width
        elif param.HasField("short_size") and param.HasField("long_size"):
            factor = np.float32(param.short_size) / np.float32(min(height, width))
            height, width = (min(rounded(np.float32(size) * factor), param.long_size) for size in (height, width))
        return rounded(height / MULTIPLE) * MULTIPLE, rounded(width / MULTIPLE) * MULTIPLE
