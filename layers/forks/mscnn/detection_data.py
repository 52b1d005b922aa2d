"""Images in frames of one size with the labels of anchors: ImageGtData and DetectionData."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minicaffe import limits
from minicaffe.blob import Array
from minicaffe.data.augmentation import check_distortion, distorted
from minicaffe.data.image_bytes import Pixels
from minicaffe.data.shard import current_shard
from minicaffe.data.window_file import LabelledImage, read_labelled_windows
from minicaffe.files import granted
from minicaffe.layer import check_finite_fields
from minicaffe.layers.data.prefetching import Order, PrefetchingLayer
from minicaffe.layers.data.scenes import Scaling, Scene, WindowList, mean_values, rounded
from minicaffe.layers.forks.mscnn.anchor_fields import Objects, Rules
from minicaffe.layers.forks.mscnn.framed_scenes import FramedSource, Labelling, check_frame, check_tops, read_fields
from minicaffe.proto import caffe_pb2

POINTER = 8
"""Bytes of one more place in a list."""
OCTAVE = 2
"""Scales in an octave."""
ASPECTS = 0.05
"""The step from one aspect ratio to the next."""


class ImageGtData(PrefetchingLayer):
    """The images of image_gt_data_param.source, again and again, with MS-CNN's anchor labels and true boxes.

    Source: mscnn's image_gt_data_layer.cpp.

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
        return ImageGtSource(repeated, lines, generator, current_shard(self.phase), labelling, param)


class ImageGtSource(FramedSource):
    """Batches with MS-CNN's sizes and scales."""

    block: caffe_pb2.ImageGtDataParameter

    def size(self, scene: Scene) -> tuple[int, int]:
        param = self.block
        if param.HasField("resize_width") and param.HasField("resize_height"):
            return param.resize_height, param.resize_width
        return scene.size

    def frame(self, scene: Scene) -> tuple[int, int]:
        param = self.block
        given = param.HasField("crop_width") and param.HasField("crop_height")
        crop = (param.crop_height, param.crop_width) if given else (0, 0)
        frame = crop[0] or scene.size[0], crop[1] or scene.size[1]
        check_frame(frame, scene.size)
        return frame

    def put(self, listed: LabelledImage, scene: Scene, frame: tuple[int, int], out: Array) -> tuple[Objects, list[Array]]:
        check_frame(frame, scene.size)
        return super().put(listed, scene, frame, out)

    def factors(self, scene: Scene, chosen: int | None) -> tuple[float, float]:
        param, random = self.block, self.generator
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


MULTIPLE = 32
SHUFFLES = ("random", "random_aspect", "random_mix_aspect")
PAIRS = (
    ("resize_height", "resize_width"), ("short_size", "long_size"), ("crop_height", "crop_width"),
    ("crop_short_size", "crop_long_size"), ("min_scale", "max_scale"), ("low_scale_ratio", "high_scale_ratio"),
    ("min_whaspect", "max_whaspect"),
)  # fmt: skip
"""Fields that have an effect only together."""
ALONE = (("resize_height", "resize_ratio", "short_size"), ("crop_height", "crop_short_size"), ("min_scale", "low_scale_ratio"))
"""Groups of fields, of which at most one may be given."""


class DetectionData(PrefetchingLayer):
    """The images of detection_data_param.source, again and again, with Cascade R-CNN's anchor labels and boxes.

    shuffle: "random", "random_aspect" (all upright images, then all others, or the reverse) or "random_mix_aspect"
    (mix_group_size of one kind, then of the other).

    Source: cascade-rcnn's detection_data_layer.cpp.

    No bottom. top: data (batch_size, 3, H, W), blue, green, red: (pixel - mean) * transform_param.scale; for each field a map
    (batch_size, 6, h, w) as ImageGtData's, a place every `stride` pixels, boxes' widths x2 - x1 + 1; with output_gt_boxes the
    boxes (N, 8, 1, 1): the image's number in the batch, x1, y1, x2, y2, class, ignored, difficult; or one row of -1.
    Anchors are ignored that have ignore_fg_threshold in regions of no interest and are no box's, and those too far out of the
    image (anchor_ignore_margin_ratio, else anchor_ignore_iou_thr). pickup_iou_thr: what a box without an anchor needs.
    Images are distorted (distort_param), mirrored at random, resized (resize_height and resize_width, resize_ratio, or
    short_size and long_size, times one of template_ratio), with multiscale_prob rescaled (low_scale_ratio, high_scale_ratio,
    or min_scale and max_scale of a box; min_whaspect, max_whaspect), and cut or padded around a box: to crop_height x
    crop_width, else resize_height x resize_width, else crop_short_size and crop_long_size, or short_size and long_size,
    whichever is the batch's first image's longer side, else to that image's size.
    Raises LayerError for a window file or image that cannot be read, fields that contradict each other, another shuffle, other
    numbers of tops and fields, and fields of transform_param that it does not take.
    """

    type = "DetectionData"
    num_top = (1, None)
    param_block = ("detection_data_param", "transform_param")

    def make_source(self, tops: int, generator: np.random.Generator) -> DetectionSource:
        param, block = self.param.detection_data_param, "detection_data_param"
        self._check(param)
        labelling = Labelling(
            fields=read_fields(self, block, "stride"),
            rules=Rules(
                unit=1,
                threshold=param.fg_threshold,
                regions=param.ignore_fg_threshold,
                regions_first=False,
                least=param.pickup_iou_thr,
                margin=param.anchor_ignore_margin_ratio if param.HasField("anchor_ignore_margin_ratio") else None,
                inside=param.anchor_ignore_iou_thr if param.HasField("anchor_ignore_iou_thr") else None,
            ),
            scaling=Scaling(mean_values(self, ("mirror", "scale", "mean_value")), self.param.transform_param.scale),
            mirror=self.param.transform_param.mirror,
            least=(param.min_gt_width, param.min_gt_height),
            empty=(-1,) * 8,
            gives_boxes=param.output_gt_boxes,
        )
        check_tops(self, tops, labelling)
        images = read_labelled_windows(granted(param.source), has_difficult=True)
        lines = WindowList(
            source=param.source, batch_size=param.batch_size, root_folder=param.root_folder, shuffle=param.HasField("shuffle")
        )
        return DetectionSource(images, lines, generator, current_shard(self.phase), labelling, param)

    def _check(self, param: caffe_pb2.DetectionDataParameter) -> None:
        """Raise LayerError for sizes of 0, numbers that are not finite, and fields that contradict each other."""
        block = "detection_data_param"
        check_finite_fields(self, block)
        self.positive(param.batch_size, f"{block}.batch_size")
        self.positive(param.mix_group_size, f"{block}.mix_group_size")
        if param.shuffle not in SHUFFLES:
            raise self.error(f'shuffle "{param.shuffle}" is none of {", ".join(SHUFFLES)}', f"{block}.shuffle")
        given = {name for pair in PAIRS for name in pair if param.HasField(name)}  # type: ignore[arg-type]
        for pair in PAIRS:
            if len(given & set(pair)) == 1:
                raise self.error(f"give both {pair[0]} and {pair[1]}, or neither", block)
            if given & set(pair) and min(getattr(param, name) for name in pair) <= 0:
                raise self.error(f"{pair[0]} and {pair[1]} must be > 0", f"{block}.{pair[0]}")
        for low, high in PAIRS[1:2] + PAIRS[3:]:
            if low in given and getattr(param, low) > getattr(param, high):
                raise self.error(f"{low} must be at most {high}", f"{block}.{low}")
        given |= {"resize_ratio"} if param.HasField("resize_ratio") else set()
        for group in ALONE:
            if len(found := [name for name in group if name in given]) > 1:
                raise self.error(f"give one of {' and '.join(found)}", block)
        if param.HasField("distort_param"):
            check_distortion(param.distort_param)


class DetectionSource(FramedSource):
    """Batches with Cascade R-CNN's sizes and scales."""

    block: caffe_pb2.DetectionDataParameter
    ratio = 1.0

    def make_order(self, skip: int) -> Order:
        kind = self.block.shuffle
        if not self.param.shuffle or kind == "random":
            return super().make_order(skip)
        upright = np.array([image.height >= image.width for image in self.images])
        return AspectOrder(upright, 0 if kind == "random_aspect" else self.block.mix_group_size, self.generator)

    def begin(self) -> None:
        ratios = self.block.template_ratio
        self.ratio = ratios[int(self.generator.integers(len(ratios)))] if ratios else 1.0

    def changed(self, pixels: Pixels) -> Pixels:
        if not self.block.HasField("distort_param"):
            return pixels
        return distorted(pixels, self.block.distort_param, self.generator)

    def size(self, scene: Scene) -> tuple[int, int]:
        param, (height, width) = self.block, scene.size
        if param.HasField("resize_width"):
            return param.resize_height, param.resize_width
        if param.HasField("resize_ratio"):
            factor = np.float32(param.resize_ratio)
        elif param.HasField("short_size"):
            factor = np.float32(self._in_steps(param.short_size)) / np.float32(min(height, width))
        else:
            return height, width
        return rounded(np.float32(height) * factor), rounded(np.float32(width) * factor)

    def frame(self, scene: Scene) -> tuple[int, int]:
        param, (height, width) = self.block, scene.size
        if param.HasField("crop_width"):
            return param.crop_height, param.crop_width
        if param.HasField("resize_width"):
            return param.resize_height, param.resize_width
        if param.HasField("crop_short_size"):
            short, long = param.crop_short_size, param.crop_long_size
        elif param.HasField("short_size"):
            short, long = self._in_steps(param.short_size), self._in_steps(param.long_size)
        else:
            return height, width
        return (long, short) if height >= width else (short, long)

    def _in_steps(self, size: int) -> int:
        """Return a size times the batch's ratio, rounded to a multiple of 32."""
        return rounded(np.float32(size) * np.float32(self.ratio) / np.float32(MULTIPLE)) * MULTIPLE

    def factors(self, scene: Scene, chosen: int | None) -> tuple[float, float]:
        param, random = self.block, self.generator
        if param.HasField("low_scale_ratio"):
            low, high = param.low_scale_ratio, param.high_scale_ratio
        elif param.HasField("min_scale") and chosen is not None:
            x1, y1, x2, y2 = scene.boxes[chosen].tolist()
            own = math.sqrt((x2 - x1 + 1) * (y2 - y1 + 1))
            low, high = param.min_scale / own, param.max_scale / own
        elif param.HasField("min_scale"):
            low = high = 2.0  # as in the original, an exponent of 1
        else:
            return 1, 1
        if not random.random() < param.multiscale_prob:
            return 1, 1
        factor, wider = float(2 ** random.uniform(math.log2(low), math.log2(high))), 1.0
        if param.HasField("min_whaspect"):
            wider = math.sqrt(2 ** random.uniform(math.log2(param.min_whaspect), math.log2(param.max_whaspect)))
        return factor * wider, factor / wider


class AspectOrder(Order):
    """Upright and other images, each shuffled: one kind after the other, or alternating in groups."""

    def __init__(self, upright: NDArray[np.bool_], group: int, generator: np.random.Generator) -> None:
        self.upright, self.group = upright, group
        super().__init__(len(upright), True, generator)

    def _shuffled(self) -> NDArray[np.int64]:
        random = np.random.default_rng([self.seed, self.epoch])
        kinds = [random.permutation(np.flatnonzero(self.upright)), random.permutation(np.flatnonzero(~self.upright))]
        if random.integers(2):
            kinds.reverse()
        if not self.group:
            return np.concatenate(kinds)
        taken, mixed, at = [0, 0], [], 0
        while taken[0] < len(kinds[0]) and taken[1] < len(kinds[1]):
            kind = at // self.group % 2
            mixed.append(kinds[kind][taken[kind]])
            taken[kind] += 1
            at += 1
        rest: list[Any] = [*kinds[0][taken[0] :], *kinds[1][taken[1] :]]
        return np.array([*mixed, *rest], np.int64)
