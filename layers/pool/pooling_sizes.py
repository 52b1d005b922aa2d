"""Kernel, stride and padding of a Pooling layer, read from its pooling_param and checked."""

from __future__ import annotations

from google.protobuf.message import Message

from minicaffe.layer import Layer
from minicaffe.proto import caffe_pb2

Pair = tuple[int, int]
"""A size on both axes."""


def read_sizes(layer: Layer, param: caffe_pb2.PoolingParameter) -> tuple[Pair, Pair, Pair]:
    """Kernel ((0, 0): the whole map), stride and pad. Raises LayerError for sizes given twice, half or out of range."""
    kernel = (0, 0) if param.global_pooling else _pair(layer, param, "kernel_size", "kernel_h", "kernel_w")
    stride = _pair(layer, param, "stride", "stride_h", "stride_w")
    pad = _pair(layer, param, "pad", "pad_h", "pad_w")
    if param.global_pooling:
        if any(param.HasField(f) for f in ("kernel_size", "kernel_h", "kernel_w")):
            raise layer.error("global_pooling takes the whole map: no kernel size can be given", "pooling_param.global_pooling")
        if stride != (1, 1) or pad != (0, 0):
            raise layer.error(
                f"global_pooling needs stride 1 and pad 0, got stride {stride} and pad {pad}", "pooling_param.global_pooling"
            )
    elif min(kernel) < 1:
        raise layer.error(f"the kernel must be > 0 on both axes, got {kernel}", "pooling_param.kernel_size")
    if min(stride) < 1:
        raise layer.error(f"the stride must be > 0 on both axes, got {stride}", "pooling_param.stride")
    if any(pad) and param.pool == caffe_pb2.PoolingParameter.STOCHASTIC:
        raise layer.error("padding is for MAX and AVE pooling, not for STOCHASTIC", "pooling_param.pad")
    if any(pad) and any(p >= k for p, k in zip(pad, kernel)):  # else a window could lie in the padding alone
        raise layer.error(f"pad {pad} must be smaller than the kernel {kernel}", "pooling_param.pad")
    return kernel, stride, pad


def is_average(param: caffe_pb2.PoolingParameter) -> bool:
    return param.pool in (param.AVE, param.AVE_EXC_PAD, param.AVE_TF)


def counts_padding(param: caffe_pb2.PoolingParameter) -> bool:
    """Whether an average divides by sizes that include padding, as BVLC's does."""
    return param.pool not in (param.AVE_EXC_PAD, param.AVE_TF) and param.avg_include_pad


def rounds_down(layer: Layer, param: caffe_pb2.PoolingParameter) -> bool:
    """Whether the number of windows is rounded down: BVLC's round_mode, or the forks' ceil_mode, both up unless given.
    Raises LayerError where they contradict each other."""
    down = param.round_mode == caffe_pb2.PoolingParameter.FLOOR
    if not param.HasField("ceil_mode"):
        return down
    if param.HasField("round_mode") and param.ceil_mode == down:
        given = f"round_mode: {'FLOOR' if down else 'CEIL'} and ceil_mode: {str(param.ceil_mode).lower()}"
        raise layer.error(f"{given} contradict each other: give one of them", "pooling_param.ceil_mode")
    return not param.ceil_mode


def _pair(layer: Layer, param: Message, both: str, h: str, w: str) -> Pair:
    """A size given once for both axes, or once for each."""
    given = [f for f in (h, w) if param.HasField(f)]
    if given and param.HasField(both):
        raise layer.error(f"{both} and {' and '.join(given)} are both given: give one of them", f"pooling_param.{both}")
    if len(given) == 1:
        raise layer.error(f"{h} and {w} go together, only {given[0]} is given", f"pooling_param.{given[0]}")
    if not given and both == "kernel_size" and not param.HasField(both):
        raise layer.error(f"{both} is missing: give {both}, or {h} and {w}, or global_pooling", "pooling_param")
    return (getattr(param, h), getattr(param, w)) if given else (getattr(param, both),) * 2
