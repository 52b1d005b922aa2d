"""The command line: each command on small nets made here, its output, its files, its errors (one message, status 1)."""

from __future__ import annotations

import errno
import json
import os
import re
import stat
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from click.testing import CliRunner, Result
from detecting import DETECTOR
from PIL import Image

from minicaffe import Net, set_random_seed
from minicaffe.cli import COMMANDS, main
from minicaffe.formats.prototxt import parse_net
from minicaffe.mode import TEST
from minicaffe.proto import caffe_pb2

CLASSIFIER = """name: "small"
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 2 dim: 3 dim: 8 dim: 6 } } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
  convolution_param { num_output: 4 kernel_size: 3 weight_filler { type: "xavier" } } }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
layer { name: "ip" type: "InnerProduct" bottom: "conv" top: "ip"
  inner_product_param { num_output: 5 weight_filler { type: "xavier" } } }
layer { name: "prob" type: "Softmax" bottom: "ip" top: "prob" }
"""


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(a) for a in arguments])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a classifier and a detector, their weights, and two pictures."""
    monkeypatch.chdir(tmp_path)
    set_random_seed(1)
    for name, text in (("small", CLASSIFIER), ("detector", DETECTOR)):
        (tmp_path / f"{name}.prototxt").write_text(text)
        Net(f"{name}.prototxt", TEST).save(f"{name}.caffemodel")
    (tmp_path / "photos").mkdir()
    pixels = np.random.default_rng(2).integers(0, 255, (48, 72, 3), dtype=np.uint8)
    for name in ("one.png", "two.jpg"):
        Image.fromarray(pixels).save(tmp_path / "photos" / name)
    np.save("boxes.npy", np.array([[3, 4, 40, 30], [10, 8, 60, 44], [0, 0, 71, 47.0]]))
    return tmp_path


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_an_example(command: str) -> None:
    result = run(command, "--help")
    assert result.exit_code == 0
    assert re.search(rf"Example:\s+minicaffe {command}", result.output)


def test_layers_lists_the_catalogue() -> None:
    lines = run("layers").output.splitlines()
    assert any(re.match(r"ROIPooling +\S", line) for line in lines)
    assert all(len(line.split()) > 1 for line in lines)
    assert not any("see the module" in line or "of its own" in line for line in lines)


def test_summary_counts(folder: Path) -> None:
    result = run("summary", "small.prototxt")
    assert result.exit_code == 0, result.output
    assert re.search(r"^ *conv +Convolution +conv 2x4x6x4 +112 +5\.18 k +0\.00", result.output, re.M)
    # 4*3*3*3 + 4 + 5*96 + 5 parameters; 2*4*6*4 windows of 27 and 2*5 products of 96
    assert "5 layers, 597 parameters" in result.output
    assert f"{(192 * 27 + 10 * 96) / 1000:.2f} k multiply-adds" in result.output


def test_summary_takes_another_shape(folder: Path) -> None:
    assert "data 7x3x8x6" in run("summary", "small.prototxt", "--shape", "data=7,3,8,6").output
    assert "the net's inputs are data" in run("summary", "small.prototxt", "--shape", "image=1,3,8,6").output
    assert "write it as BLOB=N,C,H,W" in run("summary", "small.prototxt", "--shape", "data=one").output


def test_a_table_cuts_names_without_an_end(folder: Path) -> None:
    text = (folder / "small.prototxt").read_text()
    (folder / "long.prototxt").write_text(text.replace('"conv"', '"conv' + "v" * 100_000 + '"', 1))
    result = run("summary", "long.prototxt")
    assert "99,004 characters" in result.stdout
    assert len(result.stdout) < 10_000


def test_run_prints_and_writes(folder: Path) -> None:
    x = np.random.default_rng(3).standard_normal((2, 3, 8, 6)).astype(np.float32)
    np.save("x.npy", x)
    result = run("run", "small.prototxt", "small.caffemodel", "--input", "data=x.npy", "--out", "out.npz", "--backward")
    assert result.exit_code == 0, result.output
    assert "WARNING" not in result.output
    assert "backward ms" in result.output
    net = Net("small.prototxt", TEST, weights="small.caffemodel")
    with np.load("out.npz") as out:
        np.testing.assert_array_equal(out["prob"], net.forward(data=x)["prob"])
        assert out["conv.0.diff"].shape == (4, 3, 3, 3)


def test_run_says_what_is_made_up(folder: Path) -> None:
    result = run("run", "small.prototxt")
    assert "no weights given: all 2 layers with parameters start from their fillers (seed 0)" in result.output
    assert "input data not given: standard normal values of shape (2, 3, 8, 6)" in result.output


@pytest.mark.parametrize("im_info", [True, False])
def test_run_subtracts_the_mean_given(folder: Path, im_info: bool) -> None:
    Image.new("RGB", (12, 9), (30, 20, 10)).save("plain.png")
    text = 'input: "data" input_shape { dim: 1 dim: 3 dim: 9 dim: 12 } layer { name: "s" type: "Silence" bottom: "data" }'
    more = 'input: "im_info" input_shape { dim: 1 dim: 3 } layer { name: "t" type: "Silence" bottom: "im_info" }'
    (folder / "input.prototxt").write_text(text + more * im_info)
    assert "-0.5 / -0.3333 / 0 " in run("run", "input.prototxt", "--input", "data=plain.png", "--mean", "10.5,20.5,30").output


def test_run_backward_in_a_net_without_a_loss(folder: Path) -> None:
    (folder / "scores.prototxt").write_text(CLASSIFIER.partition('layer { name: "prob"')[0])
    result = run("run", "scores.prototxt", "small.caffemodel", "--backward", "--out", "out.npz")
    assert result.exit_code == 0, result.output
    with np.load("out.npz") as out:
        np.testing.assert_array_equal(out["ip.1.diff"], np.full(5, 2.0))
        assert np.abs(out["data.diff"]).max() > 0


def test_run_keeps_both_of_two_arrays_of_one_name(folder: Path) -> None:
    """The output ip.1.diff, and what backward gives the weight that is written under that name."""
    text = CLASSIFIER.partition('layer { name: "prob"')[0].replace('top: "ip"', 'top: "ip.1.diff"')
    (folder / "scores.prototxt").write_text(text)
    result = run("run", "scores.prototxt", "small.caffemodel", "--backward", "--out", "out.npz")
    assert result.exit_code == 0, result.output
    with np.load("out.npz") as out:
        assert out["ip.1.diff"].shape == (2, 5)
        np.testing.assert_array_equal(out["ip.1.diff#2"], np.full(5, 2.0))


def test_run_takes_an_image(folder: Path) -> None:
    result = run("run", "small.prototxt", "small.caffemodel", "--input", "data=photos/one.png", "--mean", "1,2,3")
    assert result.exit_code == 0, result.output
    assert "output prob 2x5" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "absent.prototxt"], "absent.prototxt"),
        (["run", "small.prototxt", "absent.caffemodel"], "absent.caffemodel"),
        (["run", "small.prototxt", "--input", "data"], "write it as BLOB=FILE"),
        (["run", "small.prototxt", "--input", "image=x.npy"], '"image" is not an input of the net; its inputs are data'),
        (["run", "small.prototxt", "--input", "data=small.prototxt.npy"], "small.prototxt.npy"),
        (["run", "small.prototxt", "--mean", "1,2", "--input", "data=photos/one.png"], "give 3 numbers"),
        (["run", "small.caffemodel", "small.prototxt"], "small.caffemodel"),
        (["run", "small.prototxt", "small.prototxt"], "small.prototxt"),
        (
            ["detect", "small.prototxt", "small.caffemodel", "photos"],
            "a detector's inputs are data and im_info, or data and rois",
        ),
        (
            ["detect", "detector.prototxt", "detector.caffemodel", "photos/one.png"],
            "this net takes rois: give it proposals, boxes (R, 4) in pixels of the image (--proposals)",
        ),
        (["detect", "detector.prototxt", "detector.caffemodel", "photos/none.png"], "photos/none.png: no such file"),
        (["detect", "detector.prototxt", "detector.caffemodel", "."], "no images in this folder"),
        (["test", "small.prototxt", "small.caffemodel", "--iterations", "0"], "--iterations must be at least 1"),
        (["train", "absent.prototxt"], "absent.prototxt"),
        (["upgrade", "absent.prototxt", "out.prototxt"], "absent.prototxt"),
        (["upgrade", "absent.caffemodel", "out.caffemodel"], "minicaffe: absent.caffemodel: no such file"),
        (["upgrade", "small.caffemodel.h5", "out"], "small.caffemodel.h5: HDF5 weights have only one format"),
        (["upgrade", "small.prototxt", ""], "the name is empty: is a variable of the shell unset?"),
        (["upgrade", "small.prototxt", "photos"], "photos: cannot be written: Is a directory"),
        (["run", "small.prototxt", "--input", "data=absent.png"], 'input "data": absent.png: no such file'),
        (["run", "detector.prototxt", "--input", "rois=photos"], 'input "rois": photos: this is a folder'),
        (["run", "small.prototxt", "--input", "data="], 'input "data": its file, of which no name is given: no such file'),
        (
            ["run", "small.prototxt", "--input", "data=small.prototxt"],
            "small.prototxt: cannot read the image: not an image, or",
        ),
        (["run", "small.prototxt", "--out", "photos"], "--out photos: this is a folder; give the name of a file"),
        (["run", "small.prototxt", "--out", "no/where.npz"], "--out no/where.npz: there is no folder"),
        (["run", "small.prototxt", "--mean", "1,nan,2", "--input", "data=photos/one.png"], "--mean 1,nan,2: give 3 numbers"),
        (
            ["summary", "small.prototxt", "--cfg", "absent.yml"],
            "absent.yml: no such file",
        ),
        (
            ["summary", "small.prototxt", "--cfg", "small.caffemodel"],
            "not a text file: save it as UTF-8",
        ),
        (["train", "a" * 300], "cannot be read: File name too long"),
        (["time", "small.prototxt", "--weights", "a" * 300], "cannot be read: File name too long"),
        (["train", "solver.prototxt", "--out", "no/where"], "--out no/where: there is no folder"),
        (["train", "solver.prototxt", "--log", "photos"], "--log photos: this is a folder; give the name of a file"),
        (
            ["train", "solver.prototxt", "--snapshot", "a_iter_2.caffemodel"],
            "a_iter_2.caffemodel: give the .solverstate in the same folder",
        ),
        (
            ["train", "solver.prototxt", "--weights", "a_iter_2.solverstate"],
            "a_iter_2.solverstate: give the .caffemodel in the same folder",
        ),
        (["script", "small.caffemodel"], "small.caffemodel: this is a binary file, not a Python script"),
        (["compute-image-mean", "photos"], "photos: not an LMDB, which is a folder with a file data.mdb, or that file"),
        (
            ["extract-features", "small.caffemodel", "small.prototxt", "ip,prob", "a,a", "1"],
            "a,a: each blob needs another database",
        ),
    ],
)
def test_errors_are_one_message_and_status_1(folder: Path, arguments: list[str], message: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 1, result.output
    assert message in result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "small.prototxt", "--level", "99999999999"], "99999999999 is not in the range"),
        (["upgrade", "--solver", "small.caffemodel", "out"], "--solver is for a solver prototxt, but small.caffemodel"),
        (["upgrade", "--solver", "--binary", "small.prototxt", "out"], "--solver is for a solver prototxt"),
        *(
            (["detect", "detector.prototxt", "detector.caffemodel", "photos", option, value], said)
            for option, value, said in (
                ("--threshold", "nan", "nan is not a finite number"),
                ("--nms", "-1", "-1.0 is not in the range"),
                ("--nms", "nan", "nan is not a finite number"),
                ("--nms", "x", "'--nms': x is not a number: give one from 0 to 1"),
                ("--scale-factor", "x", "'--scale-factor': x is not a number: give one above 0"),
                ("--scale", "0", "'--scale': 0 is not in the range"),
                ("--max-size", "0", "'--max-size': 0 is not in the range"),
                ("--scale-factor", "0", "0.0 is not in the range"),
                ("--scale-factor", "inf", "inf is not a finite number"),
                ("--max-detections", "0", "0 is not in the range"),
            )
        ),
    ],
)
def test_values_that_no_option_can_have(folder: Path, arguments: list[str], message: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert message in result.output


@pytest.mark.parametrize(
    ("array", "found"),
    [
        (np.zeros((2, 5)), "float64 of shape (2, 5)"),
        (np.zeros(3, np.float32), "float32 of shape (3,)"),
        (np.array(["a"]), "<U1 of shape (1,)"),
        (np.zeros((1, 4), complex), "complex128 of shape (1, 4)"),
    ],
)
def test_proposals_of_another_kind(folder: Path, array: np.ndarray, found: str) -> None:
    np.save("other.npy", array)
    result = run("detect", "detector.prototxt", "detector.caffemodel", "photos/one.png", "--proposals", "other.npy")
    assert result.exit_code == 1
    assert f"other.npy: proposals must be x1, y1, x2, y2 of shape (R, 4), got {found}" in result.output


def test_proposals_in_an_archive(folder: Path) -> None:
    np.savez("other.npz", np.zeros((1, 4)))
    result = run("detect", "detector.prototxt", "detector.caffemodel", "photos/one.png", "--proposals", "other.npz")
    assert result.exit_code == 1
    assert "other.npz: an .npz of several arrays; give a .npy of one array" in result.output


def test_images_in_no_folder(folder: Path) -> None:
    (folder / "train.prototxt").write_text(
        'layer { name: "roi_data" type: "RoIData" top: "data" top: "im_info" top: "gt_boxes"\n'
        """python_param { param_str: "'num_classes': 4" } }\n"""
        'layer { name: "rest" type: "Silence" bottom: "data" bottom: "im_info" bottom: "gt_boxes" }\n'
    )
    (folder / "solver.prototxt").write_text('train_net: "train.prototxt" base_lr: 0.1 lr_policy: "fixed" max_iter: 1\n')
    result = run("train", "solver.prototxt", "--roidb", "roidb.json", "--images", "gone")
    assert result.exit_code == 1 and "--images gone: no such folder" in result.output
    result = run("train", "solver.prototxt", "--roidb", "photos")
    assert result.exit_code == 1 and "photos: not a PASCAL VOC folder" in result.output


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names here")
def test_an_output_that_is_no_file_is_written_to_and_stays(folder: Path) -> None:
    os.mkfifo("pipe")
    with subprocess.Popen(["cat", "pipe"], stdout=subprocess.PIPE) as reader:
        result = run("upgrade", "small.prototxt", "pipe")
        assert result.exit_code == 0, result.output
        assert b'type: "InnerProduct"' in reader.communicate(timeout=60)[0]
    assert stat.S_ISFIFO(os.stat("pipe").st_mode)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names here")
def test_an_output_that_is_no_file_and_is_full(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo("pipe")
    monkeypatch.setattr(
        "minicaffe.files.shutil.copyfileobj", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
    )
    with subprocess.Popen(["cat", "pipe"]) as reader:
        result = run("upgrade", "small.prototxt", "pipe")
        assert result.exit_code == 1 and "pipe: cannot be written: No space left on device" in result.output
        reader.wait(timeout=60)


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="there is no /dev/full here")
def test_a_log_on_a_full_disk(folder: Path) -> None:
    (folder / "train.prototxt").write_text(TRAIN)
    (folder / "solver.prototxt").write_text('net: "train.prototxt" base_lr: 0.1 lr_policy: "fixed" max_iter: 2\n')
    result = run("train", "solver.prototxt", "--log", "/dev/full")
    assert result.exit_code == 1 and "/dev/full: the log cannot be written: No space left on device" in result.output


def test_an_output_in_a_folder_that_cannot_be_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minicaffe.cli.common.os.access", Mock(return_value=False))
    (folder / "old.npz").touch()  # another file takes its name
    for out in ("photos/out.npz", "old.npz"):
        result = run("run", "small.prototxt", "--out", out)
        assert result.exit_code == 1 and f"--out {out}: no permission to write into " in result.output
        assert "forward" not in result.output
    for given in ("photos", "new/folder"):
        result = run("segment", "small.prototxt", "small.prototxt", "photos", "--out", given)
        place = folder / "photos" if given == "photos" else folder
        assert result.exit_code == 1 and f"--out {given}: no permission to write into {place}: give" in result.output
    assert "forward" in run("run", "small.prototxt", "--out", os.devnull).output


def test_a_log_in_a_folder_that_cannot_be_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It grows: where it is there, its folder does not matter."""
    (folder / "train.prototxt").write_text(TRAIN)
    (folder / "solver.prototxt").write_text('net: "train.prototxt" base_lr: 0.1 lr_policy: "fixed" max_iter: 1\n')
    (folder / "old.log").touch()
    monkeypatch.setattr("minicaffe.cli.common.os.access", lambda path, mode: not os.path.isdir(path))
    assert "new.log: no permission to write into" in run("train", "solver.prototxt", "--log", "new.log").output
    assert run("train", "solver.prototxt", "--log", "old.log").exit_code == 0


def test_a_folder_that_is_no_leveldb(folder: Path) -> None:
    result = run("compute-image-mean", "photos", "--backend", "leveldb")
    assert result.exit_code == 1 and "photos: not a LevelDB, which is a folder with a file CURRENT" in result.output


def test_a_link_stays_and_what_it_leads_to_is_replaced(folder: Path) -> None:
    (folder / "kept.prototxt").write_text("old")
    (folder / "link.prototxt").symlink_to("kept.prototxt")
    assert run("upgrade", "small.prototxt", "link.prototxt").exit_code == 0
    assert (folder / "link.prototxt").is_symlink()
    assert (folder / "kept.prototxt").read_text().startswith('name: "small"')


@pytest.mark.skipif(os.name == "nt", reason="pipes end otherwise there")
def test_a_reader_that_goes_away_is_no_error() -> None:
    command = [sys.executable, "-m", "minicaffe", "forks"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""


def test_debug_shows_the_traceback(folder: Path) -> None:
    result = run("--debug", "run", "absent.prototxt")
    assert result.exit_code == 1
    assert "Traceback" in result.output


def test_detect_prints_draws_and_gives_json(folder: Path) -> None:
    arguments = ["detect", "detector.prototxt", "detector.caffemodel", "photos", "--proposals", "boxes.npy"]
    (folder / "names.txt").write_text("circle\nsquare\ntriangle\n")
    lines = run(*arguments, "--threshold", "0", "--draw", "drawn", "--classes", "names.txt")
    assert lines.exit_code == 0, lines.output
    assert re.search(r"photos/one.png: \d+ detections in", lines.output)
    assert re.search(r"(circle|square|triangle) +0\.\d+  x1 +\d", lines.output)
    assert {p.name for p in (folder / "drawn").iterdir()} == {"one.png", "two.png"}
    with Image.open(folder / "drawn" / "one.png") as drawn:
        assert drawn.size == (72, 48)
    parsed = json.loads(run(*arguments, "--threshold", "0", "--json").stdout)
    assert [entry["image"] for entry in parsed] == ["photos/one.png", "photos/two.jpg"]
    assert set(parsed[0]["detections"][0]) == {"class", "class_index", "score", "box"}


def test_detect_says_when_the_class_names_do_not_fit(folder: Path) -> None:
    (folder / "names.txt").write_text("circle\nsquare\n")
    arguments = ["detect", "detector.prototxt", "detector.caffemodel", "photos", "--proposals", "boxes.npy"]
    result = run(*arguments, "--classes", "names.txt")
    assert result.exit_code == 1 and "names.txt: 3 classes with the background, but cls_prob has 4" in result.stderr


def test_detect_names_the_image_without_proposals(folder: Path) -> None:
    result = run("detect", "detector.prototxt", "detector.caffemodel", "photos/one.png", "--proposals", "photos")
    assert result.exit_code == 1
    assert "photos/one.npy: no such file" in result.output


def test_a_bad_image_does_not_lose_the_others(folder: Path) -> None:
    (folder / "photos" / "broken.png").write_bytes(b"no picture")
    result = run("detect", "detector.prototxt", "detector.caffemodel", "photos", "--proposals", "boxes.npy")
    assert result.exit_code == 1
    assert "photos/broken.png" in result.output
    assert "1 of 3 images failed" in result.output
    assert "photos/two.jpg: " in result.output


def test_results_are_not_saved_in_a_form_that_is_none(folder: Path) -> None:
    arguments = ["detect", "detector.prototxt", "detector.caffemodel", "photos", "--proposals", "boxes.npy"]
    result = run(*arguments, "--save", "found.xml")
    assert result.exit_code == 1 and "found.xml: results are written as .json, .csv, or a folder" in result.stderr
    assert not (folder / "found.xml").exists()


def test_a_bad_image_is_named_once(folder: Path) -> None:
    result = run("detect", "detector.prototxt", "detector.caffemodel", "small.prototxt", "photos", "--proposals", "boxes.npy")
    assert "minicaffe: small.prototxt: cannot read the image: not an image" in result.stderr


def test_pictures_drawn_replace_neither_inputs_nor_each_other(folder: Path) -> None:
    (folder / "one.jpg").write_bytes((folder / "photos" / "two.jpg").read_bytes())
    photo = (folder / "photos" / "one.png").read_bytes()
    images = ("photos/one.png", "one.jpg", "photos/two.jpg")
    arguments = ["detect", "detector.prototxt", "detector.caffemodel", *images, "--proposals", "boxes.npy", "--draw", "photos"]
    for _ in range(2):  # the second time, pictures of the first are replaced
        result = run(*arguments)
        assert re.findall("drawn: (.*)", result.stdout) == ["photos/one-2.png", "photos/one-3.png", "photos/two.png"]
    assert (folder / "photos" / "one.png").read_bytes() == photo
    assert re.findall("drawn: (.*)", run(*arguments, "--json").stderr)[0] == "photos/one-2.png"


@pytest.mark.parametrize(
    ("draw", "said"),
    [("boxes.npy", "this is a file"), ("boxes.npy/in/it", "boxes.npy is a file")],
)
def test_pictures_go_to_a_folder(folder: Path, draw: str, said: str) -> None:
    result = run("detect", "absent.prototxt", "detector.caffemodel", "photos", "--draw", draw)
    assert result.exit_code == 1
    assert result.stderr.startswith(f"minicaffe: --draw {draw}: ")
    assert result.stderr.endswith(f"{said}; give the name of a folder\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["dump", "W", "-o", "W"], "--out W: this is an input, and"),
        (["dump", "W", "-o", "LINK"], "--out LINK: this is an input (W), and"),
        (["run", "N", "W", "--out", "W"], "--out W: this is an input, and"),
        (["run", "N", "W", "--out", "./N"], "--out ./N: this is an input (N), and"),
        (["run", "N", "--input", "data=boxes.npy", "--out", "boxes.npy"], "--out boxes.npy: this is an input, and"),
        (["trace", "N", "W", "-o", "N"], "--out N: this is an input, and"),
        (["trace", "N", "--image", "photos/one.png", "--npz", "photos/one.png"], "--npz photos/one.png: this is an input, and"),
        (["trace", "N", "-o", "a", "--npz", "./a"], "--npz ./a: --out names this file too"),
        (["rescue", "W", "-o", "W"], "--out W: this is an input, and"),
        (["retarget", "N", "--classes", "3", "--out", "N"], "--out N: this is an input, and"),
        (["export", "N", "W", "-o", "W"], "--out W: this is an input, and"),
        (["compute-image-mean", "N", "N"], "OUT N: this is an input, and"),
        (["draw", "N", "-o", "N"], "--out N: this is an input, and"),
        (["merge-bn", "N", "W", "-o", "N", "a"], "--out N: this is an input, and"),
        (["merge-bn", "N", "W", "-o", "a", "W"], "--out W: this is an input, and"),
        (["merge-bn", "N", "W", "-o", "a", "a"], "--out a: --out names this file too"),
        (["train", "N", "--weights", "W", "--out", "W"], "--out W: this is an input, and"),
        (["train", "N", "--log", "N"], "--log N: this is an input, and"),
        (["train", "N", "--out", "a", "--log", "a"], "--log a: --out names this file too"),
    ],
)
def test_no_input_is_replaced(folder: Path, arguments: list[str], said: str) -> None:
    """N a prototxt, W weights; the error comes before either is read."""
    for name in ("N", "W"):
        (folder / name).write_text("no prototxt, and no weights")
    (folder / "LINK").symlink_to("W")
    before = {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}
    result = run(*arguments)
    assert result.exit_code == 1
    assert result.output.startswith(f"minicaffe: {said}") and result.output.endswith("; give another name\n")
    assert {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()} == before


def test_outputs_may_go_to_one_device(folder: Path) -> None:
    assert run("trace", "small.prototxt", "-o", os.devnull, "--npz", os.devnull).exit_code == 0


def test_upgrade_in_place(folder: Path) -> None:
    (folder / "old.prototxt").write_text('layers { name: "relu" type: RELU bottom: "a" top: "b" }')
    assert run("upgrade", "old.prototxt", "old.prototxt").exit_code == 0
    assert 'type: "ReLU"' in (folder / "old.prototxt").read_text()


def test_test_averages(folder: Path) -> None:
    np.save("x.npy", np.ones((2, 3, 8, 6), np.float32))
    result = run("test", "small.prototxt", "small.caffemodel", "--iterations", "3", "--input", "data=x.npy")
    assert result.exit_code == 0, result.output
    net = Net("small.prototxt", TEST, weights="small.caffemodel")
    first = net.forward(data=np.ones((2, 3, 8, 6)))["prob"][0, 0]
    assert f"prob[0] = {first:.4g}"[:-1] in result.output
    assert "means over 3 iterations; the net has no loss" in result.output


def test_upgrade_writes_todays_format(folder: Path) -> None:
    (folder / "old.prototxt").write_text(
        'input: "data" input_dim: 1 input_dim: 3 input_dim: 5 input_dim: 4\n'
        'layers { name: "ip" type: INNER_PRODUCT bottom: "data" top: "ip" blobs_lr: 2 inner_product_param { num_output: 7 } }\n'
    )
    result = run("upgrade", "old.prototxt", "new.prototxt")
    assert result.exit_code == 0, result.output
    text = (folder / "new.prototxt").read_text()
    assert 'type: "InnerProduct"' in text
    assert "lr_mult: 2" in text
    assert Net("new.prototxt", TEST).forward()["ip"].shape == (1, 7)


TRAIN = """name: "line"
layer { name: "data" type: "DummyData" top: "x" top: "t" dummy_data_param { shape { dim: 6 dim: 3 } shape { dim: 6 dim: 1 }
  data_filler { type: "gaussian" std: 1 } data_filler { type: "constant" value: 0.5 } } }
layer { name: "ip" type: "InnerProduct" bottom: "x" top: "y" inner_product_param {
  num_output: 1 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "EuclideanLoss" bottom: "y" bottom: "t" top: "loss" }
"""


def test_train_needs_iterations_and_writes_weights(folder: Path) -> None:
    (folder / "train.prototxt").write_text(TRAIN)
    (folder / "solver.prototxt").write_text(
        'train_net: "train.prototxt" base_lr: 0.1 lr_policy: "fixed" momentum: 0.9 snapshot_prefix: "out/line" display: 20\n'
    )
    result = run("train", "solver.prototxt")
    assert result.exit_code == 1
    assert "iterations" in result.output
    result = run("train", "solver.prototxt", "--iterations", "300", "--out", "line.caffemodel", "--seed", "4")
    assert result.exit_code == 0, result.output
    assert result.output.startswith("net: train.prototxt (line)\n")
    assert "iteration 300: loss" in result.output
    weight, bias = Net("train.prototxt", TEST, weights="line.caffemodel").params["ip"]
    assert abs(float(bias.data[0]) - 0.5) < 0.05
    assert np.abs(weight.data).max() < 0.05
    assert (folder / "out" / "line_iter_300.caffemodel").exists()
    again = run("train", "solver.prototxt", "--snapshot", "out/line_iter_300.solverstate", "--iterations", "2")
    assert again.exit_code == 0, again.output
    assert (folder / "out" / "line_iter_302.caffemodel").exists()


def test_train_goes_on_from_the_latest_snapshot(folder: Path) -> None:
    """One command, given again until it is done; the weights to start from count the first time only."""
    (folder / "train.prototxt").write_text(TRAIN)
    solver = 'train_net: "train.prototxt" base_lr: 0.1 lr_policy: "fixed" type: "Adam" momentum: 0.9 snapshot: 2'
    Net("train.prototxt", TEST).save("start.caffemodel")
    command = ("train", "solver.prototxt", "--snapshot", "latest", "--weights", "start.caffemodel")
    for max_iter, said in (
        (2, "no snapshot solver_iter_... yet"),
        (5, "going on from solver_iter_2.solverstate"),
    ):
        (folder / "solver.prototxt").write_text(f"{solver} max_iter: {max_iter}")
        result = run(*command)
        assert result.exit_code == 0 and said in result.output
    (folder / "solver_iter_5.solverstate").write_bytes(b"cut short")
    (folder / "solver.prototxt").write_text(solver + " max_iter: 7")
    result = run(*command)
    assert result.exit_code == 0 and "going on from solver_iter_4.solverstate" in result.output
    assert (folder / "solver_iter_7.solverstate").exists()


def test_train_shows_tests_and_snapshots(folder: Path) -> None:
    (folder / "train.prototxt").write_text(TRAIN)
    (folder / "solver.prototxt").write_text(
        'net: "train.prototxt" base_lr: 0.1 lr_policy: "fixed" max_iter: 6 display: 3 snapshot: 5\n'
        "test_iter: 2 test_interval: 4\n"
    )
    for _ in range(2):
        lines = [line.rpartition("] ")[2] for line in run("train", "solver.prototxt").output.splitlines()]
        assert [line for line in lines if "Testing" in line] == [f"Iteration {i}, Testing net (#0)" for i in (0, 4)]
        assert sum("Test net output #0: loss = " in line for line in lines) == 2
        assert [line for line in lines if "Snapshot" in line] == [
            f"Snapshot written to solver_iter_{i}.caffemodel" for i in (5, 6)
        ]
        assert [line.split(":")[0] for line in lines if line.startswith("iteration")] == ["iteration 3", "iteration 6"]


def test_train_refuses_a_solver_type_that_there_is_not(folder: Path) -> None:
    (folder / "train.prototxt").write_text(TRAIN)
    (folder / "solver.prototxt").write_text('net: "train.prototxt" base_lr: 0.1 lr_policy: "fixed" max_iter: 6 type: "Lion"\n')
    result = run("train", "solver.prototxt")
    assert result.exit_code == 1
    assert 'unknown solver type "Lion": use one of SGD, Nesterov, AdaGrad, RMSProp, AdaDelta, Adam' in result.output


def test_train_says_when_the_classes_do_not_fit(folder: Path) -> None:
    (folder / "train.prototxt").write_text(
        'layer { name: "roi_data" type: "RoIData" top: "data" top: "im_info" top: "gt_boxes"\n'
        """python_param { param_str: "'num_classes': 4" } }\n"""
        'layer { name: "rest" type: "Silence" bottom: "data" bottom: "im_info" bottom: "gt_boxes" }\n'
    )
    (folder / "solver.prototxt").write_text('train_net: "train.prototxt" base_lr: 0.1 lr_policy: "fixed" max_iter: 1\n')
    image = {"image": "photos/one.png", "boxes": [[3, 4, 40, 30]], "classes": ["circle"]}
    (folder / "roidb.json").write_text(json.dumps({"classes": ["__background__", "circle"], "images": [image]}))
    result = run("train", "solver.prototxt", "--roidb", "roidb.json")
    assert 'roidb.json has 2 classes with the background, but layer "roi_data" has num_classes 4' in result.output


def test_run_takes_a_shape_and_a_factor(folder: Path) -> None:
    (folder / "map.prototxt").write_text(
        'layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 1 dim: 3 dim: 12 dim: 12 } } }\n'
        'layer { name: "pool" type: "Pooling" bottom: "data" top: "pool" pooling_param { kernel_size: 1 } }\n'
    )
    arguments = ["run", "map.prototxt", "--input", "data=photos/one.png", "--mean", "127.5,127.5,127.5"]
    plain = run(*arguments, "--shape", "data=1,3,48,72", "--out", "plain.npz")
    scaled = run(*arguments, "--shape", "data=1,3,48,72", "--scale-factor", "0.5", "--out", "scaled.npz")
    assert plain.exit_code == scaled.exit_code == 0, scaled.output
    one, half = np.load("plain.npz")["pool"], np.load("scaled.npz")["pool"]
    assert one.shape == (1, 3, 48, 72)
    np.testing.assert_array_equal(half, one / 2)
    with Image.open(folder / "photos" / "one.png") as picture:
        np.testing.assert_allclose(one[0].transpose(1, 2, 0), np.asarray(picture)[..., ::-1] - 127.5, atol=1e-4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sumary", "small.prototxt"], "No such command 'sumary'. Did you mean 'summary'?"),
        (["Device_Qery"], "No such command 'Device_Qery'. Did you mean 'device-query'?"),
        (["upgrade_net_proto_txt", "a", "b"], "Did you mean 'upgrade-net-proto-text'?"),
        (["caffe"], "No such command 'caffe'.\n"),
        (["train", "-itertions", "5"], "No such option '-itertions'. Did you mean '--iterations'?"),
        (["train", "-solvr=solver.prototxt"], "No such option '-solvr'. Did you mean '--solver'?"),
        (["detect", "-max_size", "5"], "No such option '-max_size'. Did you mean '--max-size'?"),
        (["run", "--bakward"], "Did you mean '--backward'?"),
        (["run", "-z"], "No such option '-z'.\n"),
    ],
)
def test_misspelt_words_get_the_nearest(arguments: list[str], message: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    spelt = str.maketrans("", "", ".:'")  # click 8.2 has other punctuation than 8.4
    assert message.translate(spelt) in result.output.translate(spelt)


def test_detect_names_the_settings_when_nothing_is_found(folder: Path) -> None:
    arguments = ["detect", "detector.prototxt", "detector.caffemodel", "photos", "--proposals", "boxes.npy"]
    result = run(*arguments, "--threshold", "0.99", "--scale", "50")
    assert result.exit_code == 0, result.output
    assert re.search(
        r"Preprocessing: short side 50, long side at most 1000, means 102.98,115.947,122.772, NMS 0.3 "
        r"\(--cfg FILE.yml changes them.*\n"
        r'nothing reaches --threshold 0.99: the best score is 0\.\d+\. Check the line "Preprocessing" above$',
        result.stderr,
    )
    (folder / "some.yml").write_text("TEST:\n  SCALES: [40, 60]\n")
    assert "short side 40,60, " in (told := run(*arguments, "--threshold", "1", "--cfg", "some.yml").stderr)
    assert "(from some.yml)\n" in told
    assert "nothing reaches" not in run(*arguments, "--threshold", "0").output
    shapes = Path(__file__).parents[2] / "examples" / "shapes"
    rfcn = shapes / "rfcn" / "test.prototxt", shapes / "rfcn" / "shapes_rfcn.caffemodel"
    told = run("detect", *rfcn, shapes / "scene.png", "--scale", "40", "--threshold", "1").stderr
    assert "proposals >= 16 pixels, NMS 0.7 and 0.3 (--cfg" in told


@pytest.mark.parametrize(
    ("policy", "rates"),
    [
        ('"step" stepsize: 2 gamma: 0.5', {1: "0.1", 2: "0.05", 3: "0.05", 4: "0.025", 5: "0.025"}),
        ('"poly" power: 1', {1: "0.08", 2: "0.06", 3: "0.04", 4: "0.02", 5: "0.02"}),
    ],
)
def test_train_shows_the_rate_that_the_log_has(folder: Path, policy: str, rates: dict[int, str]) -> None:
    """Of the update that comes next, as Caffe's "Iteration N, lr = ..." is; at the end that of the last."""
    (folder / "train.prototxt").write_text(TRAIN)
    (folder / "solver.prototxt").write_text(
        f'train_net: "train.prototxt" base_lr: 0.1 lr_policy: {policy} max_iter: 5 display: 1 snapshot_after_train: false'
    )
    output = run("train", "solver.prototxt").output
    shown = {int(i): rate for i, rate in re.findall(r"^iteration (\d+): loss \S+  lr (\S+)", output, re.MULTILINE)}
    logged = {int(i): rate for i, rate in re.findall(r"Iteration (\d+), lr = (\S+)", output)}
    assert shown == rates
    assert logged == {0: "0.1"} | {i: rate for i, rate in rates.items() if i < 5}


def test_summary_takes_rois(folder: Path) -> None:
    net = Path(__file__).parents[2] / "examples" / "shapes" / "rfcn"
    told = run("summary", net / "test.prototxt")
    assert told.exit_code == 0, told.output
    assert "bbox_pred 300x16" in told.output and "rois 300x5" in told.output
    assert "bbox_pred 7x16" in run("summary", net / "test.prototxt", "--rois", "7").output
    (folder / "some.yml").write_text("TEST:\n  RPN_POST_NMS_TOP_N: 11\n")
    assert "bbox_pred 11x16" in run("summary", net / "test.prototxt", "--cfg", "some.yml").output
    for arguments, said in (
        (["small.prototxt"], "--rois 9: no layer of the net proposes rois\n"),
        (["detector.prototxt"], "--rois 9: no layer of the net proposes rois: give --shape rois=9,5"),
    ):
        result = run("summary", *arguments, "--rois", "9")
        assert result.exit_code == 1 and said in result.output


def test_weights_of_another_net_are_refused(folder: Path) -> None:
    (folder / "other.prototxt").write_text(CLASSIFIER.replace('"conv"', '"one"').replace('"ip"', '"two"'))
    Net("other.prototxt", TEST).save("other.caffemodel")
    result = run("run", "small.prototxt", "other.caffemodel")
    assert result.exit_code == 1
    assert "none of its layers has the name of a layer with weights in small.prototxt" in result.output


def test_weights_that_fit_no_layer_are_told_with_the_nearest_ones(tmp_path: Path) -> None:
    layer = 'layer {{ name: "{}" type: "InnerProduct" bottom: "{}" top: "{}" inner_product_param {{ num_output: {} }} }}'
    inputs = 'input: "x" input_shape { dim: 1 dim: 3 }'
    ours = inputs + layer.format("fc1", "x", "a", 4) + layer.format("fc2", "a", "b", 5)
    (tmp_path / "net.prototxt").write_text(ours)

    def said(theirs: str, *, named: bool = True) -> str:
        file = tmp_path / "theirs.caffemodel"
        Net(parse_net(theirs)).save(file)
        if not named:
            param = caffe_pb2.NetParameter.FromString(file.read_bytes())
            for stored in param.layer:
                stored.ClearField("name")
            file.write_bytes(param.SerializeToString())
        result = run("run", tmp_path / "net.prototxt", tmp_path / "theirs.caffemodel")
        assert result.exit_code == 1
        return result.output

    one_alike = said(inputs + layer.format("module/FC_1", "x", "a", 4) + layer.format("other", "a", "b", 6))
    assert "nearly matching, with the same shapes: fc1 (in the file: module/FC_1)" in one_alike
    assert "fc2 (in the file: dense2)" in said(ours.replace("fc", "dense"))
    assert "; its layers have no names" in said(inputs + layer.format("q", "x", "a", 9), named=False)
    assert "; none of its layers has weights" in said(inputs)
    assert "its layers are called q, and none nearly matches" in said(inputs + layer.format("q", "x", "a", 9))


def test_quiet_and_verbose(folder: Path) -> None:
    """-q leaves out notes, no warnings; -v adds what the engine does; both end with the command."""
    words = (
        "detect",
        "detector.prototxt",
        "detector.caffemodel",
        "photos/one.png",
        "--proposals",
        "boxes.npy",
        "--threshold",
        "1",
    )
    plain, quiet, verbose = (run(*words, *flag) for flag in ((), ("-q",), ("--verbose",)))
    assert plain.exit_code == quiet.exit_code == verbose.exit_code == 0, plain.output
    assert "nothing reaches --threshold" in plain.stderr and quiet.stderr == ""
    assert "layers set up for TEST" in verbose.stderr and "layers set up" not in plain.stderr
    said = [line for line in verbose.stderr.splitlines() if line.startswith(("Preprocessing: ", "nothing reaches"))]
    assert said == plain.stderr.splitlines()
    assert run(*words).stderr == plain.stderr
    warned = run("run", "detector.prototxt", "-q")
    assert "WARNING: no weights given" in warned.stderr


def test_old_spellings_of_outputs_still_work(folder: Path) -> None:
    """They are not in the help."""
    assert (
        run("draw", "detector.prototxt", "old.svg").exit_code
        == run("draw", "detector.prototxt", "-o", "new.svg").exit_code
        == 0
    )
    assert Path("old.svg").read_bytes() == Path("new.svg").read_bytes()
    said = run("draw", "detector.prototxt", "old.svg", "--out", "new.svg").output
    assert "old.svg and --out new.svg: give one of them" in said
    assert "Missing option" in run("draw", "detector.prototxt").output
    assert "OLD" not in run("draw", "--help").output and "--out-net" not in run("merge-bn", "--help").output
