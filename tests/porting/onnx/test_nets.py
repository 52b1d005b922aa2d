"""Whole nets, refusals, and the command: sub-nets, folding, opsets, external weights."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")

import onnx
from onnx_case import check, net_of

import minicaffe
from minicaffe import TEST, TRAIN, Error, LayerError, Net
from minicaffe.cli import main
from minicaffe.data.settings import read_settings
from minicaffe.detection.inputs import fill_inputs
from minicaffe.errors import install
from minicaffe.formats.prototxt import parse_net
from minicaffe.porting import agreement
from minicaffe.porting.onnx import compare_with_net, export_onnx, model, run_model

SHAPES = Path(__file__).parents[3] / "examples" / "shapes"


def shapes_net(kind: str) -> Net:
    weights = SHAPES / kind / f"shapes_{kind}.caffemodel"
    return Net(SHAPES / kind / "test.prototxt", TEST, weights=weights, settings=read_settings(SHAPES / "shapes.yml"))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["rfcn", "faster_rcnn"])
def test_the_shapes_nets_find_the_same_boxes_at_two_sizes(kind: str, tmp_path: Path) -> None:
    net = shapes_net(kind)
    assert minicaffe.export_onnx(net, tmp_path / "model.onnx") is None
    fill_inputs(net, {"data": str(SHAPES / "scene.png")})
    found = compare_with_net(net, tmp_path / "model.onnx")
    assert [one.name for one in found] == ["bbox_pred", "cls_prob", "rois"]
    assert max(one.relative for one in found) < 1e-5 and found[2].shape[0] > 200
    net.blobs["data"].reshape(1, 3, 211, 333)
    net.blobs["data"].data[...] = 50 * np.random.default_rng(0).standard_normal((1, 3, 211, 333))
    net.blobs["im_info"].data[...] = (211, 333, 1)
    assert all(one.agrees for one in compare_with_net(net, tmp_path / "model.onnx"))


def test_only_standard_operators(tmp_path: Path) -> None:
    export_onnx(shapes_net("rfcn"), tmp_path / "model.onnx")
    model = onnx.load(tmp_path / "model.onnx")
    assert [(entry.domain, entry.version) for entry in model.opset_import] == [("", 18)]
    assert {node.domain for node in model.graph.node} == {""}
    assert {"conv1", "rois", "cls_prob"} <= {name for node in model.graph.node for name in node.output}


@pytest.mark.parametrize("opset", [18, 19, 21, 23])
def test_newer_opsets(opset: int, tmp_path: Path) -> None:
    import onnxruntime

    if opset == 23 and tuple(map(int, onnxruntime.__version__.split(".")[:2])) < (1, 23):
        pytest.skip(f"onnxruntime {onnxruntime.__version__} does not know opset 23")
    path = tmp_path / "model.onnx"
    text = """
        layer { name: "conv" type: "Convolution" bottom: "x" top: "c" convolution_param { num_output: 3 kernel_size: 3 } }
        layer { name: "pool" type: "Pooling" bottom: "c" top: "p" pooling_param { pool: AVE kernel_size: 3 stride: 2 pad: 1 } }
        layer { name: "sum" type: "Reduction" bottom: "p" top: "r" reduction_param { axis: 2 } }
        layer { name: "fc" type: "InnerProduct" bottom: "r" top: "f" inner_product_param { num_output: 4 } }
    """
    check(
        tmp_path,
        text,
        {"x": np.random.default_rng(0).random((2, 3, 8, 9), np.float32)},
        opset=opset,
        rtol=1e-4,
        back=opset <= 22,
    )
    assert onnx.load(path).opset_import[0].version == opset


def test_an_input_that_the_model_does_not_take(tmp_path: Path) -> None:
    export_onnx(net_of(CLASSIFIER, image(2, 3, 6, 7)), tmp_path / "model.onnx")
    with pytest.raises(Error, match=r"model.onnx: onnxruntime [\d.]+ cannot run it: .*Got invalid dimensions for input: x"):
        run_model(tmp_path / "model.onnx", image(2, 3, 6, 8))
    with pytest.raises(Error, match=r"model.onnx: no array given for its inputs x$"):
        run_model(tmp_path / "model.onnx", {})


CLASSIFIER = """
    layer { name: "conv" type: "Convolution" bottom: "x" top: "c"
            convolution_param { num_output: 4 kernel_size: 3 bias_term: false } }
    layer { name: "norm" type: "BatchNorm" bottom: "c" top: "c" }
    layer { name: "scale" type: "Scale" bottom: "c" top: "c" scale_param { bias_term: true } }
    layer { name: "relu" type: "ReLU" bottom: "c" top: "c" }
    layer { name: "fc" type: "InnerProduct" bottom: "c" top: "f" inner_product_param { num_output: 3 } }
    layer { name: "prob" type: "Softmax" bottom: "f" top: "p" }
"""


def image(*shape: int) -> dict[str, np.ndarray[Any, Any]]:
    return {"x": np.random.default_rng(1).random(shape, np.float32)}


def test_a_classifier_takes_any_batch_and_one_size_of_image(tmp_path: Path) -> None:
    dims = check(tmp_path, CLASSIFIER, image(2, 3, 6, 7), image(5, 3, 6, 7), image(1, 3, 6, 7))
    assert dims == {"x": ["x_n", 3, 6, 7], "p": ["x_n", 3]}


def test_fold_leaves_no_batch_norm(tmp_path: Path) -> None:
    check(tmp_path, CLASSIFIER, image(2, 3, 6, 7), fold=True, rtol=1e-4)
    kinds = [node.op_type for node in onnx.load(tmp_path / "model.onnx").graph.node]
    assert kinds == ["Conv", "Relu", "Flatten", "Gemm", "Softmax"]


def test_until_exports_what_a_layer_needs(tmp_path: Path) -> None:
    net = net_of(CLASSIFIER, image(2, 3, 6, 7))
    export_onnx(net, tmp_path / "model.onnx", until="norm")
    given = image(1, 3, 9, 5)
    (made,) = run_model(tmp_path / "model.onnx", given).values()
    net.blobs["x"].reshape(1, 3, 9, 5)
    net.blobs["x"].data[...] = given["x"]
    wanted = net.forward(end="norm")["c"]
    np.testing.assert_allclose(made, wanted, rtol=1e-4, atol=1e-5)
    (found,) = compare_with_net(net, tmp_path / "model.onnx", until="norm")
    assert found.agrees and found.name == "c"
    with pytest.raises(Error, match=r'has no layer "nrom"; did you mean "norm"\?'):
        export_onnx(net, tmp_path / "model.onnx", until="nrom")


def test_a_layer_without_a_form_is_named_with_the_net_before_it(tmp_path: Path) -> None:
    (tmp_path / "net.prototxt").write_text(
        'layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 dim: 5 dim: 5 } } }\n'
        'layer { name: "relu" type: "ReLU" bottom: "x" top: "r" }\n'
        'layer { name: "selu" type: "SeLu" bottom: "r" top: "y" }\n'
    )
    net = Net(tmp_path / "net.prototxt", TEST)
    wanted = (
        r'SeLu layer "selu": this layer has no ONNX form; --until relu \(until=\'relu\'\) exports the net up to the '
        r"layer before \(.*net.prototxt:3\)"
    )
    with pytest.raises(LayerError, match=wanted):
        export_onnx(net, tmp_path / "model.onnx")
    assert not (tmp_path / "model.onnx").exists()
    export_onnx(net, tmp_path / "model.onnx", until="relu")


def test_an_input_changed_in_place(tmp_path: Path) -> None:
    text = 'input: "x" input_shape { dim: 1 dim: 3 } layer { name: "r" type: "ReLU" bottom: "x" top: "x" }'
    net = Net(parse_net(text + ' layer { name: "p" type: "Power" bottom: "x" top: "y" power_param { scale: 2 } }'), TEST)
    export_onnx(net, tmp_path / "model.onnx")
    (made,) = run_model(tmp_path / "model.onnx", {"x": np.array([[1, -2, 3]], np.float32)}).values()
    assert made.tolist() == [[2, 0, 6]]
    with pytest.raises(Error, match='input "x" is changed in place and is also an output'):
        export_onnx(Net(parse_net(text), TEST), tmp_path / "model.onnx")


def test_a_loss_without_a_top_has_no_form(tmp_path: Path) -> None:
    inputs = 'input: "x" input_shape { dim: 2 dim: 3 } input: "y" input_shape { dim: 2 dim: 3 }'
    net = Net(parse_net(f'{inputs} layer {{ name: "loss" type: "EuclideanLoss" bottom: "x" bottom: "y" }}'), TEST)
    with pytest.raises(LayerError, match="it computes a loss, for training"):
        export_onnx(net, tmp_path / "model.onnx", until="loss")


REFUSED = {
    'type: "EuclideanLoss" bottom: "x" bottom: "x" top: "y"': "it computes a loss, for training",
    'type: "DummyData" top: "y" dummy_data_param { shape { dim: 2 } }': "it makes data; replace it with an Input layer",
    'type: "Pooling" bottom: "x" top: "y" pooling_param { pool: STOCHASTIC kernel_size: 2 }': "STOCHASTIC pooling has no",
    'type: "Pooling" bottom: "x" top: "y" top: "m" pooling_param { kernel_size: 1 stride: 2 }': "the mask of windows",
    'type: "Pooling" bottom: "x" top: "y" top: "m" pooling_param { global_pooling: true }': "the mask of global pooling",
}  # fmt: skip


@pytest.mark.parametrize("text", REFUSED)
def test_what_has_no_form_says_why(text: str, tmp_path: Path) -> None:
    net = net_of(f'layer {{ name: "layer" {text} }}', {"x": np.ones((2, 3, 4, 5))})
    with pytest.raises(LayerError, match=REFUSED[text]):
        export_onnx(net, tmp_path / "model.onnx")


def test_eta_and_four_axes_have_no_form(tmp_path: Path) -> None:
    text = 'layer { name: "conv" type: "Convolution" bottom: "x" top: "y" convolution_param { num_output: 1 kernel_size: 1 } }'
    with pytest.raises(LayerError, match="onnxruntime convolves over 3 axes at most, this layer has 4"):
        export_onnx(net_of(text, {"x": np.ones((1, 2, 3, 3, 3, 3))}), tmp_path / "model.onnx")
    text = """layer { name: "out" type: "DetectionOutput" bottom: "l" bottom: "c" bottom: "p" top: "y" detection_output_param {
              num_classes: 2 nms_param { eta: 0.9 } } }"""
    given = {"l": np.ones((1, 8)), "c": np.ones((1, 4)), "p": np.ones((1, 2, 8))}
    with pytest.raises(LayerError, match=r"nms_param\.eta below 1 has no ONNX form"):
        export_onnx(net_of(text, given), tmp_path / "model.onnx")


@pytest.mark.parametrize("opset", [9, 17, 1000])
def test_an_opset_too_old_or_unknown(opset: int, tmp_path: Path) -> None:
    with pytest.raises(Error, match=rf"opset {opset}: the export writes opsets 18 to \d+ \(the newest of the installed onnx\)"):
        export_onnx(net_of(CLASSIFIER, image(2, 3, 6, 7)), tmp_path / "model.onnx", opset=opset)


def test_a_net_in_train_is_refused(tmp_path: Path) -> None:
    net = Net(net_of(CLASSIFIER, image(2, 3, 6, 7)).param, TRAIN)
    with pytest.raises(Error, match="a net is exported in TEST; this one is in TRAIN"):
        export_onnx(net, tmp_path / "model.onnx")


def test_weights_too_large_for_one_file_lie_beside_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "LIMIT", 1000)
    monkeypatch.setattr(model, "SMALL", 200)
    check(tmp_path, CLASSIFIER, image(2, 3, 6, 7))
    assert (tmp_path / "model.onnx.data").stat().st_size >= 4 * (4 * 27 + 3 * 80)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["model.onnx", "model.onnx.data"]


def test_one_weight_too_large_for_a_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No message holds it: from_array replaces protobuf, which refuses more than 2 GB."""
    from_array = onnx.numpy_helper.from_array

    def refuses(array: Any, name: str) -> Any:
        assert array.nbytes <= 1000, name
        return from_array(array, name)

    monkeypatch.setattr(onnx.numpy_helper, "from_array", refuses)
    monkeypatch.setattr(model, "LIMIT", 1000)
    text = 'layer { name: "f" type: "InnerProduct" bottom: "x" top: "y" inner_product_param { num_output: 70 } }'
    check(tmp_path, text, {"x": np.random.default_rng(0).random((2, 5), np.float32)}, back=False)
    assert (tmp_path / "model.onnx.data").stat().st_size == 4 * 5 * 70


def test_shared_weights_are_there_once(tmp_path: Path) -> None:
    param = 'param { name: "w" } inner_product_param { num_output: 5 bias_term: false }'
    text = f"""
        layer {{ name: "a" type: "InnerProduct" bottom: "x" top: "y" {param} }}
        layer {{ name: "b" type: "InnerProduct" bottom: "y" top: "z" {param} }}
    """
    check(tmp_path, text, {"x": np.random.default_rng(0).random((2, 5), np.float32)})
    assert [weight.name for weight in onnx.load(tmp_path / "model.onnx").graph.initializer] == ["a/blobs.0"]


# The command


def run(*words: object) -> Any:
    return CliRunner().invoke(main, [str(word) for word in words])


def test_export_command_checks(tmp_path: Path) -> None:
    folder, small, other = SHAPES / "rfcn", tmp_path / "small.yml", tmp_path / "other.yml"
    small.write_text((SHAPES / "shapes.yml").read_text().replace("SCALES: [300]", "SCALES: [120]"))
    other.write_text(small.read_text().replace("RPN_POST_NMS_TOP_N: 300", "RPN_POST_NMS_TOP_N: 30"))
    result = run(
        "export", folder / "test.prototxt", folder / "shapes_rfcn.caffemodel", "-o", tmp_path / "rfcn.onnx", "--check",
        "--fold", "--input", f"data={SHAPES / 'scene.png'}", "--cfg", small,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "rfcn.onnx (opset 18, " in result.stdout
    assert "input data 1 x 3 x data_h x data_w" in result.stdout and "output rois rois_n x 5" in result.stdout
    assert re.search(r"cls_prob +\d+x4 +\d\.\d\de-\d+ +\d\.\d\de-\d+", result.stdout)
    words = (
        "compare", folder / "test.prototxt", tmp_path / "rfcn.onnx", "--weights", folder / "shapes_rfcn.caffemodel",
        "--input", f"data={SHAPES / 'scene.png'}",
    )  # fmt: skip
    with_settings = run(*words, "--cfg", small)
    assert with_settings.exit_code == 0, with_settings.output
    assert run(*words, "--cfg", other).exit_code == 1  # which keeps fewer proposals


def test_export_command_says_what_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    net = tmp_path / "net.prototxt"
    net.write_text(
        'layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 } } }\n'
        'layer { name: "relu" type: "ReLU" bottom: "x" top: "y" }\n'
    )
    for words, message in (
        (["--opset", 9], "minicaffe: opset 9: the export writes"),
        (["--until", "y"], 'minicaffe: the net has no layer "y"'),
        (["--input", "x=a.npy"], "--input is for --check"),
        (["--check", "--input", "a.npy"], "--input a.npy: write it as BLOB=FILE"),
    ):
        result = run("export", net, "-o", "model.onnx", *words)
        assert result.exit_code and message in result.output, result.output
    assert run("export", net, "-o", "none/model.onnx").exit_code == 1
    monkeypatch.setattr(agreement, "TOLERANCE", -1)
    result = run("export", net, "-o", "model.onnx", "--check")
    assert result.exit_code == 1 and "FAIL: more than 0.0001 of the largest number apart: y (0); nothing was" in result.output


def test_a_check_that_fails_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model and its file of weights are replaced together, after the check."""
    monkeypatch.setattr(model, "LIMIT", 100)
    monkeypatch.setattr(model, "SMALL", 50)
    net, out = tmp_path / "net.prototxt", tmp_path / "model.onnx"
    net.write_text(
        'layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 9 } } }\n'
        'layer { name: "fc" type: "InnerProduct" bottom: "x" top: "y" inner_product_param { num_output: 7 } }\n'
    )
    np.save(tmp_path / "wide.npy", np.zeros((2, 8), np.float32))
    for name in ("model.onnx", "model.onnx.data"):
        (tmp_path / name).write_text("before")
    here = sorted(file.name for file in tmp_path.iterdir())
    for given in (f"x={tmp_path / 'none.png'}", f"z={tmp_path / 'wide.npy'}", f"x={tmp_path / 'wide.npy'}"):
        result = run("export", net, "-o", out, "--check", "--input", given)
        assert result.exit_code == 1 and "written:" not in result.output, result.output
    with monkeypatch.context() as patched:
        patched.setattr(agreement, "TOLERANCE", -1)
        assert run("export", net, "-o", out, "--check", "--random-weights").exit_code == 1
    assert sorted(file.name for file in tmp_path.iterdir()) == here
    assert out.read_text() == (tmp_path / "model.onnx.data").read_text() == "before"
    result = run("export", net, "-o", out, "--check", "--random-weights")
    assert result.exit_code == 0 and "PASS: every output within 0.0001" in result.output
    assert f"weights in {out}.data" in result.output
    assert sorted(file.name for file in tmp_path.iterdir()) == here and out.read_bytes() != b"before"
    assert run_model(out, {"x": np.ones((3, 9))})["y"].shape == (3, 7)


def test_a_net_without_outputs(tmp_path: Path) -> None:
    net = net_of('layer { name: "quiet" type: "Silence" bottom: "x" }', {"x": np.ones((2, 3))})
    with pytest.raises(Error, match="the net has no outputs to export"):
        export_onnx(net, tmp_path / "model.onnx")


def test_until_needs_no_input_of_a_later_layer(tmp_path: Path) -> None:
    folder = SHAPES / "rfcn"
    words = ["export", folder / "test.prototxt", folder / "shapes_rfcn.caffemodel", "-o", tmp_path / "m.onnx", "--check"]
    result = run(*words, "--until", "conv2")
    assert result.exit_code == 0 and "input data not given" in result.output and "im_info not given" not in result.output
    assert "input im_info" not in result.output


def test_the_checks_input_does_not_size_the_model(tmp_path: Path) -> None:
    net = tmp_path / "net.prototxt"
    net.write_text(
        'layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 dim: 8 dim: 5 } } }\n'
        'layer { name: "pool" type: "SPP" bottom: "x" top: "y" spp_param { pyramid_height: 2 } }\n'
    )
    np.save(tmp_path / "one.npy", np.arange(120, dtype=np.float32).reshape(1, 3, 8, 5))
    result = run("export", net, "-o", tmp_path / "model.onnx", "--check", "--input", f"x={tmp_path / 'one.npy'}")
    assert result.exit_code == 0 and "input x x_n x 3 x 8 x 5" in result.output and " y        1x15 " in result.output


def test_the_extra_is_named_where_onnx_is_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    net = net_of(CLASSIFIER, image(2, 3, 6, 7))
    export_onnx(net, tmp_path / "model.onnx")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(Error, match=f"needs onnxruntime: {re.escape(install('onnx'))}"):
        compare_with_net(net, tmp_path / "model.onnx")
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(Error, match=f"needs onnx: {re.escape(install('onnx'))}"):
        export_onnx(net, tmp_path / "model.onnx")


def test_layers_of_one_name(tmp_path: Path) -> None:
    """Caffe takes them; HED has five of the name crop."""
    text = """input: "data" input_shape { dim: 2 dim: 3 dim: 9 dim: 8 }
    layer { name: "same" type: "Power" bottom: "data" top: "a" power_param { scale: 2 } }
    layer { name: "same" type: "Power" bottom: "data" top: "b" power_param { shift: 3 } }
    layer { name: "sum" type: "Eltwise" bottom: "a" bottom: "b" top: "sum" }"""
    net = Net(parse_net(text), TEST)
    net.blobs["data"].data[...] = np.random.default_rng(1).standard_normal((2, 3, 9, 8))
    export_onnx(net, tmp_path / "model.onnx")
    found = compare_with_net(net, tmp_path / "model.onnx")
    assert [one.name for one in found] == ["sum"] and found[0].agrees
