"""Kernels: functions on arrays that NumPy defines and that a faster provider may compute.

    @kernel                                     # in layers/flow_warp.py: what is computed, and NumPy's way to do it
    def warp(x, flow, fill, y): ...

    @provides(warp)                             # in compiled/flow_warp.py: the same, by loops that Numba compiles
    def warp_by_loops(x, flow, fill, y): ...

This is the only place that chooses: the first provider that takes the arguments computes, else NumPy. A provider is in the
module of `compiled` that is named as the kernel's own module of `layers`. It is imported at the kernel's first call, if loops
are compiled at all.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from functools import update_wrapper
from importlib.util import find_spec
from typing import Any, Generic, NamedTuple, ParamSpec, TypeVar

from . import loops
from .layer import Layer
from .loops import Loop

P = ParamSpec("P")
R = TypeVar("R")
Provider = TypeVar("Provider", bound=Callable[..., Any])

LAYERS, COMPILED = "minicaffe.layers.", "minicaffe.compiled."


AHEAD: dict[type[Layer], tuple[Sequence[Loop[Any]], Sequence[Loop[Any]]]] = {}
"""The loops that the forward and the backward of a class of layers run."""


def compiled_ahead(kind: type[Layer], forward: Sequence[Loop[Any]], backward: Sequence[Loop[Any]]) -> None:
    """Note the loops that a class of layers runs, to compile them before the first forward needs them."""
    AHEAD[kind] = forward, backward


def loops_of(layer: Layer) -> tuple[Sequence[Loop[Any]], Sequence[Loop[Any]]]:
    """Return the loops that the layer's forward and its backward run."""
    for kind in type(layer).__mro__:
        load_providers(kind.__module__)
        if kind in AHEAD:
            return AHEAD[kind]
    return (), ()


class _Offer(NamedTuple):
    """A provider, and whether it takes the arguments."""

    takes: Callable[..., bool] | None
    run: Callable[..., Any]


class Kernel(Generic[P, R]):
    """A function that NumPy defines. `by_numpy` is that function; a call is computed by the first provider that takes it."""

    def __init__(self, by_numpy: Callable[P, R]) -> None:
        self.by_numpy = by_numpy
        self._offers: list[_Offer] = []
        self._is_loaded = False
        update_wrapper(self, by_numpy)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if loops.compiled():
            if not self._is_loaded:
                load_providers(self.by_numpy.__module__)
                self._is_loaded = True
            for takes, run in self._offers:
                if takes is None or takes(*args, **kwargs):
                    result: R = run(*args, **kwargs)
                    return result
        return self.by_numpy(*args, **kwargs)


def kernel(by_numpy: Callable[P, R]) -> Kernel[P, R]:
    """Make a function of NumPy a Kernel."""
    return Kernel(by_numpy)


def provides(of: Kernel[P, R], takes: Callable[P, bool] | None = None) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Register a provider of a kernel.

    Parameters
    ----------
    of : Kernel
        What the decorated function computes.
    takes : callable, optional
        Return whether the provider takes these arguments. Without it the provider takes all.
    """

    def register(run: Callable[P, R]) -> Callable[P, R]:
        of._offers.append(_Offer(takes, run))
        return run

    return register


def load_providers(module: str) -> None:
    """Import the providers of the kernels of a module of layers, if it has any."""
    name = COMPILED + module.removeprefix(LAYERS)
    if module.startswith(LAYERS) and _exists(name):
        importlib.import_module(name)


def _exists(name: str) -> bool:
    """Whether there is such a module, in a package or not."""
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # the package
        return False
