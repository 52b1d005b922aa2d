"""How long each layer takes, measured through a net's hooks."""

from __future__ import annotations

import time

from .net import Net


class Times:
    """Milliseconds of each layer's forward and backward, by the net's hooks."""

    def __init__(self, net: Net) -> None:
        self.forward = [0.0] * len(net.layers)
        self.backward = [0.0] * len(net.layers)
        self._start = 0.0
        net.before_forward(self._begin)
        net.before_backward(self._begin)
        net.after_forward(lambda i: self._end(self.forward, i))
        net.after_backward(lambda i: self._end(self.backward, i))

    def _begin(self, _: int) -> None:
        self._start = time.perf_counter()

    def _end(self, times: list[float], i: int) -> None:
        times[i] += (time.perf_counter() - self._start) * 1e3
