"""Compare every blob of published nets (../shared/wild) with OpenCV 4's dnn on random weights. By hand, not in CI.

    pip install --target FOLDER "opencv-python-headless<5"    # 5 reads no Caffe nets
    PYTHONPATH=.:FOLDER python tests/opencv_models.py [--match TEXT] [--most G]

The nets of tests/wild_models.py in TEST, without losses and accuracies, up to G thousand million multiply-adds. OpenCV reads
the prototxt as published if it begins with inputs, else the net with made-up data; it fuses nothing. A difference is relative
to the largest number of its blob. Left out are nets with a layer that OpenCV lacks. The exit status is 1 where a difference
is above 1e-5: known are BatchNorms over a batch of one image, whose variances near 0 enlarge roundings.
"""

from __future__ import annotations

import argparse
import gc
import os
import re
import sys
import tempfile
import time
import warnings
from collections import Counter
from pathlib import Path

import cv2
import numpy as np
from published_models import randomize
from support.made_up_data import build, fill, is_data, keep_in_range
from wild_models import WILD, files, multiply_adds

from minicaffe import TEST, Error, Net, set_random_seed
from minicaffe.formats.prototxt import read_net, to_text
from minicaffe.layers.data.input import Input
from minicaffe.layers.shape.split import Split
from minicaffe.proto import caffe_pb2

LIMIT = 1e-5
UNCOMPARED = {"Accuracy", "Silence", "DetectionEvaluate", "HDF5Output", "DetectionOutput"}
"""Without a counterpart in OpenCV, like the losses; and DetectionOutput, in which a rounding changes which boxes stay."""


def without_ends(net: Net) -> caffe_pb2.NetParameter:
    """Return the net without losses, accuracies, and inputs and Splits that only these read."""
    param, read = caffe_pb2.NetParameter(name=net.name), set[str]()
    kept = []
    for layer in reversed(net.layers):
        leads_on = read & set(layer.param.top)
        unread = isinstance(layer, Split | Input) and not leads_on
        if not (layer.is_loss or layer.type in UNCOMPARED or unread):
            kept.append(layer.param)
            read |= set(layer.param.bottom)
    param.layer.extend(reversed(kept))
    for layer in param.layer:
        if layer.type == "Input":
            shapes = dict(zip(layer.top, layer.input_param.shape, strict=False))
            layer.top[:] = [top for top in layer.top if top in read]
            if len(shapes) > 1:
                del layer.input_param.shape[:]
                layer.input_param.shape.extend(shapes[top] for top in layer.top)
    return param


def compare(path: Path, most: float) -> tuple[float, str]:
    """Return the largest relative difference of any blob, and the blob's name."""
    published = read_net(path).param.layer
    made = build(path, TEST)
    layers = len(made.net.layers)
    net = Net(without_ends(made.net), TEST)
    randomize(net, 4)
    made.net = net
    one_image(net)
    cost = multiply_adds(net)
    if cost > most * 1e9:
        return 0.0, f"left out: {cost / 1e9:.0f} G multiply-adds"
    fill(made, seed=5)
    keep_in_range(net)
    net.forward()
    net.save("net.caffemodel")
    text = path.read_text(errors="replace")
    # OpenCV's Crop without offsets does not align
    changed = any(is_data(layer) or (layer.type == "Crop" and not layer.HasField("crop_param")) for layer in published)
    unedited = not changed and len(net.layers) == layers
    Path("net.prototxt").write_text(text if unedited else to_text(net.param))
    theirs = opencv_blobs(net)
    net.forward()
    worst, where, count = 0.0, "", 0
    for name in theirs.keys() - fractional_priors(net) - set(net.inputs):
        blob = net.blobs[name]
        found, ours = theirs[name], blob.data
        count += 1
        difference = np.inf
        if found.size == ours.size:
            scale = float(np.abs(ours).max(initial=0)) or 1.0
            difference = float(np.abs(found.reshape(ours.shape) - ours).max(initial=0)) / scale
        if not difference <= worst:
            worst, where = difference, f"{name} {ours.shape}" + ("" if found.size == ours.size else f" against {found.shape}")
    said = f"{count} blobs, {'unedited' if unedited else 'with made-up inputs'}"
    return worst, f"{said}, worst {worst:.1e} {where}"


def fractional_priors(net: Net) -> set[str]:
    """Return the priors, also joined, of sizes that SSD's code cuts to whole numbers, and OpenCV's does not."""
    found: set[str] = set()
    for layer in net.layers:
        sizes = [*layer.param.prior_box_param.min_size, *layer.param.prior_box_param.max_size]
        if any(size % 1 for size in sizes) or (layer.type in ("Concat", "Split") and found & set(layer.param.bottom)):
            found |= set(layer.param.top)
    return found


def one_image(net: Net) -> None:
    """Reshape each input to one image, if the net accepts it."""
    shapes = {name: net.blobs[name].shape for name in net.inputs}
    try:
        for name, shape in shapes.items():
            if len(shape) == 4:
                net.blobs[name].reshape(1, *shape[1:])
        net.reshape()
    except Error:
        for name, shape in shapes.items():
            net.blobs[name].reshape(shape)
        net.reshape()


def opencv_blobs(net: Net) -> dict[str, np.ndarray]:
    """OpenCV's data of each blob of net after the last layer that writes it."""
    model = cv2.dnn.readNetFromCaffe("net.prototxt", "net.caffemodel")
    model.enableFusion(False)
    model.enableWinograd(False)
    for name in net.inputs:
        model.setInput(net.blobs[name].data, name)
    shared = Counter(layer.name for layer in net.layers)
    layers = {name for name in model.getLayerNames() if shared[name] < 2}  # outputs are requested by layer name
    last = {top: (layer.name, j) for layer in net.layers for j, top in enumerate(layer.param.top)}
    wanted = {top: place for top, place in last.items() if place[0] in layers and net.layer_dict[place[0]].type != "Split"}
    names = sorted({name for name, j in wanted.values() if j == 0})  # OpenCV reuses the memory of a layer's other tops
    found = dict(zip(names, model.forwardAndRetrieve(names), strict=True))
    return {top: found[name][0] for top, (name, j) in wanted.items() if j == 0}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--match", default="", help="only files whose path holds this text")
    parser.add_argument("--most", type=float, default=1e6, help="thousand million multiply-adds of the largest net")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    chosen = [path for path in files() if arguments.match in str(path)]
    folder = tempfile.TemporaryDirectory()
    os.chdir(folder.name)
    agree = compared = 0
    for path in chosen:
        start = time.perf_counter()
        set_random_seed(3)
        name = path.relative_to(WILD)
        try:
            worst, said = compare(path, arguments.most)
        except Error as error:
            print(f"-       {name}: minicaffe: {' '.join(str(error).split())[:160]}", flush=True)
            continue
        except cv2.error as error:
            why = re.sub(r"\s+", " ", str(error))
            print(f"-       {name}: OpenCV: {why[:260]}", flush=True)
            continue
        finally:
            gc.collect()
        if " blobs, " not in said:
            print(f"-       {name}: {said}", flush=True)
            continue
        compared += 1
        agree += worst <= LIMIT
        print(f"{'agrees' if worst <= LIMIT else 'DIFFERS':7} {name}: {said} ({time.perf_counter() - start:.1f} s)", flush=True)
    print(f"OpenCV {cv2.__version__}: {agree} of {compared} nets agree to {LIMIT:g} in every blob")
    return 0 if agree == compared else 1


if __name__ == "__main__":
    sys.exit(main())
