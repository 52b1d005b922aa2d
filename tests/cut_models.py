"""Cut whole nets in two, join them, and compare with the whole net, bit for bit; and weights through safetensors and back.

    python tests/cut_models.py [--match TEXT] [--brief]

The nets of examples/shapes, every net of ../shared/zoo, and of ../shared/models one test net of each project, backbone and
method, with seeded random weights, at 224x320. Each is cut at the blobs a third and two thirds of the way, if it has more than
one layer, and before its head, if it has one; its weights go to .safetensors and .npz and back to a .caffemodel by
minicaffe.dump. With --brief without the nets of more than 60 MB of weights. The exit status is 1 where a number differs.
"""

from __future__ import annotations

import argparse
import gc
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from exported_models import CIFAR, PUBLISHED, nets, with_noise
from published_models import MODELS, is_train, made_rois, randomize
from published_models import nets as published

from minicaffe import TEST, Error, Net
from minicaffe.dump import read
from minicaffe.formats.prototxt import read_net
from minicaffe.layer import Layer
from minicaffe.porting.cut import Part, cut, drop_head, run_parts

BRIEF = 60e6
"""Most bytes of weights of a net that --brief cuts."""


def families() -> Iterator[tuple[str, Callable[[], Net]]]:
    """A test net of each project, backbone and method."""
    met: set[tuple[str, ...]] = set()
    for path in published() if MODELS.is_dir() else ():
        project, *_, backbone, method, _ = path.relative_to(MODELS).parts
        if not is_train(path) and (project, backbone, method) not in met:
            met.add((project, backbone, method))
            yield f"{project} {backbone} {method}", family_net(path)


def family_net(path: Path) -> Callable[[], Net]:
    def make() -> Net:
        net = Net(path, TEST)
        randomize(net, 4)
        net.blobs["data"].reshape(1, 3, 224, 320)
        net.reshape()
        with_noise(net, 5)
        if "rois" in net.inputs:
            net.blobs["rois"].reshape(20, 5)
            net.blobs["rois"].data[...] = made_rois(20, (224, 320))
        return net

    return make


def more_of_the_zoo() -> Iterator[tuple[str, Callable[[], Net]]]:
    def sigmoid() -> Net:
        file = read_net(CIFAR / "cifar10_full_sigmoid_train_test.prototxt", warn=False)
        for layer in list(file.param.layer):
            if layer.type in ("Data", "Accuracy", "SoftmaxWithLoss"):
                file.param.layer.remove(layer)
        data = file.param.layer.add(name="data", type="Input", top=["data"])
        data.input_param.shape.add(dim=[2, 3, 32, 32])
        file.param.layer.insert(0, file.param.layer.pop())
        return with_noise(Net(file.param, TEST, weights=CIFAR / "cifar10_full_sigmoid_iter_60000.caffemodel"), 5)

    if CIFAR.is_dir():
        yield "cifar10_full_sigmoid", sigmoid


def check(name: str, make: Callable[[], Net], folder: Path, brief: bool) -> bool | None:
    """Print what was compared, or what differs; whether all is the same; None for a net that is left out."""
    start, net = time.perf_counter(), make()
    if brief and sum(blob.count * 4 for blob in net.learnable_params) > BRIEF:
        return None
    net.reshape()
    inputs = {blob: net.blobs[blob].data.copy() for blob in net.inputs}
    net.forward()
    expected = {blob: net.blobs[blob].data.copy() for blob in net.outputs}
    wrong, done = [], []
    for place, parts in ways(net):
        made = run_parts(parts, inputs)
        same = [blob for blob in made.keys() & expected if np.array_equal(made[blob], expected[blob], equal_nan=True)]
        done.append(place)
        if set(same) != made.keys() & expected or not same:
            wrong.append(f"cut at {place}: {sorted(made.keys() & expected - set(same)) or 'no output'}")
        gc.collect()
    wrong += [f"weights by way of {way}" for way in weights_differ(net, make_again(net), folder)]
    print(f"{name}: {'DIFFERS: ' + '; '.join(wrong) if wrong else 'the same'}, cut at {', '.join(done) or 'no place'}", end=" ")
    print(f"({len(net.layers)} layers, {time.perf_counter() - start:.1f} s)", flush=True)
    return not wrong


def ways(net: Net) -> Iterator[tuple[str, tuple[Part, Part]]]:
    """Pairs of parts, and where they meet."""
    inner = [layer for layer in net.layers if not (layer.is_split or layer.is_input) and layer.param.bottom]
    for third in (1, 2):
        if (blob := middle(net, inner, len(inner) * third // 3)) is None:
            continue
        rest = cut(net, [f"blob:{blob}"])
        ends = [f"blob:{name}" for name in rest.inputs if name not in net.inputs]
        yield blob, (cut(net, ends=ends), rest)
    try:
        yield "the head", drop_head(net)
    except Error:
        return


def middle(net: Net, layers: list[Layer], at: int) -> str | None:
    """The blob of the first layer from there on that is no output."""
    blobs = [top for layer in layers[at:] for top in layer.param.top]
    return next((blob for blob in blobs if blob not in net.outputs), None)


def make_again(net: Net) -> Net:
    """The same layers with other weights."""
    again = Net(cut(net).param, TEST, fork=net.fork, settings=net.settings)
    for blob in again.learnable_params:
        blob.data[...] = 7
    return again


def weights_differ(net: Net, again: Net, folder: Path) -> Iterator[str]:
    """The formats by way of which a weight changes. Caffe -> safetensors -> Caffe, also .npz."""
    if not net.params:
        return
    net.save(folder / "a.caffemodel")
    for way in ("safetensors", "npz"):
        read(folder / "a.caffemodel").write(folder / f"a.{way}")
        read(folder / f"a.{way}").write(folder / "b.caffemodel")
        again.copy_from(folder / "b.caffemodel")
        if any(not same_bits(again.params[name], blobs) for name, blobs in net.params.items()):
            yield way


def same_bits(ours: list, theirs: list) -> bool:
    return all(np.array_equal(a.data.view(np.uint32), b.data.view(np.uint32)) for a, b in zip(ours, theirs, strict=True))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--match", default="", help="only nets whose name holds this text")
    parser.add_argument("--brief", action="store_true", help="without the nets of more than 60 MB of weights")
    arguments = parser.parse_args()
    failed = count = 0
    trained = [(name, make) for name, make in nets() if name not in PUBLISHED]
    with tempfile.TemporaryDirectory() as folder:
        for name, make in [*trained, *more_of_the_zoo(), *families()]:
            if arguments.match in name:
                same = check(name, make, Path(folder), arguments.brief)
                count += same is not None
                failed += same is False
                gc.collect()
    print(f"cut models: {count - failed} of {count} nets give the same numbers in two parts, and by way of safetensors")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
