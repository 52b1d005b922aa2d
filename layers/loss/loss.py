"""The base classes of losses.

They read scores over a class axis, whole labels, and pairs of one size. Source: Caffe's loss_layer.cpp.

The divisor of a loss is loss_param's normalization, in every layer that honours it.

    FULL: all positions; VALID: the positions that are not ignored; BATCH_SIZE: the images (or rois);
    PRE_FIXED: pre_fixed_normalizer; NONE: 1. Never less than 1, so that nothing to learn from is a loss of 0.

Source: Caffe's softmax_loss_layer.cpp (get_normalizer), R-FCN's fork for PRE_FIXED.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from minicaffe.blob import Array, Blob
from minicaffe.cuda.device import current
from minicaffe.errors import LayerError
from minicaffe.layer import Costs, Count, Layer, data_bytes
from minicaffe.proto import caffe_pb2


class Loss(Layer):
    """A loss without weights. top: loss ()."""

    num_bottom: ClassVar[Count] = 2
    num_top: ClassVar[Count] = 1
    is_loss = True
    auto_top = True
    weight_names: tuple[str, ...] | None = ()

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        top[0].reshape(())


class ImageLoss(Loss):
    """A loss of scores against one whole label per image. Every value after the first axis is a class.

    bottom: scores (N, ...); labels (N,). Raises LayerError for another number of labels.
    """

    index_bottoms = (1,)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        super().reshape(bottom, top)
        shape = bottom[0].shape
        self.split = ClassAxis(math.prod(shape[:1]), math.prod(shape[1:]), 1)
        check_label_count(self, self.split, bottom)


class DifferenceLoss(Loss):
    """A loss of the difference of bottoms 0 and 1, which forward keeps for backward."""

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self.difference = Blob((), self.dtype)

    def costs(self, bottom: Sequence[Blob], top: Sequence[Blob], propagate_down: Sequence[bool] | None = None) -> Costs:
        return super().costs(bottom, top, propagate_down)._replace(saved=data_bytes([self.difference]))


def put_opposite(dx: Array, propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
    """Write dx to bottom 0's diff and -dx to bottom 1's, if propagate_down is set for it."""
    if propagate_down[0]:
        bottom[0].diff[...] = dx
    if propagate_down[1]:
        bottom[1].diff[...] = -dx.reshape(bottom[1].shape)


def device_diffs(bottom: Sequence[Blob], propagate_down: Sequence[bool]) -> list[int]:
    """Return the addresses of the bottoms' diffs, to be overwritten; 0 if propagate_down is not set."""
    return [blob.device_diff("write") if wanted else 0 for blob, wanted in zip(bottom, propagate_down)]


class ClassAxis(NamedTuple):
    """A shape split at its class axis: outer and inner are the products of the axes before and after it."""

    outer: int
    classes: int
    inner: int


def class_axis(layer: Layer, scores: Blob, axis: int, field: str) -> ClassAxis:
    """Return the shape of scores split at axis (negative: from the end). Raises LayerError if the axis does not exist."""
    axis, shape = layer.axis_of(axis, scores, field), scores.shape
    return ClassAxis(math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :]))


def check_label_count(layer: Layer, split: ClassAxis, bottom: Sequence[Blob]) -> None:
    """Raise LayerError unless there is a label for each position of the scores, and the first axes match."""
    check_positions(layer, split, bottom)
    check_first_axis(layer, bottom, 1)


def check_positions(layer: Layer, split: ClassAxis, bottom: Sequence[Blob]) -> None:
    """Raise LayerError unless there is one label for each position of the scores."""
    scores, labels, positions = bottom[0].shape, bottom[1].shape, split.outer * split.inner
    if positions != math.prod(labels):
        wanted = f"{positions} labels ({split.outer} x {split.inner} positions around its {split.classes} classes)"
        raise layer.error(f"scores of shape {scores} need {wanted}, got {math.prod(labels)} of shape {labels}", "bottom[1]")


def check_first_axis(layer: Layer, bottom: Sequence[Blob], i: int) -> None:
    """Raise LayerError unless bottom[i] has as many images (or rois) as bottom[0]."""
    first, other = bottom[0].shape, bottom[i].shape
    if first[:1] != other[:1]:
        raise layer.error(f"bottoms 0 and {i} must have the same first axis, got shapes {first} and {other}", f"bottom[{i}]")


def check_same_size(layer: Layer, bottom: Sequence[Blob], i: int) -> None:
    """Raise LayerError unless bottom[i] has bottom[0]'s first axis and number of values. Other axes may differ."""
    check_first_axis(layer, bottom, i)
    if bottom[0].count != bottom[i].count:
        raise layer.error(
            f"bottoms 0 and {i} must have as many values, got {bottom[0].count} of shape {bottom[0].shape}"
            f" and {bottom[i].count} of shape {bottom[i].shape}",
            f"bottom[{i}]",
        )


def check_same_shape(layer: Layer, bottom: Sequence[Blob], i: int) -> None:
    """Raise LayerError unless bottom[i] has bottom[0]'s shape, up to trailing axes of 1: (N, 8) is (N, 8, 1, 1)."""
    first, other = bottom[0].shape, bottom[i].shape
    if _trimmed(first) != _trimmed(other):
        raise layer.error(f"bottoms 0 and {i} must have the same shape, got {first} and {other}", f"bottom[{i}]")


def _trimmed(shape: tuple[int, ...]) -> tuple[int, ...]:
    used = max((i + 1 for i, n in enumerate(shape) if n != 1), default=0)
    return shape[:used]


def read_labels(
    layer: Layer, labels: Array, split: ClassAxis, ignore: int | None
) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
    """Return labels as integers (outer, inner), 0 if ignored, and which ones count (outer, inner).

    Raises LayerError for a label that is not whole, or that is outside 0 .. classes - 1 and not the ignored label.
    """
    flat = labels.reshape(-1)
    kept = np.ones(flat.shape, bool) if ignore is None else flat != ignore
    wrong = kept & ~((flat >= 0) & (flat < split.classes) & (flat == np.floor(flat)))
    if wrong.any():
        where = int(wrong.argmax())
        raise label_error(layer, float(flat[where]), where, split, ignore)
    whole = np.where(kept, flat, 0).astype(np.intp)  # an ignored label is not a valid index
    return whole.reshape(split.outer, split.inner), kept.reshape(split.outer, split.inner)


def label_error(layer: Layer, label: float, where: int, split: ClassAxis, ignore: int | None) -> LayerError:
    """Return the LayerError that read_labels raises."""
    kind = "a label from" if label == np.floor(label) else "a whole label from"
    ignored = "" if ignore is None else f", nor the ignored {ignore}"
    return layer.error(f"label {label:g} at position {where} is not {kind} 0 to {split.classes - 1}{ignored}", "bottom[1]")


def watch_labels(layer: Layer, labels: Blob, split: ClassAxis, ignore: int | None) -> tuple[int, int, int, int]:
    """Return the arguments of a kernel that reads labels (cuda/labels.cuh).

    They are the labels' address, whether a label is ignored, which one, and the address of the flag for a wrong label. The flag
    raises label_error's error.
    """

    def error(left: int) -> LayerError:
        where = labels.count - left
        return label_error(layer, float(labels.read_data().reshape(-1)[where]), where, split, ignore)

    wrong = current().current_stream.watch(error)
    return labels.device_data("read"), ignore is not None, ignore or 0, wrong


FULL = caffe_pb2.LossParameter.FULL
VALID = caffe_pb2.LossParameter.VALID
BATCH_SIZE = caffe_pb2.LossParameter.BATCH_SIZE
PRE_FIXED = caffe_pb2.LossParameter.PRE_FIXED


@dataclass(frozen=True)
class Normalization:
    """A normalization mode, and its pre_fixed_normalizer."""

    mode: int
    pre_fixed: float = 1.0

    def divisor(self, *, images: int, positions: int, valid: int) -> float:
        """Return the divisor, at least 1. positions: over all images; valid: those that are not ignored."""
        counts: dict[int, float] = {FULL: positions, VALID: valid, BATCH_SIZE: images, PRE_FIXED: self.pre_fixed}
        return max(1.0, float(counts.get(self.mode, 1.0)))

    def fixed_divisor(self, images: int, positions: int) -> float | None:
        """Return the divisor if it does not depend on ignored labels, else None."""
        return None if self.mode == VALID else self.divisor(images=images, positions=positions, valid=0)


def read_normalization(param: caffe_pb2.LossParameter, default: int = VALID) -> Normalization:
    """Return loss_param's normalization. The legacy `normalize` counts if `normalization` is not given."""
    if param.HasField("normalization"):
        mode: int = param.normalization
    elif param.HasField("normalize"):
        mode = VALID if param.normalize else BATCH_SIZE  # Caffe gives the legacy field this meaning
    else:
        mode = default
    return Normalization(mode, param.pre_fixed_normalizer)


def ignored_label(
    param: caffe_pb2.LossParameter | caffe_pb2.AccuracyParameter | caffe_pb2.EltwiseAccuracyParameter,
) -> int | None:
    """Return the label whose positions are ignored, or None."""
    return param.ignore_label if param.HasField("ignore_label") else None
