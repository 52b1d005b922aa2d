"""minicaffe: Caffe's Blob / Layer / Net engine in Python.

    import minicaffe
    net = minicaffe.Net("test.prototxt", minicaffe.TEST, weights="net.caffemodel")
    out = net.forward(data=image)

`import minicaffe as caffe` serves pycaffe's scripts. The command line is `minicaffe --help`.
"""

from __future__ import annotations

from .blob import Blob
from .errors import DeviceError, Error, LayerError, PrototxtError, WeightsError
from .gradient_check import GradientError, check_gradient
from .layer import Layer
from .layers import register
from .layers.python import allow_module
from .mode import TEST, TRAIN, Phase, set_device, set_mode_cpu, set_mode_gpu
from .net import Net
from .rng import set_random_seed
from .solver import SGDSolver
from .solvers import AdaDeltaSolver, AdaGradSolver, AdamSolver, NesterovSolver, RMSPropSolver, get_solver
from .version import __version__

__all__ = [
    "TEST",
    "TRAIN",
    "AdaDeltaSolver",
    "AdaGradSolver",
    "AdamSolver",
    "Blob",
    "DeviceError",
    "Error",
    "GradientError",
    "Layer",
    "LayerError",
    "NesterovSolver",
    "Net",
    "Phase",
    "PrototxtError",
    "RMSPropSolver",
    "SGDSolver",
    "WeightsError",
    "__version__",
    "allow_module",
    "check_gradient",
    "get_solver",
    "register",
    "set_device",
    "set_mode_cpu",
    "set_mode_gpu",
    "set_random_seed",
]
