"""Net: construction, running, parameters; against the original's golden nets where ../shared is present."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from extras import require
from golden import GOLDEN, compare, inside, needs_golden
from recordings import absent

import minicaffe
from minicaffe.errors import Error, LayerError, PrototxtWarning, WeightsError
from minicaffe.formats.prototxt import parse_net
from minicaffe.formats.weights import read_weights
from minicaffe.mode import TEST, TRAIN, Phase
from minicaffe.net import Net

HEAD = 'layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 2 dim: 3 dim: 5 dim: 4 } } }\n'
IP = (
    'layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip" '
    'inner_product_param { num_output: 7 weight_filler { type: "xavier" } } }\n'
)


def net_of(text: str, phase: int = TEST, **options: object) -> Net:
    return Net(parse_net(text, "made.prototxt"), phase, **options)  # type: ignore[arg-type]


def golden_nets(suffix: str) -> list[object]:
    if not GOLDEN.is_dir():
        return [pytest.param("", marks=absent)]
    return [p.stem for p in sorted((GOLDEN / "nets").glob("*.json")) if p.with_suffix(suffix).exists()]


@pytest.mark.parametrize("case", golden_nets(".json"))
def test_golden_construction(case: str) -> None:
    folder = GOLDEN / "nets"
    for state in json.loads((folder / f"{case}.json").read_text()):
        with inside(folder):
            net = Net(f"{case}.prototxt", Phase[state["phase"]], state["level"], state["stages"])
        assert net._layer_names == state["layer_names"]
        assert [layer.param.type for layer in net.layers] == state["layer_types"]
        assert net._blob_names == state["blob_names"]
        assert [list(b.shape) for b in net.blobs.values()] == state["blob_shapes"]
        assert [net.bottom_names[n] for n in net._layer_names] == state["bottom_names"]
        assert [net.top_names[n] for n in net._layer_names] == state["top_names"]
        assert net.inputs == state["inputs"]
        assert net.outputs == state["outputs"]
        assert [[n, [list(b.shape) for b in blobs]] for n, blobs in net.params.items()] == state["params"]
        assert [net.blob_loss_weights[n] for n in net._blob_names] == state["blob_loss_weights"]
        assert {node.layer.name: node.needs_backward for node in net.nodes} == state["needs_backward"]


@pytest.mark.parametrize("case", golden_nets(".npz"))
def test_golden_run(case: str) -> None:
    folder = GOLDEN / "nets"
    stored = np.load(folder / f"{case}.npz")
    for k, state in enumerate(json.loads((folder / f"{case}.json").read_text())):
        mine = {key.removeprefix(f"s{k}."): stored[key] for key in stored.files if key.startswith(f"s{k}.")}
        if not mine:
            continue
        with inside(folder):
            net = Net(f"{case}.prototxt", Phase[state["phase"]], state["level"], state["stages"])
        fill(net, mine)
        net.forward()
        for key, value in mine.items():
            if key.startswith("blob."):
                compare(net.blobs[key.removeprefix("blob.")].data, value, (1e-4, 1e-5), f"{case} {key}")
        for key, value in mine.items():
            if key.startswith("top_diff."):
                net.blobs[key.removeprefix("top_diff.")].diff[...] = value
        net.clear_param_diffs()
        net.backward()
        for key, value in mine.items():
            compare_diff(net, key, value, case)


def fill(net: Net, stored: dict[str, np.ndarray]) -> None:
    for key, value in stored.items():
        kind, _, name = key.partition(".")
        if kind == "input":
            net.blobs[name].data[...] = value
        elif kind == "param":
            layer, _, i = name.rpartition(".")
            net.params[layer][int(i)].data[...] = value


def compare_diff(net: Net, key: str, value: np.ndarray, case: str) -> None:
    kind, _, name = key.partition(".")
    if kind == "blob_diff":
        compare(net.blobs[name].diff, value, (1e-4, 1e-5), f"{case} {key}")
    elif kind == "param_diff":
        layer, _, i = name.rpartition(".")
        compare(net.params[layer][int(i)].diff, value, (1e-4, 1e-5), f"{case} {key}")


def test_forward_gives_the_outputs_and_takes_inputs() -> None:
    net = net_of(HEAD + IP)
    x = np.arange(120, dtype=np.float32).reshape(2, 3, 5, 4) / 100
    out = net.forward(data=x)
    weight, bias = (b.data for b in net.params["ip"])
    np.testing.assert_allclose(out["ip"], x.reshape(2, 60) @ weight.T + bias, rtol=1e-5)
    assert list(net.forward(blobs=["data"])) == ["ip", "data"]
    assert list(net.forward(end="data")) == ["data"]


def test_inputs_are_checked() -> None:
    net = net_of(HEAD + IP)
    with pytest.raises(Error, match=r"inputs \['image'\] do not match the net's inputs \['data'\]"):
        net.forward(image=np.zeros(3))
    with pytest.raises(Error, match=r"has shape \(2, 3, 5, 4\), but the array given has \(1, 3, 5, 4\): not batch sized"):
        net.forward(data=np.zeros((1, 3, 5, 4)))
    with pytest.raises(Error, match=r"has shape \(2, 3, 5, 4\), but the array given has \(2, 3, 5, 6\)"):
        net.forward(data=np.zeros((2, 3, 5, 6)))
    with pytest.raises(Error, match=r'no layer "ipp"; did you mean "ip"\?'):
        net.forward(end="ipp")


def test_reshape_is_carried_through() -> None:
    net = net_of(HEAD + IP)
    net.blobs["data"].reshape(6, 3, 5, 4)
    assert net.forward(data=np.ones((6, 3, 5, 4)))["ip"].shape == (6, 7)


def test_legacy_constructor(tmp_path: object) -> None:
    net = net_of(HEAD + IP)
    net.save(f"{tmp_path}/net.caffemodel")
    with open(f"{tmp_path}/net.prototxt", "w") as file:
        file.write(HEAD + IP)
    legacy = Net(f"{tmp_path}/net.prototxt", f"{tmp_path}/net.caffemodel", TEST)
    today = Net(f"{tmp_path}/net.prototxt", TEST, weights=f"{tmp_path}/net.caffemodel")
    for other in (legacy, today):
        np.testing.assert_array_equal(other.params["ip"][0].data, net.params["ip"][0].data)
    assert legacy.phase == TEST
    assert Net(f"{tmp_path}/net.prototxt", TRAIN).phase == TRAIN


def test_copy_from_names_both_shapes(tmp_path: object) -> None:
    net_of(HEAD + IP).save(f"{tmp_path}/net.caffemodel")
    other = net_of(HEAD + IP.replace("num_output: 7", "num_output: 9"))
    message = r'InnerProduct layer "ip": blob 0 has shape \(9, 60\), but .*net.caffemodel stores \(7, 60\) \(made.prototxt:2\)'
    message += "; rename the layer, and it keeps its filler's values; `minicaffe retarget made.prototxt --classes N --out FILE`"
    with pytest.raises(WeightsError, match=message):
        other.copy_from(f"{tmp_path}/net.caffemodel")
    other = Net(parse_net(HEAD + IP.replace("num_output: 7", "num_output: 9"), "my net.prototxt"), TEST)
    with pytest.raises(WeightsError, match=r"`minicaffe retarget 'my net.prototxt' --classes N"):
        other.copy_from(f"{tmp_path}/net.caffemodel")
    other = net_of(HEAD.replace("dim: 5", "dim: 6") + IP)  # another image size is not another number of classes
    with pytest.raises(WeightsError, match=r"keeps its filler's values$"):
        other.copy_from(f"{tmp_path}/net.caffemodel")


def test_copy_from_reports(tmp_path: object) -> None:
    net_of(HEAD + IP).save(f"{tmp_path}/net.caffemodel")
    other = net_of(HEAD + IP.replace('"ip"', '"fc"'))
    report = other.copy_from(f"{tmp_path}/net.caffemodel")
    assert (report.loaded, report.missing, report.unused) == ([], ["fc"], ["ip"])


RELU = 'layer { name: "a" type: "ReLU" bottom: "data" top: "a" '
HUGE = "dim: 2000000000 " * 4


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (RELU.replace("data", "nothing") + "}", r'ReLU layer "a": bottom "nothing" is not produced .*\(made.prototxt:2\)'),
        (
            RELU.replace("data", "b") + '}\nlayer { name: "b" type: "ReLU" bottom: "a" top: "b" }',
            'layer "b" makes it, but only after this one',
        ),
        (
            IP + IP.replace('name: "ip"', 'name: "again"'),
            r'top "ip" is already produced by layer "ip" \(made.prototxt:2\) \(made.prototxt:3\)',
        ),
        ('layer { name: "a" type: "ReLu" bottom: "data" top: "a" }', 'unknown layer type "ReLu"; nearest known: .*ReLU'),
        (
            'layer { name: "a" type: "LpqLoss" bottom: "data" top: "a" }',
            r"which belongs to FlowNet \(github.com/lmb-freiburg/flownet2\) and is not built in",
        ),
        (
            'layer { name: "p" type: "Pooling" bottom: "data" top: "data" pooling_param { kernel_size: 2 } }',
            "cannot run in place",
        ),
        (RELU + "propagate_down: true propagate_down: false }", "2 propagate_down given for 1 bottoms"),
        (RELU + "include { phase: TEST } exclude { phase: TRAIN } }", "include and exclude"),
        (RELU + "param { lr_mult: 1 } }", "1 param blocks given, but the layer has 0"),
        (RELU + 'bottom: "data" }', "takes 1 bottom, got 2"),
        (
            f'layer {{ name: "a" type: "Input" top: "a" input_param {{ shape {{ {HUGE} }} }} }}',
            r'Input layer "a": shape \(2000000000, .* elements, more than .* \(made.prototxt:2\)',
        ),
        (RELU + "loss_weight: 1 loss_weight: 2 }", "2 loss_weight given for 1 tops"),
    ],
)
def test_bad_nets(text: str, message: str) -> None:
    with pytest.raises(LayerError, match=re.compile(message, re.S)):
        net_of(HEAD + text)


NAMED = IP.replace("inner_product_param", 'param { name: "w" } param { name: "b" } inner_product_param')
SHARED_PARAMS = HEAD + NAMED + NAMED.replace('name: "ip"', 'name: "ip2"').replace('top: "ip"', 'top: "ip2"')


def test_shared_parameters_are_one_blob() -> None:
    net = net_of(SHARED_PARAMS)
    net.params["ip2"][0].data[...] = 3
    assert (net.params["ip"][0].data == 3).all()
    assert [b.shape for b in net.learnable_params] == [(7, 60), (7,)]


def test_shared_parameters_of_other_shapes_are_refused() -> None:
    first, second = SHARED_PARAMS.split('layer { name: "ip2"')
    text = first + 'layer { name: "ip2"' + second.replace("num_output: 7", "num_output: 9")
    with pytest.raises(LayerError, match=r'shares param "w" with layer "ip", its shape is \(9, 60\), there \(7, 60\)'):
        net_of(text)


def test_hooks_see_every_layer_and_can_be_taken_back() -> None:
    net = net_of(HEAD + IP)
    seen: list[int] = []
    hook = net.before_forward(seen.append)
    net.forward()
    net.remove_hook(hook)
    net.forward()
    assert seen == [0, 1]


def test_a_hook_that_removes_itself_skips_no_other() -> None:
    net = net_of(HEAD + IP)
    seen: list[int] = []

    def once(i: int) -> None:
        net.remove_hook(once)

    net.before_forward(once)
    net.before_forward(seen.append)
    net.forward()
    assert seen == [0, 1]


def test_hooks_come_before_after_the_reshape_and_after() -> None:
    net = net_of(HEAD + IP)
    seen: list[tuple[str, int]] = []
    for when in ("before_forward", "after_reshape", "after_forward", "before_backward", "after_backward"):
        getattr(net, when)(lambda i, when=when: seen.append((when, i)))
    net.forward_backward()
    forward = [(when, i) for i in (0, 1) for when in ("before_forward", "after_reshape", "after_forward")]
    assert seen == forward + [(when, i) for i in (1, 0) for when in ("before_backward", "after_backward")]


def test_after_reshape_sees_the_new_shape_and_the_old_values() -> None:
    net = net_of(HEAD + IP)
    net.blobs["ip"].data[...] = 7
    seen = []
    net.after_reshape(lambda i: seen.append((net.nodes[i].tops[0].shape, float(net.nodes[i].tops[0].data.flat[0]))))
    net.forward()
    assert seen[1] == (net.blobs["ip"].shape, 7)


def test_watch_follows_the_making_of_a_net() -> None:
    seen: list[tuple[str, str, int]] = []
    net = Net(parse_net(HEAD + IP), TEST, watch=lambda net, layer, moment: seen.append((layer.name, moment, len(net.layers))))
    first, second = net.layers[0].name, net.layers[1].name
    assert seen == [
        (first, "created", 0), (first, "setup", 0), (first, "reshape", 1),
        (second, "created", 1), (second, "setup", 1), (second, "reshape", 2),
    ]  # fmt: skip


def start_end_net() -> tuple[Net, dict[str, np.ndarray]]:
    stored = dict(np.load(GOLDEN / "nets" / "forward_start_end.npz"))
    with inside(GOLDEN / "nets"):
        net = Net("forward_start_end.prototxt", TEST)
    fill(net, stored)
    return net, stored


def close(actual: np.ndarray, expected: np.ndarray) -> None:
    compare(actual, expected, (1e-4, 1e-5), "forward_start_end")


@needs_golden
def test_golden_forward_from_start_to_end() -> None:
    net, stored = start_end_net()
    before = net.blobs["prob"].data.copy()
    close(net.forward(end="pool1")["pool1"], stored["A.forward_end_pool1.pool1"])
    np.testing.assert_array_equal(net.blobs["prob"].data, before)
    net.blobs["pool1"].data[...] = stored["B.set_pool1"]
    close(net.forward(start="ip1", end="tanh")["tanh"], stored["B.forward_ip1_tanh.tanh"])
    close(net.forward(start="ip2")["prob"], stored["B.forward_from_ip2.prob"])


@needs_golden
def test_golden_backward_from_start_to_end() -> None:
    net, stored = start_end_net()
    out = net.forward(blobs=["conv1", "ip1"])
    for name in ("conv1", "ip1", "prob"):
        close(out[name], stored[f"C.full.{name}"])
    net.clear_param_diffs()
    net.blobs["data"].diff[...] = stored["C.data_diff_untouched"]
    close(net.backward(end="ip2", prob=stored["C.prob_diff"])["tanh"], stored["C.backward_to_ip2.tanh_diff"])
    close(net.blobs["data"].diff, stored["C.data_diff_untouched"])
    close(net.backward(start="tanh")["data"], stored["C.backward_from_tanh.data_diff"])
    for name, blobs in net.params.items():
        for i, blob in enumerate(blobs):
            close(blob.diff, stored[f"C.param_diff.{name}.{i}"])
    net.backward(prob=stored["C.prob_diff"])
    for name, blobs in net.params.items():
        for i, blob in enumerate(blobs):
            close(blob.diff, stored[f"D.param_diff_accumulated.{name}.{i}"])


@needs_golden
def test_golden_reshape_and_forward_all() -> None:
    net, stored = start_end_net()
    net.blobs["data"].reshape(*stored["E.input"].shape)
    net.reshape()
    assert list(net.blobs["prob"].shape) == list(stored["E.shapes_after_batch3.prob"])
    close(net.forward(data=stored["E.input"])["prob"], stored["E.prob"])
    close(net.forward_all(data=stored["F.forward_all_input"])["prob"], stored["F.forward_all_prob"])


@needs_golden
def test_golden_saved_nets_load() -> None:
    require("hdf5")
    with inside(GOLDEN / "nets"):
        binary = Net("forward_start_end.prototxt", TEST, weights="forward_start_end_saved.caffemodel")
        hdf5 = Net("forward_start_end.prototxt", TEST, weights="forward_start_end_saved.caffemodel.h5")
    _, stored = start_end_net()
    for net in (binary, hdf5):
        for name, blobs in net.params.items():
            for i, blob in enumerate(blobs):
                np.testing.assert_array_equal(blob.data, stored[f"param.{name}.{i}"])


@needs_golden
@pytest.mark.parametrize("kind", ["caffemodel", "h5"])
def test_golden_copy_from_by_name(kind: str) -> None:
    if kind == "h5":
        require("hdf5")
    stored = dict(np.load(GOLDEN / "nets" / f"copy_from_by_name_{kind}.npz"))
    with inside(GOLDEN / "nets"):
        net = Net("copy_from_by_name.prototxt", TEST)
        fill(net, {key: value for key, value in stored.items() if ".new." in key or key.startswith("input")})
        suffix = ".h5" if kind == "h5" else ""
        report = net.copy_from(f"forward_start_end_saved.caffemodel{suffix}")
    assert report.missing == ["new"]
    assert report.unused == ["ip2"]
    close(net.forward()["new"], stored["new"])


LOSS = (
    'layer { name: "label" type: "Input" top: "label" input_param { shape { dim: 2 } } }\n'
    'layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }\n'
)


def needs(net: Net) -> dict[str, list[bool]]:
    return {node.layer.name: node.bottom_needs for node in net.nodes if node.bottom_needs}


def test_only_gradients_that_a_weight_needs_are_computed() -> None:
    relu = 'layer { name: "relu" type: "ReLU" bottom: "data" top: "relu" }\n'
    text = HEAD + relu + IP.replace('bottom: "data"', 'bottom: "relu"') + LOSS
    assert needs(net_of(text, TRAIN)) == {"relu": [False], "ip": [False], "loss": [True, False]}
    forced = net_of("force_backward: true " + text, TRAIN)
    assert needs(forced) == {"relu": [True], "ip": [True], "loss": [True, False]}
    forced.blobs["data"].data[...] = 1
    forced.forward_backward()
    assert np.abs(forced.blobs["data"].diff).sum() > 0
    skipped = net_of(text.replace('bottom: "label"', 'bottom: "label" propagate_down: false propagate_down: false'), TRAIN)
    assert not any(node.needs_backward for node in skipped.nodes)
    assert not any(node.needs_backward for node in net_of(HEAD + relu + IP, TRAIN).nodes)


def test_propagate_down_is_one_for_each_bottom() -> None:
    with pytest.raises(LayerError, match="1 propagate_down given for 2 bottoms: one for each, or none"):
        net_of(HEAD + IP + LOSS.replace('bottom: "label"', 'bottom: "label" propagate_down: true'), TRAIN)


def test_the_loss_is_the_weighted_sum_of_tops() -> None:
    relu = 'layer { name: "relu" type: "ReLU" bottom: "data" top: "relu" loss_weight: 0.5 }\n'
    net = net_of("force_backward: true " + HEAD + relu, TRAIN)
    net.blobs["data"].data[...] = 2
    assert net.forward_backward() == 120
    np.testing.assert_array_equal(net.blobs["data"].diff, np.full((2, 3, 5, 4), 0.5))
    with pytest.raises(LayerError, match="2 loss_weight given for 1 tops"):
        net_of(HEAD + relu.replace("loss_weight: 0.5", "loss_weight: 0.5 loss_weight: 1"))


def test_a_loss_without_a_top_counts() -> None:
    net = net_of(HEAD + IP + LOSS.replace('top: "loss"', "loss_weight: 2"), TRAIN)
    net.params["ip"][0].data[...] = 0
    assert net.forward_backward() == pytest.approx(2 * np.log(7))
    assert net.outputs == []


def test_forward_and_backward_between_layers() -> None:
    scale = "".join(
        f'layer {{ name: "{top}" type: "Power" bottom: "{bottom}" top: "{top}" power_param {{ scale: {factor} }} }}\n'
        for bottom, top, factor in (("data", "a", 2), ("a", "b", 3), ("b", "c", 5))
    )
    net = net_of("force_backward: true " + HEAD + scale.replace('top: "c"', 'top: "c" loss_weight: 1'), TRAIN)
    net.forward(data=np.ones((2, 3, 5, 4)))
    net.blobs["a"].data[...] = 10
    assert (net.forward(start="b", end="b")["b"] == 30).all()
    assert (net.blobs["c"].data == 30).all()
    assert (net.forward(start="c")["c"] == 150).all()
    assert (net.backward(end="b")["a"] == 15).all()
    assert (net.backward(start="a")["data"] == 30).all()
    assert (net.backward(c=np.full((2, 3, 5, 4), 7))["data"] == 210).all()


def test_forward_all_pads_the_last_batch() -> None:
    net = net_of(HEAD + IP)
    x = np.random.default_rng(3).normal(size=(5, 3, 5, 4))
    weight, bias = (blob.data for blob in net.params["ip"])
    out = net.forward_all(data=x)
    assert list(out) == ["ip"]
    np.testing.assert_allclose(out["ip"], x.reshape(5, 60) @ weight.T + bias, rtol=1e-4, atol=1e-5)


def test_arguments_that_no_net_takes() -> None:
    with pytest.raises(Error, match=r"phase must be TRAIN \(0\) or TEST \(1\), got 7"):
        net_of(HEAD, 7)
    with pytest.raises(Error, match="a net's dtype is float32 or float64, got int32"):
        net_of(HEAD, dtype=np.int32)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, '"data": an array of object, not of numbers'),
        ("cat.jpg", '"data": an array of <U7, not of numbers'),
        (np.zeros((2, 3, 5, 4), complex), '"data": an array of complex128, not of numbers'),
        ([[1], [2, 3]], '"data": not an array: .*inhomogeneous'),
    ],
)
def test_inputs_that_are_no_numbers(value: object, message: str) -> None:
    net = net_of(HEAD + IP)
    for run in (net.forward, net.forward_all):
        with pytest.raises(Error, match=message):
            run(data=value)  # type: ignore[operator]
    with pytest.raises(Error, match='"data": one number has no items'):
        net.forward_all(data=3)


def test_a_reshape_that_no_blob_can_have_names_the_layer() -> None:
    net = net_of(
        HEAD + IP.replace("InnerProduct", "Tile").replace("inner_product_param", "tile_param { tiles: 9 } inner_product_param")
    )
    net.blobs["data"].reshape(2, 30000, 100, 100)
    with pytest.raises(LayerError, match=r'Tile layer "ip": shape .* more than the 2147483647'):
        net.reshape()


TWICE = IP + IP.replace('top: "ip"', 'top: "ip2"')


def test_as_in_caffe_stored_weights_go_to_the_first_of_two_layers_of_one_name(tmp_path: Path) -> None:
    """Each stored layer of the name goes there, so the last one stays; a .h5 stores one, and it goes to the last layer."""
    named = r'"ip": another layer with weights has this name \(made.prototxt:2\).*\(made.prototxt:3\)'
    with pytest.warns(PrototxtWarning, match=named):
        net, again, follower, other = (net_of(HEAD + TWICE) for _ in range(4))
    first, last = (layer for layer in net.layers if layer.blobs)
    first.blobs[0].data[...], last.blobs[0].data[...] = 1, 2
    assert net.layer_dict["ip"] is last and net.params["ip"] is last.blobs
    net.save(tmp_path / "w.caffemodel")
    assert [layer.blobs[0].array.max() for layer in read_weights(tmp_path / "w.caffemodel").layers if layer.blobs] == [1, 2]
    before = again.params["ip"][0].data.copy()
    report = again.copy_from(tmp_path / "w.caffemodel")
    assert (report.loaded, report.missing) == (["ip", "ip"], ["ip"])
    loaded = [layer.blobs[0].data for layer in again.layers if layer.blobs]
    assert (loaded[0] == 2).all() and np.array_equal(loaded[1], before)
    follower.share_with(net)
    assert [layer.blobs[0].data.max() for layer in follower.layers if layer.blobs] == [1, 2]
    with pytest.raises(WeightsError, match=r"two layers with weights have one name, which only a .caffemodel can store"):
        net.save(tmp_path / "w.h5")
    with pytest.raises(LayerError, match=r"another layer with weights has this name .*, and HDF5 needs weights by it"):
        net.save_hdf5(tmp_path / "w.h5")
    pytest.importorskip("h5py", reason="the extra minicaffe[hdf5] is not installed")
    net_of(HEAD + IP).save(tmp_path / "one.h5")
    other.copy_from(tmp_path / "one.h5")
    values = [layer.blobs[0].data for layer in other.layers if layer.blobs]
    assert np.array_equal(values[1], read_weights(tmp_path / "one.h5").layers[-1].blobs[0].array)


def test_layers_without_weights_may_have_one_name() -> None:
    relu = 'layer { name: "same" type: "ReLU" bottom: "data" top: "data" }\n'
    assert len(net_of(HEAD + relu + relu).layers) == 3


@pytest.mark.parametrize(
    "layer, message",
    [
        (
            'type: "GeneralContrastiveLoss" bottom: "data" bottom: "data" bottom: "data"',
            "takes 2 bottoms, got 3; happynear's .* gives bottom 0 their gradient, which is not built in",
        ),
        ('type: "Reshape" bottom: "data" bottom: "data"', r"takes 1 bottom, got 2 \(made"),
    ],
)
def test_a_forks_number_of_bottoms_names_the_fork(layer: str, message: str) -> None:
    with pytest.raises(LayerError, match=message):
        net_of(HEAD + f'layer {{ name: "x" {layer} top: "x" }}')


def test_two_layers_of_one_name_may_share_all_their_weights(tmp_path: Path) -> None:
    shared = IP.replace("inner_product_param", 'param { name: "w" } param { name: "b" } inner_product_param')
    net = net_of(HEAD + shared + shared.replace('top: "ip"', 'top: "ip2"'))
    net.params["ip"][0].data[...] = 3
    out = net.forward(data=np.ones(net.blobs["data"].shape))
    assert np.array_equal(out["ip"], out["ip2"])
    net.save(tmp_path / "w.caffemodel")
    again = net_of(HEAD + shared + shared.replace('top: "ip"', 'top: "ip2"'))
    again.copy_from(tmp_path / "w.caffemodel")
    assert [layer.blobs[0].data.min() for layer in again.layers if layer.blobs] == [3, 3]
    for half in ('param { name: "w" }', 'param { name: "w" } param { name: "" }'):
        with pytest.warns(PrototxtWarning, match="another layer with weights has this name"):
            net_of(HEAD + TWICE.replace("inner_product_param", f"{half} inner_product_param"))


def test_caffes_own_types_that_are_not_built_in_are_named() -> None:
    with pytest.raises(LayerError, match=r'Layer layer "data": has no type; write type: .* \(made.prototxt:1\)'):
        net_of('layer { name: "data" top: "data" }')
    origin = r"which belongs to C3D \(github.com/facebook/C3D\) and is not built in"
    with pytest.raises(LayerError, match=f'unknown layer type "VolumeData", {origin}'):
        net_of('layer { name: "data" type: "VolumeData" top: "data" }')


def test_public_names() -> None:
    for name in ("Net", "Layer", "Blob", "TRAIN", "TEST", "check_gradient", "register", "set_random_seed", "Error"):
        assert hasattr(minicaffe, name)
