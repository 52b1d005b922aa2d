"""The kind of each file in a folder, found by its content."""

from __future__ import annotations

import os
import re
import stat
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from minicaffe.data.images import image_size
from minicaffe.data.settings import read_settings
from minicaffe.errors import Error, first_of, missing, on_one_line, shortened
from minicaffe.files import opened, read_text
from minicaffe.formats.arrays import read_npy
from minicaffe.formats.lookalikes import PROTOTXT, START
from minicaffe.formats.prototxt import NetFile, all_skipped, parse_net, parse_solver
from minicaffe.formats.skipped import matters, sentence
from minicaffe.formats.weights import HDF5_SIGNATURE
from minicaffe.layers.data.prefetching import DataLayer
from minicaffe.porting.dump import BLOB, HDF5_DATA, Dump
from minicaffe.porting.dump import read as read_dump
from minicaffe.registry import types
from minicaffe.training.solver_log import ITERATION

NET, SOLVER, WEIGHTS, STATE, MEAN = "net", "solver", "weights", "training state", "mean"
SETTINGS, NAMES, IMAGE, LOG, SCRIPT, OTHER, LINK = "settings", "class names", "image", "log", "script", "other", "link"
ORDER = (NET, WEIGHTS, MEAN, SETTINGS, NAMES, SOLVER, STATE, LOG, SCRIPT, IMAGE, OTHER, LINK)

MOST_FILES, DEEPEST = 2000, 12
SHOWN = 40
"""Rows under one heading of the report, and notes on one file."""
PROMISED = {".caffemodel": WEIGHTS, ".solverstate": STATE, ".binaryproto": MEAN, ".prototxt": NET, ".pt": NET, ".yml": SETTINGS}
PICTURES = {".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm"}
LISTS = {"", ".txt", ".names", ".labels", ".lst", ".list", ".csv", ".tsv"}
"""Of texts, those that may be class names."""
SCRIPTS = {".py", ".sh", ".m", ".ipynb", ".cpp", ".lua"}
_SOLVER = re.compile(r"^[^\S\n]*(train_net|test_net|net|base_lr|lr_policy|solver_type|snapshot_prefix|max_iter)\s*:", re.M)
_LAYERS = re.compile(r"^[^\S\n]*layers?\s*\{", re.M)
_HINT = re.compile(r"(?i)\b(pixel_?means?|mean_?(value|file|pixel)?s?|scale(_factor)?|set_(mean|raw_scale|input_scale))\b")
_DIGIT = re.compile(r"\d")
_V1, _V0 = re.compile(r"^[^\S\n]*layers\s*\{", re.M), re.compile(r"layers\s*\{\s*layer\s*\{")


@dataclass(frozen=True)
class Item:
    """A file.

    path: relative to the folder; kind: one of ORDER; says: what is in it; problem: why it cannot be used; facts: what it tells
    about the preprocessing, with places; notes: what matters for the numbers; content: as read.
    """

    path: str
    kind: str
    says: str = ""
    problem: str = ""
    facts: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    content: Any = field(default=None, repr=False)


def scan(folder: Path) -> tuple[list[Item], list[str]]:
    """Return the files, by kind and name, and those left out. Raises Error if it is no folder."""
    if not folder.is_dir():
        raise Error(f"{folder}: {'a file' if folder.exists() else missing(folder)}: give the folder of a model")
    found: list[Item] = []
    left_out: list[str] = []
    for number, path in enumerate(_files(folder, left_out)):
        if number == MOST_FILES:
            left_out.append(f"more than {MOST_FILES} files: the others")
            break
        found.append(_item(path, str(path.relative_to(folder))))
    return sorted(found, key=lambda item: (ORDER.index(item.kind), item.path)), left_out


def _files(folder: Path, left_out: list[str], depth: int = 0) -> Iterator[Path]:
    try:
        inside = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        left_out.append(f"{folder}: {error.strerror}")
        return
    for entry in inside:
        path = Path(entry.path)
        if (entry.name.startswith(".") or entry.name == "__pycache__") and entry.is_dir(follow_symlinks=False):
            continue
        if not entry.is_dir(follow_symlinks=False):
            yield path
        elif depth == DEEPEST:
            left_out.append(f"{path}: deeper than {DEEPEST} folders")
        else:
            yield from _files(path, left_out, depth + 1)


def _item(path: Path, name: str) -> Item:
    if path.is_symlink():
        return Item(name, LINK, f"a link to {os.readlink(path)}, which is not followed")
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            return Item(name, OTHER, problem="no regular file: it is not opened")
        with opened(path, follow=False) as file:
            start = file.read(START)
        if not start:
            return Item(name, OTHER, problem="the file is empty")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the notes report what matters
            return _reader(path, start)(path, name)
    except Exception as error:  # one faulty file must not stop the report on the others
        return Item(name, _guess(path), problem=reason(error).removeprefix(f"{path}: "))


def reason(error: Exception) -> str:
    """Return an exception's message on one line, without the line of a prototxt that it shows."""
    said = str(error) if isinstance(error, Error | OSError) else f"{type(error).__name__}: {error}"
    said = "; ".join(line for line in said.split("\n") if line and not line[0].isspace())
    return shortened(on_one_line("out of memory" if isinstance(error, MemoryError) else said))


def _guess(path: Path) -> str:
    """Return the kind that the name suggests, for a file that cannot be read."""
    suffixes = path.name.lower()
    return next((kind for end, kind in PROMISED.items() if end in suffixes), OTHER)


def _reader(path: Path, start: bytes) -> Callable[[Path, str], Item]:
    suffix = path.suffix.lower()
    if suffix in PICTURES:
        return _image
    if suffix == ".npy":
        return _npy
    if suffix in (".yml", ".yaml"):
        return _settings
    if suffix in SCRIPTS:
        return _script
    binary = b"\0" in start or start.startswith(HDF5_SIGNATURE)
    if binary or suffix in (".caffemodel", ".solverstate", ".binaryproto", ".h5", ".hdf5"):
        return _binary
    if re.match(PROTOTXT, start) or suffix in (".prototxt", ".pt") or _LAYERS.search(start.decode("latin-1")):
        return _prototxt
    return _text


def _image(path: Path, name: str) -> Item:
    width, height = image_size(path)
    return Item(name, IMAGE, f"{width} x {height} pixels")


def _npy(path: Path, name: str) -> Item:
    array = read_npy(path)
    has_channels = array.ndim in (1, 3) and 3 in (array.shape[0], array.shape[-1])
    if array.size and has_channels and array.dtype.kind in "fiu":
        means = array.reshape(3, -1).mean(axis=1) if array.shape[0] == 3 else array.reshape(-1, 3).mean(axis=0)
        return _mean(name, f"an array of {array.shape}", means)
    return Item(name, OTHER, f"an array of {array.shape} {array.dtype}")


def _mean(name: str, says: str, means: Any) -> Item:
    values = ",".join(f"{value:.4g}" for value in means)
    if not np.isfinite(means).all():
        return Item(name, MEAN, says, problem=f"its channel means are {values}")
    return Item(name, MEAN, f"{says}; channel means {values}", facts=(f"mean {values} ({name})",), content=tuple(means))


def _settings(path: Path, name: str) -> Item:
    settings = read_settings(path)
    given, facts = read_text(path), []
    if "PIXEL_MEANS" in given:
        facts.append(f"mean {','.join(f'{value:g}' for value in settings.pixel_means)} ({name}: PIXEL_MEANS)")
    if "SCALES" in given or "MAX_SIZE" in given:
        facts.append(f"short side {settings.test.scales[0]}, long side at most {settings.test.max_size} ({name})")
    return Item(name, SETTINGS, "settings of py-faster-rcnn or py-R-FCN, for --cfg", facts=tuple(facts), content=settings)


def _script(path: Path, name: str) -> Item:
    lines = read_text(path, errors="replace").split("\n")
    hints = [f"{name}:{i}: {on_one_line(line.strip())[:100]}" for i, line in enumerate(lines, 1) if _is_hint(line)]
    caffe = any("caffe" in line for line in lines)
    facts = tuple(f"a hint, perhaps: {line}" for line in hints[:5])
    return Item(name, SCRIPT, f"{len(lines)} lines" + ", which use Caffe" * caffe, facts=facts)


def _is_hint(line: str) -> bool:
    """Return whether a line has a word on preprocessing and a digit after it."""
    word = _HINT.search(line)
    return word is not None and _DIGIT.search(line, word.end()) is not None


def _binary(path: Path, name: str) -> Item:
    dump = read_dump(path)
    if dump.kind == BLOB:
        array = dump.arrays["data"]
        if not array.ndim or not array.size:
            return Item(name, MEAN, problem=f"a blob of shape {array.shape}, which is no image")
        planes = array.reshape(-1, *array.shape[-2:]) if array.ndim > 2 else array
        return _mean(name, f"an image of {array.shape}", planes.reshape(len(planes), -1).mean(axis=1))
    if "state" in dump.kind:
        return Item(name, STATE, f"iteration {int(dump.arrays['iter'])}, of the weights {dump.arrays['learned_net']}")
    if dump.kind == HDF5_DATA:
        return Item(name, OTHER, f"HDF5 with {len(dump.arrays)} arrays")
    return Item(name, WEIGHTS, _weights_text(dump), notes=tuple(dump.forks), content=dump)


def _weights_text(dump: Dump) -> str:
    layers = sum(1 for layer in dump.layers if any(layer.blobs))
    values = sum(array.size for array in dump.arrays.values())
    odd = [key for key, array in dump.arrays.items() if array.dtype.kind == "f" and not np.isfinite(array).all()]
    broken = f"; NaN or infinite values in {', '.join(odd[:3])}" if odd else ""
    written = f"; written by: {dump.origin}" if dump.kind == ".caffemodel" else ""
    return f"{layers} layers with weights, {values:,} values{written}{broken}"


def _prototxt(path: Path, name: str) -> Item:
    text = read_text(path, errors="surrogateescape")
    if not _LAYERS.search(text) and _SOLVER.search(text):
        solver = parse_solver(text, name, strict=False)
        net = solver.net or solver.train_net
        length = f"{solver.max_iter} iterations, " if solver.max_iter else ""
        return Item(name, SOLVER, f"{solver.type}, {length}net {net or 'in the file'}", content=solver)
    if re.match(r"\s*item\s*\{", text):
        return Item(name, NAMES, "a label map of SSD")
    file = parse_net(text, name, warn=False)
    lacking = [field for field in all_skipped(file) if matters(field)]
    notes = [f"{field.place}: {sentence(field)}" for field in lacking[: SHOWN - 1]]
    notes += [f"and {more:,} more unknown fields"] if (more := len(lacking) - len(notes)) else []
    return Item(name, NET, _net_text(file, text), facts=tuple(_transform(file, name)), notes=tuple(notes), content=file)


def _net_text(file: NetFile, text: str) -> str:
    generation = "V0, " if _V0.search(text) else "V1, " if _V1.search(text) else ""
    layers = file.param.layer
    reads = reading(file)
    inputs = [f"{top} {'x'.join(map(str, shape.dim))}" for layer in layers for top, shape in _inputs(layer)]
    use = f"reads data by {', '.join(dict.fromkeys(reads))}" if reads else f"inputs {', '.join(inputs) or 'none'}"
    return f"{generation}{len(layers)} layers, {use}"


def reading(file: NetFile) -> list[str]:
    """Return the types of layers that read data."""
    alone = (layer.type for layer in file.param.layer if not layer.bottom)
    return [kind for kind in alone if kind == "Python" or (kind in types and issubclass(types[kind], DataLayer))]


def _inputs(layer: Any) -> Iterator[tuple[str, Any]]:
    if layer.type == "Input":
        shapes = layer.input_param.shape
        yield from ((top, shapes[min(i, len(shapes) - 1)]) for i, top in enumerate(layer.top) if shapes)


def _transform(file: NetFile, name: str) -> Iterator[str]:
    """Yield the facts on the preprocessing in a net's data layers, each once with all its lines."""
    lines: dict[str, list[str]] = {}
    for layer, source in zip(file.param.layer, file.sources, strict=True):
        for fact in _facts(layer.transform_param):
            lines.setdefault(fact, []).append(f"{source.place.line}")
    yield from (f"{fact} ({name}:{first_of(places)})" for fact, places in lines.items())


def _facts(param: Any) -> Iterator[str]:
    if param.mean_value:
        yield f"mean {first_of([f'{value:g}' for value in param.mean_value], ',')}"
    if param.mean_file:
        yield f"mean file {param.mean_file}"
    if param.HasField("scale"):
        yield f"scale {param.scale:g}, after the mean"
    if param.crop_size:
        yield f"crop {param.crop_size} x {param.crop_size}"


def _text(path: Path, name: str) -> Item:
    text = read_text(path, limit="lists", errors="replace")
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    if re.search(r"solver\.cpp:\d+\]", text) or any(map(_has_loss, lines)):
        return Item(name, LOG, f"a training log of {len(lines)} lines")
    documents = re.match(r"(?i)(licen[cs]e|readme|copying|notice|changelog)", Path(name).name)
    words = all(len(line) < 60 and not re.search(r"[/\\]|\.(jpg|png|jpeg)\b", line) for line in lines)
    listed = Path(name).suffix.lower() in LISTS
    if listed and not documents and 1 < len(lines) <= 30000 and words:
        return Item(name, NAMES, f"{len(lines)} names, the first {on_one_line(lines[0])}", content=lines)
    return Item(name, OTHER, f"text of {len(lines)} lines")


def _has_loss(line: str) -> bool:
    """Return whether a line of a log has an iteration's loss."""
    iteration = ITERATION.search(line)
    return iteration is not None and line.find(" loss = ", iteration.end()) >= 0
