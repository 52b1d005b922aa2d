"""Checks of the files that commands write, warnings, tables, and a progress bar."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence, Sized
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
import numpy as np

from minicaffe.blob import Array
from minicaffe.errors import Error, on_one_line, shortened
from minicaffe.files import replacing

from .options import EMPTY
from .terminal import echo, finish_unread

if TYPE_CHECKING:
    from PIL.Image import Image
    from rich.text import Text


def one_of(argument: str | None, option: str | None, place: str, flag: str) -> str:
    """Return a file given as argument or with the caffe tool's flag. Raises click.UsageError unless one of them is given."""
    if (argument is None) == (option is None):
        given = f"{argument} and {flag} {option}: give one of them" if argument else f"give {place}, or {flag} FILE"
        raise click.UsageError(given)
    return argument or option or ""


PAGES, ARRAYS, PICTURES, NETS = (".html", ".htm"), (".npz",), (".png",), (".prototxt", ".pbtxt", ".txt", ".pt")
WEIGHTS = (".caffemodel", ".h5", ".hdf5", ".safetensors")
"""Suffixes of what commands write."""
WRITERS = {
    **dict.fromkeys(PAGES, "`minicaffe trace` writes pages of nets"),
    **dict.fromkeys((*ARRAYS, ".npy"), "`minicaffe dump` writes weights as arrays"),
    **dict.fromkeys((*PICTURES, ".svg", ".pdf", ".dot", ".gv"), "`minicaffe draw` draws nets as .svg, .png, .pdf or .dot"),
    **dict.fromkeys((".jpg", ".jpeg", ".gif", ".bmp", ".webp", ".tif", ".tiff"), "pictures are written as .png"),
    **dict.fromkeys(NETS, "`minicaffe cut`, `deploy` and `rescue` write prototxts"),
    **dict.fromkeys(WEIGHTS, "`minicaffe dump`, `cut` and `merge-bn` write weights"),
    **dict.fromkeys((".py", ".pt", ".pth", ".ckpt"), "`minicaffe to-torch` writes PyTorch source and .safetensors"),
    ".onnx": "`minicaffe export` writes ONNX",
    ".json": "`minicaffe evaluate` and `detect` write .json",
    ".csv": "`minicaffe detect --save` writes .csv",
    ".parquet": "`minicaffe detect --out` writes a folder of .parquet",
    ".flo": "`minicaffe flow` writes .flo",
}
"""For known suffixes, the next step where another format is written."""


def check_target(
    option: str, path: str | None, inputs: Iterable[str | None] = (), *, writes: Sequence[str] = (), appended: bool = False
) -> None:
    """Raise Error, before work starts, for a file that cannot be written or would replace one of the inputs.

    From then on the command continues even if the reader of its text is gone. writes: the suffixes of the command's format; a
    name with the suffix of another one is refused. appended: whether an existing file is extended instead of replaced.
    """
    if path is None:
        return
    _check_named(option, path)
    finish_unread()
    check_no_input(option, path, inputs)
    suffix = Path(path).suffix.lower()
    if writes and suffix in WRITERS and suffix not in writes and not _is_device(path):
        other = Path(path).with_suffix(writes[0]).name
        raise Error(f"{option} {path}: this command writes {writes[0]}, not {suffix}: give {other}; {WRITERS[suffix]}")
    folder = Path(path).absolute().parent
    if os.path.isdir(path):
        raise Error(f"{option} {path}: this is a folder; give the name of a file")
    if not os.path.isdir(folder):
        raise Error(f"{option} {path}: there is no folder {folder}")
    if os.path.isfile(path) or not os.path.exists(path):  # a device needs no folder
        whole = Path(os.path.realpath(path))  # a link's target is replaced
        _check_writable(option, path, whole if appended and whole.exists() else whole.parent)


def check_png(option: str, path: str | None, inputs: Iterable[str | None] = ()) -> None:
    """Check a picture's file like check_target; also raise Error for a name without .png. A device may have any name."""
    check_target(option, path, inputs, writes=PICTURES)
    if path and Path(path).suffix.lower() != ".png" and not _is_device(path):
        raise Error(f"{option} {path}: the picture is a PNG file; give a name that ends in .png")


def check_no_input(option: str, path: str | None, inputs: Iterable[str | None]) -> None:
    """Raise Error for an output that is one of the inputs, also under another name."""
    if not path or not os.path.isfile(path):
        return
    found = identity(path)
    for given in inputs:
        if given and identity(given) == found:  # by inode, to find links and other spellings of the path
            also = f" ({given})" * (given != path)
            raise Error(f"{option} {path}: this is an input{also}, and would be replaced; give another name")


def check_apart(option: str, path: str | None, other: str, second: str | None) -> None:
    """Raise Error for two options that name the same output file."""
    # Two outputs may both be /dev/null.
    if not path or not second or (os.path.exists(path) and not os.path.isfile(path)):
        return
    if os.path.realpath(path) == os.path.realpath(second):
        raise Error(f"{other} {second}: {option} names this file too; give another name")


def refuse(why: str, options: dict[str, Any]) -> None:
    """Raise Error for the first option that is given. why: when it does nothing."""
    for name, value in options.items():
        if value is not None:
            raise Error(f"{name} does nothing {why}")


def check_folder(option: str, path: str | None) -> None:
    """Raise Error, before work starts, for a folder that cannot be written to or made."""
    if path is None:
        return
    _check_named(option, path)
    finish_unread()
    whole = Path(path).absolute()
    nearest = next(place for place in (whole, *whole.parents) if os.path.lexists(place))
    if not nearest.exists():
        raise Error(f"{option} {path}: {nearest} is a link that leads nowhere: remove it, or make the folder that it names")
    if not nearest.is_dir():
        raise Error(f"{option} {path}: {'this' if nearest == whole else nearest} is a file; give the name of a folder")
    _check_writable(option, path, nearest)


def _check_writable(option: str, path: str, place: Path) -> None:
    if not os.access(place, os.W_OK):
        raise Error(f"{option} {path}: no permission to write into {place}: give another folder")


def _is_device(path: str) -> bool:
    return os.path.exists(path) and not os.path.isfile(path)


def _check_named(option: str, path: str) -> None:
    if not path:
        raise Error(f"{option}: {EMPTY}")


def identity(path: str | os.PathLike[str]) -> tuple[int, int] | None:
    """Return the device and inode of a file, which all its names share; None without a file."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return found.st_dev, found.st_ino


def save_png(file: str | os.PathLike[str], picture: Image) -> None:
    """Write a picture as PNG, and make its folder if it is missing."""
    Path(file).parent.mkdir(parents=True, exist_ok=True)
    with replacing(file) as path:
        picture.save(path, "PNG")


def shape_text(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) or "scalar"


def number_text(value: float) -> str:
    """Return a number with a unit: 1234567 -> 1.23 M."""
    for limit, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if value >= limit:
            return f"{value / limit:.2f}{unit}"
    return f"{value:.0f}"


LAID_OUT_ROWS = 2000
"""Rows of a table that rich lays out, which takes it half a millisecond a row: more than a deep net has layers."""


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str | Text]], right: Sequence[str] = ()) -> None:
    """Print a table on stdout. right: the columns to align right.

    Cells are one-line texts or rich's styled Text; only extremely long names are cut (errors.shortened). Rows beyond
    LAID_OUT_ROWS are plain lines.
    """
    import sys
    from itertools import islice

    from rich import box
    from rich.table import Table

    from .console import PlainConsole

    table = Table(title=shortened(on_one_line(title)), box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    left = iter(rows)
    for row in islice(left, LAID_OUT_ROWS):
        table.add_row(*(shortened(on_one_line(cell)) if isinstance(cell, str) else cell for cell in row))
    console = PlainConsole(width=None if sys.stdout.isatty() else 160)  # a pipe has no width
    if console.is_terminal:
        console.print(table)
    else:
        with console.capture() as captured:
            console.print(table)
        echo("\n".join(line.rstrip() for line in captured.get().splitlines()))
    if lines := [shortened(on_one_line("  ".join(map(str, row)))) for row in left]:
        echo("\n".join(lines))


def statistics_text(array: Array) -> str:
    """Return min / mean / max, or the number of NaN and infinite values."""
    if not array.size:
        return "empty"
    if not np.isfinite(array).all():
        return f"{int(np.isnan(array).sum())} NaN, {int(np.isinf(array).sum())} inf"
    return f"{array.min():.4g} / {array.mean(dtype=np.float64):.4g} / {array.max():.4g}"  # the sum of float32 may overflow


def listed(names: Iterable[str]) -> str:
    """Return names from a file, with commas between them, on one line."""
    return ", ".join(map(on_one_line, names))


Item = TypeVar("Item")


def counted(items: Iterable[Item], what: str, total: int | None = None) -> Iterator[Item]:
    """Yield the items, with a progress bar on stderr that counts them."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

    from .console import bar

    total = len(items) if isinstance(items, Sized) else total
    shown = bar(MofNCompleteColumn(), TextColumn(what), BarColumn(), TimeRemainingColumn())
    if shown is None:
        yield from items
        return
    with shown:
        yield from shown.track(items, total=total)
