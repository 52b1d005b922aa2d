"""Where layers run: the one CPU/GPU setting, which the base class of layers reads."""

from __future__ import annotations

import enum

from .errors import DeviceError


class Phase(enum.IntEnum):
    """TRAIN or TEST; an int for pycaffe's scripts, and str() is its name, for those of caffe-fast-rcnn."""

    TRAIN = 0
    TEST = 1

    def __str__(self) -> str:
        return self.name


TRAIN = Phase.TRAIN
TEST = Phase.TEST

_gpu = False


def gpu_mode() -> bool:
    """Whether layers run their GPU methods."""
    return _gpu


def set_mode_cpu() -> None:
    """Run layers on the CPU (the default)."""
    global _gpu
    _gpu = False


def set_mode_gpu() -> None:
    """Run layers on the GPU. This version has no GPU kernels yet: DeviceError."""
    raise DeviceError("this version of minicaffe has no GPU kernels; run on the CPU (set_mode_cpu, the default)")


def set_device(device: int) -> None:
    """Choose the GPU for set_mode_gpu. This version has no GPU kernels yet: DeviceError."""
    raise DeviceError(f"this version of minicaffe has no GPU kernels, so device {device} cannot be used")
