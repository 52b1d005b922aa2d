"""CTCGreedyDecoder: the best path. Source: Graves et al., Connectionist Temporal Classification (ICML 2006)."""

from __future__ import annotations

import torch


def ctc_greedy(
    scores: torch.Tensor, indicators: torch.Tensor, blank: int, merge: bool = True
) -> tuple[torch.Tensor, torch.Tensor]:
    """scores (T, N, C): of each time step the likeliest class, repeats merged, blanks dropped -> labels (N, T, 1, 1), -1 after
    the last, and the sum of the best scores, negated (N, 1, 1, 1). indicators (T, N): a 0 ends the sequence before it."""
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
