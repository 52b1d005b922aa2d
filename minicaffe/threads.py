"""The number of threads that minicaffe computes on: one setting for BLAS and for our own pool.

    set_num_threads(2)                          or MINICAFFE_NUM_THREADS=2, or --threads 2
    run(partial(step, part) for part in parts(len(x)))

NumPy releases the GIL in its loops and products, so the pool's threads run in parallel. Meanwhile BLAS is held at one
thread: dividing a layer's work into blocks that stay in a core's cache beats dividing each product. Outside of run, BLAS
uses all threads, except between the layers of a net (computing): its threads spin for about 20 ms after a product and would
take the pool's cores. Sums do not depend on the number of threads, since each task writes to its own part of the output. How
BLAS rounds a product's numbers may depend on its size, and so on the cuts (OpenBLAS's kernels for AVX-512 round alike).

Work on large arrays in blocks that stay in a core's cache, distributed over the threads.

    each_block(x.shape, step)           step(index) for every block; x[index] is one

Several passes over a whole blob read it from memory several times; over a block, all passes but the first read the cache.
"""

from __future__ import annotations

import atexit
import math
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import pairwise, product
from queue import SimpleQueue
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from . import limits
from .blob import aligned_zeros
from .errors import Error
from .process_fork import in_child, renewed

Task = Callable[[], object]

VARIABLE = "MINICAFFE_NUM_THREADS"
MOST = 4096
"""More threads than any machine has cores."""
BUFFER = 512
"""Elements of NumPy's buffer in short_buffers. Shorter rows are still copied, which costs less than a loop for each."""

_count: int | None = None
_was_set = False
_pool: Pool | None = None
lock = renewed(threading.RLock())
"""Held while the pool is created or dropped, or tasks are given to threads of the pool or called off."""
_here = threading.local()


def get_num_threads() -> int:
    """Return the number of threads that layers compute on: the one that was set, else BLAS's.

    Raises Error if none was set and MINICAFFE_NUM_THREADS is not a valid number.
    """
    global _count
    if _count is None:
        check_variable()
        _count = _blas.threads() or available_cores()
    return _count


def available_cores() -> int:
    """Return the number of cores that this process may use (taskset, containers)."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def is_set() -> bool:
    """Return whether the number was set, by set_num_threads, MINICAFFE_NUM_THREADS or --threads."""
    return _was_set


def set_num_threads(count: int) -> None:
    """Compute on this many threads, BLAS included (in the whole process). Raises Error unless it is from 1 to MOST."""
    global _count, _pool, _was_set
    if isinstance(count, bool) or not isinstance(count, int | np.integer) or not 1 <= count <= MOST:
        raise Error(f"the number of threads must be a whole number, at least 1 and at most {MOST}, got {count!r}")
    count = int(count)
    _blas.set_threads(count)
    with lock:
        _count, old, _pool, _was_set = count, _pool, None, True
    if old is not None:
        old.stop()  # running tasks finish


@contextmanager
def threads_kept() -> Iterator[None]:
    """Restore, after the block, the number of threads, and whether it was set."""
    global _was_set
    before = get_num_threads(), _was_set
    try:
        yield
    finally:
        set_num_threads(before[0])
        _was_set = before[1]


def check_variable() -> None:
    """Raise Error if MINICAFFE_NUM_THREADS is set to an invalid number of threads."""
    text = os.environ.get(VARIABLE) or "1"
    if not (text.isdecimal() and len(text) < 20 and 1 <= int(text) <= MOST):  # int() refuses more than 4300 digits
        raise Error(f"{VARIABLE} must be a whole number of threads, at least 1 and at most {MOST}, got {text!r}")


def cut(length: int, count: int) -> list[slice]:
    """Return range(length) in `count` about equal slices, at most one for each number.

    The longer slices are spread among the others, the first in front. So threads end at about the same time, whether they take
    slices one by one or each has its own, side by side.
    """
    count = max(1, min(count, length))
    ends = [-(-length * i // count) for i in range(count + 1)]
    return [slice(a, b) for a, b in pairwise(ends)]


def parts(length: int, least: int = 1, each: int = 1, threads: int | None = None) -> list[slice]:
    """Return range(length) cut into about equal slices, `each` per thread, of at least `least` where length allows.

    threads: their number; None: the number that layers compute on now. A caller that keeps something by this number must pass
    it.
    """
    threads = threads or get_num_threads()
    count = min(threads * each, length // max(1, least))
    # a multiple of `threads`: with three slices on two threads, one thread would have two
    return cut(length, count // threads * threads or count)


def run(tasks: Iterable[Task]) -> None:
    """Run all tasks on all threads, the caller's included, and return when all are done.

    A task that calls run executes those tasks on its own thread. After an error no further task begins; the error is raised
    when the running ones have ended.
    """
    todo = list(tasks)
    if not getattr(_here, "short", False):  # in a net, entering short_buffers again would cost more than a small layer
        with short_buffers():
            run(todo)
        return
    helpers = min(get_num_threads(), len(todo)) - 1  # the caller is one of the threads
    if helpers < 1 or is_working():
        for task in todo:
            task()
        return
    todo.reverse()  # One task at a time, so that a slow task holds up no others. list.pop is atomic.
    failed: list[bool] = []
    errors: Any = np.geterr()

    def work() -> None:
        _here.working = True
        try:
            while not failed:
                try:
                    task = todo.pop()
                except IndexError:
                    return
                task()
        except BaseException:
            failed.append(True)
            raise
        finally:
            _here.working = False

    def help_() -> None:
        with np.errstate(**errors):  # NumPy's error state belongs to one thread
            work()

    help_with = _Help(help_, [], [], [], SimpleQueue())
    with _blas.on_one_thread():
        pool = the_pool()
        try:
            pool.put(help_with, helpers)
            work()
        finally:  # also after an error: tasks write to the caller's arrays
            del todo[:]
            try:
                pool.call_off(help_with)
            except BaseException:  # Ctrl-C during the wait
                pool.call_off(help_with)
                raise
        if help_with.errors:
            try:
                raise help_with.errors[0]
            finally:
                help_with.errors.clear()  # tracebacks keep the tasks' arrays alive


@contextmanager
def on_this_thread() -> Iterator[None]:
    """In the block, run executes its tasks one by one on the calling thread.

    parts still cuts for all threads, so that results are bit for bit those of all threads.
    """
    before = getattr(_here, "working", False)
    _here.working = True
    try:
        with _blas.on_one_thread():
            yield
    finally:
        _here.working = before


@contextmanager
def computing() -> Iterator[None]:
    """Keep BLAS on one thread and NumPy's buffers short in a block that runs layer after layer."""
    with _blas.on_one_thread(), short_buffers():
        yield


@contextmanager
def short_buffers() -> Iterator[None]:
    """In the block, let this thread's ufuncs compute in place on rows of at least BUFFER elements, several times as fast.

    A ufunc over several axes (y += bias[:, None], a part of a map) copies rows shorter than its buffer of 8192 elements into
    it, even if nothing has to be converted. Results are bitwise equal, except for sums over several axes of non-contiguous
    arrays (before NumPy 2.3: all sums).
    """
    before, nested = np.setbufsize(BUFFER), getattr(_here, "short", False)
    _here.short = True
    try:
        yield
    finally:
        _here.short = nested
        np.setbufsize(before)


class _Help(NamedTuple):
    """The work of the pool's threads for a caller of run.

    came, left: the indices of the threads that have begun and ended; errors: their exceptions; bell: a queue that each puts an
    item in when it has ended.
    """

    work: Task
    came: list[int]
    left: list[int]
    errors: list[BaseException]
    bell: SimpleQueue[None]


ASLEEP, GIVEN, RUNS = range(3)
"""The states of a thread of the pool: it waits to be woken; it was given work; it does the work."""


class Pool:
    """A pool of threads that run the work they are given.

    It uses queues written in C and no futures: to wake one takes a tenth of a small layer's time.
    """

    idle: ClassVar[tuple[int, ...]] = (ASLEEP,)
    """The states of threads that have nothing to do, in the order in which they are asked."""

    def __init__(self, count: int) -> None:
        self.wakers: list[SimpleQueue[bool]] = [SimpleQueue() for _ in range(count)]
        """Each sleeping thread's queue. True wakes the thread to look at its state; False ends it."""
        self.given: list[_Help | None] = [None] * count
        """The work that each thread was given, and then runs."""
        self._states = [ASLEEP] * count
        self.threads = [
            threading.Thread(target=self._serve, args=[number], name="minicaffe", daemon=True) for number in range(count)
        ]
        for thread in self.threads:
            thread.start()

    def put(self, help_: _Help, times: int) -> None:
        """Give the work to `times` threads, or to all that are idle if there are fewer."""
        with lock:
            for was, number in product(self.idle, range(len(self.given))):
                if times and self.state(number) == was:
                    self.given[number] = help_
                    if self.change(number, was, GIVEN):
                        times -= 1
                        if was == ASLEEP:
                            self.wake(number)

    def call_off(self, help_: _Help) -> None:
        """Call off the helpers that have not begun, and wait until the others have ended.

        May be called again, after an error.
        """
        with lock:
            for number, given in enumerate(self.given):
                if given is help_ and (self.change(number, GIVEN, ASLEEP) or self.state(number) != RUNS):
                    self.given[number] = None
        self.look_at([number for number, given in enumerate(self.given) if given is help_])
        # A helper that has begun may not yet be in `came`, so check `given` first.
        while any(given is help_ for given in self.given) or len(help_.left) < len(help_.came):
            help_.bell.get()

    def stop(self) -> None:
        """End the threads after what they have been given."""
        for waker in self.wakers:
            waker.put(False)

    def _serve(self, number: int) -> None:
        _blas.hold_this_thread()
        with short_buffers():
            while True:
                while not self.has_come(number):
                    if not self.wakers[number].get():
                        return
                    self.is_awake(number)
                self._run(number)

    def _run(self, number: int) -> None:
        """Run the work that the thread was given, and hold nothing of it while it waits."""
        help_ = self.given[number]
        assert help_ is not None
        help_.came.append(number)
        try:
            help_.work()
        except BaseException as error:
            help_.errors.append(error)
        self.given[number] = None  # before sleeps(): after it, the thread may be given new work
        self.sleeps(number)
        help_.left.append(number)
        help_.bell.put(None)

    # Methods that a kind of pool may override.

    def state(self, number: int) -> int:
        """Return the thread's state."""
        return self._states[number]

    def change(self, number: int, old: int, new: int) -> bool:
        """Change the thread's state from old to new; return False if it was not old. Call under lock."""
        if was_old := self._states[number] == old:
            self._states[number] = new
        return was_old

    def sleeps(self, number: int) -> None:
        """Note that this thread has ended its work: it is about to look for more, or to sleep."""
        self._states[number] = ASLEEP

    def wake(self, number: int) -> None:
        """Wake a thread that was asleep when it was given work."""
        if self.wakers[number].empty():  # otherwise the thread is about to look, or to end
            self.wakers[number].put(True)

    def is_awake(self, number: int) -> None:
        """Note that this thread was woken."""

    def has_come(self, number: int) -> bool:
        """Return whether this thread, which is awake, begins the work that it was given."""
        with lock:
            return self.change(number, GIVEN, RUNS)

    def look_at(self, numbers: Sequence[int]) -> None:
        """Note that the caller is about to wait for these threads."""

    def end(self) -> None:
        """End the threads with the process."""


_pool_type: type[Pool] = Pool


def use_pool(kind: type[Pool]) -> None:
    """Use a pool of this kind from now on."""
    global _pool, _pool_type
    if kind is _pool_type:
        return
    with lock:
        old, _pool, _pool_type = _pool, None, kind
    if old is not None:
        old.stop()


def the_pool() -> Pool:
    """Return the pool. The first call makes it."""
    global _pool
    with lock:
        if _pool is None:
            _pool = _pool_type(max(1, get_num_threads() - 1))
        return _pool


def is_working() -> bool:
    """Return whether this thread runs a task, whose own tasks run on it alone."""
    return getattr(_here, "working", False)


class _Blas:
    """The BLAS libraries that NumPy has loaded, looked up once, and their numbers of threads."""

    def __init__(self) -> None:
        self._lock = renewed(threading.Lock())
        self._found: list[Any] | None = None
        self._users = set[object]()
        """One of each block of on_one_thread that is under way."""
        self._before: list[int] = []

    def _libraries(self) -> list[Any]:
        if self._found is None:
            from threadpoolctl import ThreadpoolController

            self._found = list(ThreadpoolController().select(user_api="blas").lib_controllers)
        return self._found

    def threads(self) -> int:
        """Return the greatest number of threads of any library; 0 without one."""
        return max((library.num_threads for library in self._libraries()), default=0)

    def set_threads(self, count: int) -> None:
        with self._lock:
            self._before = [count] * len(self._libraries())  # on_one_thread restores these numbers
            self._set([1 if self._users else count] * len(self._before))

    @contextmanager
    def on_one_thread(self) -> Iterator[None]:
        """Compute each product on one thread until the last of the overlapping blocks ends, also if Ctrl-C interrupts it."""
        user = object()
        try:
            with self._lock:
                if not self._users:
                    self._before = [library.num_threads for library in self._libraries()]
                self._users.add(user)
                # setting the numbers takes as long as a small layer
                if len(self._users) == 1 and max(self._before, default=1) > 1:
                    self._set([1] * len(self._before))
            yield
        finally:
            try:
                self._leave(user)
            except BaseException:  # Ctrl-C may interrupt the first try
                self._leave(user)
                raise

    def _leave(self, user: object) -> None:
        """End a user's block, if it has begun and not ended."""
        with self._lock:
            if self._users == {user} and max(self._before, default=1) > 1:
                self._set(self._before)
            self._users.discard(user)

    def _set(self, counts: list[int]) -> None:
        for library, count in zip(self._libraries(), counts, strict=True):
            if free := getattr(library, "clear_controlling_thread", None):
                free(force=True)  # threadpoolctl obeys a single thread, but several call it
            library.set_num_threads(count)

    def hold_this_thread(self) -> None:
        """Set this pool thread's number of threads to 1 where BLAS uses OpenMP, which has one number per calling thread."""
        for library in self._libraries():
            if getattr(library, "threading_layer", None) == "openmp":
                library.set_num_threads(1)

    def forget_users(self) -> None:
        """Drop the blocks of other threads, which a forked process lacks."""
        if self._users:
            self._users.clear()
            self._set(self._before)


def _forget_threads() -> None:
    """Drop the pool and the blocks of threads that a forked child lacks."""
    global _pool
    _pool = None
    _blas.forget_users()
    _here.working = False


_blas = _Blas()


@atexit.register
def _end() -> None:
    if _pool is not None:
        _pool.end()


in_child(_forget_threads)

if os.environ.get(VARIABLE):
    with suppress(Error):  # raised later: when the number is needed, or when the command line starts
        check_variable()
        set_num_threads(int(os.environ[VARIABLE]))


Index = tuple[slice, ...]

BLOCK = 1 << 17
"""About the elements of a block: 512 KB of float32. With 128 KB, two threads lose more time to the GIL than they save; 2 MB do
not stay in a core's cache."""

MOST_KEPT = 160 << 20
"""Bytes of temporary arrays that a thread keeps for its next task. In training, the factors of R-FCN ResNet-50's rpn_conv/3x3
take 144 MB. Allocating them in each pass is slow where the system has to ask its host for memory."""

_kept = threading.local()


def blocks(shape: Sequence[int], size: int | None = None) -> list[Index]:
    """Return the indices of blocks of at most `size` elements (default BLOCK) of an array, cut along the first axes."""
    left, cuts = BLOCK if size is None else size, []
    for length in reversed(shape):
        step = max(1, min(length, left))
        left //= step  # indices of the next outer axis that still fit; 0 or 1 cuts that axis into single indices
        cuts.append([slice(start, min(start + step, length)) for start in range(0, length, step)])
    return list(product(*reversed(cuts)))


def each_block(shape: Sequence[int], step: Callable[[Index], object], size: int | None = None) -> None:
    """Call step(index) for every block of an array of this shape, on all threads. A step may write to its block only."""
    todo = blocks(shape, size)
    # two for each thread, because threads finish at different times
    run(partial(_steps, step, todo[part]) for part in parts(len(todo), each=2))


def _steps(step: Callable[[Index], object], indices: Sequence[Index]) -> None:
    for index in indices:
        step(index)


class Scratch:
    """Temporary arrays, reused from block to block, because each new one costs a page fault per page. One object a task."""

    def __init__(self, dtype: DTypeLike = np.float32) -> None:
        self.dtype = np.dtype(dtype)
        self._held: dict[str, NDArray[Any] | None] = {}

    def __call__(self, name: str, *shape: int, dtype: DTypeLike | None = None) -> NDArray[Any]:
        """Return an array of this shape in the memory of the last one with this name. dtype: by default the object's.

        It begins at a line of the cache. Raises LimitError above limits.bytes: a layer's padding and dilation can ask for any
        size.
        """
        kind = self.dtype if dtype is None else np.dtype(dtype)
        size, held = math.prod(shape), self._held.get(name)
        if held is None or held.size < size or held.dtype != kind:
            limits.check(f"a temporary array of shape {shape}", size * kind.itemsize, "bytes")
            held = self._held[name] = None  # free the old memory before allocating more
            held = self._held[name] = aligned_zeros(size, kind)
        return held[:size].reshape(shape)

    @property
    def bytes(self) -> int:
        """The number of bytes that it holds."""
        return sum(held.nbytes for held in self._held.values() if held is not None)


@contextmanager
def kept_scratch(dtype: DTypeLike) -> Iterator[Scratch]:
    """Yield this thread's Scratch, kept from task to task and from layer to layer. It serves one task at a time.

    New memory of some MB would be given back to the system after each task, and then cost a page fault for each page.
    """
    scratch: Scratch | None = getattr(_kept, "scratch", None)
    if scratch is None or scratch.dtype != dtype:
        scratch = _kept.scratch = Scratch(dtype)
    yield scratch
    if scratch.bytes > MOST_KEPT:
        _kept.scratch = None
