"""DetectionData: images with the labels of Cascade R-CNN's anchors, and the boxes. Source: its detection_data_layer.cpp."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minicaffe.data.augmentation import check_distortion, distorted
from minicaffe.data.image_bytes import Pixels
from minicaffe.data.shard import Shard, current_shard
from minicaffe.data.window_file import LabelledImage, read_labelled_windows
from minicaffe.files import granted
from minicaffe.layer import check_finite_fields
from minicaffe.layers.data.prefetching import Order, PrefetchingLayer
from minicaffe.layers.data.scenes import Scaling, Scene, WindowList, mean_values, rounded
from minicaffe.proto import caffe_pb2

from .anchor_fields import Rules
from .framed_scenes import FramedSource, Labelling, check_tops, read_fields

MULTIPLE = 32
SHUFFLES = ("random", "random_aspect", "random_mix_aspect")
PAIRS = (
    ("resize_height", "resize_width"), ("short_size", "long_size"), ("crop_height", "crop_width"),
    ("crop_short_size", "crop_long_size"), ("min_scale", "max_scale"), ("low_scale_ratio", "high_scale_ratio"),
    ("min_whaspect", "max_whaspect"),
)  # fmt: skip
"""Fields that have an effect together only."""
ALONE = (("resize_height", "resize_ratio", "short_size"), ("crop_height", "crop_short_size"), ("min_scale", "low_scale_ratio"))
"""Of each, one at most."""


class DetectionData(PrefetchingLayer):
    """The images of detection_data_param.source, from the first again after the last; shuffle: "random", "random_aspect" (all
    upright ones, then all others, or the other way) or "random_mix_aspect" (mix_group_size of one kind, then of the other).

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
        return DetectionSource(images, lines, generator, current_shard(self.phase), (labelling, param))

    def _check(self, param: caffe_pb2.DetectionDataParameter) -> None:
        """Raises LayerError for sizes of 0, numbers that are not finite and fields that contradict each other."""
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
    """Cascade R-CNN's sizes and scales."""

    def __init__(
        self,
        images: list[LabelledImage],
        lines: WindowList,
        generator: np.random.Generator,
        shard: Shard,
        more: tuple[Labelling, caffe_pb2.DetectionDataParameter],
    ) -> None:
        self.box_param, self.ratio = more[1], 1.0
        super().__init__(images, lines, generator, shard, more[0])

    def make_order(self, skip: int) -> Order:
        kind = self.box_param.shuffle
        if not self.param.shuffle or kind == "random":
            return super().make_order(skip)
        upright = np.array([image.height >= image.width for image in self.images])
        return AspectOrder(upright, 0 if kind == "random_aspect" else self.box_param.mix_group_size, self.generator)

    def begin(self) -> None:
        ratios = self.box_param.template_ratio
        self.ratio = ratios[int(self.generator.integers(len(ratios)))] if ratios else 1.0

    def changed(self, pixels: Pixels) -> Pixels:
        if not self.box_param.HasField("distort_param"):
            return pixels
        return distorted(pixels, self.box_param.distort_param, self.generator)

    def size(self, scene: Scene) -> tuple[int, int]:
        param, (height, width) = self.box_param, scene.size
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
        param, (height, width) = self.box_param, scene.size
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
        """A size times the batch's ratio, as a multiple of 32."""
        return rounded(np.float32(size) * np.float32(self.ratio) / np.float32(MULTIPLE)) * MULTIPLE

    def factors(self, scene: Scene, chosen: int | None) -> tuple[float, float]:
        param, random = self.box_param, self.generator
        if param.HasField("low_scale_ratio"):
            low, high = param.low_scale_ratio, param.high_scale_ratio
        elif param.HasField("min_scale") and chosen is not None:
            x1, y1, x2, y2 = scene.boxes[chosen].tolist()
            own = math.sqrt((x2 - x1 + 1) * (y2 - y1 + 1))
            low, high = param.min_scale / own, param.max_scale / own
        elif param.HasField("min_scale"):
            low = high = 2.0  # the original's logarithm of 1
        else:
            return 1, 1
        if not random.random() < param.multiscale_prob:
            return 1, 1
        factor, wider = float(2 ** random.uniform(math.log2(low), math.log2(high))), 1.0
        if param.HasField("min_whaspect"):
            wider = math.sqrt(2 ** random.uniform(math.log2(param.min_whaspect), math.log2(param.max_whaspect)))
        return factor * wider, factor / wider


class AspectOrder(Order):
    """Upright images and the others, each shuffled: all of one kind and then of the other, or group by group in turn."""

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
