"""Hooks: functions called before and after each layer's forward and backward (by the tracer, the timer, debug_info).

debug_info logs the mean absolute value of every blob and weight, layer by layer, as lines like Caffe's. Source: Caffe's net.cpp
(ForwardDebugInfo, BackwardDebugInfo). The lines go to the logger "minicaffe.solver".
"""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .layer import Layer

if TYPE_CHECKING:
    from .net import Net

Hook = Callable[[int], None]
"""Called with a layer's index, before or after its forward or backward."""


class Hooked:
    """The part of Net that holds and calls hooks."""

    def __init__(self) -> None:
        self._hooks: defaultdict[str, list[Hook]] = defaultdict(list)

    def before_forward(self, hook: Hook) -> Hook:
        """Call hook(layer index) before each layer's forward."""
        return self._hook("before_forward", hook)

    def after_reshape(self, hook: Hook) -> Hook:
        """Call hook(layer index) in each layer's forward, after its reshape."""
        return self._hook("after_reshape", hook)

    def after_forward(self, hook: Hook) -> Hook:
        """Call hook(layer index) after each layer's forward."""
        return self._hook("after_forward", hook)

    def before_backward(self, hook: Hook) -> Hook:
        """Call hook(layer index) before each layer's backward."""
        return self._hook("before_backward", hook)

    def after_backward(self, hook: Hook) -> Hook:
        """Call hook(layer index) after each layer's backward."""
        return self._hook("after_backward", hook)

    def remove_hook(self, hook: Hook) -> None:
        """Remove a hook from everywhere it was added."""
        for hooks in self._hooks.values():
            while hook in hooks:
                hooks.remove(hook)

    @property
    def forward_is_watched(self) -> bool:
        """True if a hook is called between the layers of a forward."""
        # A chain runs several layers as one step, without calls in between.
        return any(self._hooks[when] for when in ("before_forward", "after_reshape", "after_forward"))

    @property
    def backward_is_watched(self) -> bool:
        """True if a hook is called between the layers of a backward."""
        return any(self._hooks[when] for when in ("before_backward", "after_backward"))

    def _hook(self, when: str, hook: Hook) -> Hook:
        self._hooks[when].append(hook)
        return hook

    def _call(self, when: str, i: int) -> None:
        for hook in tuple(self._hooks[when]):  # a copy, because a hook may remove itself
            hook(i)


logger = logging.getLogger("minicaffe.solver")


@contextmanager
def debug_info(net: Net, wanted: bool = True, *, whole: bool = True) -> Iterator[None]:
    """In the block, log each layer's forward and backward; with wanted False, nothing.

    whole: a backward that reaches the first layer ends with a line on all parameters.
    """
    if not wanted:
        yield
        return
    forward = net.after_forward(lambda i: _forward_lines(net, i))
    backward = net.after_backward(lambda i: _backward_lines(net, i, whole))
    try:
        yield
    finally:
        net.remove_hook(forward)
        net.remove_hook(backward)


def mean_abs(array: NDArray[Any]) -> float:
    """Return the mean of the absolute values; 0 for an empty array."""
    return float(np.abs(array).mean(dtype=np.float64)) if array.size else 0.0


def display_name(layer: Layer, i: int) -> str:
    """Return a learnable blob's name in the log: that of its `param { name }`, else its number."""
    specs = layer.param.param
    return specs[i].name if i < len(specs) and specs[i].name else str(i)


def _forward_lines(net: Net, i: int) -> None:
    layer = net.layers[i]
    for name in net.nodes[i].top_names:
        logger.info("    [Forward] Layer %s, top blob %s data: %g", layer.name, name, mean_abs(net.blobs[name].data))
    for j, blob in enumerate(layer.blobs):
        logger.info("    [Forward] Layer %s, param blob %s data: %g", layer.name, display_name(layer, j), mean_abs(blob.data))


def _backward_lines(net: Net, i: int, whole: bool) -> None:
    layer = net.layers[i]
    if net.nodes[i].needs_backward:
        for name, needs in zip(net.nodes[i].bottom_names, net.nodes[i].bottom_needs, strict=True):
            if needs:
                logger.info(
                    "    [Backward] Layer %s, bottom blob %s diff: %g", layer.name, name, mean_abs(net.blobs[name].diff)
                )
        # Caffe's log numbers parameter blobs even if they have names.
        for j, (blob, needs) in enumerate(zip(layer.blobs, layer.param_propagate_down, strict=True)):
            if needs:
                logger.info("    [Backward] Layer %s, param blob %d diff: %g", layer.name, j, mean_abs(blob.diff))
    if i == 0 and whole:
        _all_lines(net)


def _all_lines(net: Net) -> None:
    blobs = net.learnable_params
    both = [blob.data for blob in blobs], [blob.diff for blob in blobs]
    l1 = [sum(float(np.abs(array).sum(dtype=np.float64)) for array in arrays) for arrays in both]
    l2 = [math.sqrt(sum(float(np.vdot(array, array)) for array in arrays)) for arrays in both]
    logger.info("    [Backward] All net params (data, diff): L1 norm = (%g, %g); L2 norm = (%g, %g)", *l1, *l2)
