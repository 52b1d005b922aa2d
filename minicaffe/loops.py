"""Plain loops that Numba compiles where it is installed (the extra `fast`); without it, they are the definition to read.

    @loop("T[:,::1], T[::1], T[:,::1]")              T: float32 or float64, as the arrays are
    def scaled_rows(x: Array, scale: Array, y: Array) -> None:
        for i in range(len(x)):
            for j in range(x.shape[1]):
                y[i, j] = x[i, j] * scale[i]

    if loops.compiled():                             # the one switch between both ways
        run(partial(scaled_rows, x[part], scale[part], y[part]) for part in parts(len(x)))
    else:
        np.multiply(x, scale[:, None], out=y)        # what NumPy is good at

Compiled loops release the GIL, compute in the order in which they are written (no fast-math), and stay on disk in Numba's
cache. MINICAFFE_LOOPS=numpy leaves Numba alone.
"""

from __future__ import annotations

import importlib
import inspect
import os
import re
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from types import FunctionType
from typing import Any, Generic, ParamSpec

import numpy as np
from numpy.typing import DTypeLike

from .errors import Error, install

P = ParamSpec("P")

VARIABLE = "MINICAFFE_LOOPS"
WAYS = ("auto", "numpy", "numba")
AHEAD = "minicaffe loops"
"""The name of the thread that compiles ahead."""

_lock = threading.RLock()
_numba: Any = None
"""The module, once it is imported."""
_problem = ""
"""Why it cannot be imported."""
_use: bool | None = None
"""Whether loops are compiled; None until somebody asks."""


def compiled() -> bool:
    """Whether loops run as machine code: Numba can be imported and MINICAFFE_LOOPS is not "numpy".

    The first call imports Numba, which takes about half a second. Raises Error for another MINICAFFE_LOOPS than auto, numpy
    or numba, and where that is "numba" and Numba cannot be imported.
    """
    global _use
    if _use is None:
        with _lock:
            if _use is None:
                _use = _wanted_way() != "numpy" and _found()
    return _use


def in_use() -> bool:
    """Whether loops are `compiled` so far; does not import Numba."""
    return bool(_use)


def installed() -> str | None:
    """Numba's version; None if it is not installed. Does not import it."""
    from importlib import metadata  # 10 ms, a sixth of NumPy's import

    try:
        return metadata.version("numba")
    except metadata.PackageNotFoundError:
        return None


def problem() -> str:
    """Why loops are not `compiled` though Numba is installed and wanted, or ""; Numba's own words are in it."""
    return _problem


@contextmanager
def using(way: str) -> Iterator[None]:
    """In the block, in all threads: loops as with MINICAFFE_LOOPS=way."""
    global _use
    before = compiled()
    with _lock:
        _use = way != "numpy" and _found(required=way == "numba")
    try:
        yield
    finally:
        _use = before


def _wanted_way() -> str:
    way = os.environ.get(VARIABLE) or WAYS[0]
    if way not in WAYS:
        raise Error(f"{VARIABLE} must be one of {', '.join(WAYS)}, got {way!r}")
    return way


def _found(required: bool | None = None) -> bool:
    """Import Numba. required: whether to raise Error without it; None: as MINICAFFE_LOOPS says."""
    global _numba, _problem
    if _numba is None and (installed() or required or _wanted_way() == "numba"):
        try:
            found: Any = importlib.import_module("numba")
            _leave_warnings_alone(found.core.errors.WarningsFixer)
            _numba = found
        except Exception as error:  # of another NumPy than it knows, it raises ImportError, and broken libraries anything
            if required or _wanted_way() == "numba":
                raise Error(f"Numba cannot be imported ({error}): {install('fast')}") from error
            _problem = f"Numba is installed but cannot be imported ({error}): NumPy computes"
            warnings.warn(_problem, stacklevel=3)
    return _numba is not None


def _leave_warnings_alone(fixer: Any) -> None:
    """Numba catches warnings while it finds types, with warnings.catch_warnings, which is of the whole process: compiling in
    the background, it would keep those that other threads issue meanwhile. So it does that in the main thread only."""
    catching = fixer.catch_warnings

    def catch_warnings(self: Any, filename: str | None = None, lineno: int | None = None) -> AbstractContextManager[None]:
        if threading.current_thread() is threading.main_thread():
            return catching(self, filename, lineno)  # type: ignore[no-any-return]
        return nullcontext()

    fixer.catch_warnings = catch_warnings


class Loop(Generic[P]):
    """A function of arrays and numbers, of plain loops, that returns nothing or a number.

    types: those of its arguments, in Numba's words with T for the float type, for compiling ahead; other arguments compile at
    the first call. definition: the function in Python.
    """

    def __init__(self, types: str, definition: Callable[P, Any]) -> None:
        self.types, self.definition = types, definition
        self.__doc__, self.__name__, self.__module__ = definition.__doc__, definition.__name__, definition.__module__
        self._dispatcher: Any = None
        self._lock = threading.RLock()

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """The loop as machine code if `compiled`, else in Python, which is slow."""
        if not compiled():
            return self.definition(*args, **kwargs)
        return self._without_cache_if_need_be(lambda dispatcher: dispatcher(*args, **kwargs))

    def compile(self, dtype: DTypeLike) -> None:
        """If `compiled`, have the machine code for arrays of dtype in memory, from the cache on disk if it is there."""
        if not compiled():
            return
        types = re.sub(r"\bT\b", np.dtype(dtype).name, self.types)
        with self._lock:
            self._without_cache_if_need_be(lambda dispatcher: dispatcher.compile(types))

    def _without_cache_if_need_be(self, use: Callable[[Any], Any]) -> Any:
        """A full disk, a folder that became read-only, a damaged file of the cache: all cost time and are no errors. The loops
        themselves raise nothing, and compiling comes before running."""
        dispatcher = self.dispatcher()
        try:
            return use(dispatcher)
        except Exception:
            with self._lock:
                if self._dispatcher is dispatcher:
                    self._dispatcher = self._jitted(cache=False)
            return use(self._dispatcher)

    def dispatcher(self) -> Any:
        """Numba's object for this loop."""
        if self._dispatcher is None:
            with self._lock:
                if self._dispatcher is None:
                    try:
                        self._dispatcher = self._jitted(cache=True)
                    except RuntimeError:  # Numba finds no folder that it may write to
                        self._dispatcher = self._jitted(cache=False)
        return self._dispatcher

    def _jitted(self, cache: bool) -> Any:
        made = self.definition
        assert isinstance(made, FunctionType)
        # what it calls of our loops has to be Numba's object, too
        names = {name: value for name, value in made.__globals__.items() if name in made.__code__.co_names}
        inner = {
            n: value._jitted(cache) if isinstance(value, Loop) and not cache else value.dispatcher()
            for n, value in names.items()
            if isinstance(value, Loop | Intrinsic)
        }
        function = FunctionType(made.__code__, made.__globals__ | inner, made.__name__, made.__defaults__, made.__closure__)
        function.__qualname__, function.__module__ = made.__qualname__ + _stamp(made, inner), made.__module__
        return _numba.njit(function, nogil=True, cache=cache, error_model="numpy")


def _stamp(made: FunctionType, inner: Iterable[str]) -> str:
    """What Numba's cache does not look at: the module's name, by which it imports it when it loads code, and the dates of other
    files whose functions a loop calls."""
    modules = {sys.modules[made.__globals__[name].__module__].__file__ or "" for name in inner}
    dates = [f"{os.stat(path).st_mtime_ns:x}" for path in sorted(modules - {made.__code__.co_filename})]
    return "_".join(["", made.__module__.replace(".", "_"), *dates])


class Intrinsic(Generic[P]):
    """What a Loop calls, and LLVM's own words say better than Python: a function of flat arrays and whole numbers that returns
    nothing. definition: the same in Python.

    write(builder, registers, *arguments) writes its instructions with llvmlite's IRBuilder. An array comes as the pointer to
    its first number, a whole number as an int64.
    """

    def __init__(self, write: Callable[..., None], definition: Callable[P, None]) -> None:
        self.write, self.definition = write, definition
        self.__doc__, self.__name__, self.__module__ = definition.__doc__, definition.__name__, definition.__module__
        self._intrinsic: Any = None

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """The definition: it is machine code in compiled loops only."""
        self.definition(*args, **kwargs)

    def dispatcher(self) -> Any:
        """Numba's object for it."""
        if self._intrinsic is None:

            def typed(typing: Any, *types: Any) -> Any:
                return self._typed(types)

            # Numba reads the names of the parameters, and takes no *types
            own = inspect.signature(self.definition).parameters.values()
            names = inspect.Parameter("typing", inspect.Parameter.POSITIONAL_OR_KEYWORD), *own
            typed.__signature__ = inspect.Signature(names)  # type: ignore[attr-defined]
            self._intrinsic = _numba.extending.intrinsic(typed)
        return self._intrinsic

    def _typed(self, types: Sequence[Any]) -> Any:
        """Its types, and what generates its code, as Numba asks for them."""
        is_array = [isinstance(one, _numba.types.Array) for one in types]
        bits = next(one.dtype.bitwidth for one, array in zip(types, is_array) if array)

        def generate(context: Any, builder: Any, signature: Any, values: Sequence[Any]) -> Any:
            given = zip(signature.args, is_array, values)
            arguments = [context.make_array(one)(context, builder, v).data if array else v for one, array, v in given]
            self.write(builder, registers(bits), *arguments)
            return context.get_dummy_value()

        return _numba.types.void(*(one if array else _numba.types.int64 for one, array in zip(types, is_array))), generate


def intrinsic(write: Callable[..., None]) -> Callable[[Callable[P, None]], Intrinsic[P]]:
    """The decorator that makes a function an Intrinsic."""
    return lambda definition: Intrinsic(write, definition)


@dataclass(frozen=True)
class Registers:
    """A processor's vector registers: how many there are, and how many numbers one holds."""

    count: int
    lanes: int


@lru_cache(maxsize=2)
def registers(bits: int) -> Registers:
    """This processor's, for numbers of so many bits."""
    from llvmlite.binding import get_host_cpu_features

    features = get_host_cpu_features()
    width = 512 if features.get("avx512f") else 256 if features.get("avx2") else 128
    return Registers(32 if width == 512 or features.get("neon") else 16, width // bits)


def loop(types: str) -> Callable[[Callable[P, Any]], Loop[P]]:
    """The decorator that makes a function a Loop. It may call loops and intrinsics, those of other files only directly."""
    return lambda definition: Loop(types, definition)


def compile_ahead(wanted: Iterable[tuple[Loop[Any], np.dtype[Any]]]) -> None:
    """Begin to compile these loops in the background, in order. A call of one that is not ready waits for it."""
    todo = list(dict.fromkeys(wanted))
    if todo and compiled():
        # not a daemon: at the end of the process Python waits for it, and LLVM is never torn down under a thread
        threading.Thread(target=_compile_all, args=(todo,), name=AHEAD).start()


def _compile_all(todo: Iterable[tuple[Loop[Any], np.dtype[Any]]]) -> None:
    for one, dtype in todo:
        if not threading.main_thread().is_alive():
            return
        one.compile(dtype)
