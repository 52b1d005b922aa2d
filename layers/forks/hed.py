"""ImageLabelmapData: images with maps of edges, for HED and the nets after it (RCF).

Source: s9xie/hed's image_labelmap_data_layer.cpp (Xie and Tu, 2015); yun-liu/RCF's (Liu et al., 2017).
"""

from __future__ import annotations

import numpy as np

from minicaffe.blob import Array
from minicaffe.data.data_transformer import Cut, LabelledTransformer, crop_of
from minicaffe.data.image_bytes import read_image, resized
from minicaffe.data.image_list import Paired, read_pairs
from minicaffe.data.shard import Shard
from minicaffe.files import granted
from minicaffe.forked import Forked
from minicaffe.formats.forks import Kind
from minicaffe.layers.data.image_data import ListParam, check_list_fields, check_skip
from minicaffe.layers.data.labelled_images import LabelledListSource
from minicaffe.layers.data.prefetching import PrefetchingLayer

HED, RCF = "HED", "RCF"


class ImageLabelmapData(Forked, PrefetchingLayer):
    """The images that image_data_param.source lists, with a map of edges for each, again and again.

    Lines are `NAME MAP`. The map is an image whose grey value is the edge's strength: how many of the annotators drew it.

        HED: label = 1 where grey / 255 > 0.5, else 0        RCF: label = 1 where grey / 255 > 0.5, else grey / 255

    No bottom. top: data (batch_size, C, H, W), blue, green, red (is_color: false: grey), resized to new_height x new_width
    where these are given, less the mean and times the scale of transform_param; labels (batch_size, 1, H, W). transform_param's
    crop is random in both phases, as is its mirror. A name is root_folder and what the line says, without spaces. Otherwise as
    ImageData. In a net of RCF's the labels are RCF's, else HED's.
    Raises LayerError, with the list's line, for a line of other words, an image that cannot be read or is smaller than the
    crop, a map of another size than its image, and images of several sizes in one batch.
    """

    type = "ImageLabelmapData"
    num_top = 2
    param_block = ("image_data_param", "transform_param")
    kinds = (Kind(HED, ("hed",), "labels 0 and 1"), Kind(RCF, ("rcf",), "keeps weak edges' strengths"))

    def make_source(self, tops: int, generator: np.random.Generator) -> LabelmapSource:
        check_list_fields(self, "image_data_param")
        param, transform = self.param.image_data_param, self.param.transform_param
        images = read_pairs(granted(param.source), "MAP")
        shard = check_skip(self, "image_data_param", images)
        cut = Cut(crop_of(transform), random=True, mirror=transform.mirror)
        transformer = LabelledTransformer(transform, cut, generator, self.dtype)
        return LabelmapSource(images, param, transformer, shard, keeps_weak=self.choose_by_fork() == RCF)


class LabelmapSource(LabelledListSource):
    """Batches of images and edges. keeps_weak: labels of at most 0.5 keep their value."""

    def __init__(
        self, images: list[Paired], param: ListParam, transformer: LabelledTransformer, shard: Shard, *, keeps_weak: bool
    ) -> None:
        self.keeps_weak = keeps_weak
        super().__init__(images, param, transformer, shard)

    def labels_of(self, listed: Paired, image: Array) -> Array:
        grey: Array = self.named(listed, lambda: read_image(granted(self.param.root_folder + listed.label), False))
        if self.param.new_height:
            grey = self.named(listed, resized, grey, self.param.new_height, self.param.new_width)
        return edge_labels(grey, self.keeps_weak).astype(self.transformer.dtype)


def edge_labels(grey: Array, keeps_weak: bool) -> Array:
    """Return the labels of grey values: 1 above half of 255; below, 0 or the value's part of 255."""
    part = grey.astype(np.float32) / np.float32(255)
    labels: Array = np.where(part > 0.5, np.float32(1), part if keeps_weak else np.float32(0))
    return labels
