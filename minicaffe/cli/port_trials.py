"""Trying what the report proposes: a forward pass, the ONNX export and PyTorch, each beside the net."""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from minicaffe.detection.detector import Detector
from minicaffe.detection.inputs import fill_inputs, image_inputs
from minicaffe.errors import Error, on_one_line, shortened
from minicaffe.net import Net
from minicaffe.porting.agreement import Difference, differences, run_of
from minicaffe.porting.folder.matching import Pair
from minicaffe.porting.folder.report import Verdict
from minicaffe.porting.folder.scan import Item


def try_all(pairs: list[Pair], folder: Path, image: Item | None) -> Iterator[Verdict]:
    """Try each pair on an image of the folder, or on generated inputs."""
    for pair in pairs:
        net = pair.made
        assert net is not None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            net.copy_from(folder / pair.weights.path)
        photo = folder / image.path if image else None
        for what, trial in trials().items():
            yield _tried(pair, what, trial, net, photo)


def trials() -> dict[str, Callable[[Net, str, Path | None], str]]:
    """The trials whose packages are installed."""
    packages = {"ONNX": ("onnxruntime", _onnx), "PyTorch": ("torch", _torch)}
    return {"forward": _forward, **{what: trial for what, (name, trial) in packages.items() if find_spec(name)}}


def _tried(pair: Pair, what: str, trial: Callable[[Net, str, Path | None], str], net: Net, photo: Path | None) -> Verdict:
    start = time.perf_counter()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            says, good = trial(net, pair.kind, photo), True
    except (Error, ImportError, MemoryError) as error:
        says, good = shortened(on_one_line(str(error) or "out of memory")), False
    return Verdict(pair, what, good, f"{says} ({time.perf_counter() - start:.1f} s)")


def _forward(net: Net, kind: str, photo: Path | None) -> str:
    if photo and kind != "net":
        found = Detector(net, threshold=0.5)(photo)
        best = f", the best {found.scores[0]:.3f}" if len(found) else ""
        return f"{len(found)} detections with a score of at least 0.5 on {photo.name}{best}"
    _fill(net, photo)
    outputs = net.forward()
    odd = [name for name, array in outputs.items() if not np.isfinite(array).all()]
    if odd:
        raise Error(f"NaN or infinite values in {', '.join(odd)}")
    shapes = ", ".join(f"{name} {'x'.join(map(str, array.shape))}" for name, array in outputs.items())
    return f"{shapes}, all finite"


def _fill(net: Net, photo: Path | None) -> None:
    """The image where an input takes it, seeded values elsewhere."""
    takes = image_inputs(net)
    fill_inputs(net, {takes[0]: str(photo)} if photo and takes else {}, seed=1)


def _onnx(net: Net, kind: str, photo: Path | None) -> str:
    from minicaffe.porting.onnx import compare_with_net, export_onnx

    _fill(net, photo)
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model.onnx"
        export_onnx(net, model)
        found = compare_with_net(net, model)
    return _agreement(found, "exported; onnxruntime")


def _torch(net: Net, kind: str, photo: Path | None) -> str:
    import torch

    from minicaffe.torch import to_torch

    _fill(net, photo)
    module = to_torch(net).eval()
    with torch.no_grad():
        made = module(**{name: torch.from_numpy(net.blobs[name].data.copy()) for name in net.inputs})
    theirs = {name: made[name].numpy() for name in net.outputs}
    return _agreement(differences(run_of(net, theirs), theirs), "PyTorch")


def _agreement(found: list[Difference], whose: str) -> str:
    apart = [one.name for one in found if not one.agrees]
    largest = max((one.relative for one in found), default=0.0)
    if apart:
        raise Error(f"{whose} differs in {', '.join(apart)} by {largest:.1e} of the largest number")
    return f"{whose} agrees within {largest:.0e} of the largest number"
