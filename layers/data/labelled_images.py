"""Batches of images with a label image each, for ImageSegData and DenseImageData."""

from __future__ import annotations

import numpy as np

from minicaffe.access import granted
from minicaffe.blob import Array
from minicaffe.data.image_bytes import read_labels
from minicaffe.data.image_list import Paired
from minicaffe.data.labelled_transformer import LabelledTransformer
from minicaffe.data.prefetch import Batch
from minicaffe.data.resizing import interpolated
from minicaffe.data.shard import Shard
from minicaffe.proto import caffe_pb2

from .image_lists import ListParam, ListSource

NEAREST = caffe_pb2.ResizeParameter.NEAREST


class LabelledListSource(ListSource[Paired]):
    """Batches of data (N, C, H, W) and labels (N, 1, H, W)."""

    def __init__(self, images: list[Paired], param: ListParam, transformer: LabelledTransformer, shard: Shard) -> None:
        self.transformer = transformer  # check needs it
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
        """The next data and labels, and the heights and widths (N, 2) of the images."""
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
        """The labels (H, W, 1) of an image as the layer reads it (H, W, C)."""
        param = self.param
        labels = self.named(listed, self._read_labels, param.root_folder + listed.label)
        return interpolated(labels, param.new_height, param.new_width, NEAREST) if param.new_height else labels

    def _shapes(self, listed: Paired, image: Array) -> tuple[tuple[int, int, int], tuple[int, int]]:
        """The transformed shapes of an image (H, W, C) and of its labels."""
        shape = self.named(listed, self.transformer.shape, image.shape[2], *image.shape[:2])
        return shape, self.named(listed, self.transformer.shape_of_labels, *shape[1:])

    def _read_labels(self, name: str) -> Array:
        return read_labels(granted(name))
