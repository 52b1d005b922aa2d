"""ImageGtData: images with the labels of MS-CNN's anchors, and the true boxes. Source: its image_gt_data_layer.cpp."""

from __future__ import annotations

import math

import numpy as np

from minicaffe import limits
from minicaffe.blob import Array
from minicaffe.data.shard import Shard, current_shard
from minicaffe.data.window_file import LabelledImage, read_labelled_windows
from minicaffe.files import granted
from minicaffe.layer import check_finite_fields
from minicaffe.layers.data.prefetching import PrefetchingLayer
from minicaffe.layers.data.scenes import Scaling, Scene, WindowList, mean_values, rounded
from minicaffe.proto import caffe_pb2

from .anchor_fields import Objects, Rules
from .framed_scenes import FramedSource, Labelling, check_frame, check_tops, read_fields

POINTER = 8
"""Bytes of one more place in a list."""
OCTAVE = 2
"""Scales in an octave."""
ASPECTS = 0.05
"""The step from one aspect ratio to the next."""


class ImageGtData(PrefetchingLayer):
    """The images of image_gt_data_param.source, from the first again after the last, shuffled or not.

    No bottom. top: data (batch_size, 3, H, W), blue, green, red: (pixel - mean) * scale; for each field a map (batch_size, 6,
    h, w) of class, x, y of the centre, width, height, overlap, a place every downsample_rate pixels; with output_gt_boxes the
    boxes (N, 7, 1, 1): the image's number in the batch, x1, y1, x2, y2, class, ignored. An anchor, field_h x field_w pixels
    around its place, is of the box that it overlaps most, above fg_threshold; of class 0 and with such an overlap it is
    ignored, as are those beyond the image or 0.4 in regions of no interest. A box that no anchor has gets the one at its
    centre.
    An image is mirrored at random (transform_param.mirror), resized to resize_height x resize_width where both are given, at
    random rescaled (do_multiple_scale, min_scale, max_scale, min_whaspect, max_whaspect), and cut or padded to crop_height x
    crop_width around one of its boxes, in TEST too. Boxes narrower than min_gt_width or lower than min_gt_height are
    ignored. fg_img_multiple: how often an image with a box is in the list.
    Raises LayerError for a window file or image that cannot be read, images smaller than the crop, other numbers of tops and
    fields, and fields of transform_param that it does not take.
    """

    type = "ImageGtData"
    num_top = (2, None)
    param_block = ("image_gt_data_param", "transform_param")

    def make_source(self, tops: int, generator: np.random.Generator) -> ImageGtSource:
        param, block = self.param.image_gt_data_param, "image_gt_data_param"
        check_finite_fields(self, block)
        self.positive(param.batch_size, f"{block}.batch_size")
        self.positive(param.fg_img_multiple, f"{block}.fg_img_multiple")
        if param.do_multiple_scale and param.HasField("min_scale") and param.HasField("max_scale"):
            if not 0 < param.min_scale <= param.max_scale:
                raise self.error(f"min_scale must be in [1, {param.max_scale}], got {param.min_scale}", f"{block}.min_scale")
            fits = param.min_whaspect > 0 and 0.5 <= (param.max_whaspect - param.min_whaspect) / ASPECTS < 2**31
            if param.HasField("min_whaspect") and param.HasField("max_whaspect") and not fits:
                raise self.error(
                    "min_whaspect must be > 0, and max_whaspect larger by 0.05, at most by 1e8", f"{block}.min_whaspect"
                )
        labelling = Labelling(
            fields=read_fields(self, block, "downsample_rate"),
            rules=Rules(unit=0, threshold=param.fg_threshold, regions=0.4, regions_first=True, least=0.2),
            scaling=Scaling(mean_values(self, ("mirror", "mean_value")), param.scale),
            mirror=self.param.transform_param.mirror,
            least=(param.min_gt_width, param.min_gt_height),
            empty=(0, 1, 1, 2, 2, 1, 1),
            gives_boxes=param.output_gt_boxes,
        )
        check_tops(self, tops, labelling)
        images = read_labelled_windows(granted(param.source), has_difficult=False)
        limits.check("the list with fg_img_multiple", len(images) * param.fg_img_multiple * POINTER, "lists")
        repeated = [one for one in images for _ in range(param.fg_img_multiple if (one.ignored == 0).any() else 1)]
        lines = WindowList(
            source=param.source, batch_size=param.batch_size, root_folder=param.root_folder, shuffle=param.shuffle
        )
        return ImageGtSource(repeated, lines, generator, current_shard(self.phase), (labelling, param))


class ImageGtSource(FramedSource):
    """MS-CNN's sizes and scales."""

    def __init__(
        self,
        images: list[LabelledImage],
        lines: WindowList,
        generator: np.random.Generator,
        shard: Shard,
        more: tuple[Labelling, caffe_pb2.ImageGtDataParameter],
    ) -> None:
        self.gt_param = more[1]
        super().__init__(images, lines, generator, shard, more[0])

    def size(self, scene: Scene) -> tuple[int, int]:
        param = self.gt_param
        if param.HasField("resize_width") and param.HasField("resize_height"):
            return param.resize_height, param.resize_width
        return scene.size

    def frame(self, scene: Scene) -> tuple[int, int]:
        param = self.gt_param
        given = param.HasField("crop_width") and param.HasField("crop_height")
        crop = (param.crop_height, param.crop_width) if given else (0, 0)
        frame = crop[0] or scene.size[0], crop[1] or scene.size[1]
        check_frame(frame, scene.size)
        return frame

    def put(self, listed: LabelledImage, scene: Scene, frame: tuple[int, int], out: Array) -> tuple[Objects, list[Array]]:
        check_frame(frame, scene.size)
        return super().put(listed, scene, frame, out)

    def factors(self, scene: Scene, chosen: int | None) -> tuple[float, float]:
        param, random = self.gt_param, self.generator
        given = param.do_multiple_scale and param.HasField("min_scale") and param.HasField("max_scale")
        if chosen is None or not given or not random.integers(2):
            return 1, 1
        x1, y1, x2, y2 = scene.boxes[chosen].tolist()
        width, height, least, most = x2 - x1, y2 - y1, param.min_scale, param.max_scale
        scales = np.arange(rounded(OCTAVE * math.log2(most / least) + 1)) / OCTAVE
        area, fields = width * height, (least * 2**scales) ** 2
        match = scales[int((np.minimum(area, fields) / np.maximum(area, fields)).argmax())]
        right = down = float(2 ** (scales[int(random.integers(len(scales)))] - match))
        if param.HasField("min_whaspect") and param.HasField("max_whaspect") and random.integers(2) and area > 0:
            count = rounded((param.max_whaspect - param.min_whaspect) / ASPECTS)
            wider = (int(random.integers(count)) * ASPECTS + param.min_whaspect) / (width / height)
            if random.integers(2):
                right *= wider if 0.8 * least <= width * right * wider <= 1.2 * most else 1
            else:
                down /= wider if 0.8 * least <= height * down / wider <= 1.2 * most else 1
        return right, down
