"""state_kept: try other shapes on a net, and leave the net as it was.

reshape changes the tops, the layers' buffers, and attributes that depend on shapes. A blob that grows gets new memory, so its
numbers are lost. A function that only reads a net, such as summarize, must not lose the results of a run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from minicaffe.blob import Blob, bump_version
from minicaffe.layer import Layer
from minicaffe.layers.data.prefetching import DataLayer
from minicaffe.net import Net

Undo = Callable[[], None]

SHARED = ("minicaffe.cuda.", "minicaffe.kernels", "minicaffe.compiled.jit")
"""Modules whose objects serve all nets: resources of the GPU, kernels with their providers, compiled loops."""


@contextmanager
def state_kept(net: Net) -> Iterator[None]:
    """Restore, after the block, the shapes and the memory of every blob of the net, and the attributes of its layers.

    The block may reshape blobs and layers. It must not write numbers, as forward does.

    Parameters
    ----------
    net : Net
        The net.

    Yields
    ------
    None
        The block tries other shapes.

    Raises
    ------
    Error
        Another thread runs the net.
    """
    with net.running():
        undo: list[Undo] = []
        _keep([net.nodes, list(net.blobs.values()), net.layers], undo, {})
        try:
            yield
        finally:
            for restore in undo:
                restore()
            bump_version()


def _keep(value: Any, undo: list[Undo], seen: dict[int, Any]) -> None:
    """Add what restores a value, and the values in it, to undo. seen: values by id, which keeps the ids."""
    if id(value) in seen:
        return
    seen[id(value)] = value
    if isinstance(value, Blob):
        undo.append(value.keep())
    elif isinstance(value, list | tuple | dict):
        if isinstance(value, list):
            undo.append(_of_list(value))
        elif isinstance(value, dict):
            undo.append(_of_dict(value))
        for part in value.values() if isinstance(value, dict) else value:
            _keep(part, undo, seen)
    elif isinstance(value, DataLayer):
        undo.append(_of_dict(vars(value)))  # not what is in it: a thread may be reading ahead
    elif hasattr(value, "__dict__") and (isinstance(value, Layer) or _is_part(value)):
        _keep(vars(value), undo, seen)


def _is_part(value: object) -> bool:
    """Return True for an object of minicaffe's that belongs to a layer: no class, and nothing that all nets share."""
    module = type(value).__module__ or ""  # None for a message of protobuf
    return module.startswith("minicaffe.") and not module.startswith(SHARED) and not isinstance(value, type)


def _of_list(value: list[Any]) -> Undo:
    before = list(value)

    def restore() -> None:
        if len(value) != len(before) or any(one is not other for one, other in zip(value, before)):
            value[:] = before

    return restore


def _of_dict(value: dict[Any, Any]) -> Undo:
    before = dict(value)

    def restore() -> None:
        for key in value.keys() - before.keys():
            del value[key]
        value.update(before)

    return restore
