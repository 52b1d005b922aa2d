"""Threads that wait for each other awake, in compiled loops and without the GIL.

To wake a thread that sleeps takes 20 to 40 us, and as long again to wake the one that waits for its end: with layers of 100 us
a second thread would gain nothing. So for a short time each looks at a word of memory again and again instead of sleeping.

    helper    stand_by(words, place, ...)     says FREE, looks until it is GIVEN something, or for so many looks
    caller    words[place] = GIVEN            under the pool's lock
              wait_for(words, helpers, ...)   until none of them is GIVEN any more, or for so many looks
"""

from __future__ import annotations

import time
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .loops import Registers, intrinsic, loop

Words = NDArray[np.int64]

ASLEEP, FREE, GIVEN = 0, 1, 2
"""A helper's word: it waits in the pool's queue; it looks at its word; it has something to do."""

STEP = 16
"""From one helper's word to the next: two lines of the cache, which a processor fetches together."""

MOST = 62
"""Helpers that can stand by: bits of a whole number."""

SECONDS = 300e-6
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


@loop("int64[::1], int64, int64, int64")
def stand_by(words: Words, place: int, most: int, pause: int) -> None:
    """Say that a helper is FREE, and look until it is GIVEN something, then so many looks more; or for `most` looks."""
    store(words, place, FREE)
    wait_while(words, place, FREE, most)
    wait_while(words, place, GIVEN, pause)


@loop("int64[::1], int64, int64")
def wait_for(words: Words, helpers: int, most: int) -> None:
    """Until none of the helpers, whose bits are set, is GIVEN something, or for so many looks at each."""
    helper = 0
    while helpers >> helper:
        if helpers >> helper & 1:
            wait_while(words, helper * STEP, GIVEN, most)
        helper += 1


@lru_cache(maxsize=1)
def looks() -> tuple[int, int]:
    """How many looks take SECONDS and PAUSE on this machine."""
    words, count = np.zeros(1, np.int64), 2000
    stand_by(words, 0, 1, 1)
    wait_for(words, 1, 1)  # compiled before a caller needs it
    begin = time.perf_counter()
    stand_by(words, 0, count, 1)
    each = max(1e-10, time.perf_counter() - begin) / count
    return max(1, round(SECONDS / each)), max(1, round(PAUSE / each))
