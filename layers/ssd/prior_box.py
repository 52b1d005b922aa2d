"""PriorBox: the boxes that SSD's predictions move, over a feature map, relative to the image's width and height.

    centre = ((column + offset) * step_w, (row + offset) * step_h)
    at each position, for each min_size s: s x s; with max_size m: sqrt(s m) on both sides; then for each aspect ratio r
    but 1: s sqrt(r) wide, s / sqrt(r) high. With flip, 1 / r follows each r.

Source: Liu et al., SSD (arXiv:1512.02325), section 2.2; the SSD fork's prior_box_layer.cpp, which cuts sizes to whole pixels.
Liao et al., TextBoxes (arXiv:1611.06779): each box twice, the second half a cell lower. OpenCV's prior_box_layer.cpp: each box
at every pair of offset_h and offset_w. Neither cuts sizes. Zhang et al., FaceBoxes (arXiv:1708.05234): a min_size of 32 lies at
16 places of a cell, one of 64 at 4, and these squares are a pixel smaller.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from minicaffe.blob import Array, Blob
from minicaffe.forked import Forked
from minicaffe.formats.forks import Kind
from minicaffe.kernels import has_steps
from minicaffe.layer import Costs, data_bytes
from minicaffe.mode import TEST

MOST_PIXELS = 10**9
"""The largest size, and ratio, that float32 and whole numbers allow."""

MOST_BOXES = 10_000
"""Most boxes at one position; SSD has at most 6."""


class PriorBox(Forked):
    """Boxes and variances for every position of a map.

    bottom: map (N, C, H, W), image (N, C, image height, image width); only their sizes count, neither gets a gradient.
    top: (1, 2, H * W * K * 4): row 0 the boxes xmin, ymin, xmax, ymax, 1 being the image's width or height; row 1 their
    variances. prior_box_param: min_size and max_size in pixels of the image (cut to whole numbers), step in pixels too (by
    default the image's size over the map's), img_size or img_h and img_w in place of the image bottom; clip cuts to [0, 1].
    OpenCV's offset_h and offset_w, one or two of each, and a net of TextBoxes: K counts each box at each place in a cell. In a
    net of FaceBoxes K counts the places too, 21 for min_size 32, 64 and 128.
    Raises LayerError for sizes, steps or variances that are not > 0, or that do not go together.
    """

    type = "PriorBox"
    num_bottom = 2
    num_top = 1
    param_block = ("prior_box_param",)
    weight_names = ()
    has_gradient = False
    kinds = (
        Kind("SSD", ("ssd",), "without offset_h and offset_w"),
        Kind("TextBoxes", ("textboxes",), "each box twice"),
        Kind("OpenCV", ("opencv",), "offset_h and offset_w"),
        Kind("FaceBoxes", ("faceboxes",), "min_size 32 and 64 at 16 and 4 places"),
    )

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param = self.param.prior_box_param
        self._check_sizes()
        self.offsets = tuple(self._offsets())
        ratios = aspect_ratios(param.aspect_ratio, param.flip)
        if self.choice and self.choice.whose == "FaceBoxes":
            self.sides, self.shifts = faceboxes_sides(param.min_size, param.max_size, ratios)
            self._check_room(len(ratios))
        else:
            self.sides = prior_sides(param.min_size, param.max_size, ratios, whole=not self.choice)
            self.shifts = np.zeros_like(self.sides)
        self.variance = tuple(param.variance) or (0.1,)
        if len(self.variance) not in (1, 4):
            raise self.error(f"give one variance or 4, got {len(self.variance)}", "prior_box_param.variance")
        self.image = self._pair("img_size", "img_h", "img_w")
        self.step = self._pair("step", "step_h", "step_w")

    def _offsets(self) -> list[tuple[float, float]]:
        """Return the offsets (down, right) of each box in a cell. Chooses the fork if there are others than SSD's one."""
        param = self.param.prior_box_param
        down, right = param.offset_h, param.offset_w
        if down or right:
            if len(down) != len(right) or len(down) > 2 or param.HasField("offset"):
                given = f"{len(down)} and {len(right)}" + " and offset" * param.HasField("offset")
                raise self.error(
                    f"give one or two offset_h and as many offset_w, without offset; got {given}", "prior_box_param"
                )
            self.choose("OpenCV", "offset_h and offset_w")
            return list(zip(down, right, strict=True))
        if self.choose_by_fork() == "TextBoxes":
            return [(0.5, 0.5), (1.0, 0.5)]
        return [(param.offset, param.offset)]

    def _check_room(self, ratios: int) -> None:
        """Raise LayerError if the boxes are not as many as FaceBoxes' Caffe has room for.

        That is 21 if there are three sizes, else one for each size and ratio.
        """
        param = self.param.prior_box_param
        room = (21 if len(param.min_size) == 3 else ratios * len(param.min_size)) + len(param.max_size)
        if room != len(self.sides):
            text = f"FaceBoxes' Caffe has room for {room} boxes at each position, but these sizes and ratios give"
            raise self.error(f"{text} {len(self.sides)}", "prior_box_param")

    def _check_sizes(self) -> None:
        param = self.param.prior_box_param
        if not param.min_size:
            raise self.error("needs at least one min_size", "prior_box_param")
        boxes = len(param.min_size) * (2 + 2 * len(param.aspect_ratio))
        if boxes > MOST_BOXES:
            message = f"its sizes and ratios may give {boxes:,} boxes at each position; at most {MOST_BOXES:,} are made"
            raise self.error(message, "prior_box_param")
        for field in ("min_size", "max_size", "aspect_ratio", "variance"):
            for value in getattr(param, field):
                if value > MOST_PIXELS:
                    raise self.error(f"{field} must be at most {MOST_PIXELS}, got {value:g}", f"prior_box_param.{field}")
                if not value > 0 or (field == "min_size" and value < 1):
                    least = ">= 1" if field == "min_size" else "> 0"
                    raise self.error(f"{field} must be {least}, got {value:g}", f"prior_box_param.{field}")
        if param.max_size and len(param.max_size) != len(param.min_size):
            counts = f"{len(param.max_size)} max_size for {len(param.min_size)} min_size"
            raise self.error(f"{counts}: give one for each, or none", "prior_box_param.max_size")
        for low, high in zip(param.min_size, param.max_size, strict=False):
            if high <= low:
                raise self.error(f"max_size {high:g} must be greater than min_size {low:g}", "prior_box_param.max_size")

    def _pair(self, both: str, high: str, wide: str) -> tuple[float, float] | None:
        """Return (height, width) from the field for both or the two fields for each, or None if none is given."""
        param = self.param.prior_box_param
        apart = param.HasField(high) or param.HasField(wide)  # type: ignore[arg-type]
        if apart and param.HasField(both):  # type: ignore[arg-type]
            raise self.error(f"give {both}, or {high} and {wide}, not both", f"prior_box_param.{both}")
        if not apart and not param.HasField(both):  # type: ignore[arg-type]
            return None
        for field in (high, wide) if apart else (both,):
            if not getattr(param, field) > 0:
                raise self.error(f"{field} must be > 0, got {getattr(param, field):g}", f"prior_box_param.{field}")
        return (getattr(param, high), getattr(param, wide)) if apart else (getattr(param, both),) * 2

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        for i in (0, 1):
            if len(bottom[i].shape) != 4:
                raise self.error(f"bottom {i} must have 4 axes (N, C, H, W), got shape {bottom[i].shape}", f"bottom[{i}]")
        top[0].reshape(1, 2, bottom[0].height * bottom[0].width * len(self.sides) * len(self.offsets) * 4)

    def costs(self, bottom: Sequence[Blob], top: Sequence[Blob], propagate_down: Sequence[bool] | None = None) -> Costs:
        boxes = data_bytes(top)
        cached = boxes if self.phase == TEST and has_steps(self) else 0  # the compiled step caches the boxes
        return super().costs(bottom, top, propagate_down)._replace(cached=cached, working=int(2.5 * boxes))

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        top[0].data[...] = self.boxes(bottom, top)

    def boxes(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> Array:
        """Return the top's content, which depends only on the bottoms' sizes."""
        size = bottom[0].shape[2:]
        image = self.image or bottom[1].shape[2:]
        # an empty map has no boxes, so any step is valid
        step = self.step or (image[0] / max(size[0], 1), image[1] / max(size[1], 1))
        centres = [_centres(size, step, offset) + self.shifts for offset in self.offsets]
        boxes = np.stack([_boxes_around(each, self.sides, image) for each in centres], axis=3)
        if self.param.prior_box_param.clip:
            np.clip(boxes, 0, 1, out=boxes)
        made: Array = np.empty(top[0].shape, top[0].dtype)
        made[0, 0] = boxes.reshape(-1)
        made[0, 1].reshape(-1, 4)[...] = self.variance  # one variance, or 4, for each box
        return made


def aspect_ratios(given: Sequence[float], flip: bool) -> list[float]:
    """Return 1, then each new ratio (by more than 1e-6), with flip followed by its inverse."""
    ratios = [1.0]
    for ratio in map(float, given):
        if all(abs(ratio - other) >= 1e-6 for other in ratios):
            ratios += [ratio, 1 / ratio] if flip else [ratio]
    return ratios


def prior_sides(
    min_sizes: Sequence[float], max_sizes: Sequence[float], ratios: Sequence[float], *, whole: bool = True
) -> Array:
    """Return the widths and heights (K, 2) in pixels of the boxes at one position, in float32 as in the original.

    whole: cut sizes to whole pixels, as SSD does.
    """
    sides: list[tuple[float, float]] = []
    number = int if whole else float
    for i, size in enumerate(map(number, min_sizes)):
        sides.append((size, size))
        if len(max_sizes):  # the square between min and max comes second
            sides.append((float(np.sqrt(size * number(max_sizes[i]))),) * 2)
        sides += [(size * float(np.sqrt(r)), size / float(np.sqrt(r))) for r in ratios if abs(r - 1) >= 1e-6]
    made = np.array(sides, np.float32).reshape(-1, 2)
    made.flags.writeable = False
    return made


def faceboxes_sides(min_sizes: Sequence[float], max_sizes: Sequence[float], ratios: Sequence[float]) -> tuple[Array, Array]:
    """Return FaceBoxes' sides (K, 2) and shifts (K, 2), right and down, in pixels.

    Its squares are a pixel smaller than min_size. Those of 32 are at 16 positions 8 pixels apart, those of 64 at 4 positions 16
    pixels apart.
    """
    sides, shifts = [], []
    for i, size in enumerate(map(int, min_sizes)):
        own = prior_sides([size], max_sizes[i : i + 1], ratios)
        apart, times = {32: (8, 4), 64: (16, 2)}.get(size, (0, 1))
        steps = [apart * n for n in range(-times // 2, times // 2)] if times > 1 else [0]
        sides += [own[:1] - 1] * times**2 + [own[1:]]
        shifts += [(right, down) for down in steps for right in steps] + [(0, 0)] * (len(own) - 1)
    return np.concatenate(sides), np.array(shifts, np.float32)


def prior_boxes(
    sides: Array, size: Sequence[int], image: Sequence[float], step: Sequence[float], offset: float | tuple[float, float] = 0.5
) -> NDArray[np.float64]:
    """Return boxes (H, W, K, 4) of sides (K, 2) = width, height, relative to the image.

    size, image, step: (height, width). offset: of a box's centre in its cell, down and right, or both.
    """
    return _boxes_around(_centres(size, step, offset), sides, image)


def _centres(size: Sequence[int], step: Sequence[float], offset: float | tuple[float, float]) -> NDArray[np.float32]:
    """Return the centres (H, W, 1, 2) of the cells' boxes, in pixels.

    As in the original they are float; halves and quotients are double.
    """
    down, right = offset if isinstance(offset, tuple) else (offset, offset)
    x = ((np.arange(size[1]) + right) * step[1]).astype(np.float32)
    y = ((np.arange(size[0]) + down) * step[0]).astype(np.float32)
    return np.stack(np.meshgrid(x, y), axis=2)[:, :, None]


def _boxes_around(centres: NDArray[np.float32], sides: Array, image: Sequence[float]) -> NDArray[np.float64]:
    """Return boxes (H, W, K, 4) around centres (H, W, 1 or K, 2), relative to the image."""
    middle, half = centres.astype(np.float64), sides.astype(np.float64) / 2
    scale = np.array([image[1], image[0]], np.float64)
    return np.concatenate([(middle - half) / scale, (middle + half) / scale], axis=3)
