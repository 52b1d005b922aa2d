"""Scatter: what temporal segment networks' Caffe deals out to all its MPI ranks; in one process, the bottoms themselves.

It undoes Gather, and is as it is here. Source: PSPNet's scatter_layer.cpp (Wang et al., 2016), the same fork's.
"""

from __future__ import annotations

from .gather import Gather


class Scatter(Gather):
    """Each top is the bottom of its place, in the bottom's memory (data and diff).

    bottom[i]: any shapes. top[i]: x[i]. Raises LayerError when there are not as many tops as bottoms.
    """

    type = "Scatter"
