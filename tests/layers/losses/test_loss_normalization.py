"""What losses are divided by."""

import pytest

from minicaffe.layers.losses.loss_normalization import (
    BATCH_SIZE,
    FULL,
    PRE_FIXED,
    VALID,
    ignored_label,
    loss_divisor,
    normalization_mode,
)
from minicaffe.proto import caffe_pb2

LossParameter = caffe_pb2.LossParameter


@pytest.mark.parametrize(
    "mode, divisor", [(FULL, 12), (VALID, 5), (BATCH_SIZE, 3), (LossParameter.NONE, 1), (PRE_FIXED, 2.5)]
)  # fmt: skip
def test_divisor(mode, divisor):
    assert loss_divisor(mode, images=3, positions=12, valid=5, pre_fixed=2.5) == divisor


@pytest.mark.parametrize("mode", LossParameter.NormalizationMode.values())
def test_divisor_is_at_least_one(mode):
    assert loss_divisor(mode, images=0, positions=0, valid=0, pre_fixed=0.25) == 1


def test_mode():
    assert normalization_mode(LossParameter()) == VALID
    assert normalization_mode(LossParameter(), BATCH_SIZE) == BATCH_SIZE
    assert normalization_mode(LossParameter(normalize=True)) == VALID
    assert normalization_mode(LossParameter(normalize=False)) == BATCH_SIZE
    assert normalization_mode(LossParameter(normalize=False, normalization=FULL)) == FULL


def test_ignored_label():
    assert ignored_label(LossParameter()) is None
    assert ignored_label(LossParameter(ignore_label=0)) == 0
