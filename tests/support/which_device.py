"""Which device a test in GPU mode has: a GPU, or the CPU test device."""

from __future__ import annotations

import gc

import pytest

from minicaffe.cuda import graph
from minicaffe.cuda.device import Device, current


def is_test_device() -> bool:
    """Return whether it is the CPU test device."""
    return current().name.startswith("CPU test device")


def skip_on_gpu(reason: str) -> None:
    """Skip the test unless the device is the test device."""
    if not is_test_device():
        pytest.skip(reason)


def release_all_memory(gpu: Device) -> None:
    """Release the memory of other tests' nets, too: the collector frees them, and running out of memory drops their graphs."""
    gc.collect()
    graph.settings_changed()
    gpu.release_memory()
