"""The solvers' updates on the GPU: the CPU's weights, and no weights copied."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from google.protobuf import text_format

import minicaffe
from minicaffe import get_solver
from minicaffe.blob import MemoryState
from minicaffe.cuda.device import current
from minicaffe.cuda.updates import RULES
from minicaffe.proto import caffe_pb2
from minicaffe.training.solver import SGDSolver
from minicaffe.training.solvers import SOLVERS

pytestmark = pytest.mark.gpu

NET = """
layer { name: "data" type: "DummyData" top: "x" top: "t" dummy_data_param {
  shape { dim: 3 dim: 7 } shape { dim: 3 dim: 5 } data_filler { type: "gaussian" } data_filler { type: "gaussian" } } }
layer { name: "a" type: "InnerProduct" bottom: "x" top: "a" param { lr_mult: 1 } param { lr_mult: 2 decay_mult: 0 }
  inner_product_param { num_output: 80 weight_filler { type: "xavier" } } }
layer { name: "b" type: "InnerProduct" bottom: "a" top: "b"
  inner_product_param { num_output: 5 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "EuclideanLoss" bottom: "b" bottom: "t" top: "loss" }
"""

NUMBERS = {
    "SGD": "base_lr: 0.02 momentum: 0.9",
    "Nesterov": "base_lr: 0.02 momentum: 0.9",
    "AdaGrad": "base_lr: 0.02 delta: 1e-3",
    "RMSProp": "base_lr: 0.01 rms_decay: 0.9 delta: 1e-2",
    "AdaDelta": "base_lr: 1 momentum: 0.95 delta: 1e-4",
    "Adam": "base_lr: 0.01 momentum: 0.9 momentum2: 0.99 delta: 1e-2",
}

MORE = ["", "weight_decay: 0.01 clip_gradients: 0.5", 'weight_decay: 0.01 regularization_type: "L1" iter_size: 3']

MODES = {"cpu": minicaffe.set_mode_cpu, "gpu": minicaffe.set_mode_gpu}


@pytest.fixture(autouse=True)
def cpu_afterwards() -> Iterator[None]:
    yield
    minicaffe.set_mode_cpu()


def solver_of(kind: str, more: str = "") -> SGDSolver:
    param = caffe_pb2.SolverParameter(type=kind)
    text_format.Merge(f'net_param {{ {NET} }} lr_policy: "fixed" random_seed: 3 {NUMBERS[kind]} {more}', param)
    return get_solver(param)


def trained(solver: SGDSolver, modes: Sequence[str]) -> list[np.ndarray]:
    """Weights, steps and histories after an iteration in each of modes."""
    for mode in modes:
        MODES[mode]()
        solver.step(1)
    blobs = solver.net.learnable_params
    return [array.copy() for array in [*(b.data for b in blobs), *(b.diff for b in blobs), *solver.history]]


def test_every_solver_has_a_kernel() -> None:
    assert set(RULES) == set(SOLVERS)
    for kind in RULES:
        assert solver_of(kind).kernel(0.5).name == kind


@pytest.mark.parametrize("modes", [["gpu"] * 4, ["cpu", "gpu", "cpu", "gpu"]], ids=["gpu", "both"])
@pytest.mark.parametrize("more", MORE)
@pytest.mark.parametrize("kind", RULES)
def test_agrees_with_the_cpu(kind: str, more: str, modes: list[str]) -> None:
    expected = trained(solver_of(kind, more), ["cpu"] * 4)
    for got, wanted in zip(trained(solver_of(kind, more), modes), expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=3e-5)


@pytest.mark.parametrize("kind", RULES)
def test_an_update_is_the_cpus_to_the_bit(kind: str) -> None:
    found = []
    for mode in MODES.values():
        mode()
        solver = solver_of(kind, "weight_decay: 0.01 iter_size: 2")
        random = np.random.default_rng(0)
        for _ in range(3):
            for blob in solver.net.learnable_params:
                blob.diff[...] = random.normal(size=blob.shape)
            solver.apply_update()
        found.append(trained(solver, []))
    for cpu, gpu in zip(*found, strict=True):
        np.testing.assert_array_equal(gpu, cpu)


@pytest.mark.gpu_barrier
def test_clipping_scales_only_a_norm_above_the_limit() -> None:
    minicaffe.set_mode_gpu()
    for limit, factor in ((100.0, 1.0), (2.5, 0.5)):
        solver = solver_of("SGD", f"clip_gradients: {limit} momentum: 0")
        for blob in solver.net.learnable_params:
            blob.diff[...] = 0
        first = solver.net.learnable_params[0]
        first.diff[0, :2] = 3, 4
        solver.apply_update()
        np.testing.assert_allclose(first.diff[0, :3], np.float32([3, 4, 0]) * 0.02 * factor, rtol=1e-6)


def test_a_step_copies_no_weights() -> None:
    minicaffe.set_mode_gpu()
    solver = solver_of("Adam", "clip_gradients: 1")
    solver.step(2)
    transfers = current().transfers
    transfers.reset()
    solver.step(3)
    weights = 4 * sum(blob.count for blob in solver.net.learnable_params)
    assert transfers.to_device + transfers.to_host < weights / 4
    for blob in solver.net.learnable_params:
        assert (blob.data_state, blob.diff_state) == (MemoryState.DEVICE, MemoryState.DEVICE)
    assert {blob.data_state for blob in solver.history_blobs} == {MemoryState.DEVICE}


def test_a_rule_of_ones_own_runs_on_the_host() -> None:
    class SignSolver(SGDSolver):
        def gradient_to_step(self, diff: np.ndarray, history: Sequence[np.ndarray], rate: float) -> None:
            diff[...] = rate * np.sign(diff)

    param = solver_of("SGD").param
    for mode in MODES.values():
        mode()
        solver = SignSolver(param)
        solver.step(1)
        np.testing.assert_array_equal(np.abs(solver.net.learnable_params[2].diff), np.float32(0.02))
