"""Where layers run: the one CPU/GPU setting, which the base class of layers reads."""

from __future__ import annotations

import enum


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
    """Run layers on the GPU: 0, or the one that set_device chose. DeviceError, and the mode stays, where there is none."""
    from .cuda.device import current

    global _gpu
    current()
    _gpu = True


def set_device(device: int) -> None:
    """Choose the GPU that set_mode_gpu uses. DeviceError where there is none of this number."""
    from .cuda.device import choose

    choose(device)
