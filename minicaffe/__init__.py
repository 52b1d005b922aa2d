"""minicaffe: Caffe's Blob / Layer / Net engine in Python.

    import minicaffe
    net = minicaffe.Net("test.prototxt", minicaffe.TEST, weights="net.caffemodel")
    out = net.forward(data=image)

`import minicaffe as caffe` runs pycaffe's scripts: io, draw, NetSpec, layers (L), params (P), Classifier, Detector and the
rest of pycaffe are imported at first use. For the command line see `minicaffe --help`.
"""

from __future__ import annotations

import importlib.util
import os
from typing import TYPE_CHECKING, Any

for _name in ("layers", "proto", "cuda"):
    if os.path.isfile(os.path.join(os.path.dirname(__file__), _name)):
        raise ImportError(
            f"minicaffe/{_name} is a link that git wrote as a text file: make the checkout anew with"
            " `git clone -c core.symlinks=true` (on Windows in Developer Mode), or install a release"
        )

from .aliases import PUBLIC, serve_as_caffe, serve_public_names
from .version import __version__

__all__ = [
    "NCCL",
    "TEST",
    "TRAIN",
    "AdaDeltaSolver",
    "AdaGradSolver",
    "AdamSolver",
    "Blob",
    "Classifier",
    "Detector",
    "DeviceError",
    "Error",
    "Film",
    "GradientError",
    "Layer",
    "LayerError",
    "NesterovSolver",
    "Net",
    "NetSpec",
    "Phase",
    "PrototxtError",
    "RMSPropSolver",
    "SGDSolver",
    "Timer",
    "Tracer",
    "Validation",
    "WeightsError",
    "__version__",
    "allow_module",
    "allow_path",
    "check_finite",
    "check_gradient",
    "classifier",
    "compare",
    "coord_map",
    "detection",
    "detector",
    "draw",
    "explain",
    "export_onnx",
    "get_num_threads",
    "get_solver",
    "has_nccl",
    "init_log",
    "io",
    "layer_type_list",
    "log",
    "net_spec",
    "params",
    "pycaffe",
    "receptive_field",
    "register",
    "serve_as_caffe",
    "set_device",
    "set_mode_cpu",
    "set_mode_gpu",
    "set_multiprocess",
    "set_num_threads",
    "set_random_seed",
    "set_solver_count",
    "set_solver_rank",
    "solver_count",
    "solver_rank",
    "summary",
    "to_proto",
]

if TYPE_CHECKING:
    from . import detection, pycaffe
    from .blob import Blob
    from .errors import DeviceError, Error, LayerError, PrototxtError, WeightsError
    from .files import allow_path
    from .layer import Layer
    from .layers import register
    from .layers.python.python import allow_module
    from .mode import TEST, TRAIN, Phase, set_device, set_mode_cpu, set_mode_gpu
    from .net import Net
    from .porting.comparison import compare
    from .porting.onnx import export_onnx
    from .pycaffe import (
        NCCL,
        Timer,
        classifier,
        coord_map,
        detector,
        has_nccl,
        init_log,
        io,
        layer_type_list,
        log,
        net_spec,
        set_multiprocess,
        set_solver_count,
        set_solver_rank,
        solver_count,
        solver_rank,
    )
    from .pycaffe.classifier import Classifier
    from .pycaffe.detector import Detector
    from .pycaffe.net_spec import NetSpec, params, to_proto
    from .rng import set_random_seed
    from .threads import get_num_threads, set_num_threads
    from .tracing import draw, summary
    from .tracing.explanations import explain
    from .tracing.film import Film
    from .tracing.receptive_fields import receptive_field
    from .tracing.tracer import Tracer
    from .training.finite import check_finite
    from .training.gradient_check import GradientError, check_gradient
    from .training.solver import SGDSolver
    from .training.solvers import AdaDeltaSolver, AdaGradSolver, AdamSolver, NesterovSolver, RMSPropSolver, get_solver
    from .training.validation import Validation

_HOMES = {
    "Film": "tracing.film",
    "Tracer": "tracing.tracer",
    "Validation": "training.validation",
    "Classifier": "pycaffe.classifier",
    "Detector": "pycaffe.detector",
    "SGDSolver": "training.solver",
    "allow_module": "layers.python.python",
    "allow_path": "files",
    "check_finite": "training.finite",
    "compare": "porting.comparison",
    "explain": "tracing.explanations",
    "export_onnx": "porting.onnx",
    "receptive_field": "tracing.receptive_fields",
    "register": "layers",
    "set_random_seed": "rng",
    **{name: name.lower() for name in ("Blob", "Layer", "Net")},
    **dict.fromkeys(("DeviceError", "Error", "LayerError", "PrototxtError", "WeightsError"), "errors"),
    **dict.fromkeys(("GradientError", "check_gradient"), "training.gradient_check"),
    **dict.fromkeys(("TEST", "TRAIN", "Phase", "set_device", "set_mode_cpu", "set_mode_gpu"), "mode"),
    **dict.fromkeys(("get_num_threads", "set_num_threads"), "threads"),
    **dict.fromkeys(("NetSpec", "params", "to_proto"), "pycaffe.net_spec"),
    **dict.fromkeys(("NCCL", "Timer", "has_nccl", "init_log", "layer_type_list", "log"), "pycaffe"),
    **dict.fromkeys(("set_multiprocess", "set_solver_count", "set_solver_rank", "solver_count", "solver_rank"), "pycaffe"),
    **dict.fromkeys(("AdaDeltaSolver", "AdaGradSolver", "AdamSolver", "NesterovSolver", "RMSPropSolver"), "training.solvers"),
    "get_solver": "training.solvers",
}
"""The public names, and their modules: each is imported at its first use, so that a command loads what it needs."""

serve_public_names()


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    elif name in PUBLIC:  # not by find_spec: a finder must not import, because it runs under a global lock
        value = importlib.import_module(f"{__name__}.{PUBLIC[name]}")
    elif name.isidentifier() and not name.startswith("_") and importlib.util.find_spec(f"{__name__}.{name}"):
        value = importlib.import_module(f"{__name__}.{name}")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *PUBLIC, *_HOMES})
