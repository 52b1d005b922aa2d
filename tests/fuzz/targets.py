"""What is fuzzed: each reader of files that may come from anyone, with real files of its kind to begin from; and the printer.

A reader takes bytes. It may return, or raise a minicaffe.Error; anything else is a finding. The printer
takes names; whatever of them acts on the terminal is one, and a name that is not there to be read.
"""

from __future__ import annotations

import io
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import nullcontext, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import tiffs
from terminal_text import OURS, foreign

from minicaffe import TEST, Error, Net, limits
from minicaffe.cli.common import print_table
from minicaffe.cli.console import bar
from minicaffe.cli.terminal import echo, guarded, warn
from minicaffe.data import database_leveldb, leveldb_files
from minicaffe.data.database import datum_array, new_database, parse_datum
from minicaffe.data.database_leveldb import LevelDatabase
from minicaffe.data.database_lmdb import LmdbDatabase
from minicaffe.data.image_bytes import read_image
from minicaffe.data.image_list import read_image_list
from minicaffe.data.images import image_size, load_image
from minicaffe.data.roidb import load_roidb, prepare_roidb
from minicaffe.data.settings import read_settings
from minicaffe.data.window_file import read_window_file
from minicaffe.errors import on_one_line
from minicaffe.formats.arrays import read_npy, read_npz
from minicaffe.formats.param_str import read_yaml
from minicaffe.formats.prototxt import parse_net, parse_solver
from minicaffe.formats.weights import read_binaryproto, read_weights, write_binaryproto
from minicaffe.proto import caffe_pb2
from minicaffe.scaling.batch.tables import find_rows
from minicaffe.training.snapshots import TrainingState, read_state, write_state
from minicaffe.training.solver_log import parse_log

HERE = Path(__file__).resolve()
REPOSITORY = HERE.parents[2]
SHARED = REPOSITORY.parent / "shared"
MOST_BYTES = 1 << 16
"""Seeds longer than this are left out: mutations of them mostly change numbers."""

MOST_ROWS = 1000
"""Of a table: more of the same."""

LIMITS = {"blob_elements": 1 << 20, "layers": 200, "bytes": 1 << 24, "pixels": 1 << 20, "text": 1 << 16, "lists": 1 << 16}
"""minicaffe.limits while fuzzing: what may be declared is small, so that more memory is a finding."""

NET = """
name: "fuzzed"
layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 1 dim: 3 dim: 8 dim: 9 } } }
layer { name: "c" type: "Convolution" bottom: "x" top: "c" convolution_param { num_output: 4 kernel_size: 3 pad: 1 } }
layer { name: "b" type: "BatchNorm" bottom: "c" top: "c" }
layer { name: "s" type: "Scale" bottom: "c" top: "c" scale_param { bias_term: true } }
layer { name: "r" type: "ReLU" bottom: "c" top: "c" }
layer { name: "rois" type: "DummyData" top: "rois" dummy_data_param { shape { dim: 2 dim: 5 } } }
layer { name: "p" type: "ROIPooling" bottom: "c" bottom: "rois" top: "p" roi_pooling_param { pooled_w: 2 pooled_h: 3 } }
layer { name: "f" type: "InnerProduct" bottom: "p" top: "f" inner_product_param { num_output: 5 } }
"""
PARAM_STRS = [
    b"'feat_stride': 16",
    b"'num_classes': 21\n'scales': !!python/tuple [4, 8, 16, 32]",
    b"{a: [1, 2.5, 1e3], b: !!python/tuple [x, yes, ~], c: '2001-01-01', ? d : |\n  text}",
]
SETTINGS = b"""
TRAIN: {IMS_PER_BATCH: 1, RPN_POSITIVE_OVERLAP: 0.7, BBOX_INSIDE_WEIGHTS: [1.0, 1.0, 1.0, 1.0], SCALES: [600]}
TEST: {RPN_POST_NMS_TOP_N: 300, HAS_RPN: True, SCALES: !!python/tuple [240, 480]}
PIXEL_MEANS: [[[102.9801, 115.9465, 122.7717]]]
"""
IMAGE_LIST = b"a/cat.jpg 3\nb dog.png -1\r\n\n"
WINDOW_FILE = b"# 0\n/a.jpg\n3\n40\n50\n2\n1 0.8 0 1 10 11\n0 0.2 3 4 39 30\n# 1\nb.jpg\n1 4 5\n0\n"
LOG = b"""I1121 03:09:40.283104  2001 solver.cpp:1] Solving net
I1121 03:09:41.283104  2001 solver.cpp:1] Iteration 0, loss = 2.5
I1121 03:09:41.283105  2001 solver.cpp:1]     Train net output #0: loss = 2.5 (* 1 = 2.5 loss)
I1121 03:09:41.283106  2001 sgd.cpp:1] Iteration 0, lr = 0.01
I0101 00:09:42.283104  2001 solver.cpp:1] Iteration 100, Testing net (#0)
I0101 00:09:42.283104  2001 solver.cpp:1]     Test net output #0: accuracy = 0.5
"""
JSONS = [
    b'{"classes": ["circle"], "images": [{"image": "0.jpg", "boxes": [[1, 2, 30, 40]], "classes": ["circle"], "width": 50,'
    b' "height": 60, "proposals": [[0, 0, 9, 9.5]]}]}',
    b'{"images": [{"id": 1, "file_name": "a.jpg", "width": 50, "height": 60}], "categories": [{"id": 7, "name": "cat"}],'
    b' "annotations": [{"image_id": 1, "category_id": 7, "bbox": [1, 2, 30.5, 20], "iscrowd": 0, "area": 12.5}]}',
]
VOC = b"""<annotation><size><width>50</width><height>60</height></size>
<object><name>cat</name><difficult>0</difficult>
<bndbox><xmin>1</xmin><ymin>2</ymin><xmax>30.5</xmax><ymax>40</ymax></bndbox></object></annotation>"""


FOLDER = tempfile.TemporaryDirectory(prefix="minicaffe-fuzz-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
"""Of the files that readers of files are given; gone at the end of the process that imports this."""
NUMBERS = count()


@dataclass(frozen=True)
class Target:
    """A reader, and where its first inputs are from."""

    read: Callable[[bytes], object]
    seeds: Callable[[], Iterator[bytes]]


def _files(*patterns: str) -> Iterator[bytes]:
    """Real files, of the repository and, where it is there, of shared/."""
    for pattern in patterns:
        for root in (REPOSITORY / "examples", SHARED):
            for path in sorted(root.glob(pattern)):
                if path.is_file() and path.stat().st_size <= MOST_BYTES:
                    yield path.read_bytes()


def _of_path(read: Callable[[str], object], suffix: str = "") -> Callable[[bytes], object]:
    """A reader of bytes from one of files."""
    path = Path(FOLDER.name, f"{next(NUMBERS)}{suffix}")

    def of_bytes(data: bytes) -> object:
        path.write_bytes(data)
        return read(str(path))

    return of_bytes


def _of_voc() -> Callable[[bytes], object]:
    """A reader of PASCAL VOC's annotations of one image."""
    folder = Path(FOLDER.name, str(next(NUMBERS)))
    for name in ("Annotations", "ImageSets/Main"):
        (folder / name).mkdir(parents=True)
    (folder / "ImageSets/Main/trainval.txt").write_text("1\n")

    def of_bytes(data: bytes) -> object:
        (folder / "Annotations/1.xml").write_bytes(data)
        return _roidb(str(folder))

    return of_bytes


def _roidb(path: str) -> object:
    """Annotations of images that all have a size, ready for training."""
    roidb, names = load_roidb(path)
    return prepare_roidb([entry for entry in roidb if "width" in entry], max(len(names), 2))


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _net(data: bytes) -> object:
    return Net(parse_net(_text(data)), TEST)


def _weights(path: str) -> list[Any]:
    """The layers, and every number of them: reading makes views."""
    return [blob.read(np.dtype(np.float32)) for layer in read_weights(path).layers for blob in layer.blobs if blob is not None]


def _small_net() -> Net:
    return Net(parse_net(NET), TEST)


def _saved(suffix: str) -> Iterator[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        _small_net().save(Path(folder) / f"a{suffix}")
        yield (Path(folder) / f"a{suffix}").read_bytes()
    yield from _files(f"**/*{suffix}")


def _safetensors() -> Iterator[bytes]:
    """Of each type of weights, one without values and one of bfloat16."""
    from safetensors.numpy import save

    yield from _saved(".safetensors")
    yield save({"a.0": np.arange(3.0), "a.1": np.ones((2, 0), np.float16), "b.0": np.array(7, np.float32)}, {"of": "x"})
    header = b'{"a.0":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]}}'
    yield len(header).to_bytes(8, "little") + header + bytes(12)


def _datums() -> Iterator[bytes]:
    pixels = np.arange(60, dtype=np.uint8)
    yield caffe_pb2.Datum(channels=3, height=4, width=5, label=2, data=pixels.tobytes()).SerializeToString()
    yield caffe_pb2.Datum(channels=2, height=1, width=3, float_data=[0.5] * 6).SerializeToString()
    yield caffe_pb2.Datum(encoded=True, data=next(_images()), label=1).SerializeToString()


def _states(suffix: str) -> Iterator[bytes]:
    history = [np.arange(6, dtype=np.float32).reshape(2, 3), np.ones(4, np.float32)]
    with tempfile.TemporaryDirectory() as folder:
        write_state(Path(folder) / suffix, TrainingState(7, "net.caffemodel", 2, history))
        yield (Path(folder) / suffix).read_bytes()
        if suffix.endswith(".h5"):  # a text of variable length, as h5py writes it
            import h5py

            with h5py.File(Path(folder) / suffix, "r+") as file:
                del file["learned_net"]
                file["learned_net"] = "net.caffemodel"
            yield (Path(folder) / suffix).read_bytes()
    yield from _files(f"**/*{suffix}")


def _means() -> Iterator[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        write_binaryproto(Path(folder) / "mean", np.arange(24.0).reshape(1, 2, 3, 4))
        yield (Path(folder) / "mean").read_bytes()
    yield from _files("**/*.binaryproto")


def _lmdbs() -> Iterator[bytes]:
    """Empty, of one page, and of two levels with values on pages of their own."""
    for items, bytes_ in ((0, 0), (5, 20), (30, 900), (4, 9000)):
        with tempfile.TemporaryDirectory() as folder:
            with new_database(f"{folder}/db", "lmdb") as writer:
                for i in range(items):
                    writer.put(b"%05d" % i, bytes([i]) * bytes_)
            yield Path(folder, "db", "data.mdb").read_bytes()


LEVELDB_NAMES = ("CURRENT", "MANIFEST-{:06d}", "{:06d}.ldb", "{:06d}.log")
"""Kinds of files of a LevelDB. All of one are one input: a byte (odd: its checksums count), and for each file its kind, the
number in its name, and its length in two bytes, before what is in it."""


def _packed(folder: Path) -> bytes:
    """The files of a LevelDB as an input."""
    packed = bytearray()
    for path in sorted(folder.iterdir()):
        number = int("0" + "".join(filter(str.isdigit, path.name)))
        kind = next((kind for kind, name in enumerate(LEVELDB_NAMES) if name.format(number) == path.name), None)
        if kind is not None:
            content = path.read_bytes()
            packed += bytes((kind, number, *len(content).to_bytes(2, "little"))) + content
    return bytes(packed)


def _of_leveldb() -> Callable[[bytes], object]:
    """A reader of LevelDBs. Mutations that keep a checksum right are rare, so that of half the inputs none counts."""
    folder = Path(FOLDER.name, str(next(NUMBERS)))
    folder.mkdir()
    matches, checked = leveldb_files.matches, True

    def of_bytes(data: bytes) -> object:
        nonlocal checked
        for path in folder.iterdir():
            path.unlink()
        checked, at = bool(data[0] & 1) if data else True, 1
        while at + 4 <= len(data):
            name = LEVELDB_NAMES[data[at] % len(LEVELDB_NAMES)].format(data[at + 1])
            begin, at = at + 4, at + 4 + int.from_bytes(data[at + 2 : at + 4], "little")
            (folder / name).write_bytes(data[begin:at])
        database = LevelDatabase(str(folder))
        return list(database.items()), list(database.items(b"k3"))

    for module in (leveldb_files, database_leveldb):
        setattr(module, "matches", lambda *given: matches(*given) or not checked)  # noqa: B010
    return of_bytes


def _leveldbs() -> Iterator[bytes]:
    """A log alone; tables of all levels, packed and not, with keys in several, deleted ones, and values longer than a block."""
    import plyvel

    for compression in ("snappy", None):
        for opened in (1, 2, 5):
            with tempfile.TemporaryDirectory() as folder:
                for i in range(opened):  # each opening makes a table of the log
                    database = plyvel.DB(folder, create_if_missing=True, compression=compression, block_size=1024)
                    for j in range(i, 30, i + 1):
                        database.put(b"k%d" % j, bytes([i]) * (j * 9 if j % 10 else 4000))
                    database.delete(b"k%d" % (2 * i))
                    if i == 2:
                        database.compact_range()
                    database.close()
                yield from (bytes([checked]) + _packed(Path(folder)) for checked in (0, 1))


def _images() -> Iterator[bytes]:
    from PIL import Image

    for mode in ("RGB", "L", "P", "RGBA", "1", "I;16"):
        for kind in ("png", "jpeg", "bmp", "gif", "webp", "tiff", "ppm"):
            out = io.BytesIO()
            try:
                Image.new(mode, (7, 5)).save(out, kind)
            except (OSError, KeyError, ValueError):
                continue
            yield out.getvalue()
    yield from _files("**/*.jpg", "**/*.png")


def _tiff(path: str) -> None:
    """Its size as annotations are checked with, and its pixels, which must be of that size."""
    size = image_size(path)
    height, width, _ = load_image(path).shape
    assert size == (width, height), (size, width, height)


def _npys() -> Iterator[bytes]:
    for array in (np.arange(6.0).reshape(2, 3), np.zeros((2, 0, 3), np.float32), np.array(["a"])):
        out = io.BytesIO()
        np.save(out, array)
        yield out.getvalue()


def _npzs() -> Iterator[bytes]:
    for save in (np.savez, np.savez_compressed):
        out = io.BytesIO()
        save(out, x=np.arange(6.0).reshape(2, 3), y=np.ones(2, np.int8))
        yield out.getvalue()


def _printed(data: bytes) -> None:
    """Names in what the commands print (tables, lines, lines above a bar), on a terminal with colours and on a pipe."""
    names = [part.decode("utf-8", "surrogateescape") for part in data.split(b"\n")][:8]
    for terminal in (True, False):
        text = _said(names, terminal)
        if found := foreign(text, terminal=terminal):
            raise AssertionError(f"{found[:9]!r} in {text!r} for {names!r}")
        if not set(OURS.findall(text)) <= set(OURS.findall(_said(["a"], terminal))):
            raise AssertionError(f"styles that are not ours in {text!r} for {names!r}")
        seen = OURS.sub("", text)
        for name in names:
            if on_one_line(name).strip() not in seen:
                raise AssertionError(f"{name!r} is not in {seen!r}")


def _said(names: list[str], terminal: bool) -> str:
    """What is printed of names."""
    stream = _Terminal() if terminal else io.StringIO()
    wide = {"TERM": "xterm-256color", "COLUMNS": "4000", "LINES": "50"}
    with redirect_stdout(stream), redirect_stderr(stream), patch.dict(os.environ, wide), guarded():
        print_table(names[0], ["name", "again"], [[name, name] for name in names], right=["again"])
        with bar() or nullcontext():
            for name in names:
                echo(on_one_line(name), err=True)
                warn(name)
                print(name)
        try:
            raise Error(names[-1])
        except Error as error:
            echo(f"minicaffe: {error}", err=True)
    return stream.getvalue()


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


HOSTILE_NAMES = [
    b"conv1\ndata",
    b"[/]\n[link=http://x]y[/link]\n:skull:\n[bold red]x",
    b"\x1b[31m\n\x1b]0;t\x07\n\x1b]8;;http://x\x1b\\x\n\xc2\x9b5m\n\xff\x9b\n\r\x08",
    "\u202e\u2028\u200b\u2066\ufeff\U000e0041\n猫 \u3000\té\u0301".encode(),
]


def _parquets() -> Iterator[bytes]:
    """Every column that images may be in, each way of packing pages that pyarrow writes, some rows null."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    images: list[bytes | None] = [*islice(_images(), 5), None]
    paths = [None if image is None else f"{i}.png" for i, image in enumerate(images)]
    structs = [image and {"bytes": image, "path": path} for image, path in zip(images, paths, strict=True)]
    ways: list[dict[str, Any]] = [
        {"compression": "none"},
        {"compression": "snappy", "data_page_version": "2.0"},
        {"compression": "gzip", "use_dictionary": False},
        {"compression": "zstd", "use_dictionary": False, "column_encoding": "DELTA_BYTE_ARRAY"},
        {"compression": "lz4", "use_dictionary": False, "column_encoding": "DELTA_LENGTH_BYTE_ARRAY"},
        {"compression": "brotli", "store_schema": False, "write_page_checksum": True},
    ]
    for columns in ({"bytes": images, "path": paths}, {"path": paths}, {"image": structs}, {"image": images, "label": paths}):
        for way in ways:
            out = io.BytesIO()
            pq.write_table(pa.table(columns), out, row_group_size=4, **way)
            yield out.getvalue()


def _rows(path: str) -> None:
    """Every row, one at a time, as a run has it."""
    for _ in islice(find_rows(path, "/nowhere").pictures(), MOST_ROWS):
        pass


TARGETS = {
    "prototxt": Target(lambda data: parse_net(_text(data)), lambda: _files("**/*.prototxt")),
    "net": Target(_net, lambda: iter([NET.encode(), *_files("shapes/**/test.prototxt", "heads/*.prototxt")])),
    "solver": Target(lambda data: parse_solver(_text(data)), lambda: _files("**/*solver*.prototxt")),
    "caffemodel": Target(_of_path(_weights, ".caffemodel"), lambda: _saved(".caffemodel")),
    "hdf5": Target(_of_path(_weights, ".h5"), lambda: _saved(".caffemodel.h5")),
    "safetensors": Target(_of_path(_weights, ".safetensors"), _safetensors),
    "npz_weights": Target(_of_path(_weights, ".npz"), lambda: _saved(".npz")),
    "solverstate": Target(_of_path(read_state, ".solverstate"), lambda: _states(".solverstate")),
    "solverstate_hdf5": Target(_of_path(read_state, ".solverstate.h5"), lambda: _states(".solverstate.h5")),
    "binaryproto": Target(_of_path(read_binaryproto, ".binaryproto"), _means),
    "lmdb": Target(_of_path(lambda path: list(LmdbDatabase(path).items())), _lmdbs),
    "leveldb": Target(_of_leveldb(), _leveldbs),
    "parquet": Target(_of_path(_rows, ".parquet"), _parquets),
    "datum": Target(lambda data: datum_array(parse_datum(data, "a record"), "a record"), _datums),
    "param_str": Target(lambda data: read_yaml(_text(data)), lambda: iter(PARAM_STRS)),
    "tiff": Target(_of_path(_tiff, ".tif"), tiffs.all_kinds),
    "image": Target(lambda data: read_image(data, None), _images),
    "npy": Target(_of_path(read_npy, ".npy"), _npys),
    "npz": Target(_of_path(read_npz, ".npz"), _npzs),
    "settings": Target(_of_path(read_settings, ".yml"), lambda: iter([SETTINGS, *_files("**/*.yml")])),
    "annotations": Target(_of_path(_roidb, ".json"), lambda: iter(JSONS)),
    "voc": Target(_of_voc(), lambda: iter([VOC])),
    "image_list": Target(_of_path(read_image_list, ".txt"), lambda: iter([IMAGE_LIST])),
    "window_file": Target(_of_path(read_window_file, ".txt"), lambda: iter([WINDOW_FILE])),
    "log": Target(_of_path(parse_log, ".log"), lambda: iter([LOG])),
    "terminal": Target(_printed, lambda: iter(HOSTILE_NAMES)),
}

for name, most in LIMITS.items():
    setattr(limits, name, most)
