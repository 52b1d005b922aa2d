"""DenseImageData: images with their label images, from a text file of names.

Source: caffe-segnet's dense_image_data_layer.cpp; label_divide_factor: caffe-enet's.
"""

from __future__ import annotations

import numpy as np

from minicaffe.access import granted
from minicaffe.data.data_transformer import crop_of
from minicaffe.data.image_list import read_pairs
from minicaffe.data.labelled_transformer import Cut, LabelledTransformer

from .image_lists import check_list_fields, check_skip
from .labelled_images import LabelledListSource
from .prefetching import PrefetchingLayer


class DenseImageData(PrefetchingLayer):
    """The images that dense_image_data_param.source lists, `NAME LABEL_IMAGE` on each line, with a label for each pixel.

    No bottom. top: data (batch_size, C, H, W), blue, green, red (is_color: false: grey), resized to new_height x new_width
    where these are given, then cropped and mirrored at random (crop_height, crop_width, mirror: in both phases), less the mean
    and times the scale of transform_param; labels (batch_size, 1, H, W), cropped and mirrored alike: the label image's grey
    values, or the indices of its palette. label_divide_factor (ENet's): labels are so many times smaller than the data, every
    so many-th row and column of the label image.
    A name is root_folder and what the line says, without spaces. Otherwise as ImageData.
    Raises LayerError, with the list's line, for a line of other words, an image that cannot be read or is smaller than the
    crop, a label image of another size than its image or in colours, images of several sizes in one batch; and for a factor
    beside a crop, or one that does not divide the size.
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
