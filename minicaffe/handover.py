"""Threads that wait for each other awake, in compiled loops and without the GIL.

To wake a thread that sleeps takes 20 to 40 us, and as long again to wake the one that waits for its end: with layers of 100 us
a second thread would gain nothing. So for a short time each looks at a word of memory again and again instead of sleeping.

    helper    stand_by(words, number, ...)    is FREE, looks until it is GIVEN something, or for so many looks
    caller    take(words, number)             then words[number * STEP] = GIVEN
              wait_for(words, helpers, ...)   until none of them is GIVEN any more, or for so many looks

What a helper is GIVEN is Python's. A job, a table of compiled calls, it runs where it stands, and is FREE again:

    caller    begin(job, words, helpers)      CALLED are those that are free
              finish(job, words, ...)         runs calls itself, until none is left and none is running
              share(jobs, state, words, ...)  both, for job after job: between two layers of a net is no Python

    job: HEAD words, then a row for each call: the address of a loop's entry, and what it reads its arguments from (loops.py).
    Loops are given its address
"""

from __future__ import annotations

import time
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .loops import Registers, address_of, intrinsic, loop

Words = NDArray[np.int64]

ASLEEP, FREE, GIVEN, TAKEN, CALLED = range(5)
"""A helper's word: it waits in the pool's queue; it looks at its word; it has something to do; somebody is about to say what;
it runs calls of a job, whose address and the number of its room there are in the next two words."""

STEP = 16
"""From one helper's word to the next: two lines of the cache, which a processor fetches together."""

NEXT, ACTIVE, COUNT = 0, STEP, 2 * STEP
WIDTH, ROOM, EACH, MOST_THREADS, FLAGS, FLAG_COUNT, HEAD = *range(COUNT + 1, COUNT + 7), 3 * STEP
"""A job's words: the next call; how many of those CALLED run calls; how many calls there are; the words of a row; where the
threads' temporary memory begins, the bytes of each one's, and for how many it is; where the job's flags (float32) lie, and how
many; where the rows begin."""

PLACE, LEFT, THREADS, STATE = range(4)
"""What share is told and tells, STATE numbers: the next of the jobs, what is left of it, and how many threads it is for."""

DONE = 1 << 32
"""LEFT of a job that was run by other means."""

MOST = 62
"""Helpers that can stand by: bits of a whole number."""

SECONDS = 1e-3
"""How long a thread looks before it sleeps: about what lies between two layers of a net that threads share."""

PAUSE = 8e-6
"""How long a helper that was given something leaves the GIL to the caller, who is about to release it for its own part: a
thread that finds the GIL taken sleeps."""


def _write_store(builder: Any, registers: Registers, *given: Any) -> None:
    words, place, value = given
    builder.store_atomic(value, builder.gep(words, [place]), "release", 8)


@intrinsic(_write_store)
def store(words: Words, place: int, value: int) -> None:
    """words[place] = value, seen by other threads after all that was written before."""
    words[place] = value


def _write_wait_while(builder: Any, registers: Registers, *given: Any) -> None:
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
    if "x86" in builder.module.triple:  # a rest for the processor, of 10 to 140 cycles
        name, module = "llvm.x86.sse2.pause", builder.module
        builder.call(module.globals.get(name) or ir.Function(module, ir.FunctionType(ir.VoidType(), []), name), [])
    following = builder.add(looks, int64(1))
    looks.add_incoming(following, again)
    builder.cbranch(builder.icmp_signed("<", following, most), look, end)
    builder.position_at_end(end)


@intrinsic(_write_wait_while)
def wait_while(words: Words, place: int, value: int, most: int) -> None:
    """Until words[place] is another value, or for so many looks, at least one."""
    for _ in range(most):
        if words[place] != value:
            return


def _write_exchange(builder: Any, registers: Registers, *given: Any) -> Any:
    words, place, old, new = given
    result = builder.cmpxchg(builder.gep(words, [place]), old, new, "acq_rel", "acquire")
    return builder.extract_value(result, 0)


@intrinsic(_write_exchange, returns=True)
def exchange(words: Words, place: int, old: int, new: int) -> int:
    """If words[place] is old, let it be new, at once; returns what it was."""
    was = int(words[place])
    if was == old:
        words[place] = new
    return was


def _write_place_of(builder: Any, registers: Registers, *given: Any) -> Any:
    words, address = given
    return builder.ashr(builder.sub(address, builder.ptrtoint(words, address.type)), address.type(3))


@intrinsic(_write_place_of, returns=True)
def place_of(words: Words, address: int) -> int:
    """The place at which the functions here find what lies at this address, in words or not."""
    return (address - address_of(words)) >> 3


def _write_load(builder: Any, registers: Registers, *given: Any) -> Any:
    words, place = given
    return builder.load_atomic(builder.gep(words, [place]), "acquire", 8)


@intrinsic(_write_load, returns=True)
def load(words: Words, place: int) -> int:
    """words[place], with all that was written before a store there."""
    return int(words[place])


def _write_is_flagged(builder: Any, registers: Registers, *given: Any) -> Any:
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


@intrinsic(_write_is_flagged, returns=True)
def is_flagged(words: Words, job: int) -> int:
    """Whether one of the flags of the job at this place is not 0, or NaN."""
    raise NotImplementedError


def _write_run_calls(builder: Any, registers: Registers, *given: Any) -> None:
    from llvmlite import ir

    _, job, number = given
    int64, block = job.type, builder.append_basic_block
    words = builder.inttoptr(job, int64.as_pointer())
    count, width, each, room = (builder.load(builder.gep(words, [int64(place)])) for place in (COUNT, WIDTH, EACH, ROOM))
    room = builder.add(room, builder.mul(each, number))
    again, call, end = block("again"), block("call"), block("end")
    builder.branch(again)
    builder.position_at_end(again)
    i = builder.atomic_rmw("add", builder.gep(words, [int64(NEXT)]), int64(1), "acq_rel")
    builder.cbranch(builder.icmp_signed("<", i, count), call, end)
    builder.position_at_end(call)
    row = builder.gep(words, [builder.add(int64(HEAD), builder.mul(i, width))])
    entry = ir.FunctionType(ir.VoidType(), [words.type, int64]).as_pointer()
    builder.call(builder.inttoptr(builder.load(row), entry), [builder.gep(row, [int64(1)]), room])
    builder.branch(again)
    builder.position_at_end(end)


@intrinsic(_write_run_calls)
def run_calls(words: Words, job: int, number: int) -> None:
    """Run calls of the job at this address, one after the other, until all have been begun. number: of the thread's room.
    words: any."""
    raise NotImplementedError


def _write_count(builder: Any, registers: Registers, *given: Any) -> None:
    _, job, change = given
    active = builder.inttoptr(builder.add(job, job.type(8 * ACTIVE)), job.type.as_pointer())
    builder.atomic_rmw("add", active, change, "acq_rel")


@intrinsic(_write_count)
def count(words: Words, job: int, change: int) -> None:
    """Add to the helpers that run calls of the job at this address. words: any."""
    raise NotImplementedError


@loop("int64[::1], int64, int64, int64")
def stand_by(words: Words, number: int, most: int, pause: int) -> None:
    """While a helper is FREE, look until it is GIVEN something, then so many looks more; or for `most` looks, and then it is
    ASLEEP. CALLED, it runs calls, is FREE and looks again."""
    place = number * STEP
    while True:
        wait_while(words, place, FREE, most)
        if exchange(words, place, FREE, ASLEEP) == FREE:
            return
        while exchange(words, place, TAKEN, TAKEN) == TAKEN:
            wait_while(words, place, TAKEN, 1000)
        if exchange(words, place, CALLED, CALLED) != CALLED:
            wait_while(words, place, GIVEN, pause)
            return
        job = words[place + 1]
        run_calls(words, job, words[place + 2])
        count(words, job, -1)
        store(words, place, FREE)


@loop("int64[::1], int64")
def take(words: Words, number: int) -> int:
    """Whether the helper was FREE; nobody else can give it anything now."""
    return int(exchange(words, number * STEP, FREE, TAKEN) == FREE)


@loop("int64[::1], int64, int64")
def wait_for(words: Words, helpers: int, most: int) -> None:
    """Until none of the helpers, whose bits are set, is GIVEN something, or for so many looks at each."""
    helper = 0
    while helpers >> helper:
        if helpers >> helper & 1:
            wait_while(words, helper * STEP, GIVEN, most)
        helper += 1


@loop("int64, int64[::1], int64")
def begin(job: int, words: Words, helpers: int) -> int:
    """Let at most so many helpers that are FREE run calls of the job; returns how many did. The caller's room is number 0."""
    mine, called = place_of(words, job), 0
    store(words, mine + NEXT, 0)
    store(words, mine + ACTIVE, 0)
    for number in range(len(words) // STEP):
        if called < helpers and exchange(words, number * STEP, FREE, TAKEN) == FREE:
            called += 1
            count(words, job, 1)
            words[number * STEP + 1], words[number * STEP + 2] = job, called
            store(words, number * STEP, CALLED)
    return called


@loop("int64, int64[::1], int64, int64")
def finish(job: int, words: Words, number: int, most: int) -> int:
    """Run calls of the job that has begun, and wait until those CALLED run none any more, or for so many looks. Returns how
    many still do. number: of the room. words: any."""
    run_calls(words, job, number)
    active = place_of(words, job) + ACTIVE
    while most > 0 and load(words, active) != 0:
        wait_while(words, active, load(words, active), 1000)
        most -= 1000
    return int(load(words, active))


@loop("int64[::1], int64[::1], int64[::1], int64, int64")
def share(jobs: Words, state: Words, words: Words, threads: int, most: int) -> None:
    """begin and finish, on so many threads, the jobs at these addresses from jobs[state[PLACE]] on, one after the other.

    Returns at a job that is not done: state[LEFT] is -1 - n, if only n helpers were FREE, or n, if n still run calls. It is
    to be DONE when share is called again. Else state[LEFT] is 0; returns at the end, or behind a job that is flagged.
    """
    while state[PLACE] < len(jobs):
        job = jobs[state[PLACE]]
        mine = place_of(words, job)
        if state[LEFT] != DONE:
            state[THREADS] = max(1, min(threads, load(words, mine + COUNT), load(words, mine + MOST_THREADS)))
            called = begin(job, words, state[THREADS] - 1)
            state[LEFT] = finish(job, words, 0, most) if called == state[THREADS] - 1 else -1 - called
            if state[LEFT] != 0:
                return
        state[LEFT] = 0
        state[PLACE] += 1
        if is_flagged(words, mine):
            return


@lru_cache(maxsize=1)
def looks() -> tuple[int, int]:
    """How many looks take SECONDS and PAUSE on this machine."""
    words, many, times = np.zeros(STEP, np.int64), 400, []
    words[0] = FREE
    stand_by(words, 0, 1, 1)
    wait_for(words, 1, 1)  # compiled before a caller needs them
    take(words, 0)
    for _ in range(10):  # the fastest: in any, the system may have run something else
        words[0], start = FREE, time.perf_counter()
        stand_by(words, 0, many, 1)
        times.append(time.perf_counter() - start)
    each = max(1e-10, min(times) / many)
    return max(1, round(SECONDS / each)), max(1, round(PAUSE / each))
