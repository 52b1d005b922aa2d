"""A check that finds the first layer, pass and blob with NaN or infinity.

    with check_finite(solver.net, lambda: f"iteration {solver.iter}"):
        solver.solve()

Every blob is checked after the layer that writes it, so a layer's inputs are known to be finite. A float64 sum suffices for
float32 numbers, because it is finite if and only if they all are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minicaffe.errors import LayerError
from minicaffe.net import Net


@contextmanager
def check_finite(net: Net, when: Callable[[], str] = lambda: "") -> Iterator[None]:
    """In the block, let the net raise LayerError at the first layer whose top, gradient or weight is not finite.

    when: the beginning of the message, such as the iteration. Weights are checked before the layer's forward, which identifies
    an update as the cause.
    """
    hooks = [
        net.before_forward(lambda i: _weights(net, i, when())),
        net.after_forward(lambda i: _tops(net, i, when())),
        net.after_backward(lambda i: _gradients(net, i, when())),
    ]
    try:
        yield
    finally:
        for hook in hooks:
            net.remove_hook(hook)


def is_finite(array: NDArray[Any]) -> bool:
    """Return whether no element is NaN or infinite."""
    if array.dtype == np.float64:
        return bool(np.isfinite(array).all())
    with np.errstate(invalid="ignore"):  # inf - inf
        return bool(np.isfinite(array.sum(dtype=np.float64)))


def _weights(net: Net, i: int, when: str) -> None:
    for j, blob in enumerate(net.layers[i].blobs):
        _look(net, i, when, f"its weight {j}", blob.read_data(), "since the last update (or as loaded)")


def _tops(net: Net, i: int, when: str) -> None:
    node = net.nodes[i]
    origin = "made by its forward from finite bottoms" if node.bottoms else "as given"
    for name, blob in zip(node.top_names, node.tops, strict=True):
        _look(net, i, when, f'its top "{name}"', blob.read_data(), origin)


def _gradients(net: Net, i: int, when: str) -> None:
    node = net.nodes[i]
    if not node.needs_backward:
        return
    made = "made by its backward from finite values"
    for name, blob, needs in zip(node.bottom_names, node.bottoms, node.bottom_needs, strict=True):
        if needs:
            _look(net, i, when, f'the diff of its bottom "{name}"', blob.read_diff(), made)
    for j, blob in enumerate(node.layer.blobs):
        _look(net, i, when, f"the diff of its weight {j}", blob.read_diff(), made)


def _look(net: Net, i: int, when: str, what: str, array: NDArray[Any], origin: str) -> None:
    """Raise LayerError if array is not finite."""
    if is_finite(array):
        return
    bad = ~np.isfinite(array)
    first = tuple(map(int, np.argwhere(bad)[0]))
    found = int(bad.sum())
    numbers = f"{found} of its {array.size} numbers {'is' if found == 1 else 'are'} not finite"
    message = f"{what}: {numbers}, the first {array[first]:g} at {first}; {origin}"
    raise LayerError(str(net.layers[i].error(f"{when}: {message}" if when else message)))
