"""The libraries that run the same net: minicaffe, onnxruntime (our export), PyTorch (functions for its layers), OpenCV.

Each is a function without arguments that returns the outputs by name. One that is absent or cannot run the net is named and
left out. All use the same number of threads.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import minicaffe
from minicaffe import Net

Run = Callable[[], dict[str, Any]]

NAMES = ("minicaffe", "onnxruntime", "PyTorch", "OpenCV")
_printed: set[str] = set()


def contenders(net: Net, names: tuple[str, ...] = NAMES) -> dict[str, Run]:
    """name -> run, of the names that can run; all with minicaffe's current number of threads."""
    makers: dict[str, Callable[[Net], Run]] = {"onnxruntime": onnxruntime_run, "PyTorch": torch_run, "OpenCV": opencv_run}
    runs: dict[str, Run] = {"minicaffe": net.forward}
    for name in names[1:]:
        try:
            runs[name] = makers[name](net)
        except (Exception, SystemExit) as error:  # an import of broken libraries may raise anything
            leave_out(name, error)
    return runs


def leave_out(name: str, error: BaseException) -> None:
    """Print it once."""
    line = f"left out: {name} ({(str(error).splitlines() or [repr(error)])[0][:120]})"
    if line not in _printed:
        print(line)
        _printed.add(line)


def onnxruntime_run(net: Net) -> Run:
    """minicaffe's export with BatchNorm and Scale folded, optimised by onnxruntime."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "net.onnx"
        minicaffe.export_onnx(net, path, fold=True)
        session = session_of(str(path))
    given = {item.name: net.blobs[item.name].read_data() for item in session.get_inputs()}
    names = [item.name for item in session.get_outputs()]
    return lambda: dict(zip(names, session.run(None, given)))


def session_of(model: str | bytes) -> Any:
    """An onnxruntime session with minicaffe's number of threads."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads, options.inter_op_num_threads = minicaffe.get_num_threads(), 1
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def torch_run(net: Net) -> Run:
    import torch

    from benchmarks._torch import Graph

    count = minicaffe.get_num_threads()
    graph = Graph(net, "cpu")

    def run() -> dict[str, Any]:
        torch.set_num_threads(count)
        return graph.forward()

    return run


def opencv_run(net: Net) -> Run:
    """OpenCV reads the prototxt and the weights."""
    import cv2

    count = minicaffe.get_num_threads()
    with tempfile.TemporaryDirectory() as folder:
        text, weights = Path(folder) / "net.prototxt", Path(folder) / "net.caffemodel"
        text.write_text(str(net.param), encoding="utf-8")
        net.save(weights)
        loaded = cv2.dnn.readNetFromCaffe(str(text), str(weights))
    (output,) = net.outputs
    x = net.blobs["data"].read_data().copy()

    def run() -> dict[str, Any]:
        cv2.setNumThreads(count)
        loaded.setInput(x, "data")
        return {output: loaded.forward()}

    run()
    return run


def check(name: str, runs: dict[str, Run], tolerance: float = 1e-3) -> None:
    """Exit unless all outputs equal minicaffe's within tolerance times the largest number."""
    expected = {blob: np.array(y) for blob, y in runs["minicaffe"]().items()}
    for peer, run in runs.items():
        for blob, y in run().items():
            same(f"{name}, {blob}: minicaffe and {peer}", np.asarray(y), expected[blob], tolerance)


def same(what: str, found: Any, expected: Any, tolerance: float) -> None:
    """Exit if the largest difference exceeds tolerance times the largest number."""
    if found.shape != expected.shape:
        raise SystemExit(f"{what} have shapes {found.shape} and {expected.shape}")
    difference = float(np.abs(found - expected).max(initial=0)) / max(float(np.abs(expected).max(initial=0)), 1e-30)
    if not difference <= tolerance:
        raise SystemExit(f"{what} differ by {difference:g} of the largest number")
