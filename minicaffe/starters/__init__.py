"""Starter folders: the files of a detector that trains on a user's classes, as `minicaffe new` writes them.

    files_of("ssd", ["cat", "dog"])          # {"train.prototxt": ..., "test.prototxt": ..., "solver.prototxt": ..., ...}

Each net is a function of the number of classes and of the phase (rcnn.py, single_shot.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from minicaffe.detection.family import SSD_MEANS
from minicaffe.formats.prototxt import to_text
from minicaffe.proto import caffe_pb2

from .rcnn import rfcn, zf
from .single_shot import MOBILE, SMALL, Images, mobilenet_ssd, ssd

README = "README.md"


@dataclass(frozen=True)
class Starter:
    """A detector to start with.

    about: one line. net: its prototxt, of the number of classes with the background, and whether it trains. rates: the solver's
    type, rate, policy and clipping. iterations: its max_iter. weights: what --weights may name. settings: the yml for --cfg.
    images: of an SSD.
    """

    about: str
    net: Callable[[int, bool], caffe_pb2.NetParameter]
    rates: str
    iterations: int
    weights: str = ""
    settings: str = ""
    images: Images | None = None


SMALL_RFCN_SETTINGS = """TRAIN:
  HAS_RPN: True
  PROPOSAL_METHOD: gt
  IMS_PER_BATCH: 1
  SCALES: [240]
  MAX_SIZE: 400
  BATCH_SIZE: 64
  FG_FRACTION: 0.5
  BG_THRESH_LO: 0.0
  BBOX_NORMALIZE_TARGETS_PRECOMPUTED: True
  RPN_POSITIVE_OVERLAP: 0.6
  RPN_PRE_NMS_TOP_N: 2000
  RPN_POST_NMS_TOP_N: 200
  RPN_MIN_SIZE: 8
TEST:
  HAS_RPN: True
  SCALES: [300]
  MAX_SIZE: 480
  RPN_PRE_NMS_TOP_N: 3000
  RPN_POST_NMS_TOP_N: 300
  RPN_MIN_SIZE: 8
"""
END_TO_END_SETTINGS = """TRAIN:
  HAS_RPN: True
  PROPOSAL_METHOD: gt
  IMS_PER_BATCH: 1
  BG_THRESH_LO: 0.0
  BBOX_NORMALIZE_TARGETS_PRECOMPUTED: True
TEST:
  HAS_RPN: True
"""

STARTERS: Mapping[str, Starter] = {
    "ssd": Starter(
        "a small SSD (192 x 192) that trains from scratch on a CPU",
        ssd,
        'type: "Adam"\nbase_lr: 0.002\nmomentum2: 0.999\nlr_policy: "poly"\npower: 1\nclip_gradients: 10\n',
        8000,
        images=SMALL,
    ),
    "rfcn": Starter(
        "a small R-FCN (short side 240) that trains from scratch on a CPU",
        rfcn,
        'base_lr: 0.02\nlr_policy: "poly"\npower: 1\nclip_gradients: 10\n',
        12000,
        settings=SMALL_RFCN_SETTINGS,
    ),
    "zf": Starter(
        "a Faster R-CNN on ZF (short side 600), to start from ImageNet's weights",
        zf,
        'base_lr: 0.001\nlr_policy: "step"\nstepsize: 6000\ngamma: 0.1\niter_size: 2\n',
        8000,
        weights="ZF.v2.caffemodel",
        settings=END_TO_END_SETTINGS,
    ),
    "mobilenet-ssd": Starter(
        "MobileNet-SSD (300 x 300), to start from published weights with BatchNorm",
        mobilenet_ssd,
        'base_lr: 0.005\nlr_policy: "multistep"\nstepvalue: 5000\nstepvalue: 7000\ngamma: 0.1\nclip_gradients: 10\n'
        "warmup_iter: 200\nwarmup_start_lr: 0.0005\n",
        8000,
        weights="mobilenet_iter_73000.caffemodel",
        images=MOBILE,
    ),
}


def files_of(detector: str, classes: Sequence[str]) -> dict[str, str]:
    """Return the text of each file of a starter folder, by name. classes: the names without the background."""
    starter = STARTERS[detector]
    number = 1 + len(classes)
    heading = f"# {starter.about[0].upper()}{starter.about[1:]}. {len(classes)} classes and the background.\n"
    files = {
        "train.prototxt": heading + to_text(starter.net(number, True)),
        "test.prototxt": heading + to_text(starter.net(number, False)),
        "solver.prototxt": _solver(detector),
        "classes.txt": "".join(f"{name}\n" for name in classes),
    }
    if starter.settings:
        files[f"{detector}.yml"] = starter.settings
    return files | {README: _readme(detector, len(classes))}


def _solver(detector: str) -> str:
    starter = STARTERS[detector]
    return f"""train_net: "train.prototxt"
{starter.rates}momentum: 0.9
weight_decay: 0.0005
max_iter: {starter.iterations}
display: 20
average_loss: 20
snapshot: {starter.iterations // 8}
snapshot_prefix: "{detector}"
"""


def _readme(detector: str, classes: int) -> str:
    starter = STARTERS[detector]
    settings = f" --cfg {detector}.yml" * bool(starter.settings)
    preparation = settings + " --classes classes.txt"
    if starter.images and starter.images.means != SSD_MEANS:  # which the commands know
        means = ",".join(f"{mean:g}" for mean in starter.images.means)
        preparation += f" --mean {means} --scale-factor {starter.images.scale:g}"
    snapshot = f"{detector}_iter_{starter.iterations}.caffemodel"
    test = f"test.prototxt {snapshot}"
    weights = f"\n    --weights {starter.weights}" * bool(starter.weights)
    augment = ""
    if starter.settings:  # an SSD's prototxt has its augmentation
        augment = "\nIf you have few images, try `--augment distort,expand=1.5,crop=0.5`, which changes them at random."
    start = ""
    if starter.weights:
        start = f"\nDownload the published weights `{starter.weights}` first. Training without `--weights` takes much longer.\n"
    return f"""# {starter.about[0].upper()}{starter.about[1:]}

The net finds {classes} classes ([classes.txt](classes.txt)). Run the commands in this folder.
`train.json` and `val.json` stand for your annotations: COCO or minicaffe's JSON, CSV, or a folder of VOC, YOLO or labelImg.
{start}
Train the net, and measure it on other images while it trains:

    minicaffe train solver.prototxt --roidb train.json --val val.json --classes classes.txt{settings}{weights}

Measure the last snapshot:

    minicaffe evaluate {test} val.json{preparation}

Find objects in a photo:

    minicaffe detect {test} photo.jpg{preparation} --draw detections

Look at every layer at work:

    minicaffe trace {test} --image photo.jpg{preparation} -o trace.html

`--epochs`, `--batch` and `--lr` of `train` change the length, the batch and the learning rate.{augment}
"""
