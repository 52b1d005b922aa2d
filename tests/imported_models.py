"""Import PyTorch's models as Caffe nets, through ONNX, and print how far their outputs are from PyTorch's.

    python tests/imported_models.py [--match TEXT] [--brief]

torchvision's and timm's classifiers with seeded random weights, from both of PyTorch's exporters. --brief: ten of
torchvision's, two of them from the newer exporter. The exit status is 1 where an output differs by more than 1e-4 of its
largest number.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from minicaffe.porting.agreement import Difference, difference
from minicaffe.porting.onnx_import import import_onnx

BRIEF = (
    ("resnet18", 64), ("vgg11_bn", 224), ("alexnet", 224), ("squeezenet1_1", 64), ("densenet121", 64), ("googlenet", 64),
    ("mobilenet_v2", 64), ("mobilenet_v3_small", 64), ("shufflenet_v2_x0_5", 64), ("mnasnet0_5", 64),
)  # fmt: skip
"""torchvision's, and the side of the image."""
MORE = (
    ("resnet50", 64), ("wide_resnet50_2", 64), ("resnext50_32x4d", 64), ("inception_v3", 96), ("regnet_y_400mf", 64),
    ("regnet_x_400mf", 64), ("efficientnet_b0", 64), ("mobilenet_v3_large", 96), ("segmentation.lraspp_mobilenet_v3_large", 96),
    ("segmentation.fcn_resnet50", 64), ("segmentation.deeplabv3_resnet50", 64),
)  # fmt: skip
TIMM = (
    ("tf_efficientnet_lite0", 64), ("cspdarknet53", 64), ("darknet53", 64), ("ghostnet_100", 64), ("repvgg_a0", 64),
    ("hrnet_w18_small", 64), ("dla34", 64), ("ese_vovnet19b_slim", 64), ("legacy_seresnet18", 64), ("res2net50_26w_4s", 64),
    ("mobilenetv1_100", 64), ("xception41", 96), ("dpn68", 64), ("resnet18d", 64), ("skresnet18", 64),
)  # fmt: skip
TWICE = ("resnet18", "mobilenet_v3_small")
"""Of BRIEF, those that the newer exporter writes too."""


def torch_cases(brief: bool) -> Iterator[tuple[str, Callable[[Path], list[Difference]]]]:
    for name, side in BRIEF + (() if brief else MORE):
        yield f"torchvision {name}", lambda path, n=name, s=side: from_torch(path, torchvision_model(n), s)
    for name, side in () if brief else TIMM:
        yield f"timm {name}", lambda path, n=name, s=side: from_torch(path, timm_model(n), s)
    for name, side in BRIEF if not brief else [case for case in BRIEF if case[0] in TWICE]:
        again = f"torchvision {name}, torch.export"
        yield again, lambda path, n=name, s=side: from_torch(path, torchvision_model(n), s, dynamo=True)


def torchvision_module() -> Any:
    """torchvision also where its C++ operators do not load, as PyPI's beside a PyTorch without CUDA: the models need none, but
    `import torchvision` two that are declared."""
    import torch

    with contextlib.suppress(ImportError, RuntimeError):
        import torchvision

        return torchvision
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]
    for operator in ("nms", "qnms"):
        with contextlib.suppress(RuntimeError):  # declared already
            DECLARED.append(torch.library.Library("torchvision", "FRAGMENT"))
            DECLARED[-1].define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    import torchvision

    return torchvision


DECLARED: list[Any] = []
"""Libraries of operators, which go when they are deleted."""


def torchvision_model(name: str) -> Any:
    module: Any = torchvision_module().models
    for part in name.split("."):
        module = getattr(module, part)
    own = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
    segments = {"weights_backbone": None} if name.startswith("segmentation") else {}
    return module(weights=None, **own, **segments)


def timm_model(name: str) -> Any:
    torchvision_module()
    import timm

    return timm.create_model(name, pretrained=False)


def randomized(model: Any) -> Any:
    """Return the model with other statistics and scales in its BatchNorms than those of a new one."""
    import torch

    torch.manual_seed(1)
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 1.5)
            module.weight.data.uniform_(0.7, 1.3)
            module.bias.data.normal_(0, 0.1)
    return model.eval()


def from_torch(path: Path, model: Any, side: int, *, dynamo: bool = False) -> list[Difference]:
    """Export a Module, import it, and compare the outputs of both."""
    import torch

    model, x = randomized(model), torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(2))
    named: dict[str, Any] = {"input_names": ["data"]}
    if not dynamo:  # BatchNorm as it is, and a dynamic batch
        named |= {"dynamic_axes": {"data": {0: "n"}}, "do_constant_folding": False}
        named["training"] = torch.onnx.TrainingMode.PRESERVE
    with torch.no_grad(), warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        torch.onnx.export(model, (x,), path, dynamo=dynamo, **named)
        made = model(x)
    net = import_onnx(path, {"data": x.shape} if dynamo else None).net()
    net.blobs["data"].reshape(tuple(x.shape))
    net.blobs["data"].data[...] = x.numpy()
    net.forward()
    outputs = list(made.values()) if isinstance(made, dict) else [made]
    blobs = [net.blobs[name].data for name in onnx_outputs(path)]
    return [difference(f"output {i}", y.numpy(), blob) for i, (y, blob) in enumerate(zip(outputs, blobs, strict=True))]


def onnx_outputs(path: Path) -> list[str]:
    import onnx

    return [output.name for output in onnx.load(path, load_external_data=False).graph.output]


def tried(name: str, case: Callable[[Path], list[Difference]], folder: Path) -> bool:
    """Run a case and print a line; whether all its outputs agree."""
    start = time.perf_counter()
    try:
        found = case(folder / "model.onnx")
    except Exception as error:  # minicaffe's and PyTorch's of any type
        print(f"{name}: {type(error).__name__}: {str(error)[:2000]}", flush=True)
        return False
    worst = max((one.relative for one in found), default=np.inf)
    agree = bool(found) and all(one.agrees for one in found)
    verdict = "" if agree else "  DIFFERS"
    print(f"{name}: {len(found)} outputs, relative {worst:.1e}{verdict} ({time.perf_counter() - start:.1f} s)", flush=True)
    return agree


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--match", default="", help="only models whose name holds this text")
    parser.add_argument("--brief", action="store_true", help="a part of them")
    given = parser.parse_args(arguments)
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    try:
        torchvision_module()
    except ImportError as error:
        print(f"skipped: {error}")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        verdicts = [tried(name, case, Path(folder)) for name, case in torch_cases(given.brief) if given.match in name]
    print(f"PyTorch models imported: {verdicts.count(True)} of {len(verdicts)} agree to 1e-4")
    return 0 if all(verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
