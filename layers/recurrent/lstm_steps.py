"""The loop of LSTM and Lstm over time, whose gates are those of LSTMUnit.

gates = u[t] + weight_h (cont[t] h[t - 1])        c[t] = cont[t] f c[t - 1] + i g        h[t] = o tanh(c[t])
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minicaffe.blob import Array

from .lstm_unit import activated, lstm_step, lstm_step_gradient


class LstmSteps:
    """T steps of S streams of D units, run forward; it keeps what backward needs.

    first_only: the first stream's h takes the place of every stream's.
    """

    def __init__(self, weight_h: Array, cont: Array, *, first_only: bool = False) -> None:
        self.weight_h, self.cont, self.first_only = weight_h, cont, first_only

    def forward(self, u: Array, start: Sequence[Array], y: Array) -> list[Array]:
        """y (T, S, D) = h after each step, from u (T, S, 4 D) and h and c before the first (S, D). Returns the last two."""
        h, c = start
        self.carried = np.empty_like(y)
        self.gates = np.empty((*y.shape[:2], 4, y.shape[2]), y.dtype)
        self.c = np.empty((len(y) + 1, *y.shape[1:]), y.dtype)  # before each step, and after the last
        self.c[0] = c
        for t in range(len(u)):
            np.multiply(self.cont[t, :, None], h[:1] if self.first_only else h, out=self.carried[t])
            # cont 0 forgets twice: h in carried, c through f's factor
            self.gates[t] = activated(u[t] + self.carried[t] @ self.weight_h.T, self.cont[t])
            lstm_step(self.gates[t], self.c[t], c=self.c[t + 1], h=y[t])
            h = y[t]  # read once, before the net goes on: the top may be overwritten later
        return [h, self.c[-1]]

    def backward(self, dy: Array, *, bound: float = np.inf) -> Array:
        """du (T, S, 4 D) from dy (T, S, D); every number of du is clipped to -bound ... bound before it goes on."""
        steps, streams, units = dy.shape
        du = np.empty((steps, streams, 4 * units), dy.dtype)
        dh = dc = np.zeros((streams, units), dy.dtype)  # nothing comes from the next batch
        for t in reversed(range(steps)):
            du[t], dc = lstm_step_gradient(self.gates[t], self.c[t], self.c[t + 1], dc=dc, dh=dy[t] + dh)
            if bound < np.inf:
                np.clip(du[t], -bound, bound, out=du[t])
            dh = self.cont[t, :, None] * (du[t] @ self.weight_h)  # dc has cont in it, through f
            if self.first_only:
                dh = np.concatenate([dh.sum(axis=0, keepdims=True), np.zeros_like(dh[1:])])
        return du
