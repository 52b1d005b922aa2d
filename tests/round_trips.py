"""Take whole nets out of Caffe and back, and print for each what comes of each trip.

    python tests/round_trips.py [--match TEXT] [--trip TRIP] [--brief]

The nets of whole_nets.py. The trips:

    onnx         Caffe -> ONNX, in onnxruntime at two sizes of image where it takes them; -> Caffe: the same outputs (1e-4)
    torch        Caffe -> PyTorch source: outputs, and gradients of all weights and of the inputs (1e-4; in float64 1e-9)
    cut          cut in two a third and two thirds of the way, and before its head; joined: the same bits
    safetensors  weights -> .safetensors and .npz -> .caffemodel: the same bits
    boxes        Caffe -> ONNX with boxes, with the photo as its input and without: what `minicaffe detect` finds (1e-4)

A number is the largest difference, relative to the largest number of the array; torch has two, float32's and float64's.
--brief: the smaller nets, and ZF. The exit status is 1 where a trip fails or is refused.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import logging
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from whole_nets import large_nets, nets, of_forks, photos, with_noise

from minicaffe import TEST, Error, LayerError, Net
from minicaffe.blob import Blob
from minicaffe.data.images import load_image
from minicaffe.dump import read
from minicaffe.porting.agreement import TOLERANCE, Difference, difference
from minicaffe.porting.cut import Part, blob_at, cut, cut_at, drop_head, run_parts
from minicaffe.porting.onnx import compare_with_detect, compare_with_net, export_onnx
from minicaffe.porting.onnx_import import compare_with_original
from minicaffe.porting.torch_source import compare_source, in_float64, write_source

EXACT = 1e-9
"""The largest relative difference of two runs in float64."""
ALSO_IN_BRIEF = "ZF faster_rcnn_end2end"
NOT_EXACT = {"layer_mvn": "Caffe's gradient of MVN takes eps, here 0.1, for 0"}
"""Gradients that torch computes otherwise, and why: the nets are held to 1e-4 in float64 too."""


class Impossible(Exception):
    """A trip that a net cannot make, and why."""


class Differs(Exception):
    """A difference after a trip."""


def onnx_trip(name: str, net: Net, folder: Path) -> str:
    model = folder / "model.onnx"
    net.forward()  # an image may have reshaped it
    try:
        export_onnx(net, model)
    except LayerError as error:
        if "has no ONNX form" not in str(error):
            raise
        raise Impossible(str(error)) from None
    found = compare_with_net(net, model) + compare_with_original(net, model)
    if other_size(net, model):
        found += compare_with_net(net, model)
    return largest(found)


def other_size(net: Net, model: Path) -> bool:
    """Give the image another size where the model has names for its height and width and the net takes it; whether that is."""
    import onnx

    for x in onnx.load(model, load_external_data=False).graph.input:
        dims = x.type.tensor_type.shape.dim
        if len(dims) == 4 and dims[2].dim_param and dims[3].dim_param:
            count, channels, height, width = net.blobs[x.name].shape
            net.blobs[x.name].reshape(count, channels, height + 33, width - 26 if width > 100 else width + 7)
            try:
                net.reshape()
            except LayerError:  # its branches meet at sizes that are multiples of its stride only
                return False
            with_noise(net, 6)
            return True
    return False


def torch_trip(name: str, net: Net, folder: Path) -> str:
    source = folder / "model.py"
    single = largest(compare_source(net, source, write_source(net, source)))
    double = in_float64(net)
    del net
    exact = compare_source(double, source, write_source(double, source))
    if name in NOT_EXACT:
        return f"{single}, {largest(exact)}: {NOT_EXACT[name]}"
    return f"{single}, {largest(exact, EXACT)}"


def cut_trip(name: str, net: Net, folder: Path) -> str:
    net.reshape()
    inputs = {blob: net.blobs[blob].data.copy() for blob in net.inputs}
    net.forward()
    expected = {blob: net.blobs[blob].data.copy() for blob in net.outputs}
    count = 0
    for place, parts in ways(net):
        made = run_parts(parts, inputs)
        shared = made.keys() & expected
        if lost := [blob for blob in shared if not np.array_equal(made[blob], expected[blob], equal_nan=True)]:
            raise Differs(f"cut at {place}: {', '.join(lost)}")
        if not shared:
            raise Differs(f"cut at {place}: no output")
        count += 1
    if not count:
        raise Impossible("it has one layer")
    return f"same bits ({count})"


def ways(net: Net) -> Iterator[tuple[str, tuple[Part, Part]]]:
    """Pairs of parts, and where they meet."""
    for part in (1 / 3, 2 / 3):
        if blob := blob_at(net, part):
            yield blob, cut_at(net, blob)
    try:
        yield "the head", drop_head(net)
    except Error:
        return


def weights_trip(name: str, net: Net, folder: Path) -> str:
    if not net.params:
        raise Impossible("it has no weights")
    again = Net(cut(net).param, TEST, fork=net.fork, settings=net.settings)
    net.save(folder / "a.caffemodel")
    for way in ("safetensors", "npz"):
        for blob in again.learnable_params:
            blob.data[...] = 7
        read(folder / "a.caffemodel").write(folder / f"a.{way}")
        read(folder / f"a.{way}").write(folder / "b.caffemodel")
        again.copy_from(folder / "b.caffemodel")
        if lost := [layer for layer, blobs in net.params.items() if not same_bits(again.params[layer], blobs)]:
            raise Differs(f"through .{way}: {', '.join(lost)}")
    return "same bits"


def same_bits(ours: Sequence[Blob], theirs: Sequence[Blob]) -> bool:
    return all(np.array_equal(a.data.view(np.uint32), b.data.view(np.uint32)) for a, b in zip(ours, theirs, strict=True))


def boxes_trip(name: str, net: Net, folder: Path) -> str:
    if name not in photos():
        raise Impossible("it has no detections, or there is no photo for them")
    (photo, whole), model, found = photos()[name], folder / "model.onnx", list[Difference]()
    for each in (whole, replace(whole, photo=False)):
        export_onnx(net, model, whole=each)
        made = compare_with_detect(net, model, load_image(photo), each)
        if not made[1].shape[0]:
            raise Differs("no detections")
        found += made
    return f"{largest(found)} ({found[1].shape[0]} boxes)"


def largest(found: Sequence[Difference], tolerance: float = TOLERANCE) -> str:
    """Return the largest relative difference. Raises Differs."""
    worst = max(found, key=lambda one: one.relative, default=difference("nothing was compared", np.zeros(0), np.zeros(1)))
    if not worst.relative <= tolerance:
        raise Differs(f"{worst.name}: {worst.relative:.1e} {worst.note}".rstrip())
    return f"{worst.relative:.0e}"


Trip = Callable[[str, Net, Path], str]
TRIPS: dict[str, Trip] = {
    "onnx": onnx_trip,
    "torch": torch_trip,
    "cut": cut_trip,
    "safetensors": weights_trip,
    "boxes": boxes_trip,
}
OK, NONE, FAILED = "ok", "not possible", "failed"


def tried(trip: Trip, name: str, net: Net, folder: Path) -> tuple[str, str]:
    """OK, NONE or FAILED, and what came of it."""
    try:
        return OK, trip(name, net, folder)
    except Impossible as error:
        return NONE, str(error)
    except Differs as error:
        return FAILED, f"DIFFERS: {error}"
    except Exception as error:  # also onnx's and PyTorch's; the other trips go on
        return FAILED, f"{type(error).__name__}: {error}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--match", default="", help="only nets whose name holds this text")
    parser.add_argument("--trip", choices=TRIPS, help="this trip alone")
    parser.add_argument("--brief", action="store_true", help="the smaller nets, and ZF")
    given = parser.parse_args(arguments)
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    chosen = [given.trip] if given.trip else [*TRIPS]
    counts: Counter[tuple[str, str]] = Counter()
    print("| net |", " | ".join(chosen), "| seconds |\n|" + "---|" * (len(chosen) + 2))
    left_out = large_nets() - {ALSO_IN_BRIEF} if given.brief else set()
    for name, make in nets() if given.brief else itertools.chain(nets(), of_forks()):
        if given.match not in name or name in left_out:
            continue
        start, row = time.perf_counter(), []
        for trip in chosen:
            with tempfile.TemporaryDirectory() as folder:
                outcome, says = tried(TRIPS[trip], name, make(), Path(folder))
            gc.collect()
            counts[trip, outcome] += 1
            row.append("-" if outcome == NONE else says)
        print("|", name, "|", " | ".join(row), f"| {time.perf_counter() - start:.0f} |", flush=True)
    for trip in chosen:
        numbers = (f"{counts[trip, outcome]} {outcome}" for outcome in (OK, NONE, FAILED))
        print(f"{trip}: {', '.join(numbers)}")
    failed = sum(count for (_, outcome), count in counts.items() if outcome == FAILED)
    done = sum(count for (_, outcome), count in counts.items() if outcome == OK)
    print(f"round trips: {done} of {done + failed} agree")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
