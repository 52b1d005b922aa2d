"""What a loss is divided by: loss_param's normalization, for every layer that honours it.

    FULL: all positions; VALID: the positions that are not ignored; BATCH_SIZE: the images (or rois);
    PRE_FIXED: pre_fixed_normalizer; NONE: 1. Never less than 1, so that nothing to learn from is a loss of 0.

Source: Caffe's softmax_loss_layer.cpp (get_normalizer), R-FCN's fork for PRE_FIXED.
"""

from __future__ import annotations

from dataclasses import dataclass

from minicaffe.proto import caffe_pb2

FULL = caffe_pb2.LossParameter.FULL
VALID = caffe_pb2.LossParameter.VALID
BATCH_SIZE = caffe_pb2.LossParameter.BATCH_SIZE
PRE_FIXED = caffe_pb2.LossParameter.PRE_FIXED


@dataclass(frozen=True)
class Normalization:
    """A normalization, and its pre_fixed_normalizer."""

    mode: int
    pre_fixed: float = 1.0

    def divisor(self, *, images: int, positions: int, valid: int) -> float:
        """At least 1. positions counts them over all images; valid those that are not ignored."""
        counts: dict[int, float] = {FULL: positions, VALID: valid, BATCH_SIZE: images, PRE_FIXED: self.pre_fixed}
        return max(1.0, float(counts.get(self.mode, 1.0)))

    def fixed_divisor(self, images: int, positions: int) -> float | None:
        """divisor where it does not depend on what is ignored, else None."""
        return None if self.mode == VALID else self.divisor(images=images, positions=positions, valid=0)


def read_normalization(param: caffe_pb2.LossParameter, default: int = VALID) -> Normalization:
    """What loss_param asks for; the legacy `normalize` counts where `normalization` is not given."""
    if param.HasField("normalization"):
        mode: int = param.normalization
    elif param.HasField("normalize"):
        mode = VALID if param.normalize else BATCH_SIZE  # Caffe's meaning of the legacy field
    else:
        mode = default
    return Normalization(mode, param.pre_fixed_normalizer)


def ignored_label(
    param: caffe_pb2.LossParameter | caffe_pb2.AccuracyParameter | caffe_pb2.EltwiseAccuracyParameter,
) -> int | None:
    """The label whose positions do not count, or None."""
    return param.ignore_label if param.HasField("ignore_label") else None
