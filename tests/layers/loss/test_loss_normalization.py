"""What losses are divided by."""

import pytest

from minicaffe.layers.loss.loss import BATCH_SIZE, FULL, PRE_FIXED, VALID, Normalization, ignored_label, read_normalization
from minicaffe.proto import caffe_pb2

LossParameter = caffe_pb2.LossParameter


@pytest.mark.parametrize(
    "mode, divisor", [(FULL, 12), (VALID, 5), (BATCH_SIZE, 3), (LossParameter.NONE, 1), (PRE_FIXED, 2.5)]
)  # fmt: skip
def test_divisor(mode, divisor):
    assert Normalization(mode, 2.5).divisor(images=3, positions=12, valid=5) == divisor


@pytest.mark.parametrize("mode", LossParameter.NormalizationMode.values())
def test_divisor_is_at_least_one(mode):
    assert Normalization(mode, 0.25).divisor(images=0, positions=0, valid=0) == 1


def test_mode():
    assert read_normalization(LossParameter()).mode == VALID
    assert read_normalization(LossParameter(), BATCH_SIZE).mode == BATCH_SIZE
    assert read_normalization(LossParameter(normalize=True)).mode == VALID
    assert read_normalization(LossParameter(normalize=False)).mode == BATCH_SIZE
    assert read_normalization(LossParameter(normalize=False, normalization=FULL)).mode == FULL


def test_ignored_label():
    assert ignored_label(LossParameter()) is None
    assert ignored_label(LossParameter(ignore_label=0)) == 0
