"""The golden cases of the original Caffe (../shared/golden next to the repository), run through Net."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recordings import SHARED, absent, needs

from minicaffe.mode import Phase
from minicaffe.net import Net

GOLDEN = SHARED / "golden"
FORKS = SHARED / "golden_forks"
"""The same of the layers of forks, a folder a type, `Type@fork` where forks disagree."""

EXACT = (
    "Reshape Concat Slice Split Crop Tile Filter Flatten BatchReindex Im2col ArgMax Threshold Accuracy "
    "BoxAnnotatorOHEM ROIPooling Silence Input DummyData Parameter"
).split()
SMOOTH = (
    "Convolution Deconvolution InnerProduct Embed Reduction SPP PSROIPooling PSROIAlign ROIAlign RNN LSTM LSTMUnit Lstm"
).split()
NORMAL = ("LRN", "BatchNorm", "BN", "MVN")

needs_golden = needs(GOLDEN)


def cases(layer_type: str) -> list[Any]:
    """Pytest params, one a case of a layer type; one skipped param where the golden data is absent."""
    if not GOLDEN.is_dir():
        return [pytest.param(None, marks=absent)]
    names = sorted(p.stem for p in (GOLDEN / layer_type).glob("*.npz"))
    return [pytest.param(f"{layer_type}/{name}", id=name) for name in names]


def tolerance(layer_type: str, case: str, what: str) -> tuple[float, float]:
    """(rtol, atol) of a layer type's arrays, from the golden data's own table."""
    if layer_type == "Pooling":
        return (0.0, 0.0) if case.startswith("max") else (1e-4, 1e-5)
    if layer_type == "ROIPooling" and "diff" in what:
        return 1e-4, 1e-5
    if layer_type in EXACT:
        return 0.0, 0.0
    if layer_type in SMOOTH:
        return 1e-4, 1e-5
    return (1e-3, 1e-4) if layer_type in NORMAL else (1e-5, 1e-6)


@contextmanager
def inside(folder: Path) -> Iterator[None]:
    """Prototxts name their files relative to their own folder."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def computed(case: str, *, backward: bool = True, root: Path = GOLDEN) -> tuple[Net, dict[str, np.ndarray[Any, Any]]]:
    """Run a layer case as it was recorded. Return its net, and its arrays by the names of the recording."""
    folder, name = case.split("/")
    path = root / f"{case}.prototxt"
    stored = np.load(path.with_suffix(".npz"))
    with inside(path.parent):
        net = Net(path.name, Phase(int(stored["phase"])), fork=folder.partition("@")[2])
    layer = net.layer_dict["layer"]
    params = [stored[f"param.{i}"] for i in range(sum(key.startswith("param.") for key in stored.files))]
    net.take_layouts([("layer", [array.shape for array in params])])
    learnt = layer.blobs or [blob for other in net.layers for blob in other.blobs]
    for blob, array in zip(learnt, params, strict=False):
        if not name.startswith("filler"):
            blob.data[...] = array
    before = {f"param.{i}": b.data.copy() for i, b in enumerate(learnt)}
    forwards = {"two": 2, "three": 3}.get(name.removesuffix("_forwards").split("_")[-1], 1)
    for _ in range(forwards):
        for key in stored.files:
            if key.startswith("bottom."):
                net.blobs[key.removeprefix("bottom.")].data[...] = stored[key]
        net.forward()
    actual = {f"top.{n}": net.blobs[n].data.copy() for n in net.blobs}
    actual |= before | {f"param_after.{i}": b.data.copy() for i, b in enumerate(learnt)}
    if "loss_weights" in stored:
        assert list(stored["loss_weights"]) == pytest.approx(layer.loss_weights[: len(stored["loss_weights"])])
    if backward and any("_diff." in key for key in stored.files):
        net.clear_param_diffs()
        for key in stored.files:
            if key.startswith("top_diff."):
                net.blobs[key.removeprefix("top_diff.")].diff[...] = stored[key]
        net.backward()
        actual |= {f"bottom_diff.{n}": b.diff.copy() for n, b in net.blobs.items()}
        actual |= {f"param_diff.{i}": b.diff.copy() for i, b in enumerate(learnt)}
    return net, actual


def run_case(case: str, *, backward: bool = True, root: Path = GOLDEN) -> int:
    """Run one layer case and compare every array that the case stores; returns how many arrays were compared.

    backward=False: compare what forward gives only (where the original's backward is not the gradient).
    """
    folder, name = case.split("/")
    layer_type = folder.partition("@")[0]
    stored = np.load(root / f"{case}.npz")
    net, actual = computed(case, backward=backward, root=root)
    if any(other.type == "Convolution" for other in net.layers):
        layer_type = "Convolution"  # the case is a whole net
    kinds = r"(top|param|param_after)\." + (r"|(bottom_diff|param_diff)\." if backward else "")
    compared = 0
    for key in stored.files:
        if re.match(kinds, key):
            compare(actual[key], stored[key], tolerance(layer_type, name, key), f"{case} {key}")
            compared += 1
    return compared


def compare(actual: Any, expected: Any, tol: tuple[float, float], what: str) -> None:
    """Shapes equal and |actual - expected| <= atol + rtol * |expected| everywhere."""
    assert actual.shape == expected.shape, f"{what}: shape {actual.shape}, golden {expected.shape}"
    np.testing.assert_allclose(actual, expected, rtol=tol[0], atol=tol[1], err_msg=what)
