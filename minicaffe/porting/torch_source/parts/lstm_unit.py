"""LSTMUnit: one step. Source: Caffe's lstm_unit_layer.cpp."""

from __future__ import annotations

import torch


def lstm_unit(c: torch.Tensor, gates: torch.Tensor, cont: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The next c and h (1, S, units) from c, the gates (1, S, 4 units) and cont (1, S), 0 where a sequence begins."""
    i, f, o, g = gates.chunk(4, 2)
    c = cont.detach()[..., None] * f.sigmoid() * c + i.sigmoid() * g.tanh()
    return c, o.sigmoid() * c.tanh()
