"""Running a net and its ONNX model on the same inputs."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minicaffe.errors import Error
from minicaffe.net import Net

TOLERANCE = 1e-4
"""The largest relative difference that counts as agreement."""


@dataclass(frozen=True)
class Difference:
    """How far an output of the model is from the net's.

    shape: the net's; other_shape: the model's. largest: the largest difference; relative: over the net's largest magnitude.
    Both are infinite where the shapes differ.
    """

    name: str
    shape: tuple[int, ...]
    other_shape: tuple[int, ...]
    largest: float
    relative: float

    @property
    def agrees(self) -> bool:
        return self.relative <= TOLERANCE


def run_model(path: str | os.PathLike[str], inputs: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """The outputs of an ONNX model in onnxruntime, on the CPU; inputs that it does not take are left out. Raises Error."""
    try:
        import onnxruntime
    except ImportError:
        raise Error('running an ONNX model needs onnxruntime: pip install "minicaffe[onnx]"') from None
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    try:
        session = onnxruntime.InferenceSession(os.fspath(path), options, providers=["CPUExecutionProvider"])
        names, wanted = ([x.name for x in side] for side in (session.get_outputs(), session.get_inputs()))
        lacking = [name for name in wanted if name not in inputs]
        if lacking:
            raise Error(f"{os.fspath(path)}: no array is given for its inputs {', '.join(lacking)}")
        given = {name: np.asarray(inputs[name], np.float32) for name in wanted}
        return dict(zip(names, session.run(names, given), strict=True))
    except Error:
        raise
    except Exception as error:  # its errors have no base of their own
        raise Error(f"{os.fspath(path)}: onnxruntime {onnxruntime.__version__} cannot run it: {error}") from error


def compare_with_net(net: Net, path: str | os.PathLike[str], *, until: str | None = None) -> list[Difference]:
    """Run the net (up to a layer) and the model on what the net's inputs hold; a Difference for each output of the model."""
    inputs = {name: net.blobs[name].read_data().copy() for name in net.inputs}
    made = run_model(path, inputs)
    blobs: dict[str, NDArray[Any]] = {}

    def keep(i: int) -> None:
        for name in set(net.top_names[net.layers[i].name]) & set(made):
            blobs[name] = net.blobs[name].read_data().copy()

    net.after_forward(keep)
    try:
        net.forward(end=until)
    finally:
        net.remove_hook(keep)
    return [difference(name, blobs[name], array) for name, array in made.items()]


def difference(name: str, ours: NDArray[Any], theirs: NDArray[Any]) -> Difference:
    """The difference of two arrays."""
    if ours.shape != theirs.shape:
        return Difference(name, ours.shape, theirs.shape, np.inf, np.inf)
    with np.errstate(invalid="ignore"):
        apart = np.where((ours == theirs) | (np.isnan(ours) & np.isnan(theirs)), 0, np.abs(ours.astype(np.float64) - theirs))
    largest = float(np.nan_to_num(apart, nan=np.inf).max(initial=0))
    finite = ours[np.isfinite(ours)]
    scale = float(np.abs(finite).max(initial=0))
    return Difference(name, ours.shape, theirs.shape, largest, largest / scale if scale else largest)
