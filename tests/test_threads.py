"""Threads: one number for BLAS and the pool; run's tasks, each done once, whatever they raise or start themselves."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from linecache import getline
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from threadpoolctl import ThreadpoolController

from minicaffe import Error, get_num_threads, set_num_threads
from minicaffe.cli import main
from minicaffe.threads import MOST, VARIABLE, check_variable, on_this_thread, parts, run

NET = 'layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 } } }'


@pytest.fixture(autouse=True)
def three_threads() -> None:
    set_num_threads(3)


def blas_threads() -> set[int]:
    """Return the thread counts of NumPy's BLAS. SciPy and PyTorch may have loaded other libraries."""
    libraries = ThreadpoolController().select(user_api="blas").lib_controllers
    return {library.num_threads for library in libraries if "numpy" in library.filepath or len(libraries) == 1}


def test_the_number_set_is_blas_number_too() -> None:
    set_num_threads(2)
    assert get_num_threads() == 2
    assert blas_threads() == {2}


@pytest.mark.parametrize("count", [0, -1, "2", 1.5, True, None, MOST + 1, 10**12])
def test_what_is_no_number_of_threads_is_an_error_and_changes_nothing(count: int) -> None:
    with pytest.raises(Error, match=f"a whole number, at least 1 and at most 4096, got {count!r}"):
        set_num_threads(count)
    assert get_num_threads() == 3
    assert blas_threads() == {3}


def test_a_whole_number_of_numpy_is_a_number_of_threads() -> None:
    set_num_threads(np.int64(2))  # type: ignore[arg-type]
    assert get_num_threads() == 2 and type(get_num_threads()) is int


@pytest.mark.parametrize(
    ("length", "least", "each", "sizes"),
    [
        (10, 1, 1, [4, 3, 3]),
        (10, 1, 2, [2, 2, 1, 2, 2, 1]),
        (10, 2, 2, [4, 3, 3]),
        (10, 4, 2, [5, 5]),
        (3, 4, 1, [3]),
        (2, 1, 5, [1, 1]),
        (0, 1, 1, [0]),
    ],
)
def test_parts(length: int, least: int, each: int, sizes: list[int]) -> None:
    slices = parts(length, least, each)
    assert [len(range(length)[part]) for part in slices] == sizes
    assert [i for part in slices for i in range(length)[part]] == list(range(length))


@pytest.mark.parametrize("count", [0, 1, 2, 3, 50])
def test_every_task_runs_once(count: int) -> None:
    done: list[int] = []
    run(partial(done.append, i) for i in range(count))
    assert sorted(done) == list(range(count))


def test_tasks_run_side_by_side_the_callers_thread_among_them_with_blas_on_one() -> None:
    barrier, seen = threading.Barrier(3, timeout=120), set()

    def task() -> None:
        seen.add(threading.get_ident())
        assert blas_threads() == {1}
        barrier.wait()

    run([task] * 3)
    assert len(seen) == 3
    assert threading.get_ident() in seen
    assert blas_threads() == {3}


def test_ctrl_c_at_any_line_leaves_blas_as_it_was() -> None:
    stopped_at, at_all, before = set[int](), 0, sys.gettrace()
    while True:
        left = at_all = at_all + 1

        def trace(frame: FrameType, event: str, _: object) -> Callable[..., Any] | None:
            nonlocal left
            if frame.f_code.co_name not in {"on_one_thread", "_leave", "_set"}:
                return None
            # CPython handles signals at calls, so not just before a held lock is released.
            if event != "line" or "(" not in getline(frame.f_code.co_filename, frame.f_lineno):
                return trace
            left -= 1
            if left == 0:
                stopped_at.add(frame.f_lineno)
                raise KeyboardInterrupt
            return trace

        try:
            sys.settrace(trace)
            with on_this_thread():
                pass
        except KeyboardInterrupt:
            continue
        finally:
            sys.settrace(before)
            assert blas_threads() == {3}, f"stopped at {stopped_at}"
        break
    assert len(stopped_at) > 8
    with on_this_thread():  # a stopped block no longer counts
        assert blas_threads() == {1}
    assert blas_threads() == {3}


def test_on_one_thread_all_is_the_callers() -> None:
    set_num_threads(1)
    seen: list[int] = []
    run(lambda: seen.append(threading.get_ident()) for _ in range(4))
    assert seen == [threading.get_ident()] * 4


def test_a_block_may_keep_its_tasks_on_its_thread() -> None:
    """They are cut as for all threads, so that results do not change."""
    seen: list[int] = []
    with on_this_thread():
        assert len(parts(9)) == 3
        run([lambda: seen.append(threading.get_ident())] * 4)
        run([lambda: seen.append(threading.get_ident())])
        assert blas_threads() == {1}
    assert seen == [threading.get_ident()] * 5
    assert blas_threads() == {3}
    side_by_side = threading.Barrier(3, timeout=120)
    run([side_by_side.wait] * 3)


def test_tasks_of_a_task_run_in_its_thread() -> None:
    pairs: list[tuple[int, int]] = []

    def outer() -> None:
        mine = threading.get_ident()
        run(lambda: pairs.append((mine, threading.get_ident())) for _ in range(3))

    run([outer] * 4)
    assert len(pairs) == 12
    assert all(mine == inner for mine, inner in pairs)


@pytest.mark.parametrize("place", ["the caller's thread", "another thread"])
def test_an_error_comes_out_and_the_pool_goes_on(place: str) -> None:
    caller, begun, done = threading.get_ident(), threading.Barrier(3, timeout=120), []

    def task() -> None:
        begun.wait()
        if (threading.get_ident() == caller) == (place == "the caller's thread"):
            raise ValueError("of a task")
        later()

    def later() -> None:
        time.sleep(0.05)  # all of them take several seconds: the thread that raises may have to wait for a core
        done.append(1)

    with pytest.raises(ValueError, match="of a task"):
        run([task] * 3 + [later] * 100)
    assert len(done) < 100
    assert blas_threads() == {3}
    run(partial(done.append, 2) for _ in range(5))
    assert done.count(2) == 5


def test_numpys_error_state_reaches_the_tasks() -> None:
    def task() -> None:
        np.log(np.zeros(2))

    with np.errstate(divide="raise"), pytest.raises(FloatingPointError):
        run([task] * 3)
    with np.errstate(divide="ignore"):
        run([task] * 9)


def in_threads(functions: list[Callable[[], object]]) -> list[BaseException]:
    """Run each in a thread of its own; what they raised."""
    raised: list[BaseException] = []

    def guarded(function: Callable[[], object]) -> None:
        try:
            function()
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=guarded, args=[function]) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return raised


def test_two_callers_at_once_each_get_their_own_work_done() -> None:
    totals = np.zeros((2, 40, 25))

    def caller(row: int) -> None:
        for i in range(40):
            run(partial(totals[row, i, k : k + 1].__iadd__, k) for k in range(25))

    assert not in_threads([partial(caller, 0), partial(caller, 1)])
    np.testing.assert_array_equal(totals, np.broadcast_to(np.arange(25), totals.shape))
    assert blas_threads() == {3}


def test_the_number_may_change_while_another_thread_computes() -> None:
    done: list[int] = []

    def change() -> None:
        for i in range(60):
            set_num_threads(1 + i % 4)

    assert not in_threads([change, lambda: [run(partial(done.append, k) for k in range(8)) for _ in range(60)]])
    assert len(done) == 480
    assert blas_threads() == {get_num_threads()}


def test_a_task_may_set_the_number() -> None:
    run([partial(set_num_threads, 2)] * 4)
    assert get_num_threads() == 2
    assert blas_threads() == {2}


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
@pytest.mark.filterwarnings("ignore:This process")
def test_a_forked_child_has_a_pool_of_its_own() -> None:
    run([lambda: None] * 3)
    child = os.fork()
    if not child:
        done: list[int] = []
        run(partial(done.append, i) for i in range(20))
        os._exit(0 if len(done) == 20 and blas_threads() == {3} else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
@pytest.mark.filterwarnings("ignore:This process")
def test_a_child_forked_while_another_thread_computes() -> None:
    inside, leave = threading.Event(), threading.Event()

    def task() -> None:
        inside.set()
        leave.wait(120)

    other = threading.Thread(target=run, args=[[task] * 3])
    other.start()
    assert inside.wait(120)
    child = os.fork()
    if not child:
        done: list[int] = []
        run(partial(done.append, i) for i in range(20))
        os._exit(0 if len(done) == 20 and blas_threads() == {3} else 1)
    leave.set()
    other.join(20)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def python(code: str, value: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, VARIABLE: value}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)


@pytest.mark.slow
def test_the_environment_sets_the_number() -> None:
    code = (
        "import minicaffe, threadpoolctl\n"
        "number = minicaffe.get_num_threads()\n"
        "blas = threadpoolctl.ThreadpoolController().select(user_api='blas').lib_controllers\n"
        "print(number, {library.num_threads for library in blas})"
    )
    assert python(code, "2").stdout == "2 {2}\n"


@pytest.mark.parametrize("value", ["two", "0", "-1", "1.5", "10" * 6])
def test_a_bad_number_in_the_environment(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv(VARIABLE, value)
    said = f"^{VARIABLE} must be a whole number of threads, at least 1 and at most 4096, got {value!r}$"
    with pytest.raises(Error, match=said):
        check_variable()


@pytest.mark.slow
def test_a_bad_number_in_the_environment_is_an_error_where_it_is_needed() -> None:
    code = (
        "import minicaffe\n"
        "try: minicaffe.get_num_threads()\n"
        "except minicaffe.Error as error: print(error)\n"
        "minicaffe.set_num_threads(1)\n"
        "print(minicaffe.get_num_threads())"
    )
    said = f"{VARIABLE} must be a whole number of threads, at least 1 and at most 4096, got 'two'\n1\n"
    assert python(code, "two").stdout == said


def test_a_bad_number_in_the_environment_is_one_line_on_the_command_line() -> None:
    found = python("from minicaffe.cli import main; main(['layers'])", "many")
    assert (found.returncode, found.stdout) == (1, "")
    assert found.stderr == f"minicaffe: {VARIABLE} must be a whole number of threads, at least 1 and at most 4096, got 'many'\n"


@pytest.mark.slow
@pytest.mark.parametrize("option", ["['--threads', '1']", "['--threads=1']"])
def test_the_option_wins_over_a_bad_number_in_the_environment(tmp_path: Path, option: str) -> None:
    script = tmp_path / "script.py"
    script.write_text("import caffe; print(caffe.get_num_threads())")
    found = python(f"from minicaffe.cli import main; main(['script', *{option}, {str(script)!r}])", "0")
    assert (found.returncode, found.stdout, found.stderr) == (0, "1\n", "")


def test_the_option_counts_until_the_command_is_over(tmp_path: Path) -> None:
    (tmp_path / "net.prototxt").write_text(NET)
    script = tmp_path / "script.py"
    script.write_text("import caffe; print(caffe.get_num_threads())")
    result = CliRunner().invoke(main, ["script", "--threads", "2", str(script)])
    assert result.output == "2\n"
    assert get_num_threads() == 3
    assert CliRunner().invoke(main, ["run", str(tmp_path / "net.prototxt"), "--threads", "2"]).exit_code == 0
    assert get_num_threads() == 3


@pytest.mark.parametrize(
    "command",
    ["compare", "detect", "explain", "export", "extract-features", "rescue", "run", "script", "test", "time", "trace", "train"],
)
@pytest.mark.parametrize("count", ["0", "4097"])
def test_every_command_that_runs_a_net_has_the_option(command: str, count: str) -> None:
    result = CliRunner().invoke(main, [command, "--threads", count])
    assert result.exit_code == 2
    assert "'--threads'" in result.output
