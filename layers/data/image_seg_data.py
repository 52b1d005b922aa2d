"""ImageSegData: images with their segmentations, from a text file of names. Source: DeepLab's image_seg_data_layer.cpp."""

from __future__ import annotations

import numpy as np

from minicaffe.access import granted
from minicaffe.data.data_transformer import crop_of
from minicaffe.data.image_bytes import Pixels
from minicaffe.data.image_list import Paired, label_number, read_pairs
from minicaffe.data.labelled_transformer import Cut, LabelledTransformer
from minicaffe.data.prefetch import Batch
from minicaffe.errors import DataError
from minicaffe.mode import TRAIN
from minicaffe.proto import caffe_pb2

from .image_lists import check_list_fields, check_skip
from .labelled_images import LabelledListSource
from .prefetching import PrefetchingLayer

LISTED = {
    caffe_pb2.ImageDataParameter.PIXEL: "LABEL_IMAGE",
    caffe_pb2.ImageDataParameter.IMAGE: "LABEL",
    caffe_pb2.ImageDataParameter.NONE: "",
}
"""By label_type: what follows the name on a line of the list."""


class ImageSegData(PrefetchingLayer):
    """The images that image_data_param.source lists, with a label for each pixel, from the first again after the last.

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
    """Batches with the images' sizes; the labels of a line as its label_type says."""

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
