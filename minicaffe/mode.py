"""The phases, and the CPU/GPU mode, which the base class of layers reads."""

from __future__ import annotations

import enum


class Phase(enum.IntEnum):
    """TRAIN or TEST: an int, as pycaffe's scripts expect. str() gives its name, as scripts of caffe-fast-rcnn expect."""

    TRAIN = 0
    TEST = 1

    def __str__(self) -> str:
        return self.name


TRAIN = Phase.TRAIN
TEST = Phase.TEST

_gpu = False


def gpu_mode() -> bool:
    """Return whether layers run their GPU methods."""
    return _gpu


def set_mode_cpu() -> None:
    """Run layers on the CPU (the default)."""
    global _gpu
    _gpu = False


def set_mode_gpu() -> None:
    """Run layers on the GPU: GPU 0, or the one from `set_device`.

    Raises
    ------
    DeviceError
        There is no usable GPU. The mode is then unchanged.
    """
    from .cuda.device import current

    global _gpu
    current()
    _gpu = True


def set_device(device: int) -> None:
    """Choose the GPU for `set_mode_gpu`.

    Parameters
    ----------
    device : int
        The GPU's number, from 0.

    Raises
    ------
    DeviceError
        There is no GPU with this number.
    """
    from .cuda.device import choose

    choose(device)
