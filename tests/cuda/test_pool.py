"""The pool of blocks, without a GPU."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minicaffe.cuda.pool import Pool, block_size


class FullError(Exception):
    pass


class Allocator:
    """Blocks out of `room` bytes, given back when they are dropped."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.calls = 0

    def __call__(self, nbytes: int) -> Any:
        if nbytes > self.room:
            raise FullError
        self.calls += 1
        self.room -= nbytes
        return Block(self, nbytes)


class Block:
    def __init__(self, owner: Allocator, nbytes: int) -> None:
        self.owner, self.nbytes = owner, nbytes

    def __del__(self) -> None:
        self.owner.room += self.nbytes


@given(st.integers(0, 2**40))
def test_sizes_recur_and_waste_little(nbytes: int) -> None:
    size = block_size(nbytes)
    assert nbytes <= size
    assert size % 512 == 0
    assert size <= max(512, nbytes + 512, nbytes * 9 / 8)
    assert block_size(size) == size


def test_a_block_that_came_back_is_used_again() -> None:
    allocate = Allocator(10_000)
    pool = Pool(allocate, FullError)
    size, block = pool.take(1000)
    assert (size, pool.in_use, pool.held) == (1024, 1024, 0)
    pool.give(size, block)
    assert (pool.held, pool.in_use) == (1024, 0)
    assert pool.take(600)[1] is block
    assert allocate.calls == 1


def test_what_is_held_makes_room() -> None:
    pool = Pool(Allocator(4096), FullError)
    pool.give(*pool.take(3000))
    assert pool.held == 3072
    assert pool.take(4096)[0] == 4096
    assert pool.held == 0


def test_a_full_device_is_said_and_the_pool_stays_usable() -> None:
    pool = Pool(Allocator(4096), FullError)
    first = pool.take(2048)
    with pytest.raises(FullError):
        pool.take(4096)
    assert pool.in_use == 2048
    pool.give(*first)
    del first
    assert pool.take(4096)[0] == 4096


def test_a_block_goes_on_to_its_own_stream_first_and_to_another_in_order() -> None:
    ordered: list[tuple[str, str]] = []
    allocate = Allocator(10_000)
    pool = Pool(allocate, FullError, order=lambda stream, other: ordered.append((stream, other)))
    (size, first), (_, second) = pool.take(512, "a"), pool.take(512, "b")
    pool.give(size, first, ("a",))
    pool.give(size, second, ("b", "c"))
    assert pool.take(512, "a")[1] is first
    assert not ordered
    assert pool.take(512, "c")[1] is second
    assert ordered == [("c", "b")]
    pool.give(size, second, ("c",))
    assert pool.take(512, "d")[1] is second
    assert ordered[1:] == [("d", "c")]
    assert allocate.calls == 2


def test_the_device_is_waited_for_before_blocks_are_freed_and_only_then() -> None:
    waits: list[int] = []
    allocate = Allocator(4096)
    pool = Pool(allocate, FullError, settle=lambda: waits.append(allocate.room))
    for _ in range(3):
        pool.give(*pool.take(512, "a"), ("a",))
    assert not waits
    pool.take(4096, "a")
    assert waits == [3584]
    pool.release()
    assert waits == [3584]


def test_a_lent_block_is_the_streams_own_or_new_and_comes_back_with_all_its_users() -> None:
    ordered: list[tuple[str, str]] = []
    allocate = Allocator(2048)
    pool = Pool(allocate, FullError, order=lambda stream, other: ordered.append((stream, other)))
    (size, mine), (_, others), (_, both) = (pool.take(512, user) for user in ("a", "b", "a"))
    pool.give(size, mine, ("a",))
    pool.give(size, others, ("b",))
    pool.give(size, both, ("a", "b"))
    lent = [pool.lend(512, "a"), pool.lend(512, "a")]
    assert (allocate.calls, pool.in_use, pool.held, ordered) == (4, 1024, 1024, [])
    with pytest.raises(FullError):
        pool.lend(512, "a")
    inner = Pool(lambda nbytes: lent[0], FullError)
    inner.give(*inner.take(512, "a"), ("a", "c"))
    inner.give(512, lent[1], ("c", "d"))
    del inner
    lent.clear()
    assert (pool.in_use, pool.held) == (0, 2048)
    pool.take(512, "e")
    assert ordered[-1][0] == "e"
    for _ in range(3):
        pool.take(512, "e")
    assert {other for _, other in ordered} == {"a", "b", "c", "d"}


def test_release() -> None:
    allocate = Allocator(4096)
    pool = Pool(allocate, FullError)
    pool.give(*pool.take(512))
    assert allocate.room == 3584
    pool.release()
    assert (allocate.room, pool.held) == (4096, 0)


def test_blocks_come_back_from_other_threads() -> None:
    pool = Pool(Allocator(10**9), FullError)

    def work() -> None:
        for n in range(200):
            pool.give(*pool.take(512 * (n % 3 + 1)))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    held = pool.held
    assert held > 0
    assert (pool.in_use, held % 512) == (0, 0)
