"""Convolutions by cuDNN: what it is asked for, by a stand-in that computes it, and the stand-in against the real package."""

from __future__ import annotations

import gc
import inspect
import logging
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import cudnn_stand_in
import numpy as np
import pytest
from chains import ran_together
from cudnn_stand_in import StandIn, installed
from layer_case import LayerCase
from which_device import release_all_memory

import minicaffe
from minicaffe import Net
from minicaffe.cuda import convolution, cublas, cudnn, graph
from minicaffe.cuda.device import current
from minicaffe.cuda.stream import Stream
from minicaffe.errors import DeviceError, Error, install
from minicaffe.formats.prototxt import parse_net

CASES = [  # fields, the bottom's shape
    ("num_output: 6 kernel_h: 3 kernel_w: 2 stride_h: 2 stride_w: 1 pad_h: 1 pad_w: 2", (3, 4, 7, 5)),
    ("num_output: 6 kernel_size: 3 pad: 2 dilation: 2 group: 2", (5, 4, 6, 7)),
    ("num_output: 8 kernel_size: 2 stride: 3 group: 4", (2, 8, 7, 6)),
    ("num_output: 6 kernel_size: 1 stride: 2 pad: 1", (2, 4, 5, 7)),
    ("num_output: 3 kernel_size: 2 pad: 3", (1, 5, 9, 8)),  # a border wider than the kernel
]
NOT_CUDNNS = [  # 1x1, depthwise, of one and three axes, of float64
    ("num_output: 6 kernel_size: 1", (3, 5, 4, 7), np.float32),
    ("num_output: 8 kernel_size: 3 group: 4", (3, 4, 5, 7), np.float32),
    ("num_output: 3 kernel_size: 3 pad: 1", (2, 4, 9), np.float32),
    ("num_output: 3 kernel_size: 2 stride: 2", (2, 4, 3, 5, 6), np.float32),
    ("num_output: 3 kernel_size: 2", (2, 4, 3, 5), np.float64),
]
NET = """
input: "x" input_shape { dim: 2 dim: 3 dim: 6 dim: 5 }
layer { name: "c" type: "Convolution" bottom: "x" top: "c" convolution_param { num_output: 4 kernel_size: 3 pad: 1
  weight_filler { type: "xavier" } bias_filler { type: "constant" value: 0.5 } } }
layer { name: "r" type: "ReLU" bottom: "c" top: "c" }
layer { name: "d" type: "Deconvolution" bottom: "c" top: "d" convolution_param { num_output: 2 kernel_size: 4 pad: 1 stride: 2
  weight_filler { type: "xavier" } } }
"""

needs_gpu = pytest.mark.gpu


@pytest.fixture
def gpu() -> Iterator[None]:
    minicaffe.set_mode_gpu()
    yield
    minicaffe.set_mode_cpu()


@pytest.fixture
def library(gpu: None, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """cuDNN, as minicaffe finds it: the stand-in."""
    return installed(monkeypatch)


def results(text: str, shape: tuple[int, ...], dtype: Any) -> list[np.ndarray]:
    """y, dx and the weights' gradients in the mode that is set, the weights' on top of what their diffs held."""
    rng = np.random.default_rng(1)
    case = LayerCase(text, rng.normal(size=shape), dtype=dtype)
    for blob in case.layer.blobs:
        blob.data[...] = rng.normal(size=blob.shape)
        blob.diff[...] = rng.normal(size=blob.shape)
    (y,) = case.forward()
    (dx,) = case.backward(rng.normal(size=y.shape))
    return [y, dx, *(blob.diff.copy() for blob in case.layer.blobs)]


def check(text: str, shape: tuple[int, ...], dtype: Any = np.float32, tolerance: float = 1e-5) -> None:
    """The GPU's results are the CPU's in float64, and have the same bits once more."""
    minicaffe.set_mode_cpu()
    expected = results(text, shape, np.float64)
    minicaffe.set_mode_gpu()
    got = results(text, shape, dtype)
    for ours, theirs in zip(got, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=tolerance * np.abs(theirs).max())
    assert all(np.array_equal(a, b) for a, b in zip(got, results(text, shape, dtype), strict=True))


def layer(inside: str, kind: str = "Convolution") -> str:
    return f'type: "{kind}" convolution_param {{ {inside} }}'


@needs_gpu
@pytest.mark.parametrize("kind", ["Convolution", "Deconvolution"])
def test_as_on_the_cpu(library: StandIn, kind: str) -> None:
    for inside, shape in CASES:
        library.runs.clear()
        check(layer(inside, kind), shape)
        order = ["forward", "weight", "data"] if kind == "Convolution" else ["data", "weight", "forward"]
        assert [run[0] for run in library.runs] == order * 2
    assert {engine for _, engine in library.plans} == {"float32"}


@needs_gpu
@pytest.mark.parametrize(("inside", "shape", "dtype"), NOT_CUDNNS)
def test_what_cudnn_does_not_get(library: StandIn, inside: str, shape: tuple[int, ...], dtype: Any) -> None:
    check(layer(inside), shape, dtype)
    assert not library.runs


@needs_gpu
def test_a_batch_of_no_images(library: StandIn) -> None:
    y, *_ = results(layer("num_output: 3 kernel_size: 2"), (0, 4, 3, 5), np.float32)
    assert y.shape == (0, 3, 2, 4)
    assert not library.runs


@needs_gpu
def test_tf32_only_where_allowed(library: StandIn) -> None:
    inside, shape = CASES[0]
    check(layer(inside), shape)
    minicaffe.cuda.blas.allow_tf32()
    try:
        check(layer(inside), shape, tolerance=2e-3)
        with pytest.raises(AssertionError, match="Not equal to tolerance"):
            check(layer(inside), shape)  # 3 decimal digits are seen
    finally:
        minicaffe.cuda.blas.allow_tf32(False)
    check(layer(inside), shape)
    assert [engine for _, engine in library.plans] == ["float32"] * 3 + ["tf32"] * 3  # both kept


@needs_gpu
def test_an_engine_of_each_other_kind_is_left_alone(library: StandIn) -> None:
    """Of tensor cores that round to half precision, of Winograd and FFT, compiled at run time, of too much workspace."""
    for engine in cudnn_stand_in.ENGINES[:-2]:
        library.engines, cudnn._state = (engine,), cudnn._State()
        check(layer(CASES[0][0]), CASES[0][1])  # by im2col
    assert not library.plans


@needs_gpu
def test_what_cudnn_lacks_is_reported_once(library: StandIn, caplog: pytest.LogCaptureFixture) -> None:
    library.engines = ()
    with caplog.at_level(logging.WARNING, "minicaffe"):
        for height in (6, 7):
            check(layer("num_output: 6 kernel_size: 3"), (2, 4, height, 5))
    said = [record.getMessage() for record in caplog.records]
    assert [text.split()[4] for text in said] == ["forward", "weight", "data"]
    assert said[0] == (
        "cuDNN does not compute forward of a convolution of (2, 4, 6, 5) by (6, 4, 3, 3) to (2, 6, 4, 3), pad (0, 0), "
        "stride (1, 1), dilation (1, 1): No valid engine configs; im2col and a product do"
    )


@needs_gpu
def test_a_gradient_too_large_for_the_workspace(library: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cudnn, "WORKSPACE", 2000)  # the engine takes 1000
    check(layer("num_output: 16 kernel_size: 3"), (2, 4, 6, 5))
    assert {kind for kind, _ in library.plans} == {"forward", "data"}


@needs_gpu
def test_an_error_of_cudnn_names_the_layer(library: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    net = Net(parse_net(NET))
    expected = net.forward(x=np.ones((2, 3, 6, 5)))["d"].copy()

    def refuse(*arguments: Any, **named: Any) -> None:
        raise RuntimeError("CUDNN_STATUS_EXECUTION_FAILED")

    with monkeypatch.context() as patch:
        patch.setattr(cudnn_stand_in.pygraph, "execute", refuse)
        with pytest.raises(
            DeviceError, match=r'Convolution layer "c": cuDNN, forward of a convolution of .*: CUDNN_STATUS_EXEC'
        ):
            net.forward()
    np.testing.assert_array_equal(net.forward()["d"], expected)


@needs_gpu
def test_out_of_memory_names_the_layer_and_the_net_goes_on(library: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    net, gpu = Net(parse_net(NET)), current()
    expected = net_of(net, (2, 3, 6, 5))
    release_all_memory(gpu)
    with gpu.active():
        free, total = gpu.driver.mem_get_info()
        monkeypatch.setenv("MINICAFFE_TEST_DEVICE_BYTES", str(total - free + (64 << 20)))  # other streams keep workspaces
        most = gpu.driver.mem_alloc(32 << 20)
    library.engines = (cudnn_stand_in.Engine("hungry", workspace=60 << 20),)
    with pytest.raises(DeviceError, match=rf'Convolution layer "c": out of memory on .*: {60 << 20} bytes requested'):
        net_of(net, (2, 3, 7, 5))
    np.testing.assert_array_equal(net_of(net, (2, 3, 6, 5)), expected)
    with gpu.active():
        most.free()


def net_of(net: Net, shape: tuple[int, ...]) -> np.ndarray:
    net.blobs["x"].reshape(*shape)
    return np.asarray(net.forward(x=np.ones(shape))["d"].copy())


@needs_gpu
def test_what_follows_in_place_is_one_launch_behind_cudnn(library: StandIn) -> None:
    minicaffe.set_mode_cpu()
    net, x = Net(parse_net(NET)), np.random.default_rng(4).normal(size=(2, 3, 6, 5))
    expected = {name: array.copy() for name, array in net.forward(["c"], x=x).items()}
    minicaffe.set_mode_gpu()
    got = net.forward(["c"], x=x)
    assert [layers for _, layers in ran_together(net)] == [2]
    assert [kind for kind, *_ in library.runs] == ["forward", "data"]
    for name, array in expected.items():
        np.testing.assert_allclose(got[name], array, rtol=0, atol=1e-5 * np.abs(array).max())


@needs_gpu
def test_a_steady_forward_makes_nothing_and_waits_for_nothing(library: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a stream that is being captured."""
    device, text = current(), layer(CASES[0][0])
    case = LayerCase(text, np.random.default_rng(2).normal(size=CASES[0][1]), dtype=np.float32)
    with device.running(Stream(device)):
        (expected,) = case.forward()
        case.layer.forward_pass(case.bottom, case.top)
        made, plans, runs = library.made, list(library.plans), len(library.runs)

        def never(*arguments: Any) -> Any:
            raise AssertionError("this allocates, or waits")

        with monkeypatch.context() as patch:
            patch.setattr(Stream, "synchronize", never)
            for name in ("allocate", "to_device", "to_host", "pinned"):
                patch.setattr(device, name, never)
            case.layer.forward_pass(case.bottom, case.top)
    assert (library.made, library.plans, len(library.runs)) == (made, plans, runs + 1)
    np.testing.assert_array_equal(case.top[0].data, expected)


@needs_gpu
def test_a_handle_and_plans_for_each_stream(library: StandIn) -> None:
    device = current()
    streams = [Stream(device), Stream(device)]
    addresses = [stream.handle.handle for stream in streams]
    case = LayerCase(layer(CASES[0][0]), np.ones(CASES[0][1]), dtype=np.float32)
    for stream in [*streams, streams[0]]:
        with device.running(stream):
            case.layer.forward_pass(case.bottom, case.top)
    handles = [handle for _, handle, *_ in library.runs]
    assert handles[0] == handles[2] != handles[1]
    assert [address for _, _, address, _ in library.runs] == [*addresses, addresses[0]]
    assert len(library.plans) == 2
    del streams, stream
    gc.collect()
    with device.running(Stream(device)):
        case.layer.forward_pass(case.bottom, case.top)
    assert library.made == 2  # it took over one that was left, with its plans
    assert len(library.plans) == 2


@needs_gpu
def test_nets_in_threads(library: StandIn) -> None:
    """Each on its stream, with the same weights and other sizes; the numbers are those of one after the other."""
    nets, rng = [Net(parse_net(NET)) for _ in range(3)], np.random.default_rng(3)
    for net in nets[1:]:
        net.share_with(nets[0])
    inputs = [rng.normal(size=(2, 3, 6 + i, 5)) for i in range(3)]
    expected = []
    for x in inputs:
        nets[0].blobs["x"].reshape(*x.shape)
        expected.append(nets[0].forward(x=x)["d"].copy())
    got: list[Any] = [None] * 3

    def work(i: int) -> None:
        nets[i].blobs["x"].reshape(*inputs[i].shape)
        for _ in range(2):
            got[i] = nets[i].forward(x=inputs[i])["d"].copy()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for ours, theirs in zip(got, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert len({handle for _, handle, *_ in library.runs}) == 3


@needs_gpu
def test_the_plan_unused_for_longest_goes_first(library: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cudnn, "PLANS", 2)
    for height in (4, 5, 4, 6, 4, 5):
        LayerCase(layer("num_output: 2 kernel_size: 3"), np.ones((1, 2, height, 5)), dtype=np.float32).forward()
    assert len(library.plans) == 4  # 4, 5, 6 and 5 again


@needs_gpu
def test_switched_off(library: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cudnn.VARIABLE, "off")
    check(layer(CASES[0][0]), CASES[0][1])
    assert cudnn.backend() == "im2col (cuDNN is switched off)"
    assert not library.made
    cudnn.allow_cudnn()
    check(layer(CASES[0][0]), CASES[0][1])
    assert cudnn.backend() == "cuDNN 9.28.1 (nvidia-cudnn-frontend 1.32.0)"
    cudnn.allow_cudnn(False)
    count = len(library.runs)
    check(layer(CASES[0][0]), CASES[0][1])
    assert len(library.runs) == count > 0


@needs_gpu
def test_a_wrong_switch(library: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cudnn.VARIABLE, "on")
    with pytest.raises(Error, match="MINICAFFE_CUDNN must be one of auto, off, got 'on'"):
        cudnn.backend()


@needs_gpu
def test_without_the_package(library: StandIn, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setitem(sys.modules, "cudnn", None)
    with caplog.at_level(logging.INFO, "minicaffe.cuda"):
        check(layer(CASES[0][0]), CASES[0][1])
    reason = f"nvidia-cudnn-frontend is not installed; {install('gpu-cudnn')}"
    assert cudnn.backend() == f"im2col ({reason})"
    said = [(record.levelname, record.getMessage()) for record in caplog.records if "convolutions" in record.getMessage()]
    assert said == [("INFO", f"convolutions use im2col and a product: {reason}")]


@needs_gpu
def test_a_library_that_does_not_load(
    library: StandIn, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def create_handle() -> None:
        raise RuntimeError("Unable to find symbol cudnnCreate")

    monkeypatch.setattr(library, "create_handle", create_handle)
    with caplog.at_level(logging.WARNING, "minicaffe.cuda"):
        check(layer(CASES[0][0]), CASES[0][1])
    reason = f"cuDNN does not load: Unable to find symbol cudnnCreate; {install('gpu-cudnn')}"
    assert cudnn.backend() == f"im2col ({reason})"
    assert [record.getMessage() for record in caplog.records] == [f"convolutions use im2col and a product: {reason}"]


@needs_gpu
def test_a_front_end_of_an_old_version(library: StandIn) -> None:
    library.__version__ = "1.9.0"
    assert "does not load: nvidia-cudnn-frontend is 1.9.0, it must be 1.28 or newer" in cudnn.backend()
    assert not library.made


@needs_gpu
def test_a_library_that_cudnn_opens_is_missing(gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without libcublasLt cuDNN ends the process: it is not even asked."""
    load = cudnn._load_companions
    library = installed(monkeypatch)
    monkeypatch.setattr(cudnn, "_load_companions", load)
    monkeypatch.setattr(cublas, "candidates", lambda stem: iter([] if stem == "libcublasLt" else ["libc.so.6"]))
    assert cudnn.backend() == f"im2col (cuDNN does not load: libcublasLt is not installed; {install('gpu-cudnn')})"
    assert not library.made
    monkeypatch.setattr(cudnn, "_state", cudnn._State())
    monkeypatch.setattr(cublas, "candidates", lambda stem: iter(["libno.so.13", "libc.so.6"]))
    assert cudnn.backend().startswith("cuDNN")


@needs_gpu
def test_what_is_used_is_in_the_log(library: StandIn, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "minicaffe.cuda"):
        for _ in range(2):
            cudnn.backend()
    assert [record.getMessage() for record in caplog.records] == [
        "convolutions use cuDNN 9.28.1 (nvidia-cudnn-frontend 1.32.0)"
    ]


@needs_gpu
@pytest.mark.parametrize("kind", ["Convolution", "Deconvolution"])
def test_the_real_library(gpu: None, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolution, "_better_as_product", lambda kind, maps, tf32: False)
    if not cudnn.backend().startswith("cuDNN"):
        pytest.skip(cudnn.backend())
    for inside, shape in CASES:
        check(layer(inside, kind), shape)
    assert not cudnn._state.reported


# The real package, where it is installed: no GPU and no libcudnn is needed to build a graph's description.


@pytest.fixture(scope="module")
def real() -> Any:
    return pytest.importorskip("cudnn", reason="nvidia-cudnn-frontend is not installed", exc_type=ImportError)


def names(method: Any) -> list[str]:
    return [name for name in inspect.signature(method).parameters if name not in ("self", "window")]


def test_the_stand_ins_arguments_are_the_real_ones(real: Any) -> None:
    stand_in = cudnn_stand_in
    for owner, theirs in ((stand_in.pygraph, real.pygraph), (stand_in.Tensor, real.Tensor)):
        for name, ours in inspect.getmembers(owner, inspect.isfunction):
            if name.startswith("conv_"):  # a method that the package generates; the compiled one has the names
                said = getattr(real._pybind_module.backend_graph, name).__doc__
                (overload, *_) = re.findall(rf"{name}\(self.*", said)
                found = [word for word in re.findall(r"(\w+): ", overload) if word != "self"]
                window = ["padding", "stride", "dilation"]
                assert {*names(ours), *window} <= set(found)
                assert found[:2] == names(ours)[:2]
            elif not name.startswith("_") and name != "array":
                assert set(names(ours)) <= set(names(getattr(theirs, name))), name
    assert set(names(stand_in.pygraph.__init__)) <= set(names(real.pygraph.__init__))
    assert names(stand_in.pygraph.execute) == names(real.pygraph.execute)[:3]
    for name in ("create_handle", "set_stream"):
        assert names(getattr(stand_in.StandIn, name)) == names(getattr(real, name))
    assert callable(real.backend_version_string)


def test_the_stand_ins_constants_are_the_real_ones(real: Any) -> None:
    for kind in ("data_type", "heur_mode", "behavior_note", "build_plan_policy", "numerical_note"):
        assert set(getattr(cudnn_stand_in, kind).__members__) <= set(getattr(real, kind).__members__)
    known = set(real.numerical_note.__members__) - {"STRICT_NAN_PROP"}
    assert known == set(cudnn_stand_in.numerical_note.__members__)  # a new one may be one to refuse
    assert issubclass(real.cudnnGraphNotSupportedError, Exception)


@pytest.mark.parametrize("kind", ["forward", "data", "weight"])
def test_the_real_package_takes_our_graphs(real: Any, kind: Any) -> None:
    shapes = {"x": (2, 4, 7, 6), "weight": (8, 2, 3, 2), "y": (2, 8, 4, 3)}
    asked = cudnn.Convolution(**shapes, pad=(1, 0), stride=(2, 2), dilation=(1, 1))  # type: ignore[arg-type]
    graph = cudnn._graph(real, None, kind, asked)
    (node,) = graph.nodes
    inputs = {"forward": ("x", "weight"), "data": ("y", "weight"), "weight": ("x", "y")}[kind]
    (result,) = set(shapes) - set(inputs)
    assert [tuple(tensor.dim) for tensor in node.inputs.values()] == [shapes[name] for name in inputs]
    assert [tensor.uid for tensor in node.inputs.values()] == [1, 2]
    (output,) = node.outputs.values()
    assert (tuple(output.dim), output.uid, output.is_virtual) == (shapes[result], 3, False)
    for tensor in (*node.inputs.values(), output):
        assert tensor.data_type == real.data_type.FLOAT
        assert list(tensor.stride) == cudnn._strides(tensor.dim)
    window = {name: list(node.params[name]) for name in ("padding", "stride", "dilation")}
    assert window == {"padding": [1, 0], "stride": [2, 2], "dilation": [1, 1]}


@needs_gpu
def test_a_graph_replays_cudnn_until_it_is_switched_off(library: StandIn) -> None:
    pytest.importorskip("cuda.bindings.driver", reason="cuda.bindings makes the graphs")
    library.captured = True
    net, x = Net(parse_net(NET), minicaffe.TEST), np.random.default_rng(6).normal(size=(4, 2, 3, 6, 5))
    with allowed_graphs(False):
        expected = [net.forward(x=one)["d"].copy() for one in x]
    with allowed_graphs(True):
        found = [net.forward(x=one)["d"].copy() for one in x]
        asked = len(library.runs)
        np.testing.assert_array_equal(net.forward(x=x[1])["d"], expected[1])
        assert len(library.runs) == asked, "a replay asks cuDNN for nothing"
        cudnn.allow_cudnn(False)
        np.testing.assert_allclose(net.forward(x=x[2])["d"], expected[2], rtol=0, atol=1e-5 * np.abs(expected[2]).max())
        assert len(library.runs) == asked
    np.testing.assert_array_equal(found, expected)


@contextmanager
def allowed_graphs(allowed: bool) -> Iterator[None]:
    graph.allow_graphs(allowed)
    try:
        yield
    finally:
        graph.allow_graphs()
