"""Threads that wait for each other awake: what they are given, when they sleep, and that nothing is lost between the two."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from array import array
from collections.abc import Iterator
from functools import partial
from types import FrameType

import numpy as np
import pytest
from first import first

from minicaffe import kernels, set_num_threads, threads
from minicaffe.blob import ALIGNMENT, Array, address_of
from minicaffe.compiled import jobs as job_lists
from minicaffe.compiled import worker_sync
from minicaffe.compiled.jit import DynamicArray, ScratchArray, loop
from minicaffe.compiled.jobs import Calls, Job, JobList
from minicaffe.compiled.worker_sync import (
    CALLED,
    FREE,
    STEP,
    AwakePool,
    add,
    change,
    load,
    stand_by,
    wait_for,
    wait_while,
)
from minicaffe.threads import ASLEEP, GIVEN, RUNS, Pool

COUNT = 3


@pytest.fixture(autouse=True)
def _threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool of two helpers, which have a core each, whatever this machine has."""
    monkeypatch.setattr(threads, "available_cores", lambda: COUNT)
    if kernels.compiled():
        threads.use_pool(AwakePool)
    set_num_threads(COUNT)


def until(word: int, *, helpers: range) -> None:
    """Wait until these helpers have that word."""
    end = time.monotonic() + 60
    while [threads.the_pool().state(number) for number in helpers] != [word] * len(helpers):
        assert time.monotonic() < end
        time.sleep(1e-4)


def test_a_helper_that_is_free_returns_when_it_is_given_something(loops_way: str) -> None:
    words = np.full(2 * STEP, FREE, np.int64)
    assert stand_by(words, 1, 5, 5)
    assert words[STEP] == ASLEEP and words[0] == FREE
    if loops_way == "numba":
        words[STEP] = FREE
        helper = threading.Thread(target=stand_by, args=[words, 1, 1 << 40, 5])
        helper.start()
        time.sleep(0.01)
        assert not change(words, STEP, CALLED, GIVEN)
        assert change(words, STEP, FREE, GIVEN)
        helper.join(60)
        assert not helper.is_alive() and words[STEP] == RUNS
        assert not change(words, STEP, FREE, GIVEN)


def test_the_caller_waits_for_the_helpers_whose_bits_are_set(loops_way: str) -> None:
    words = np.full(3 * STEP, ASLEEP, np.int64)
    words[STEP] = RUNS
    wait_for(words, 0b101, 1 << 40)  # not for the second
    wait_for(words, 0b111, 7)  # for it, but not for ever
    if loops_way == "numba":
        caller = threading.Thread(target=wait_for, args=[words, 0b010, 1 << 40])
        caller.start()
        words[STEP] = FREE
        caller.join(60)
        assert not caller.is_alive()


@pytest.mark.slow
def test_as_many_looks_as_take_so_long() -> None:
    if not kernels.compiled():
        pytest.skip("Numba (the extra fast) is not installed, or left alone")
    looks, pause = worker_sync.looks()
    assert looks > pause >= 1
    words = np.full(STEP, FREE, np.int64)
    begin = time.perf_counter()
    stand_by(words, 0, looks, 1)
    assert time.perf_counter() - begin > worker_sync.SECONDS / 10


def test_helpers_stand_by_for_a_while_and_then_sleep(loops_way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_sync, "looks", lambda: (1 << 40, 1))  # for ever
    done: list[int] = []
    meet = threading.Barrier(COUNT, timeout=60)
    threads.run([lambda: done.append(meet.wait())] * COUNT)
    pool = threads.the_pool()
    if loops_way == "numpy":
        until(ASLEEP, helpers=range(COUNT - 1))
    else:
        until(FREE, helpers=range(COUNT - 1))
        monkeypatch.setattr(worker_sync, "looks", lambda: (1, 1))
    threads.run([lambda: done.append(meet.wait())] * COUNT)
    assert sorted(done) == sorted([*range(COUNT)] * 2)
    until(ASLEEP, helpers=range(COUNT - 1))
    assert pool is threads.the_pool() and pool.given == [None] * (COUNT - 1)
    threads.run([lambda: done.append(meet.wait())] * COUNT)
    assert len(done) == 3 * COUNT


def test_nothing_is_lost_between_standing_by_and_sleeping(loops_way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Callers come at all times, several at once, while helpers fall asleep after a few looks."""
    monkeypatch.setattr(worker_sync, "looks", lambda: (40, 1))
    totals = np.zeros((2, 300, 6))

    def caller(row: int) -> None:
        for i in range(300):
            threads.run(partial(totals[row, i, k : k + 1].__iadd__, k) for k in range(6))

    callers = [threading.Thread(target=caller, args=[row]) for row in range(2)]
    for one in callers:
        one.start()
    for one in callers:
        one.join(120)
    np.testing.assert_array_equal(totals, np.broadcast_to(np.arange(6), totals.shape))


@pytest.mark.parametrize("there", [COUNT - 1, 1])
def test_no_thread_looks_where_there_are_fewer_cores(there: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "available_cores", lambda: there)
    looked: list[threading.Thread] = []
    monkeypatch.setattr(worker_sync, "looks", lambda: looked.append(threading.current_thread()) or (1, 1))
    kernels.compiled()
    meet = threading.Barrier(COUNT, timeout=60)
    for _ in range(3):
        threads.run([meet.wait] * COUNT)
    until(ASLEEP, helpers=range(COUNT - 1))
    assert not {*looked} & {threading.current_thread(), *threads.the_pool().threads}  # those of another test may still end


def test_an_error_of_a_helper_that_was_awake_comes_out(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels.compiled()
    monkeypatch.setattr(worker_sync, "looks", lambda: (10**5, 1))
    meet, caller = threading.Barrier(COUNT, timeout=60), threading.get_ident()

    def task() -> None:
        meet.wait()
        if threading.get_ident() != caller:
            raise ValueError("of a helper")

    for _ in range(4):
        with pytest.raises(ValueError, match="of a helper"):
            threads.run([task] * COUNT)


def test_a_helper_that_comes_too_late_takes_part_the_next_time(loops_way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was asleep when it was given something that others had done before it came."""
    slow, meet = threading.Event(), threading.Barrier(COUNT, timeout=60)
    threads.run([meet.wait] * COUNT)
    until(ASLEEP, helpers=range(COUNT - 1))
    monkeypatch.setattr(worker_sync.Apart, "let_back", lambda self, number: slow.wait(60))
    done: list[int] = []
    threads.run([partial(done.append, i) for i in range(COUNT)])
    assert done == [*range(COUNT)]
    until(ASLEEP, helpers=range(COUNT - 1))
    threading.Timer(0.01, slow.set).start()
    threads.run([meet.wait] * COUNT)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="alarms are of Unix")
def test_no_helper_is_lost_where_an_error_comes_between_tasks(loops_way: str) -> None:
    """Ctrl-C while tasks are given to helpers or called off."""
    random, came_out, meet = np.random.default_rng(1), 0, threading.Barrier(COUNT, timeout=60)
    places = Pool.put.__code__, Pool.call_off.__code__

    class Alarm(BaseException):
        pass

    def handler(_: int, frame: FrameType | None) -> None:
        while frame is not None:
            if frame.f_code in places:
                raise Alarm
            frame = frame.f_back

    threads.run([meet.wait] * COUNT)
    before = signal.signal(signal.SIGALRM, handler)
    try:
        for i in range(400):
            if i % 2:
                time.sleep(2 * worker_sync.SECONDS)  # they are asleep
            signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-6, 3e-4))
            try:
                threads.run([list] * COUNT)
            except Alarm:
                came_out += 1
            signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        time.sleep(1e-3)  # for one that is on its way
        signal.signal(signal.SIGALRM, before)
    assert came_out
    threads.run([meet.wait] * COUNT)
    until(ASLEEP, helpers=range(COUNT - 1))
    assert threads.the_pool().given == [None] * (COUNT - 1)


def test_threads_go_on_where_loops_run_another_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """What changes words is machine code from the first time on."""
    monkeypatch.setattr(threads, "_pool_type", Pool)
    pytest.importorskip("numba", reason="Numba (the extra fast) is not installed")
    meet = threading.Barrier(COUNT, timeout=60)
    for way in ("numpy", "numba", "numpy", "numba"):
        with kernels.using(way):
            for _ in range(20):
                threads.run([meet.wait] * COUNT)
            if way == "numba":
                jobs, arrays, _ = doubling(3)
                arrays[0][:] = 1
                assert JobList(jobs).run() == 3
                np.testing.assert_array_equal(arrays[-1], np.full(LENGTH, 8, np.float32))


@pytest.mark.slow
def test_a_process_ends_while_its_helpers_stand_by() -> None:
    code = (
        "from minicaffe import kernels, set_num_threads, threads; from minicaffe.compiled import worker_sync\n"
        "kernels.compiled(); set_num_threads(4); threads.available_cores = lambda: 9; worker_sync.SECONDS = 0.05\n"
        "threads.run([lambda: None] * 8); print(len(threads._pool.threads))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "3\n", "")


@loop("T[::1], UniTuple(int64, 2), int64[:,::1], T[::1], T[::1]", in_calls=True)
def add_neighbours(x: Array, part: tuple[int, int], steps: Array, room: Array, y: Array) -> None:
    """y[i] = the sum of x[i + step] * weight over the rows (step, weight) of steps, for i from ... to ..., by way of room."""
    for i in range(part[0], part[1]):
        room[i - part[0]] = 0
        for k in range(len(steps)):
            room[i - part[0]] += x[i + steps[k, 0]] * steps[k, 1]
    for i in range(part[0], part[1]):
        y[i] = room[i - part[0]]


LENGTH, PARTS = 70, 14


def neighbours() -> tuple[Calls, Array, Array]:
    """The calls, x, and the result."""
    each, x = LENGTH // PARTS, np.random.default_rng(3).standard_normal(LENGTH + 3).astype(np.float32)
    room, steps = ScratchArray(2 * ALIGNMENT, (each,)), np.array([[0, 2], [3, -1]])  # held by the calls alone
    given = [(DynamicArray(0, x.shape), (i, i + each), steps, room, DynamicArray(0, (LENGTH,))) for i in range(0, LENGTH, each)]
    return Calls(add_neighbours, np.float32, given), x, 2 * x[:LENGTH] - x[3:]


@pytest.fixture
def _numba() -> Iterator[None]:
    pytest.importorskip("numba", reason="Numba (the extra fast) is not installed")
    with kernels.using("numba"):
        yield


compiled = pytest.mark.usefixtures("_numba")


@compiled
@pytest.mark.parametrize("many", [1, 2, COUNT, 7])
def test_a_job_is_done_by_all_threads_with_other_arrays_each_time(many: int) -> None:
    calls, x, wanted = neighbours()
    set_num_threads(many)
    job, (y, other) = Job(calls), np.zeros((2, LENGTH), np.float32)
    for _ in range(3):
        job.run(address_of(x), address_of(y))
        np.testing.assert_array_equal(y, wanted)
        y[:] = 0
        twice = x * 2
        job.run(address_of(twice), address_of(other))
        np.testing.assert_array_equal(other, 2 * wanted)


@compiled
@pytest.mark.parametrize("looks", [1, 40, 10**5])
def test_helpers_that_are_awake_asleep_or_in_between_take_part(looks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several callers at once, with jobs and with Python's tasks."""
    monkeypatch.setattr(worker_sync, "looks", lambda: (looks, 1))
    calls, x, wanted = neighbours()
    wrong: list[int] = []

    def caller(number: int) -> None:
        job, y, totals = Job(calls), np.zeros(LENGTH, np.float32), np.zeros(4)
        for i in range(200):
            y[:] = 0
            job.run(address_of(x), address_of(y))
            if not (y == wanted).all():
                wrong.append(i)
            if i % 5 == number:
                threads.run(partial(totals[k : k + 1].__iadd__, k) for k in range(4))

    callers = [threading.Thread(target=caller, args=[number]) for number in range(COUNT)]
    for one in callers:
        one.start()
    for one in callers:
        one.join(120)
        assert not one.is_alive()
    assert wrong == []
    until(ASLEEP, helpers=range(COUNT - 1))


@compiled
def test_helpers_that_only_follow_lists_stand_by(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_sync, "looks", lambda: (1 << 40, 1))  # for ever
    jobs, arrays, _ = doubling(2)
    arrays[0][:] = 1
    assert JobList(jobs).run() == 2
    until(FREE, helpers=range(COUNT - 1))
    monkeypatch.setattr(worker_sync, "looks", lambda: (1, 1))
    meet = threading.Barrier(COUNT, timeout=60)
    threads.run([meet.wait] * COUNT)


@compiled
def test_a_helper_that_is_called_off_while_it_looks_goes_on_looking() -> None:
    words = np.full(STEP, FREE, np.int64)
    helper = threading.Thread(target=stand_by, args=[words, 0, 1 << 40, 1])
    helper.start()
    for _ in range(2):
        words[0] = worker_sync.TAKEN  # it waits for what comes of it
        time.sleep(0.01)
        words[0] = ASLEEP
        end = time.monotonic() + 60
        while words[0] != FREE:
            assert time.monotonic() < end
    words[0] = GIVEN
    helper.join(60)
    assert not helper.is_alive() and words[0] == RUNS


@compiled
def test_a_job_within_a_task_runs_on_its_thread() -> None:
    calls, x, wanted = neighbours()
    ys = np.zeros((5, LENGTH), np.float32)
    threads.run(partial(Job(calls).run, address_of(x), address_of(y)) for y in ys)
    np.testing.assert_array_equal(ys, np.broadcast_to(wanted, ys.shape))


@compiled
def test_the_room_is_for_all_threads_though_their_number_is_set_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, x, wanted = neighbours()
    job, y, numbers, sizes = Job(calls), np.zeros(LENGTH, np.float32), iter([COUNT] + 9 * [1]), list[int]()

    def noted(size: int) -> job_lists._Room:
        sizes.append(size)
        return room_of(size)

    room_of = job_lists._room_of
    monkeypatch.setattr(job_lists, "get_num_threads", lambda: next(numbers))
    monkeypatch.setattr(job_lists, "_room_of", noted)
    job.run(address_of(x), address_of(y))
    assert sizes == [job.words[worker_sync.MOST_THREADS] * job.words[worker_sync.EACH]]
    np.testing.assert_array_equal(y, wanted)


@compiled
def test_a_job_of_two_lists_and_two_threads_has_the_room_of_the_one_that_runs() -> None:
    """Lists look for their jobs' rooms only where a job may have got another."""
    calls, x, wanted = neighbours()
    job, y = Job(calls), np.zeros(LENGTH, np.float32)
    job.at(address_of(x), address_of(y))
    lists, rooms = (JobList([job]), JobList([job])), list[int]()

    def run(one: JobList) -> None:
        y[:] = 0
        one.run()
        assert (y == wanted).all() and job.words[worker_sync.ROOM] == job_lists._kept.room.address
        rooms.append(job_lists._kept.room.address)

    for _ in range(3):
        run(lists[0])
        other = threading.Thread(target=run, args=[lists[1]])
        other.start()
        other.join(60)
        run(lists[1])
    assert len(rooms) == 9 and rooms[0] == rooms[2] != rooms[1]


@compiled
def test_a_job_without_calls() -> None:
    Job(Calls(add_neighbours, np.float32, [])).run()


@loop("T[::1], T[::1], T[::1], int64", in_calls=True)
def doubled(x: Array, flags: Array, y: Array, i: int) -> None:
    """y[i] = 2 x[i], and flag i, which no other call writes, is set if that is not finite."""
    y[i] = 2 * x[i]
    flags[i] = y[i] - y[i]


def doubling(count: int) -> tuple[list[Job], list[Array], Array]:
    """So many jobs, each of which doubles the result of the one before, in the next array; the flags of each one's calls."""
    arrays, flags = [np.zeros(LENGTH, np.float32) for _ in range(count + 1)], np.zeros((count, LENGTH), np.float32)
    given = [(DynamicArray(0, (LENGTH,)), DynamicArray(0, (LENGTH,)), DynamicArray(0, (LENGTH,)), i) for i in range(LENGTH)]
    jobs = [Job(Calls(doubled, np.float32, given), flag) for flag in flags]
    for job, x, flag, y in zip(jobs, arrays, flags, arrays[1:], strict=False):
        job.at(address_of(x), address_of(flag), address_of(y))
    return jobs, arrays, flags


def listed(jobs: list[Job]) -> tuple[array[int], int]:
    """The list of these jobs, from the first to the last, for begin; and its address. The caller holds the jobs."""
    for job in jobs:
        job.take_room(COUNT, 0)
    words = JobList(jobs)._words
    words[worker_sync.END] = len(jobs)
    return words, words.buffer_info()[0]


@compiled
@pytest.mark.parametrize("looks", [1, 40, 10**5])
@pytest.mark.parametrize("many", [1, 2, COUNT])
def test_jobs_are_run_in_their_order(many: int, looks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each reads what the one before has written, whether helpers are awake or asleep."""
    monkeypatch.setattr(worker_sync, "looks", lambda: (looks, 1))
    set_num_threads(many)
    jobs, arrays, _ = doubling(9)
    for start in range(40):
        arrays[0][:] = np.arange(start, start + LENGTH)
        assert JobList(jobs).run() == len(jobs)
        np.testing.assert_array_equal(arrays[-1], arrays[0] * 2**9)


@compiled
@pytest.mark.parametrize("there", [COUNT, COUNT - 1, 1])
def test_a_job_with_a_flag_ends_them(there: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One after the other may be flagged, also where no thread looks for work."""
    monkeypatch.setattr(threads, "available_cores", lambda: there)
    jobs, arrays, flags = doubling(5)
    arrays[0][:] = np.arange(LENGTH)
    arrays[0][LENGTH - 1] = np.float32(3e38) / 4  # four times that is the last that is finite
    assert JobList(jobs).run() == 3
    assert np.flatnonzero(np.isnan(flags[2])).tolist() == [LENGTH - 1] and np.isinf(arrays[3][-1])
    assert not flags[[0, 1, 3, 4]].any()
    assert not arrays[4].any()
    arrays[3][-1] = 1
    assert JobList(jobs[3:]).run() == 2
    np.testing.assert_array_equal(arrays[5][:-1], 32 * np.arange(LENGTH - 1))


@compiled
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="alarms are of Unix")
@pytest.mark.parametrize(("there", "again"), first(1, [(COUNT, 3e-5), (COUNT, 0), (COUNT - 1, 3e-5)]))
def test_a_list_that_has_begun_ends_before_an_error(again: float, there: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Helpers write to the caller's arrays: Ctrl-C, once or again and again, waits for the end."""
    monkeypatch.setattr(threads, "available_cores", lambda: there)
    jobs, arrays, _ = doubling(40)
    arrays[0][:], came_out, random = 1, 0, np.random.default_rng(1)
    held: list[array[int]] = []
    run_jobs = worker_sync.run_jobs
    JobList(jobs).run()

    class Alarm(BaseException):
        pass

    def handler(_: int, frame: FrameType | None) -> None:
        if held and frame is not None and frame.f_code is run_jobs.__code__:
            raise Alarm

    def seen(words: array[int], widest: int) -> int:
        held.append(words)
        return run_jobs(words, widest)

    monkeypatch.setattr(job_lists, "run_jobs", seen)
    before = signal.signal(signal.SIGALRM, handler)
    try:
        for _ in range(150):
            signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-6, 1e-3), again)
            try:
                JobList(jobs).run()
            except Alarm:
                came_out += 1
            words = held.pop()
            signal.setitimer(signal.ITIMER_REAL, 0)
            assert not words[worker_sync.ACTIVE]
            assert {int(job.words[worker_sync.ENDED]) for job in jobs} == {LENGTH}  # of this time, or of the last
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        time.sleep(1e-3)  # for one that is on its way
        signal.signal(signal.SIGALRM, before)
    assert came_out
    assert JobList(jobs).run() == len(jobs)
    np.testing.assert_array_equal(arrays[-1], np.full(LENGTH, 2**40, np.float32))


@loop("int64[::1], T[::1], int64", in_calls=True)
def met(seen: Array, y: Array, i: int) -> None:
    """y[i] = how many have come here, once there are two, or after a minute or so."""
    add(seen, 0, 1)
    wait_while(seen, 0, 1, 10**10)
    y[i] = load(seen, 0)


@compiled
@pytest.mark.parametrize("many", [2, COUNT])
def test_a_helper_that_comes_late_takes_part_in_what_is_left(many: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was asleep when the list began; the second job cannot end without it. Of more threads than cores one is called."""
    monkeypatch.setattr(threads, "available_cores", lambda: 2)
    set_num_threads(many)
    until(ASLEEP, helpers=range(many - 1))
    (job,), arrays, _ = doubling(1)
    seen, y = np.zeros(1, np.int64), np.zeros(2, np.float32)
    meeting = Job(Calls(met, np.float32, [(DynamicArray(0, (1,)), DynamicArray(0, (2,)), i) for i in range(2)]))
    meeting.at(address_of(seen), address_of(y))
    woken, wake = list[int](), worker_sync.AwakePool.wake

    def noted(self: worker_sync.AwakePool, number: int) -> None:
        woken.append(number)
        wake(self, number)

    monkeypatch.setattr(worker_sync.AwakePool, "wake", noted)
    monkeypatch.setattr(worker_sync.Apart, "let_back", lambda self, number: time.sleep(0.05))
    arrays[0][:] = 3
    assert JobList([job, meeting]).run() == 2
    assert {*woken} == {0}  # it may be woken twice
    np.testing.assert_array_equal(arrays[1], np.full(LENGTH, 6, np.float32))
    np.testing.assert_array_equal(y, [2, 2])


@compiled
@pytest.mark.parametrize("many", [1, 2, PARTS])
def test_a_job_has_room_for_the_threads_that_run_its_calls(many: int) -> None:
    """Of a list in which others have more calls: so many threads, and no more, take one."""
    calls, x, _ = neighbours()
    few, y = Job(Calls(add_neighbours, np.float32, calls._held[:many])), np.zeros(LENGTH, np.float32)
    few.at(address_of(x), address_of(y))
    few.take_room(COUNT, address_of(np.zeros(few.room(COUNT), np.uint8)))
    assert few.words[worker_sync.MOST_THREADS] * few.words[worker_sync.EACH] == few.room(COUNT)
    (other,), *_ = doubling(1)
    list_, nobody = JobList([few, other])._words, np.zeros(0, np.int64)
    list_[worker_sync.END] = 2
    (address, _), beyond = list_.buffer_info(), min(many, COUNT)
    worker_sync.begin(address, nobody, 0)
    assert worker_sync.follow(address, nobody, beyond, 0, 1) == 0  # it waits for those that have room
    assert not few.words[worker_sync.ENDED]


@loop("T[::1], T[::1], int64", in_calls=True)
def numbered(x: Array, order: Array, i: int) -> None:
    """order[i] = how many calls have begun."""
    x[0] += 1
    order[i] = x[0]


@compiled
@pytest.mark.parametrize(("number", "first"), [(0, 0), (1, 2), (2, 4)])
def test_a_thread_begins_with_its_own_part_of_the_calls(number: int, first: int) -> None:
    """And goes on with those of the others. One of its own has been begun by another."""
    count, x, order = 7, np.zeros(1, np.float32), np.zeros(7, np.float32)
    job = Job(Calls(numbered, np.float32, [(DynamicArray(0, (1,)), DynamicArray(0, (count,)), i) for i in range(count)]))
    job.at(address_of(x), address_of(order))
    job.take_room(COUNT, 0)
    list_, nobody = JobList([job])._words, np.zeros(0, np.int64)
    list_[worker_sync.END] = 1
    address, _ = list_.buffer_info()
    worker_sync.begin(address, nobody, 0)
    row = job._table[first + 1]
    row[worker_sync.BEGUN], job.words[worker_sync.ENDED] = 1, 1
    assert worker_sync.follow(address, nobody, number, 0, 1) == -2
    others = [(first + i) % count for i in range(count) if i != 1]
    assert order[others].tolist() == [1, 2, 3, 4, 5, 6] and order[first + 1] == 0
    assert job._table[:, worker_sync.BEGUN].tolist() == [1] * count


@compiled
def test_who_comes_after_the_end_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A helper that was asleep is woken when the list has ended."""
    woken: list[int] = []
    monkeypatch.setattr(AwakePool, "wake", lambda self, number: woken.append(number))
    jobs, arrays, _ = doubling(2)
    arrays[0][:] = 1
    pool = threads.the_pool()
    for _ in range(100):  # one that an earlier list called off may still be awake, and take part
        until(ASLEEP, helpers=range(COUNT - 1))
        woken.clear()
        assert JobList(jobs).run() == 2
        if len(woken) == COUNT - 1:
            break
    assert sorted(woken) == [0, 1]
    until(ASLEEP, helpers=range(COUNT - 1))
    arrays[-1][:] = 0
    worker_sync.store(jobs[0].words, worker_sync.HEAD + worker_sync.BEGUN, 0)  # as if it were about to begin again
    with kernels.using("numpy"):  # loops may run another way by then
        for number in woken:
            assert worker_sync.machine_code().stand_by(pool.words, number, 1, 1)
    assert jobs[0].words[worker_sync.HEAD + worker_sync.BEGUN] == 0 and not arrays[-1].any()


@compiled
@pytest.mark.parametrize(
    ("most", "asleep", "called"), [(0, 0, []), (1, 0, [2]), (2, 0b1, [2, 0]), (3, 0b1001, [2, 0, 3]), (9, 0b1001, [2, 0, 3])]
)
def test_those_that_are_awake_are_called_first_and_those_that_do_not_come_called_off(
    most: int, asleep: int, called: list[int]
) -> None:
    before = ASLEEP, GIVEN, FREE, ASLEEP
    words = np.zeros(len(before) * STEP, np.int64)
    words[::STEP] = before
    jobs, *_ = doubling(2)
    list_, address = listed(jobs)
    assert worker_sync.begin(address, words, most) == asleep
    assert list_[worker_sync.ACTIVE] == len(called)
    for i, number in enumerate(called):
        assert words[number * STEP : number * STEP + 3].tolist() == [CALLED, address, 1 + i]
    assert worker_sync.finish(address, words, 1) == -3
    after = [ASLEEP if number in called else state for number, state in enumerate(before)]
    assert words[::STEP].tolist() == after and not list_[worker_sync.ACTIVE]


@compiled
def test_only_ones_own_call_is_called_off() -> None:
    """The helper has come and gone, and another caller has called it since."""
    both, words = [doubling(1)[0], doubling(1)[0]], np.zeros(STEP, np.int64)
    (one, first), (other, second) = map(listed, both)
    words[0] = FREE
    assert worker_sync.begin(first, words, 1) == 0
    one[worker_sync.ACTIVE], words[0] = 0, FREE  # as it leaves them
    assert worker_sync.begin(second, words, 1) == 0
    assert worker_sync.finish(first, words, 1) == -2
    assert (words[0], words[worker_sync.LIST], other[worker_sync.ACTIVE]) == (CALLED, second, 1)
    assert worker_sync.finish(second, words, 1) == -2
    assert (words[0], other[worker_sync.ACTIVE]) == (ASLEEP, 0)
