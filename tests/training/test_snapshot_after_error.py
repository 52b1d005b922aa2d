"""An error that ends a training leaves a snapshot of the last complete iteration, from which it resumes bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from extras import require
from training_case import make_training

from minicaffe.errors import DataError, Error, SolverError
from minicaffe.net import Net
from minicaffe.training import updates
from minicaffe.training.solver import SGDSolver
from minicaffe.training.solvers import get_solver

MORE = "max_iter: 9 average_loss: 3 test_iter: 2 test_interval: 4 test_initialization: false"


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A solver whose net draws random numbers and has running statistics."""
    require("hdf5")
    monkeypatch.chdir(tmp_path)
    file = make_training(tmp_path, "SGD", MORE)
    norm = 'layer { name: "norm" type: "BatchNorm" bottom: "ip1" top: "ip1" }'
    net = tmp_path / "net.prototxt"
    net.write_text(net.read_text().replace('layer { name: "relu1"', norm + '\nlayer { name: "relu1"'))
    return file


def bits(solver: SGDSolver) -> list[bytes]:
    return [array.tobytes() for array in (*(blob.data for blob in solver.net.learnable_params), *solver.history)]


def fail_at(solver: SGDSolver, net: Net, error: Callable[[], Exception]) -> None:
    """Raise before the last layer's sixth iteration, or its second test batch after the fourth."""
    passes = [0]

    def hook(i: int) -> None:
        passes[0] += i == len(net.nodes) - 1
        if passes[0] == (6 if net is solver.net else 2):
            raise error()

    net.before_forward(hook)


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize(("nets", "iterations"), [("net", 5), ("test_nets", 4)])
def test_a_resumed_training_ends_as_if_nothing_had_failed(path: Path, nets: str, iterations: int) -> None:
    straight = get_solver(path)
    straight.solve()
    for file in path.parent.glob("*iter_*"):
        file.unlink()
    failing = get_solver(path)
    fail_at(failing, failing.net if nets == "net" else failing.test_nets[0], lambda: DataError("b.jpg: truncated"))
    saved = f"b.jpg: truncated\nthe state after {iterations} iterations is saved; to resume: train --snapshot .*"
    with pytest.raises(DataError, match=rf"{saved}solver_iter_{iterations}\.solverstate"):
        failing.solve()
    resumed = get_solver(path, seed=99)
    resumed.solve(f"solver_iter_{iterations}.solverstate")
    assert bits(resumed) == bits(straight)


def test_any_exception_leaves_a_snapshot(path: Path) -> None:
    solver = get_solver(path)
    fail_at(solver, solver.net, lambda: ZeroDivisionError("of a Python layer"))
    with pytest.raises(ZeroDivisionError) as caught:
        solver.step(9)
    assert str(caught.value) == "of a Python layer"
    assert Path("solver_iter_5.solverstate").is_file()


def test_a_half_made_update_is_not_saved(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    solver = get_solver(path)
    solver.step(2)

    def fail(*_: object) -> None:
        solver.net.learnable_params[0].data[...] = 7
        raise MemoryError("no memory")

    monkeypatch.setattr(updates, "apply_update", fail)
    with pytest.raises(MemoryError, match="no memory\nno snapshot was written: the update of iteration 2 is incomplete"):
        solver.step(1)
    assert not list(path.parent.glob("*iter_*"))


@pytest.mark.parametrize("at", ["the start", "a snapshot"])
def test_nothing_is_written_twice(path: Path, at: str) -> None:
    solver = get_solver(path)
    if at == "a snapshot":
        solver.step(1)
        solver.snapshot().unlink()
    solver.net.before_forward(lambda _: (_ for _ in ()).throw(DataError("b.jpg: truncated")))
    with pytest.raises(DataError, match=r"^b\.jpg: truncated$"):
        solver.step(1)
    assert not list(path.parent.glob("*.caffemodel"))


def test_a_solver_without_snapshots_writes_none(path: Path) -> None:
    path.write_text(path.read_text() + "snapshot_after_train: false")
    solver = get_solver(path)
    fail_at(solver, solver.net, lambda: DataError("b.jpg: truncated"))
    with pytest.raises(DataError, match=r"^b\.jpg: truncated$"):
        solver.step(9)
    assert not list(path.parent.glob("*iter_*"))


def test_a_snapshot_that_fails_too_keeps_the_first_error(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    solver = get_solver(path)
    fail_at(solver, solver.net, lambda: SolverError("the first"))
    monkeypatch.setattr(solver, "snapshot", lambda: (_ for _ in ()).throw(Error("no space left")))
    message = "the first\nno snapshot of the 5 complete iterations could be written: no space left"
    with pytest.raises(SolverError, match=message):
        solver.step(9)
