"""Any order of changes and forwards: a net with its execution plan gives what one gives that runs layer by layer.

Each change is made to both nets. What a plan keeps from one forward to the next must notice it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from importlib.util import find_spec
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any, ClassVar

import numpy as np
import pytest
from chains import BIASED, LEAKY, conv, net_of, on, watched
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from minicaffe import Net, get_num_threads, kernels, set_mode_cpu, set_mode_gpu, set_num_threads
from minicaffe.blob import Blob
from minicaffe.layers.pool.pooling import AVE, MAX
from minicaffe.proto import caffe_pb2

WAYS = ["numba", "numpy"] if find_spec("numba") else ["numpy"]

TEXT = (
    conv("a", outputs=8)
    + on("BatchNorm", "a")
    + on("Scale", "a", BIASED)
    + on("ReLU", "a", LEAKY)
    + 'layer { name: "pool" type: "Pooling" bottom: "a" top: "pool" pooling_param { kernel_size: 2 stride: 2 } }\n'
    + conv("b", "pool", outputs=6)
    + on("ReLU", "b")
    + conv("c", "pool", outputs=6)
    + 'layer { name: "sum" type: "Eltwise" bottom: "b" bottom: "c" top: "sum" eltwise_param { operation: SUM } }\n'
    + on("ReLU", "sum")
    + 'layer { name: "drop" type: "Dropout" bottom: "sum" top: "sum" }\n'
    + 'layer { name: "lrn" type: "LRN" bottom: "sum" top: "lrn" lrn_param { local_size: 3 alpha: 0.5 } }\n'
    + 'layer { name: "both" type: "Concat" bottom: "lrn" bottom: "pool" top: "both" }\n'
    + on("BatchNorm", "y", bottom="both")
    + 'layer { name: "mean" type: "Pooling" bottom: "y" top: "mean" pooling_param { pool: AVE global_pooling: true } }\n'
    + 'layer { name: "flat" type: "Flatten" bottom: "mean" top: "flat" }\n'
    + 'layer { name: "fc" type: "InnerProduct" bottom: "flat" top: "fc" inner_product_param { num_output: 5 '
    + 'weight_filler { type: "msra" } } }\n'
    + 'layer { name: "prob" type: "Softmax" bottom: "fc" top: "prob" }\n'
    + 'layer { name: "maps" type: "Softmax" bottom: "y" top: "maps" }\n'
)
WEIGHTS = ["a", "a_batchnorm", "a_scale", "b", "c", "y_batchnorm", "fc"]
INNER = ["a", "pool", "b", "sum", "lrn", "both", "y"]
SHAPES = [(2, 6, 7, 5), (1, 6, 9, 12), (3, 6, 8, 4), (2, 6, 33, 46)]
ATTRIBUTES = [
    ("a_batchnorm", "eps", (1e-5, 0.5)),
    ("y_batchnorm", "eps", (1e-5, 2.0)),
    ("a_relu", "negative_slope", (0.25, 0.5)),
    ("sum_relu", "negative_slope", (0.0, 0.125)),
    ("sum", "coeff", ((1.0, 1.0), (2.0, -1.0))),
    ("pool", "method", (MAX, AVE)),
    ("drop", "scale_train", (True, False)),
]
PARAMETERS: list[tuple[str, Callable[[caffe_pb2.LayerParameter, bool], object]]] = [
    ("sum", lambda param, on: setattr(param.eltwise_param, "operation", "PROD" if on else "SUM")),
    ("maps", lambda param, on: setattr(param.softmax_param, "axis", 2 if on else 1)),
]
TOLERANCE = 2e-5

seeds = st.integers(0, 3)


class Side:
    """A net and one that may share its weights, to which all changes are made alike."""

    def __init__(self, keep: str, watch: bool = False) -> None:
        self.nets = [net_of(TEXT, keep=keep), net_of(TEXT)]
        self.net = watched(self.nets[0]) if watch else self.nets[0]
        self.views: list[Any] = []
        """Of weights, that somebody holds and writes to later."""


def values(shape: tuple[int, ...], seed: int, positive: bool) -> Any:
    found = np.random.default_rng(seed).normal(size=shape)
    return np.abs(found) + 0.5 if positive else found


class Changes(RuleBasedStateMachine):
    """Every rule that is not a forward changes something that a forward reads."""

    gpu: ClassVar[bool] = False

    @initialize(keep=st.sampled_from(["all", "outputs"]), way=st.sampled_from([*WAYS, WAYS[0]]))
    def make(self, keep: str, way: str) -> None:
        self.stack, self.keep = ExitStack(), keep
        self.stack.callback(set_num_threads, get_num_threads())
        self.way = self.stack.enter_context(ExitStack())
        self.compute(way)
        self.planned, self.plain = self.sides = Side(keep), Side("all", watch=True)
        if self.gpu:
            set_mode_gpu()
            self.stack.callback(set_mode_cpu)
        self.whole, self.steps = False, 0
        self.forward(3)

    def teardown(self) -> None:
        if hasattr(self, "stack"):
            self.stack.close()

    @invariant()
    def after_most_changes(self) -> None:
        self.steps = getattr(self, "steps", -1) + 1
        if self.steps % 4:
            self.forward(1)

    # Changes.

    @rule(name=st.sampled_from(WEIGHTS), i=st.integers(0, 1), seed=seeds, other=st.booleans())
    def write_weights(self, name: str, i: int, seed: int, other: bool) -> None:
        for side in self.sides:
            blobs = side.nets[other].params[name]
            blob = blobs[i % len(blobs)]
            blob.data[...] = values(blob.shape, seed, "batchnorm" in name)

    @precondition(lambda self: not self.gpu)  # a copy on the device does not follow a view, as in Caffe
    @rule(name=st.sampled_from(WEIGHTS), i=st.integers(0, 1), release=st.booleans())
    def hold_weights(self, name: str, i: int, release: bool) -> None:
        for side in self.sides:
            blobs = side.net.params[name]
            side.views = [*side.views[-2:], blobs[i % len(blobs)].data[:2]]
        self.forward(1)
        self.write_held_weights(i + 2, release)

    @precondition(lambda self: self.sides[0].views)
    @rule(seed=seeds, release=st.booleans())
    def write_held_weights(self, seed: int, release: bool) -> None:
        for side in self.sides:
            side.views[-1][...] = values(side.views[-1].shape, seed, True)
            if release:
                side.views.pop()

    @rule(name=st.sampled_from(WEIGHTS), i=st.integers(0, 1), seed=seeds)
    def replace_weights(self, name: str, i: int, seed: int) -> None:
        for side in self.sides:
            blobs = side.net.params[name]
            blob = Blob(blobs[i % len(blobs)].shape)
            blob.data[...] = values(blob.shape, seed, "batchnorm" in name)
            blobs[i % len(blobs)] = blob

    @rule()
    def share(self) -> None:
        for side in self.sides:
            side.net.share_with(side.nets[1])

    @rule(seed=seeds)
    def load(self, seed: int) -> None:
        with TemporaryDirectory() as folder:
            path, other = f"{folder}/other.npz", net_of(TEXT)
            for i, name in enumerate(WEIGHTS):
                blob = other.params[name][0]
                blob.data[...] = values(blob.shape, seed + 10 * i, "batchnorm" in name)
            other.save(path)
            for side in self.sides:
                side.net.copy_from(path)

    @rule(seed=seeds)
    def write_input(self, seed: int) -> None:
        for side in self.sides:
            blob = side.net.blobs["data"]
            blob.data[...] = values(blob.shape, seed, False)

    @rule(shape=st.sampled_from(SHAPES), whole=st.booleans())
    def reshape(self, shape: tuple[int, ...], whole: bool) -> None:
        for side in self.sides:
            side.net.blobs["data"].reshape(*shape)
            if whole:
                side.net.reshape()
        self.whole = False
        self.write_input(0)

    @rule(seed=seeds)
    def share_input(self, seed: int) -> None:
        for side in self.sides:
            blob = Blob(side.net.blobs["data"].shape)
            blob.data[...] = values(blob.shape, seed, False)
            side.net.blobs["data"].share_data(blob)

    @rule(which=st.sampled_from(ATTRIBUTES), on=st.booleans())
    def set_attribute(self, which: tuple[str, str, tuple[Any, Any]], on: bool) -> None:
        for side in self.sides:
            setattr(side.net.layer_dict[which[0]], which[1], which[2][on])

    @rule(which=st.sampled_from(PARAMETERS), on=st.booleans())
    def set_parameter(self, which: Any, on: bool) -> None:
        for side in self.sides:
            which[1](side.net.layer_dict[which[0]].param, on)

    @rule(count=st.integers(1, 2))
    def threads(self, count: int) -> None:
        set_num_threads(count)

    @rule(way=st.sampled_from(WAYS))
    def compute(self, way: str) -> None:
        self.way.close()
        self.way.enter_context(kernels.using(way))

    @rule()
    def force_backward(self) -> None:
        if self.keep == "all":
            for side in self.sides:
                side.net.force_backward()

    @precondition(lambda self: self.keep == "all")
    @rule(name=st.sampled_from(INNER))
    def overwrite_inner(self, name: str) -> None:
        for side in self.sides:
            side.net.blobs[name].data[...] = 7
        self.whole = False

    # Forwards.

    @rule(times=st.integers(1, 3))
    def forward(self, times: int) -> None:
        for _ in range(times):
            self.run(lambda net: net.forward())

    @rule(name=st.sampled_from(INNER))
    def ask_for(self, name: str) -> None:
        self.run(lambda net: net.forward([name]))

    @rule(end=st.sampled_from(["a_scale", "pool", "sum", "both"]))
    def forward_to(self, end: str) -> None:
        self.run(lambda net: net.forward(end=end), whole=False)

    @precondition(lambda self: self.whole and self.keep == "all")
    @rule(start=st.sampled_from(["pool", "b", "sum", "y_batchnorm"]), times=st.integers(1, 2))
    def forward_from(self, start: str, times: int) -> None:
        for _ in range(times):
            self.run(lambda net: net.forward(start=start))

    @rule()
    def forward_in_a_thread(self) -> None:
        thread = Thread(target=lambda: [side.net.forward() for side in self.sides])
        thread.start()
        thread.join()
        self.run(lambda net: net.forward())

    def run(self, forward: Callable[[Net], dict[str, Any]], whole: bool = True) -> None:
        """Run both nets, and compare what they have given; without writing to any blob, which would be a change."""
        planned, plain = self.planned.net, self.plain.net
        # Held views prevent caches made from the weights.
        held = [blob.data for blobs in plain.params.values() for blob in blobs]
        found, wanted = forward(planned), forward(plain)
        names = {*wanted, *(planned.blobs if self.keep == "all" and whole else ())}
        del held, found
        self.whole = whole
        for name in names:
            mine, other = planned.blobs[name].read_data(), plain.blobs[name].read_data()
            assert mine.shape == other.shape, name
            np.testing.assert_allclose(mine, other, rtol=0, atol=TOLERANCE * max(1e-3, np.abs(other).max()), err_msg=name)


class OnGpu(Changes):
    """The same in GPU mode, where forwards are CUDA graphs."""

    gpu = True


def run_changes(machine: type[Changes], examples: int, steps: int = 12) -> None:
    few = settings(
        max_examples=examples, stateful_step_count=steps, derandomize=True, database=None, phases=[Phase.generate, Phase.shrink]
    )
    run_state_machine_as_test(machine, settings=few)  # type: ignore[no-untyped-call]


def test_a_plan_notices_every_change() -> None:
    run_changes(Changes, 25)


@pytest.mark.slow
def test_a_plan_notices_every_change_of_many() -> None:
    run_changes(Changes, 120, 25)


@pytest.mark.gpu
def test_graphs_notice_every_change() -> None:
    run_changes(OnGpu, 10)
