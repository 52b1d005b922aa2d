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
from collections.abc import Callable, Iterable, Sequence
from functools import update_wrapper
from importlib.util import find_spec
from typing import Any, Generic, NamedTuple, ParamSpec, TypeVar

from . import loops
from .loops import Loop

P = ParamSpec("P")
R = TypeVar("R")
Provider = TypeVar("Provider", bound=Callable[..., Any])

LAYERS, COMPILED = "minicaffe.layers.", "minicaffe.compiled."


class _Offer(NamedTuple):
    """A provider, whether it takes the arguments, and the compiled loops that it runs."""

    takes: Callable[..., bool] | None
    run: Callable[..., Any]
    loops: Sequence[Loop[Any]]


class Kernel(Generic[P, R]):
    """A function that NumPy defines. `by_numpy` is that function; a call is computed by the first provider that takes it."""

    def __init__(self, by_numpy: Callable[P, R]) -> None:
        self.by_numpy = by_numpy
        self._offers: list[_Offer] = []
        self._is_loaded = False
        update_wrapper(self, by_numpy)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if loops.compiled():
            for offer in self._loaded():
                if offer.takes is None or offer.takes(*args, **kwargs):
                    result: R = offer.run(*args, **kwargs)
                    return result
        return self.by_numpy(*args, **kwargs)

    @property
    def loops(self) -> list[Loop[Any]]:
        """The compiled loops that its providers run."""
        return [one for offer in self._loaded() for one in offer.loops]

    def _loaded(self) -> list[_Offer]:
        if not self._is_loaded:
            self._is_loaded = True
            load_providers(self.by_numpy.__module__)
        return self._offers


def loops_of(kernels: Iterable[Kernel[..., Any]]) -> list[Loop[Any]]:
    """Return the compiled loops of the kernels' providers; none if loops are not compiled."""
    return [one for each in kernels for one in each.loops] if loops.compiled() else []


def kernel(by_numpy: Callable[P, R]) -> Kernel[P, R]:
    """Make a function of NumPy a Kernel."""
    return Kernel(by_numpy)


def provides(
    of: Kernel[P, R], takes: Callable[..., bool] | None = None, *, loops: Sequence[Loop[Any]] = ()
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Register a provider of a kernel.

    Parameters
    ----------
    of : Kernel
        What the decorated function computes.
    takes : callable, optional
        Return whether the provider takes these arguments. Without it the provider takes all.
    loops : sequence of Loop
        The compiled loops that it runs, to compile them before the first forward needs them.
    """

    def register(run: Callable[P, R]) -> Callable[P, R]:
        of._offers.append(_Offer(takes, run, loops))
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
