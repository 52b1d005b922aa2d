"""Going on from a snapshot is going on as if never stopped, bit for bit: weights, histories, losses shown, test results."""

from __future__ import annotations

import dataclasses
import importlib
import logging
import random
import re
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from detection_case import using
from forked import forked, needs_fork
from training_case import RULES, make_training

from minicaffe import rng
from minicaffe.data.roidb import add_flipped
from minicaffe.data.roidb_entry import Entry
from minicaffe.data.settings import read_settings
from minicaffe.errors import SolverError, WeightsError
from minicaffe.formats.prototxt import parse_solver
from minicaffe.formats.wire import encoded
from minicaffe.layer import Layer
from minicaffe.layers import CATALOGUE
from minicaffe.training.running_state import decoded_state, encoded_state
from minicaffe.training.signals import Action
from minicaffe.training.snapshots import latest, read_state, write_state
from minicaffe.training.solver import SGDSolver
from minicaffe.training.solvers import get_solver

h5py = pytest.importorskip("h5py", reason="the extra minicaffe[hdf5] is not installed")

SHAPES = Path(__file__).parents[2] / "examples" / "shapes"


def bits(solver: SGDSolver) -> list[bytes]:
    blobs = [blob.data.tobytes() for blob in solver.net.learnable_params]
    return [*blobs, *(array.tobytes() for array in solver.history)]


def solve(solver: SGDSolver, state: str | Path | None, caplog: pytest.LogCaptureFixture) -> list[str]:
    """The lines on losses and tests of solver.solve(), without the speed."""
    caplog.clear()
    caplog.set_level(logging.INFO, "minicaffe.solver")
    solver.solve(state)
    lines = (record.getMessage() for record in caplog.records)
    return [re.sub(r" \([^)]*iters\)", "", line) for line in lines if " = " in line]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "form"), [(kind, ("BINARYPROTO", "HDF5")[i % 2]) for i, kind in enumerate(RULES)])
def test_every_rule_goes_on_bit_for_bit(kind, form, tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    more = f"max_iter: 11 snapshot: 5 display: 1 average_loss: 4 test_iter: 2 test_interval: 3 snapshot_format: {form}"
    path = make_training(tmp_path, kind, more)
    straight = get_solver(path)
    assert straight.type == kind
    lines = solve(straight, None, caplog)
    suffix = ".h5" if form == "HDF5" else ""
    rng.set_random_seed(77)
    resumed = get_solver(path, seed=99)
    assert resumed.net.params["ip1"][0].data.tobytes() != straight.net.params["ip1"][0].data.tobytes()
    again = solve(resumed, tmp_path / f"solver_iter_5.solverstate{suffix}", caplog)
    assert again[0].startswith("Iteration 5, loss = ") and again == lines[-len(again) :]
    assert bits(resumed) == bits(straight)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["BINARYPROTO", "HDF5"])
def test_a_plateau_goes_on_bit_for_bit(form, tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    more = f"max_iter: 14 snapshot: 5 display: 1 average_loss: 3 snapshot_format: {form}"
    path = make_training(tmp_path, "SGD", more)
    windows = "plateau_winsize: 2 " * 4
    path.write_text(path.read_text().replace('"poly" power: 1', f'"plateau" gamma: 0.5 {windows}'))
    straight = get_solver(path)
    lines = solve(straight, None, caplog)
    resumed = get_solver(path, seed=99)
    again = solve(resumed, tmp_path / f"solver_iter_5.solverstate{'.h5' * (form == 'HDF5')}", caplog)
    assert again == lines[-len(again) :] and bits(resumed) == bits(straight)
    assert resumed.plateau == straight.plateau and straight.plateau.current_step > 1


def test_loops_of_single_steps_go_on_too(tmp_path, monkeypatch):
    """As py-faster-rcnn trains: step(1), snapshots by hand, another process's start in between."""
    monkeypatch.chdir(tmp_path)
    path = make_training(tmp_path, "SGD", "max_iter: 8")
    straight = get_solver(path)
    for _ in range(8):
        straight.step(1)
        if straight.iter == 3:
            straight.snapshot()
    resumed = get_solver(path)
    resumed.step(4)
    resumed.restore("solver_iter_3.solverstate")
    assert resumed.iter == 3
    for _ in range(5):
        resumed.step(1)
    assert bits(resumed) == bits(straight)


class Counting(Layer):
    """The number of batches so far, as a Python layer of a user's keeps it."""

    num_bottom, num_top = 0, 1

    def setup(self, bottom, top):
        self.batches = 0

    def reshape(self, bottom, top):
        top[0].reshape(2, 3)

    def forward(self, bottom, top):
        self.batches += 1
        top[0].data[...] = self.batches

    def training_state(self):
        return {"batches": self.batches}

    def restore_training_state(self, state):
        self.batches = state["batches"]


def test_a_layer_of_a_users_joins_in(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(CATALOGUE, "Counting", Counting)
    text = f"""{RULES["AdaGrad"]} type: "AdaGrad" snapshot_prefix: "run" net_param {{
      layer {{ name: "count" type: "Counting" top: "x" }}
      layer {{ name: "ip" type: "InnerProduct" bottom: "x" top: "y" inner_product_param {{ num_output: 1 }} }}
      layer {{ name: "loss" type: "Reduction" bottom: "y" top: "loss" loss_weight: 1 }} }}"""
    straight = get_solver(parse_solver(text))
    straight.step(2)
    straight.snapshot()
    straight.step(2)
    resumed = get_solver(parse_solver(text))
    resumed.restore("run_iter_2.solverstate")
    resumed.step(2)
    assert resumed.net.layers[0].batches == 4
    assert bits(resumed) == bits(straight)


@pytest.mark.slow
def test_an_rfcn_goes_on_bit_for_bit_with_its_box_layers_unfolded(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    chosen = read_settings(SHAPES / "shapes.yml")
    chosen = dataclasses.replace(chosen, train=dataclasses.replace(chosen.train, scales=(120,)))
    generator = np.random.default_rng(1)
    entries = [
        Entry(image=generator.integers(0, 256, (60, 80, 3), np.uint8), boxes=np.array([box]), gt_classes=np.array([kind]))
        for kind, box in ((1, [10, 20, 50, 50]), (2, [30, 5, 70, 40]), (3, [40, 10, 78, 58]))
    ]

    def solver() -> SGDSolver:
        made = get_solver(SHAPES / "rfcn" / "solver.prototxt", settings=chosen)
        made.param.snapshot_prefix = "rfcn"
        made.net.layers[0].set_roidb(add_flipped(entries))
        return made

    with using(chosen):
        straight = solver()
        straight.step(2)
        straight.snapshot()
        straight.step(2)
        resumed = solver()
        resumed.restore(latest("rfcn"))
        resumed.step(2)
    assert bits(resumed) == bits(straight)


def test_a_stop_while_testing_goes_on_with_the_tests_from_their_start(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    path = make_training(tmp_path, "Adam", "max_iter: 9 display: 1 test_iter: 4 test_interval: 3")
    straight = get_solver(path)
    lines = solve(straight, None, caplog)
    stopped = get_solver(path)
    asked = iter([Action.NONE] * 15)
    stopped.set_action_function(lambda: next(asked, Action.STOP))
    solve(stopped, None, caplog)
    said = [record.getMessage() for record in caplog.records]
    assert "Test interrupted." in said and said[-1] == "Optimization stopped early."
    assert stopped.stopped and stopped.iter == 6
    resumed = get_solver(path)
    again = solve(resumed, "solver_iter_6.solverstate", caplog)
    assert again == lines[-len(again) :] and len(again) == 12
    assert bits(resumed) == bits(straight)


def test_snapshots_asked_for_between_iterations_and_while_testing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = make_training(tmp_path, "SGD", "max_iter: 4 snapshot_after_train: false test_iter: 2 test_interval: 3")
    asked = iter([Action.NONE, Action.SNAPSHOT, Action.NONE, Action.NONE, Action.SNAPSHOT])
    solver = get_solver(path)
    solver.set_action_function(lambda: next(asked, Action.NONE))
    solver.solve()
    assert not solver.stopped and solver.iter == 4
    assert sorted(file.name for file in tmp_path.glob("*.solverstate")) == [
        "solver_iter_0.solverstate",
        "solver_iter_2.solverstate",
    ]


# States that cannot be gone on from.


@pytest.fixture
def trained(tmp_path, monkeypatch) -> Path:
    """A folder, the working directory, with an Adam solver's snapshot of iteration 2."""
    monkeypatch.chdir(tmp_path)
    solver = get_solver(make_training(tmp_path, "Adam", "max_iter: 2"))
    solver.solve()
    return tmp_path


def test_a_state_without_minicaffes_own_field_is_gone_on_from(trained):
    """As Caffe writes it: weights, history and iteration, and the data from its start."""
    file = trained / "solver_iter_2.solverstate"
    write_state(file, dataclasses.replace(read_state(file), running=b""))
    solver = get_solver(trained / "solver.prototxt")
    solver.restore(file)
    assert solver.iter == 2
    np.testing.assert_array_equal(solver.history[5], read_state(file).history[5])


def test_a_state_of_another_rule(trained):
    make_training(trained, "SGD", "max_iter: 3")
    with pytest.raises(WeightsError, match="8 history blobs, but this solver keeps 4 for its net"):
        get_solver(trained / "solver.prototxt").restore(trained / "solver_iter_2.solverstate")


def test_a_state_of_a_net_of_other_shapes(trained):
    make_training(trained, "Adam", "max_iter: 3", hidden=9)
    with pytest.raises(WeightsError, match=r"history blob 0 has shape \(8, 6\), but the net's blob has \(9, 6\)"):
        get_solver(trained / "solver.prototxt").restore(trained / "solver_iter_2.solverstate")


def test_a_state_of_a_net_whose_layers_have_other_names(trained):
    net = trained / "net.prototxt"
    net.write_text(net.read_text().replace('name: "ip2"', 'name: "fc2"'))
    with pytest.raises(WeightsError, match=r"a snapshot of another net: .*solver_iter_2\.caffemodel lacks weights of fc2"):
        get_solver(trained / "solver.prototxt").restore("solver_iter_2.solverstate")


def test_a_state_whose_weights_are_gone(trained):
    (trained / "solver_iter_2.caffemodel").unlink()
    with pytest.raises(SolverError, match=r"solver_iter_2\.caffemodel: no such file"):
        get_solver(trained / "solver.prototxt").restore("solver_iter_2.solverstate")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"{", "x: its state of random numbers and data is damaged: Expecting property name"),
        (b"\xff", "x: its state of random numbers and data is damaged: 'utf-8' codec"),
        (b"7", "x: its state of random numbers and data is damaged: it holds int, not an object"),
        (b'[1, "a"]', "x: its state of random numbers and data is damaged: it holds list, not an object"),
        (b"[" * 200_000, "x: its state of random numbers and data is damaged: "),
        (b'{"train": {}}', r"x: its state of random numbers and data is damaged: it lacks generator, losses, test"),
    ],
)
def test_a_damaged_running_state(text, message):
    with pytest.raises(WeightsError, match=message):
        decoded_state(text, "x")


@pytest.mark.parametrize("history", [b"\x1a\x0c*\x08" + bytes(8), b"\x1a\xdf\0"])
def test_a_state_cut_inside_its_history(history, tmp_path):
    """A blob of which only a part is there: no shape yet for the values, or no values."""
    (tmp_path / "cut.solverstate").write_bytes(b"\x08\x0a" + history)
    with pytest.raises(WeightsError, match=r"cut\.solverstate"):
        read_state(tmp_path / "cut.solverstate")


def test_running_states_are_read_as_they_were_written():
    state = {"generator": np.random.default_rng(3).bit_generator.state, "train": {}, "test": [], "losses": [0.1, 1e-30]}
    assert decoded_state(encoded_state(state), "x") == state
    assert decoded_state(b"", "x") == {}


def changed(file: Path, path: str, value: object) -> None:
    """Put value at a dotted path (numbers for places in lists) of the running state in a state file."""
    stored = read_state(file)
    running = decoded_state(stored.running, file)
    place, *names = running, *path.split(".")
    for name in names[:-1]:
        place = place[int(name) if isinstance(place, list) else name]
    place[int(names[-1]) if isinstance(place, list) else names[-1]] = value
    write_state(file, dataclasses.replace(stored, running=encoded_state(running)))


NO_WHOLE = [10**6, -3, "3", 1.0, True, None, [], 10**100]
ORDER = "train.data.rows"
CRAFTED = [
    *((f"{ORDER}.position", value) for value in NO_WHOLE),
    *((f"{ORDER}.seed", value) for value in (-3, "3", 0.5, 10**100)),
    *((f"{ORDER}.epoch", value) for value in (-3, "3", 10**100)),
    *((f"{ORDER}.count", value) for value in (10**6, -3, "3", [])),
    *(("train.data.file", value) for value in NO_WHOLE),
    *((f"{at}.state.state", value) for at in ("generator", "train.data.generator") for value in (-3, "3", 10**100, None)),
    ("generator.bit_generator", "MT1"), ("generator.state", []), ("generator.has_uint32", 2), ("generator.uinteger", -3),
    ("generator", 7), ("train", 7), ("train.data", 7), ("train.data.rows", "3"), ("test", {"a": 1}), ("test", [7]),
    ("losses", 7), ("losses", ["3"]), ("losses", [10**400]), ("ranks", 7), ("ranks", [7]), ("ranks", [{"generator": 7}]),
    ("unfolded", 7), ("unfolded", {"ip1": []}), ("unfolded", {"ip1": 7}), ("unfolded", {"../x": []}),
    ("unfolded", {"ip1": [{"shape": [10**6, 10**6], "dtype": "<f4", "data": ""}] * 2}),
]  # fmt: skip


def test_a_crafted_running_state_is_refused_before_anything_runs(trained):
    """Positions, seeds and arrays that no training has: an error that names the file, the field and the layer."""
    file = trained / "solver_iter_2.solverstate"
    whole, solver = file.read_bytes(), get_solver(trained / "solver.prototxt")
    weights = [blob.data.copy() for blob in solver.net.learnable_params]
    for path, value in CRAFTED:
        file.write_bytes(whole)
        changed(file, path, value)
        last = path.split(".")[-1]
        with pytest.raises(WeightsError, match=rf'solver_iter_2\.solverstate: .*"[^"]*{last}') as caught:
            solver.restore(file)
        if path.startswith("train.data."):
            assert 'layer "data": the state to resume from does not fit' in str(caught.value)
        if path != "unfolded":
            assert all(np.array_equal(had, blob.data) for had, blob in zip(weights, solver.net.learnable_params, strict=True))
        assert solver.iter == 0
    file.write_bytes(whole)
    solver.restore(file)
    assert solver.iter == 2


@pytest.mark.parametrize("suffix", ["", ".h5"])
@pytest.mark.parametrize(("field", "value"), [("iteration", -3), ("iteration", 2**31), ("current_step", -3)])
def test_an_iteration_that_no_training_has(trained, tmp_path, suffix, field, value):
    file = tmp_path / f"solver_iter_9.solverstate{suffix}"
    stored = dataclasses.replace(read_state(trained / "solver_iter_2.solverstate"), **{field: min(value, 2**31 - 1)})
    write_state(file, stored)
    if value == 2**31:  # which neither format's writer takes
        if suffix:
            with h5py.File(file, "r+") as opened:
                del opened["iter"]
                opened["iter"] = np.array([value])
        else:
            file.write_bytes(file.read_bytes() + b"\x08" + encoded(value))
    name = {"iteration": "iter", "current_step": "current_step"}[field]
    with pytest.raises(
        WeightsError, match=rf'solver_iter_9\.solverstate.*: "{name}" must be a whole number from 0 to 2147483647, got'
    ):
        get_solver(trained / "solver.prototxt").restore(file)


def test_the_newest_complete_snapshot_is_found(trained, caplog):
    assert latest("nothing") is None
    assert latest(str(trained / "solver")) == trained / "solver_iter_2.solverstate"
    solver = get_solver(trained / "solver.prototxt")
    for iteration in (9, 10):
        solver.iter = iteration
        solver.snapshot()
    assert latest("solver") == Path("solver_iter_10.solverstate")
    (trained / "other_iter_11.solverstate").write_bytes(b"")
    model = trained / "solver_iter_10.caffemodel"
    model.write_bytes(model.read_bytes()[:-5])
    assert latest("solver") == Path("solver_iter_9.solverstate")
    assert "solver_iter_10.solverstate is skipped: " in caplog.text and "solver_iter_10.caffemodel: offset" in caplog.text
    (trained / "solver_iter_9.solverstate").write_bytes(b"\x08")
    assert latest("solver") == Path("solver_iter_2.solverstate")


def test_a_state_is_never_there_with_the_weights_of_another_run(trained, monkeypatch):
    """The state goes before the weights are written anew: a crash in between leaves no pair that does not belong together."""
    solver = get_solver(trained / "solver.prototxt")
    solver.step(2)

    def crash(path, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(solver.net, "save", crash)
    with pytest.raises(KeyboardInterrupt):
        solver.snapshot()
    assert latest("solver") is None


# Killed.


@needs_fork
@pytest.mark.parametrize("times", [1, pytest.param(12, marks=pytest.mark.slow)])
def test_a_killed_training_goes_on_bit_for_bit(times, monkeypatch):
    """Once, and slowly with all rules; tests/support/kill_training.py does it as often as is asked."""
    words = ["--times", str(times), "--iterations", "6", "--seed", str(random.randrange(10**6))]
    monkeypatch.setattr(sys, "argv", ["kill_training.py", *words])
    if (memory := Path("/dev/shm")).is_dir():
        monkeypatch.setattr(tempfile, "tempdir", str(memory))
    done = forked(lambda: importlib.import_module("kill_training").main())  # which changes sys.path
    assert done.status == 0, (words, done.stdout, done.stderr)
    assert done.stdout.count("the same bytes at the end") == times
