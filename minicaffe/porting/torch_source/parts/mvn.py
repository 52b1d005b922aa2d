"""Caffe's MVN."""

from __future__ import annotations

import torch


def mvn(x: torch.Tensor, axes: tuple[int, ...], eps: float | None = None) -> torch.Tensor:
    """x less its mean over these of its four axes, over its deviation plus eps; without eps the mean alone."""
    x = x.reshape(list(x.shape) + [1] * (4 - x.dim()))
    x = x - x.mean(axes, keepdim=True)
    return x if eps is None else x / (x.square().mean(axes, keepdim=True).sqrt() + eps)
