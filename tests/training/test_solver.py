"""The solvers: what Caffe computed with all six, SGD's updates by hand, policies by number, tests, snapshots, errors."""

from __future__ import annotations

import logging
import re
import time
from pathlib import Path

import numpy as np
import pytest
from extras import require
from golden import inside
from hypothesis import given
from hypothesis import strategies as st
from recordings import REASON, SHARED, needs

from minicaffe.errors import PrototxtError, SolverError, WeightsError
from minicaffe.formats.prototxt import parse_solver
from minicaffe.formats.weights import read_weights
from minicaffe.layer import Layer
from minicaffe.layers import CATALOGUE
from minicaffe.proto import caffe_pb2
from minicaffe.training.lr_policy import check_policy, current_step, learning_rate
from minicaffe.training.snapshots import TrainingState, read_state, write_state
from minicaffe.training.solver import SGDSolver
from minicaffe.training.solvers import get_solver
from minicaffe.training.updates import clip

SOLVERS = SHARED / "golden/solvers"
CASES = sorted(path.stem for path in SOLVERS.glob("*.npz") if not path.stem.startswith("log_"))
TOLERANCE = {"rtol": 1e-3, "atol": 1e-5}
needs_golden = needs(SOLVERS)


# What Caffe computed.


def put(solver: SGDSolver, stored, prefix: str) -> None:
    for name, blobs in solver.net.params.items():
        for i, blob in enumerate(blobs):
            if f"{prefix}.{name}.{i}" in stored:
                blob.data[...] = stored[f"{prefix}.{name}.{i}"]


def same_weights(solver: SGDSolver, stored, prefix: str) -> int:
    compared = 0
    for name, blobs in solver.net.params.items():
        for i, blob in enumerate(blobs):
            if (key := f"{prefix}.{name}.{i}") in stored:
                np.testing.assert_allclose(blob.data, stored[key], **TOLERANCE, err_msg=key)
                compared += 1
    return compared


@needs_golden
@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("case", [pytest.param(case, marks=[pytest.mark.slow] * (i % 2)) for i, case in enumerate(CASES)])
def test_golden_training(case, tmp_path):
    """Every second of them, and slowly all."""
    require("hdf5")
    stored = np.load(SOLVERS / f"{case}.npz")
    with inside(SOLVERS):
        solver = get_solver(f"{case}.solver.prototxt")
        solver.param.snapshot_prefix = str(tmp_path / "run")
        put(solver, stored, "init")
        compared = 0
        for k in range(15):
            assert solver.lr == pytest.approx(float(stored["lr"][k]), rel=1e-5)
            solver.step(1)
            np.testing.assert_allclose(solver.net.blobs["loss"].data, stored["loss"][k], **TOLERANCE)
            compared += same_weights(solver, stored, f"iter{k + 1}")
            if k == 9 and "state.iter" in stored:
                model = solver.snapshot()
    assert compared >= 4
    if "state.iter" in stored:
        for path in (SOLVERS / f"{case}_iter_10.caffemodel", SOLVERS / f"{case}_iter_10.caffemodel.h5"):
            if path.exists():
                same_file(path, model)
        resume(case, stored, str(model).replace(".caffemodel", ".solverstate"))


def same_file(theirs: Path, ours: Path) -> None:
    mine = {layer.name: layer for layer in read_weights(ours).layers}
    for layer in read_weights(theirs).layers:
        if [blob for blob in layer.blobs if blob]:
            for a, b in zip(layer.blobs, mine[layer.name].blobs, strict=True):
                assert (a is None) == (b is None)
                if a is not None:
                    np.testing.assert_allclose(b.array, a.array, **TOLERANCE)


def resume(case: str, stored, own_state: str) -> None:
    """From Caffe's state the data begins again at row 0, as Caffe's did; from our own, training goes on as if never stopped."""
    theirs = next(SOLVERS.glob(f"{case}_iter_10.solverstate*"))
    restarted = (str(theirs), stored["resumed_loss"], "resumed15")
    for state, losses, final in (restarted, (own_state, stored["loss"][10:], "iter15")):
        with inside(SOLVERS):
            solver = get_solver(f"{case}.solver.prototxt")
            solver.restore(state)
            assert solver.iter == int(stored["state.iter"]) == 10
            assert current_step(solver.param, 9) == int(stored["state.current_step"])
            for j, history in enumerate(solver.history):
                np.testing.assert_allclose(history, stored[f"history10.{j}"], **TOLERANCE)
            for k in range(5):
                assert solver.lr == pytest.approx(float(stored["resumed_lr"][k]), rel=1e-5)
                solver.step(1)
                np.testing.assert_allclose(solver.net.blobs["loss"].data, losses[k], **TOLERANCE)
        assert same_weights(solver, stored, final)


def test_every_golden_case_is_there():
    if not SOLVERS.is_dir():
        pytest.skip(REASON)
    assert len(CASES) == 30


@needs_golden
def test_golden_log(caplog):
    """The lines that Caffe logged, number by number; only the speed is left out."""
    require("hdf5")
    stored = np.load(SOLVERS / "log_test_average_loss.npz")
    caplog.set_level(logging.INFO, "minicaffe.solver")
    with inside(SOLVERS):
        solver = get_solver("log_test_average_loss.solver.prototxt")
        put(solver, stored, "init")
        solver.solve()
    assert same_weights(solver, stored, "final") == 4
    said = [re.sub(r" \(\S+ iter/s, \S+s/\d+ iters\)", "", record.getMessage()) for record in caplog.records]
    wanted = (SOLVERS / "log_test_average_loss.log.txt").read_text().splitlines()
    for line, theirs in zip(said[2:], wanted, strict=True):
        assert NUMBER.sub("", line) == NUMBER.sub("", theirs)
        np.testing.assert_allclose(numbers_in(line), numbers_in(theirs), rtol=1e-4, atol=1e-5)


NUMBER = re.compile(r"(?<== )-?[\d.e-]+")


def numbers_in(line: str) -> list[float]:
    return [float(text) for text in NUMBER.findall(line)]


# A net of one weight vector, whose gradient is known: loss = sum(w * x), so dloss/dw = x.


class Slope(Layer):
    """top = sum over blobs of blob * gradient, the gradients being the values of self.gradients in turn."""

    num_top, is_loss = 1, True
    gradients: list[list[float]] = [[1.0, -2.0]]

    def setup(self, bottom, top):
        self.passes = 0
        for i in range(max(len(self.param.param), 1)):
            self.blobs.add_blob(2).data[...] = [3.0 + i, -1.0]

    def reshape(self, bottom, top):
        top[0].reshape(())

    def forward(self, bottom, top):
        self.gradient = np.array(self.gradients[self.passes % len(self.gradients)], self.dtype)
        self.passes += 1
        top[0].data[...] = sum(float(blob.data @ self.gradient) for blob in self.blobs)

    def backward(self, top, propagate_down, bottom):
        for blob in self.blobs:
            blob.diff[...] += top[0].diff * self.gradient


@pytest.fixture
def make(monkeypatch, tmp_path):
    """A solver of a net of one Slope layer, from solver text, layer text and the gradients of successive passes."""

    def made(text: str, layer: str = "", gradients: list[list[float]] | None = None, **options) -> SGDSolver:
        kind = type("Slope", (Slope,), {"gradients": gradients or [[1.0, -2.0]]})
        monkeypatch.setitem(CATALOGUE, "Slope", kind)
        if not any(name in text for name in (" net:", "net_param", "train_net:")):
            text += f' net_param {{ layer {{ name: "w" type: "Slope" top: "loss" {layer} }} }}'
        param = parse_solver(text)
        if not param.HasField("snapshot_prefix"):
            param.snapshot_prefix = str(tmp_path / "out" / "run")
        return SGDSolver(param, **options)

    return made


FIXED = 'base_lr: 0.5 lr_policy: "fixed" snapshot_after_train: false '


def weights(solver: SGDSolver, blob: int = 0) -> list[float]:
    return [float(value) for value in solver.net.params["w"][blob].data]


def test_plain_sgd_by_hand(make):
    solver = make(FIXED)
    solver.step(1)
    assert weights(solver) == [3 - 0.5 * 1, -1 - 0.5 * -2]
    assert solver.iter == 1 and solver.lr == 0.5


def test_momentum_by_hand(make):
    solver = make(FIXED + "momentum: 0.5")
    solver.step(2)
    assert weights(solver) == [3 - 0.5 - (0.5 * 0.5 + 0.5), -1 + 1 + (0.5 * 1 + 1)]
    np.testing.assert_allclose(solver.history[0], [0.75, -1.5])


def test_weight_decay_and_multipliers_by_hand(make):
    layer = "param { lr_mult: 2 decay_mult: 3 } param { lr_mult: 1 decay_mult: 0 } param { lr_mult: 0 }"
    solver = make(FIXED + "weight_decay: 0.125", layer)
    solver.step(1)
    decay = 0.125 * 3
    assert weights(solver) == [3 - 0.5 * 2 * (1 + decay * 3), -1 - 0.5 * 2 * (-2 + decay * -1)]
    assert weights(solver, 1) == [4 - 0.5, -1 + 1]
    assert weights(solver, 2) == [5, -1]


def test_l1_decay_takes_the_sign(make):
    solver = make(FIXED + 'weight_decay: 0.25 regularization_type: "L1"')
    solver.step(1)
    assert weights(solver) == [3 - 0.5 * (1 + 0.25), -1 - 0.5 * (-2 - 0.25)]


def test_iter_size_takes_the_mean_of_the_passes(make):
    solver = make(FIXED + "iter_size: 2", gradients=[[1, 0], [5, 4]])
    solver.step(1)
    assert weights(solver) == [3 - 0.5 * 3, -1 - 0.5 * 2]


def test_what_ends_the_data_comes_out_of_every_pass(make):
    solver = make(FIXED + "iter_size: 3", gradients=[[1, 0]] * 3)

    def end(i: int) -> None:
        raise StopIteration

    solver.net.before_forward(end)
    with pytest.raises(StopIteration):
        solver.step(1)


def test_clipping_comes_before_the_division_by_iter_size_and_before_decay(make):
    solver = make(FIXED + "iter_size: 2 clip_gradients: 2.5 weight_decay: 0.5", gradients=[[3, 0], [0, 4]])
    solver.step(1)
    np.testing.assert_allclose(weights(solver), [3 - 0.5 * (1.5 / 2 + 0.5 * 3), -1 - 0.5 * (2.0 / 2 + 0.5 * -1)], rtol=1e-6)


def test_clipping_leaves_small_gradients_alone(make):
    solver = make(FIXED + "clip_gradients: 3")
    solver.step(1)
    assert weights(solver) == [2.5, 0]


def test_apply_update_with_gradients_of_ones_own(make):
    solver = make(FIXED)
    solver.net.params["w"][0].diff[...] = [2, 4]
    solver.apply_update()
    assert weights(solver) == [2, -3] and solver.iter == 1


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=6), st.floats(0.01, 50))
def test_clipped_gradients_keep_their_direction(values, limit):
    diffs = [np.array(values), np.array([1.0, 2.0])]
    before = np.concatenate(diffs)
    norm = clip(diffs, limit)
    after = np.concatenate(diffs)
    assert norm == pytest.approx(np.linalg.norm(before))
    assert np.linalg.norm(after) == pytest.approx(min(norm, limit))
    np.testing.assert_allclose(after * norm, before * np.linalg.norm(after), atol=1e-6 * norm * limit)


# The policies.


@pytest.mark.parametrize(
    ("policy", "rates"),
    [
        ('lr_policy: "fixed"', [0.8, 0.8, 0.8, 0.8]),
        ('lr_policy: "step" gamma: 0.5 stepsize: 2', [0.8, 0.8, 0.4, 0.05]),
        ('lr_policy: "exp" gamma: 0.5', [0.8, 0.4, 0.2, 0.8 / 256]),
        ('lr_policy: "inv" gamma: 0.5 power: 2', [0.8, 0.8 / 2.25, 0.8 / 4, 0.8 / 25]),
        ('lr_policy: "multistep" gamma: 0.5 stepvalue: 1 stepvalue: 8', [0.8, 0.4, 0.4, 0.2]),
        ('lr_policy: "multistep" gamma: 0.5', [0.8, 0.8, 0.8, 0.8]),
        ('lr_policy: "poly" power: 2', [0.8, 0.8 * 0.9**2, 0.8 * 0.8**2, 0.8 * 0.2**2]),
        ('lr_policy: "sigmoid" gamma: 1000 stepsize: 2', [0, 0, 0.4, 0.8]),
        # a stage ends with its stageiter; the last one never does
        (
            'lr_policy: "multifixed" stagelr: 0.5 stageiter: 0 stagelr: 0.25 stageiter: 1 stagelr: 2 stageiter: 5',
            [0.5, 0.25, 2, 2],
        ),
        ('lr_policy: "fixed" warmup_iter: 2 warmup_start_lr: 0.2', [0.2, 0.5, 0.8, 0.8]),
        ('lr_policy: "step" gamma: 0.5 stepsize: 2 warmup_iter: 4', [0, 0.2, 0.4, 0.05]),
    ],
)
def test_policies_by_number(policy, rates):
    param = parse_solver("base_lr: 0.8 " + policy)
    check_policy(param)
    assert [learning_rate(param, i, 10) for i in (0, 1, 2, 8)] == pytest.approx(rates, rel=1e-6)


@pytest.mark.parametrize(
    ("policy", "iteration"), [('"exp" gamma: 1e30', 50), ('"inv" gamma: -1 power: 0.5', 1), ('"inv" gamma: -1 power: 0.5', 3)]
)
def test_policies_that_run_into_no_number(policy, iteration):
    with pytest.raises(SolverError, match=rf"iteration {iteration}: lr_policy .* gives no learning rate"):
        learning_rate(parse_solver(f"base_lr: 0.1 lr_policy: {policy}"), iteration, 10)


def test_poly_past_the_end_is_zero():
    assert learning_rate(parse_solver('base_lr: 1 lr_policy: "poly" power: 1.5'), 12, 10) == 0


PLATEAU = 'base_lr: 0.5 lr_policy: "plateau" gamma: 0.5 plateau_winsize: 2 plateau_winsize: 3 display: 1 '


@pytest.mark.parametrize(
    ("more", "losses", "rates"),
    [
        # the least loss falls at 1 and 5, the rate at 3 (1 + 2) and 8 (5 + 3); then no window is left
        ("", [6, 3, 3, 4, 3, 2, 2, 2, 2, 2, 2, 2], [0.5] * 3 + [0.25] * 5 + [0.125] * 4),
        # the means 6, 4.5, 3, 3.5, 3.5 have their least at 2
        ("average_loss: 2", [6, 3, 3, 4, 3], [0.5] * 4 + [0.25]),
        # the loss of a warm-up does not count: the least one is that of 2
        ("warmup_iter: 2 warmup_start_lr: 0.5", [1, 1, 3, 3, 3], [0.5] * 4 + [0.25]),
    ],
)
def test_plateau_by_hand(make, caplog, more, losses, rates):
    caplog.set_level(logging.INFO, "minicaffe.solver")
    solver = make(PLATEAU + more, "param { lr_mult: 0 }", [[loss / 3, 0] for loss in losses])
    solver.step(len(losses))
    lines = [record.getMessage() for record in caplog.records]
    assert [float(line.split(" = ")[1]) for line in lines if "lr = " in line] == rates
    falls = [i for i in range(1, len(rates)) if rates[i] < rates[i - 1]]
    steps = [f"Plateau Status: Iteration {at}, step = {step}" for step, at in enumerate(falls, 1)]
    assert [line for line in lines if "step = " in line] == steps


@pytest.mark.parametrize("form", ["BINARYPROTO", "HDF5"])
def test_a_resumed_plateau_keeps_its_window(make, form):
    if form == "HDF5":
        require("hdf5")
    text = PLATEAU.replace("winsize: 2", "winsize: 6") + f"snapshot_format: {form}"
    solver = make(text, "param { lr_mult: 0 }", [[1, 0]])
    solver.step(4)
    state = str(solver.snapshot()).replace("caffemodel", "solverstate")
    assert read_state(state).minimum_loss == 3 and read_state(state).iter_last_event == 0
    resumed = make(text, "param { lr_mult: 0 }", [[1, 0]])
    resumed.restore(state)
    resumed.step(2)
    assert resumed.lr == 0.5
    resumed.step(1)
    assert resumed.iter == 7 and resumed.lr == 0.25
    again = make(text)
    again.restore(resumed.snapshot().with_name(f"run_iter_7.solverstate{'.h5' * (form == 'HDF5')}"))
    assert again.lr == 0.25 and again.plateau == resumed.plateau


@pytest.mark.parametrize(
    ("event", "loss", "message"),
    [
        (4, 1.0, '"iter_last_event" must be a whole number from 0 to 3, got 4'),
        (-1, 1.0, '"iter_last_event" must be a whole number from 0 to 3, got -1'),
        (1, float("nan"), '"minimum_loss" must be a number, got nan'),
    ],
)
def test_a_plateau_that_no_training_has(make, tmp_path, event, loss, message):
    file = tmp_path / "x.solverstate"
    write_state(file, TrainingState(3, "", 0, [np.zeros(2, np.float32)], minimum_loss=loss, iter_last_event=event))
    with pytest.raises(WeightsError, match=message):
        make(PLATEAU).restore(file)
    make(FIXED).restore(file)  # other policies do not use these fields, which SSD's fork then leaves uninitialised


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('base_lr: 1 lr_policy: "plateau" gamma: 0.1', '"plateau" needs plateau_winsize, which the solver lacks'),
        (PLATEAU + "plateau_winsize: 0", r"every plateau_winsize must be > 0, got \[2, 3, 0\]"),
        ('base_lr: nan lr_policy: "fixed"', "base_lr must be a finite number, got nan"),
        ('base_lr: 1 warmup_start_lr: inf lr_policy: "fixed"', "warmup_start_lr must be a finite number, got inf"),
        ('base_lr: 1 warmup_iter: -1 lr_policy: "fixed"', "warmup_iter must be >= 0, got -1"),
        (
            'warmup_iter: 3 lr_policy: "multifixed" stagelr: 1 stageiter: 1',
            '"multifixed" needs base_lr, which the solver lacks',
        ),
        ('lr_policy: "multifixed" stagelr: 1', '"multifixed" needs stageiter, which the solver lacks'),
        ('lr_policy: "multifixed" stagelr: nan stageiter: 1', r"every stagelr must be a finite number, got \[nan\]"),
        (
            'lr_policy: "multifixed" stagelr: 1 stagelr: 2 stageiter: 1',
            "each stagelr needs its stageiter, got 2 stagelr and 1 stageiter",
        ),
        ('base_lr: -inf lr_policy: "fixed"', "base_lr must be a finite number, got -inf"),
        ('base_lr: 1 lr_policy: "steps"', 'unknown lr_policy "steps": use one of fixed, step, exp, inv, multistep'),
        ("base_lr: 1", 'unknown lr_policy ""'),
        ('lr_policy: "fixed"', 'lr_policy "fixed" needs base_lr, which the solver lacks'),
        ('base_lr: 1 lr_policy: "step"', 'lr_policy "step" needs gamma and stepsize, which'),
        ('base_lr: 1 lr_policy: "step" gamma: 1 stepsize: 0', "stepsize must be > 0, got 0"),
        (FIXED + "iter_size: 0", "iter_size must be > 0, got 0"),
        (FIXED + "average_loss: 0", "average_loss must be > 0, got 0"),
        (FIXED + 'regularization_type: "L3"', 'regularization_type must be L1 or L2, got "L3"'),
        (FIXED + 'net: "a" train_net: "b"', "exactly one of net, net_param, train_net, train_net_param; got net and train_net"),
        (FIXED + 'net: "nowhere.prototxt"', r"nowhere\.prototxt: no such file in the working directory"),
        (FIXED + "test_iter: 3", "test_interval must be > 0 when there are test nets, got 0"),
        (FIXED + "test_iter: 3 test_interval: 1 test_state {} test_state {}", "2 test_state given for 1 test nets"),
        (FIXED + 'test_net: "t" test_interval: 1', "0 test_iter given for 1 test nets: give one for each"),
    ],
)
def test_errors(make, text, message):
    with pytest.raises(SolverError, match=message):
        make(text)


def test_a_solver_without_a_net():
    with pytest.raises(SolverError, match="exactly one of net, net_param, train_net, train_net_param; got none"):
        SGDSolver(parse_solver(FIXED))


def test_a_solver_file_that_is_missing(tmp_path):
    with pytest.raises(PrototxtError, match="no such file"):
        get_solver(tmp_path / "solver.prototxt")


def test_unknown_solver_types_are_named():
    types = "SGD, Nesterov, AdaGrad, RMSProp, AdaDelta, Adam"
    with pytest.raises(SolverError, match=f'unknown solver type "Adamant": use one of {types}'):
        get_solver(parse_solver(FIXED + 'type: "Adamant"'))


def test_no_max_iter_needs_iterations(make):
    solver = make(FIXED)
    with pytest.raises(SolverError, match=r"no max_iter: give the iterations \(solve\(iterations="):
        solver.solve()
    solver.solve(iterations=3)
    assert solver.iter == 3


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_loss_that_is_no_number_stops_before_the_update(make, bad):
    solver = make(FIXED, gradients=[[1, 1], [1, 1], [bad, 1]])
    with pytest.raises(SolverError, match=rf"iteration 2: the loss is {bad} \(loss = {bad}\); the weights were not updated"):
        solver.step(5)
    assert solver.iter == 2 and np.isfinite(weights(solver)).all()


# Running.


def test_progress_and_callbacks(make):
    solver = make(FIXED + "average_loss: 2", gradients=[[1, 0], [2, 0], [6, 0]])
    seen, order = [], []
    solver.on_progress(seen.append)
    solver.add_callback(lambda: order.append("start"), lambda: order.append("gradients"))
    solver.step(2)
    assert [progress.iteration for progress in seen] == [1, 2]
    assert [progress.last_loss for progress in seen] == [3.0, 5.0]
    assert [progress.loss for progress in seen] == [3.0, 4.0]
    assert seen[0].lr == 0.5 and seen[0].rate > 0
    assert order == ["start", "gradients"] * 2


def test_the_rate_is_without_the_first_iteration(make, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    solver = make(FIXED, gradients=[[1, 0]])
    seconds, rates = iter([20, 2, 4, 40, 2]), []
    solver.add_callback(lambda: clock.__setitem__(0, clock[0] + next(seconds)), lambda: None)
    solver.on_progress(lambda progress: rates.append(progress.rate))
    solver.step(3)
    solver.step(2)
    assert rates == pytest.approx([1 / 20, 1 / 2, 2 / 6, 1 / 40, 1 / 2])


def test_the_speed_logged_is_that_of_the_steps_however_short(make, caplog, monkeypatch):
    """Scripts call step(1) in a loop: iterations count from the last line on, and what lies between steps takes no time."""
    clock = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    solver = make('base_lr: 0.5 lr_policy: "fixed" max_iter: 9 display: 2')
    caplog.set_level(logging.INFO, "minicaffe.solver")
    solver.on_progress(lambda progress: clock.__setitem__(0, clock[0] + 2))
    for _ in range(5):
        solver.step(1)
        clock[0] += 100
    said = [record.getMessage().partition("), loss")[0] for record in caplog.records if "iter/s" in record.getMessage()]
    assert said == [
        "Iteration 0 (0 iter/s, 0s/2 iters",
        "Iteration 2 (0.5 iter/s, 4s/2 iters",
        "Iteration 4 (0.5 iter/s, 4s/2 iters",
    ]


def test_solve_displays_tests_and_snapshots(make, caplog, tmp_path):
    text = 'base_lr: 0.5 lr_policy: "fixed" max_iter: 4 display: 2 test_iter: 2 test_interval: 4 snapshot: 3 '
    solver = make(text)
    caplog.set_level(logging.INFO, "minicaffe.solver")
    solver.solve()
    lines = [record.getMessage() for record in caplog.records]
    assert "Iteration 0, Testing net (#0)" in lines and "Iteration 4, Testing net (#0)" in lines
    assert any(re.fullmatch(r"Iteration 0 \(0 iter/s, \S+s/2 iters\), loss = 5", line) for line in lines)
    assert "Iteration 0, lr = 0.5" in lines
    assert "    Train net output #0: loss = 5 (* 1 = 5 loss)" in lines
    assert any(re.fullmatch(r"    Test net output #0: loss = \S+ \(\* 1 = \S+ loss\)", line) for line in lines)
    assert lines[:2] == ["Solving ", "Learning Rate Policy: fixed"] and lines[-1] == "Optimization Done."
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "run_iter_3.caffemodel",
        "run_iter_3.solverstate",
        "run_iter_4.caffemodel",
        "run_iter_4.solverstate",
    ]


def test_the_test_loss_is_the_mean_of_the_batches(make, caplog):
    solver = make(FIXED + "test_iter: 2 test_interval: 9 test_compute_loss: true", gradients=[[1, 0], [3, 2], [9, 9]])
    caplog.set_level(logging.INFO, "minicaffe.solver")
    (means,) = solver.test_all()
    assert means["loss"] == (3 + 7) / 2
    assert "Test loss: 5" in [record.getMessage() for record in caplog.records]


def test_debug_info_has_a_line_for_each_blob(make, caplog):
    """w = (3, -1), its gradient (1, -2): every number worked by hand. Only displayed iterations have the lines."""
    layer = 'param { name: "slope" }'
    solver = make(FIXED + "debug_info: true display: 2 test_iter: 1 test_interval: 2", layer)
    caplog.set_level(logging.INFO, "minicaffe.solver")
    solver.step(2)
    lines = [record.getMessage() for record in caplog.records if "ward]" in record.getMessage()]
    forward = ["    [Forward] Layer w, top blob loss data: 5", "    [Forward] Layer w, param blob slope data: 2"]
    backward = [
        "    [Backward] Layer w, param blob 0 diff: 1.5",
        "    [Backward] All net params (data, diff): L1 norm = (4, 3); L2 norm = (3.16228, 2.23607)",
    ]
    assert lines == [*forward, *forward, *backward]
    caplog.clear()
    solver.net.forward_backward()
    assert not caplog.records


def test_debug_info_between_layers(caplog):
    net = """layer { name: "d" type: "DummyData" top: "x" top: "t"
        dummy_data_param { shape { dim: 2 dim: 3 } shape { dim: 2 dim: 1 } data_filler { value: 2 } data_filler { value: 7 } } }
      layer { name: "a" type: "InnerProduct" bottom: "x" top: "y" inner_product_param { num_output: 1 bias_term: false
        weight_filler { type: "constant" value: 0.5 } } }
      layer { name: "l" type: "EuclideanLoss" bottom: "y" bottom: "t" top: "loss" }"""
    solver = get_solver(parse_solver(FIXED + f"debug_info: true display: 1 net_param {{ {net} }}"))
    caplog.set_level(logging.INFO, "minicaffe.solver")
    solver.step(1)
    assert [record.getMessage() for record in caplog.records if "ward] Layer" in record.getMessage()] == [
        "    [Forward] Layer d, top blob x data: 2",
        "    [Forward] Layer d, top blob t data: 7",
        "    [Forward] Layer a, top blob y data: 3",
        "    [Forward] Layer a, param blob 0 data: 0.5",
        "    [Forward] Layer l, top blob loss data: 8",
        "    [Backward] Layer l, bottom blob y diff: 2",
        "    [Backward] Layer a, param blob 0 diff: 8",
    ]


def test_the_test_net_sees_the_trained_weights(make):
    solver = make(FIXED + "test_iter: 2 test_interval: 100")
    solver.step(3)
    (means,) = solver.test_all()
    assert means["loss"] == pytest.approx(float(np.dot(weights(solver), [1, -2])))


def test_a_random_seed_makes_runs_alike(make):
    net = 'net_param { layer { name: "d" type: "DummyData" top: "d" dummy_data_param { shape { dim: 2 dim: 3 } } } layer { name: "w" type: "InnerProduct" bottom: "d" top: "y" inner_product_param { num_output: 2 weight_filler { type: "gaussian" } } } layer { name: "s" type: "Silence" bottom: "y" } }'  # noqa: E501
    first, second = (make(FIXED + "random_seed: 7 " + net).net.params["w"][0].data.copy() for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_the_net_is_found_beside_or_above_the_solver(make, tmp_path, monkeypatch):
    make(FIXED)
    folder = tmp_path / "models" / "small"
    folder.mkdir(parents=True)
    (folder / "train.prototxt").write_text('layer { name: "w" type: "Slope" top: "loss" }')
    for name in ("train.prototxt", "models/small/train.prototxt", "elsewhere/small/train.prototxt"):
        (folder / "solver.prototxt").write_text(FIXED + f'train_net: "{name}"')
        solver = get_solver(folder / "solver.prototxt")
        assert list(solver.net.params) == ["w"]
        assert solver.param.snapshot_prefix == str(folder / "solver")


def test_weights_named_by_the_solver_are_loaded(make, tmp_path):
    solver = make(FIXED)
    solver.net.params["w"][0].data[...] = [7, 8]
    solver.net.save(tmp_path / "start.caffemodel")
    assert weights(make(FIXED + f'weights: "{tmp_path}/start.caffemodel"')) == [7, 8]


# Snapshots and states.


@pytest.mark.parametrize("suffix", ["", ".h5"])
def test_snapshot_and_restore_go_on_as_if_never_stopped(make, suffix):
    if suffix:
        pytest.importorskip("h5py", reason="the extra minicaffe[hdf5] is not installed")
    text = FIXED + "momentum: 0.75 " + ("snapshot_format: HDF5" if suffix else "")
    straight = make(text)
    straight.step(3)
    model = straight.snapshot()
    assert model.name == f"run_iter_3.caffemodel{suffix}"
    straight.step(2)
    resumed = make(text)
    resumed.restore(str(model).replace("caffemodel", "solverstate"))
    assert resumed.iter == 3
    resumed.step(2)
    assert weights(resumed) == weights(straight)


def test_a_state_moved_with_its_weights_is_found(make, tmp_path):
    solver = make(FIXED)
    solver.step(1)
    model = solver.snapshot()
    moved = tmp_path / "moved"
    model.parent.rename(moved)
    again = make(FIXED)
    again.restore(moved / "run_iter_1.solverstate")
    assert weights(again) == weights(solver)


def test_a_state_of_another_net(make, tmp_path):
    write_state(tmp_path / "x.solverstate", TrainingState(3, "", 0, [np.zeros(2, np.float32)] * 2))
    with pytest.raises(WeightsError, match="2 history blobs, but this solver keeps 1 for its net"):
        make(FIXED).restore(tmp_path / "x.solverstate")
    write_state(tmp_path / "x.solverstate", TrainingState(3, "", 0, [np.zeros((1, 5), np.float32)]))
    with pytest.raises(WeightsError, match=r"history blob 0 has shape \(1, 5\), but the net's blob has \(2,\)"):
        make(FIXED).restore(tmp_path / "x.solverstate")


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "the file is empty"),
        (b'net: "train.prototxt"\n', "this is a prototxt, not a .solverstate"),
        (b"\x0a\x03net", "a SolverState has no field 1 of wire type 2"),
        (b"\x08\x03\x12\x50abc", "field 2 declares 80 bytes, but 3 are left: .* not a .solverstate"),
        (b"\x1a\x08\x3a\x03\x0a\x01\x04\x2a\x01a", "1 bytes are not a whole number of float32 values"),
    ],
)
def test_damaged_states(tmp_path, content, text):
    path = tmp_path / "x.solverstate"
    path.write_bytes(content)
    with pytest.raises(WeightsError, match=text):
        read_state(path)


def test_states_of_ssds_fork_are_read(tmp_path):
    path = tmp_path / "x.solverstate"
    path.write_bytes(caffe_pb2.SolverState(iter=3, minimum_loss=0.5, iter_last_event=2).SerializeToString())
    assert read_state(path) == TrainingState(3, "", 0, [], minimum_loss=0.5, iter_last_event=2)


def test_an_hdf5_file_that_is_no_state(tmp_path):
    h5py = pytest.importorskip("h5py", reason="the extra minicaffe[hdf5] is not installed")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_group("data")
    with pytest.raises(WeightsError, match=r"has no /history and /iter, so it is not a \.solverstate"):
        read_state(tmp_path / "x.h5")


@needs(SHARED)
@pytest.mark.parametrize("name", ["cifar10_quick_iter_4000", "cifar10_full_sigmoid_iter_60000"])
def test_published_states_are_read(name):
    folder = SHARED / "zoo/cifar10_bvlc_examples"
    state = read_state(folder / f"{name}.solverstate")
    blobs = [blob for layer in read_weights(folder / f"{name}.caffemodel").layers for blob in layer.blobs]
    assert f"iter_{state.iteration}" in name and state.learned_net.endswith(f"{name}.caffemodel")
    assert [array.size for array in state.history] == [blob.array.size for blob in blobs]
    with pytest.raises(WeightsError, match=r"this is a \.solverstate, not weights"):
        read_weights(folder / f"{name}.solverstate")


def test_a_snapshot_folder_that_cannot_be_made(make, tmp_path):
    (tmp_path / "file").write_text("")
    solver = make(FIXED + f'snapshot_prefix: "{tmp_path}/file/run" max_iter: 1 snapshot: 1')
    with pytest.raises(SolverError, match="cannot make the folder of snapshot_prefix"):
        solver.solve()
    assert solver.iter == 0


def test_empty_tests_are_refused() -> None:
    with pytest.raises(SolverError, match=r"every test_iter must be > 0, got \[0\]"):
        SGDSolver(caffe_pb2.SolverParameter(base_lr=0.1, lr_policy="fixed", test_iter=[0], test_interval=5))
