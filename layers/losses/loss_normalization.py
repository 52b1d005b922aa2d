"""What a loss is divided by: loss_param's normalization, for every layer that honours it.

    FULL: all positions; VALID: the positions that are not ignored; BATCH_SIZE: the images (or rois);
    PRE_FIXED: pre_fixed_normalizer; NONE: 1. Never less than 1, so that nothing to learn from is a loss of 0.

Source: Caffe's softmax_loss_layer.cpp (get_normalizer), R-FCN's fork for PRE_FIXED.
"""

from __future__ import annotations

from minicaffe.proto import caffe_pb2

FULL = caffe_pb2.LossParameter.FULL
VALID = caffe_pb2.LossParameter.VALID
BATCH_SIZE = caffe_pb2.LossParameter.BATCH_SIZE
PRE_FIXED = caffe_pb2.LossParameter.PRE_FIXED


def normalization_mode(param: caffe_pb2.LossParameter, default: int = VALID) -> int:
    """The mode that loss_param asks for; the legacy `normalize` counts where `normalization` is not given."""
    if param.HasField("normalization"):
        return param.normalization
    if param.HasField("normalize"):
        return VALID if param.normalize else BATCH_SIZE
    return default


def loss_divisor(mode: int, *, images: int, positions: int, valid: int, pre_fixed: float = 1.0) -> float:
    """The divisor, at least 1. positions counts them over all images; valid those that are not ignored."""
    counts: dict[int, float] = {FULL: positions, VALID: valid, BATCH_SIZE: images, PRE_FIXED: pre_fixed}
    return max(1.0, float(counts.get(mode, 1.0)))


def fixed_divisor(mode: int, images: int, positions: int, pre_fixed: float) -> float | None:
    """loss_divisor where it does not depend on what is ignored, else None."""
    return None if mode == VALID else loss_divisor(mode, images=images, positions=positions, valid=0, pre_fixed=pre_fixed)


def ignored_label(param: caffe_pb2.LossParameter | caffe_pb2.AccuracyParameter) -> int | None:
    """The label whose positions do not count, or None."""
    return param.ignore_label if param.HasField("ignore_label") else None
