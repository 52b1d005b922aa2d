"""Device, memory, streams and checks, on a GPU or on the test device."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from which_device import release_all_memory, skip_on_gpu

import minicaffe
from minicaffe import Net
from minicaffe.blob import Blob, MemoryState
from minicaffe.cuda import device as cuda
from minicaffe.cuda import source
from minicaffe.cuda.pool import PinnedMemory
from minicaffe.cuda.stream import CHECKS, Stream
from minicaffe.errors import DeviceError, Error, LayerError
from minicaffe.formats.prototxt import parse_net

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def gpu() -> Iterator[cuda.Device]:
    minicaffe.set_mode_gpu()
    device = cuda.current()
    device.transfers.reset()
    yield device
    minicaffe.set_mode_cpu()


def relu(x: int, y: int, count: int) -> None:
    cuda.launch("relu.relu", np.float32, count, count, x, 0.0, y, 0)


# Blobs that move.


def test_states_and_bytes(gpu: cuda.Device) -> None:
    blob = Blob((2, 3))
    assert blob.data_state is MemoryState.UNINITIALISED
    blob.data[...] = 5
    assert blob.data_state is MemoryState.HOST
    blob.device_data("read")
    assert (blob.data_state, gpu.transfers.to_device) == (MemoryState.SYNCED, 24)
    blob.device_data("read")
    blob.read_data()
    assert (gpu.transfers.to_device, gpu.transfers.to_host) == (24, 0)
    blob.device_data("update")
    assert blob.data_state is MemoryState.DEVICE
    np.testing.assert_array_equal(blob.read_data(), np.full((2, 3), 5))
    assert (blob.data_state, gpu.transfers.to_host) == (MemoryState.SYNCED, 24)
    blob.data[0, 0] = 7
    assert blob.data_state is MemoryState.HOST
    blob.device_data("write")
    assert (blob.data_state, gpu.transfers.to_device) == (MemoryState.DEVICE, 24)


def test_a_read_view_cannot_be_written_to() -> None:
    with pytest.raises(ValueError, match="read-only"):
        Blob((2,)).read_data()[0] = 1


def test_untouched_memory_is_zeros_on_both_sides() -> None:
    blob = Blob((3, 5))
    blob.device_data("read")
    assert blob.data_state is MemoryState.UNINITIALISED
    np.testing.assert_array_equal(blob.data, np.zeros((3, 5)))
    other = Blob((3, 5))
    other.device_data("update")
    np.testing.assert_array_equal(other.data, np.zeros((3, 5)))


def test_growing_keeps_what_is_there() -> None:
    blob = Blob((7,))
    blob.reshape(3)
    blob.data[...] = [1, -2, 3]
    relu(blob.device_data("update"), blob.device_data("update"), 3)
    blob.reshape(7)
    blob.device_data("update")
    np.testing.assert_array_equal(blob.data[:3], [1, 0, 3])


@pytest.mark.parametrize("written_on", ["host", "device"])
def test_a_blob_that_shrinks_and_grows_loses_nothing(written_on: str) -> None:
    blob = Blob((6,))
    blob.data[...] = [1, 2, 3, 4, 5, 6]
    if written_on == "device":
        blob.device_data("update")
    blob.reshape(2)
    blob.device_data("read")
    blob.reshape(4)
    relu(blob.device_data("update"), blob.device_data("update"), 4)
    blob.reshape(3)
    np.testing.assert_array_equal(blob.data, [1, 2, 3])
    blob.data[...] = 9
    blob.device_data("read")
    blob.reshape(6)
    blob.device_data("update")
    np.testing.assert_array_equal(blob.data, [9, 9, 9, 4, 5, 6])


def test_a_part_that_is_overwritten_leaves_the_rest() -> None:
    blob = Blob((5,))
    blob.data[...] = [-1, 2, -3, 4, -5]
    relu(blob.device_data("update"), blob.device_data("update"), 5)
    blob.data[4] = 8
    blob.reshape(2)
    relu(blob.device_data("read"), blob.device_data("write"), 2)
    blob.reshape(5)
    np.testing.assert_array_equal(blob.data, [0, 2, 0, 4, 8])


def test_zeros_of_the_device_beyond_what_the_host_asks_for() -> None:
    blob = Blob((5,))
    blob.diff[...] = 3
    blob.zero_diff()
    blob.reshape(2)
    np.testing.assert_array_equal(blob.diff, [0, 0])
    blob.reshape(5)
    np.testing.assert_array_equal(blob.diff, np.zeros(5))


def test_a_batch_that_grows_again() -> None:
    net = Net(parse_net(NET))
    x = np.arange(1.0, 211.0).reshape(2, 3, 5, 7)
    net.forward(x=x)
    net.blobs["x"].reshape(1, 3, 5, 7)
    net.forward()
    net.blobs["x"].reshape(2, 3, 5, 7)
    np.testing.assert_array_equal(net.forward()["b"], x)


def test_shared_memory_moves_together() -> None:
    first, second = Blob((2, 3)), Blob((3, 2))
    second.share_data(first)
    first.data[...] = -1
    relu(second.device_data("read"), second.device_data("update"), 6)
    assert first.data_state is MemoryState.DEVICE
    np.testing.assert_array_equal(first.data, np.zeros((2, 3)))


def test_an_empty_blob() -> None:
    blob = Blob((0, 4))
    relu(blob.device_data("read"), blob.device_data("write"), 0)
    assert blob.data.shape == (0, 4)


def test_pycaffe_addresses() -> None:
    blob = Blob((4,))
    blob.data[...] = [-1, 2, -3, 4]
    relu(blob._gpu_data_ptr, blob._gpu_diff_ptr, 4)
    np.testing.assert_array_equal(blob.diff, [0, 2, 0, 4])


def test_pinned_memory_comes_back_when_its_last_view_goes(gpu: cuda.Device) -> None:
    view = gpu.pinned(1000, np.float32)[3:7]
    used = gpu._pinned.in_use
    view[...] = 2
    assert view.base is not None
    del view
    assert gpu._pinned.held > 0
    assert gpu._pinned.in_use == used - 4096


# Nets.

NET = """
input: "x" input_shape { dim: 2 dim: 3 dim: 5 dim: 7 }
layer { name: "a" type: "ReLU" bottom: "x" top: "a" }
layer { name: "b" type: "ReLU" bottom: "a" top: "b" relu_param { negative_slope: 0.5 } }
"""


def test_a_net_copies_its_inputs_and_outputs_only(gpu: cuda.Device) -> None:
    net = Net(parse_net(NET))
    x = np.random.default_rng(0).standard_normal((2, 3, 5, 7), np.float32)
    for _ in range(2):
        gpu.transfers.reset()
        y = net.forward(x=x)["b"]
        np.testing.assert_array_equal(y, np.maximum(x, 0))
        assert (gpu.transfers.to_device, gpu.transfers.to_host) == (x.nbytes, x.nbytes)


def test_inputs_are_page_locked(gpu: cuda.Device) -> None:
    """Those that are filled before the net first runs, too."""
    net = Net(parse_net(NET))
    used = gpu._pinned.in_use
    net.forward(x=np.ones((2, 3, 5, 7)))
    assert gpu._pinned.in_use > used
    host: np.ndarray = net.blobs["x"].data
    while isinstance(host.base, np.ndarray):
        host = host.base
    assert isinstance(host.base, PinnedMemory)


def test_switching_in_the_middle_of_a_nets_life() -> None:
    net = Net(parse_net(NET))
    net.force_backward()
    x = np.random.default_rng(1).standard_normal((2, 3, 5, 7), np.float32)
    results = []
    for switch in (minicaffe.set_mode_cpu, minicaffe.set_mode_gpu, minicaffe.set_mode_cpu):
        switch()
        y = net.forward(x=x)["b"].copy()
        net.blobs["b"].diff[...] = y
        results.append((y, net.backward()["x"].copy()))
    net.blobs["x"].data[...] = x
    net.layers[1].forward_pass([net.blobs["x"]], [net.blobs["a"]])
    minicaffe.set_mode_gpu()
    results.append((net.forward(start="b")["b"].copy(), results[0][1]))
    for y, dx in results[1:]:
        np.testing.assert_array_equal(y, results[0][0])
        np.testing.assert_array_equal(dx, results[0][1])


def test_two_nets_in_two_threads() -> None:
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            net = Net(parse_net(NET))
            random = np.random.default_rng(seed)
            for n in range(20):
                x = random.standard_normal((2, 3, 5, 7 + n % 3), np.float32)
                net.blobs["x"].reshape(*x.shape)
                np.testing.assert_array_equal(net.forward(x=x)["b"], np.maximum(x, 0))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_a_layer_without_a_kernel_runs_on_the_host_between_those_that_have_one(gpu: cuda.Device) -> None:
    text = NET.replace('name: "b" type: "ReLU" bottom: "a"', 'name: "s" type: "SPP" bottom: "a" top: "s" spp_param '
                       '{ pyramid_height: 1 } } layer { name: "b" type: "ReLU" bottom: "s"')  # fmt: skip
    net = Net(parse_net(text))
    x = np.random.default_rng(2).standard_normal((2, 3, 5, 7), np.float32)
    np.testing.assert_array_equal(net.forward(x=x)["b"], np.maximum(x, 0).max((2, 3), keepdims=True))
    assert net.blobs["a"].data_state is MemoryState.SYNCED  # what was only read is not copied again


# What goes wrong.


def test_out_of_memory_names_the_layer_and_the_net_goes_on(gpu: cuda.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    skip_on_gpu("a GPU's memory is not to be filled")
    monkeypatch.setenv("MINICAFFE_TEST_DEVICE_BYTES", str(2**28))
    release_all_memory(gpu)
    with gpu.active():
        free = gpu.driver.mem_get_info()[0]
        most = gpu.driver.mem_alloc(free - 5 * 2**23)
    net = Net(parse_net(NET))
    net.blobs["x"].reshape(1, 1, 1, 2**23)
    with pytest.raises(
        DeviceError, match=rf'ReLU layer "a": out of memory on .*: {2**25} bytes requested, \d+ of \d+ bytes are free'
    ):
        net.forward()
    net.blobs["x"].reshape(1, 1, 2, 3)
    np.testing.assert_array_equal(net.forward(x=np.full((1, 1, 2, 3), -4.0))["b"], np.zeros((1, 1, 2, 3)))
    with gpu.active():
        most.free()


def test_a_kernel_that_does_not_compile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "FOLDER", tmp_path)
    (tmp_path / "broken.cu").write_text('// Broken.\nextern "C" __global__ void broken(int n) {\n  n = missing;\n}\n')
    with pytest.raises(
        DeviceError, match=r"cuda/broken.cu does not compile for REAL = float, sm_\d+:\n(.|\n)*cuda/broken.cu[:(]3"
    ) as caught:
        cuda.launch("broken.broken", np.float32, 1, 1)
    assert "missing" in str(caught.value)


def test_a_kernel_that_is_not_there() -> None:
    with pytest.raises(DeviceError, match=r"cuda/relu.cu has no kernel rely; it has relu, relu_backward"):
        cuda.launch("relu.rely", np.float32, 1)


def test_what_the_driver_refuses_is_an_error_of_ours(gpu: cuda.Device) -> None:
    with pytest.raises(DeviceError, match=f"^{re.escape(gpu.name)}: cuMemcpyDtoH"):
        gpu.to_host(np.empty(4, np.float32), 8)
    with gpu.active(), pytest.raises(DeviceError, match="cuModuleLoadData"), gpu.active():
        gpu.driver.module_from_buffer(b"no machine code" * 9)


def test_a_gpu_chosen_for_a_while_is_the_threads_own(gpu: cuda.Device) -> None:
    with cuda.chosen(gpu.ordinal) as device:
        assert device is cuda.current() is gpu
        assert cuda._local.ordinal == gpu.ordinal
    assert cuda._local.ordinal is None


def test_launch_limits_are_errors() -> None:
    blob = Blob((1,))
    address = blob.device_data("update")
    with pytest.raises(DeviceError, match=r"kernel relu.relu, grid \(1, 70000\), block \(1, 1, 1\): "):
        cuda.launch_blocks("relu.relu", np.float32, (1, 70000), (1, 1, 1), 1, address, 0.0, address, 0)


def test_checks_are_raised_by_the_next_wait_and_only_once(gpu: cuda.Device) -> None:
    stream = gpu.stream
    one = np.array([3], np.int32)
    for value in (3, 0):
        flag = stream.watch(lambda found: LayerError(f"row {found}"))
        gpu.to_device(flag, one * (value > 0))
        if value:
            with pytest.raises(LayerError, match="row 3"):
                stream.synchronize()
    stream.synchronize()


def test_checks_of_a_run_that_failed_are_dropped(gpu: cuda.Device) -> None:
    stream = Stream(gpu)
    with pytest.raises(Error, match="the first"), gpu.running(stream):
        gpu.to_device(stream.watch(lambda found: LayerError("the second")), np.ones(1, np.int32))
        raise Error("the first")
    with gpu.running(stream):
        pass


def test_more_checks_than_there_is_room_for(gpu: cuda.Device) -> None:
    """A full room is waited for and used again: each check has a flag of its own, inside the room."""
    gpu.stream.synchronize()
    flags = [gpu.stream.watch(lambda found: LayerError("an old one")) for _ in range(CHECKS)]
    assert flags == list(range(flags[0], flags[0] + 4 * CHECKS, 4))
    later = [gpu.stream.watch(lambda found, i=i: LayerError(f"check {i}, {found}")) for i in range(5)]  # type: ignore[misc]
    assert later == flags[:5]
    gpu.to_device(later[3], np.full(1, 7, np.int32))
    with pytest.raises(LayerError, match="check 3, 7"):
        gpu.stream.synchronize()


def test_no_such_gpu() -> None:
    with pytest.raises(DeviceError, match=r"there is no GPU 99: the driver shows \d, numbered from 0"):
        minicaffe.set_device(99)
    minicaffe.set_mode_gpu()
