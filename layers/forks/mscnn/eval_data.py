"""EvalData: images, resized, with their true boxes, from Cascade R-CNN's window file. Source: its eval_data_layer.cpp."""

from __future__ import annotations

import numpy as np

from minicaffe.data.prefetch import Batch
from minicaffe.data.shard import Shard, current_shard
from minicaffe.data.window_file import LabelledImage, read_labelled_windows
from minicaffe.files import granted
from minicaffe.layers.data.image_lists import ListSource
from minicaffe.layers.data.prefetching import PrefetchingLayer
from minicaffe.layers.data.scenes import Scaling, Scene, WindowList, box_rows, mean_values, rounded, scene_of
from minicaffe.proto import caffe_pb2

MULTIPLE = 32
"""Heights and widths are rounded to multiples of it."""


class EvalData(PrefetchingLayer):
    """The images of eval_data_param.source, one after another, from the first again after the last.

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
        """Of data."""
        param = self.eval_param
        if param.HasField("resize_width") and param.HasField("resize_height"):
            height, width = param.resize_height, param.resize_width
        elif param.HasField("short_size") and param.HasField("long_size"):
            factor = np.float32(param.short_size) / np.float32(min(height, width))
            height, width = (min(rounded(np.float32(size) * factor), param.long_size) for size in (height, width))
        return rounded(height / MULTIPLE) * MULTIPLE, rounded(width / MULTIPLE) * MULTIPLE
