"""SSD's random crops: boxes drawn in an image until one meets a condition on the objects, and the objects seen in the crop.

    scale s, aspect ratio r uniform (r within s^2 .. 1 / s^2): s sqrt(r) wide, s / sqrt(r) high, anywhere in the image

Source: Liu et al., SSD (arXiv:1512.02325), section 2.2, data augmentation; the SSD fork's sampler.cpp and bbox_util.cpp.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from minicaffe.blob import Array
from minicaffe.errors import DataError
from minicaffe.layers.ssd.box_codes import box_areas, jaccard
from minicaffe.proto import caffe_pb2


def draw_crop(samplers: Sequence[caffe_pb2.BatchSampler], objects: Array, random: np.random.Generator) -> Array | None:
    """Return a random one of the boxes (4,) that the samplers draw for an image's objects (n, 4), or None."""
    drawn = [box for sampler in samplers if sampler.use_original_image for box in _samples(sampler, objects, random)]
    return drawn[int(random.integers(len(drawn)))] if drawn else None


def _samples(sampler: caffe_pb2.BatchSampler, objects: Array, random: np.random.Generator) -> list[Array]:
    found: list[Array] = []
    for _ in range(sampler.max_trials):
        if sampler.HasField("max_sample") and len(found) >= sampler.max_sample:
            break
        box = sample_box(sampler.sampler, random)
        if satisfies(box, objects, sampler.sample_constraint):
            found.append(box)
    return found


def check_sampler(sampler: caffe_pb2.Sampler) -> None:
    """Raise DataError for scales and aspect ratios that no box in an image can have."""
    if not 0 < sampler.min_scale <= sampler.max_scale <= 1:
        scales = f"{sampler.min_scale:g} and {sampler.max_scale:g}"
        raise DataError(f"min_scale and max_scale of a sampler must be above 0, at most 1 and in order, got {scales}")
    if not 0 < sampler.min_aspect_ratio <= sampler.max_aspect_ratio < np.inf:
        ratios = f"{sampler.min_aspect_ratio:g} and {sampler.max_aspect_ratio:g}"
        raise DataError(
            f"min_aspect_ratio and max_aspect_ratio of a sampler must be above 0, finite and in order, got {ratios}"
        )


def sample_box(sampler: caffe_pb2.Sampler, random: np.random.Generator) -> Array:
    """Return a box (4,) inside the unit square."""
    scale = random.uniform(sampler.min_scale, sampler.max_scale)
    ratio = random.uniform(max(sampler.min_aspect_ratio, scale**2), min(sampler.max_aspect_ratio, 1 / scale**2))
    size = np.array([scale * np.sqrt(ratio), scale / np.sqrt(ratio)])
    low = random.uniform(0, np.maximum(1 - size, 0))  # maximum, because a rounded size may exceed 1
    return np.concatenate([low, low + size])


def satisfies(box: Array, objects: Array, wanted: caffe_pb2.SampleConstraint) -> bool:
    """Return whether some object (n, 4) meets the given bounds on overlap with box (4,), or coverage of or by it."""
    measures: dict[str, Callable[[], Array]] = {
        "jaccard_overlap": lambda: jaccard(box[None], objects)[0],
        "sample_coverage": lambda: coverage(box[None], objects),
        "object_coverage": lambda: coverage(objects, box[None]),
    }
    bounds = {field.name: value for field, value in wanted.ListFields()}
    if not bounds:
        return True
    standing, met = np.ones(len(objects), bool), np.zeros(len(objects), bool)
    for name, measure in measures.items():
        low, high = bounds.get(f"min_{name}"), bounds.get(f"max_{name}")
        if low is not None or high is not None:
            values = measure()
            standing &= (values >= (-np.inf if low is None else low)) & (values <= (np.inf if high is None else high))
            met |= standing  # as in the original, meeting one of several bounds is enough
    return bool(met.any())


def coverage(boxes: Array, others: Array) -> Array:
    """Return the share of boxes (n or 1, 4) that others (1 or n, 4) cover: (n,)."""
    low, high = np.maximum(boxes[:, :2], others[:, :2]), np.minimum(boxes[:, 2:], others[:, 2:])
    shared = np.maximum(high - low, 0).prod(axis=1)
    part: Array = np.divide(shared, box_areas(boxes), out=np.zeros_like(shared), where=shared > 0)
    return part


def seen_in(crop: Array, objects: Array, emit: caffe_pb2.EmitConstraint | None) -> tuple[Array, NDArray[np.bool_]]:
    """Return the objects (n, 4) relative to crop (4,), cut at its edges, and which of them count (n,).

    emit: CENTER, only those whose centre lies in the crop; MIN_OVERLAP, only those covered by more than emit_overlap.
    """
    inside = (objects[:, :2] < crop[2:]).all(axis=1) & (objects[:, 2:] > crop[:2]).all(axis=1)
    if emit is not None and emit.emit_type == caffe_pb2.EmitConstraint.CENTER:
        centre = (objects[:, :2] + objects[:, 2:]) / 2
        inside &= ((centre >= crop[:2]) & (centre <= crop[2:])).all(axis=1)
    elif emit is not None:
        inside &= coverage(objects, crop[None]) > emit.emit_overlap
    size = np.tile(crop[2:] - crop[:2], 2)
    moved = np.clip((objects - np.tile(crop[:2], 2)) / size, 0, 1)
    return moved, inside & (box_areas(moved) > 0)


def cut(pixels: Array, crop: Array) -> Array:
    """Return the part of pixels (H, W, C) in crop (4,), at least one pixel. Edges are cut to whole pixels."""
    left, top, right, bottom = whole_pixels(crop, *pixels.shape[:2])
    return pixels[top:bottom, left:right]


def whole_pixels(crop: Array, height: int, width: int) -> tuple[int, int, int, int]:
    """Return the left, top, right and bottom edge, in whole pixels, of crop (4,) in an image of this size."""
    x, y, x_end, y_end = np.clip(crop, 0, 1) * [width, height, width, height]
    left, top = min(int(x), width - 1), min(int(y), height - 1)
    return left, top, left + max(int(x_end - x), 1), top + max(int(y_end - y), 1)
