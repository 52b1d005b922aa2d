"""Errors that users meet on a GPU: bad input in one thread and in eight, a lost device, full memory."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from detection_nets import detect, detection_net
from which_device import release_all_memory, skip_on_gpu

import minicaffe
from minicaffe import Net
from minicaffe.cuda import device as cuda
from minicaffe.errors import DeviceError, LayerError
from minicaffe.formats.prototxt import parse_net

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def gpu() -> Iterator[cuda.Device]:
    minicaffe.set_mode_gpu()
    yield cuda.current()
    minicaffe.set_mode_cpu()


SCALED = 'layer {{ name: "s" type: "Power" bottom: "x" top: "s" power_param {{ scale: 2 }} }} {}'
CASES: dict[str, tuple[str, str, list[Any], list[Any]]] = {
    "roi": (
        "dim: 2 dim: 5",
        'layer { name: "p" type: "ROIPooling" bottom: "s" bottom: "given" top: "p" '
        "roi_pooling_param { pooled_h: 2 pooled_w: 2 } }",
        [[0, 0, 0, 3, 3], [1, 1, 1, 4, 4]],
        [[0, 0, 0, 3, 3], [7, 1, 1, 4, 4]],
    ),
    "label": (
        "dim: 2 dim: 4 dim: 5",
        'layer { name: "p" type: "SoftmaxWithLoss" bottom: "s" bottom: "given" top: "p" }',
        np.ones((2, 4, 5)).tolist(),
        np.full((2, 4, 5), 3.0).tolist(),
    ),
    "index": (
        "dim: 3",
        'layer { name: "p" type: "BatchReindex" bottom: "s" bottom: "given" top: "p" }',
        [0, 1, 1],
        [0, 2, 1],
    ),
}


def net_of(case: str) -> Net:
    shape, layer, *_ = CASES[case]
    inputs = f'input: "x" input_shape {{ dim: 2 dim: 3 dim: 4 dim: 5 }} input: "given" input_shape {{ {shape} }}\n'
    return Net(parse_net(inputs + SCALED.format(layer)))


def inputs_of(case: str, bad: bool) -> dict[str, Any]:
    x = np.random.default_rng(1).standard_normal((2, 3, 4, 5)).astype(np.float32)
    return {"x": x, "given": np.array(CASES[case][3 if bad else 2])}


def result(net: Net, case: str, bad: bool) -> str | np.ndarray:
    try:
        return next(iter(net.forward(**inputs_of(case, bad)).values())).copy()
    except LayerError as error:
        return str(error)


@pytest.mark.parametrize("threads", [1, 8])
@pytest.mark.parametrize("case", CASES)
def test_bad_input_has_the_hosts_message_in_the_net_that_had_it(case: str, threads: int) -> None:
    """In a plain forward, a captured one, and replays."""
    nets = [net_of(case) for _ in range(threads)]
    good = result(nets[0], case, False)
    minicaffe.set_mode_cpu()
    message = result(net_of(case), case, True)
    minicaffe.set_mode_gpu()
    assert isinstance(message, str)
    assert message.startswith(f'{nets[0].layer_dict["p"].type} layer "p": ')
    found: list[list[Any]] = [[] for _ in nets]

    def work(i: int) -> None:
        for turn in range(8):
            bad = (i + turn) % 3 == 0
            found[i].append((bad, result(nets[i], case, bad)))

    workers = [threading.Thread(target=work, args=(i,)) for i in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for results in found:
        assert len(results) == 8
        for bad, got in results:
            if bad:
                assert got == message
            else:
                np.testing.assert_array_equal(got, good)


LOST = """
import ctypes, sys
sys.path.insert(0, {support!r})
import minicaffe
from detection_nets import INPUTS, detect, detection_net, image, parse_net
minicaffe.set_mode_gpu()
net = detection_net("R-FCN")
for seed in range({forwards}):
    detect(net, seed)
ctypes.CDLL("libcuda.so.1").cpu_device_lose()
for run in (lambda: detect(net, 1), lambda: detect(detection_net("R-FCN"), 1)):
    try:
        run()
    except minicaffe.DeviceError as error:
        print(error)
minicaffe.set_mode_cpu()
print(detect(detection_net("R-FCN"), 1)["cls_prob"].shape)
"""


@pytest.mark.parametrize("forwards", [0, 1, 3])
def test_a_lost_device_is_one_clear_error_and_a_clean_end(forwards: int, gpu: cuda.Device) -> None:
    skip_on_gpu("only the test device can be lost on purpose")
    script = LOST.format(support=str(Path(__file__).parents[1] / "support"), forwards=forwards)
    done = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    *errors, shape = done.stdout.splitlines()
    assert shape == "(5, 3)"
    assert len(errors) == 2
    for error in errors:
        assert "an illegal memory access was encountered" in error
    said = [line for line in done.stderr.splitlines() if not line.startswith("matrix products use minicaffe's kernel")]
    assert said == []


@pytest.mark.parametrize("keep", ["all", "outputs"])
def test_out_of_memory_names_the_layer_and_leaves_a_net_with_graphs_usable(
    keep: Any, gpu: cuda.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    skip_on_gpu("a GPU's memory is not to be filled")
    net = detection_net("R-FCN", keep=keep)
    for _ in range(3):
        wanted = detect(net, 1)
    monkeypatch.setenv("MINICAFFE_TEST_DEVICE_BYTES", str(2**28))
    release_all_memory(gpu)
    with gpu.active():
        most = gpu.driver.mem_alloc(gpu.driver.mem_get_info()[0] - 2**22)
    with pytest.raises(DeviceError, match=r'Convolution layer "res0\w": out of memory on .*: \d+ bytes requested, \d+ of'):
        detect(net, 1, (1, 3, 640, 960))
    for _ in range(3):
        found = detect(net, 1)
        np.testing.assert_array_equal(found["cls_prob"], wanted["cls_prob"])
    with gpu.active():
        most.free()
