"""Nets that run at the same time, each on its stream: whose checks are raised where, and what waits for what."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import minicaffe
from minicaffe import Net
from minicaffe.blob import Blob
from minicaffe.cuda import device as cuda
from minicaffe.cuda.stream import Stream
from minicaffe.errors import LayerError
from minicaffe.formats.prototxt import parse_net

pytestmark = pytest.mark.gpu

POOLING = """
input: "x" input_shape { dim: 1 dim: 4 dim: 8 dim: 8 } input: "rois" input_shape { dim: 1 dim: 5 }
layer { name: "c" type: "Convolution" bottom: "x" top: "c" convolution_param { num_output: 4 kernel_size: 1
  weight_filler { type: "xavier" } } }
layer { name: "p" type: "ROIPooling" bottom: "c" bottom: "rois" top: "p" roi_pooling_param { pooled_h: 2 pooled_w: 2
  spatial_scale: 1 } }
layer { name: "r" type: "ReLU" bottom: "p" top: "r" }
"""


@pytest.fixture(autouse=True)
def gpu() -> Iterator[cuda.Device]:
    minicaffe.set_mode_gpu()
    yield cuda.current()
    minicaffe.set_mode_cpu()


def in_thread(work: Any) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def test_a_check_is_raised_by_the_net_that_made_it() -> None:
    """Two nets share weights in two threads; one has a bad roi pending while the other runs."""
    nets = [Net(parse_net(POOLING)) for _ in range(2)]
    nets[1].share_with(nets[0])
    x, good, bad = np.ones((1, 4, 8, 8)), np.array([[0, 0, 0, 7, 7]]), np.array([[9, 0, 0, 7, 7]])
    for net in nets:
        net.forward(x=x, rois=good)
    others: list[BaseException | None] = []

    def other() -> None:
        try:
            nets[1].forward(x=x, rois=good)
            others.append(None)
        except BaseException as error:
            others.append(error)

    nets[0].before_forward(lambda i: in_thread(other) if nets[0].layers[i].name == "r" else None)
    with pytest.raises(LayerError, match='ROIPooling layer "p"'):
        nets[0].forward(x=x, rois=bad)
    assert others == [None]
    nets[0].forward(x=x, rois=good)


@pytest.fixture
def calls(gpu: cuda.Device, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each of these is called."""
    counted: Counter[str] = Counter()

    def count(owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def counting(*arguments: Any) -> Any:
            counted[name] += 1
            return original(*arguments)

        monkeypatch.setattr(owner, name, counting)

    count(gpu._pool, "_settle")
    count(gpu.driver, "memset_d8_async")
    count(gpu, "order")
    count(Stream, "synchronize")
    return counted


RELUS = "".join(f'layer {{ name: "r{i}" type: "ReLU" bottom: "r{i - 1}" top: "r{i}" }}\n' for i in range(20))


@pytest.mark.parametrize("keep", ["all", "outputs"])
@pytest.mark.parametrize("text", [f'input: "r-1" input_shape {{ dim: 1 dim: 4 dim: 8 dim: 8 }} {RELUS}', POOLING])
def test_a_steady_forward_waits_once_and_clears_nothing(keep: Any, text: str, calls: Counter[str]) -> None:
    net = Net(parse_net(text), keep=keep)
    for name, array in (("r-1", np.ones((1, 4, 8, 8))), ("x", np.ones((1, 4, 8, 8))), ("rois", [[0, 0, 0, 7, 7]])):
        if name in net.blobs:
            net.blobs[name].data[...] = array
    for _ in range(2):
        net.forward_from_to(0, len(net.layers) - 1)
    calls.clear()
    net.forward_from_to(0, len(net.layers) - 1)
    assert calls == {"synchronize": 1}


LOSSES = """
input: "x" input_shape { dim: 2 dim: 3 } input: "y" input_shape { dim: 2 dim: 3 }
layer { name: "a" type: "EuclideanLoss" bottom: "x" bottom: "y" top: "a" }
layer { name: "b" type: "EuclideanLoss" bottom: "y" bottom: "x" top: "b" loss_weight: 0.5 }
layer { name: "c" type: "ReLU" bottom: "x" top: "c" loss_weight: 2 }
layer { name: "d" type: "Power" bottom: "c" top: "d" power_param { shift: 100 } }
layer { name: "e" type: "ReLU" bottom: "d" top: "e" }
"""


@pytest.mark.parametrize("keep", ["all", "outputs"])
def test_losses_are_read_together_at_the_end(keep: Any, calls: Counter[str]) -> None:
    """As they were where they were made: their memory may be another blob's by then."""
    net = Net(parse_net(LOSSES), keep=keep)
    net.blobs["x"].data[...] = [[1, 2, 3], [-4, 5, 6]]
    for _ in range(3):
        calls.clear()
        assert net.forward_from_to(0, len(net.layers) - 1) == 91 / 4 * 1.5 + 2 * 17
    assert calls == {"synchronize": 1}


def test_nets_that_share_weights_do_not_wait_for_each_other(calls: Counter[str]) -> None:
    nets = [Net(parse_net(POOLING)) for _ in range(2)]
    nets[1].share_with(nets[0])
    for net in (*nets, *nets):
        net.forward_from_to(0, len(net.layers) - 1)
    for net in nets:
        calls.clear()
        net.forward_from_to(0, len(net.layers) - 1)
        assert calls == {"synchronize": 1}


def test_a_stream_waits_for_the_writer_once_and_a_writer_for_all_readers(
    gpu: cuda.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By events: the host waits for nothing in between."""
    ordered: list[tuple[int, int]] = []
    streams = [Stream(gpu) for _ in range(3)]
    handles = [stream.handle for stream in streams]
    original = gpu.order

    def order(handle: Any, other: Any) -> None:
        ordered.append((handles.index(handle), handles.index(other)))
        original(handle, other)

    monkeypatch.setattr(gpu, "order", order)
    blob = Blob((3,))

    def on(i: int, access: Any) -> list[tuple[int, int]]:
        ordered.clear()
        with gpu.active(), monkeypatch.context() as patch:
            patch.setattr(cuda._local, "stream", streams[i])
            blob.device_data(access)
        return list(ordered)

    assert on(0, "write") == []
    assert on(0, "read") == []
    assert on(1, "read") == [(1, 0)]
    assert on(1, "read") == []
    assert on(2, "read") == [(2, 0)]
    assert on(1, "update") == [(1, 0), (1, 2)]
    assert on(0, "read") == [(0, 1)]
    memory = blob.data_memory._device
    assert memory is not None
    assert memory.users == (handles[1], handles[0])


def test_a_block_that_two_streams_used_is_waited_for_by_its_next_owner(
    gpu: cuda.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu.release_memory()
    first, second = Stream(gpu), Stream(gpu)
    memory = gpu.allocate(5000, first)
    address = memory.address
    with gpu.active():
        memory.used_by(second.handle, only_read=True)
    ordered: list[tuple[Any, Any]] = []
    monkeypatch.setattr(gpu._pool, "_order", lambda *handles: ordered.append(handles))
    del memory
    again = gpu.allocate(5000, second)
    assert again.address == address
    assert ordered == [(second.handle, first.handle)]


def test_an_array_that_a_copy_still_fills_stays_although_nobody_reads_it(gpu: cuda.Device) -> None:
    """Its page-locked memory would go to the next array, whose numbers the copy would overwrite."""
    blob = Blob((1000,))
    blob.data[...] = 2
    with gpu.running(gpu.stream):
        cuda.launch("eltwise.scaled", np.float32, 1000, 1000, blob.device_data("read"), 3.0, blob.device_data("write"))
        blob.read_later()
        other = gpu.pinned(1000, np.float32)
        other[...] = 7
    np.testing.assert_array_equal(other, np.full(1000, 7.0))
    assert gpu.stream._filled == []
