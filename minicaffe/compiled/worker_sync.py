"""Threads that wait for each other awake, in compiled loops and without the GIL.

Waking a sleeping thread, and later the thread that waits for its end, would take as long as a second thread saves in a small
layer. So for a short time each thread spins on a word of memory instead of sleeping.

    helper    stand_by(words, number, ...)    is FREE, spins until it is GIVEN something, which it RUNS; after some time it
                                              is ASLEEP
    caller    change(words, place, FREE, GIVEN)
              wait_for(words, helpers, ...)   spins until none of them RUNS anything, or until some time has passed

Work that a helper is GIVEN is Python's. A list of jobs, which are tables of compiled calls, it FOLLOWS without returning to
Python, and then it is FREE again. Each thread goes from job to job by itself, as soon as all calls of the previous one have
ended. A thread that comes late takes part in the remaining calls. Between two layers of a net no Python runs:

    caller    begin(jobs, words, helpers)     CALLED are those that are FREE, then those that are ASLEEP, which must be woken
              finish(jobs, words, ...)        follows the list to its end, too, until nobody else does
    sleeper   stand_by(words, number, ...)    once it is awake

A helper that is GIVEN or CALLED and does not come before the end is called off: its word becomes ASLEEP, whether it sleeps or
not. If it is awake, it is FREE as soon as it looks at its word.

A helper woken for a list does nothing in Python at its end either: it would hold the GIL when the caller wants it back.

    list: JOBS words, then the addresses of jobs; for one run
    job: HEAD words, then a row for each call: ROW words, and those from which its loop reads its arguments (jit.py)

A thread begins with the calls of its own part of a job that nobody has begun, and then helps with the others': it often reads
in the next job what it has written in this one. The loops take lists and jobs by their addresses.
"""

from __future__ import annotations

import ctypes
import os
import time
from array import array
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from minicaffe import threads
from minicaffe.blob import address_of
from minicaffe.threads import ASLEEP, GIVEN, RUNS, Pool

from . import jit
from .jit import Registers, intrinsic, loop

Words = NDArray[np.int64]

FREE, TAKEN, CALLED, FOLLOWS = range(3, 7)
"""Further states of a helper's word: it looks at its word; a caller is about to call it; it must follow a list; it follows the
list. A helper that is about to look may also be ASLEEP."""

IDLE = FREE, ASLEEP, FREE
"""A helper that was ASLEEP may have become FREE in the meantime, so ask for FREE again."""

LIST, NUMBER = 1, 2
"""The words after it: the list's address, and the helper's number there. The caller's number is 0."""

STEP = 16
"""The distance between two helpers' words: two cache lines, which a processor fetches together."""

ENDED, COUNT = 0, STEP
WIDTH, ROOM, EACH, MOST_THREADS, FLAGS, FLAG_COUNT, HEAD = *range(COUNT + 1, COUNT + 7), 2 * STEP
"""A job's words: the calls that have ended; the number of calls; the words of a row; the address of the threads' temporary
memory, the bytes for each, and for how many threads; the address and number of the job's flags (float32); where the rows
begin."""

BEGUN, ENTRY, ROW = range(3)
"""A row's words: whether its call has begun; the address of its loop's entry; where its arguments begin."""

ACTIVE, FIRST, END, JOBS = range(4)
"""A list's words: the number of helpers that follow it, or are about to; the places of the first job and of the one after the
last; where the addresses begin."""

FOREVER = 1 << 62
"""A number of spins that is never reached."""

MOST = 62
"""Most helpers that can stand by and be called: bits of a whole number."""

SECONDS = 1e-3
"""Seconds for which a thread spins before it sleeps: about the time between two layers of a net that use several threads."""

PAUSE = 8e-6
"""Seconds for which a helper leaves the GIL to the caller after it was given work. The caller is about to release the GIL for
its own part, and a thread that finds it taken sleeps."""


def _emit_store(builder: Any, registers: Registers, *given: Any) -> None:
    words, place, value = given
    builder.store_atomic(value, builder.gep(words, [place]), "release", 8)


@intrinsic(_emit_store)
def store(words: Words, place: int, value: int) -> None:
    """Set words[place] to value. A thread that sees it also sees everything written before."""
    words[place] = value


def _emit_wait_while(builder: Any, registers: Registers, *given: Any) -> None:
    from llvmlite import ir

    words, place, value, most = given
    int64, before, word = place.type, builder.block, builder.gep(words, [place])
    look, again, end = (builder.append_basic_block(name) for name in ("look", "again", "end"))
    builder.branch(look)
    builder.position_at_end(look)
    looks = builder.phi(int64)
    looks.add_incoming(int64(0), before)
    builder.cbranch(builder.icmp_signed("==", builder.load_atomic(word, "acquire", 8), value), again, end)
    builder.position_at_end(again)
    if "x86" in builder.module.triple:  # lets the processor rest between spins
        name, module = "llvm.x86.sse2.pause", builder.module
        builder.call(module.globals.get(name) or ir.Function(module, ir.FunctionType(ir.VoidType(), []), name), [])
    following = builder.add(looks, int64(1))
    looks.add_incoming(following, again)
    builder.cbranch(builder.icmp_signed("<", following, most), look, end)
    builder.position_at_end(end)


@intrinsic(_emit_wait_while)
def wait_while(words: Words, place: int, value: int, most: int) -> None:
    """Spin while words[place] is value: at least once, at most `most` times."""
    for _ in range(most):
        if words[place] != value:
            return


def _emit_exchange(builder: Any, registers: Registers, *given: Any) -> Any:
    words, place, old, new = given
    result = builder.cmpxchg(builder.gep(words, [place]), old, new, "acq_rel", "acquire")
    return builder.extract_value(result, 0)


@intrinsic(_emit_exchange, returns=True)
def exchange(words: Words, place: int, old: int, new: int) -> int:
    """Atomically set words[place] to new if it is old; return its previous value."""
    was = int(words[place])
    if was == old:
        words[place] = new
    return was


def _emit_place_of(builder: Any, registers: Registers, *given: Any) -> Any:
    words, address = given
    return builder.ashr(builder.sub(address, builder.ptrtoint(words, address.type)), address.type(3))


@intrinsic(_emit_place_of, returns=True)
def place_of(words: Words, address: int) -> int:
    """Return the index into words for this address, which may be outside words."""
    return (address - address_of(words)) >> 3


def _emit_load(builder: Any, registers: Registers, *given: Any) -> Any:
    words, place = given
    return builder.load_atomic(builder.gep(words, [place]), "acquire", 8)


@intrinsic(_emit_load, returns=True)
def load(words: Words, place: int) -> int:
    """Return words[place]. Everything written before its store is visible then."""
    return int(words[place])


def _emit_is_flagged(builder: Any, registers: Registers, *given: Any) -> Any:
    from llvmlite import ir

    words, job = given
    int64, number, before = job.type, ir.FloatType(), builder.block
    look, more, end = (builder.append_basic_block(name) for name in ("look", "more", "end"))
    flags, count = (builder.load(builder.gep(words, [builder.add(job, int64(place))])) for place in (FLAGS, FLAG_COUNT))
    flags = builder.inttoptr(flags, number.as_pointer())
    builder.branch(look)
    builder.position_at_end(look)
    i = builder.phi(int64)
    i.add_incoming(int64(0), before)
    builder.cbranch(builder.icmp_signed("<", i, count), more, end)
    builder.position_at_end(more)
    is_zero = builder.fcmp_ordered("==", builder.load(builder.gep(flags, [i])), number(0))
    i.add_incoming(builder.add(i, int64(1)), more)
    builder.cbranch(is_zero, look, end)
    builder.position_at_end(end)
    return builder.zext(builder.icmp_signed("<", i, count), int64)


@intrinsic(_emit_is_flagged, returns=True)
def is_flagged(words: Words, job: int) -> int:
    """Return whether one of the flags of the job at this place is nonzero or NaN."""
    raise NotImplementedError


def _emit_run_calls(builder: Any, registers: Registers, *given: Any) -> None:
    from llvmlite import ir

    _, job, number = given
    int64, block = job.type, builder.append_basic_block
    words = builder.inttoptr(job, int64.as_pointer())
    of_job = COUNT, WIDTH, EACH, ROOM, MOST_THREADS
    count, width, each, room, threads = (builder.load(builder.gep(words, [int64(place)])) for place in of_job)
    room = builder.add(room, builder.mul(each, number))
    first = builder.udiv(builder.mul(number, count), threads)
    before, again, take, call, on, end = builder.block, *map(block, ("again", "take", "call", "on", "end"))
    builder.branch(again)
    builder.position_at_end(again)
    i = builder.phi(int64)
    builder.cbranch(builder.icmp_signed("<", i, count), take, end)
    builder.position_at_end(take)
    place = builder.urem(builder.add(first, i), count)
    row = builder.gep(words, [builder.add(int64(HEAD), builder.mul(place, width))])
    begun, entry, arguments = (builder.gep(row, [int64(place)]) for place in (BEGUN, ENTRY, ROW))
    was = builder.atomic_rmw("xchg", begun, int64(1), "acq_rel")
    builder.cbranch(builder.icmp_signed("==", was, int64(0)), call, on)
    builder.position_at_end(call)
    function = ir.FunctionType(ir.VoidType(), [words.type, int64]).as_pointer()
    builder.call(builder.inttoptr(builder.load(entry), function), [arguments, room])
    builder.atomic_rmw("add", builder.gep(words, [int64(ENDED)]), int64(1), "acq_rel")
    builder.branch(on)
    builder.position_at_end(on)
    following = builder.add(i, int64(1))
    for value, came_from in ((int64(0), before), (following, on)):
        i.add_incoming(value, came_from)
    builder.branch(again)
    builder.position_at_end(end)


@intrinsic(_emit_run_calls)
def run_calls(words: Words, job: int, number: int) -> None:
    """Run calls of the job at this address, one after the other, until all have been begun.

    number: the thread's, which selects the part that comes first, and its room. words: any.
    """
    raise NotImplementedError


def _emit_add(builder: Any, registers: Registers, *given: Any) -> Any:
    words, place, change = given
    return builder.atomic_rmw("add", builder.gep(words, [place]), change, "seq_cst")


@intrinsic(_emit_add, returns=True)
def add(words: Words, place: int, change: int) -> int:
    """Atomically add change to words[place]; return its previous value."""
    was = int(words[place])
    words[place] += change
    return was


@loop("int64, int64[::1], int64, int64, int64")
def follow(jobs: int, words: Words, number: int, place: int, most: int) -> int:
    """Run calls of the jobs of the list at this address, from the job at `place` on.

    number: the thread's, and its room's; the caller's is 0. words: any.

    Returns the place of a job if others still run its calls after `most` spins; at the end, or after a job that is flagged, -1
    - place.
    """
    mine = place_of(words, jobs)
    end = load(words, mine + END)
    while place < end:
        address = load(words, mine + JOBS + place)
        job = place_of(words, address)
        calls, left = load(words, job + COUNT), most
        ended = load(words, job + ENDED)
        if ended < calls and number < load(words, job + MOST_THREADS):
            run_calls(words, address, number)
            ended = load(words, job + ENDED)
        while ended < calls:
            if left <= 0:
                return place
            wait_while(words, job + ENDED, ended, 1000)
            ended, left = load(words, job + ENDED), left - 1000
        place += 1
        if is_flagged(words, job):
            return -1 - place
    return -1 - place


@loop("int64[::1], int64, int64, int64")
def stand_by(words: Words, number: int, most: int, pause: int) -> int:
    """Spin until the helper RUNS what it was GIVEN, and then `pause` times more; after `most` spins it is ASLEEP.

    If it is CALLED, it follows the list and spins again. Returns whether it is ASLEEP.
    """
    place = number * STEP
    while True:
        exchange(words, place, ASLEEP, FREE)
        wait_while(words, place, FREE, most)
        if exchange(words, place, FREE, ASLEEP) == FREE:
            return 1
        if exchange(words, place, GIVEN, RUNS) == GIVEN:
            wait_while(words, place, RUNS, pause)
            return 0
        if exchange(words, place, CALLED, FOLLOWS) == CALLED:
            jobs = words[place + LIST]
            mine = place_of(words, jobs)
            at_job = load(words, mine + FIRST)
            while at_job >= 0:
                at_job = follow(jobs, words, words[place + NUMBER], at_job, most)
            store(words, place, FREE)  # before the caller can get another list
            add(words, mine + ACTIVE, -1)


@loop("int64[::1], int64, int64, int64")
def change(words: Words, place: int, old: int, new: int) -> int:
    """Atomically set words[place] to new if it is old; return whether it was."""
    return int(exchange(words, place, old, new) == old)


@loop("int64[::1], int64, int64")
def wait_for(words: Words, helpers: int, most: int) -> None:
    """Spin until none of the helpers whose bits are set RUNS anything, at most `most` times for each."""
    helper = 0
    while helpers >> helper:
        if helpers >> helper & 1:
            wait_while(words, helper * STEP, RUNS, most)
        helper += 1


@loop("int64, int64[::1], int64")
def begin(jobs: int, words: Words, helpers: int) -> int:
    """Let at most `helpers` helpers follow the new list at this address, from FIRST to END: FREE ones first, then ASLEEP ones.

    Returns the latter as bits: they have to be woken.
    """
    mine, called, asleep = place_of(words, jobs), 0, 0
    for place in range(load(words, mine + FIRST), load(words, mine + END)):
        job = place_of(words, load(words, mine + JOBS + place))
        for row in range(load(words, job + COUNT)):
            store(words, job + HEAD + row * load(words, job + WIDTH) + BEGUN, 0)
        store(words, job + ENDED, 0)
    for was in IDLE:
        for number in range(min(MOST, len(words) // STEP)):
            place = number * STEP
            if called < helpers and exchange(words, place, was, TAKEN) == was:
                called += 1
                add(words, mine + ACTIVE, 1)
                words[place + LIST], words[place + NUMBER] = jobs, called
                store(words, place, CALLED)
                if was == ASLEEP:
                    asleep |= 1 << number
    return asleep


@loop("int64, int64[::1], int64")
def finish(jobs: int, words: Words, most: int) -> int:
    """Follow the list to its end, as its caller, and call off the helpers that have not come.

    Returns -1 - the place after the last job that ran, once nobody else follows the list; after `most` spins 0.
    """
    mine = place_of(words, jobs)
    place = follow(jobs, words, 0, load(words, mine + FIRST), most)
    if place >= 0:
        return 0
    active = load(words, mine + ACTIVE)
    while active != 0:
        for number in range(min(MOST, len(words) // STEP)):
            helper = number * STEP
            if load(words, helper + LIST) == jobs and exchange(words, helper, CALLED, TAKEN) == CALLED:
                if load(words, helper + LIST) == jobs:
                    add(words, mine + ACTIVE, -1)
                    store(words, helper, ASLEEP)
                else:  # the helper came in the meantime, and another caller has called it since
                    store(words, helper, CALLED)
        active = load(words, mine + ACTIVE)
        if active != 0:
            if most <= 0:
                return 0
            wait_while(words, mine + ACTIVE, active, 1000)
            active, most = load(words, mine + ACTIVE), most - 1000
    return int(place)


class MachineCode(NamedTuple):
    """The functions by which threads change words, as machine code, even if loops run in another way by then.

    finish is called as C: no signal is handled between an error and its beginning.
    """

    finish: Callable[[int, Words, int], int]
    begin: Callable[[int, Words, int], int]
    stand_by: Callable[[Words, int, int, int], int]
    change: Callable[[Words, int, int, int], int]
    wait_for: Callable[[Words, int, int], None]


@lru_cache(maxsize=1)
def machine_code() -> MachineCode:
    """Return the loops that change words, compiled."""
    wanted = finish, begin, stand_by, change, wait_for
    for one in wanted:
        one.compile(np.int64)
    return MachineCode(*(one.dispatcher() for one in wanted))


@lru_cache(maxsize=1)
def looks() -> tuple[int, int]:
    """Return how many spins take SECONDS and PAUSE on this machine."""
    words, many, times = np.zeros(STEP, np.int64), 400, []
    for _ in range(10):  # take the fastest, because the system may interrupt any
        start = time.perf_counter()
        machine_code().stand_by(words, 0, many, 1)
        times.append(time.perf_counter() - start)
    each = max(1e-10, min(times) / many)
    return max(1, round(SECONDS / each)), max(1, round(PAUSE / each))


class Apart:
    """Sleeping threads, by the system's numbers, that must wake on another core than their waker's.

    In a virtual machine Linux mistakes a sleeping core for one that the host has taken away, and puts a woken thread on the
    waker's core. Both then share that core, and the other core is idle, until Linux moves one of them. That takes as long as
    many nets. So a thread may not use the waker's core while it wakes.
    """

    def __init__(self, threads: Iterable[int]) -> None:
        self._threads = list(threads)
        self._sent: list[tuple[int, set[int]] | None] = [None] * len(self._threads)
        """The core from which each thread was sent away, and the cores on which it may run once it is awake."""

    def send_away(self, number: int) -> None:
        """Keep the thread with this number, which the calling thread is about to wake, off the caller's core."""
        if (here := _this_core()) < 0:
            return
        if (before := self._sent[number]) and before[0] == here:
            return
        with suppress(OSError):  # the thread has ended, or the system forbids it
            cores = before[1] if before else os.sched_getaffinity(self._threads[number])
            if not before and (meanwhile := self._sent[number]):
                cores = meanwhile[1]  # another thread has sent it away
            if here in cores and len(cores) > 1:
                self._sent[number] = here, cores  # first, because an interrupt may follow
                os.sched_setaffinity(self._threads[number], cores - {here})

    def let_back(self, number: int) -> None:
        """Let the calling thread, which has this number and is awake, use all its cores again."""
        before, self._sent[number] = self._sent[number], None
        if before:
            try:  # noqa: SIM105 - no other call, in which another thread might look at both
                os.sched_setaffinity(0, before[1])
            except OSError:
                pass


def _this_core() -> int:
    """Return the core on which the calling thread runs; -1 if unknown."""
    getcpu = _getcpu()
    return int(getcpu()) if getcpu else -1


@lru_cache(maxsize=1)
def _getcpu() -> Callable[[], int] | None:
    """Return C's sched_getcpu on systems where threads can be bound to cores (Linux), else None."""
    return getattr(ctypes.PyDLL(None), "sched_getcpu", None) if hasattr(os, "sched_setaffinity") else None


NOBODY: Words = np.zeros(0, np.int64)
"""The words of no helpers."""


class AwakePool(Pool):
    """A pool whose threads spin for a while before they sleep, and follow lists of jobs."""

    idle = IDLE

    def __init__(self, count: int) -> None:
        self._code = machine_code()  # threads must not compile: the process may end meanwhile
        self.words = np.full(count * STEP, ASLEEP, np.int64)
        """Each thread's word, and the words that belong to it."""
        self.with_cores = min(count, threads.available_cores() - 1)
        """The number of threads that have a core besides the caller's."""
        super().__init__(count)
        self._apart = Apart(thread.native_id or -1 for thread in self.threads)

    def state(self, number: int) -> int:
        return int(self.words[number * STEP])

    def change(self, number: int, old: int, new: int) -> bool:
        return bool(self._code.change(self.words, number * STEP, old, new))

    def sleeps(self, number: int) -> None:
        self.words[number * STEP] = ASLEEP

    def wake(self, number: int) -> None:
        if self.wakers[number].empty():  # otherwise the thread is about to look, or to end
            if jit.in_use():  # only with compiled loops: without, threads sleep too often for this to pay
                self._apart.send_away(number)
            self.wakers[number].put(True)

    def is_awake(self, number: int) -> None:
        self._apart.let_back(number)

    def has_come(self, number: int) -> bool:
        """Let the thread, which is awake, spin for a while and follow lists; return whether it runs what it was given."""
        some = looks() if self._stays_awake() and number < MOST else (1, 1)
        return not self._code.stand_by(self.words, number, *some)

    def look_at(self, numbers: Sequence[int]) -> None:
        mine = [number for number in numbers if number < MOST]
        if mine and self._stays_awake():
            self._code.wait_for(self.words, sum(1 << number for number in mine), looks()[0])

    def _stays_awake(self) -> bool:
        """Return whether threads and callers spin: only if loops are compiled and each thread has a core."""
        return jit.in_use() and self.with_cores == len(self.given)

    def end(self) -> None:
        """Stop the threads and wait for them: compiled code is about to be freed."""
        self.stop()
        for thread in self.threads:
            thread.join(2 * SECONDS)


def run_jobs(jobs: array[int], widest: int) -> int:
    """Run the jobs of the list (int64), one after the other, each on all threads including the caller's.

    widest: most calls of a job. Returns the place after the last job that ran: the list's end, or after a flagged job. The
    loops have to be compiled.
    """
    (address, _), words, many, left = jobs.buffer_info(), NOBODY, 0, 0  # faster than through a NumPy array
    code = machine_code()  # before a pool is made, for which others may wait
    helpers = 0 if threads.is_working() else min(threads.get_num_threads(), widest) - 1
    if helpers > 0:
        threads.use_pool(AwakePool)  # from the first list on, so that its threads spin
        pool = threads.the_pool()
        assert isinstance(pool, AwakePool)
        words, many, helpers = pool.words, looks()[0], min(helpers, pool.with_cores)
    try:
        asleep = code.begin(address, words, max(0, helpers))
        while asleep:
            number = asleep.bit_length() - 1
            pool.wake(number)
            asleep -= 1 << number
        while (left := code.finish(address, words, many)) >= 0:
            time.sleep(0)
    finally:  # also after an error: helpers read the jobs and write to the caller's arrays
        if left >= 0:
            left = code.finish(address, words, FOREVER)
    return -1 - left
