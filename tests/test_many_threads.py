"""Threads of the user's: each with a net of its own, or one net that they share under its lock."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from minicaffe import TEST, Error, Layer, Net, get_solver
from minicaffe.formats.prototxt import parse_net
from minicaffe.layers import CATALOGUE

RFCN = Path(__file__).resolve().parents[1] / "examples" / "shapes" / "rfcn"


def in_threads(count: int, work: Callable[[int], object]) -> list[object]:
    """work(0), work(1), ..., each in a thread, begun together; what they return, or raise."""
    results: list[object] = [None] * count
    together = threading.Barrier(count)

    def run(i: int) -> None:
        try:
            together.wait(60)
            results[i] = work(i)
        except Exception as error:
            results[i] = error

    threads = [threading.Thread(target=run, args=[i]) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    return results


def detector() -> Net:
    return Net(RFCN / "test.prototxt", TEST, weights=RFCN / "shapes_rfcn.caffemodel")


def image(i: int) -> np.ndarray:
    return np.random.default_rng(i).normal(0, 60, (1, 3, 96 + 16 * i, 112)).astype(np.float32)


def scores(net: Net, i: int) -> np.ndarray:
    net.blobs["data"].reshape(*image(i).shape)
    net.forward(data=image(i), im_info=[[*image(i).shape[2:], 1]])
    return net.blobs["cls_prob"].data.copy()


@pytest.mark.slow
def test_eight_threads_each_with_a_net_of_its_own() -> None:
    alone = [scores(detector(), i) for i in range(8)]

    def work(i: int) -> list[np.ndarray]:
        net = detector()
        return [scores(net, i) for _ in range(3)]

    for expected, found in zip(alone, in_threads(8, work), strict=True):
        assert isinstance(found, list), found
        for each in found:
            np.testing.assert_array_equal(each, expected)


@pytest.mark.slow
def test_nets_that_share_weights() -> None:
    first = detector()
    alone = [scores(first, i) for i in range(4)]

    def work(i: int) -> np.ndarray:
        net = Net(RFCN / "test.prototxt", TEST)
        net.share_with(first)
        return scores(net, i)

    for expected, found in zip(alone, in_threads(4, work), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_one_net_under_its_lock() -> None:
    net = detector()
    alone = [scores(net, i) for i in range(4)]

    def work(i: int) -> np.ndarray:
        with net.lock:
            return scores(net, i)

    for expected, found in zip(alone, in_threads(4, work), strict=True):
        np.testing.assert_array_equal(found, expected)


class Waits(Layer):
    """Waits in its forward until the other thread has tried."""

    num_bottom = num_top = 1

    def reshape(self, bottom, top):
        top[0].reshape(bottom[0].shape)

    def forward(self, bottom, top):
        if inside is not None:
            inside.set()
            assert tried.wait(60)


inside: threading.Event | None = None
tried = threading.Event()


def test_one_net_without_its_lock_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CATALOGUE, "Waits", Waits)
    text = 'name: "shared" input: "x" input_shape { dim: 2 dim: 3 } layer { name: "w" type: "Waits" bottom: "x" top: "y" }'
    net = Net(parse_net(text), TEST)
    monkeypatch.setitem(globals(), "inside", threading.Event())

    def work(i: int) -> object:
        assert inside is not None
        if i == 0:
            return net.forward()
        assert inside.wait(60)
        try:
            return net.forward()
        finally:
            tried.set()

    first, second = in_threads(2, work)
    assert isinstance(first, dict)
    assert isinstance(second, Error)
    assert 'net "shared" is running in another thread: give each thread its own net' in str(second)
    monkeypatch.setitem(globals(), "inside", None)
    net.forward()


@pytest.mark.slow
def test_eight_trainings_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.prototxt").write_text(
        'layer { name: "x" type: "DummyData" top: "x" top: "t" dummy_data_param {\n'
        "shape { dim: 5 dim: 3 } shape { dim: 5 dim: 4 } data_filler { value: 0.5 } data_filler { value: 2 } } }\n"
        'layer { name: "f" type: "InnerProduct" bottom: "x" top: "f" inner_product_param { num_output: 4 } }\n'
        'layer { name: "loss" type: "EuclideanLoss" bottom: "f" bottom: "t" }\n'
    )
    (tmp_path / "solver.prototxt").write_text('net: "net.prototxt" base_lr: 0.1 lr_policy: "fixed" momentum: 0.9 max_iter: 20')
    solvers = [get_solver("solver.prototxt") for _ in range(8)]
    results = in_threads(8, lambda i: solvers[i].step(20 + i))
    assert results == [None] * 8
    alone = get_solver("solver.prototxt")
    for i, solver in enumerate(solvers):
        alone.step(20 + i - alone.iter)
        np.testing.assert_array_equal(solver.net.params["f"][0].data, alone.net.params["f"][0].data)
