"""new: a folder with everything that a detector needs to train on the user's classes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import click

from minicaffe.detection.class_names import BACKGROUND, read_names
from minicaffe.errors import Error, pasted
from minicaffe.files import replacing_together, unlinked
from minicaffe.starters import README, STARTERS, files_of

from .common import check_folder
from .options import argument, option, with_options
from .terminal import echo, inform


@dataclass(frozen=True, kw_only=True)
class Options:
    detector: str = argument(type=click.Choice(list(STARTERS)))
    folder: str = argument()
    classes: str = option("--classes", "Class names, one per line, without the background.", metavar="FILE", required=True)


@with_options(Options)
def new_command(options: Options) -> None:
    """Write a new detector for your classes into FOLDER: prototxts, solver, settings, classes.txt and README.md.

    DETECTOR is ssd or rfcn, which train from scratch on a CPU, or zf or mobilenet-ssd, which start from published weights.
    README.md has the commands to train, evaluate, detect and trace. No file is overwritten.

    Example:  minicaffe new ssd fruit --classes fruit.txt
    """
    names = [name for name in read_names(options.classes) if name not in (BACKGROUND, "background")]
    if not names:
        raise Error(f"{options.classes}: names only the background: write one class name per line")
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise Error(f"{options.classes}: the class {twice[0]} is named twice: leave one out")
    check_folder("FOLDER", options.folder)
    folder = Path(options.folder)
    files = files_of(options.detector, names)
    if found := [name for name in files if unlinked(folder / name).exists()]:
        raise Error(f"{folder / found[0]} already exists: remove it, or give another folder")
    folder.mkdir(parents=True, exist_ok=True)
    with replacing_together(folder / README) as draft:
        for name, text in files.items():
            (draft.parent / name).write_text(text, encoding="utf-8")
    for name in files:
        echo(f"written: {folder / name}")
    inform(f"{STARTERS[options.detector].about}; the next commands: {pasted(str(folder / README), path=True)}")
