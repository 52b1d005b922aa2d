"""ImageData: images and labels from a text file of names. Source: Caffe's image_data_layer.cpp."""

from __future__ import annotations

import numpy as np

from minicaffe.data.data_transformer import DataTransformer, warn_of_no_effect
from minicaffe.data.image_list import Listed, read_image_list
from minicaffe.data.prefetch import Batch
from minicaffe.data.shard import WHOLE, Shard
from minicaffe.files import granted
from minicaffe.proto import caffe_pb2

from .image_lists import ListSource, check_list_fields, check_skip
from .prefetching import PrefetchingLayer


class ImageData(PrefetchingLayer):
    """The images that image_data_param.source lists, `NAME LABEL` on each line, from the first again after the last.

    No bottom. top: data (batch_size, C, H, W), blue, green, red (is_color: false: grey), resized to new_height x new_width
    where these are given, then transformed as transform_param says (of SSD's fields those that Data takes); labels
    (batch_size,). Each batch has its first image's size. A name is root_folder and what the line says. shuffle: another order
    each time around. rand_skip: begin at a random one of the first so many.
    Raises LayerError, with the list's line, for a line that is no name and label, an image that cannot be read or is smaller
    than the crop, images of several sizes in one batch, and a mean that does not fit.
    """

    type = "ImageData"
    num_top = 2
    param_block = ("image_data_param", "transform_param")

    def make_source(self, tops: int, generator: np.random.Generator) -> ImageListSource:
        check_list_fields(self, "image_data_param")
        param = self.param.image_data_param
        images = read_image_list(granted(param.source))
        shard = check_skip(self, "image_data_param", images)
        warn_of_no_effect(self, boxes=False)
        transformer = DataTransformer(self.param.transform_param, self.phase, generator, self.dtype)
        return ImageListSource(images, param, transformer, shard)


class ImageListSource(ListSource[Listed]):
    """Batches of the images of a list, transformed."""

    def __init__(
        self, images: list[Listed], param: caffe_pb2.ImageDataParameter, transformer: DataTransformer, shard: Shard = WHOLE
    ) -> None:
        super().__init__(images, param, transformer.generator, shard)
        self.transformer = transformer

    def shapes(self) -> list[tuple[int, ...]]:
        pixels = self.pixels(self.images[0])
        shape = self.named(self.images[0], self.transformer.shape, pixels.shape[2], *pixels.shape[:2])
        return [(self.param.batch_size, *shape), (self.param.batch_size,)]

    def next_batch(self) -> Batch:
        size = self.param.batch_size
        labels = np.empty(size, self.transformer.dtype)
        for i in range(size):
            listed = self.next_listed()
            image = self.pixels(listed).transpose(2, 0, 1)
            if i == 0:
                shape = self.named(listed, self.transformer.shape, *image.shape)
                batch = np.empty((size, *shape), self.transformer.dtype)
            self.named(listed, self.transformer.transform, image, batch[i])
            labels[i] = listed.label
        return batch, labels
