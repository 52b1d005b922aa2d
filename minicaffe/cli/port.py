"""port: a report on the folder of an old model; --run tries what it proposes."""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from minicaffe.detection.detector import Detector
from minicaffe.detection.inputs import fill_inputs, image_inputs
from minicaffe.detection.task import task_of
from minicaffe.errors import Error, on_one_line, shortened
from minicaffe.files import replacing
from minicaffe.net import Net
from minicaffe.porting.agreement import Difference, difference, differences, run_of, uninformative
from minicaffe.porting.cut import blob_at, cut_at, drop_head, has_head, run_parts
from minicaffe.porting.folder import look, page, text
from minicaffe.porting.folder.matching import Pair
from minicaffe.porting.folder.report import Verdict
from minicaffe.porting.folder.scan import IMAGE, NET, WEIGHTS, Item

from .common import PAGES, check_no_input, check_target, counted
from .groups import ThreadOptions, fork_option
from .options import argument, option, with_options
from .terminal import echo


@dataclass(frozen=True, kw_only=True)
class Options(ThreadOptions):
    folder: str = argument()
    out: str | None = option("-o --out", "Also write the report as a page.", metavar="FILE.html")
    run: bool = option("--run", "Try each net with its weights: forward, to ONNX and back, to PyTorch, cut in two.")
    fork: str | None = fork_option()


@with_options(Options)
def port_command(options: Options) -> None:
    """Report the files in the FOLDER of an old model, which weights fit which net, and which parts are missing.

    The report ends with the next commands. The command runs no program in FOLDER, follows no link, and writes only --out.

    Example:  minicaffe port old_model --run -o report.html
    """
    check_target("--out", options.out, writes=PAGES)
    report = look(options.folder, fork=options.fork or "")
    if options.out:
        kept = (item.path for item in report.items if not item.path.endswith(PAGES))  # an older report may be replaced
        check_no_input("--out", options.out, (str(report.folder / path) for path in kept))
    if not report.of(NET) and not report.of(WEIGHTS):
        echo(text(report))
        raise Error(f"{options.folder}: {report.missing[0]}")
    if options.run:
        image = next(iter(report.of(IMAGE)), None)
        tried = try_all(report.best, report.folder, image)
        report.verdicts = list(counted(tried, "trials", len(TRIALS) * len(report.best)))
    echo(text(report))
    if options.out:
        with replacing(options.out) as temporary:
            Path(temporary).write_text(page(report), encoding="utf-8")
        echo(f"written: {options.out}")
    if options.run and not report.best:
        raise Error(f"{options.folder}: no weights fit a net, so nothing was tried: see What is missing")
    if failed := sum(verdict.good is False for verdict in report.verdicts):
        raise Error(f"{failed} of {len(report.verdicts)} trials failed")


@dataclass(frozen=True)
class Case:
    """A trial's net with its weights, an image for it, and a folder for its files."""

    net: Net
    photo: Path | None
    folder: Path

    @property
    def model(self) -> Path:
        """The file of the exported model; it exists once the export has run."""
        return self.folder / "model.onnx"

    def fill(self) -> None:
        """Put the image into the first image input, and seeded values into the others."""
        takes = image_inputs(self.net)
        fill_inputs(self.net, {takes[0]: str(self.photo)} if self.photo and takes else {}, seed=1)


class NotTriedError(Exception):
    """The reason why a trial makes no sense."""


def try_all(pairs: list[Pair], folder: Path, image: Item | None) -> Iterator[Verdict]:
    """Try each pair on an image of the folder, or on generated inputs; yield a Verdict for each of TRIALS."""
    for pair in pairs:
        net = pair.made
        assert net is not None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            net.copy_from(folder / pair.weights.path)
        with tempfile.TemporaryDirectory() as written:
            case = Case(net, folder / image.path if image else None, Path(written))
            for what, (packages, trial) in TRIALS.items():
                if lacking := [name for name in packages if find_spec(name) is None]:
                    yield Verdict(pair, what, None, f"{', '.join(lacking)} is not installed")
                else:
                    yield _tried(pair, what, trial, case)


def _tried(pair: Pair, what: str, trial: Callable[[Case], str], case: Case) -> Verdict:
    start = time.perf_counter()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            says, good = trial(case), True
    except NotTriedError as reason:
        return Verdict(pair, what, None, str(reason))
    except (Error, ImportError, MemoryError, RuntimeError) as error:  # RuntimeError: PyTorch's, also for too little memory
        says, good = shortened(on_one_line(str(error) or "out of memory")), False
    return Verdict(pair, what, good, f"{says} ({time.perf_counter() - start:.1f} s)")


def _forward(case: Case) -> str:
    if case.photo and task_of(case.net).command == "detect" and "rois" not in case.net.inputs:
        found = Detector(case.net, threshold=0.5)(case.photo)
        best = f", the best {found.scores[0]:.3f}" if len(found) else ""
        return f"{len(found)} detections with a score of at least 0.5 on {case.photo.name}{best}"
    case.fill()
    outputs = case.net.forward()
    odd = [name for name, array in outputs.items() if not np.isfinite(array).all()]
    if odd:
        raise Error(f"NaN or infinite values in {', '.join(odd)}")
    shapes = ", ".join(f"{name} {'x'.join(map(str, array.shape))}" for name, array in outputs.items())
    return f"{shapes}, all finite"


def _onnx(case: Case) -> str:
    from minicaffe.porting.onnx import compare_with_net, export_onnx

    case.fill()
    export_onnx(case.net, case.model)
    return _agreement(compare_with_net(case.net, case.model), "exported; onnxruntime")


def _onnx_back(case: Case) -> str:
    from minicaffe.porting.onnx_import import compare_with_original

    if not case.model.exists():
        raise NotTriedError("no model was exported")
    return _agreement(compare_with_original(case.net, case.model), "the exported model as a Caffe net")


def _source(case: Case) -> str:
    from minicaffe.porting.torch_source import compare_source, write_source

    case.fill()
    path = case.folder / "model.py"
    return _agreement(compare_source(case.net, path, write_source(case.net, path)), "the file, with its gradients,")


def _module(case: Case) -> str:
    import torch

    from minicaffe.torch import to_torch

    case.fill()
    net = case.net
    module = to_torch(net).eval()
    with torch.no_grad():
        made = module(**{name: torch.from_numpy(net.blobs[name].data.copy()) for name in net.inputs})
    theirs = {name: made[name].numpy() for name in net.outputs}
    return _agreement(differences(run_of(net, theirs), theirs), "PyTorch")


def _cut(case: Case) -> str:
    net = case.net
    case.fill()
    net.reshape()
    middle = blob_at(net, 0.5)
    if has_head(net):
        place, parts = "without its head", drop_head(net)
    elif middle:
        place, parts = f"at {middle}", cut_at(net, middle)
    else:
        raise NotTriedError("there is no blob between its inputs and its outputs")
    inputs = {name: net.blobs[name].data.copy() for name in net.inputs}
    made = run_parts(parts, inputs)
    net.forward()
    return _agreement([difference(name, net.blobs[name].data, made[name]) for name in net.outputs], f"cut {place}; joined, it")


def _agreement(found: list[Difference], whose: str) -> str:
    apart = [one.name for one in found if not one.agrees]
    largest = max((one.relative for one in found), default=0.0)
    if apart:
        raise Error(f"{whose} differs in {', '.join(apart)} by {largest:.1e} of the largest number")
    if reason := uninformative(found):
        raise Error(reason)
    return f"{whose} agrees within {largest:.0e} of the largest number" if largest else f"{whose} gives the same numbers"


TRIALS: dict[str, tuple[tuple[str, ...], Callable[[Case], str]]] = {
    "forward": ((), _forward),
    "ONNX": (("onnx", "onnxruntime"), _onnx),
    "ONNX and back": (("onnx", "onnxruntime"), _onnx_back),
    "PyTorch source": (("torch", "safetensors"), _source),
    "PyTorch module": (("torch",), _module),
    "cut in two": ((), _cut),
}
"""In this order: the packages that each needs, and what it does."""
