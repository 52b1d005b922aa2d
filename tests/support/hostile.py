"""Names that a stranger's files may hold, the small files with them that each command is given, and ways to see its output."""

from __future__ import annotations

import json
import os
import pty
import shutil
import sys
import termios
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from detecting import DETECTOR
from PIL import Image
from small_alternating import make_small_alternating

from minicaffe import TEST, Net
from minicaffe.cli import main
from minicaffe.data.database import new_database
from minicaffe.formats.arrays import write_npz
from minicaffe.proto import caffe_pb2
from minicaffe.training.snapshots import TrainingState, write_state

NAME = "[/][link=http://x]:skull:\u202e\u2028"
"""What a prototxt's name may hold."""
SHOWN = ("[/]", "[link=http://x]", ":skull:", "\\u202e", "\\u2028")
"""What is to be seen of NAME."""
WILD = NAME + "\x1b[5m\x1b]8;;http://y\x07\x9b5m\r\ud7ff\x00"
"""A name in a binary file."""
WILD_SHOWN = (*SHOWN, "\\x1b[5m", "\\x1b]8;;http://y\\x07", "\\x0d")
FILE = "[link=x]:skull:\x1b[5m\x1b]0;t\x07\u202e\udcff"
"""A file's name."""
OUT = FILE[:-1]
"""One in UTF-8, which other libraries want."""
OUT_SHOWN = ("[link=x]:skull:\\x1b[5m\\x1b]0;t\\x07\\u202e",)
FILE_SHOWN = ("[link=x]:skull:\\x1b[5m\\x1b]0;t\\x07\\u202e\\xff",)
LINES = "a\nlayer { name: 'live' type: 'ReLU' bottom: 'x' top: 'live' }"
"""A name that would be a layer if it began a line."""

MADE = {"file": f"../{WILD}", "sha256": WILD}
"""The result of a stage in stages.json."""

Case = tuple[list[str], Sequence[str]]
"""Arguments, and what is to be seen on stdout or stderr."""

DETECTIONS = """layer { name: "x" type: "DummyData" top: "loc" top: "conf" top: "prior" dummy_data_param {
  shape { dim: 2 dim: 4 } shape { dim: 2 dim: 2 } shape { dim: 1 dim: 2 dim: 4 } data_filler { value: 0.9 } } }
layer { name: "out" type: "DetectionOutput" bottom: "loc" bottom: "conf" bottom: "prior" top: "out"
  detection_output_param { num_classes: 2 save_output_param { output_directory: "found" output_format: "COCO"
  output_name_prefix: "all" label_map_file: "labels.prototxt" name_size_file: "sizes.txt" } } }"""
ROI_DATA = """layer { name: "roi_data" type: "RoIData" top: "data" top: "im_info" top: "gt_boxes"
  python_param { param_str: "'num_classes': 4" } }
layer { name: "rest" type: "Silence" bottom: "data" bottom: "im_info" bottom: "gt_boxes" }"""

NET = f"""name: "{NAME}"
layer {{ name: "x" type: "Input" top: "x" input_param {{ shape {{ dim: 1 dim: 2 dim: 4 dim: 4 }} }} }}
layer {{ name: "c{NAME}" type: "Convolution" bottom: "x" top: "{NAME}"
  convolution_param {{ num_output: 2 kernel_size: 3 weight_filler {{ type: "xavier" }} }} }}
layer {{ name: "b{NAME}" type: "BatchNorm" bottom: "{NAME}" top: "{NAME}" }}
layer {{ name: "n{NAME}" type: "Power" bottom: "{NAME}" top: "n" power_param {{ scale: 1e38 shift: 1e38 }} }}
layer {{ name: "m{NAME}" type: "Power" bottom: "n" top: "m{NAME}" power_param {{ power: 9 }} }}
"""
"""Its last blob is infinite."""
QUIET = NET[: NET.index('layer { name: "n[')]
TRAIN = f"""name: "{NAME}"
layer {{ name: "{NAME}" type: "DummyData" top: "x" top: "y" dummy_data_param {{
  shape {{ dim: 2 dim: 3 }} shape {{ dim: 2 dim: 2 }} data_filler {{ value: 1 }} data_filler {{ value: 0 }} }} }}
layer {{ name: "f{NAME}" type: "InnerProduct" bottom: "x" top: "f" inner_product_param {{ num_output: 2 }} }}
layer {{ name: "l" type: "EuclideanLoss" bottom: "f" bottom: "y" top: "loss{NAME}" }}
"""


def stored(path: str, *names: str, kind: str = "InnerProduct") -> None:
    """Write a .caffemodel with a chain of layers of these names, from the input x."""
    net = caffe_pb2.NetParameter(name=WILD.replace("\0", ""))
    net.layer.add(name="d", type="Data", top=["x", "label"]).transform_param.crop_size = 3
    bottom = "x"
    for name in names:
        layer = net.layer.add(name=name, type=kind, bottom=[bottom], top=[name])
        layer.inner_product_param.num_output = 3
        layer.inner_product_param.bias_term = False
        blob = layer.blobs.add(data=range(81 if bottom == "x" else 9))
        blob.shape.dim.extend([3, 27 if bottom == "x" else 3])
        bottom = name
    net.layer.add(name=f"{names[0]}loss", type="SoftmaxWithLoss", bottom=[bottom, "label"], top=["loss"])
    Path(path).write_bytes(net.SerializeToString())


def photo(path: str) -> None:
    Image.new("RGB", (40, 30), "red").save(path, "PNG")


def _net(text: str = NET, name: str = FILE) -> str:
    Path(f"{name}.prototxt").write_text(text, encoding="utf-8")
    return f"{name}.prototxt"


def _weights() -> str:
    stored(f"{FILE}.caffemodel", WILD, "other")
    return f"{FILE}.caffemodel"


def _detector() -> list[str]:
    Path(f"{FILE}.prototxt").write_text(DETECTOR.replace('"detector"', f'"{NAME}"'), encoding="utf-8")
    Net(f"{FILE}.prototxt", TEST).save("d.caffemodel")
    np.save("boxes.npy", np.array([[3, 4, 30, 20.0]]))
    Path("names.txt").write_text("\n".join(f"{NAME[:-1]}\x1b[5m\x07{i}" for i in range(3)), encoding="utf-8")
    return [f"{FILE}.prototxt", "d.caffemodel", "--proposals", "boxes.npy", "--classes", "names.txt", "--threshold", "0"]


def compare() -> list[Case]:
    net = _net(QUIET)
    made = Net(net, TEST)
    made.forward()
    arrays = {"x": made.blobs["x"].data, NAME: made.blobs[NAME].data + 1, f"{WILD[:-1]}": np.ones(3)}
    write_npz(Path("b.npz"), arrays)
    Path("map.txt").write_text(f"nothing n {NAME[:-1]}\x1b[5m\n", encoding="utf-8")
    return [
        (["compare", net, "b.npz"], SHOWN),
        (["compare", net, "b.npz", "--map", "map.txt"], ("[/][link=http://x]:skull:\\u202e\\x1b[5m",)),
    ]


def compute_image_mean() -> list[Case]:
    with new_database("db", "lmdb") as database:
        database.put(WILD.encode(), b"\xff\xff")
    return [(["compute-image-mean", "db"], WILD_SHOWN)]


def convert_imageset() -> list[Case]:
    photo(FILE)
    text = "".join(f"{name} 1\n" for name in (f"{NAME[:-1]}\x1b[5m", FILE, f"{FILE}2"))
    Path("list.txt").write_bytes(text.encode(errors="surrogateescape"))
    return [
        (
            ["convert-imageset", ".", "list.txt", f"db{OUT}", "--skip-unreadable"],
            ("[/][link=http:/x]:skull:\\u202e\\x1b[5m", *FILE_SHOWN),
        ),
        (["convert-imageset", ".", "list.txt", "other"], ("[/][link=http:/x]:skull:\\u202e\\x1b[5m",)),
    ]


def convert_annoset() -> list[Case]:
    photo(FILE)
    images = [{"image": name, "width": 9, "height": 9, "boxes": [], "classes": []} for name in (FILE, f"{FILE}2")]
    Path("a.json").write_text(json.dumps({"classes": [WILD], "images": images}))
    return [(["convert-annoset", "a.json", f"db{OUT}", "--skip-unreadable"], FILE_SHOWN)]


def cut() -> list[Case]:
    net = _net(QUIET)
    Net(net, TEST).save("w.caffemodel")
    command = ["cut", net, "w.caffemodel"]
    return [
        ([*command, "--to", f"c{NAME}", "-o", f"{FILE}2.prototxt", f"{FILE}2.caffemodel"], (*SHOWN, *FILE_SHOWN)),
        ([*command, "--to", f"C{NAME}", "-o", "p.prototxt", "p.caffemodel"], SHOWN),
        ([*command, "--target", "rknn", "-o", "p.prototxt", f"{OUT}.safetensors"], OUT_SHOWN),
    ]


def detect() -> list[Case]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    arguments = ["detect", *_detector()]
    photo(f"{FILE}.png")
    photo("b.png")
    Path("photos").mkdir()
    photo(f"photos/{FILE}a.png")
    Path(f"photos/{FILE}\nb.png").write_bytes(b"no picture")
    Path("list.txt").write_bytes(f"{FILE}.png\n{NAME}\x1b[5m.png\n".encode(errors="surrogateescape"))
    pq.write_table(pa.table({"path": [f"{NAME}\x1b[5m.png", "b.png"]}), "paths.parquet")
    names = "[/][link=http://x]:skull:\\u202e\\x1b[5m\\x07"
    return [
        ([*arguments, f"{FILE}.png", "b.png", "--draw", f"drawn{FILE}"], (*FILE_SHOWN, names)),
        ([*arguments, f"{FILE}.png", "--json"], ("[/][link=http://x]:skull:\\u202e\\u001b[5m\\u0007",)),
        ([*arguments, "photos"], (*FILE_SHOWN, names, "\\nb.png")),
        ([*arguments, "list.txt"], (*FILE_SHOWN, "[/][link=http://x]:skull:\\u202e")),
        ([*arguments, "paths.parquet"], ("[/][link=http://x]:skull:\\u202e",)),
        ([*arguments, "photos", "--out", f"out{OUT}"], OUT_SHOWN),
        ([*arguments, "paths.parquet", "--out", "out", "--part-size", "1"], ()),
    ]


def device_query() -> list[Case]:
    os.environ["MKL_NUM_THREADS"] = WILD[:-1]
    return [(["device-query"], WILD_SHOWN)]


def doctor() -> list[Case]:
    return [(["doctor", WILD], WILD_SHOWN)]


def film() -> list[Case]:
    Path("net.prototxt").write_text(TRAIN, encoding="utf-8")
    Path("solver.prototxt").write_text('net: "net.prototxt" base_lr: 0.1 lr_policy: "fixed" max_iter: 2')
    to_pipe(["train", "solver.prototxt", "--film", f"film{FILE}"])
    Path(f"broken{FILE}").mkdir()
    Path(f"broken{FILE}/frame_000000000.json").write_bytes(b"{}")
    Path(f"broken{FILE}/film.json").write_bytes(b'{"format": 1, "net": {"[/]\\u202e": "\x1b[5m"}}')
    return [
        (["film", f"film{FILE}", "--out", f"page{FILE}.html"], FILE_SHOWN),
        (["film", f"broken{FILE}"], FILE_SHOWN),
    ]


def docs() -> list[Case]:
    return [(["docs", WILD[:-1], "--no-browser"], WILD_SHOWN)]


def flow() -> list[Case]:
    net = "".join(f'input: "{name}" input_shape {{ dim: 1 dim: 3 dim: 4 dim: 5 }}\n' for name in ("a", "b"))
    net += f'layer {{ name: "sum" type: "Eltwise" bottom: "a" bottom: "b" top: "sum" }} layer {{ name: "{NAME}"'
    net += f' type: "Convolution" bottom: "sum" top: "{NAME}" convolution_param {{ num_output: 2 kernel_size: 1 }} }}'
    Path(f"{FILE}.prototxt").write_text(net, encoding="utf-8")
    photo(f"{FILE}.png")
    arguments = ["flow", f"{FILE}.prototxt", "--random-weights", f"{FILE}.png", f"{FILE}.png"]
    return [
        ([*arguments, "-o", f"{OUT}.flo", "--draw", f"{OUT}2.png"], (*FILE_SHOWN, *OUT_SHOWN)),
        ([*arguments, "--truth", f"{FILE}.prototxt"], (*FILE_SHOWN, "not a .flo file")),
    ]


def forks() -> list[Case]:
    return [(["forks", WILD[:-1]], WILD_SHOWN)]


def draw() -> list[Case]:
    return [(["draw", _net(), "-o", "net.svg", "--shapes"], ()), (["draw", _net(), "-o", f"{FILE}.png"], FILE_SHOWN)]


def deploy() -> list[Case]:
    data = f'type: "Data" top: "x" transform_param {{ crop_size: 4 mean_file: "{NAME}\\n\\033[5m" }}'
    first = 'type: "Input" top: "x" input_param { shape { dim: 1 dim: 2 dim: 4 dim: 4 } }'
    net = _net(QUIET.replace(first, data))
    return [
        (["deploy", net, "-o", f"{OUT}2.prototxt"], (*SHOWN, *OUT_SHOWN)),
        (["deploy", net], SHOWN),
    ]


def dump() -> list[Case]:
    import h5py

    write_state(Path("s.solverstate"), TrainingState(7, WILD[:-1], 2, [np.ones(4, np.float32)]))
    with h5py.File("a.h5", "w") as file:
        file["g" + WILD[4:-1].replace("/", "")] = np.ones(3)
    return [
        (["dump", "--list", _weights()], (*WILD_SHOWN, *FILE_SHOWN)),
        (["dump", "--list", "s.solverstate"], WILD_SHOWN),
        (["dump", "--list", "a.h5"], (":skull:", "\\u202e", "\\x1b[5m")),
        (["dump", "a.h5", "-o", f"{FILE}.npz"], FILE_SHOWN),
    ]


def explain() -> list[Case]:
    return [
        (["explain", _net(QUIET), f"c{NAME}", "--at", "0,0,1,1"], SHOWN),
        (["explain", _net(QUIET), f"C{NAME}", "--at", "0,0,1,1"], SHOWN),
    ]


def export() -> list[Case]:
    return [(["export", _net(QUIET), "-o", f"{OUT}.onnx", "--check"], (*SHOWN, *OUT_SHOWN))]


def extract_features() -> list[Case]:
    net = _net(QUIET.replace('"Input" top: "x" input_param', '"DummyData" top: "x" dummy_data_param'))
    Net(net, TEST).save("w.caffemodel")
    return [
        (["extract-features", "w.caffemodel", net, NAME, f"db{OUT}", "1"], (*SHOWN, *OUT_SHOWN)),
        (["extract-features", "w.caffemodel", net, f"{NAME}2", f"db{OUT}", "1"], SHOWN),
    ]


def import_() -> list[Case]:
    from onnx import helper, save

    def model(operator: str) -> str:
        node = helper.make_node(operator, [WILD], [f"y{WILD}"], name=WILD)
        x, y = (helper.make_tensor_value_info(name, 1, [1, 2]) for name in (WILD, f"y{WILD}"))
        save(
            helper.make_model(
                helper.make_graph([node], WILD, [x], [y]), ir_version=8, opset_imports=[helper.make_opsetid("", 18)]
            ),
            f"{operator}.onnx",
        )
        return f"{operator}.onnx"

    return [
        (["import", model("Relu"), "-o", f"{FILE}.prototxt", f"{FILE}.caffemodel"], (*WILD_SHOWN, *FILE_SHOWN)),
        (["import", model("Erf"), "-o", f"{FILE}.prototxt", f"{FILE}.caffemodel"], WILD_SHOWN),
    ]


def layers() -> list[Case]:
    return [(["layers", WILD], WILD_SHOWN), (["layers", "--markdown"], ())]


def live() -> list[Case]:
    return [(["live", _net(), "--static", f"{FILE}.site"], FILE_SHOWN)]


def merge_bn() -> list[Case]:
    net = _net(QUIET)
    made = Net(net, TEST)
    made.params[f"b{NAME}"][2].data[...] = 1
    made.save("w.caffemodel")
    return [
        (
            ["merge-bn", net, "w.caffemodel", "-o", "m.prototxt", f"{FILE}2", "--check"],
            (*SHOWN, *FILE_SHOWN),
        )
    ]


def new() -> list[Case]:
    Path("names.txt").write_text(f"{FILE[:-1]}\n")
    twice = f"{FILE[:-1]}\n" * 2
    Path("twice.txt").write_text(twice)
    return [
        (["new", "ssd", OUT, "--classes", "names.txt"], OUT_SHOWN),
        (["new", "ssd", "other", "--classes", "twice.txt"], OUT_SHOWN),
    ]


def parse_log() -> list[Case]:
    head = "I1121 03:09:4%d.283104  2001 solver.cpp:1] "
    name = WILD.replace("\r", "").replace("\u2028", "").replace("\x1b[5m", '\x1b[5m",')
    lines = ["Solving net", "Iteration 0, loss = 2", f"    Train net output #0: {name} = 2.5"]
    Path(f"{FILE}.log").write_text("".join(f"{head % i}{line}\n" for i, line in enumerate(lines)), encoding="utf-8")
    return [(["parse-log", f"{FILE}.log", "."], FILE_SHOWN)]


def rescue() -> list[Case]:
    stored(f"{FILE}.caffemodel", f"w{NAME}", "other")
    stored("lines.caffemodel", LINES, WILD)
    return [
        (["rescue", f"{FILE}.caffemodel", "-o", f"{FILE}.prototxt"], (*SHOWN[:-2], *FILE_SHOWN)),
        (["rescue", "lines.caffemodel", "--no-check"], SHOWN[:3]),
        (["rescue", "lines.caffemodel", "-o", "lines.prototxt"], ("control character",)),
    ]


def retarget() -> list[Case]:
    text = DETECTOR.replace('"score"', f'"{NAME}"').replace('"conv"', f'"conv{NAME}"') + "# \x1b[5m\u202e \x0c\n"
    Path(f"{FILE}.prototxt").write_bytes(f"# {' ' * 5000}\n{text}".encode() + b"# \xff\n")
    return [
        (["retarget", f"{FILE}.prototxt", "--classes", "3"], (*SHOWN[:3], "\\x1b[5m\\u202e")),
        (["retarget", f"{FILE}.prototxt", "--classes", "3", "--report", "--out", f"{FILE}3.prototxt"], (*SHOWN, *FILE_SHOWN)),
    ]


def run() -> list[Case]:
    Path("detections.prototxt").write_text(DETECTIONS)
    Path("labels.prototxt").write_text(f'item {{ name: "none" }} item {{ name: "{NAME[3:25]}\\033[5m" label: 1 }}')
    Path("sizes.txt").write_text(f"{NAME[:-1]}\x1b[5m 60 80\n" * 2, encoding="utf-8")
    return [
        (["run", "detections.prototxt"], ("[link=http://x]:skull:\\x1b[5m", "control character")),
        (["run", _net(QUIET), _weights()], (*SHOWN, *FILE_SHOWN)),
        (["run", _net(QUIET), "--out", f"{FILE}.npz"], (*SHOWN, *FILE_SHOWN)),
    ]


def script() -> list[Case]:
    Path("s.py").write_text("import sys\nraise ValueError(sys.argv[1])\n")
    return [(["script", "s.py", WILD], WILD_SHOWN)]


def summary() -> list[Case]:
    Path("bad.prototxt").write_text(f'layer {{ name: "{NAME}" type: "{NAME}" {NAME[:-2]}: 3 }}', encoding="utf-8")
    python = f'layer {{ name: "{NAME}" type: "Python" top: "t"\n python_param {{ module: "rpn.proposal_layer"'
    python += f' param_str: "{NAME}\\033[5m" }} }}'
    Path("python.prototxt").write_text(python, encoding="utf-8")
    return [
        (["summary", _net()], SHOWN),
        (["summary", _net(NET.replace(f'name: "{NAME}"', "", 1), f"2{FILE}")], (*SHOWN, *FILE_SHOWN)),
        (["summary", "bad.prototxt"], ("[/]",)),
        (["summary", "python.prototxt"], SHOWN),
        (["summary", _net(NET.replace("type", f'"{NAME}', 1), f"3{FILE}")], FILE_SHOWN),
    ]


def test() -> list[Case]:
    net = _net(TRAIN)
    Net(net, TEST).save("w.caffemodel")
    return [(["test", net, "w.caffemodel", "--iterations", "2"], SHOWN)]


def time() -> list[Case]:
    return [(["time", _net(TRAIN), "--iterations", "2"], SHOWN)]


def trace() -> list[Case]:
    return [
        (["trace", _net(), "--text", "--backward", "--out", f"{FILE}.html"], (*SHOWN, *FILE_SHOWN, "!! ", "not a number")),
        (["trace", _net(), "--debug-info", "--npz", f"{FILE}.npz"], (*SHOWN, *FILE_SHOWN)),
        (["trace", _net(), "--tour", _tour(f"{FILE}.json", NAME)], (*SHOWN, *FILE_SHOWN, "stop 1: the net has no layer")),
        (["trace", _net(), "--tour", _tour(f"{FILE}2.json", f"c{NAME}"), "--out", f"{FILE}.html"], FILE_SHOWN),
    ]


def _tour(path: str, layer: str) -> str:
    """Return a tour that stops at a layer."""
    stop = {"title": NAME, "text": NAME + "</script>", "layer": layer, "point": f"maps {NAME}"}
    Path(path).write_text(json.dumps({"title": NAME, "stops": [stop]}))
    return path


def trace_diff() -> list[Case]:
    to_pipe(["trace", _net(), "--out", f"{FILE}.html"])
    pages = [f"{FILE}.html"] * 2
    data = b'<script type="application/json" id="trace">'
    text = Path(pages[0]).read_bytes().partition(data)
    Path(f"{FILE}broken.html").write_bytes(
        text[0] + text[1] + b'{"format": "[/]\\u202e\\ud800"' + text[2][text[2].index(b",") :]
    )
    return [
        (["trace-diff", *pages, "--out", f"diff{FILE}.html"], ("no difference", *FILE_SHOWN)),
        (["trace-diff", f"{FILE}broken.html", pages[0]], FILE_SHOWN),
        (["trace-diff", f"{FILE}.prototxt", _net(NET.replace("num_output: 2", "num_output: 3"), f"{FILE}b")], SHOWN),
    ]


def train() -> list[Case]:
    Path("net.prototxt").write_text(TRAIN, encoding="utf-8")
    prefix = "[link=x]:skull:\u202e"
    text = f'net: "net.prototxt" base_lr: 0.1 lr_policy: "fixed" snapshot_prefix: "{prefix}" max_iter: 2 display: 1'
    Path(f"{FILE}.prototxt").write_text(text, encoding="utf-8")
    Path("roi_data.prototxt").write_text(ROI_DATA)
    Path("rois.prototxt").write_text('train_net: "roi_data.prototxt" base_lr: 0.1 lr_policy: "fixed" max_iter: 1')
    one = {"image": FILE[:-1], "boxes": [[0, 0, 2, 3]], "classes": [WILD]}
    Path("classes.json").write_text(json.dumps({"classes": ["cat", f"2{WILD}"], "images": [one]}))
    Path("images.json").write_text(json.dumps({"classes": [WILD], "images": [one]}))
    photo(FILE[:-1])
    for folder in ("Annotations", "JPEGImages", "ImageSets/Main"):
        (Path(f"voc{FILE}") / folder).mkdir(parents=True)
    Path(f"voc{FILE}/ImageSets/Main/trainval.txt").write_text("a\n")
    name = NAME[:-1] + "\x9b"
    Path(f"voc{FILE}/Annotations/a.xml").write_text(f"<a><object><name>{name}</name></object></a>", encoding="utf-8")
    return [
        (["train", "rois.prototxt", "--roidb", "classes.json"], WILD_SHOWN),
        (["train", "rois.prototxt", "--roidb", "images.json"], ("2 classes",)),
        (["train", "rois.prototxt", "--roidb", f"voc{FILE}"], (*FILE_SHOWN, "[/][link=http://x]:skull:\\u202e\\x9b")),
        (["train", f"{FILE}.prototxt", "--log", "lines.log", "--out", f"trained{FILE}"], (*SHOWN, *FILE_SHOWN)),
        (["train", f"{FILE}.prototxt", "--weights", _weights()], (*SHOWN, *FILE_SHOWN)),
        (["train", f"{FILE}.prototxt", "--snapshot-prefix", FILE], (*FILE_SHOWN, "not UTF-8")),
        (["train", f"{FILE}.prototxt", "--snapshot", f"{FILE}.solverstate"], FILE_SHOWN),
    ]


def train_alternating() -> list[Case]:
    make_small_alternating()
    shutil.copytree("faster_rcnn_alt_opt", f"other{FILE}")
    photo(FILE[:-1])
    one = {"image": FILE[:-1], "boxes": [[0, 0, 20, 20]], "classes": [WILD]}
    Path("images.json").write_text(json.dumps({"classes": ["cat", WILD], "images": [one]}))
    Path(f"w{FILE}.caffemodel").write_bytes(Path("ZF.v2.caffemodel").read_bytes())
    given = ["--roidb", "images.json", "--cfg", "faster_rcnn_alt_opt.yml", "--weights", f"w{FILE}.caffemodel"]
    given += ["--iterations", "1,1"]
    Path(f"broken{OUT}").mkdir()
    Path(f"broken{OUT}/stages.json").write_text(json.dumps({"stage1_rpn": {"made_from": {WILD: WILD}, "made": MADE}}))
    return [
        (["train-alternating", "faster_rcnn_alt_opt", *given, "--out", f"out{OUT}"], (*OUT_SHOWN, "next: minicaffe detect")),
        (["train-alternating", "faster_rcnn_alt_opt", *given, "--out", f"out{FILE}"], (*FILE_SHOWN, "not UTF-8")),
        (["train-alternating", f"other{FILE}", *given, "--out", "new"], (*FILE_SHOWN, "call the folder faster_rcnn_alt_opt")),
        (["train-alternating", "faster_rcnn_alt_opt", *given, "--out", f"broken{OUT}"], (*OUT_SHOWN, *WILD_SHOWN[:4])),
        (["train-alternating", "faster_rcnn_alt_opt", *given, "--out", f"w{FILE}.caffemodel"], FILE_SHOWN),
    ]


def upgrade() -> list[Case]:
    old = NET.replace("layer {", "layers {").replace('"Input"', "DATA").replace('"Convolution"', "CONVOLUTION")
    old = (
        old.replace('"Power"', "POWER")
        .replace('"BatchNorm"', "BNLL")
        .replace("input_param { shape { dim: 1 dim: 2 dim: 4 dim: 4 } }", "")
    )
    Path("old.prototxt").write_text(old, encoding="utf-8")
    return [(["upgrade", "old.prototxt", f"{FILE}.prototxt"], FILE_SHOWN)]


def classify() -> list[Case]:
    net = 'input: "data" input_shape { dim: 1 dim: 3 dim: 4 dim: 5 }\n'
    net += 'layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip"'
    net += ' inner_product_param { num_output: 2 } } layer { name: "p" type: "Softmax" bottom: "ip" top: "p" }'
    Path(f"{FILE}.prototxt").write_text(net)
    photo(f"{FILE}.png")
    Path("labels.txt").write_text(f"{NAME[:-1]}\x1b[5m\na\n", encoding="utf-8")
    arguments = ["classify", f"{FILE}.prototxt", "--random-weights", f"{FILE}.png", "--classes", "labels.txt"]
    return [(arguments, (*SHOWN[:-1], *FILE_SHOWN)), ([*arguments, "--blob", f"{FILE}x"], FILE_SHOWN)]


def _one_convolution(outputs: int, height: int, width: int) -> None:
    """Write a net of one convolution and an image."""
    net = f'input: "data" input_shape {{ dim: 1 dim: 3 dim: {height} dim: {width} }}\n'
    net += f'layer {{ name: "conv" type: "Convolution" bottom: "data" top: "{NAME}"'
    net += f" convolution_param {{ num_output: {outputs} kernel_size: 1 }} }}"
    Path(f"{FILE}.prototxt").write_text(net, encoding="utf-8")
    photo(f"{FILE}.png")


def pose() -> list[Case]:
    _one_convolution(57, 8, 8)
    arguments = ["pose", f"{FILE}.prototxt", "--random-weights", f"{FILE}.png", "--height", "16"]
    return [
        ([*arguments, "--out", f"out{OUT}"], (*FILE_SHOWN, *OUT_SHOWN)),
        ([*arguments, "--blob", "data"], (*FILE_SHOWN, "no output that holds an OpenPose net's maps")),
        ([*arguments, "--blob", NAME, "--blob", NAME], SHOWN),
    ]


def read() -> list[Case]:
    net = 'input: "data" input_shape { dim: 1 dim: 3 dim: 1 dim: 5 }\n'
    net += f'layer {{ name: "t" type: "Transpose" bottom: "data" top: "{NAME}"'
    net += " transpose_param { dim: 3 dim: 0 dim: 1 dim: 2 } }"
    Path(f"{FILE}.prototxt").write_text(net, encoding="utf-8")
    photo(f"{FILE}.png")
    arguments = ["read", f"{FILE}.prototxt", "--random-weights", f"{FILE}.png", "--alphabet", "\x1b\u202e"]
    return [(arguments, FILE_SHOWN)]


def segment() -> list[Case]:
    _one_convolution(2, 4, 5)
    Path("labels.txt").write_text(f"{NAME[:-1]}\x1b[5m\n{NAME[:-1]}\x1b[5m\n", encoding="utf-8")
    arguments = ["segment", f"{FILE}.prototxt", "--random-weights", f"{FILE}.png", "--classes", "labels.txt"]
    return [([*arguments, "--out", f"out{OUT}"], (*SHOWN[:-1], *FILE_SHOWN, *OUT_SHOWN))]


def evaluate() -> list[Case]:
    arguments = ["evaluate", *_detector()[:-2]]
    photo(f"{FILE}.png")
    names = Path("names.txt").read_text(encoding="utf-8").splitlines()
    images = [{"image": f"{FILE}.png", "boxes": [[1, 2, 3, 4]], "classes": [names[0]]}]
    Path(f"{FILE}.json").write_text(json.dumps({"classes": names, "images": images}))
    return [([*arguments, f"{FILE}.json", "--json", OUT, "--draw", f"{OUT}.png"], (*SHOWN[:-1], *OUT_SHOWN))]


def features() -> list[Case]:
    arguments = ["features", *_detector(), "--blob", "cls_prob", "--min", "1"]
    photo(f"{FILE}.png")
    Path(f"{FILE}\nb.png").write_bytes(b"no picture")
    return [
        ([*arguments, f"{FILE}.png", "--out", f"out{OUT}"], OUT_SHOWN),
        ([*arguments, f"{FILE}.png", f"{FILE}\nb.png", "--out", "out"], (*FILE_SHOWN, "\\nb.png")),
        ([*arguments[:-4], "--blob", NAME, f"{FILE}.png", "--out", "out"], ("[/][link=http://x]:skull:\\u202e",)),
    ]


def port() -> list[Case]:
    Path("old").mkdir()
    os.chdir("old")
    net = _net(QUIET)
    Net(net, TEST).save(f"{FILE}.caffemodel")
    Path(f"{FILE}.txt").write_text(f"{NAME[:-1]}\x1b[5m\na\n")
    os.symlink(f"{FILE}gone", "link")
    os.chdir("..")
    return [(["port", "old", "-o", f"report{OUT}"], (*FILE_SHOWN, "[/][link=http://x]:skull:\\u202e"))]


def to_torch() -> list[Case]:
    net = _net(QUIET)
    Net(net, TEST).save("w.caffemodel")
    return [(["to-torch", net, "w.caffemodel", "-o", "model.py", "--seed", "1"], ("written: model.py",))]


CASES: Mapping[str, Callable[[], list[Case]]] = {
    function.__name__.rstrip("_").replace("_", "-"): function
    for function in (
        classify, compare, compute_image_mean, convert_annoset, convert_imageset, cut, deploy, detect, device_query, docs,
        doctor, draw, dump, evaluate, explain, export, extract_features, features, film, flow, forks, import_, layers, live,
        merge_bn, new, parse_log, port, pose, read, rescue, retarget, run, script, segment, summary, test, time, to_torch,
        trace, trace_diff, train, train_alternating, upgrade,
    )
}  # fmt: skip
"""By command: makes its files in the working directory, and returns what to call it with."""


def to_pipe(arguments: Sequence[str]) -> str:
    """Return the output of a command whose stdout and stderr are no terminal."""
    found = CliRunner().invoke(main, list(arguments), catch_exceptions=False)
    return found.output_bytes.decode("utf-8", "surrogateescape") if hasattr(found, "output_bytes") else found.output


def to_terminal(arguments: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the output of a command in a terminal, with newlines as written."""
    master, slave = pty.openpty()
    modes = termios.tcgetattr(slave)
    modes[1] &= ~termios.OPOST
    termios.tcsetattr(slave, termios.TCSANOW, modes)
    parts: list[bytes] = []

    def read() -> None:
        while True:
            try:
                parts.append(os.read(master, 1 << 16))
            except OSError:
                return

    reader = threading.Thread(target=read)
    with open(slave, "w", encoding="utf-8") as stream, monkeypatch.context() as patch:
        for name, value in {"TERM": "xterm-256color", "COLUMNS": "200", "LINES": "50"}.items():
            patch.setenv(name, value)
        for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
            patch.delenv(name, raising=False)
        patch.setattr(sys, "stdout", stream)
        patch.setattr(sys, "stderr", stream)
        reader.start()
        try:
            main(list(arguments), prog_name="minicaffe")
        except SystemExit:
            stream.flush()
    reader.join()
    os.close(master)
    return b"".join(parts).decode("utf-8", "surrogateescape")
