"""minicaffe trace: the page, the table, the arrays, debug_info lines, failures."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from minicaffe import TEST, Net, set_random_seed
from minicaffe.cli import main
from minicaffe.cli.trace import statistics_cell
from minicaffe.data.images import load_image
from minicaffe.data.settings import read_settings
from minicaffe.detection.detect import detect
from minicaffe.detection.inputs import fill_inputs, start_backward
from minicaffe.detection.random_weights import make_up_weights
from minicaffe.formats.prototxt import parse_net
from minicaffe.tracing.trace import statistics

SMALL = """name: "small"
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 2 dim: 3 dim: 8 dim: 6 } } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
  convolution_param { num_output: 4 kernel_size: 3 weight_filler { type: "xavier" } } }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
layer { name: "ip" type: "InnerProduct" bottom: "conv" top: "ip" inner_product_param { num_output: 5 } }
layer { name: "prob" type: "Softmax" bottom: "ip" top: "prob" }
"""
MISFIT = (
    SMALL
    + """layer { name: "sum" type: "Eltwise" bottom: "prob" bottom: "conv" top: "sum" }
"""
)
SHAPES = Path(__file__).parents[2] / "examples" / "shapes"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["trace", *(str(a) for a in arguments)])


@pytest.fixture
def net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    Path("small.prototxt").write_text(SMALL)
    Path("misfit.prototxt").write_text(MISFIT)
    return "small.prototxt"


def document_of(page: str) -> dict[str, Any]:
    found = re.search(r'id="trace">(.*?)</script>', Path(page).read_text(encoding="utf-8"), re.S)
    assert found
    data: dict[str, Any] = json.loads(found[1])
    return data


def test_the_best_classes_of_a_classifier(net: str) -> None:
    """With a list of synsets, as classify has them, the names without their numbers; a list of another length is an error."""
    from PIL import Image

    Image.new("RGB", (30, 20), (250, 20, 30)).save("red.png")
    Path("synsets.txt").write_text("".join(f"n0000000{k} kind {k}, other name\n" for k in range(5)))
    result = run(net, "--image", "red.png", "--classes", "synsets.txt", "--npz", "arrays.npz", "-o", "trace.html")
    assert result.exit_code == 0, result.output
    data = document_of("trace.html")
    scores = np.load("arrays.npz")["data/prob"][0]
    order = np.argsort(-scores, kind="stable")
    assert [one["class"] for one in data["best_classes"]] == [f"kind {k}, other name" for k in order]
    assert [one["score"] for one in data["best_classes"]] == pytest.approx(scores[order], abs=1e-6)
    assert data["detections"] is None
    assert run(net).exit_code == 0 and document_of("trace.html")["best_classes"] is None, "numbers are no picture"
    Path("short.txt").write_text("a\n")
    result = run(net, "--classes", "short.txt")
    assert result.exit_code == 1 and "short.txt has 1 names, but the net has 5 classes" in result.output


def steps_of(data: dict[str, Any], kind: str) -> list[str]:
    return [data["layers"][step["layer"]]["name"] for step in data["steps"] if step["kind"] == kind]


def test_the_page_and_what_was_made_up(net: str) -> None:
    result = run(net)
    assert result.exit_code == 0, result.output
    assert "written: trace.html" in result.stdout
    assert "no weights given: all 2 layers" in result.stderr
    assert "1 of these layers name no weight_filler and got Gaussian values (seed 0)" in result.stderr
    assert "input data not given: standard normal values" in result.stderr
    data = document_of("trace.html")
    assert steps_of(data, "forward") == ["data", "conv", "relu", "ip", "prob"]
    assert all(step["ms"] is not None for step in data["steps"] if step["kind"] == "setup")
    assert data["notes"][:3] == [line.removeprefix("WARNING: ") for line in result.stderr.splitlines()]
    assert data["layers"][1]["place"] == "small.prototxt:3"


def test_backward_from_ones_where_there_is_no_loss(net: str) -> None:
    assert run(net, "--backward", "--out", "t.html").exit_code == 0
    data = document_of("t.html")
    assert steps_of(data, "backward")[:3] == ["prob", "ip", "relu"]
    weight = data["layers"][1]["params"][0]
    assert weight["name"] == "weight"
    assert weight["diff"]["count"] == 4 * 3 * 3 * 3


def test_arrays_are_the_nets(net: str) -> None:
    Path("in.npy").write_bytes(b"")
    np.save("in.npy", np.random.default_rng(5).standard_normal((2, 3, 8, 6)).astype(np.float32))
    set_random_seed(3)
    Net(net, TEST).save("small.caffemodel")
    result = run(net, "small.caffemodel", "--input", "data=in.npy", "--backward", "--npz", "all.npz")
    assert result.exit_code == 0, result.output
    assert not Path("trace.html").exists()
    same = Net(net, TEST, weights="small.caffemodel")
    fill_inputs(same, {"data": "in.npy"})
    same.forward()
    start_backward(same)
    same.backward()
    with np.load("all.npz") as arrays:
        expected = {f"data/{name}": blob.data for name, blob in same.blobs.items()}
        expected |= {f"diff/{name}": blob.diff for name, blob in same.blobs.items()}
        expected |= {f"weight_diff/{name}/{i}": b.diff for name, blobs in same.params.items() for i, b in enumerate(blobs)}
        assert set(arrays.files) == set(expected)
        for name, values in expected.items():
            np.testing.assert_array_equal(arrays[name], values)


def test_until_a_layer(net: str) -> None:
    result = run(net, "--until", "relu", "--text", "--backward", "--npz", "part.npz", "-o", "t.html")
    assert result.exit_code == 0, result.output
    assert "relu (backward)" in result.stdout
    assert "prob" not in result.stdout
    data = document_of("t.html")
    assert steps_of(data, "forward") == ["data", "conv", "relu"]
    assert len(data["layers"]) == 5
    with np.load("part.npz") as arrays:
        assert {"data/conv", "diff/conv", "weight_diff/conv/0"} <= set(arrays.files)
        assert not any("ip" in name for name in arrays.files)


def test_inputs_that_only_later_layers_read_are_not_asked_for(net: str) -> None:
    rois = 'input: "rois" input_shape { dim: 2 dim: 5 }\n'
    Path("more.prototxt").write_text(SMALL + rois + 'layer { name: "both" type: "Flatten" bottom: "rois" top: "flat" }\n')
    assert "input rois not given" not in run("more.prototxt", "--until", "relu", "--text").stderr
    assert "input rois not given" in run("more.prototxt", "--text").stderr


def test_weights_by_their_option_too(net: str) -> None:
    Net(net, TEST).save("w.caffemodel")
    results = [
        run(net, *words, "--text", "--npz", f"{i}.npz")
        for i, words in enumerate((["w.caffemodel"], ["--weights", "w.caffemodel"]))
    ]
    assert all(result.exit_code == 0 and "no weights given" not in result.stderr for result in results)


def test_a_layer_that_is_not_there(net: str) -> None:
    result = run(net, "--until", "rellu")
    assert result.exit_code == 1
    assert 'the net has no layer "rellu"; did you mean "relu"?' in result.stderr
    assert not Path("trace.html").exists()


def test_the_table(net: str) -> None:
    result = run(net, "--text")
    assert result.exit_code == 0
    line = next(line for line in result.stdout.splitlines() if "Convolution" in line)
    assert re.fullmatch(r" *conv +Convolution +conv 2x4x6x4 +[\d.]+ +-?[\d.e-]+ / -?[\d.e-]+ / [\d.e-]+", line)
    assert not Path("trace.html").exists()


def test_nan_is_loud_in_the_table(net: str) -> None:
    values = np.zeros((2, 3, 8, 6), np.float32)
    values[1, 1, 1, 1] = np.nan
    np.save("in.npy", values)
    result = run(net, "--text", "--input", "data=in.npy")
    assert "!! 1 NaN, 0 inf of 288" in result.stdout
    assert 'WARNING: not a number: first in forward of layer "data": data and 4 more' in result.stderr


def test_cells_of_the_table() -> None:
    assert statistics_cell(statistics(np.zeros((0, 3), np.float32))) == "empty"
    assert statistics_cell(statistics(np.array([1, 2, 6], np.float32))) == "1 / 3 / 6"


@pytest.mark.skipif(sys.platform == "win32", reason="no pseudo-terminals")
def test_on_a_terminal_the_table_grows_and_is_whole_at_the_end(net: str) -> None:
    import pty

    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "minicaffe", "trace", net, "--text"]
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": "100", "LINES": "12"}
    with subprocess.Popen(command, stdout=theirs, stderr=subprocess.DEVNULL, env=environment) as process:
        os.close(theirs)
        shown = b""
        with contextlib.suppress(OSError):  # the end of a pseudo-terminal
            while part := os.read(ours, 65536):
                shown += part
        os.close(ours)
        assert process.wait() == 0
    text = shown.decode()
    assert text.count("Convolution") > 2
    assert all(name in text[text.rindex("small (TEST)") :] for name in ("data", "conv", "relu", "ip", "prob"))


def test_debug_info_lines(net: str) -> None:
    result = run(net, "--debug-info", "--backward")
    assert result.exit_code == 0
    assert re.search(r"\[Forward\] Layer conv, top blob conv data: ", result.stderr)
    assert re.search(r"\[Backward\] Layer conv, param blob 0 diff: ", result.stderr)
    assert not Path("trace.html").exists()


# Failures.


def test_a_net_that_cannot_be_made_is_shown_up_to_its_layer(net: str) -> None:
    result = run("misfit.prototxt")
    assert result.exit_code == 1
    assert 'Eltwise layer "sum"' in result.stderr
    assert "written, up to the layer that failed: trace.html" in result.stderr
    data = document_of("trace.html")
    assert data["layers"][data["error"]["layer"]]["name"] == "sum"
    assert data["error"]["way"] == "reshape"
    assert steps_of(data, "reshape")[-1] == "prob"
    assert 'layer "sum"' in data["error"]["message"]


def test_a_net_that_fails_while_it_runs_is_shown_up_to_its_layer(net: str) -> None:
    Path("bad.py").write_text(
        "import minicaffe\n"
        "class Bad(minicaffe.Layer):\n"
        "    def reshape(self, bottom, top):\n        top[0].reshape(1)\n"
        "    def forward(self, bottom, top):\n        raise KeyError('no such thing')\n"
    )
    Path("bad.prototxt").write_text(
        SMALL + 'layer { name: "bad" type: "Python" bottom: "prob" top: "bad" python_param { module: "bad" layer: "Bad" } }\n'
    )
    result = run("bad.prototxt", "--allow-module", "bad", "--text", "-o", "t.html")
    assert result.exit_code == 1
    assert "minicaffe: Python layer \"bad\": forward: KeyError('no such thing')" in result.stderr
    assert "Softmax" in result.stdout
    data = document_of("t.html")
    assert data["error"]["way"] == "forward"
    assert steps_of(data, "forward")[-1] == "prob"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--input", "dat=x.npy"], '"dat" is not an input of the net'),
        (["--input", "data"], "write it as BLOB=FILE"),
        (["--image", "no.png"], "no.png: no such file"),
        (["--shape", "data=1,x"], "write it as BLOB=N,C,H,W"),
        (["-o", "no/where.html"], "there is no folder"),
        (["--npz", "no/where.npz"], "there is no folder"),
        (["--device", "tpu"], "--device tpu: give cpu, gpu, gpu:N or auto"),
    ],
)
def test_bad_input_is_one_message(net: str, arguments: list[str], message: str) -> None:
    result = run(net, *arguments)
    assert result.exit_code == 1
    assert message in result.stderr
    assert not Path("trace.html").exists()


def test_an_image_for_a_net_that_takes_none(net: str) -> None:
    Path("flat.prototxt").write_text('layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 } } }')
    result = run("flat.prototxt", "--image", "a.png")
    assert result.exit_code == 1
    assert "the net has no input for an image; its inputs are x" in result.stderr


def test_weights_that_no_filler_gives_are_made_up() -> None:
    net = Net(parse_net(SMALL), TEST)
    before = net.params["conv"][0].data.copy()
    assert make_up_weights(net, ["conv", "ip"], 7).startswith("1 of these layers")
    np.testing.assert_array_equal(net.params["conv"][0].data, before)
    assert net.params["ip"][0].data.std() == pytest.approx((2 / (4 * 6 * 4)) ** 0.5, rel=0.1)
    assert not net.params["ip"][1].data.any()
    assert make_up_weights(net, ["conv", "ip"], 7) == ""


@pytest.mark.parametrize("kind", ['type: "BatchNorm"', 'type: "BN" bn_param { momentum: 0.9 }'])
def test_statistics_that_no_file_gives_are_made_up(kind: str) -> None:
    net = Net(parse_net(SMALL + f'layer {{ name: "bn" {kind} bottom: "prob" top: "bn" }}'), TEST)
    assert make_up_weights(net, ["bn"], 7) == "1 layers got statistics: mean 0, variance 1"
    fill_inputs(net, {})
    net.forward()
    np.testing.assert_allclose(net.blobs["bn"].data, net.blobs["prob"].data, rtol=1e-4)


# Detections.


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["rfcn", "faster_rcnn"])
def test_detections_are_detects_in_pixels_of_the_photo(net: str, kind: str) -> None:
    folder, cfg = SHAPES / kind, SHAPES / "shapes.yml"
    weights, photo = folder / f"shapes_{kind}.caffemodel", SHAPES / "scene.png"
    result = run(folder / "test.prototxt", weights, "--image", photo, "--cfg", cfg)
    assert result.exit_code == 0, result.output
    data = document_of("trace.html")
    loaded = Net(folder / "test.prototxt", TEST, weights=weights, settings=read_settings(cfg))
    image = load_image(photo)
    found = detect(loaded, image, threshold=0, max_detections=200)
    scale = float(loaded.blobs["im_info"].data[0, 2])
    assert len(found) > 20 and found.scores.min() < 0.1, "the page's slider starts at 0"
    assert [item["class_index"] for item in data["detections"]] == found.classes.tolist()
    np.testing.assert_allclose([item["box"] for item in data["detections"]], found.boxes, atol=0.051)
    picture = data["image"]
    assert picture["photo"] * picture["width"] == pytest.approx(image.shape[1])
    assert data["net"]["weights"] == [str(weights)]
    assert picture["scale"] * picture["width"] == pytest.approx(image.shape[1] * scale)
    kinds = {layer["roi"]["kind"] for layer in data["layers"] if layer["roi"]}
    assert kinds == ({"psroi_bins"} if kind == "rfcn" else {"max_bins"})


def shapes(*more: object) -> Result:
    folder = SHAPES / "rfcn"
    weights = folder / "shapes_rfcn.caffemodel"
    return run(folder / "test.prototxt", weights, "--image", SHAPES / "scene.png", "--cfg", SHAPES / "shapes.yml", *more)


def test_the_gradients_are_of_what_was_asked_for_and_the_page_says_so(net: str) -> None:
    result = shapes("--classes", SHAPES / "classes.txt", "--seed-gradient", "detection:1")
    assert result.exit_code == 0, result.output
    data = document_of("trace.html")
    best = data["detections"][1]
    assert best["class"] == "square"
    assert data["net"]["gradient"].startswith(f"the score of detection 1, square {best['score']:.4f}: cls_prob[")
    assert steps_of(data, "backward")[0] == "cls_prob_reshape", "the boxes' branch takes no part"
    assert shapes("--backward", "--until", "conv5").exit_code == 0
    assert document_of("trace.html")["net"]["gradient"] == "the sum of conv5"
    assert shapes("--until", "psroipooled_cls_rois").exit_code == 0
    data = document_of("trace.html")
    assert data["detections"] is None, "the boxes of the rois that there are have not been computed"
    assert data["net"]["gradient"] == ""


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--seed-gradient", "detection:1000", "the image has 90 detections: give detection:0 for the best one"),
        ("--seed-gradient", "detection:x", "the image has 90 detections"),
        ("--seed-gradient", "loss", "no layer of the net has a loss; give loss, ones or detection:K"),
        ("--roidb", "roidb.json", "no layer of the net reads a roidb"),
        ("--classes", "none.txt", "none.txt"),
    ],
)
def test_what_the_net_does_not_have(net: str, option: str, value: str, message: str) -> None:
    result = shapes(option, value)
    assert result.exit_code == 1
    assert message in result.stderr


@pytest.mark.slow
def test_a_training_net_takes_its_images_from_a_roidb(net: str) -> None:
    Path("scene.png").write_bytes((SHAPES / "scene.png").read_bytes())
    images = [{"image": "scene.png", "boxes": [[243, 40, 398, 196]], "classes": ["square"]}]
    classes = ["__background__", "circle", "square", "triangle"]
    Path("roidb.json").write_text(json.dumps({"classes": classes, "images": images}))
    weights, cfg = SHAPES / "rfcn" / "shapes_rfcn.caffemodel", SHAPES / "shapes.yml"
    result = run(
        SHAPES / "rfcn/train.prototxt", weights, "--phase", "TRAIN", "--cfg", cfg, "--roidb", "roidb.json", "--backward"
    )
    assert result.exit_code == 0, result.output
    data = document_of("trace.html")
    assert data["net"]["gradient"].startswith("the losses ")
    assert "conv1" in steps_of(data, "backward")


def test_long_traces_say_where_they_are(net: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minicaffe.cli.trace.EVERY", 0.0)
    lines = run(net, "--backward").stderr.splitlines()
    assert "setup of data: step 1" in lines
    assert "forward of prob: step 20 of 20" in lines
    assert "backward of conv: step 24 of 25" in lines
