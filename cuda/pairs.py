"""The addresses that an elementwise kernel reads and writes, which are equal in place."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from minicaffe.blob import DeviceArray


def data_pair(x: DeviceArray, y: DeviceArray) -> tuple[int, int]:
    """x's data to read, and y's to overwrite; y may be x."""
    if x is y:
        return (x.device_data("update"),) * 2
    return x.device_data("read"), y.device_data("write")


def diff_pair(dy: DeviceArray, dx: DeviceArray) -> tuple[int, int]:
    """dy's diff to read, and dx's to overwrite; dx may be dy."""
    if dx is dy:
        return (dy.device_diff("update"),) * 2
    return dy.device_diff("read"), dx.device_diff("write")
