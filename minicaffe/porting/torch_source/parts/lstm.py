"""LSTM, as Caffe has it and as caffe-lstm and CTPN have it. Source: Caffe's lstm_layer.cpp."""

from __future__ import annotations

import torch
from torch import nn


class LSTM(nn.Module):
    """Long short-term memory: x (T, S, ...), T steps of S streams -> y (T, S, units), and the last h and c (1, S, units).

    cont (T, S) is 0 where a sequence begins, else 1; None: at the first step. h, c: the first states, 0 without them.
    first_only: every stream goes on from the h of the first one.
    """

    def __init__(self, inputs: int, units: int, static: int = 0, first_only: bool = False) -> None:
        super().__init__()
        self.units, self.first_only = units, first_only
        self.weight_x = nn.Parameter(torch.empty(4 * units, inputs))
        self.bias = nn.Parameter(torch.empty(4 * units))
        if static:
            self.weight_static = nn.Parameter(torch.empty(4 * units, static))
        self.weight_h = nn.Parameter(torch.empty(4 * units, units))

    def forward(
        self,
        x: torch.Tensor,
        cont: torch.Tensor | None = None,
        static: torch.Tensor | None = None,
        h: torch.Tensor | None = None,
        c: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        steps = x.flatten(2) @ self.weight_x.T + self.bias
        if static is not None:
            steps = steps + static.flatten(1) @ self.weight_static.T
        zeros = x.new_zeros(x.shape[1], self.units)
        last, cell = (zeros if state is None else state[0].detach() for state in (h, c))
        goes_on = x.new_ones(*x.shape[:2], 1) if cont is None else cont.detach()[..., None]
        outputs = []
        for t, step in enumerate(steps):
            before = goes_on[t] * (last[:1] if self.first_only else last)
            i, f, o, g = (step + before @ self.weight_h.T).chunk(4, 1)
            cell = goes_on[t] * f.sigmoid() * cell + i.sigmoid() * g.tanh()
            last = o.sigmoid() * cell.tanh()
            outputs.append(last)
        return torch.stack(outputs), last[None], cell[None]
