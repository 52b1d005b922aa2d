"""What users typically get wrong: each is one message that says what to do, without a traceback, and leaves no file behind."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from detecting import make_folder
from extras import OF_COMMAND, require

from minicaffe import TEST, Net
from minicaffe.cli import main

DEPLOY = """input: "data" input_shape { dim: 1 dim: 3 dim: 8 dim: 6 }
layer { name: "conv1" type: "Convolution" bottom: "data" top: "conv1"
  convolution_param { num_output: 4 kernel_size: 3 weight_filler { type: "xavier" } } }
layer { name: "ip" type: "InnerProduct" bottom: "conv1" top: "ip"
  inner_product_param { num_output: 5 weight_filler { type: "xavier" } } }
layer { name: "prob" type: "Softmax" bottom: "ip" top: "prob" }
"""
TRAIN = """layer { name: "in" type: "Data" top: "data" top: "label"
  data_param { source: "train_lmdb" backend: LMDB batch_size: 4 } }
""" + DEPLOY.partition("\n")[2]
FILES = {
    "deploy.prototxt": DEPLOY,
    "train.prototxt": TRAIN,
    "typo.prototxt": DEPLOY.replace("Convolution", "Convolutoin"),
    "field.prototxt": DEPLOY.replace("kernel_size", "kernal_size"),
    "brace.prototxt": DEPLOY + "layer {",
    "bottom.prototxt": DEPLOY.replace('bottom: "conv1"', 'bottom: "conv2"'),
    "wide.prototxt": DEPLOY.replace("num_output: 5", "num_output: 7"),
    "renamed.prototxt": DEPLOY.replace('"conv1"', '"convolution"').replace('"ip"', '"score"'),
    "huge.prototxt": DEPLOY.replace("kernel_size: 3", "kernel_size: 30"),
    "solver.prototxt": 'net: "train.prototxt" base_lr: 0.1 lr_policy: "fixed" max_iter: 2',
    "inputs.prototxt": 'net: "deploy.prototxt" base_lr: 0.1 lr_policy: "fixed" max_iter: 2',
    "nonet.prototxt": 'base_lr: 0.1 lr_policy: "fixed" max_iter: 2',
    "policy.prototxt": 'net: "deploy.prototxt" base_lr: 0.1 lr_policy: "stepp" max_iter: 2',
    "lost.prototxt": 'net: "gone.prototxt" base_lr: 0.1 lr_policy: "fixed" max_iter: 2',
    "classes.txt": "circle\n",
    "list.txt": "a.png 0\ngone.png 1\n",
    "broken.yml": "TEST: [",
    "unknown.yml": "TEST:\n  SCALE: 600\n",
    "page.html": "<html></html>",
    "net.onnx": "no model",
}

MISTAKES = [
    # Commands and options.
    ("detekt photo.png", "Did you mean 'detect'?"),
    ("run deploy.prototxt --treads 2", "--threads"),
    ("run", "Missing argument 'NET'"),
    ("time deploy.prototxt --iterations 0", "--iterations must be at least 1"),
    ("run deploy.prototxt --device tpu", "give cpu, gpu, gpu:N or auto"),
    ("run deploy.prototxt --tf32", "--tf32 is for a GPU"),
    ("summary deploy.prototxt --shape data=1,3,x", "BLOB=N,C,H,W"),
    ("run deploy.prototxt net.caffemodel --input photo.png", "BLOB=FILE"),
    ("run deploy.prototxt net.caffemodel --input image=photos/0.png", "its inputs are data"),
    ("run deploy.prototxt net.caffemodel --mean 104,117", "give 3 numbers"),
    ("run deploy.prototxt net.caffemodel --fork pspnett", "pspnet"),
    # Files.
    ("run gone.prototxt", "gone.prototxt"),
    ("run deploy.prototxt gone.caffemodel", "gone.caffemodel"),
    ("run net.caffemodel deploy.prototxt", "net.caffemodel"),
    ("run photos", "photos"),
    ("run photos/0.png", "photos/0.png"),
    ("run deploy.prototxt deploy.prototxt", "deploy.prototxt"),
    ("run deploy.prototxt cut.caffemodel", "cut short"),
    ("run deploy.prototxt net.caffemodel --out deploy.prototxt", "deploy.prototxt"),
    ("run deploy.prototxt net.caffemodel --out nowhere/out.npz", "there is no folder"),
    ("run deploy.prototxt net.caffemodel --input data=photos/3.png", "photos/3.png"),
    ("run deploy.prototxt net.caffemodel --input data=five.npy", "the bottom's shape is now (2, 5)"),
    # Prototxts.
    ("summary typo.prototxt", "Convolution"),
    ("summary field.prototxt", "kernel_size"),
    ("summary brace.prototxt", "brace.prototxt:"),
    ("summary bottom.prototxt", 'bottom "conv2" is not produced'),
    ("summary huge.prototxt", "conv1"),
    ("summary solver.prototxt", "solver"),
    ("run train.prototxt", "train_lmdb"),
    # Weights.
    ("run wide.prototxt net.caffemodel", "(5, 96)"),
    ("run renamed.prototxt net.caffemodel", "conv1"),
    # Detection.
    ("detect deploy.prototxt net.caffemodel photos/0.png", "a detector"),
    ("detect detector.prototxt detector.caffemodel", "give it after the weights"),
    ("detect detector.prototxt detector.caffemodel photos/0.png", "proposals"),
    ("detect detector.prototxt detector.caffemodel gone.png --proposals boxes.npy", "gone.png"),
    ("detect detector.prototxt detector.caffemodel photos/3.png --proposals boxes.npy", "photos/3.png"),
    ("detect detector.prototxt detector.caffemodel photos/0.png --proposals boxes.npy --threshold 50", "0<=x<=1"),
    ("detect detector.prototxt detector.caffemodel photos/0.png --proposals five.npy", "(R, 4)"),
    ("detect detector.prototxt detector.caffemodel photos/0.png --proposals boxes.npy --cfg broken.yml", "broken.yml"),
    ("detect detector.prototxt detector.caffemodel photos/0.png --proposals boxes.npy --cfg unknown.yml", "SCALE"),
    ("detect detector.prototxt detector.caffemodel photos/0.png --proposals boxes.npy --classes gone.txt", "gone.txt"),
    # Training.
    ("train solver.prototxt", "train_lmdb"),
    ("train deploy.prototxt", "solver"),
    ("train nonet.prototxt", "net"),
    ("train lost.prototxt", "gone.prototxt"),
    ("train policy.prototxt", "stepp"),
    ("train inputs.prototxt --snapshot gone.solverstate", "gone.solverstate"),
    # Tracing and porting.
    ("explain deploy.prototxt conv2 --at 0,0,0,0", "conv1"),
    ("explain deploy.prototxt conv1 --at 0,9,0,0", "conv1"),
    ("explain deploy.prototxt gone.caffemodel conv1 --at 0,0,0,0", "gone.caffemodel"),
    ("explain deploy.prototxt conv1 gone.caffemodel --at 0,0,0,0", "gone.caffemodel"),
    ("trace deploy.prototxt --image gone.png", "gone.png"),
    ("trace-diff page.html page.html", "page.html"),
    ("import net.onnx -o out.prototxt out.caffemodel", "net.onnx"),
    ("export deploy.prototxt -o out.onnx --until conv9", "conv9"),
    ("retarget deploy.prototxt --classes 1 --out out.prototxt", "classes"),
    ("convert-imageset . list.txt out_lmdb", "gone.png"),
    ("convert-annoset gone.json out_lmdb", "gone.json"),
    ("new ssd made --classes gone.txt", "gone.txt"),
    ("script gone.py", "gone.py"),
]


EMPTY = "the name is empty: is a variable of the shell unset?"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("mistakes")
    make_folder(made, count=4)
    for name, text in FILES.items():
        (made / name).write_text(text)
    net = Net(made / "deploy.prototxt", TEST)
    net.save(made / "net.caffemodel")
    (made / "cut.caffemodel").write_bytes((made / "net.caffemodel").read_bytes()[:-40])
    (made / "a.png").write_bytes((made / "photos" / "0.png").read_bytes())
    np.save(made / "five.npy", np.ones((2, 5), np.float32))
    return made


@pytest.mark.parametrize(("line", "said"), MISTAKES, ids=[line for line, _ in MISTAKES])
def test_a_mistake_is_one_message(line: str, said: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = line.split(maxsplit=1)[0]
    if command in OF_COMMAND:
        require(OF_COMMAND[command])
    monkeypatch.chdir(folder)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    result = CliRunner().invoke(main, line.split())
    assert result.exit_code in (1, 2), result.output
    assert said in result.stderr
    assert isinstance(result.exception, SystemExit) and "Traceback" not in result.stderr
    message = [text for text in result.stderr.splitlines() if text.startswith(("minicaffe: ", "Error: "))]
    assert len(message) == 1 and len(message[0]) < 500, result.stderr
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.suffix != ".log"} == before


@pytest.mark.parametrize(
    "words",
    [
        ["classify", "deploy.prototxt", "net.caffemodel", ""],
        ["classify", "", "net.caffemodel", "a.png"],
        ["segment", "deploy.prototxt", "net.caffemodel", "a.png", "--out", ""],
        ["detect", "detector.prototxt", "net.caffemodel", "a.png", "--draw", ""],
        ["detect", "detector.prototxt", "net.caffemodel", "a.png", "--save", ""],
        ["run", "deploy.prototxt", "--out", ""],
        ["retarget", "deploy.prototxt", "--classes", "2", "--out", ""],
    ],
    ids=" ".join,
)
def test_a_name_that_a_shells_variable_left_empty(words: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty path would be the working directory, with all its images, and an empty option as if it were not there."""
    monkeypatch.chdir(folder)
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 1 and EMPTY in result.stderr, result.output


def test_ctrl_c_before_a_command_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the words are looked at, click's exit status would be 1, and it says "Aborted!"."""

    def stopped(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("minicaffe.cli.translate", stopped)
    result = CliRunner().invoke(main, ["layers"])
    assert (result.exit_code, result.output) == (130, "")
