"""The time that each layer takes, measured through the net's hooks."""

from __future__ import annotations

import time

from minicaffe.cuda.device import current
from minicaffe.cuda.stream import Stopwatch
from minicaffe.mode import gpu_mode
from minicaffe.net import Net


class Times:
    """Milliseconds of each layer's forward and backward; in GPU mode measured by the device (events)."""

    def __init__(self, net: Net) -> None:
        self._forward = [0.0] * len(net.layers)
        self._backward = [0.0] * len(net.layers)
        self._running: list[tuple[list[float], int, Stopwatch]] = []
        self._start: Stopwatch | float = 0.0
        net.before_forward(self._begin)
        net.before_backward(self._begin)
        net.after_forward(lambda i: self._end(self._forward, i))
        net.after_backward(lambda i: self._end(self._backward, i))

    @property
    def forward(self) -> list[float]:
        """Of each layer, the sum over all passes."""
        self._collect()
        return self._forward

    @property
    def backward(self) -> list[float]:
        """Of each layer, the sum over all passes."""
        self._collect()
        return self._backward

    def _begin(self, _: int) -> None:
        self._start = Stopwatch(current()) if gpu_mode() else time.perf_counter()

    def _end(self, times: list[float], i: int) -> None:
        if isinstance(self._start, Stopwatch):
            self._start.stop()
            self._running.append((times, i, self._start))  # read later: to wait for the event here would stall the GPU
        else:
            times[i] += (time.perf_counter() - self._start) * 1e3

    def _collect(self) -> None:
        running, self._running = self._running, []
        for times, i, watch in running:
            times[i] += watch.milliseconds()
