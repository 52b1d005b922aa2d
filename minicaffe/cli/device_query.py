"""minicaffe device-query"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import numpy as np

from minicaffe.cuda.device import installed_gpus
from minicaffe.errors import DeviceError
from minicaffe.threads import available_cores
from minicaffe.version import __version__

from .groups import use_device
from .options import option, with_options
from .terminal import echo

PACKAGES = ("numpy", "protobuf", "pillow", "h5py", "lmdb")
VARIABLES = ("MINICAFFE_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True, kw_only=True)
class Options:
    gpu: str | None = option("--gpu", "Fail unless this GPU is present: its number, or all.", metavar="ID")


@with_options(Options)
def command(options: Options) -> None:
    """Show what nets run on here: GPUs, CPU, cores, NumPy's BLAS, versions.

    If no GPU is found, `minicaffe doctor` says what is missing.

    Example:  minicaffe device-query
    """
    use_device(None, options.gpu)
    facts = {
        "GPU": "; ".join(gpu_facts()),
        "CPU": cpu_name(),
        "cores": f"{available_cores()} of {os.cpu_count()} for this process",
        "BLAS": blas_name(numpy_config()),
        "threads": ", ".join(f"{name}={os.environ[name]}" for name in VARIABLES if name in os.environ) or "BLAS's own choice",
        "system": platform.platform(),
        "Python": platform.python_version(),
        "minicaffe": __version__,
        **{name: version(name) for name in PACKAGES},
    }
    for name, fact in facts.items():
        echo(f"{name + ':':<11}{fact}")


def gpu_facts() -> list[str]:
    """A line per GPU, or the reason why there is none."""
    try:
        return [str(gpu) for gpu in installed_gpus()]
    except DeviceError as error:
        return [str(error)]


def cpu_name() -> str:
    """The processor's name, from /proc/cpuinfo if it exists."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    except OSError:
        names = []
    return next(iter(names), "") or platform.processor() or platform.machine()


def numpy_config() -> Mapping[str, Any]:
    """NumPy's build configuration; {} if this NumPy cannot give it as a dictionary (before 1.26)."""
    try:
        return np.show_config(mode="dicts") or {}
    except TypeError:
        return {}


def blas_name(config: Mapping[str, Any]) -> str:
    """The BLAS that NumPy was built with: "scipy-openblas 0.3.27"."""
    blas = (config.get("Build Dependencies") or {}).get("blas") or {}
    return f"{blas.get('name', 'unknown')} {blas.get('version', '')}".strip()


def version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"
