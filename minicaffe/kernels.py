"""Kernels: functions on arrays that NumPy defines and that a faster provider may compute.

    @kernel                     # in layers/shape/interp.py: what is computed, and NumPy's way to do it
    def interpolate(x, y, rows, columns): ...

    @provides(interpolate)      # in compiled/interp.py: the same, by loops that Numba compiles
    def interpolate_by_loops(x, y, rows, columns): ...

    @step_of_layer(Pooling)     # in compiled/pooling.py: a whole forward, as a step that can be kept
    def pooling_step(layer, bottom, top): ...

This is the only place that chooses: a kernel has at most one provider, which may leave some arguments to NumPy. It is in the
module of `compiled` with the name of the kernel's, or the layer's, own module in `layers`. It is imported at the first call, if
loops are compiled at all.

To load Numba and compiled loops takes as long as they save in a few hundred small images. So a command says how many passes it
`expects`, and NumPy computes until its nets have enough to do.
"""

from __future__ import annotations

import importlib
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, update_wrapper
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, ParamSpec, TypeAlias, TypeVar

import numpy as np

from .mode import gpu_mode
from .process_fork import held

if TYPE_CHECKING:
    from .blob import Blob
    from .compiled.jit import Loop
    from .layer import Layer
    from .layer_list import Node
    from .plan import ExecutionPlan, Program

P = ParamSpec("P")
R = TypeVar("R")
Maker = TypeVar("Maker", bound=Callable[..., Any])

logger = logging.getLogger("minicaffe.kernels")

LAYERS, COMPILED = "minicaffe.layers.", "minicaffe.compiled."

JIT, JOBS = "minicaffe.compiled.jit", "minicaffe.compiled.jobs"
"""The modules that compile loops and make steps."""

JOB_LISTS, GRAPHS = ("minicaffe.compiled.program", "JobLists"), ("minicaffe.cuda.replay", "Graphs")
"""The programs of a plan."""

FREE = {"setup", "reshape", "forward_gpu", "backward_cpu", "backward_gpu"}
"""Methods that a subclass of a built-in layer may override without another forward."""

AHEAD = "minicaffe loops"
"""The name of the thread that compiles ahead."""


_importing = threading.RLock()
"""Held while a module is imported: in a forked child, another thread's import would never end."""
held(lambda: [_importing])
_loaded = set[str]()
"""The modules of layers whose providers are imported."""


LOADING = 1000.0
"""Milliseconds of one core that it takes to import Numba and to load a net's compiled loops from the cache."""
PER_PASS, PER_ELEMENT = 0.3, 1e-6
"""Milliseconds that compiled loops save in a forward, and for each element of its tops. In 18 published nets the real saving
is from half to twice as much."""


@dataclass
class _Work:
    """A command's work. saved: the milliseconds that compiled loops would save; passes: None if unknown."""

    passes: int | None = None
    saved: float = 0.0

    @property
    def is_small(self) -> bool:
        """True if compiled loops would save less than it takes to load them."""
        return self.passes is not None and self.saved < LOADING


_work = _Work()


@contextmanager
def expecting(passes: int | None) -> Iterator[None]:
    """In the block, in all threads: each net runs about so many times (None: often), for which loops may not pay.

    MINICAFFE_LOOPS=numba loads them all the same.
    """
    global _work
    before, _work = _work, _Work(passes if passes is None or _jit().wanted_way() == "auto" else None)
    try:
        yield
    finally:
        _work = before


def expect(passes: int | None) -> None:
    """In a block of `expecting` some passes: say that each net runs so many times (None: often)."""
    if _work.passes is not None:
        _work.passes = passes


def has_little_work() -> bool:
    """Return whether NumPy computes because loading compiled loops would take longer, so far."""
    return _work.is_small


def compiled() -> bool:
    """Return whether compiled loops provide kernels: Numba can be imported, and MINICAFFE_LOOPS is not "numpy".

    They do not in a command with little work (`expecting`). The first call imports Numba, which takes about half a second.
    Raises Error for another MINICAFFE_LOOPS than auto, numpy or numba, and where that is "numba" and Numba cannot be imported
    or does not compile.
    """
    return not _work.is_small and bool(_jit().compiled())


def description() -> str:
    """Return a sentence on how kernels with compiled loops are computed, and what would change it."""
    if _work.is_small and find_spec("numba"):
        return "computed by NumPy in a few passes; in more of them compiled by Numba, which takes a second to load"
    text: str = _jit().description()
    return text


@contextmanager
def using(way: str) -> Iterator[None]:
    """In the block, compute kernels in all threads as with MINICAFFE_LOOPS=way."""
    with expecting(None), _jit().using(way):
        yield


@lru_cache(maxsize=1)
def _jit() -> Any:
    with _importing:
        return importlib.import_module(JIT)


class _Provider(NamedTuple):
    """A provider of a kernel, the compiled loops that it runs, and those that it runs in a backward only."""

    run: Callable[..., Any]
    loops: Sequence[Loop[Any]]
    backward: Sequence[Loop[Any]]


class Kernel(Generic[P, R]):
    """A function that NumPy defines, `by_numpy`, and that its provider computes where loops are compiled."""

    def __init__(self, by_numpy: Callable[P, R]) -> None:
        self.by_numpy = by_numpy
        self._provider: _Provider | None = None
        update_wrapper(self, by_numpy)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if compiled() and (provider := self._loaded()):
            result: R = provider.run(*args, **kwargs)
            return result
        return self.by_numpy(*args, **kwargs)

    def loops(self, backward: bool = False) -> list[Loop[Any]]:
        """Return the compiled loops that its provider runs in a forward, or with backward in both passes."""
        provider = self._loaded()
        return [*provider.loops, *(provider.backward if backward else ())] if provider else []

    def _loaded(self) -> _Provider | None:
        load_providers(self.by_numpy.__module__)
        return self._provider


def kernel(by_numpy: Callable[P, R]) -> Kernel[P, R]:
    """Make a NumPy function a Kernel."""
    return Kernel(by_numpy)


def provides(
    of: Kernel[P, R], *, loops: Sequence[Loop[Any]] = (), backward: Sequence[Loop[Any]] = ()
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Register the provider of a kernel. It leaves unsupported arguments to the kernel's `by_numpy`.

    Parameters
    ----------
    of : Kernel
        What the decorated function computes.
    loops : sequence of Loop
        The compiled loops that it runs, to compile them before the first forward needs them.
    backward : sequence of Loop
        Those that run in a backward alone.
    """

    def register(run: Callable[P, R]) -> Callable[P, R]:
        of._provider = _Provider(run, loops, backward)
        return run

    return register


Step = Callable[[], None]
"""A function that runs a forward. A program can run a KeptStep."""

Loops: TypeAlias = "tuple[Sequence[Loop[Any]], Sequence[Loop[Any]]]"
"""The loops of a layer's forward, and those of its backward."""


class KeptStep:
    """The work of a layer's forward, valid while shapes, weights and settings stay the same. A program can run several."""

    def __call__(self) -> None:
        """Do the work."""
        raise NotImplementedError


class _Maker(NamedTuple):
    """A factory of the steps of a class, and of the list of loops that its passes run."""

    kind: type[Layer]
    step: Callable[..., Step | None]
    loops: Callable[[Any], Loops]


_makers: dict[object, _Maker] = {}
"""Factories by the forward_cpu whose work their steps do."""


def step_of_layer(kind: type[Layer], loops: Callable[[Any], Loops] = lambda layer: ((), ())) -> Callable[[Maker], Maker]:
    """Register a factory of steps that do the work of forward_cpu, for a class and those that inherit it.

    Parameters
    ----------
    kind : type[Layer]
        The decorated function takes a layer of this class that has its shapes, its bottoms and tops, and for a class that fuses
        the layers after it also their Epilogue. It returns None where NumPy computes.
    loops : callable, optional
        Gives the compiled loops that a layer's passes run, to compile them before the first forward needs them.
    """

    def register(step: Maker) -> Maker:
        _makers[kind.forward_cpu] = _Maker(kind, step, loops)
        return step

    return register


def step_of(layer: Layer, bottom: Sequence[Blob], top: Sequence[Blob], *after: Any) -> Step | None:
    """Return the step of the layer's forward on these blobs, or None where NumPy computes.

    The step is valid while the shapes and the layer's attributes stay the same.
    """
    maker = _maker_of(layer) if has_steps(layer) else None
    if maker is None or not _computes_as(layer, maker.kind):
        return None
    return maker.step(layer, bottom, top, *after)


def makes_steps(layer: Layer) -> bool:
    """Return whether the layer's class has a factory of steps, and loops are compiled."""
    return has_steps(layer) and _maker_of(layer) is not None


def _computes_as(layer: Layer, kind: type[Layer]) -> bool:
    """Return whether the layer runs the forward of this class, with none of its methods overridden."""
    if "forward_cpu" in vars(layer):
        return False
    own = type(layer)
    if own is kind or own.__module__.startswith(LAYERS):
        return True
    others = {name for base in own.__mro__[: own.__mro__.index(kind)] for name in vars(base)}
    return not any(callable(vars(kind).get(name)) for name in others - FREE)


def sharing_step(layer: Layer, bottom: Sequence[Blob], top: Sequence[Blob]) -> KeptStep:
    """Return the step of a layer that `only_shares`, for a list of other layers' steps."""
    with _importing:
        jobs = importlib.import_module(JOBS)
    step: KeptStep = jobs.sharing_step(layer, bottom, top)
    return step


def program_of(plan: ExecutionPlan) -> Program | None:
    """Return the program that runs several layers of the plan at once, if there is one.

    In GPU mode it replays CUDA graphs, else it runs lists of compiled jobs.
    """
    if not gpu_mode() and not compiled():
        return None
    module, name = GRAPHS if gpu_mode() else JOB_LISTS
    with _importing:
        program: Program = getattr(importlib.import_module(module), name)(plan)
    return program


def may_have_steps(layer: Layer) -> bool:
    """Return whether the layer's class has a module of providers. They may decline its attributes or shapes."""
    return _has_providers(type(layer).forward_cpu.__module__)


def has_steps(layer: Layer) -> bool:
    """Return whether the layer's class has a module of providers, and loops are compiled."""
    return may_have_steps(layer) and compiled()


def loops_of(layer: Layer) -> Loops:
    """Return the compiled loops of the layer's forward, and those of its backward."""
    maker = _maker_of(layer)
    steps: Loops = ((), ()) if maker is None else maker.loops(layer)
    forward, backward = ([*steps[i], *(one for each in layer.uses_kernels[i] for one in each.loops(bool(i)))] for i in (0, 1))
    return forward, backward


def loops_of_net(layers: Sequence[Layer], backward: bool) -> Iterator[tuple[Loop[Any], np.dtype[Any]]]:
    """Yield the compiled loops of the layers' passes in the order of their first use, each with its dtype."""
    able = [layer for layer in layers if may_have_steps(layer) or any(layer.uses_kernels)]
    if not able or not compiled():
        return
    for layer in able:
        yield from ((loop, layer.dtype) for loop in loops_of(layer)[0])
    if backward:
        for layer in reversed(able):
            yield from ((loop, layer.dtype) for loop in loops_of(layer)[1])


def compile_loops(layers: Sequence[Layer], backward: bool, ahead: bool) -> None:
    """Compile the loops of the layers' passes, or load them.

    ahead: in the background; a call of a loop waits until it is compiled.
    """
    wanted = list(loops_of_net(layers, backward))
    if ahead and wanted:
        _jit().compile_ahead(wanted)
    elif wanted:
        for loop, dtype in wanted:
            loop.compile(dtype)


def count_work(nodes: Sequence[Node], backward: bool) -> None:
    """Count the work of a net, whose blobs have their shapes: once it is enough, compiled loops are used."""
    if _work.passes is not None:
        elements = sum(blob.count for node in nodes for blob in node.tops)
        saved = _work.passes * (3 if backward else 1) * (PER_PASS + PER_ELEMENT * elements)
        _work.saved += saved
        way = "NumPy computes" if _work.is_small else "they are loaded"
        logger.debug(
            "compiled loops would save %.0f ms in %d passes, and take %.0f to load: %s", saved, _work.passes, LOADING, way
        )


def _maker_of(layer: Layer) -> _Maker | None:
    forward = type(layer).forward_cpu
    load_providers(forward.__module__)
    return _makers.get(forward)


def load_providers(module: str) -> None:
    """Import the providers of the kernels of a module of layers, if it has any."""
    if module not in _loaded and _has_providers(module):
        with _importing:
            importlib.import_module(_providers_of(module))
            _loaded.add(module)


def _providers_of(module: str) -> str:
    return COMPILED + module.rpartition(".")[2]


@lru_cache(maxsize=512)
def _has_providers(module: str) -> bool:
    try:
        return module.startswith(LAYERS) and find_spec(_providers_of(module)) is not None
    except ModuleNotFoundError:  # a package above the module is missing
        return False
