"""Images with label images: DenseImageData and ImageSegData."""

from __future__ import annotations

import numpy as np

from minicaffe.blob import Array
from minicaffe.data.data_transformer import Cut, LabelledTransformer, crop_of
from minicaffe.data.image_bytes import Pixels, read_labels
from minicaffe.data.image_list import Paired, label_number, read_pairs
from minicaffe.data.prefetch import Batch
from minicaffe.data.resizing import interpolated
from minicaffe.data.shard import Shard
from minicaffe.errors import DataError
from minicaffe.files import granted
from minicaffe.layers.data.image_data import ListParam, ListSource, check_list_fields, check_skip
from minicaffe.layers.data.prefetching import PrefetchingLayer
from minicaffe.mode import TRAIN
from minicaffe.proto import caffe_pb2

NEAREST = caffe_pb2.ResizeParameter.NEAREST


class LabelledListSource(ListSource[Paired]):
    """Batches of data (N, C, H, W) and labels (N, 1, H, W)."""

    def __init__(self, images: list[Paired], param: ListParam, transformer: LabelledTransformer, shard: Shard) -> None:
        self.transformer = transformer  # before super().__init__, because check needs it
        super().__init__(images, param, transformer.generator, shard)

    def check(self, listed: Paired) -> None:
        self.labels_of(listed, self.pixels(listed))

    def shapes(self) -> list[tuple[int, ...]]:
        first = self.images[0]
        image = self.pixels(first)
        self.labels_of(first, image)
        shape, labels = self._shapes(first, image)
        return [(self.param.batch_size, *shape), (self.param.batch_size, 1, *labels)]

    def next_batch(self) -> Batch:
        return self.labelled_batch()[:2]

    def labelled_batch(self) -> tuple[Array, Array, Array]:
        """Return the next data and labels, and the images' heights and widths (N, 2)."""
        size, dtype = self.param.batch_size, self.transformer.dtype
        sizes = np.empty((size, 2), int)
        for i in range(size):
            listed = self.next_listed()
            image = self.pixels(listed)
            if i == 0:
                shape, label_shape = self._shapes(listed, image)
                data, labels = np.empty((size, *shape), dtype), np.empty((size, 1, *label_shape), dtype)
            pair = image.transpose(2, 0, 1), self.labels_of(listed, image)[:, :, 0]
            self.named(listed, self.transformer.transform, *pair, data[i], labels[i, 0])
            sizes[i] = image.shape[:2]
        return data, labels, sizes

    def labels_of(self, listed: Paired, image: Array) -> Array:
        """Return the labels (H, W, 1) of an image (H, W, C) as the layer reads it."""
        param = self.param
        labels = self.named(listed, lambda: read_labels(granted(param.root_folder + listed.label)))
        return interpolated(labels, param.new_height, param.new_width, NEAREST) if param.new_height else labels

    def _shapes(self, listed: Paired, image: Array) -> tuple[tuple[int, int, int], tuple[int, int]]:
        """Return the transformed shapes of an image (H, W, C) and of its labels."""
        shape = self.named(listed, self.transformer.shape, image.shape[2], *image.shape[:2])
        return shape, self.named(listed, self.transformer.shape_of_labels, *shape[1:])


class DenseImageData(PrefetchingLayer):
    """Images and label images listed in dense_image_data_param.source, `NAME LABEL_IMAGE` on each line, again and again.

    Source: caffe-segnet's dense_image_data_layer.cpp; label_divide_factor: caffe-enet's.

    No bottom. top: data (batch_size, C, H, W), blue, green, red (is_color: false: grey), resized to new_height x new_width
    where these are given, then cropped and mirrored at random (crop_height, crop_width, mirror: in both phases), less the mean
    and times the scale of transform_param; labels (batch_size, 1, H, W), cropped and mirrored alike: the label image's grey
    values, or the indices of its palette. label_divide_factor (ENet's): labels are smaller than the data by this factor n:
    every n-th row and column of the label image. A name is root_folder and what the line says, without spaces. Otherwise as
    ImageData.
    Raises LayerError, with the list's line, for a line of other words, an image that cannot be read or is smaller than the
    crop, a label image of another size than its image or in colours, images of several sizes in one batch; and for a factor
    with a crop, or one that does not divide the size.
    """

    type = "DenseImageData"
    num_top = 2
    param_block = ("dense_image_data_param", "transform_param")

    def make_source(self, tops: int, generator: np.random.Generator) -> LabelledListSource:
        check_list_fields(self, "dense_image_data_param")
        param, transform = self.param.dense_image_data_param, self.param.transform_param
        crop = param.crop_height, param.crop_width
        if any(crop) != all(crop):
            raise self.error(f"give both crop_height and crop_width, got {crop[0]} and {crop[1]}", "dense_image_data_param")
        if any(crop_of(transform)) or transform.mirror:
            raise self.error("give mirror, crop_height and crop_width in dense_image_data_param", "transform_param")
        if param.label_divide_factor < 1 or (param.label_divide_factor > 1 and any(crop)):
            message = f"label_divide_factor must be > 0, and 1 beside a crop; got {param.label_divide_factor}"
            raise self.error(message, "dense_image_data_param.label_divide_factor")
        images = read_pairs(granted(param.source), "LABEL_IMAGE")
        shard = check_skip(self, "dense_image_data_param", images)
        cut = Cut(crop, random=True, mirror=param.mirror, every=param.label_divide_factor)
        return LabelledListSource(images, param, LabelledTransformer(transform, cut, generator, self.dtype), shard)


LISTED = {
    caffe_pb2.ImageDataParameter.PIXEL: "LABEL_IMAGE",
    caffe_pb2.ImageDataParameter.IMAGE: "LABEL",
    caffe_pb2.ImageDataParameter.NONE: "",
}
"""The words after the image's name on a line of the list, by label_type."""


class ImageSegData(PrefetchingLayer):
    """The images that image_data_param.source lists, with a label for each pixel, again and again.

    Source: DeepLab's image_seg_data_layer.cpp.

    No bottom. top: data (batch_size, C, H, W), blue, green, red (is_color: false: grey), resized to new_height x new_width
    where these are given; labels (batch_size, 1, H, W), cropped and mirrored with the data; the image's height and width, at
    most the crop's (batch_size, 1, 1, 2). An image smaller than transform_param's crop is padded: data with 0, labels with
    ignore_label. label_type PIXEL: lines are `NAME LABEL_IMAGE`, whose pixels are classes: grey values, or indices of its
    palette. IMAGE (the default): lines are `NAME LABEL`, one label for the whole image. NONE: lines are `NAME`, and every
    label is ignore_label. A name is root_folder and what the line says, without spaces. Otherwise as ImageData.
    Raises LayerError, with the list's line, for a line of other words, an image that cannot be read, a label image of another
    size than its image or in colours, images of several sizes in one batch without a crop; and for a mean_file.
    """

    type = "ImageSegData"
    num_top = 3
    auto_top = True
    param_block = ("image_data_param", "transform_param")

    def make_source(self, tops: int, generator: np.random.Generator) -> SegmentationSource:
        check_list_fields(self, "image_data_param")
        param, transform = self.param.image_data_param, self.param.transform_param
        if transform.mean_file:
            raise self.error("takes no mean_file: give mean_value", "transform_param.mean_file")
        images = read_pairs(granted(param.source), LISTED[param.label_type])
        shard = check_skip(self, "image_data_param", images)
        cut = Cut(crop_of(transform), self.phase == TRAIN, transform.mirror, padding=param.ignore_label)
        return SegmentationSource(images, param, LabelledTransformer(transform, cut, generator, self.dtype), shard)


class SegmentationSource(LabelledListSource):
    """Batches with the images' sizes. A line's labels depend on label_type."""

    param: caffe_pb2.ImageDataParameter

    def shapes(self) -> list[tuple[int, ...]]:
        return [*super().shapes(), (self.param.batch_size, 1, 1, 2)]

    def next_batch(self) -> Batch:
        data, labels, sizes = self.labelled_batch()
        return data, labels, np.minimum(sizes, data.shape[2:]).reshape(-1, 1, 1, 2).astype(data.dtype)

    def labels_of(self, listed: Paired, image: Pixels) -> Pixels:
        if self.param.label_type == self.param.PIXEL:
            return super().labels_of(listed, image)
        label = self.param.ignore_label
        if self.param.label_type == self.param.IMAGE:
            label = label_number(listed.label, f"{self.param.source}:{listed.line}")
            if not 0 <= label <= 255:
                raise DataError(f"{self.param.source}:{listed.line}: the label {label} is not in [0, 255]")
        return np.full((*image.shape[:2], 1), label, self.transformer.dtype)
