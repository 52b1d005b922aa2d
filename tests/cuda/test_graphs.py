"""Nets as CUDA graphs: the bits of plain launches, when graphs are dropped, and what a steady forward asks of the driver."""

from __future__ import annotations

import ctypes
import gc
import logging
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import compiled_cublas
import numpy as np
import pytest
from chains import CHAINS, net_of
from detection_nets import NETS, OUTPUTS, ROIS, SHAPE, detect, detection_net, image, put_weights
from net_ways import check_graphs
from random_nets import random_net
from which_device import skip_on_gpu

import minicaffe
from minicaffe import Net, rng
from minicaffe.blob import Blob
from minicaffe.cuda import blas, graph
from minicaffe.cuda import device as cuda
from minicaffe.cuda.capture import NotCapturedError
from minicaffe.cuda.stream import Stream
from minicaffe.errors import DeviceError, LayerError
from minicaffe.formats.prototxt import parse_net
from minicaffe.tracing.summary import Times
from minicaffe.tracing.tracer import Tracer

pytestmark = pytest.mark.gpu
pytest.importorskip("cuda.bindings.driver", reason="cuda.bindings makes the graphs")
KEEP = pytest.mark.parametrize("keep", ["all", "outputs"])
BOTH = pytest.mark.parametrize("name", NETS)
WIDE = (1, 3, 64, 128)


@pytest.fixture(autouse=True)
def gpu() -> Iterator[cuda.Device]:
    minicaffe.set_mode_gpu()
    graph.allow_graphs()
    yield cuda.current()
    minicaffe.set_mode_cpu()


@contextmanager
def plain() -> Iterator[None]:
    graph.allow_graphs(False)
    try:
        yield
    finally:
        graph.allow_graphs()


def assert_equal(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    for name, values in wanted.items():
        np.testing.assert_array_equal(found[name], values, err_msg=name)


def parts(net: Net) -> list[Any]:
    return [part for _, part in sorted(net.plan.program._parts.items())]


def counts(net: Net) -> list[tuple[int, int]]:
    """How often each part was captured and replayed."""
    return [(part.captured, part.replayed) for part in parts(net)]


def warmed(net: Net, seed: int = 0, shape: tuple[int, ...] = SHAPE) -> Net:
    """A net whose graphs are captured."""
    for _ in range(2):
        detect(net, seed, shape)
    return net


@pytest.fixture
def calls() -> Callable[[], Counter[str]]:
    """What the driver was asked for since the last call."""
    skip_on_gpu("only the test device counts calls")
    library = ctypes.CDLL("libcuda.so.1")
    library.cpu_device_calls.restype = ctypes.c_ulonglong
    before = Counter[str]()

    def count() -> Counter[str]:
        now = Counter({kind: library.cpu_device_calls(kind.encode()) for kind in KINDS})
        found = now - before
        before.update(found)
        return found

    return count


KINDS = ("launch", "graph", "copy", "fill", "wait", "allocate")


# The same bits.


@KEEP
@BOTH
def test_a_replay_has_the_bits_of_plain_launches(name: str, keep: Any) -> None:
    net, other = (detection_net(name, keep=keep) for _ in range(2))
    for seed in range(5):
        found = detect(net, seed)
        with plain():
            assert_equal(found, detect(other, seed))
        assert len(found["bbox_pred"]) == ROIS
    assert counts(net) == [(1, 3), (1, 3)]
    assert counts(other) == [(0, 0)]


@BOTH
def test_a_proposals_part_lies_between_two_graphs(name: str) -> None:
    net = warmed(detection_net(name))
    before, after = parts(net)
    kinds = [node.layer.type for node in net.nodes]
    between = [net.nodes[i].layer.type for i in range(before.last + 1, after.first)]
    assert between == ["Proposal"]
    assert kinds[: before.first] == ["Input"]
    assert after.last == len(kinds) - 1


@pytest.mark.parametrize("case", CHAINS)
def test_chains(case: str) -> None:
    net, other = net_of(CHAINS[case][0]), net_of(CHAINS[case][0])
    for _ in range(4):
        net.blobs["data"].data[...] += 1
        found = {name: array.copy() for name, array in net.forward().items()}
        other.blobs["data"].data[...] = net.blobs["data"].data
        with plain():
            assert_equal(found, other.forward())
        assert [chain.together for chain in net.plan.chains.values()] == [c.together for c in other.plan.chains.values()]
    assert counts(net) == [(1, 2)]


@KEEP
@BOTH
def test_shapes_that_alternate_have_a_graph_each(name: str, keep: Any) -> None:
    net, other = (detection_net(name, keep=keep) for _ in range(2))
    for seed in range(10):
        shape = (SHAPE, WIDE)[seed % 2]
        found = detect(net, seed, shape)
        with plain():
            assert_equal(found, detect(other, seed, shape))
        assert net.blobs["rpn_cls_score"].shape == (1, 18, shape[2] // 16, shape[3] // 16)
    first = counts(net)[0]
    assert first[1] >= 5
    assert len(parts(net)[0].replays) == 2


def test_a_net_goes_without_garbage_collection() -> None:
    """Nothing that graphs keep refers to the net in a circle."""
    net = warmed(detection_net("R-FCN"))
    gone = weakref.ref(net.plan)
    gc.collect()
    gc.disable()
    try:
        del net
        assert gone() is None
    finally:
        gc.enable()


def test_the_host_frees_what_graphs_keep_in_place() -> None:
    net = warmed(detection_net("R-FCN", keep="outputs"))
    net.blobs["rois"].read_data()
    minicaffe.set_mode_cpu()
    detect(net, 0)
    with pytest.raises(minicaffe.Error, match='the blob "rois" was freed'):
        net.blobs["rois"].read_data()


def test_few_shapes_are_kept() -> None:
    net = detection_net("Faster R-CNN")
    for width in range(64, 64 + 16 * 6, 16):
        warmed(net, shape=(1, 3, 64, width))
    assert len(parts(net)[0].replays) == 4


@KEEP
def test_blobs_that_the_caller_asks_for(keep: Any) -> None:
    net, other = (detection_net("R-FCN", keep=keep) for _ in range(2))
    for seed in range(6):
        names = ["rpn", "res3"] if seed % 2 else ["res1a"]
        found = {name: array.copy() for name, array in net.forward(names, **image(seed)).items()}
        with plain():
            assert_equal(found, other.forward(names, **image(seed)))
    assert counts(net)[0][1] >= 2


def test_freed_blobs_stay_freed() -> None:
    net = warmed(detection_net("R-FCN", keep="outputs"))
    detect(net, 1)
    assert counts(net)[0][1] == 1
    with pytest.raises(minicaffe.Error, match='the blob "res1" was freed after its last reader had run'):
        net.blobs["res1"].data  # noqa: B018


@BOTH
def test_gradients_after_a_replay(name: str) -> None:
    """What layers keep for a backward is there, also that of another shape's graph."""
    nets = [detection_net(name) for _ in range(2)]
    for net in nets:
        net.force_backward()
    for seed in range(6):
        shape = (SHAPE, WIDE)[seed % 3 == 1]
        detect(nets[0], seed, shape)
        with plain():
            detect(nets[1], seed, shape)
        found = []
        for net in nets:
            net.clear_param_diffs()
            for output in OUTPUTS:
                net.blobs[output].diff[...] = np.random.default_rng(seed).standard_normal(net.blobs[output].shape)
            net.backward_from_to(len(net.layers) - 1, 0)
            found.append({str(i): blob.diff.copy() for i, blob in enumerate(net.learnable_params)})
        assert_equal(*found)
    assert counts(nets[0])[0][1] > 0


def test_losses_are_those_of_plain_launches() -> None:
    text = 'input: "x" input_shape { dim: 4 dim: 3 } input: "label" input_shape { dim: 4 }' + "".join(
        f'layer {{ name: "{name}" type: "{kind}" bottom: "{bottom}" {more} top: "{name}" }}\n'
        for name, kind, bottom, more in (
            ("a", "ReLU", "x", ""),
            ("b", "Power", "a", "power_param { scale: 3 } loss_weight: 2"),
            ("c", "Power", "b", "power_param { shift: 1 }"),
            ("loss", "SoftmaxWithLoss", "c", 'bottom: "label"'),
        )
    )
    nets = [Net(parse_net(text), keep=keep) for keep in ("all", "outputs")]
    with plain():
        wanted = Net(parse_net(text))
    for seed in range(4):
        x = np.random.default_rng(seed).standard_normal((4, 3))
        for net in (*nets, wanted):
            net.blobs["x"].data[...] = x
            net.blobs["label"].data[...] = [0, 2, 1, 2]
        with plain():
            loss = wanted.forward_from_to(0, len(wanted.layers) - 1)
        assert [net.forward_from_to(0, len(net.layers) - 1) for net in nets] == [loss, loss]
    assert counts(nets[0]) == [(1, 2), (1, 2)]


@pytest.mark.filterwarnings("ignore")
def test_random_nets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many types, of changing inputs and weights; python tests/fuzz/nets.py --graphs runs more of them."""
    monkeypatch.setattr(rng, "_generator", rng._generator)
    found: Counter[str] = Counter()
    for seed in range(0, 24, 2):  # those of the phase TEST
        found.update(check_graphs(random_net(seed)))
    assert found["as graphs"] == 12
    assert found["replays"] > 40


# What changes.


def changed(name: str, change: Callable[[Net], None], keep: Any = "all") -> Net:
    """A net with graphs and one without, both changed: the next three forwards have the same bits."""
    net, other = (detection_net(name, keep=keep) for _ in range(2))
    warmed(net)
    for one in (net, other):
        change(one)
    for seed in range(3):
        found = detect(net, seed)
        with plain():
            assert_equal(found, detect(other, seed))
    return net


@KEEP
@BOTH
def test_weights_that_are_written(name: str, keep: Any) -> None:
    net = changed(name, lambda net: put_weights(net, 7), keep)
    assert counts(net) == [(1, 3), (1, 3)]


def test_weights_that_are_loaded(tmp_path: Path) -> None:
    detection_net("R-FCN", seed=5).save(tmp_path / "other.caffemodel")
    net = changed("R-FCN", lambda net: net.copy_from(tmp_path / "other.caffemodel") and None)
    assert counts(net) == [(1, 3), (1, 3)]


def test_weights_that_are_replaced() -> None:
    def change(net: Net) -> None:
        blob = Blob(net.params["fc6"][0].shape)
        blob.data[...] = 0.01
        net.layer_dict["fc6"].blobs[0] = blob

    assert counts(changed("Faster R-CNN", change))[1] == (2, 2)


def test_weights_that_are_shared() -> None:
    others: list[Net] = []

    def change(net: Net) -> None:
        others.append(detection_net("R-FCN", seed=9))
        net.share_with(others[-1])

    assert counts(changed("R-FCN", change))[0] == (2, 2)


def test_a_layers_attribute_that_is_changed() -> None:
    def change(net: Net) -> None:
        net.layer_dict["conv1_relu"].negative_slope = 0.5  # type: ignore[attr-defined]

    assert counts(changed("Faster R-CNN", change))[0] == (2, 2)


def test_a_layers_parameters_that_are_changed() -> None:
    """Softmax reads its axis in each forward."""
    text = 'layer { name: "y" type: "Softmax" bottom: "data" top: "y" }'
    net, other = net_of(text), net_of(text)
    for axis in (1, 1, 1, 2, 2, 3):
        for one in (net, other):
            one.layer_dict["y"].param.softmax_param.axis = axis
        found = {name: array.copy() for name, array in net.forward().items()}
        with plain():
            assert_equal(found, other.forward())
    assert counts(net) == [(3, 2)]


def test_memory_that_is_replaced() -> None:
    """A blob that grows takes new memory."""

    def change(net: Net) -> None:
        net.blobs["res2"].reshape(3, 8, 16, 16)

    assert counts(changed("R-FCN", change))[0] == (2, 2)


def test_a_blob_that_shares_anothers_memory() -> None:
    net = warmed(detection_net("R-FCN"))
    other = Blob(net.blobs["rfcn_cls"].shape)
    net.blobs["rfcn_cls"].share_data(other)
    detect(net, 3)
    with plain():
        wanted = detection_net("R-FCN")
        detect(wanted, 3)
    np.testing.assert_array_equal(other.data, wanted.blobs["rfcn_cls"].data)


def test_settings_that_decide_what_is_launched() -> None:
    net = changed("R-FCN", lambda net: blas.allow_tf32())
    blas.allow_tf32(False)
    assert counts(net) == [(2, 1), (2, 1)]


def test_a_net_that_moves_to_the_host_and_back() -> None:
    def change(net: Net) -> None:
        minicaffe.set_mode_cpu()
        detect(net, 4)
        minicaffe.set_mode_gpu()

    assert counts(changed("R-FCN", change))[0][0] <= 2


def test_a_plan_that_is_made_anew_has_graphs_of_its_own() -> None:
    net = warmed(detection_net("R-FCN"))
    net.take_layouts([])
    assert counts(net) == [(1, 0), (1, 0)]


@BOTH
def test_hooks_see_every_layer(name: str) -> None:
    net, other = detection_net(name), detection_net(name)
    warmed(net)
    seen: list[int] = []
    hook = net.after_forward(seen.append)
    found = detect(net, 2)
    assert seen == list(range(len(net.layers)))
    net.remove_hook(hook)
    again = detect(net, 2)
    with plain():
        wanted = detect(other, 2)
    assert_equal(found, wanted)
    assert_equal(again, wanted)
    assert counts(net) == [(1, 1), (1, 1)]


def test_a_hook_that_changes_numbers_between_layers() -> None:
    net, other = detection_net("R-FCN"), detection_net("R-FCN")
    warmed(net)
    for one in (net, other):
        at = one.index_of("rpn")

        def halve(i: int, one: Net = one, at: int = at) -> None:
            if i == at:
                one.blobs["res3"].data[...] *= 0.5

        one.before_forward(halve)
    found = detect(net, 2)
    with plain():
        assert_equal(found, detect(other, 2))


def test_tracers_and_timers_see_every_layer() -> None:
    net = warmed(detection_net("R-FCN"))
    with Tracer(net) as tracer:
        detect(net, 1)
    assert [step.layer for step in tracer.trace.steps if step.kind == "forward"] == list(range(len(net.layers)))
    times = Times(net)
    detect(net, 1)
    assert len(times._running) == len(net.layers)


def test_start_and_end_run_layer_by_layer(calls: Callable[[], Counter[str]]) -> None:
    net = warmed(detection_net("R-FCN"))
    calls()
    net.forward(start="rfcn_cls")
    net.forward(end="res1")
    assert calls()["graph"] == 0


def test_a_layer_of_another_class_is_not_captured() -> None:
    class Counting(minicaffe.layers.CATALOGUE["ReLU"]):  # type: ignore[misc, name-defined]
        ran = 0

        def forward_gpu(self, bottom: Any, top: Any) -> None:
            type(self).ran += 1
            super().forward_gpu(bottom, top)

    minicaffe.register("Counting", Counting)
    try:
        text = (
            CHAINS["conv, leaky relu"][0]
            + 'layer { name: "k" type: "Counting" bottom: "conv" top: "k" }'
            + ('layer { name: "p" type: "Power" bottom: "k" top: "p" power_param { scale: 2 } }')
        )
        net = net_of(text)
        for _ in range(4):
            net.forward()
        assert Counting.ran == 4
        assert counts(net) == [(1, 2), (1, 2)]
    finally:
        del minicaffe.layers.CATALOGUE["Counting"]


def test_a_layer_that_reads_numbers_on_the_host_is_found() -> None:
    """SPP has no kernel: its bottom comes to the host, and its top goes to the same place on the device each time."""
    text = (
        'input: "x" input_shape { dim: 2 dim: 3 dim: 5 dim: 7 } layer { name: "a" type: "ReLU" bottom: "x" top: "a" }'
        'layer { name: "s" type: "SPP" bottom: "a" top: "s" spp_param { pyramid_height: 2 } }'
        'layer { name: "b" type: "Power" bottom: "s" top: "b" power_param { scale: 2 } }'
    )
    nets = [Net(parse_net(text), keep=keep) for keep in ("all", "outputs")]
    other = Net(parse_net(text))
    for seed in range(4):
        x = np.random.default_rng(seed).standard_normal((2, 3, 5, 7))
        with plain():
            wanted = other.forward(x=x)
        for net in nets:
            assert_equal(net.forward(x=x), wanted)
    assert [counts(net) for net in nets] == [[(1, 2), (1, 2)]] * 2


# Several nets and threads.


def in_threads(count: int, work: Callable[[int], None]) -> list[BaseException]:
    """What work(0), work(1), ... raise, each in its own thread."""
    failures: list[BaseException] = []

    def run(i: int) -> None:
        try:
            work(i)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return failures


@KEEP
def test_nets_in_threads_that_share_weights(keep: Any) -> None:
    source = detection_net("R-FCN")
    with plain():
        wanted = [detect(source, seed, (SHAPE, WIDE)[seed % 2]) for seed in range(6)]
    nets = [detection_net("R-FCN", keep=keep) for _ in range(4)]
    for net in nets:
        net.share_with(source)

    def work(i: int) -> None:
        for round_ in range(9):
            seed = (i + round_ // 3) % 6
            assert_equal(detect(nets[i], seed, (SHAPE, WIDE)[seed % 2]), wanted[seed])

    assert in_threads(4, work) == []
    assert sum(replayed for net in nets for _, replayed in counts(net)) > 0


def test_a_net_that_changes_threads() -> None:
    net = warmed(detection_net("R-FCN"))
    with plain():
        wanted = detect(detection_net("R-FCN"), 3)
    assert in_threads(1, lambda i: assert_equal(detect(net, 3), wanted)) == []
    assert counts(net) == [(1, 1), (1, 1)]


def test_weights_that_another_stream_writes(gpu: cuda.Device) -> None:
    """The replay waits for that stream, not for the host."""
    net, other = warmed(detection_net("Faster R-CNN")), detection_net("Faster R-CNN")
    weight = net.params["conv1"][0]
    with gpu.running(Stream(gpu)):
        cuda.launch("eltwise.scaled", np.float32, weight.count, weight.count, *[weight.device_data("update")] * 1, 3.0,
                    weight.device_data("update"))  # fmt: skip
    other.params["conv1"][0].data[...] *= np.float32(3)
    with plain():
        wanted = detect(other, 3)
    assert_equal(detect(net, 3), wanted)
    assert counts(net) == [(1, 1), (1, 1)]


# Errors.

POOLING = """
input: "x" input_shape { dim: 1 dim: 4 dim: 8 dim: 8 } input: "rois" input_shape { dim: 2 dim: 5 }
layer { name: "c" type: "Convolution" bottom: "x" top: "c" convolution_param { num_output: 4 kernel_size: 1
  weight_filler { type: "xavier" } } }
layer { name: "p" type: "ROIPooling" bottom: "c" bottom: "rois" top: "p" roi_pooling_param { pooled_h: 2 pooled_w: 2
  spatial_scale: 1 } }
layer { name: "r" type: "ReLU" bottom: "p" top: "r" }
"""
X, GOOD, BAD = np.ones((1, 4, 8, 8)), [[0, 0, 0, 7, 7], [0, 1, 1, 5, 5]], [[0, 0, 0, 7, 7], [9, 0, 0, 7, 7]]


@KEEP
def test_a_bad_roi_has_the_hosts_message_also_in_a_replay(keep: Any) -> None:
    net = Net(parse_net(POOLING), keep=keep)
    minicaffe.set_mode_cpu()
    with pytest.raises(LayerError) as on_the_host:
        Net(parse_net(POOLING)).forward(x=X, rois=BAD)
    minicaffe.set_mode_gpu()
    wanted = net.forward(x=X, rois=GOOD)["r"].copy()
    for _ in range(4):
        with pytest.raises(LayerError) as caught:
            net.forward(x=X, rois=BAD)
        assert str(caught.value) == str(on_the_host.value)
        np.testing.assert_array_equal(net.forward(x=X, rois=GOOD)["r"], wanted)
    assert counts(net) == [(1, 7)]


def test_a_bad_roi_in_the_capture_itself() -> None:
    net = Net(parse_net(POOLING))
    net.forward(x=X, rois=GOOD)
    for _ in range(2):
        with pytest.raises(LayerError, match=r'ROIPooling layer "p": roi 1 is \[9'):
            net.forward(x=X, rois=BAD)
    net.forward(x=X, rois=GOOD)
    assert counts(net) == [(1, 2)]


def test_an_error_in_one_of_the_parts_leaves_the_net_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    net, other = detection_net("R-FCN"), detection_net("R-FCN")
    warmed(net)
    with pytest.raises(LayerError, match='Proposal layer "proposal"'):
        net.forward(data=image(1)["data"], im_info=np.full((1, 3), np.nan))
    found = detect(net, 1)
    with plain():
        assert_equal(found, detect(other, 1))


def test_what_the_driver_says_of_a_launch_names_the_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    net = warmed(detection_net("R-FCN"))

    def launch(self: Any) -> None:
        raise DeviceError("cuGraphLaunch failed: CUDA_ERROR_LAUNCH_FAILED")

    monkeypatch.setattr(graph.Graph, "launch", launch)
    with pytest.raises(DeviceError, match='layers "data_input_0_split" to "rpn_prob_reshaped", as a CUDA graph: cuGr'):
        detect(net, 1)
    monkeypatch.undo()
    detect(net, 1)


def test_a_capture_that_fails_runs_layer_by_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where another thread waits for the whole device meanwhile; it is tried again a few times, not for ever."""
    net, other = detection_net("R-FCN"), detection_net("R-FCN")
    end = graph.end

    def failing(stream: Stream) -> Any:
        library = ctypes.CDLL("libcuda.so.1")
        assert library.cuCtxSynchronize() != 0
        return end(stream)

    skip_on_gpu("a GPU's context is not to be disturbed")
    monkeypatch.setattr(graph, "end", failing)
    for seed in range(14):
        found = detect(net, seed)
        with plain():
            assert_equal(found, detect(other, seed))
    tried = counts(net)
    assert all(4 < captured < 12 and not replayed for captured, replayed in tried)
    detect(net, 0)
    assert counts(net) == tried


def test_an_interrupt_in_a_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    net, other = detection_net("R-FCN"), detection_net("R-FCN")
    detect(net, 0)
    layer = net.layer_dict["rfcn_cls"]
    forward = type(layer).forward_gpu

    def interrupted(self: Any, bottom: Any, top: Any) -> None:
        if self is layer:
            raise KeyboardInterrupt
        forward(self, bottom, top)

    monkeypatch.setattr(type(layer), "forward_gpu", interrupted)
    with pytest.raises(KeyboardInterrupt):
        detect(net, 1)
    monkeypatch.undo()
    for seed in range(3):
        found = detect(net, seed)
        with plain():
            assert_equal(found, detect(other, seed))


@KEEP
def test_out_of_memory_lets_go_of_graphs_first(keep: Any, gpu: cuda.Device) -> None:
    net = warmed(detection_net("R-FCN", keep=keep))
    wanted = detect(net, 1)
    with gpu.active():
        _, total = gpu.driver.mem_get_info()
    with pytest.raises(DeviceError, match="out of memory"):
        gpu.allocate(2 * total)
    assert all(not part.replays for part in parts(net))
    for _ in range(3):
        assert_equal(detect(net, 1), wanted)


# What is refused.


@pytest.mark.parametrize(
    "what, does",
    [
        ("a wait for the stream", lambda gpu, blob: gpu.current_stream.synchronize()),
        ("numbers on the host", lambda gpu, blob: blob.data),
        ("a copy from the host", lambda gpu, blob: gpu.to_device(blob.data_memory.block.address, np.zeros(3, np.float32))),
        ("a wait for the stream", lambda gpu, blob: gpu.to_host(np.zeros(3, np.float32), blob.data_memory.block.address)),
        ("a copy to the host", lambda gpu, blob: blob.read_later()),
        ("memory of the host", lambda gpu, blob: gpu.pinned(5, np.float32)),
        ("a gradient", lambda gpu, blob: blob.device_diff("write")),
        ("a wait for another stream", lambda gpu, blob: gpu.order(gpu.current_stream.handle, gpu.stream.handle)),
        ("no 1099511627776 bytes are free", lambda gpu, blob: gpu.allocate(2**40)),
    ],
)
def test_a_capture_refuses(what: str, does: Callable[[cuda.Device, Blob], object], gpu: cuda.Device) -> None:
    blob, stream = Blob((3,)), Stream(gpu)
    with gpu.running(stream):
        blob.device_data("write")
        with pytest.raises(NotCapturedError, match=what), gpu.capturing(stream):
            does(gpu, blob)
    with gpu.running(stream):  # the stream goes on
        gpu.zero(blob.device_data("write"), 12)
    np.testing.assert_array_equal(blob.data, np.zeros(3))


# What it costs.


@KEEP
@BOTH
def test_a_steady_forward_asks_the_driver_for_little(name: str, keep: Any, calls: Callable[[], Counter[str]]) -> None:
    net, other = detection_net(name, keep=keep), detection_net(name, keep=keep)
    for _ in range(3):
        detect(net, 0)
        with plain():
            detect(other, 0)
    for one in (net, other):
        for key, values in image(1).items():
            one.blobs[key].data[...] = values
    calls()
    net.forward_from_to(0, len(net.layers) - 1)
    found = calls()
    with plain():
        other.forward_from_to(0, len(other.layers) - 1)
    without = calls()
    proposal = 6  # boxes, sorting, suppression, rois
    assert found["graph"] == 2
    assert found["launch"] <= proposal + 3
    assert without["launch"] > 20 + found["launch"]
    assert found["allocate"] == found["fill"] == 0
    assert found["wait"] == without["wait"]


def test_graphs_hold_their_memory_and_give_it_back(gpu: cuda.Device) -> None:
    warmed(detection_net("R-FCN", keep="outputs"))  # after it, the libraries have their workspaces
    gc.collect()
    in_use = gpu._pool.in_use
    net = warmed(detection_net("R-FCN", keep="outputs"))
    gpu.release_memory()
    assert gpu._pool.in_use > in_use
    wanted = detect(net, 1)
    others = [Blob((50000,)) for _ in range(20)]
    for blob in others:
        gpu.zero(blob.device_data("write"), 200000)
    assert_equal(detect(net, 1), wanted)
    assert not any(blob.data.any() for blob in others)
    del net, blob
    others.clear()
    gc.collect()
    assert gpu._pool.in_use == in_use


def test_freed_memory_serves_again_within_a_graph(gpu: cuda.Device) -> None:
    """As without graphs: with keep="outputs" a part takes less memory than its blobs have together."""
    text = 'input: "r-1" input_shape { dim: 1 dim: 4 dim: 64 dim: 64 }' + "".join(
        f'layer {{ name: "r{i}" type: "ReLU" bottom: "r{i - 1}" top: "r{i}" }}\n' for i in range(20)
    )
    gc.collect()
    before = gpu._pool.in_use
    net = Net(parse_net(text), keep="outputs")
    for _ in range(3):
        net.forward()
    assert counts(net) == [(1, 1)]
    assert gpu._pool.in_use - before < 5 * 4 * 64 * 64 * 4


def test_cublas_gets_a_workspace_before_the_capture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled_cublas.installed(compiled_cublas.compiled(tmp_path), monkeypatch)
    net, other = detection_net("R-FCN"), detection_net("R-FCN")
    for seed in range(4):
        found = detect(net, seed)
        with plain():
            assert_equal(found, detect(other, seed))
    assert blas.backend().startswith("cuBLAS (")
    assert counts(net) == [(1, 2), (1, 2)]


def test_cublas_without_a_workspace_is_not_captured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug: the library allocates, which the driver refuses."""
    compiled_cublas.installed(compiled_cublas.compiled(tmp_path), monkeypatch)
    monkeypatch.setattr(blas, "WORKSPACE", 0)
    net, other = detection_net("R-FCN"), detection_net("R-FCN")
    library = blas._library()
    assert library is not None
    monkeypatch.setattr(library.cublas, "set_workspace", lambda *arguments: None)
    for seed in range(4):
        found = detect(net, seed)
        with plain():
            assert_equal(found, detect(other, seed))
    assert all(not replayed for _, replayed in counts(net))


# Without them.


def test_without_cuda_bindings(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", None)
    monkeypatch.setattr(graph, "_state", graph._State())
    net, other = detection_net("R-FCN"), detection_net("R-FCN")
    with caplog.at_level(logging.INFO, "minicaffe.cuda"):
        for seed in range(3):
            assert_equal(detect(net, seed), detect(other, seed))
    assert counts(net) == [(0, 0)]
    said = [record.getMessage() for record in caplog.records if "graphs" in record.getMessage()]
    assert len(said) == 1
    assert said[0].startswith("no CUDA graphs: ")


def test_the_environment_turns_them_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINICAFFE_CUDA_GRAPHS", "0")
    assert not graph._State().allowed
    monkeypatch.delenv("MINICAFFE_CUDA_GRAPHS")
    assert graph._State().allowed
