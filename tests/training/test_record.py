"""A training's record, and what is written of it: CSV and TensorBoard's events. The training is the same with them."""

from __future__ import annotations

import csv
import math
import re
import struct
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from training_case import make_training

from minicaffe import Error, Film
from minicaffe.training.plot import Plot
from minicaffe.training.record import LOSS, NetTest, Record, Update
from minicaffe.training.record_csv import RecordCsv
from minicaffe.training.record_events import RecordEvents
from minicaffe.training.solver import SGDSolver
from minicaffe.training.solvers import get_solver

COLUMNS = ["iteration", "seconds", "lr", "loss", "train/loss", "test/loss"]


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The solver of a classifier with dropout and shuffled data, in the working directory."""
    pytest.importorskip("h5py", reason="the extra minicaffe[hdf5] is not installed")
    monkeypatch.chdir(tmp_path)
    return make_training(tmp_path, "SGD", "max_iter: 6 snapshot: 3 display: 1 test_iter: 2 test_interval: 2")


def bits(solver: SGDSolver) -> list[bytes]:
    return [*(blob.data.tobytes() for blob in solver.net.learnable_params), *(array.tobytes() for array in solver.history)]


def rows(path: str) -> list[dict[str, str]]:
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def without_seconds(path: str) -> list[dict[str, str]]:
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows(path)]


def test_the_training_is_the_same_with_all_of_it(small: Path) -> None:
    pytest.importorskip("tensorboardX", reason="the extra minicaffe[tensorboard] is not installed")
    alone = get_solver(small)
    alone.solve()
    state = Path("solver_iter_6.solverstate").read_bytes()
    seen = get_solver(small)
    with ExitStack() as stack:
        for writer in (RecordCsv(seen, "run.csv"), RecordEvents(seen, "events"), Plot(seen, "run.png"), Film(seen, "film")):
            stack.enter_context(writer)
        seen.solve()
    assert bits(seen) == bits(alone)
    assert Path("solver_iter_6.solverstate").read_bytes() == state
    assert len(rows("run.csv")) == 7 and Path("run.png").is_file() and list(Path("events").iterdir())


def test_the_facts(small: Path) -> None:
    solver = get_solver(small)
    updates: list[Update] = []
    tests: list[NetTest] = []
    expected: list[tuple[int, float]] = []
    solver.record.on_update(updates.append)
    solver.record.on_test(tests.append)
    solver.on_progress(lambda progress: expected.append((progress.iteration, progress.last_loss)))
    solver.solve()
    record = solver.record
    assert list(zip(record.iterations, record.values[LOSS], strict=True)) == expected
    assert [(one.iteration, one.values[LOSS]) for one in updates] == expected
    assert record.names == [LOSS, "loss"] and record.values["loss"] == record.values[LOSS]
    assert [(test.iteration, test.net) for test in tests] == [(at, 0) for at in (0, 2, 4, 6)] and record.tests == tests
    assert list(record.rates)[:2] == pytest.approx([0.05 * 5 / 6, 0.05 * 4 / 6])
    assert 0 < record.seconds[0] < record.seconds[-1]
    assert record.between(2, 4) == ([3, 4], {name: list(values[2:4]) for name, values in record.values.items()})


def test_what_is_repeated_is_replaced() -> None:
    record = Record(get_solver_of_nothing())
    for at, loss in ((1, 0.5), (2, 0.4), (3, 0.3), (2, 0.25)):
        record.add_test(NetTest(at - 1, 0, {"a": loss}))
        record.add(Update(at, at / 10, 0.1, {LOSS: loss}))
    assert list(record.iterations) == [1, 2] and list(record.values[LOSS]) == [0.5, 0.25]
    assert [(test.iteration, test.outputs["a"]) for test in record.tests] == [(0, 0.5), (1, 0.25)]


def get_solver_of_nothing() -> SGDSolver:
    from minicaffe.formats.prototxt import parse_net, parse_solver

    param = parse_solver('base_lr: 0.1 lr_policy: "fixed" max_iter: 1')
    net = 'layer { name: "x" type: "DummyData" top: "x" dummy_data_param { shape { dim: 2 } } }'
    param.net_param.CopyFrom(parse_net(net).param)
    return get_solver(param)


def test_a_row_for_each_iteration(small: Path) -> None:
    solver = get_solver(small)
    sizes: list[int] = []
    with RecordCsv(solver, "run.csv"):
        solver.on_progress(lambda progress: sizes.append(len(rows("run.csv"))))
        solver.solve()
    assert sizes == [2, 3, 4, 5, 6, 7]  # each row is in the file before the next iteration; the first is that of the test at 0
    found = rows("run.csv")
    assert list(found[0]) == COLUMNS
    assert [int(row["iteration"]) for row in found] == list(range(7))
    assert [float(row["loss"]) for row in found[1:]] == pytest.approx(list(solver.record.values[LOSS]), rel=1e-8)
    assert [row["test/loss"] != "" for row in found] == [at % 2 == 0 for at in range(7)]
    assert [float(row["test/loss"]) for row in found[::2]] == pytest.approx(
        [test.outputs["loss"] for test in solver.record.tests], rel=1e-8
    )
    assert (found[0]["loss"], found[0]["lr"]) == ("", "0.05")
    seconds = [float(row["seconds"]) for row in found]
    assert seconds == sorted(seconds)


@pytest.mark.parametrize("torn", ["", "7,0.1"])
def test_a_resumed_training_goes_on_with_its_file(small: Path, torn: str) -> None:
    straight = get_solver(small)
    with RecordCsv(straight, "straight.csv"):
        straight.solve()
    first = get_solver(small)
    with RecordCsv(first, "run.csv"):
        first.step(5)
    with open("run.csv", "a") as file:
        file.write(torn)
    second = get_solver(small, seed=99)
    second.restore("solver_iter_3.solverstate")
    before = float(rows("run.csv")[3]["seconds"])
    with RecordCsv(second, "run.csv"):
        assert [row["iteration"] for row in rows("run.csv")] == list("0123")
        second.solve()
    assert without_seconds("run.csv") == without_seconds("straight.csv")
    assert float(rows("run.csv")[4]["seconds"]) > before
    assert list(second.record.iterations) == [1, 2, 3, 4, 5, 6]
    assert [test.iteration for test in second.record.tests] == [0, 2, 4, 6]
    np.testing.assert_allclose(second.record.values[LOSS], straight.record.values[LOSS], rtol=1e-8)


def test_a_test_that_is_repeated_is_in_its_row(small: Path) -> None:
    """Iteration 6 is tested at the end, and again when a training resumes there. Its new row may be shorter."""
    solver = get_solver(small)
    with RecordCsv(solver, "run.csv"):
        solver.solve()
    text = Path("run.csv").read_text()
    last = text.splitlines()[-1]
    Path("run.csv").write_text(text.replace(last, f"{last}0000000001"))
    again = get_solver(small)
    again.restore("solver_iter_6.solverstate")
    with RecordCsv(again, "run.csv"):
        again.solve()
    assert Path("run.csv").read_text() == text


def test_a_plot_of_a_films_facts_alone(small: Path) -> None:
    """A film does not know the seconds of its iterations."""
    solver = get_solver(small)
    with Film(solver, "film"):
        solver.solve()
    again = get_solver(small)
    again.restore("solver_iter_6.solverstate")
    with Film(again, "film"), Plot(again, "run.png"):
        pass
    assert list(again.record.iterations) == [1, 2, 3, 4, 5, 6] and Path("run.png").is_file()


def test_a_training_from_the_start_replaces_the_file(small: Path) -> None:
    found = []
    for _ in range(2):
        solver = get_solver(small)
        with RecordCsv(solver, "run.csv"):
            solver.step(3)
        found.append(without_seconds("run.csv"))
    assert found[0] == found[1] and [row["iteration"] for row in found[0]] == list("0123")


def test_a_file_that_ends_before_the_resumed_iteration_lacks_the_rows_between(small: Path) -> None:
    solver = get_solver(small)
    with RecordCsv(solver, "run.csv"):
        solver.step(2)
    solver.solve()
    for _ in range(2):
        resumed = get_solver(small)
        resumed.restore("solver_iter_6.solverstate")
        with RecordCsv(resumed, "run.csv"):
            resumed.solve()
        found = rows("run.csv")
        assert [row["iteration"] for row in found] == list("0126")
        assert found[-1]["loss"] == "" and float(found[-1]["test/loss"]) > 0
        assert list(resumed.record.iterations) == [1, 2]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda text: text.replace("test/loss", "test/top1"),
            "run.csv: its columns are not this training's (it lacks test/loss; it has test/top1): give another file, or",
        ),
        (
            lambda text: "image,class\na.png,cat\n",
            "run.csv: its columns are not this training's (it lacks iteration, seconds, lr",
        ),
        (
            lambda text: text.replace("seconds,lr", "lr,seconds"),
            "run.csv: its columns are not this training's (their order is another)",
        ),
        (lambda text: text.replace("\n2,", "\nx,"), "run.csv:4: not a row of the training: repair or remove the file"),
        (lambda text: text.replace("\n2,", "\n1,"), "run.csv:4: not a row of the training"),
        (lambda text: text.replace("\n2,", "\n2,5,"), "run.csv:4: not a row of the training"),
    ],
)
def test_a_file_of_something_else_is_left_alone(small: Path, change: Callable[[str], str], message: str) -> None:
    solver = get_solver(small)
    with RecordCsv(solver, "run.csv"):
        solver.step(3)
    Path("run.csv").write_text(change(Path("run.csv").read_text()))
    text = Path("run.csv").read_text()
    with pytest.raises(Error, match=re.escape(message)), RecordCsv(solver, "run.csv"):
        pass
    assert Path("run.csv").read_text() == text


def test_names_of_columns_are_quoted(tmp_path: Path) -> None:
    from minicaffe.formats.prototxt import parse_net, parse_solver

    net = """layer { name: "x" type: "DummyData" top: "x" dummy_data_param { shape { dim: 2 dim: 3 } } }
layer { name: "r" type: "Reduction" bottom: "x" top: "=a,\\"b\\"" loss_weight: 2 }"""
    param = parse_solver('base_lr: 0.1 lr_policy: "fixed" max_iter: 2')
    param.net_param.CopyFrom(parse_net(net).param)
    solver = get_solver(param)
    for _ in range(2):
        with RecordCsv(solver, tmp_path / "run.csv"):
            solver.step(1)
    found = rows(str(tmp_path / "run.csv"))
    assert [row["iteration"] for row in found] == ["1", "2"] and found[0]['train/=a,"b"'] == "0"


def events(folder: Path) -> list[Any]:
    """The events of a folder's files, oldest first."""
    from tensorboardX.proto.event_pb2 import Event

    found = []
    for file in sorted(folder.iterdir(), key=lambda file: file.stat().st_mtime_ns):
        data, at = file.read_bytes(), 0
        while at < len(data):
            (length,) = struct.unpack_from("<Q", data, at)
            found.append(Event.FromString(data[at + 12 : at + 12 + length]))
            at += length + 16
    return found


def test_events(small: Path) -> None:
    pytest.importorskip("tensorboardX", reason="the extra minicaffe[tensorboard] is not installed")
    solver = get_solver(small)
    with RecordEvents(solver, "events"):
        solver.solve()
    found = {(value.tag, event.step): value.simple_value for event in events(Path("events")) for value in event.summary.value}
    record = solver.record
    assert {tag for tag, _ in found} == {"loss", "lr", "train/loss", "test/loss"}
    assert [found["loss", i] for i in range(1, 7)] == pytest.approx(list(record.values[LOSS]))
    assert [found["test/loss", i] for i in (0, 2, 4, 6)] == pytest.approx([test.outputs["loss"] for test in record.tests])
    again = get_solver(small)
    again.restore("solver_iter_3.solverstate")
    with RecordEvents(again, "second"):
        again.step(1)
    begun = next(event for event in events(Path("second")) if event.HasField("session_log"))
    assert (begun.step, begun.session_log.status) == (4, begun.session_log.START)  # hides earlier events from there on


def test_events_are_in_the_file_soon(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tensorboardX", reason="the extra minicaffe[tensorboard] is not installed")
    monkeypatch.setattr("minicaffe.training.record_events.INTERVAL", 0)
    solver, counts = get_solver(small), []
    with RecordEvents(solver, "events"):
        solver.on_progress(lambda progress: counts.append(sum(e.step == progress.iteration for e in events(Path("events")))))
        solver.step(2)
    assert min(counts) > 0


def test_without_the_package(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    monkeypatch.delitem(sys.modules, "tensorboardX.event_file_writer", raising=False)
    with pytest.raises(Error, match=r"need the package tensorboardX: pip install -e .*\[tensorboard\]"):
        RecordEvents(get_solver(small), "events")


def test_a_test_that_is_not_finite(small: Path) -> None:
    solver = get_solver(small)
    with RecordCsv(solver, "run.csv"):
        solver.step(1)
        for report in solver._tested:
            report(0, {"loss": np.array(math.nan)})
    assert solver.record.tests[-1].outputs == {"loss": None}
    assert rows("run.csv")[-1]["test/loss"] == ""
