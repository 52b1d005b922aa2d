"""ROIPooling forward beside a plain C++ loop and onnxruntime's MaxRoiPool: 300 rois over 1 x 512 x 38 x 63 to 7 x 7.

    python -m benchmarks roi          needs g++, and for onnxruntime's row onnx and onnxruntime

Every contender runs on one thread, in turn, ROUNDS times after a warm-up; the table has medians of processor time, on
which other programs weigh less than on the clock's. Outputs are compared first: one that differs ends the run.
"""

from __future__ import annotations

import ctypes
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minicaffe import TEST, TRAIN, Blob, Phase
from minicaffe.layers import create
from minicaffe.proto import caffe_pb2

Array = NDArray[Any]
ROUNDS = 21
CHANNELS, HEIGHT, WIDTH, POOLED, SCALE, COUNT = 512, 38, 63, 7, 1 / 16, 300


def main() -> None:
    x, rois = inputs()
    with tempfile.TemporaryDirectory() as folder:
        contenders = {"minicaffe, values": layer(TEST, x, rois)}
        contenders |= absent_or(lambda: cpp_loop(Path(folder), x, rois), "C++ loop (g++ was not found)")
        contenders |= absent_or(lambda: onnxruntime_pool(x, rois), "onnxruntime MaxRoiPool (not installed)")
        contenders["minicaffe, values and argmax"] = layer(TRAIN, x, rois)
        check(contenders)
        print_table(timed(contenders), next(iter(contenders)))


def inputs() -> tuple[Array, Array]:
    """A map like VGG's conv5_3 of a 600 x 1000 image, and boxes of 32 to 500 by 32 to 400 pixels in that image."""
    random = np.random.default_rng(0)
    x = random.standard_normal((1, CHANNELS, HEIGHT, WIDTH), dtype=np.float32)
    width, height = random.uniform(32, 500, COUNT), random.uniform(32, 400, COUNT)
    left, top = random.uniform(0, 1, COUNT) * (1000 - width), random.uniform(0, 1, COUNT) * (600 - height)
    return x, np.stack([0 * left, left, top, left + width, top + height], axis=1).astype(np.float32)


def layer(phase: Phase, x: Array, rois: Array) -> Callable[[], Any]:
    """Our layer's forward on blobs of its own; TEST finds the values, TRAIN the argmax too."""
    param = caffe_pb2.LayerParameter(name="roi_pool5", type="ROIPooling")
    pooling = param.roi_pooling_param
    pooling.pooled_h, pooling.pooled_w, pooling.spatial_scale = POOLED, POOLED, SCALE
    bottom, top = [Blob(x.shape), Blob(rois.shape)], [Blob()]
    pool = create(param, phase=phase)
    bottom[0].data[...], bottom[1].data[...] = x, rois
    pool.connect(bottom, top)

    def run() -> Array:
        pool.forward_pass(bottom, top)
        return top[0].data

    return run


def absent_or(make: Callable[[], dict[str, Callable[[], Any]]], name: str) -> dict[str, Callable[[], Any]]:
    """The contenders that make gives, or none and a line that says so."""
    try:
        return make()
    except (ImportError, FileNotFoundError):
        print(f"left out: {name}")
        return {}


def cpp_loop(folder: Path, x: Array, rois: Array) -> dict[str, Callable[[], Any]]:
    """The loop of roi.cpp, compiled with g++ -O2, with and without the argmax."""
    library = folder / "roi.so"
    source = Path(__file__).with_suffix(".cpp")
    subprocess.run(["g++", "-O2", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    function = ctypes.CDLL(str(library)).roi_pool
    y = np.empty((COUNT, CHANNELS, POOLED, POOLED), np.float32)
    argmax = np.empty(y.shape, np.int32)

    def run(where: Array | None) -> Array:
        sizes = [ctypes.c_int(v) for v in (CHANNELS, HEIGHT, WIDTH)]
        ends = [ctypes.c_int(COUNT), ctypes.c_int(POOLED), ctypes.c_int(POOLED), ctypes.c_float(SCALE)]
        where_pointer = None if where is None else pointer(where)
        function(pointer(x), *sizes, pointer(rois), *ends, pointer(y), where_pointer)
        return y

    return {"C++ loop, values": lambda: run(None), "C++ loop, values and argmax": lambda: run(argmax)}


def pointer(array: Array) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def onnxruntime_pool(x: Array, rois: Array) -> dict[str, Callable[[], Any]]:
    """A model of one MaxRoiPool node on one thread."""
    import onnxruntime
    from onnx import TensorProto, helper

    node = helper.make_node("MaxRoiPool", ["x", "rois"], ["y"], pooled_shape=[POOLED, POOLED], spatial_scale=SCALE)
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", x.shape), ("rois", rois.shape))]
    top = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    opset = helper.make_opsetid("", 13)
    model = helper.make_model(helper.make_graph([node], "roi", ends, [top]), opset_imports=[opset], ir_version=8)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return {f"onnxruntime {onnxruntime.__version__} MaxRoiPool": lambda: session.run(None, {"x": x, "rois": rois})[0]}


def check(contenders: dict[str, Callable[[], Any]]) -> None:
    """Exit unless every contender gives minicaffe's numbers."""
    expected, *rest = ((name, run().copy()) for name, run in contenders.items())
    for name, y in rest:
        same = float(np.mean(y == expected[1]))
        print(f"{name}: {same:.2%} of the maxima equal minicaffe's")
        if same < 0.999:
            raise SystemExit(f"{name} computes something else")


def timed(contenders: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Median seconds of each, run in turn."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(ROUNDS + 1):
        for name, run in contenders.items():
            start = time.process_time()
            run()
            times[name].append(time.process_time() - start)
    return {name: statistics.median(each[1:]) for name, each in times.items()}


def print_table(medians: dict[str, float], ours: str) -> None:
    print(f"\n{'':34s}{'ms':>9s}  {'times ' + ours!r:>28s}")
    for name, seconds in sorted(medians.items(), key=lambda item: item[1]):
        print(f"{name:34s}{1e3 * seconds:9.1f}  {seconds / medians[ours]:28.2f}")
