"""Plain loops that Numba compiles if it is installed (the extra `fast`); providers of kernels are made of them.

    @loop("T[:,::1], T[::1], T[:,::1]")              T: float32 or float64, as the arrays are
    def scaled_rows(x: Array, scale: Array, y: Array) -> None:
        for i in range(len(x)):
            for j in range(x.shape[1]):
                y[i, j] = x[i, j] * scale[i]

    @provides(scale_rows)                            a kernel of layers/ (kernels.py)
    def scale_rows_by_loops(x: Array, scale: Array, y: Array) -> None:
        run(partial(scaled_rows, x[part], scale[part], y[part]) for part in parts(len(x)))

Compiled loops release the GIL, compute in the order in which they are written (no fast-math), and stay on disk in Numba's
cache. With MINICAFFE_LOOPS=numpy Numba is not imported; NUMBA_DISABLE_JIT=1 turns off the loops, too.

Calling a loop from Python and splitting it across threads takes time. Where that counts, jobs.Calls keeps a table of prepared
calls, each a row of integers from which the loop's `entry` reads its arguments.
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
"""Packages whose loops may contain each other's functions."""

_lock = threading.RLock()
_numba: Any = None
"""The module, once it is imported."""
_problem = ""
"""The reason why Numba cannot be imported."""
_use: bool | None = None
"""True if loops are compiled; None until the first check."""


def _held_during_forks() -> list[Any]:
    """Return the locks for importing and compiling, which a forked child could not release."""
    return [_lock] if _numba is None else [_lock, _numba.core.compiler_lock.global_compiler_lock]


held(_held_during_forks)


def compiled() -> bool:
    """Return whether loops run as machine code.

    They do if Numba can be imported, NUMBA_DISABLE_JIT is off and MINICAFFE_LOOPS is not "numpy". The first call imports Numba,
    which takes about half a second. Raises Error if MINICAFFE_LOOPS is not auto, numpy or numba, and if it is "numba" and Numba
    cannot be imported or does not compile.
    """
    global _use
    if _use is None:
        with _lock:
            if _use is None:
                _use = wanted_way() != "numpy" and _found()
    return _use


def in_use() -> bool:
    """Return whether loops are known to be `compiled`; does not import Numba."""
    return bool(_use)


def installed() -> str | None:
    """Return Numba's version, or None if it is not installed. Does not import it."""
    from importlib import metadata  # here, because the import is slow

    try:
        return metadata.version("numba")
    except metadata.PackageNotFoundError:
        return None


def problem() -> str:
    """Return the reason why an installed and wanted Numba cannot be imported, with its error; "" without one."""
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
    """In the block, and in all threads, run loops as with MINICAFFE_LOOPS=way."""
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
    """Import Numba; return whether it compiles. required: whether to raise Error if not (default: as MINICAFFE_LOOPS says)."""
    global _numba, _problem
    required = wanted_way() == "numba" if required is None else required
    if _numba is None and (installed() or required):
        try:
            found: Any = importlib.import_module("numba")
            _leave_warnings_alone(found.core.errors.WarningsFixer)
            # Numba imports SciPy when it compiles, and SciPy catches warnings: import it here, not in the background
            with suppress(ImportError):
                importlib.import_module("scipy.linalg.cython_blas")
            _numba = found
        except Exception as error:  # ImportError for an unknown NumPy version; any error for broken libraries
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
    """Let Numba catch warnings in the main thread only.

    It does so with warnings.catch_warnings, which affects the whole process: compiling in the background would swallow other
    threads' warnings.
    """
    catching = fixer.catch_warnings

    def catch_warnings(self: Any, filename: str | None = None, lineno: int | None = None) -> AbstractContextManager[None]:
        if threading.current_thread() is threading.main_thread():
            return catching(self, filename, lineno)  # type: ignore[no-any-return]
        return nullcontext()

    fixer.catch_warnings = catch_warnings


class Loop(Generic[P]):
    """A function of arrays and numbers made of plain loops, which returns nothing or a number.

    types: of its arguments, in Numba's notation with T for the float type, for compiling ahead; other types compile at the
    first call. definition: the function in Python. in_calls: whether it is called from tables. calls: loops by name that
    replace plain functions in it.
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
        """Run the loop as machine code if `compiled`, otherwise in Python, which is slow."""
        if not compiled():
            return self.definition(*args, **kwargs)
        return self.dispatcher()(*args, **kwargs)

    def is_new(self, dtype: np.dtype[Any]) -> bool:
        """Return whether this is the first call with this type, so that only one thread compiles for several nets."""
        new = dtype not in self._asked_for
        self._asked_for.add(dtype)
        return new

    def compile(self, dtype: DTypeLike) -> None:
        """If `compiled`, load the machine code for arrays of dtype from the cache on disk, or compile it."""
        if not compiled():
            return
        with self._lock:
            self.dispatcher().compile(self._types(dtype))
        if self.in_calls:
            self.entry(dtype)

    def _types(self, dtype: DTypeLike) -> str:
        return re.sub(r"\bT\b", np.dtype(dtype).name, self.types)

    def entry(self, dtype: DTypeLike) -> int:
        """Return the address of void entry(int64 *words, int64 room), which calls the loop with arguments from `words`.

        room: the address of the thread's temporary memory. The loops have to be `compiled`.
        """
        kind = np.dtype(dtype)
        if kind not in self._entries:
            with self._lock:
                if kind not in self._entries:
                    self._entries[kind] = self._make_entry(self.dispatcher(), kind)
        return int(self._entries[kind].address)

    def words(self, dtype: DTypeLike, arguments: Sequence[Any]) -> tuple[list[int], list[tuple[int, int]]]:
        """Return the words from which `entry` reads these arguments: of an array its address and lengths, of a tuple its parts.

        An array may also be a DynamicArray, given at the call, or a ScratchArray, temporary memory. Also return the places of
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
        """Return Numba's types of the arguments."""
        kinds: Sequence[Any] = _numba.core.sigutils.normalize_signature(self._types(dtype))[0]
        return kinds

    def _make_entry(self, dispatcher: Any, dtype: np.dtype[Any]) -> Any:
        dispatcher.compile(self._types(dtype))
        called = dispatcher.py_func
        names = {"call": _numba.extending.intrinsic(partial(_call_from_words, dispatcher, self._kinds(dtype)))}
        made = FunctionType(_entry.__code__, names, f"{self.__name__}_entry")
        date = os.stat(called.__code__.co_filename).st_mtime_ns  # the cache checks the date of this file, not of the loop's
        made.__qualname__, made.__module__ = f"{called.__qualname__}_{date:x}_{dtype.name}_entry", __name__
        types = _numba.core.sigutils.normalize_signature("void(CPointer(int64), int64)")
        entry = _numba.core.ccallback.CFunc(made, types, locals={}, options={})  # numba.cfunc, whose cache cannot be replaced
        entry._cache = _Cache(made)
        entry.compile()
        return entry

    def dispatcher(self) -> Any:
        """Return Numba's dispatcher for this loop."""
        if self._dispatcher is None:
            with self._lock:
                if self._dispatcher is None:
                    self._dispatcher = self._jitted()
        return self._dispatcher

    def _jitted(self) -> Any:
        made = self.definition
        assert isinstance(made, FunctionType)
        # Our loops that it calls must be Numba's objects, too.
        names = {name: value for name, value in (made.__globals__ | self.calls).items() if name in made.__code__.co_names}
        called = {name: value for name, value in names.items() if isinstance(value, Loop | Intrinsic)}
        inner = {name: value.dispatcher() for name, value in called.items()}
        function = FunctionType(made.__code__, made.__globals__ | inner, made.__name__, made.__defaults__, made.__closure__)
        function.__qualname__, function.__module__ = made.__qualname__ + _stamp(made, called.values()), made.__module__
        dispatcher = _numba.njit(function, nogil=True, error_model="numpy")
        dispatcher._cache = _Cache(function)
        return dispatcher


class _Cache:
    """A cache of a function's machine code on disk, in place of Numba's own.

    A full disk, a read-only folder or a damaged file cost time but are no errors. Only reading and writing files is inside the
    try, because a loop that has begun must not run twice, whatever a signal handler raises in it.
    """

    def __init__(self, function: FunctionType) -> None:
        caching = _numba.core.caching
        try:
            self._files = caching.FunctionCache(function)
        except RuntimeError:  # Numba finds no writable folder
            self._files = caching.NullCache()

    def load_overload(self, signature: Any, context: Any) -> Any:
        """Return the code compiled for these types, or None if it has to be compiled."""
        try:
            return self._files.load_overload(signature, context)
        except Exception:
            return None

    def save_overload(self, signature: Any, made: Any) -> None:
        """Save the code compiled for these types."""
        with suppress(Exception):
            self._files.save_overload(signature, made)


def _stamp(made: FunctionType, inner: Iterable[Loop[Any] | Intrinsic[Any]]) -> str:
    """Return a suffix for a loop's name with the facts that Numba's cache does not check.

    They are the module's name, by which Numba imports it when it loads code, and the dates of the other files on which the code
    depends: those of the functions that it calls, and of what these use of their packages, except constants.
    """
    modules = {made.__module__, *(one.__module__ for one in inner)}
    files = set[str]().union(*map(_files, modules))
    dates = [os.stat(path).st_mtime_ns for path in sorted(files - {made.__code__.co_filename})]
    return f"_{made.__module__.replace('.', '_')}_{zlib.crc32(repr(dates).encode()):x}"


@lru_cache(maxsize=256)
def _files(module: str) -> frozenset[str]:
    """Return the files of a module, and of the modules of its package or room that it uses, directly or not."""
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
    """An array given at the call. start: its first number, counted from the start of the given array."""

    start: int
    shape: tuple[int, ...]


@dataclass(frozen=True)
class ScratchArray:
    """Temporary memory of the thread that runs the call. start: in bytes from the start of the room."""

    start: int
    shape: tuple[int, ...]


def _address(array: Any, size: int) -> int:
    """Return the first word of an array for the entry. size: bytes of a number."""
    if isinstance(array, DynamicArray):
        return array.start * size
    # negative addresses are in the temporary memory
    return ~array.start if isinstance(array, ScratchArray) else address_of(array)


def _entry(words: Any, room: int) -> None:
    call(words, room)  # type: ignore[name-defined]  # noqa: F821 - one of _call_from_words


def _call_from_words(dispatcher: Any, kinds: Sequence[Any], typing: Any, words: Any, room: Any) -> Any:
    """Return Numba's definition of an intrinsic that calls the dispatcher with arguments of these types, read from words."""
    types = _numba.types

    def generate(context: Any, builder: Any, signature: Any, given: Sequence[Any]) -> Any:
        arguments = _Words(context, builder, *given)
        values = [arguments.take(kind) for kind in kinds]
        function = types.Dispatcher(dispatcher)
        context.get_function(function, typing.resolve_function_type(function, kinds, {}))(builder, values)
        return context.get_dummy_value()

    return types.void(words, room), generate


class _Words:
    """An emitter of the instructions that read a loop's arguments from words."""

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
        """Emit the reading of an array, which is C-contiguous."""
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
        return methodcaller("_getvalue")(array)  # the name of Numba's own method


class Intrinsic(Generic[P]):
    """A function for Loops, written in LLVM's instructions, of flat arrays and integers; it returns nothing or an integer.

    definition: the same in Python. write(builder, registers, *arguments) emits its instructions with llvmlite's IRBuilder, and
    returns the function's result. An array is passed as a pointer to its first number, an integer as an int64.
    """

    def __init__(self, write: Callable[..., Any], definition: Callable[P, int | None], returns: bool = False) -> None:
        self.write, self.definition, self.returns = write, definition, returns
        self.__doc__, self.__name__, self.__module__ = definition.__doc__, definition.__name__, definition.__module__
        self._intrinsic: Any = None

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Run the definition in Python. Only compiled loops use the machine code."""
        return self.definition(*args, **kwargs)

    def dispatcher(self) -> Any:
        """Return Numba's object for this function."""
        if self._intrinsic is None:

            def typed(typing: Any, *types: Any) -> Any:
                return self._typed(types)

            # Numba reads the parameters' names, and does not accept *types.
            own = inspect.signature(self.definition).parameters.values()
            names = inspect.Parameter("typing", inspect.Parameter.POSITIONAL_OR_KEYWORD), *own
            typed.__signature__ = inspect.Signature(names)  # type: ignore[attr-defined]
            self._intrinsic = _numba.extending.intrinsic(typed)
        return self._intrinsic

    def _typed(self, types: Sequence[Any]) -> Any:
        """Return the function's types and its code generator, as Numba requires."""
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
    """Return a decorator that makes a function an Intrinsic."""
    return lambda definition: Intrinsic(write, definition, returns)


@dataclass(frozen=True)
class Registers:
    """A processor's vector registers: their count, and how many numbers one holds."""

    count: int
    lanes: int


@lru_cache(maxsize=2)
def registers(bits: int) -> Registers:
    """Return this processor's registers for numbers of this many bits."""
    from llvmlite.binding import get_host_cpu_features

    features = get_host_cpu_features()
    width = 512 if features.get("avx512f") else 256 if features.get("avx2") else 128
    return Registers(32 if width == 512 or features.get("neon") else 16, width // bits)


@lru_cache(maxsize=1)
def cores_share_cache() -> bool:
    """Return whether a core's writes quickly reach its neighbours, as on AMD's, whose cores share a third cache.

    They alone have SSE4a.
    """
    from llvmlite.binding import get_host_cpu_features

    return bool(get_host_cpu_features().get("sse4a"))


def loop(
    types: str, in_calls: bool = False, calls: Mapping[str, Loop[Any]] | None = None
) -> Callable[[Callable[P, Any]], Loop[P]]:
    """Return a decorator that makes a function a Loop.

    The function may call loops and intrinsics, those of other files only directly.
    """
    return lambda definition: Loop(types, definition, in_calls, calls)


def compile_ahead(wanted: Iterable[tuple[Loop[Any], np.dtype[Any]]]) -> None:
    """Begin to compile the new ones of these loops in the background, in order.

    A call of a loop that is not ready waits for it.
    """
    asked = dict.fromkeys(wanted)
    if not asked or not compiled():  # checking loops would import Numba
        return
    if todo := [(one, dtype) for one, dtype in asked if one.is_new(dtype)]:
        # Not a daemon: Python must wait for it at exit, before LLVM is torn down.
        threading.Thread(target=_compile_all, args=(todo,), name=AHEAD).start()


def _compile_all(todo: Iterable[tuple[Loop[Any], np.dtype[Any]]]) -> None:
    for one, dtype in todo:
        if not threading.main_thread().is_alive():
            return
        one.compile(dtype)
