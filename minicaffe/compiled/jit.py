"""Plain loops that Numba compiles where it is installed (the extra `fast`): what providers of kernels are made of.

    @loop("T[:,::1], T[::1], T[:,::1]")              T: float32 or float64, as the arrays are
    def scaled_rows(x: Array, scale: Array, y: Array) -> None:
        for i in range(len(x)):
            for j in range(x.shape[1]):
                y[i, j] = x[i, j] * scale[i]

    @provides(scale_rows)                            a kernel of layers/ (kernels.py)
    def scale_rows_by_loops(x: Array, scale: Array, y: Array) -> None:
        run(partial(scaled_rows, x[part], scale[part], y[part]) for part in parts(len(x)))

Compiled loops release the GIL, compute in the order in which they are written (no fast-math), and stay on disk in Numba's
cache. MINICAFFE_LOOPS=numpy leaves Numba alone; NUMBA_DISABLE_JIT=1 does the same to the loops.

From Python to a loop takes 3 us, and to share one among threads 20 to 100. Where that counts, jobs.Calls keeps a table of
calls ready, each a row of whole numbers that the loop's `entry` reads its arguments from.
"""

from __future__ import annotations

import importlib
import inspect
import os
import re
import sys
import threading
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from operator import methodcaller
from types import FunctionType, ModuleType
from typing import Any, Generic, ParamSpec

import numpy as np
from numpy.typing import DTypeLike

from minicaffe.blob import address_of
from minicaffe.errors import Error, install
from minicaffe.kernels import AHEAD
from minicaffe.process_fork import held, renewed

P = ParamSpec("P")

VARIABLE = "MINICAFFE_LOOPS"
WAYS = ("auto", "numpy", "numba")
DISABLED = "NUMBA_DISABLE_JIT"
"""Numba's own variable, which leaves loops in Python."""
ROOMS = "minicaffe.layers.", "minicaffe.compiled."
"""Whose loops are made of each other's functions, in several packages."""

_lock = threading.RLock()
_numba: Any = None
"""The module, once it is imported."""
_problem = ""
"""Why it cannot be imported."""
_use: bool | None = None
"""Whether loops are compiled; None until somebody asks."""


def _held_during_forks() -> list[Any]:
    """Return the locks of importing and of compiling, which a forked child could not end."""
    return [_lock] if _numba is None else [_lock, _numba.core.compiler_lock.global_compiler_lock]


held(_held_during_forks)


def compiled() -> bool:
    """Return whether loops run as machine code: Numba can be imported, NUMBA_DISABLE_JIT is off and MINICAFFE_LOOPS is not
    "numpy".

    The first call imports Numba, which takes about half a second. Raises Error for another MINICAFFE_LOOPS than auto, numpy
    or numba, and where that is "numba" and Numba cannot be imported or does not compile.
    """
    global _use
    if _use is None:
        with _lock:
            if _use is None:
                _use = wanted_way() != "numpy" and _found()
    return _use


def in_use() -> bool:
    """Return whether loops are `compiled` so far; does not import Numba."""
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


def description() -> str:
    """Say which way computes, and what would make it another. Does not import Numba."""
    is_compiled = wanted_way() != "numpy" and installed() if _use is None else _use
    if is_compiled:
        return f"compiled by Numba {installed()}"
    why = f"{VARIABLE}=numpy" if installed() else 'the extra "fast" would compile them'
    return f"computed by NumPy ({why})"


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


def wanted_way() -> str:
    """MINICAFFE_LOOPS, or auto. Raises Error for another word."""
    way = os.environ.get(VARIABLE) or WAYS[0]
    if way not in WAYS:
        raise Error(f"{VARIABLE} must be one of {', '.join(WAYS)}, got {way!r}")
    return way


def _found(required: bool | None = None) -> bool:
    """Import Numba; whether it compiles. required: whether to raise Error if not; None: as MINICAFFE_LOOPS says."""
    global _numba, _problem
    required = wanted_way() == "numba" if required is None else required
    if _numba is None and (installed() or required):
        try:
            found: Any = importlib.import_module("numba")
            _leave_warnings_alone(found.core.errors.WarningsFixer)
            with suppress(ImportError):  # Numba imports SciPy, which catches warnings, too, when it compiles: in the background
                importlib.import_module("scipy.linalg.cython_blas")
            _numba = found
        except Exception as error:  # of another NumPy than it knows, it raises ImportError, and broken libraries anything
            if required:
                raise Error(f"Numba cannot be imported ({error}): {install('fast')}") from error
            _problem = f"Numba is installed but cannot be imported ({error}): NumPy computes"
            warnings.warn(_problem, stacklevel=3)
    if _numba is not None and _numba.config.DISABLE_JIT:
        if required:
            raise Error(f"{DISABLED} turns Numba's compiler off: unset it, or let NumPy compute with {VARIABLE}=numpy")
        return False
    return _numba is not None


def _leave_warnings_alone(fixer: Any) -> None:
    """Numba catches warnings while it finds types, with warnings.catch_warnings, which is of the whole process: compiling in
    the background, it would keep those that other threads issue meanwhile. So it does that in the main thread only.
    """
    catching = fixer.catch_warnings

    def catch_warnings(self: Any, filename: str | None = None, lineno: int | None = None) -> AbstractContextManager[None]:
        if threading.current_thread() is threading.main_thread():
            return catching(self, filename, lineno)  # type: ignore[no-any-return]
        return nullcontext()

    fixer.catch_warnings = catch_warnings


class Loop(Generic[P]):
    """A function of arrays and numbers, of plain loops, that returns nothing or a number.

    types: those of its arguments, in Numba's words with T for the float type, for compiling ahead; other arguments compile at
    the first call. definition: the function in Python. in_calls: whether it is called from tables. calls: the loops that stand
    for plain functions that it calls, by their names.
    """

    def __init__(
        self,
        types: str,
        definition: Callable[P, Any],
        in_calls: bool = False,
        calls: Mapping[str, Loop[Any]] | None = None,
    ) -> None:
        self.types, self.definition, self.in_calls, self.calls = types, definition, in_calls, dict(calls or {})
        self.__doc__, self.__name__, self.__module__ = definition.__doc__, definition.__name__, definition.__module__
        self._dispatcher: Any = None
        self._entries: dict[np.dtype[Any], Any] = {}
        self._asked_for = set[np.dtype[Any]]()
        self._lock = renewed(threading.RLock())

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Return the loop as machine code if `compiled`, else in Python, which is slow."""
        if not compiled():
            return self.definition(*args, **kwargs)
        return self.dispatcher()(*args, **kwargs)

    def is_new(self, dtype: np.dtype[Any]) -> bool:
        """Return whether this is the first call of this method with this type: many nets at once are compiled for in one
        thread.
        """
        new = dtype not in self._asked_for
        self._asked_for.add(dtype)
        return new

    def compile(self, dtype: DTypeLike) -> None:
        """If `compiled`, have the machine code for arrays of dtype in memory, from the cache on disk if it is there."""
        if not compiled():
            return
        with self._lock:
            self.dispatcher().compile(self._types(dtype))
        if self.in_calls:
            self.entry(dtype)

    def _types(self, dtype: DTypeLike) -> str:
        return re.sub(r"\bT\b", np.dtype(dtype).name, self.types)

    def entry(self, dtype: DTypeLike) -> int:
        """Return the address of void entry(int64 *words, int64 room), which calls the loop with arguments from words (see
        `words`).

        room: where the thread's temporary memory begins. The loops have to be `compiled`.
        """
        kind = np.dtype(dtype)
        if kind not in self._entries:
            with self._lock:
                if kind not in self._entries:
                    self._entries[kind] = self._make_entry(self.dispatcher(), kind)
        return int(self._entries[kind].address)

    def words(self, dtype: DTypeLike, arguments: Sequence[Any]) -> tuple[list[int], list[tuple[int, int]]]:
        """Return what `entry` reads these arguments from: of an array its address and its lengths, of a tuple its parts.

        Instead of an array: DynamicArray, one that comes with the call, or ScratchArray, temporary memory. Also the places of
        the words that wait for an address, each with the argument's number.
        """
        words: list[int] = []
        later: list[tuple[int, int]] = []

        def put(kind: Any, value: Any, number: int) -> None:
            if isinstance(kind, _numba.types.BaseTuple):
                for one, part in zip(kind, value, strict=True):
                    put(one, part, number)
            elif isinstance(kind, _numba.types.Array):
                if isinstance(value, DynamicArray):
                    later.append((len(words), number))
                words.extend([_address(value, kind.dtype.bitwidth // 8), *value.shape])
            else:
                words.append(int(value))

        for number, (kind, value) in enumerate(zip(self._kinds(dtype), arguments, strict=True)):
            put(kind, value, number)
        return words, later

    def _kinds(self, dtype: DTypeLike) -> Sequence[Any]:
        """Numba's types of its arguments."""
        kinds: Sequence[Any] = _numba.core.sigutils.normalize_signature(self._types(dtype))[0]
        return kinds

    def _make_entry(self, dispatcher: Any, dtype: np.dtype[Any]) -> Any:
        dispatcher.compile(self._types(dtype))
        called = dispatcher.py_func
        names = {"call": _numba.extending.intrinsic(partial(_call_from_words, dispatcher, self._kinds(dtype)))}
        made = FunctionType(_entry.__code__, names, f"{self.__name__}_entry")
        date = os.stat(called.__code__.co_filename).st_mtime_ns  # the cache looks at this file's
        made.__qualname__, made.__module__ = f"{called.__qualname__}_{date:x}_{dtype.name}_entry", __name__
        types = _numba.core.sigutils.normalize_signature("void(CPointer(int64), int64)")
        entry = _numba.core.ccallback.CFunc(made, types, locals={}, options={})  # numba.cfunc, whose cache cannot be chosen
        entry._cache = _Cache(made)
        entry.compile()
        return entry

    def dispatcher(self) -> Any:
        """Numba's object for this loop."""
        if self._dispatcher is None:
            with self._lock:
                if self._dispatcher is None:
                    self._dispatcher = self._jitted()
        return self._dispatcher

    def _jitted(self) -> Any:
        made = self.definition
        assert isinstance(made, FunctionType)
        # what it calls of our loops has to be Numba's object, too
        names = {name: value for name, value in (made.__globals__ | self.calls).items() if name in made.__code__.co_names}
        called = {name: value for name, value in names.items() if isinstance(value, Loop | Intrinsic)}
        inner = {name: value.dispatcher() for name, value in called.items()}
        function = FunctionType(made.__code__, made.__globals__ | inner, made.__name__, made.__defaults__, made.__closure__)
        function.__qualname__, function.__module__ = made.__qualname__ + _stamp(made, called.values()), made.__module__
        dispatcher = _numba.njit(function, nogil=True, error_model="numpy")
        dispatcher._cache = _Cache(function)
        return dispatcher


class _Cache:
    """Numba's cache of a function's machine code on disk, in place of its own.

    A full disk, a folder that became read-only, a damaged file: all cost time and are no errors. Only reading and writing files
    is tried here, for a loop that has begun to run must not run twice, whatever a signal's handler raises in it.
    """

    def __init__(self, function: FunctionType) -> None:
        caching = _numba.core.caching
        try:
            self._files = caching.FunctionCache(function)
        except RuntimeError:  # Numba finds no folder that it may write to
            self._files = caching.NullCache()

    def load_overload(self, signature: Any, context: Any) -> Any:
        """Return what was compiled for these types; None if it has to be compiled."""
        try:
            return self._files.load_overload(signature, context)
        except Exception:
            return None

    def save_overload(self, signature: Any, made: Any) -> None:
        """Keep what was compiled for these types."""
        with suppress(Exception):
            self._files.save_overload(signature, made)


def _stamp(made: FunctionType, inner: Iterable[Loop[Any] | Intrinsic[Any]]) -> str:
    """Return what Numba's cache does not look at: the module's name, by which it imports it when it loads code, and the dates
    of other files that a loop's code is made of: those whose functions it calls, and what these use of their packages,
    constants left out.
    """
    modules = {made.__module__, *(one.__module__ for one in inner)}
    files = set[str]().union(*map(_files, modules))
    dates = [os.stat(path).st_mtime_ns for path in sorted(files - {made.__code__.co_filename})]
    return f"_{made.__module__.replace('.', '_')}_{zlib.crc32(repr(dates).encode()):x}"


@lru_cache(maxsize=256)
def _files(module: str) -> frozenset[str]:
    """Return the files of a module and of those of its package, or its room, that it imports or has functions or classes of,
    and so on.
    """
    found, todo = set[str](), [module] if module in sys.modules else []
    package = next((room for room in ROOMS if module.startswith(room)), module.rpartition(".")[0] + ".")
    while todo:
        name = todo.pop()
        found.add(name)
        values = list(vars(sys.modules[name]).values())
        used = {one.__name__ if isinstance(one, ModuleType) else getattr(one, "__module__", None) or "" for one in values}
        todo += [one for one in used - found if one.startswith(package) and package != "." and one in sys.modules]
    return frozenset(path for name in found if (path := getattr(sys.modules[name], "__file__", None)))


@dataclass(frozen=True)
class DynamicArray:
    """An array that comes with the call: its first number, counted from the given array's, and its shape."""

    start: int
    shape: tuple[int, ...]


@dataclass(frozen=True)
class ScratchArray:
    """Temporary memory of the thread that runs the call, which begins so many bytes behind the room's begin."""

    start: int
    shape: tuple[int, ...]


def _address(array: Any, size: int) -> int:
    """Return what the entry finds in an array's first word; size: bytes of a number."""
    if isinstance(array, DynamicArray):
        return array.start * size
    return ~array.start if isinstance(array, ScratchArray) else address_of(array)  # below 0: in the room


def _entry(words: Any, room: int) -> None:
    call(words, room)  # type: ignore[name-defined]  # noqa: F821 - one of _call_from_words


def _call_from_words(dispatcher: Any, kinds: Sequence[Any], typing: Any, words: Any, room: Any) -> Any:
    """Return an intrinsic of Numba's: a call of the dispatcher with arguments of these types, read from words."""
    types = _numba.types

    def generate(context: Any, builder: Any, signature: Any, given: Sequence[Any]) -> Any:
        arguments = _Words(context, builder, *given)
        values = [arguments.take(kind) for kind in kinds]
        function = types.Dispatcher(dispatcher)
        context.get_function(function, typing.resolve_function_type(function, kinds, {}))(builder, values)
        return context.get_dummy_value()

    return types.void(words, room), generate


class _Words:
    """Writes the instructions that read a loop's arguments from words."""

    def __init__(self, context: Any, builder: Any, words: Any, room: Any) -> None:
        self.context, self.builder, self.words, self.room = context, builder, words, room
        self.at = 0

    def word(self) -> Any:
        self.at += 1
        return self.builder.load(self.builder.gep(self.words, [self.room.type(self.at - 1)]))

    def take(self, kind: Any) -> Any:
        if isinstance(kind, _numba.types.BaseTuple):
            return self.context.make_tuple(self.builder, kind, [self.take(one) for one in kind])
        return self.array(kind) if isinstance(kind, _numba.types.Array) else self.word()

    def array(self, kind: Any) -> Any:
        """C-contiguous."""
        cgutils, populate_array = _numba.core.cgutils, _numba.np.arrayobj.populate_array

        context, builder, int64 = self.context, self.builder, self.room.type
        word, shape = self.word(), [self.word() for _ in range(kind.ndim)]
        in_room = builder.icmp_signed("<", word, int64(0))
        address = builder.select(in_room, builder.add(self.room, builder.not_(word)), word)
        number = context.get_data_type(kind.dtype)
        size = int64(context.get_abi_sizeof(number))
        strides = [size]
        for length in reversed(shape[1:]):
            strides.insert(0, builder.mul(strides[0], length))
        array = context.make_array(kind)(context, builder)
        lengths, steps = cgutils.pack_array(builder, shape), cgutils.pack_array(builder, strides)
        data = builder.inttoptr(address, number.as_pointer())
        populate_array(array, data=data, shape=lengths, strides=steps, itemsize=size, meminfo=None)
        return methodcaller("_getvalue")(array)  # Numba's own name for it


class Intrinsic(Generic[P]):
    """A function that a Loop calls, and that LLVM's own words say better than Python: one of flat arrays and whole numbers that
    returns nothing, or a whole number. definition: the same in Python.

    write(builder, registers, *arguments) writes its instructions with llvmlite's IRBuilder, and returns what the function
    returns. An array comes as the pointer to its first number, a whole number as an int64.
    """

    def __init__(self, write: Callable[..., Any], definition: Callable[P, int | None], returns: bool = False) -> None:
        self.write, self.definition, self.returns = write, definition, returns
        self.__doc__, self.__name__, self.__module__ = definition.__doc__, definition.__name__, definition.__module__
        self._intrinsic: Any = None

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Return the definition: it is machine code in compiled loops only."""
        return self.definition(*args, **kwargs)

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
        """Return its types, and what generates its code, as Numba asks for them."""
        is_array = [isinstance(one, _numba.types.Array) for one in types]
        bits = next(one.dtype.bitwidth for one, array in zip(types, is_array) if array)

        def generate(context: Any, builder: Any, signature: Any, values: Sequence[Any]) -> Any:
            given = zip(signature.args, is_array, values)
            arguments = [context.make_array(one)(context, builder, v).data if array else v for one, array, v in given]
            made = self.write(builder, registers(bits), *arguments)
            return made if self.returns else context.get_dummy_value()

        returned = _numba.types.int64 if self.returns else _numba.types.void
        return returned(*(one if array else _numba.types.int64 for one, array in zip(types, is_array))), generate


def intrinsic(write: Callable[..., Any], returns: bool = False) -> Callable[[Callable[P, int | None]], Intrinsic[P]]:
    """Return the decorator that makes a function an Intrinsic."""
    return lambda definition: Intrinsic(write, definition, returns)


@dataclass(frozen=True)
class Registers:
    """A processor's vector registers: how many there are, and how many numbers one holds."""

    count: int
    lanes: int


@lru_cache(maxsize=2)
def registers(bits: int) -> Registers:
    """Return this processor's, for numbers of so many bits."""
    from llvmlite.binding import get_host_cpu_features

    features = get_host_cpu_features()
    width = 512 if features.get("avx512f") else 256 if features.get("avx2") else 128
    return Registers(32 if width == 512 or features.get("neon") else 16, width // bits)


@lru_cache(maxsize=1)
def cores_share_cache() -> bool:
    """Return whether what a core has written comes quickly to its neighbours: AMD's, which alone have SSE4a, share a third
    cache.
    """
    from llvmlite.binding import get_host_cpu_features

    return bool(get_host_cpu_features().get("sse4a"))


def loop(
    types: str, in_calls: bool = False, calls: Mapping[str, Loop[Any]] | None = None
) -> Callable[[Callable[P, Any]], Loop[P]]:
    """Return the decorator that makes a function a Loop.

    It may call loops and intrinsics, those of other files only directly.
    """
    return lambda definition: Loop(types, definition, in_calls, calls)


def compile_ahead(wanted: Iterable[tuple[Loop[Any], np.dtype[Any]]]) -> None:
    """Begin to compile these loops in the background, in order, those for which nobody has asked before.

    A call of one that is not ready waits for it.
    """
    asked = dict.fromkeys(wanted)
    if not asked or not compiled():  # to look would import Numba
        return
    if todo := [(one, dtype) for one, dtype in asked if one.is_new(dtype)]:
        # not a daemon: at the end of the process Python waits for it, and LLVM is never torn down under a thread
        threading.Thread(target=_compile_all, args=(todo,), name=AHEAD).start()


def _compile_all(todo: Iterable[tuple[Loop[Any], np.dtype[Any]]]) -> None:
    for one, dtype in todo:
        if not threading.main_thread().is_alive():
            return
        one.compile(dtype)
