"""The libraries that run the same net: minicaffe, onnxruntime (our export), PyTorch (functions for its layers), OpenCV.

Each is a function without arguments that returns the outputs by name. One that is absent or cannot run the net is named and
left out. All use the same number of threads. minicaffe runs twice: by NumPy's way, and with compiled loops (the extra `fast`).
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import numpy as np

import minicaffe
from benchmarks._nets import twin
from benchmarks._report import FAST, OURS, PLAIN
from benchmarks._smoke import smoking
from minicaffe import Net, kernels
from minicaffe.compiled import jit

P, T = ParamSpec("P"), TypeVar("T")
Run = Callable[[], dict[str, Any]]
Compare = Callable[[str, Any, Any, float], None]

PEERS = ("onnxruntime", "PyTorch", "OpenCV")
NAMES = (*OURS, *PEERS)
WAYS = {PLAIN: "numpy", FAST: "numba"}
"""minicaffe's contenders: the way of its loops."""
_printed: set[str] = set()


def ways() -> dict[str, str]:
    """WAYS, without compiled loops where Numba is absent."""
    if jit.installed():
        return WAYS
    leave_out(FAST, ImportError("Numba is not installed"))
    return {PLAIN: WAYS[PLAIN]}


def within(way: str, function: Callable[P, T]) -> Callable[P, T]:
    """Return the function, which runs in this way of loops."""

    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        with kernels.using(way):
            return function(*args, **kwargs)

    return run


def both(make: Callable[[], Mapping[str, Callable[[], T]]]) -> dict[str, dict[str, Callable[[], T]]]:
    """make's functions, by name: each of minicaffe's contenders makes its own, and runs them in its way of loops."""
    made = {name: within(way, make)() for name, way in ways().items()}
    return {key: {name: within(WAYS[name], runs[key]) for name, runs in made.items()} for key in made[PLAIN]}


def contenders(net: Net, peers: tuple[str, ...] = PEERS) -> dict[str, Run]:
    """name -> run: minicaffe's and those of the peers that can run; all with minicaffe's current number of threads."""
    makers: dict[str, Callable[[Net], Run]] = {"onnxruntime": onnxruntime_run, "PyTorch": torch_run, "OpenCV": opencv_run}
    runs = both(lambda: {"forward": (twin(net) if kernels.compiled() else net).forward})["forward"]
    for name in () if smoking() else peers:
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
    """Return an onnxruntime session with minicaffe's number of threads."""
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
    """OpenCV 4 reads the prototxt and the weights."""
    import cv2

    if int(cv2.__version__.split(".")[0]) > 4:
        raise SystemExit(f'OpenCV {cv2.__version__} reads no prototxt, 4 does: pip install "opencv-python-headless<5"')
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


def check(name: str, runs: Mapping[str, Run], compare: Compare | None = None, tolerance: float = 1e-3) -> None:
    """Exit unless all outputs equal minicaffe's, by the function `same` or another."""
    expected = {blob: np.array(y) for blob, y in runs[PLAIN]().items()}
    for peer, run in runs.items():
        found = run()
        for blob, y in expected.items():
            (compare or same)(f"{name}, {blob}: minicaffe and {peer}", np.asarray(found[blob]), y, tolerance)


def same(what: str, found: Any, expected: Any, tolerance: float) -> None:
    """Exit if the largest difference exceeds tolerance times the largest number."""
    difference = float(_differences(what, found, expected).max(initial=0))
    if not difference <= tolerance:
        raise SystemExit(f"{what} differ by {difference:g} of the largest number")


def nearly_all(what: str, found: Any, expected: Any, tolerance: float, part: float = 0.99) -> None:
    """Exit unless this part of the numbers agrees, where rounding may put a maximum elsewhere."""
    if not (agree := float(np.mean(_differences(what, found, expected) <= tolerance))) >= part:
        raise SystemExit(f"{what} agree in only {agree:.1%} of the numbers")


def _differences(what: str, found: Any, expected: Any) -> Any:
    """Relative to the largest number."""
    if found.shape != expected.shape:
        raise SystemExit(f"{what} have shapes {found.shape} and {expected.shape}")
    return np.abs(found - expected) / max(float(np.abs(expected).max(initial=0)), 1e-30)


def same_rows(what: str, found: Any, expected: Any, tolerance: float, part: float = 0.95) -> None:
    """Exit unless this part of the expected rows (of the last axis) is found, at any place, within tolerance times the largest
    number of each column: where scores are nearly equal, rounding decides on the order of boxes, and on the last ones."""
    found, expected = (y.reshape(-1, y.shape[-1]) for y in (found, expected))
    if found.shape[1] != expected.shape[1]:
        raise SystemExit(f"{what} have rows of {found.shape[1]} and {expected.shape[1]} numbers")
    most = tolerance * np.abs(expected).max(axis=0, initial=1e-30)
    there = [bool((np.abs(found - row) <= most).all(axis=1).any()) for row in expected]
    if not np.mean(there or [True]) >= part:
        raise SystemExit(f"{what} have {sum(there)} of {len(there)} rows in common")
