"""Layers of sequences, and the reader of weights.

LSTM is Caffe's, caffe-lstm's and CTPN's (Caffe's lstm_layer.cpp); RNN Caffe's rnn_layer.cpp; lstm_unit lstm_unit_layer.cpp;
ctc_greedy the best path of Graves et al., Connectionist Temporal Classification (ICML 2006).
"""

from __future__ import annotations

import json
from pathlib import Path

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


def lstm_unit(c: torch.Tensor, gates: torch.Tensor, cont: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the next c and h (1, S, units), from c, gates (1, S, 4 units) and cont (1, S), 0 where a sequence begins."""
    i, f, o, g = gates.chunk(4, 2)
    c = cont.detach()[..., None] * f.sigmoid() * c + i.sigmoid() * g.tanh()
    return c, o.sigmoid() * c.tanh()


def ctc_greedy(
    scores: torch.Tensor, indicators: torch.Tensor, blank: int, merge: bool = True
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return labels (N, T, 1, 1), -1 after the last, and the negated sum of the best scores (N, 1, 1, 1).

    The labels are the likeliest class of each time step of scores (T, N, C), repeats merged, blanks dropped. indicators (T, N):
    a 0 ends the sequence before it.
    """
    scores = scores.detach()
    steps, sequences = scores.shape[:2]
    best, classes = scores.reshape(steps, sequences, -1).max(2)
    labels, sums = scores.new_full((sequences, steps, 1, 1), -1), scores.new_zeros(sequences, 1, 1, 1)
    for n in range(sequences):
        ends = (indicators.reshape(steps, sequences)[1:, n] < 0.5).nonzero()
        length = int(ends[0]) + 1 if len(ends) else steps
        path = classes[:length, n]
        spelt = torch.unique_consecutive(path) if merge else path
        spelt = spelt[spelt != blank]
        labels[n, : len(spelt), 0, 0] = spelt.to(labels.dtype)
        sums[n] = -best[:length, n].sum()
    return labels, sums


def read_safetensors(path: str) -> dict[str, torch.Tensor]:
    """Read the tensors of a safetensors file: 8 bytes of length, a JSON header, the values."""
    data = bytearray(Path(path).read_bytes())
    start = 8 + int.from_bytes(data[:8], "little")
    tensors = {}
    for name, info in json.loads(data[8:start]).items():
        if name != "__metadata__":
            first, end = (start + offset for offset in info["data_offsets"])
            kind = {"F32": torch.float32, "F64": torch.float64}[info["dtype"]]
            count = (end - first) // kind.itemsize
            flat = torch.frombuffer(data, dtype=kind, count=count, offset=first) if count else torch.zeros(0, dtype=kind)
            tensors[name] = flat.reshape(info["shape"])
    return tensors
