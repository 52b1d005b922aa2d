"""Convolution beside onnxruntime: forward, one thread each, in turn, medians after a warm-up.

    python -m benchmarks conv          needs onnx, onnxruntime and threadpoolctl

The outputs are compared first. A row's ratio is minicaffe's time over onnxruntime's.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from threadpoolctl import threadpool_limits

from minicaffe import TEST, Blob
from minicaffe.layers import create
from minicaffe.proto import caffe_pb2

SHAPES = [(256, 256, 150, 250, 3), (512, 512, 38, 63, 3), (64, 64, 300, 500, 3), (1024, 256, 38, 63, 1), (16, 32, 160, 160, 3)]
"""Channels in, channels out, rows, columns, kernel; stride 1, padding kernel // 2."""
ROUNDS = 7
LIMIT = 2.5
"""Most that the first row's ratio may be."""


def minicaffe_forward(x: Any, weight: Any, bias: Any) -> Callable[[], Any]:
    """A function that runs our layer on x (1, C, H, W)."""
    param = caffe_pb2.LayerParameter(name="conv", type="Convolution")
    conv = param.convolution_param
    conv.num_output, conv.kernel_size[:], conv.pad[:] = len(weight), [weight.shape[2]], [weight.shape[2] // 2]
    layer = create(param, phase=TEST)
    bottom, top = Blob(x.shape), Blob()
    layer.connect([bottom], [top])
    bottom.data[...], layer.blobs[0].data[...], layer.blobs[1].data[...] = x, weight, bias

    def run() -> Any:
        layer.forward_pass([bottom], [top])
        return top.data

    return run


def onnxruntime_forward(x: Any, weight: Any, bias: Any) -> Callable[[], Any]:
    """A function that runs a net of one Conv, on one thread."""
    pads = [weight.shape[2] // 2] * 4
    shape = [1, len(weight), *x.shape[2:]]
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "weight", "bias"], ["y"], pads=pads)],
        "conv",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(weight, "weight"), numpy_helper.from_array(bias, "bias")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.checker.check_model(model)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, {"x": x})[0]


def milliseconds(runs: list[Callable[[], Any]]) -> list[float]:
    """Median time of each run, taken in turn."""
    times: list[list[float]] = [[] for _ in runs]
    for _ in range(ROUNDS):
        for run, taken in zip(runs, times, strict=True):
            start = time.perf_counter()
            run()
            taken.append((time.perf_counter() - start) * 1e3)
    return [statistics.median(taken) for taken in times]


def main() -> None:
    random = np.random.default_rng(0)
    print(f"{'convolution':<36}{'minicaffe ms':>14}{'onnxruntime ms':>16}{'ratio':>8}{'largest difference':>20}")
    with threadpool_limits(1):
        for row, (channels, outputs, height, width, kernel) in enumerate(SHAPES):
            x = random.standard_normal((1, channels, height, width), dtype=np.float32)
            weight = random.standard_normal((outputs, channels, kernel, kernel), dtype=np.float32) / np.sqrt(
                channels * kernel**2
            )
            bias = random.standard_normal(outputs, dtype=np.float32)
            runs = [make(x, weight.astype(np.float32), bias) for make in (minicaffe_forward, onnxruntime_forward)]
            ours, theirs = (run() for run in runs)
            difference = float(np.abs(ours - theirs).max())
            if difference > 1e-4:
                raise SystemExit(f"outputs differ by {difference:g}")
            ms = milliseconds(runs)
            name = f"{kernel}x{kernel}, {channels} to {outputs}, {height}x{width}"
            print(f"{name:<36}{ms[0]:>14.1f}{ms[1]:>16.1f}{ms[0] / ms[1]:>8.2f}{difference:>20.1e}", flush=True)
            if row == 0 and ms[0] > LIMIT * ms[1]:
                raise SystemExit(f"the ratio is above {LIMIT}")


if __name__ == "__main__":
    main()
