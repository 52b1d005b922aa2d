"""RNN. Source: Caffe's rnn_layer.cpp."""

from __future__ import annotations

import torch
from torch import nn


class RNN(nn.Module):
    """tanh units that see their own last output, and tanh units on them: x (T, S, ...) -> y (T, S, units), and the last h.

    cont (T, S) is 0 where a sequence begins, else 1. h: the first state (1, S, units), 0 without it.
    """

    def __init__(self, inputs: int, units: int, static: int = 0) -> None:
        super().__init__()
        self.units = units
        self.weight_x = nn.Parameter(torch.empty(units, inputs))
        self.bias = nn.Parameter(torch.empty(units))
        if static:
            self.weight_static = nn.Parameter(torch.empty(units, static))
        self.weight_h = nn.Parameter(torch.empty(units, units))
        self.weight_y = nn.Parameter(torch.empty(units, units))
        self.bias_y = nn.Parameter(torch.empty(units))

    def forward(
        self, x: torch.Tensor, cont: torch.Tensor, static: torch.Tensor | None = None, h: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        steps = x.flatten(2) @ self.weight_x.T + self.bias
        if static is not None:
            steps = steps + static.flatten(1) @ self.weight_static.T
        last = x.new_zeros(x.shape[1], self.units) if h is None else h[0].detach()
        states = []
        for step, goes_on in zip(steps, cont.detach()[..., None]):
            last = torch.tanh(step + goes_on * last @ self.weight_h.T)
            states.append(last)
        return torch.tanh(torch.stack(states) @ self.weight_y.T + self.bias_y), last[None]
