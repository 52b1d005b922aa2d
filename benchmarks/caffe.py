"""Detection nets beside Caffe, forward and a training step.

    python -m benchmarks caffe --caffe PYTHON --threads 1 --net "ZF=test.prototxt" --train "ZF=train.prototxt" [--write]

PYTHON is a Python that imports Caffe (pycaffe); it runs in a process of its own, in turns with minicaffe. float32, one image of
600 x 1000, random weights. Caffe gets the blobs that Python layers would make (rois, targets, images) as inputs, from a run of
minicaffe, which makes them itself in each run. ROIPooling, PSROIPooling and SmoothL1Loss, if this Caffe lacks them, are Python
layers that run the loops of roi.cpp. Outputs are compared first; after Dropout, which draws at random, they are not. Four
steps of training are run before the others are measured.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._contenders import both, same, same_rows
from benchmarks._loop import library
from benchmarks._nets import random_net
from benchmarks._report import OURS, PLAIN, Row, Table, named_files, options
from benchmarks._timing import interleaved
from benchmarks.nets import SIZE
from benchmarks.train import random_solver
from minicaffe import TEST, Net
from minicaffe.formats.values import is_repeated
from minicaffe.proto import caffe_pb2

HERE = Path(__file__).with_name("_caffe")
BLOCKS = {
    "ROIPooling": "roi_pooling_param",
    "PSROIPooling": "psroi_pooling_param",
    "SmoothL1Loss": "smooth_l1_loss_param",
    "SmoothL1LossOHEM": "loss_param",
}
"""The types of _caffe/caffe_layers.py, and where a prototxt has their sizes."""
SOLVER = 'train_net: "{folder}/net.prototxt" base_lr: 1e-4 momentum: 0.9 weight_decay: 5e-4 lr_policy: "fixed" solver_mode: CPU'


def main(arguments: Sequence[str] = ()) -> None:
    parser = options("caffe", __doc__ or "")
    parser.add_argument("--caffe", metavar="PYTHON", required=True, help="a Python that imports caffe")
    parser.add_argument("--net", action="append", default=[], metavar="NAME=FILE", help="a detection net's test prototxt")
    parser.add_argument("--train", action="append", default=[], metavar="NAME=FILE", help="a detection net's train prototxt")
    given = parser.parse_args(arguments)
    table = Table("caffe", ("net", "", "threads"), (*OURS, "Caffe"))
    for what, function, files in (("forward", forward, given.net), ("training step", training, given.train)):
        for name, file in named_files(files).items():
            if given.rows in name:
                table.add(Row((name, what, str(given.threads)), function(given.caffe, name, file)))
    if given.write:
        table.write()


def forward(python: str, name: str, file: Path) -> dict[str, float]:
    """Seconds of a forward."""
    made: list[Net] = []

    def make() -> dict[str, Callable[[], Any]]:
        made.append(random_net(file, (1, 3, *SIZE)))
        return {"run": made[-1].forward}

    runs = both(make)["run"]
    runs[PLAIN]()
    with caffe_process(python, made[0], "forward") as (run, outputs):
        for blob, y in outputs.items():
            same_rows(f"{name}, {blob}: minicaffe and Caffe", y, made[0].blobs[blob].read_data(), 1e-3)
        return interleaved({**runs, "Caffe": run}, seconds=8)


def training(python: str, name: str, file: Path) -> dict[str, float]:
    """Seconds of a training step."""
    made: list[Net] = []

    def make() -> dict[str, Callable[[], Any]]:
        solver = random_solver(str(file))
        made.append(solver.net)
        return {"run": lambda: solver.step(1)}

    runs = both(make)["run"]
    net = made[0]
    net.forward()
    random = any(layer.type == "Dropout" for layer in net.layers)
    with caffe_process(python, net, "step") as (run, outputs):
        for blob, y in outputs.items():
            if blob in net.blobs and (blob.startswith("rpn") or not random):
                same(f"{name}, {blob}: minicaffe and Caffe", y, net.blobs[blob].read_data().reshape(y.shape), 1e-3)
        # Warm up until each step reuses its memory.
        return interleaved({**runs, "Caffe": run}, least=5, seconds=12, warm_up=4)


@contextmanager
def caffe_process(python: str, net: Net, what: str) -> Iterator[tuple[Callable[[], None], dict[str, Any]]]:
    """Yield a process of Caffe with this net, as it is after a forward: a function that runs it, and its outputs."""
    with tempfile.TemporaryDirectory() as folder:
        param, given = for_caffe(net, types_of(python))
        Path(folder, "net.prototxt").write_text(str(param), encoding="utf-8")
        Path(folder, "solver.prototxt").write_text(SOLVER.format(folder=folder), encoding="utf-8")
        np.savez(Path(folder, "given.npz"), **given)
        net.save(Path(folder, "net.caffemodel"))
        command = [python, str(HERE / "process.py"), folder, what]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment()) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            source, sink = process.stdout, process.stdin

            def answered(word: str) -> None:
                if (line := source.readline().strip()) != word:
                    raise SystemExit(f"Caffe: {line or 'it ended early'}")

            def run(command: str = what) -> None:
                sink.write(f"{command}\n")
                sink.flush()
                answered("done")

            answered("ready")
            run("outputs")
            yield run, dict(np.load(Path(folder, "outputs.npz")))
            sink.close()


def environment() -> dict[str, str]:
    """Return the environment of Caffe's process, without minicaffe and with little output."""
    return {**os.environ, "PYTHONPATH": str(HERE), "GLOG_minloglevel": "2"}


def types_of(python: str) -> set[str]:
    """Return the layer types that this Caffe has."""
    code = "import caffe; print(*caffe.layer_type_list())"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False, env=environment())
    if done.returncode:
        raise SystemExit(f"{python} imports no Caffe: {(done.stderr.strip().splitlines() or [''])[-1]}")
    return set(done.stdout.split())


def for_caffe(net: Net, types: Collection[str]) -> tuple[caffe_pb2.NetParameter, dict[str, Any]]:
    """Return the net's prototxt for a Caffe with these layer types, and the blobs that it gets as inputs."""
    param = caffe_pb2.NetParameter()
    param.CopyFrom(net.param)
    given = {name: net.blobs[name].read_data() for name in net.inputs}
    for layer in param.layer:
        without_forks(layer, net)
        if layer.type in BLOCKS and layer.type not in types and (layer.type != "SmoothL1LossOHEM" or any(layer.loss_weight)):
            in_python(layer)
        elif layer.type not in types or layer.type == "Python":
            tops = list(layer.top)
            given |= {top: net.blobs[top].read_data() for top in tops}
            layer.CopyFrom(caffe_pb2.LayerParameter(name=layer.name, type="Input", top=tops))
            for top in tops:
                layer.input_param.shape.add().dim.extend(net.blobs[top].shape)
    return param, given


def without_forks(layer: caffe_pb2.LayerParameter, net: Net) -> None:
    """Express py-R-FCN's fields in BVLC's."""
    if layer.dropout_param.HasField("scale_train"):  # scale_train: TRAIN scales, else TEST does
        if net.phase == TEST and not layer.dropout_param.scale_train:
            layer.type, layer.power_param.scale = "Power", 1 - layer.dropout_param.dropout_ratio
        layer.dropout_param.ClearField("scale_train")
    if layer.type == "SoftmaxWithLoss" and layer.loss_param.HasField("pre_fixed_normalizer"):
        weight = net.blobs[layer.bottom[0]].shape[0] / layer.loss_param.pre_fixed_normalizer
        layer.loss_weight[:] = [weight * (layer.loss_weight[0] if layer.loss_weight else 1)]
        layer.loss_param.ClearField("pre_fixed_normalizer")
        layer.loss_param.normalization = caffe_pb2.LossParameter.BATCH_SIZE


def in_python(layer: caffe_pb2.LayerParameter) -> None:
    """Replace the layer by one of _caffe/caffe_layers.py."""
    sizes = getattr(layer, BLOCKS[layer.type])
    fields = [field for field in sizes.DESCRIPTOR.fields if not is_repeated(field)]
    values: dict[str, Any] = {field.name: getattr(sizes, field.name) for field in fields}
    if layer.type == "SmoothL1LossOHEM":
        values = {"divisor": sizes.pre_fixed_normalizer}
    if layer.type.startswith("SmoothL1") and not layer.loss_weight:
        layer.loss_weight.append(1)
    layer.ClearField(BLOCKS[layer.type])
    layer.python_param.module, layer.python_param.layer = "caffe_layers", layer.type
    layer.python_param.param_str = json.dumps({**values, "library": str(library())})
    layer.type = "Python"
