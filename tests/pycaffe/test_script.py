"""`minicaffe script`: scripts in the style of BVLC's notebooks and of py-faster-rcnn's tools (tests/scripts), as they stand."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from forked import forked, needs_fork
from PIL import Image

import minicaffe
from minicaffe import TEST, Net, kernels, mode, set_random_seed
from minicaffe.cli import main
from minicaffe.formats.prototxt import parse_net
from minicaffe.layers.python import python
from minicaffe.pycaffe.io import array_to_datum
from minicaffe.pycaffe.script import run_script

SCRIPTS = Path(__file__).parents[1] / "scripts"
FRCNN = SCRIPTS / "frcnn"
ROOT = Path(__file__).parents[2]

pytestmark = needs_fork

CLASSIFIER = """name: "small"
input: "data" input_shape { dim: 1 dim: 3 dim: 12 dim: 16 }
layer { name: "conv1" type: "Convolution" bottom: "data" top: "conv1"
  convolution_param { num_output: 6 kernel_size: 3 weight_filler { type: "xavier" } } }
layer { name: "relu1" type: "ReLU" bottom: "conv1" top: "conv1" }
layer { name: "pool1" type: "Pooling" bottom: "conv1" top: "pool1" pooling_param { kernel_size: 2 stride: 2 } }
layer { name: "fc" type: "InnerProduct" bottom: "pool1" top: "fc"
  inner_product_param { num_output: 10 weight_filler { type: "xavier" } bias_filler { type: "constant" value: 0.1 } } }
layer { name: "score" type: "InnerProduct" bottom: "fc" top: "score"
  inner_product_param { num_output: 4 weight_filler { type: "xavier" } } }
layer { name: "prob" type: "Softmax" bottom: "score" top: "prob" }
"""

CONVOLUTIONAL = (
    CLASSIFIER.replace(
        'name: "fc" type: "InnerProduct" bottom: "pool1" top: "fc"\n  inner_product_param { num_output: 10',
        'name: "fc-conv" type: "Convolution" bottom: "pool1" top: "fc"\n'
        "  convolution_param { num_output: 10 kernel_h: 5 kernel_w: 7",
    )
    .replace('name: "score" type: "InnerProduct"', 'name: "score-conv" type: "Convolution"')
    .replace("inner_product_param { num_output: 4", "convolution_param { num_output: 4 kernel_size: 1")
)


def run(script: Path | str, *arguments: object, options: tuple[str, ...] = (), status: int = 0, cwd: Path | None = None) -> str:
    """What a script prints; with a status that is no success, what it writes to stderr."""

    def work() -> None:
        for name, module in list(sys.modules.items()):
            if str(getattr(module, "__file__", "")).startswith(str(SCRIPTS.parent)):
                del sys.modules[name]  # a script may have modules of the same names as the tests' own
        main(["script", *options, str(script), *map(str, arguments)])

    with kernels.using("numpy"):  # each fork would load compiled loops anew
        done = forked(work, cwd)
    assert done.status == status, done.stderr
    return done.stderr if status else done.stdout


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """The small classifier's prototxt and weights."""
    set_random_seed(5)
    (tmp_path / "deploy.prototxt").write_text(CLASSIFIER)
    net = Net(parse_net(CLASSIFIER), TEST)
    net.save(tmp_path / "small.caffemodel")
    return tmp_path / "small.caffemodel"


def test_classification(weights: Path, tmp_path: Path) -> None:
    random = np.random.default_rng(2)
    Image.fromarray(random.integers(0, 256, (30, 40, 3), np.uint8)).save(tmp_path / "image.png")
    np.save(tmp_path / "mean.npy", np.full((3, 5, 7), 100.0))
    out = run(
        SCRIPTS / "classify_image.py",
        tmp_path / "deploy.prototxt", weights, tmp_path / "image.png", tmp_path / "mean.npy", tmp_path / "filters.png",
    )  # fmt: skip
    lines = out.splitlines()
    assert "mean-subtracted values: [('B', 100.0), ('G', 100.0), ('R', 100.0)]" in lines
    assert "probabilities sum to 1.000" in lines
    assert "conv1\t(5, 6, 10, 14)" in lines and "fc\t(10, 210) (10,)" in lines
    assert "features: (6, 10, 14) positive: True" in lines
    assert "stopped at: ['pool1']" in lines and "the same from there on: True" in lines
    assert any(line.startswith("classifier: (2, 4) top: ") for line in lines)
    with Image.open(tmp_path / "filters.png") as picture:
        assert picture.size == (12, 12)


def test_deep_visualization(weights: Path, tmp_path: Path) -> None:
    lines = run(SCRIPTS / "deep_vis.py", tmp_path / "deploy.prototxt", weights, tmp_path / "pictures.npz").splitlines()
    assert lines[0] == "caffe version provides all required functions. Good!"
    assert [line.partition(", ")[0] for line in lines[1:4]] == [f"{mode}: (1" for mode in ("grad", "deconv", "guided")]
    assert lines[4:] == ["they differ: True True", "weights' diffs: 0.0"]
    assert {picture.shape for picture in np.load(tmp_path / "pictures.npz").values()} == {(12, 16, 3)}


@pytest.mark.slow
def test_learning_lenet(tmp_path: Path) -> None:
    lmdb = pytest.importorskip("lmdb", reason="needs lmdb")
    random = np.random.default_rng(0)
    for name, count in (("train_lmdb", 96), ("test_lmdb", 40)):
        with lmdb.open(str(tmp_path / name), map_size=1 << 24) as db, db.begin(write=True) as writer:
            for i in range(count):
                image = random.integers(0, 60, (1, 10, 8), np.uint8)
                row, column = (i % 4) // 2, (i % 4) % 2
                image[0, 5 * row : 5 * row + 5, 4 * column : 4 * column + 4] += 150
                writer.put(b"%08d" % i, array_to_datum(image, i % 4).SerializeToString())
    lines = run(SCRIPTS / "learn_lenet.py", tmp_path).splitlines()
    assert "[('data', (16, 1, 10, 8)), ('label', (16,)), ('conv1', (16, 8, 8, 6)), " in lines[0]
    assert "train labels: [0, 1, 2, 3, 0, 1, 2, 3]" in lines
    assert "updated: True" in lines
    assert "iteration 61 lr 0.0498 loss fell: True" in lines
    assert "accuracy at the end 1.00" in lines


def test_net_surgery(weights: Path, tmp_path: Path) -> None:
    (tmp_path / "full_conv.prototxt").write_text(CONVOLUTIONAL)
    out = run(
        SCRIPTS / "net_surgery.py",
        tmp_path / "deploy.prototxt", weights, tmp_path / "full_conv.prototxt", tmp_path / "full_conv.caffemodel",
    )  # fmt: skip
    assert out.splitlines() == [
        "fc weights are (10, 210) dimensional and biases are (10,) dimensional",
        "score weights are (4, 10) dimensional and biases are (4,) dimensional",
        "the same score: True",
        "map: (3, 3)",
        "its first place: True",
    ]
    assert (tmp_path / "full_conv.caffemodel").is_file()


@pytest.mark.slow
def test_logistic_regression_from_hdf5(tmp_path: Path) -> None:
    pytest.importorskip("h5py", reason="needs h5py")
    out = run(SCRIPTS / "logistic_regression.py", tmp_path)
    name, accuracy = out.split()
    assert name == "Accuracy:" and float(accuracy) > 0.9
    assert (tmp_path / "logreg_iter_300.caffemodel").is_file()


def test_a_python_layer_beside_the_script_and_draw(tmp_path: Path) -> None:
    lines = run(SCRIPTS / "python_layer.py", tmp_path / "net.svg", cwd=tmp_path).splitlines()
    assert lines == [
        "types: ['Input', 'Python', 'Power']",
        "factor: 4 phase: 0 TRAIN",
        "forward: [[1.0, 5.0, 9.0], [13.0, 17.0, 21.0]]",
        "backward: [[4.0, 4.0, 4.0], [4.0, 4.0, 4.0]]",
    ]
    assert "Python TimesLayer" in (tmp_path / "net.svg").read_text()


# py-faster-rcnn's tools.


@pytest.fixture
def frcnn(tmp_path: Path) -> Path:
    """A folder with a small Faster R-CNN: test and train prototxts, weights, solver, four images and their roidb."""
    body = (FRCNN / "body.prototxt").read_text()
    inputs = 'input: "data" input_shape { dim: 1 dim: 3 dim: 96 dim: 128 }\ninput: "im_info" input_shape { dim: 1 dim: 3 }\n'
    prob = 'layer { name: "cls_prob" type: "Softmax" bottom: "cls_score" top: "cls_prob" }\n'
    test = inputs + body.replace("PROPOSALS", "rois").replace("TARGETS\n", "") + prob
    (tmp_path / "test.prototxt").write_text(test)
    set_random_seed(1)
    Net(tmp_path / "test.prototxt", TEST).save(tmp_path / "zf_small.caffemodel")
    random = np.random.default_rng(3)
    roidb = []
    for i in range(4):
        pixels = random.integers(90, 110, (96, 128, 3), np.uint8)
        pixels[20:70, 30 + 10 * i : 80 + 10 * i] = 220
        Image.fromarray(pixels).save(tmp_path / f"{i}.png")
        roidb.append(
            {"image": str(tmp_path / f"{i}.png"), "boxes": [[30 + 10 * i, 20, 79 + 10 * i, 69]], "gt_classes": [1 + i % 2]}
        )
    (tmp_path / "roidb.json").write_text(json.dumps(roidb))
    return tmp_path


def write_training(folder: Path, module: str) -> None:
    data = (
        'layer { name: "input-data" type: "Python" top: "data" top: "im_info" top: "gt_boxes"'
        f' python_param {{ module: "{module}" layer: "RoIDataLayer" param_str: "\'num_classes\': 3" }} }}\n'
    )
    body = (FRCNN / "body.prototxt").read_text().replace("PROPOSALS", "rpn_rois")
    body = body.replace("TARGETS\n", (FRCNN / "train_targets.prototxt").read_text())
    (folder / "train.prototxt").write_text(data + body + (FRCNN / "train_losses.prototxt").read_text())
    (folder / "solver.prototxt").write_text(
        f'train_net: "{folder}/train.prototxt" base_lr: 0.001 lr_policy: "step" gamma: 0.1 stepsize: 50000 display: 20\n'
        'average_loss: 100 momentum: 0.9 weight_decay: 0.0005 snapshot: 0 snapshot_prefix: "zf_small" iter_size: 2\n'
    )


def test_faster_rcnn_demo(frcnn: Path) -> None:
    out = run(FRCNN / "tools" / "demo.py", "--cpu", frcnn / "test.prototxt", frcnn / "zf_small.caffemodel", frcnn / "0.png")
    lines = out.split("\n")
    assert f"Loaded network {frcnn}/zf_small.caffemodel" in lines
    found = next(line for line in lines if line.startswith("Detection took place for"))
    count = found.split()[4]
    assert f"square: {count} boxes" in lines and f"disc: {count} boxes" in lines


def test_faster_rcnn_test_net_on_the_cpu(frcnn: Path) -> None:
    arguments = ("--def", frcnn / "test.prototxt", "--net", frcnn / "zf_small.caffemodel", frcnn / "0.png", frcnn / "1.png")
    out = run(FRCNN / "tools" / "test_net.py", *arguments, options=("--cpu",))
    assert "im_detect: 2/2" in out and "\nzf_small [[" in out
    stderr = run(FRCNN / "tools" / "test_net.py", *arguments, status=1)
    assert "DeviceError" in stderr and "caffe.set_mode_gpu()" in stderr and "minicaffe/" not in stderr
    assert stderr.endswith("hint: with --cpu, before the script's name, set_mode_gpu and set_device do nothing\n")


@pytest.mark.slow
def test_faster_rcnn_train_net_with_the_built_in_data_layer(frcnn: Path) -> None:
    write_training(frcnn, "roi_data_layer.layer")
    train(frcnn)


def test_faster_rcnn_train_net_with_the_scripts_own_data_layer(frcnn: Path) -> None:
    write_training(frcnn, "roi_data.layer")
    train(frcnn)


def train(folder: Path) -> None:
    out = run(
        FRCNN / "tools" / "train_net.py",
        "--solver", folder / "solver.prototxt", "--iters", 3, "--weights", folder / "zf_small.caffemodel",
        folder / "roidb.json",
        options=("--cpu",),
    )  # fmt: skip
    assert "Called with args: ['max_iters', 'pretrained_model', 'roidb', 'solver']" in out
    assert "done solving: 2 snapshots, losses finite: True" in out
    for iteration in (2, 3):
        assert (folder / f"zf_small_iter_{iteration}.caffemodel").is_file()


# What goes wrong.


def test_python_2_syntax_is_told_as_such(tmp_path: Path) -> None:
    (tmp_path / "old.py").write_text('import caffe\nprint "loaded"\n')
    stderr = run(tmp_path / "old.py", status=1)
    assert f"{tmp_path}/old.py:2: Missing parentheses" in stderr and "2to3" in stderr


def test_python_2_names_are_told_as_such(tmp_path: Path) -> None:
    (tmp_path / "names.py").write_text("import caffe\nfor i in xrange(3):\n    print(i)\n")
    stderr = run(tmp_path / "names.py", status=1)
    assert "NameError" in stderr and 'names.py", line 2' in stderr and "2to3" in stderr
    assert "2to3" not in run_text(tmp_path, "undefined_name\n", 1)


def test_another_command_may_follow_in_the_process(tmp_path: Path) -> None:
    (tmp_path / "text.py").write_text("import caffe\ncaffe.set_device(99)\ncaffe.set_mode_gpu()\n")

    def work() -> None:
        before = minicaffe.set_mode_gpu, minicaffe.set_device, python._allowed.copy()
        main(["script", "--cpu", "text.py"], standalone_mode=False)
        assert (minicaffe.set_mode_gpu, minicaffe.set_device, python._allowed) == before
        Path("text.py").write_text("from minicaffe import mode\nmode._gpu = True\n")  # as on a machine with a GPU
        main(["script", "text.py"], standalone_mode=False)
        assert not mode.gpu_mode()

    done = forked(work, tmp_path)
    assert done.status == 0, done.stderr


def run_text(folder: Path, text: str, status: int = 0) -> str:
    (folder / "text.py").write_text(text)
    return run(folder / "text.py", "-h", "--x=1", status=status, cwd=folder)


@pytest.mark.slow
def test_the_script_has_what_python_gives_it(tmp_path: Path) -> None:
    """As a process of its own; the other tests fork this one."""
    text = "import sys, __main__\nprint(__name__, __file__, sys.argv[1:], sys.path[0], __main__.__file__ == __file__)\n"
    (tmp_path / "text.py").write_text(text)
    command = [sys.executable, "-W", "error", "-m", "minicaffe", "script", str(tmp_path / "text.py"), "-h", "--x=1"]
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": paths, "MINICAFFE_LOOPS": "numpy"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path, env=environment)
    assert done.stdout == f"__main__ {tmp_path}/text.py ['-h', '--x=1'] {tmp_path} True\n"
    run_text(tmp_path, "import sys\nsys.exit(3)\n", 3)


def test_no_such_script(tmp_path: Path) -> None:
    assert "none.py: no such file" in run(tmp_path / "none.py", status=1)


def test_every_way_to_import(tmp_path: Path) -> None:
    text = """
import caffe, caffe.draw, caffe.io, caffe.net_spec, caffe.coord_map, caffe.classifier, caffe.detector, caffe.layers
import minicaffe
import caffe.layers as L
from caffe import params as P, layers, to_proto
from caffe.pycaffe import Net
from caffe._caffe import SGDSolver, AdamSolver
from caffe.proto import caffe_pb2
import caffe.proto.caffe_pb2 as again
import numpy as np
assert caffe is minicaffe and caffe.draw is minicaffe.draw and caffe_pb2 is again is minicaffe.proto.caffe_pb2
assert L is layers is minicaffe.layers and Net is minicaffe.Net and SGDSolver is caffe.SGDSolver
assert caffe.draw.__spec__.name == "minicaffe.tracing.draw"
assert L.Convolution.__name__ == "Convolution" and P.Pooling.AVE == 1
try:
    import caffe.nothing
except ModuleNotFoundError as error:
    print(error)
print(np.float(2), np.int is int)
"""
    assert run_text(tmp_path, text).splitlines() == ["No module named 'caffe.nothing'", "2.0 True"]


def test_a_layer_of_the_script_itself(tmp_path: Path) -> None:
    """The module __main__, as notebooks name it."""
    (tmp_path / "main.py").write_text("""import caffe

class Twice(caffe.Layer):
    def setup(self, bottom, top):
        pass

    def reshape(self, bottom, top):
        top[0].reshape(*bottom[0].shape)

    def forward(self, bottom, top):
        top[0].data[...] = 2 * bottom[0].data

n = caffe.NetSpec()
n.x = caffe.layers.Input(shape=dict(dim=[2]))
n.y = caffe.layers.Python(n.x, module="__main__", layer="Twice")
net = caffe.Net(n.to_proto(), caffe.TEST)
net.blobs["x"].data[:] = 3, 4
print(net.forward()["y"].tolist())
""")
    assert run("main.py", cwd=tmp_path).strip() == "[6.0, 8.0]"


def test_modules_of_another_caffe_that_minicaffe_has_not(tmp_path: Path) -> None:
    """SSD's model_libs, on a path that the script adds; but minicaffe's own modules stay."""
    folder = tmp_path / "ssd" / "caffe"
    (folder / "more").mkdir(parents=True)
    (folder / "__init__.py").write_text("raise SystemExit('another Caffe')")
    (folder / "io.py").write_text("raise SystemExit('another io')")
    (folder / "model_libs.py").write_text("import caffe\nfrom caffe import layers as L\nmade = L.ReLU\n")
    (folder / "more" / "__init__.py").write_text("")
    (folder / "more" / "deep.py").write_text("depth = 2")
    (tmp_path / "main.py").write_text("""import sys
sys.path.insert(0, "ssd")
from caffe.model_libs import *
import caffe, caffe.io, caffe.more.deep
print(made.__name__, caffe.io.__name__, caffe.more.deep.depth)
try:
    import caffe.nowhere
except ImportError as error:
    print(error)
""")
    assert run("main.py", cwd=tmp_path).splitlines() == ["ReLU minicaffe.pycaffe.io 2", "No module named 'caffe.nowhere'"]


@pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux")
def test_its_processes_have_caffe_too(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text("""import multiprocessing as mp
import caffe

def child(queue):
    import caffe
    queue.put(caffe.TEST)

if __name__ == "__main__":
    queue = mp.Queue()
    process = mp.Process(target=child, args=[queue])
    process.start()
    print(queue.get(timeout=60), mp.get_start_method())
    process.join()
""")
    assert run("main.py", cwd=tmp_path).strip() == "TEST fork"


def test_names_that_numpy_dropped(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text("""import warnings
import numpy as np
warnings.simplefilter("ignore")  # an older NumPy still has some, and warns
print(np.float(1), np.Inf, np.NaN, np.float_(2), np.asscalar(np.array([3])), np.product([2, 3]), np.alltrue([1, 0]))
print(np.in1d([[1, 2], [3, 4]], [2, 3]).tolist())
image = np.fromstring(b"\\x01\\x02\\x03", np.uint8)
image[0] = 9
print(image.tolist(), np.fromstring("1 2", sep=" ").tolist(), np.fromstring(b"\\x01\\x00\\x02\\x00", dtype=np.int16).tolist())
""")
    assert run("main.py", cwd=tmp_path).splitlines() == [
        "1.0 inf nan 2.0 3 6 False",
        "[False, True, True, False]",
        "[9, 2, 3] [1.0, 2.0] [1, 2]",
    ]


def test_a_module_that_cannot_be_imported_leaves_the_built_in_layer(tmp_path: Path) -> None:
    (tmp_path / "rpn").mkdir()
    (tmp_path / "rpn" / "__init__.py").write_text("")
    (tmp_path / "rpn" / "proposal_layer.py").write_text("from compiled_nms import nms\n")
    layer = (
        'input: "a" input_shape { dim: 1 dim: 18 dim: 2 dim: 3 } input: "b" input_shape { dim: 1 dim: 36 dim: 2 dim: 3 } '
        'input: "im_info" input_shape { dim: 1 dim: 3 } '
        'layer { name: "p" type: "Python" bottom: "a" bottom: "b" bottom: "im_info" top: "rois" python_param '
        '{ module: "rpn.proposal_layer" layer: "ProposalLayer" param_str: "\'feat_stride\': 16" } }'
    )
    (tmp_path / "net.prototxt").write_text(layer)
    text = (
        "import warnings, caffe\n"
        "with warnings.catch_warnings(record=True) as caught:\n"
        "    warnings.simplefilter('always')\n"
        "    net = caffe.Net('net.prototxt', caffe.TEST)\n"
        "print(type(net.layers[1]).__name__, net.layers[1].type, str(caught[0].message))\n"
    )
    out = run_text(tmp_path, text)
    assert out.startswith("Proposal Python ")
    assert 'cannot import the Python module "rpn.proposal_layer"' in out and "minicaffe's own Proposal takes its place" in out


def test_its_log_ends_with_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Lines are shown while it runs, and not twice by the command that comes after it in this process."""
    logger = logging.getLogger("minicaffe")
    before = logger.level, logger.handlers[:]
    (tmp_path / "says.py").write_text("import caffe\ncaffe.log('a line')\nraise SystemExit\n")
    with pytest.raises(SystemExit):
        run_script(tmp_path / "says.py")
    assert "a line" in capsys.readouterr().err
    assert (logger.level, logger.handlers[:]) == before
