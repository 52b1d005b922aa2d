"""SSD's random changes of a training image for RoIData: the image and its boxes.

    TRAIN.DISTORT, TRAIN.CHANNEL_ORDER -> TRAIN.EXPAND -> TRAIN.CROP

AnnotatedData makes the same changes, by its prototxt. Here edges are whole pixels, and a crop that shows no object is not made.
Source: Liu et al., SSD (arXiv:1512.02325), sections 2.2 and 3.6; the published SSD300's train.prototxt for the numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minicaffe.data.augmentation import check_distortion, distorted, expanded
from minicaffe.data.data_transformer import check_bytes
from minicaffe.data.image_bytes import check_size
from minicaffe.data.roidb import class_overlaps, image_name
from minicaffe.data.roidb_entry import Entry
from minicaffe.data.settings import DetectionSettings
from minicaffe.layers.ssd.batch_samplers import cut, draw_crop, seen_in, whole_pixels
from minicaffe.proto import caffe_pb2

Array = NDArray[Any]

OVERLAPS = (0.1, 0.3, 0.5, 0.7, 0.9)
"""The least overlaps of a crop with an object. One more crop may overlap it by less, and one is the whole image."""
TRIALS = 50
LAST = np.array([0, 0, 1, 1])
"""Added to an inclusive box, it gives the edges: the last pixel belongs to the box."""


@dataclass(frozen=True)
class Augmentation:
    """The random changes of the images of RoIData. colour (3,): around an expanded image."""

    distort: caffe_pb2.DistortionParameter | None
    expand: caffe_pb2.ExpansionParameter | None
    samplers: Sequence[caffe_pb2.BatchSampler]
    colour: Array

    def check(self, entry: Entry) -> None:
        """Raise DataError for an image that is too large to expand."""
        if self.expand is not None:
            ratio = self.expand.max_expand_ratio
            what = f"{image_name(entry)}: expanded by TRAIN.EXPAND {ratio:g} to"
            check_size(what, int(entry["height"] * ratio), int(entry["width"] * ratio))

    def __call__(self, entry: Entry, pixels: Array, random: np.random.Generator) -> tuple[Entry, Array]:
        """Return a prepared entry with the boxes that are still visible, and its image (H, W, 3), changed at random.

        The entry lacks bbox_targets. Raises DataError for an image of floats.
        """
        if self.distort is not None:
            check_bytes(pixels, "TRAIN.DISTORT or TRAIN.CHANNEL_ORDER")
            pixels = distorted(pixels, self.distort, random)
        if self.expand is not None:
            check_bytes(pixels, "TRAIN.EXPAND")
            size = np.tile(pixels.shape[1::-1], 2)
            pixels, canvas = expanded(pixels, self.expand, self.colour, random)
            if canvas is not None:
                entry = seen_entry(entry, np.rint(canvas * size))
        height, width = pixels.shape[:2]
        objects = (entry["boxes"][_objects(entry)] + LAST) / np.tile([width, height], 2)
        crop = draw_crop(self.samplers, objects, random)
        if crop is not None:
            seen = seen_entry(entry, np.array(whole_pixels(crop, height, width)))
            if _objects(seen).any() or not len(objects):
                entry, pixels = seen, cut(pixels, crop)
        return entry, pixels


def augmentation_of(settings: DetectionSettings) -> Augmentation | None:
    """Return the augmentation of the settings, or None if all its parts are off."""
    train = settings.train
    if not train.augmentation:
        return None
    distort = expand = None
    if train.distort or train.channel_order:
        distort = _distortion(train.distort, train.channel_order)
        check_distortion(distort)
    if train.expand > 1:
        expand = caffe_pb2.ExpansionParameter(prob=0.5, max_expand_ratio=train.expand)
    samplers = _samplers(train.crop) if train.crop < 1 else []
    return Augmentation(distort, expand, samplers, np.array(settings.pixel_means))


def _distortion(strength: float, channel_order: float) -> caffe_pb2.DistortionParameter:
    part, low, high = 0.5 * bool(strength), 1 - 0.5 * strength, 1 + 0.5 * strength
    return caffe_pb2.DistortionParameter(
        brightness_prob=part, brightness_delta=32 * strength, contrast_prob=part, contrast_lower=low, contrast_upper=high,
        hue_prob=part, hue_delta=18 * strength, saturation_prob=part, saturation_lower=low, saturation_upper=high,
        random_order_prob=channel_order,
    )  # fmt: skip


def _samplers(least: float) -> list[caffe_pb2.BatchSampler]:
    """Return SSD's batch samplers, with crops of at least this scale."""
    shape = caffe_pb2.Sampler(min_scale=least, max_scale=1, min_aspect_ratio=0.5, max_aspect_ratio=2)
    bounds = [caffe_pb2.SampleConstraint(min_jaccard_overlap=overlap) for overlap in OVERLAPS]
    bounds.append(caffe_pb2.SampleConstraint(max_jaccard_overlap=1))
    crops = (
        caffe_pb2.BatchSampler(sampler=shape, sample_constraint=bound, max_sample=1, max_trials=TRIALS) for bound in bounds
    )
    return [caffe_pb2.BatchSampler(max_sample=1, max_trials=1), *crops]


def _objects(entry: Entry) -> NDArray[np.bool_]:
    """Return which boxes (N,) are objects: not proposals, and not the originals' crowds, whose overlaps are -1."""
    return (entry["gt_classes"] > 0) & (entry["max_overlaps"] >= 0)


def seen_entry(entry: Entry, window: Array) -> Entry:
    """Return a prepared entry as seen in a window (4,): the left, top, right and bottom edge, in whole pixels of the image.

    Boxes are moved and cut at the edges. An object stays if its centre is in the window, a proposal if a part is.
    """
    made, size = entry.copy(), window[2:] - window[:2]
    made["width"], made["height"] = (int(side) for side in size)
    boxes, visible = _seen(entry["boxes"], window)
    _, is_central = seen_in(window, entry["boxes"] + LAST, caffe_pb2.EmitConstraint())
    stays = np.where(entry["gt_classes"] > 0, is_central, visible)
    for key, value in entry.items():  # also those of the originals' entries, such as gt_ishard
        if isinstance(value, np.ndarray) and key not in UNLIKE_BOXES and len(value) == len(stays):
            made[key] = value[stays]  # type: ignore[literal-required]
    made["boxes"] = boxes[stays]
    if "ignored_boxes" in entry:
        ignored, visible = _seen(np.asarray(entry["ignored_boxes"]).reshape(-1, 4), window)
        made["ignored_boxes"] = ignored[visible]
        if "ignored_classes" in entry:
            made["ignored_classes"] = np.asarray(entry["ignored_classes"])[visible]
    left_out = made["max_overlaps"] < 0  # crowds
    overlaps = class_overlaps(made["boxes"], made["gt_classes"], entry["gt_overlaps"].shape[1])
    overlaps[left_out] = made["gt_overlaps"][left_out]
    made["gt_overlaps"] = overlaps
    made["max_overlaps"], made["max_classes"] = overlaps.max(axis=1), overlaps.argmax(axis=1)
    made.pop("bbox_targets", None)
    return made


UNLIKE_BOXES = ("image", "ignored_boxes", "ignored_classes")
"""The arrays of an entry without a row for each of its boxes."""


def _seen(boxes: Array, window: Array) -> tuple[Array, Array]:
    """Return inclusive boxes (N, 4) moved into a window and cut at its edges, and which of them are visible (N,)."""
    moved, visible = seen_in(window, boxes + LAST, None)
    edges = moved * np.tile(window[2:] - window[:2], 2)
    low = np.minimum(edges[:, :2], window[2:] - window[:2] - 1)
    high = np.maximum(edges[:, 2:] - 1, low)  # a box with fractions may cover less than a pixel
    return np.concatenate([low, high], axis=1).astype(np.float32), visible
