"""Readers take linear time: their calls and their time grow as anything in a file (support/growth.py)."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from growth import Run, check_calls, check_growth, refused

from minicaffe import TEST
from minicaffe.cli.pictures import output_names
from minicaffe.data import image_list
from minicaffe.data.image_bytes import read_image
from minicaffe.data.roidb import load_roidb
from minicaffe.data.settings import read_settings
from minicaffe.data.window_file import read_window_file
from minicaffe.detection import class_names
from minicaffe.errors import shortened
from minicaffe.files import allowing
from minicaffe.formats.arrays import read_npy
from minicaffe.formats.caffemodel import BlobWeights, LayerWeights
from minicaffe.formats.param_str import MOST as MOST_YAML
from minicaffe.formats.param_str import read_yaml
from minicaffe.formats.prototxt import parse_net, parse_solver
from minicaffe.formats.weights import WeightsFile, encoded_blob, read_binaryproto, read_weights
from minicaffe.formats.wire import encoded, header
from minicaffe.layers.ssd.detection_files import read_label_map
from minicaffe.net import Net
from minicaffe.parameters import check_names, names_near
from minicaffe.porting import dump
from minicaffe.porting.rescue import rescue
from minicaffe.porting.retarget import retarget
from minicaffe.porting.suggestions import suggested_names
from minicaffe.porting.torch_source import source_of
from minicaffe.scaling.batch.find import read_list
from minicaffe.scaling.batch.sources import Files, Sources
from minicaffe.tracing.draw import draw_net
from minicaffe.tracing.summary import summarize
from minicaffe.tracing.tracer import Tracer
from minicaffe.training.snapshots import read_state
from minicaffe.training.solver_log import parse_log

LAYERS = 4096
"""Most layers of a net here: twice as many are measured too."""

Prepare = Callable[[int, Path], Run]


class Case(NamedTuple):
    """prepare: as check_growth's, with a folder for files; start and most: of n, a quarter of start where calls are counted."""

    prepare: Prepare
    start: int = 256
    most: int = 2**16


# Prototxts.


def text(form: Callable[[int], str], message: str = "") -> Case:
    """Return a net's text; message: of the error that it must end in."""

    def prepare(n: int, folder: Path) -> Run:
        written = form(n)
        return refused(lambda: parse_net(written), message) if message else lambda: parse_net(written)

    return Case(prepare)


def solver(form: Callable[[int], str]) -> Case:
    return Case(lambda n, folder: partial(parse_solver, form(n), strict=False))


def in_layer(inside: str) -> str:
    return f'layer {{ name: "a" type: "Power" {inside} }}'


def fields(form: Callable[[int], str], joint: str = " ") -> Callable[[int], str]:
    return lambda n: joint.join(map(form, range(n)))


TEXTS = {
    "digits of a float": text(lambda n: in_layer(f"power_param {{ power: {'1' * n}x }}"), "takes a number"),
    "digits of a float that is one": text(lambda n: in_layer(f"power_param {{ power: 1.{'1' * n}e-{'0' * n}1 }}")),
    "digits of an integer": text(lambda n: in_layer(f"flatten_param {{ axis: {'1' * n} }}"), "digits is out of range"),
    "exponents": text(lambda n: in_layer(f"power_param {{ power: 1{'e+1' * n} }}"), "takes a number"),
    "adjacent strings": text(lambda n: "name: " + '"ab" ' * n),
    "adjacent strings that are skipped": text(lambda n: "foo: " + '"ab" ' * n),
    "a long string": text(lambda n: f'name: "{"a" * n}"'),
    "a string that is not closed": text(lambda n: 'name: "' + "a" * n, "not closed"),
    "escapes": text(lambda n: 'name: "' + r"\x41\102" * n + '"'),
    "escapes that are not closed": text(lambda n: 'name: "' + r"\n" * n, "not closed"),
    "comments": text(lambda n: "# a comment #\n" * n + 'name: "a"'),
    "blanks in a comment": text(lambda n: "#" + " " * n + 'a\nname: "a"'),
    "blanks": text(lambda n: " \t\r\n" * n + 'name: "a"'),
    "line ends of Windows": text(lambda n: "input_dim: 1\r\n" * n),
    "a bad character": text(lambda n: "# b\n" * n + "\N{NO-BREAK SPACE}", "no-break space"),
    "numbers in a list": text(lambda n: f"input_dim: [{', '.join('1' * n)}]"),
    "repeated fields": text(lambda n: "input_dim: 1 " * n),
    "blocks": text(lambda n: "input_shape { dim: 1 } " * n),
    "blocks in blocks": text(lambda n: in_layer("foo { a < b { c: 1 } > } " * n)),
    "nested blocks": text(lambda n: in_layer(("a { " * 90 + "} " * 90) * (n // 90 + 1))),
    "blocks that are not closed": text(lambda n: in_layer("a {} " * n + "a { "), "is missing"),
    "a bracket too many": text(lambda n: "foo: 1\n" * n + "}", "closes nothing"),
    "many unknown fields": text(fields(lambda i: f"foo{i}: {i}")),
    "one unknown field": text(lambda n: "foo: 1\n" * n),
    "long unknown fields": text(lambda n: f"{'f' * n}: 1 {'g' * n} {{ a: 1 }}"),
    "extensions": text(lambda n: f"[{'a.' * n}b]: 1"),
    "a long name of a value": text(lambda n: in_layer(f"eltwise_param {{ operation: {'PROD' * n} }}"), "has no value"),
    "a quoted name of a value": text(lambda n: in_layer(f'eltwise_param {{ operation: "{"PROD" * n}" }}'), "a bare word"),
    "a control character in a long name": text(lambda n: f'layer {{ name: "{"a" * n}{chr(92)}x07" }}', "control character"),
    "layers": text(fields(lambda i: f'layer {{ name: "a{i}" type: "ReLU" bottom: "x" top: "x" }}')),
    "layers of V1": text(fields(lambda i: f'layers {{ name: "a{i}" type: RELU bottom: "x" top: "x" blobs_lr: 1 }}')),
    "layers of V0": text(
        fields(
            lambda i: (
                f'layers {{ layer {{ name: "p{i}" type: "padding" pad: 1 }} bottom: "x{i}" top: "p{i}" }}'
                f'layers {{ layer {{ name: "c{i}" type: "conv" kernelsize: 3 }} bottom: "p{i}" top: "c{i}" }}'
            )
        )
    ),
    "inputs": text(fields(lambda i: f'input: "x{i}" input_dim: [1, 2, 3, 4]')),
    "steps of a solver": solver(lambda n: "stepvalue: 1 " * n),
    "a solver's unknown fields": solver(fields(lambda i: f"foo{i}: 1")),
}
for _name in ("layers", "layers of V1", "layers of V0"):
    TEXTS[_name] = TEXTS[_name]._replace(most=LAYERS)
# With fewer digits the error states the range.
TEXTS["digits of an integer"] = TEXTS["digits of an integer"]._replace(start=1024)

# Nets.

INPUT = 'input: "x" input_shape { dim: 1 dim: 3 }\n'


def chain(layer: Callable[[int], str]) -> Callable[[int], str]:
    """n layers, each on what the one before it made: xI -> x(I+1)."""
    return lambda n: (
        INPUT.replace('"x"', '"x0"')
        + "\n".join(f'layer {{ name: "a{i}" bottom: "x{i}" top: "x{i + 1}" {layer(i)} }}' for i in range(n))
    )


def chain_of_signs(n: int) -> str:
    """Return a chain whose layers have numbers of signs as names, which Python replaces by _."""
    signs = str.maketrans("01234567", ".,:;/-+*")
    return INPUT.replace('"x"', '"x0"') + "\n".join(
        f'layer {{ name: "{format(i, "o").translate(signs)}" bottom: "x{i}" top: "x{i + 1}" {IP} }}' for i in range(n)
    )


def readers(n: int) -> str:
    return INPUT + "".join(f'layer {{ name: "a{i}" type: "ReLU" bottom: "x" top: "a{i}" }}\n' for i in range(n))


def many(bottoms: bool, tops: bool, rest: str, made: bool = False) -> Callable[[int], str]:
    """Return one layer with n bottoms (the input's, or of n inputs), or n tops."""

    def form(n: int) -> str:
        top = "".join(f'top: "t{i}" ' for i in range(n if tops else 1))
        names = [f"x{i}" if made else "x" for i in range(n if bottoms else 1)]
        inputs = "".join(
            f'input: "{name}" input_shape {{ dim: 1 dim: {1 if bottoms else n} dim: 3 dim: 3 }}\n' for name in names
        )
        bottom = "".join(f'bottom: "{name}" ' for name in names)
        return (inputs if made or not bottoms else INPUT) + f'layer {{ name: "a" {bottom} {top} {rest} }}'

    return form


RELU, IP = 'type: "ReLU"', 'type: "InnerProduct" inner_product_param { num_output: 3 }'
CONV = 'type: "Convolution" convolution_param { num_output: 1 kernel_size: 1 }'
PSROI = 'type: "PSROIPooling" psroi_pooling_param { spatial_scale: 1 output_dim: 21 group_size: 1 }'
NETS = {
    "a chain": chain(lambda i: RELU),
    "layers with weights": chain(lambda i: IP),
    "shared weights": chain(lambda i: f'{IP} param {{ name: "w" }} param {{ name: "b" }}'),
    "readers of one blob": readers,
    "a blob read all along": lambda n: (
        INPUT
        + "".join(
            f'layer {{ name: "a{i}" type: "Eltwise" bottom: "x" bottom: "{f"a{i - 1}" if i else "x"}" top: "a{i}" }}\n'
            for i in range(n)
        )
    ),
    "layers in place": lambda n: INPUT + "".join(f'layer {{ name: "a{i}" {RELU} bottom: "x" top: "x" }}\n' for i in range(n)),
    "many tops": many(False, True, 'type: "Slice"'),
    "many bottoms": many(True, False, 'type: "Concat"'),
    "many bottoms and tops": many(True, True, CONV, made=True),
}


def net(form: Callable[[int], str], after: Callable[[Net], object] = lambda net: None) -> Case:
    """Make a net of n layers, and what comes after."""

    def prepare(n: int, folder: Path) -> Run:
        file = parse_net(form(n))
        return lambda: after(Net(file, TEST))

    return Case(prepare, 64, LAYERS)


def drawn(form: Callable[[int], str]) -> Case:
    def prepare(n: int, folder: Path) -> Run:
        param = parse_net(form(n)).param
        return lambda: draw_net(param, "TB", "svg")

    return Case(prepare, 64, LAYERS)


def concats(n: int) -> str:
    """Concats that read all before them, with some n bottoms in all."""
    count = round((2 * n) ** 0.5)
    bottoms = [f'bottom: "a{k}" ' for k in range(count)]
    return INPUT + "".join(
        f'layer {{ name: "a{i}" type: "Concat" top: "a{i}" bottom: "x" {"".join(bottoms[:i])} }}\n' for i in range(count)
    )


def stages(n: int) -> str:
    given = " ".join(f'stage: "s{i}"' for i in range(n))
    return f"{INPUT} state {{ {given} }} " + "".join(
        f'layer {{ name: "{i}" {RELU} bottom: "x" top: "x" {kind} }}'
        for i, kind in enumerate([f"include {{ {given} }}", f"exclude {{ {given.replace('stage', 'not_stage')} }}"])
    )


def stage_rules(n: int) -> str:
    given = " ".join(f'stage: "s{i}"' for i in range(n))
    rules = " ".join(f'include {{ stage: "t{i}" }}' for i in range(n))
    return f'{INPUT} state {{ {given} }} layer {{ name: "a" {RELU} bottom: "x" top: "x" {rules} }}'


def unknown_bottom(n: int, folder: Path) -> Run:
    file = parse_net(readers(n) + f'layer {{ name: "z" {RELU} bottom: "a" top: "z" }}')
    return refused(lambda: Net(file, TEST), "not produced")


def unknown_fields(n: int, folder: Path) -> Run:
    inside = " ".join(f"foo{i}: 1 block{i}_param {{ a: 1 }} zzz: 1" for i in range(n))
    layers = "".join(f'layer {{ name: "a{i}" {RELU} bottom: "x" top: "x" zzz: 1 }}' for i in range(n))
    file = parse_net(f'{INPUT} layer {{ name: "a" {RELU} bottom: "x" top: "x" {inside} }} {layers}', warn=False)
    return lambda: Net(file, TEST, strict=False)


def unknown_type(n: int, folder: Path) -> Run:
    file = parse_net(f'layer {{ name: "{"n" * n}" type: "{"ReLU" * n}" bottom: "{"b" * n}" }}')
    return refused(lambda: Net(file, TEST), "characters more")


def stored_net(n: int, folder: Path, name: str = "net.caffemodel") -> str:
    path = folder / name
    Net(parse_net(NETS["layers with weights"](n)), TEST).save(path)
    return str(path)


def copied(n: int, folder: Path) -> Run:
    path, made = stored_net(n, folder), Net(parse_net(NETS["layers with weights"](n)), TEST)
    return lambda: made.copy_from(path)


def traced(made: Net) -> None:
    with Tracer(made):
        made.forward()


MADE = {
    **{f"net: {name}": net(form) for name, form in NETS.items()},
    **{
        f"summary: {name}": net(form, summarize)
        for name, form in NETS.items()
        if name.startswith(("readers", "a blob", "layers"))
    },
    **{f"draw: {name}": drawn(form) for name, form in NETS.items() if name.startswith(("a chain", "readers"))},
    "draw: a blob read all along": drawn(NETS["a blob read all along"])._replace(start=256),
    "draw: concats": drawn(concats)._replace(start=256, most=2**14),
    "to-torch: names of one identifier": net(chain_of_signs, partial(source_of, module="m", weights="w"))._replace(most=1024),
    "net: stages": net(stages)._replace(most=2**14),
    "net: stage rules": net(stage_rules)._replace(most=2**14),
    "trace": net(NETS["a chain"], traced)._replace(start=256),
    "net: a bottom that nothing makes": Case(unknown_bottom, 64, LAYERS),
    "net: unknown fields": Case(unknown_fields, 64, LAYERS),
    "net: long names": Case(unknown_type, 1024),
    "copy_from": Case(copied, 64, LAYERS),
}

# Retargeting.


def heads(n: int) -> str:
    """n classifiers behind one ROI layer, through Eltwises of which each doubles the ways."""
    head = 'type: "InnerProduct" inner_product_param { num_output: 21 } # 21 classes\n'
    body = "".join(
        f'layer {{ name: "a{i}" {RELU} bottom: "e{i}" top: "a{i}" }}\n'
        f'layer {{ name: "b{i}" {RELU} bottom: "e{i}" top: "b{i}" }}\n'
        f'layer {{ name: "e{i + 1}" type: "Eltwise" bottom: "a{i}" bottom: "b{i}" top: "e{i + 1}" }}\n'
        for i in range(n // 8)
    )
    return (
        'layer { name: "pool" type: "ROIPooling" bottom: "x" bottom: "rois" top: "pool" }\n'
        f'layer {{ name: "cls" bottom: "pool" top: "e0" {head} }} {body}'
        f'layer {{ name: "prob" type: "Softmax" bottom: "e{n // 8}" top: "prob" }}\n'
        + "".join(
            f'layer {{ name: "cls{i}" bottom: "pool" top: "c{i}" {head} }}\n'
            f'layer {{ name: "prob{i}" type: "Softmax" bottom: "c{i}" top: "prob{i}" }}\n'
            for i in range(n // 4)
        )
    )


def position_sensitive(n: int) -> str:
    """n heads on one long chain."""
    body = "".join(
        f'layer {{ name: "r{i}" {RELU} bottom: "r{i - 1}" top: "r{i}" }}\n'
        f'layer {{ name: "p{i}" {PSROI} bottom: "r{i}" bottom: "rois" top: "p{i}" }}\n'
        f'layer {{ name: "prob{i}" type: "Softmax" bottom: "p{i}" top: "prob{i}" }}\n'
        for i in range(1, n // 3)
    )
    conv = 'type: "Convolution" convolution_param { num_output: 21 kernel_size: 1 }'
    return f'layer {{ name: "conv" {conv} bottom: "x" top: "r0" }}\n' + body


def priors(n: int) -> str:
    """n ends that read one long chain."""
    conv = 'type: "Convolution" convolution_param { num_output: 84 kernel_size: 1 }'
    return f'layer {{ name: "conv" {conv} bottom: "x" top: "r0" }}\n' + "".join(
        f'layer {{ name: "r{i}" {RELU} bottom: "r{i - 1}" top: "r{i}" }}\n'
        f'layer {{ name: "d{i}" type: "DetectionOutput" bottom: "r{i}" bottom: "r{i}" bottom: "x" top: "d{i}"'
        " detection_output_param { num_classes: 21 } }\n"
        for i in range(1, n // 2)
    )


def retargeted(form: Callable[[int], str]) -> Case:
    def prepare(n: int, folder: Path) -> Run:
        path = folder / "net.prototxt"
        path.write_text(form(n).replace("\n", "\n\n"))
        return lambda: retarget(path, 7)

    return Case(lambda n, folder: prepare(n, fresh(folder)), 64, LAYERS)


def fresh(folder: Path) -> Path:
    """Return a folder of its own for each n, whose runs take turns."""
    new = folder / f"{len(list(folder.iterdir()))}"
    new.mkdir()
    return new


RETARGETED = {
    "retarget: heads": retargeted(heads),
    "retarget: position-sensitive heads": retargeted(position_sensitive)._replace(start=256),
    "retarget: SSD's ends": retargeted(priors),
}

# Binary files.


def message(number: int, content: bytes) -> bytes:
    return header(number, len(content)) + content


def binary(form: Callable[[int], bytes], read: Callable[[Path], object], refusal: str = "") -> Case:
    def prepare(n: int, folder: Path) -> Run:
        path = fresh(folder) / "file"
        path.write_bytes(form(n))
        return refused(lambda: read(path), refusal) if refusal else lambda: read(path)

    return Case(prepare)


def blob_layer(content: bytes, name: bytes = b"a") -> bytes:
    return message(100, message(1, name) + message(2, b"ReLU") + message(7, content))


BLOB = b"".join(map(bytes, encoded_blob(np.zeros((1, 3), np.float32))))
BINARY = {
    "a blob's shapes": binary(lambda n: blob_layer(message(7, b"\x08\x01") * n), read_weights, "axes"),
    "a blob's dims": binary(lambda n: blob_layer(message(7, b"\x08\x01" * n)), read_weights, "axes"),
    "a blob's packed dims": binary(lambda n: blob_layer(message(7, message(1, b"\x01" * n))), read_weights, "axes"),
    "a blob's empty shapes": binary(lambda n: blob_layer(message(7, b"") * n + message(5, bytes(4))), read_weights),
    "a blob's values one by one": binary(
        lambda n: blob_layer((b"\x2d" + bytes(4)) * n + b"\x08\x01\x10\x01\x18\x01\x20" + encoded(n)), read_weights
    ),
    "a blob's values in turns": binary(
        lambda n: blob_layer((b"\x2d" + bytes(4) + b"\x08\x01") * n + b"\x08\x01\x10\x01\x18\x01\x20" + encoded(n)),
        lambda path: read_weights(path).layers[0].blobs[0].array,  # type: ignore[union-attr]
    ),
    "fields of a layer": binary(lambda n: message(100, message(1, b"a") + b"\x50\x01" * n), read_weights),
    "names of a layer": binary(lambda n: message(100, message(1, b"a") * n), read_weights),
    "a long name": binary(lambda n: blob_layer(b"\x3f", b"a" * n), read_weights, "wire type 7"),
    "blobs of a layer": binary(lambda n: message(100, message(1, b"a") + message(7, BLOB) * n), read_weights),
    "a mean file": binary(lambda n: message(7, b"") * n + message(5, bytes(4)), read_binaryproto),
    "a training state": binary(lambda n: b"\x08\x01" + message(3, BLOB) * n, read_state),
    "a .npy's header": binary(
        lambda n: b"\x93NUMPY\x02\x00" + (2 * n).to_bytes(4, "little") + b"{ " * n, read_npy, "not a readable .npy"
    ),
}


def whole(read: Callable[[str], object], name: str = "net.caffemodel") -> Case:
    """Return a file of the weights of n layers."""

    def prepare(n: int, folder: Path) -> Run:
        path = stored_net(n, fresh(folder), name)
        return lambda: read(path)

    return Case(prepare, 64, LAYERS)


STORED = {"dump": whole(dump.read), "rescue": whole(rescue)}
if find_spec("h5py"):
    STORED["HDF5"] = whole(read_weights, "net.caffemodel.h5")

# Texts that are no prototxts.


def file(form: Callable[[int], str], read: Callable[[Path], object], refusal: str = "") -> Case:
    return binary(lambda n: form(n).encode(), read, refusal)


def parse_label_map(path: Path) -> object:
    with allowing([path]):
        return read_label_map(str(path))


def annotated(classes: int, images: int) -> str:
    names = [f"c{i}" for i in range(classes)]
    image = {"image": "a.jpg", "boxes": [[0, 0, 1, 1]] * classes, "classes": names, "width": 9, "height": 9}
    return json.dumps({"classes": names, "images": [image] * images})


def coco(n: int) -> str:
    images = [{"id": i, "file_name": f"{i}.jpg", "width": 9, "height": 9} for i in range(n)]
    boxes = [{"image_id": i, "category_id": i, "bbox": [0, 0, 1, 1]} for i in range(n)]
    return json.dumps({"images": images, "annotations": boxes, "categories": [{"id": i, "name": f"c{i}"} for i in range(n)]})


def one_hash(n: int) -> str:
    """Ids that Python takes for different keys of one and the same hash: multiples of 2^61 - 1."""
    images = [{"id": i * (2**61 - 1), "file_name": "a.jpg", "width": 9, "height": 9} for i in range(n)]
    return json.dumps({"images": images, "annotations": [], "categories": []})


def voc(n: int, folder: Path) -> Run:
    folder = fresh(folder)
    for name in ("Annotations", "ImageSets/Main", "JPEGImages"):
        (folder / name).mkdir(parents=True)
    (folder / "ImageSets" / "Main" / "trainval.txt").write_text("a\n")
    box = "<bndbox><xmin>1</xmin><ymin>1</ymin><xmax>2</xmax><ymax>2</ymax></bndbox>"
    inside = f"<object><name>cat</name>{box}</object>" * n
    (folder / "Annotations" / "a.xml").write_text(f"<annotation>{inside}</annotation>")
    return lambda: load_roidb(folder)


def equal_stems(n: int, folder: Path) -> Run:
    images = Sources((Files(tuple(f"{i}/cat.jpg" for i in range(n)), "/"),))
    return lambda: output_names(folder / "out", images, [], ".png")


LINE = "I1121 03:09:40.283104  2001 solver.cpp:1] "
READ = {
    "an image list": file(fields(lambda i: f"a {i}.jpg {i}", "\n"), image_list.read_image_list),
    "a long line of an image list": file(lambda n: "a b " * n + "x", image_list.read_image_list, "not a whole number"),
    "a label of many digits": file(lambda n: "a.jpg " + "1" * n, image_list.read_image_list, "whole number|32 bits|not in"),
    "a list of detect's": file(fields(lambda i: f"{i}.jpg", "\n"), lambda path: read_list(str(path))),
    "class names": file(fields(lambda i: f"class {i}", "\n"), class_names.read_names),
    "a label map": file(
        fields(lambda i: f'item {{ name: "c{i}" label: {i} display_name: "d{i}" }}'),
        parse_label_map,
    ),
    "a window file": file(lambda n: f"# 0\na.jpg\n3 9 9 {n}\n" + "1 0.5 0 0 1 1\n" * n, read_window_file),
    "a window file in one line": file(lambda n: f"# 0 a.jpg 3 9 9 {n} " + "1 0.5 0 0 1 1 " * n, read_window_file),
    "a log": file(
        fields(lambda i: f"{LINE}Iteration {i}, lr = 0.1\n{LINE}    Train net output #0: loss = {i} (* 1", "\n"), parse_log
    ),
    "a log's outputs": file(
        lambda n: f"{LINE}Iteration 1\n" + "".join(f"{LINE}Train net output #{i}: o{i % 1000} = 1\n" for i in range(n)),
        parse_log,
    ),
    "a log's columns": file(
        lambda n: "".join(f"{LINE}Iteration {i}\n{LINE}Train net output #0: o{i} = 1\n" for i in range(1001 + n)),
        parse_log,
        "different names",
    ),
    "a log's long line": file(lambda n: f"{LINE}Iteration 1\n{LINE}" + "Train net output #1: a" * n, parse_log),
    "a log's digits": file(lambda n: f"{LINE}Iteration {'1' * n}", parse_log, "digits"),
    "images of a JSON": file(lambda n: annotated(3, n), load_roidb),
    "classes of a JSON": file(lambda n: annotated(n, 1), load_roidb),
    "a JSON that is none": file(lambda n: "[" * n, load_roidb, "not JSON"),
    "a class that is not there": file(
        lambda n: json.dumps([{"image": "a", "boxes": [], "classes": ["a" * n]}]), load_roidb, "is not known"
    ),
    "COCO": file(coco, load_roidb),
    "ids of one hash": file(one_hash, load_roidb, "64 bits"),
    "comments of a PPM": binary(
        lambda n: b"P3 1 1 255 " + b"#\n" * (2000 + n) + b"1 1 1", read_image, "a PPM of more than 1,000 comments"
    ),
    "VOC": Case(voc),
    "a setting that is none": file(
        lambda n: f"TRAIN: {{ {'S' * n}: 1 }}"[: 2**16], read_settings, "unknown setting|YAML"
    )._replace(most=MOST_YAML // 2 - 32),
    "equal stems of pictures": Case(equal_stems),
}


def yaml(form: Callable[[int], str], refusal: str = "") -> Case:
    def prepare(n: int, folder: Path) -> Run:
        written = form(n)
        return refused(lambda: read_yaml(written), refusal) if refusal else lambda: read_yaml(written)

    return Case(prepare, 64, 2**11)


YAML = {
    "YAML: a list": yaml(lambda n: f"[{'1, ' * n}]"),
    "YAML: tuples": yaml(lambda n: "!!python/tuple [1]\n".join(["- "] * n) + "1")._replace(most=MOST_YAML // 44),
    "YAML: a mapping": yaml(fields(lambda i: f"'k{i}': {i}", "\n")),
    "YAML: a long word": yaml(lambda n: f"a: '{'x y ' * n}'"),
    "YAML: lines": yaml(lambda n: "a: |\n" + "  x\n" * n),
    "YAML: comments": yaml(lambda n: "# x\n" * n + "a: 1"),
    "YAML: brackets": yaml(lambda n: "[" * n, "YAML"),
    "YAML: keys without values": yaml(lambda n: "? a\n" * n, ""),
}

# Unknown names, and messages.


def near(n: int, folder: Path) -> Run:
    known = [f"res{i}_branch2a_conv" for i in range(n)]
    return lambda: names_near("res_branch2b_conv", known)


def near_long(n: int, folder: Path) -> Run:
    known = ["ax" * n, "xa" * n, "a" * n]
    return lambda: names_near("a" * n, known)


def near_weights(n: int, folder: Path) -> Run:
    """n names with the same shapes, none alike but for case, and one that is missing."""
    made = Net(parse_net(NETS["layers with weights"](n)), TEST)
    zeros = [BlobWeights(blob.shape, False, (np.zeros(blob.count, np.float32),)) for blob in made.layers[-1].blobs]
    stored = WeightsFile("file", [LayerWeights(f"ax{'ax' * 20}{i}", "", list(zeros)) for i in range(n + 1)])
    return lambda: suggested_names(made, stored)


def wrong_names(n: int, folder: Path) -> Run:
    given, wanted = [f"given_{i}" for i in range(n)], [f"wanted_{i}" for i in range(n)]
    return refused(lambda: check_names(given, wanted, "inputs", "its"), "more are none of them")


def message_of(part: str) -> Case:
    return Case(lambda n, folder: partial(shortened, part * n))


PARTS = {"one word": "a", "words": "a ", "words just short enough": "a" * 1000 + " ", "control characters": "\x1b"}
HINTS = {
    "names near": Case(near),
    "long names near": Case(near_long),
    "layers with names alike": Case(near_weights, 256, LAYERS),
    "inputs with wrong names": Case(wrong_names),
    **{f"a message of {what}": message_of(part) for what, part in PARTS.items()},
}

CASES = {**TEXTS, **MADE, **RETARGETED, **BINARY, **STORED, **READ, **YAML, **HINTS}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_time_grows_as_the_file(name: str, tmp_path: Path) -> None:
    """The test measures times, which include the work of single calls of C functions."""
    case = CASES[name]
    check_growth(lambda n: case.prepare(n, tmp_path), case.start, case.most)


LONG = (
    "blocks in blocks",
    "many unknown fields",
    "layers of V0",
    "a solver's unknown fields",
    "draw: a blob read all along",
    "draw: concats",
    "trace",
    "net: unknown fields",
    "copy_from",
    "retarget: position-sensitive heads",
    "rescue",
    "HDF5",
    "layers with names alike",
)
"""Cases whose calls take longer to count than those of all others."""


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in LONG)) for name in CASES])
def test_calls_grow_as_the_file(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    check_calls(lambda n: case.prepare(n, tmp_path), case.start // 4)


def test_a_run_that_is_not_linear_is_found() -> None:
    with pytest.raises(AssertionError, match=r"calls with 16, 4,.* with 64"):
        check_calls(lambda n: lambda: [abs(i) for i in range(n * n)], 16)
