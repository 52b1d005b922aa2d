"""Load and run prototxts of many forks as published (../shared/wild), and print what happened to each.

    python tests/wild_models.py [--match TEXT] [--brief] [--least N]

Each net is built and runs forward on random weights, in TRAIN where the file is a training net. What a data layer reads is
absent: its tops are inputs, of the shapes that its prototxt and the layers that read them ask for. The repository is the
net's fork. One line a file:

    runs      finite outputs
    built     not run, because of --brief
    refused   an error of minicaffe's says which layer type, field or file it lacks, and where that is from
    broken    as published: a bottom that no layer produces, a template, a top produced twice
    WRONG     anything else: an error that names nothing, another exception, an output that is not finite, or a net that
              computes after a field was skipped

The exit status is 1 when a file is WRONG or fewer than N (default: LEAST) run. With --brief each net is built, but only the
small ones run.
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
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from support.made_up_data import Made, build, fill, keep_in_range

from minicaffe import Error, Net, registry, set_random_seed
from minicaffe.detection.random_weights import make_up_weights
from minicaffe.errors import PrototxtWarning
from minicaffe.proto import caffe_pb2

WILD = Path(__file__).resolve().parents[2] / "shared" / "wild"
LEAST = 214
"""How many run today."""
SMALL = 3e9
"""Most multiply-adds of a net that --brief runs."""
BROKEN = re.compile(
    r"is not produced by any layer|is already produced by layer|is named twice|\$\{|takes a whole number, got"
    r'|CrossConvolution layer "cross": 2 param blocks given, but the layer has 0 learnable blobs'
)
NAMED = re.compile(r"is not built in|belongs to \w+|it may be .* give --fork NAME")
"""What a refusal's sentence must hold: what is lacking, and where that is from."""


def files() -> Iterator[Path]:
    for line in (WILD / "LIST.tsv").read_text().splitlines()[1:]:
        yield WILD / line.split("\t")[0]


def verdict(path: Path, brief: bool) -> tuple[str, str]:
    """Return the word of the table above, and why."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            made = build(path)
            word, why = ran(made, brief)
        except Error as error:
            why = " ".join(str(error).replace(f"{path.parent}/", "").split())
            word = "broken" if BROKEN.search(why) else "refused" if NAMED.search(why) else "WRONG"
        except Exception as error:
            return "WRONG", repr(error)
    skipped = skips(caught, path)
    if word in ("runs", "built") and skipped:
        return "WRONG", f"computes after skipping: {skipped[0].rpartition('/')[2]}"
    return word, why


def skips(caught: list[warnings.WarningMessage], path: Path) -> list[str]:
    """Return the warnings of fields that were skipped, but for those in data layers, which are made up."""
    texts = [str(one.message) for one in caught if issubclass(one.category, PrototxtWarning)]
    lines = path.read_text(errors="replace").split("\n")
    skipped = []
    for text in texts:
        if "skipped" in text and (place := re.match(rf"{re.escape(str(path))}:(\d+)", text)):
            above = "\n".join(lines[: int(place[1])])
            layer = above[max(above.rfind("\nlayer"), 0) :]
            if not re.search(r"""type *: *(['"]?\w*Data['"]|\w*DATA)\s""", layer) and is_read(text, layer):
                skipped.append(text)
    return skipped


def is_read(warning: str, layer: str) -> bool:
    """Return whether the layer's type reads the block of the field that a warning names; true if that is unclear."""
    message, kind = re.search(r": (\w+) has no field", warning), re.search(r"""type *: *['"](\w+)""", layer)
    fields = caffe_pb2.LayerParameter.DESCRIPTOR.fields
    blocks = {f.name for f in fields if message and f.message_type and f.message_type.name == message[1]}
    if not kind or not blocks or not all(name.endswith("_param") for name in blocks):  # every type has `param` and rules
        return True
    read = registry.class_of(caffe_pb2.LayerParameter(type=kind[1])).param_block
    return bool(blocks & {*read, "transform_param", "loss_param"})


def ran(made: Made, brief: bool) -> tuple[str, str]:
    """Forward on random weights; the outputs."""
    net = made.net
    cost = multiply_adds(net)
    said = f"{net.phase.name}, {len(net.layers)} layers, {cost / 1e9:.1f} G multiply-adds"
    if brief and cost > SMALL:
        return "built", said
    make_up_weights(net, net.params, seed=1)
    keep_in_range(net)
    fill(made, seed=2)
    for name, array in net.forward().items():
        if not np.isfinite(array).all():
            return "WRONG", f"{said}: output {name} of shape {array.shape} is not finite"
    return "runs", said


def multiply_adds(net: Net) -> int:
    return sum(node.layer.costs(node.bottoms, node.tops).multiply_adds or 0 for node in net.nodes)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--match", default="", help="only files whose path holds this text")
    parser.add_argument("--brief", action="store_true", help="run the small nets, build the others")
    parser.add_argument("--least", type=int, default=LEAST, help="how many must run or, with --brief, be built")
    arguments = parser.parse_args()
    if not WILD.is_dir():
        print("skipped: ../shared/wild is absent")
        return 0
    tally: Counter[str] = Counter()
    chosen = list(files())
    folder = tempfile.TemporaryDirectory()
    os.chdir(folder.name)  # for files that nets read or write
    for path in chosen:
        name = str(path.relative_to(WILD))
        if arguments.match not in name:
            continue
        start = time.perf_counter()
        set_random_seed(3)
        word, why = verdict(path, arguments.brief)
        tally[word] += 1
        print(f"{word:8} {name}: {why} ({time.perf_counter() - start:.1f} s)", flush=True)
        gc.collect()
    good = tally["runs"] + tally["built"]
    print(
        f"wild nets: {good} of {tally.total()} load, {tally['runs']} ran; "
        + ", ".join(f"{tally[w]} {w}" for w in ("refused", "broken", "WRONG"))
    )
    return 1 if tally["WRONG"] or (good < arguments.least and not arguments.match) else 0


if __name__ == "__main__":
    sys.exit(main())
