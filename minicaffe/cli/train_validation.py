"""train's validation: --val and the options that go with it, --keep, and the texts and lines of the progress."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import click

from minicaffe.data.roidb_entry import Roidb
from minicaffe.detection.class_names import read_names
from minicaffe.errors import Error, install
from minicaffe.training.epochs import roidb_of
from minicaffe.training.solver import Progress, SGDSolver
from minicaffe.training.trained_detector import find_test_net, input_names

from .common import refuse
from .image_options import read_annotations
from .options import option
from .terminal import echo, inform, warn
from .train_sizes import SNAPSHOTS, SizeOptions

if TYPE_CHECKING:
    from minicaffe.training.validation import Validated, Validation

INTERVAL = 10.0
"""Most seconds between lines without a terminal."""


@dataclass(frozen=True, kw_only=True)
class ValidationOptions(SizeOptions):
    """--val, --val-split, --val-images, --val-every, --test-net, --patience and --keep.

    has_test_net: False for a net whose weights alone fit no test net.
    """

    heading: ClassVar[str] = "Validation"
    val: str | None = option(
        "--val", "Images and boxes to validate on, as for --roidb; the best weights go to PREFIX_best.", metavar="FILE|FOLDER"
    )
    val_split: str | None = option("--val-split", "Split of --val, as --split.  [default: val, or test]", metavar="NAME")
    val_images: str | None = option("--val-images", "Folder of the images of --val, as --images.", metavar="DIR")
    val_every: int | None = option(
        "--val-every",
        "Iterations between validations.  [default: an epoch, and at least as many as images of --val]",
        type=click.IntRange(1),
    )
    test_net: str | None = option(
        "--test-net",
        "Test prototxt for --val.  [default: test.prototxt or the like in the folder of the solver or train net]",
        metavar="FILE",
    )
    patience: int | None = option(
        "--patience", "Stop after this many validations without a better one.", type=click.IntRange(1)
    )
    keep: int | None = option(
        "--keep",
        "Keep only this many snapshots, the newest, and the best weights.  [default: all]",
        type=click.IntRange(1),
        heading=SNAPSHOTS,
    )
    has_test_net: bool = True

    def check_validation(self) -> None:
        """Raise Error for options that do nothing without --val, and for a missing folder."""
        if not self.val:
            given = {"--val-split": self.val_split, "--val-images": self.val_images, "--val-every": self.val_every}
            refuse("without --val", {**given, "--patience": self.patience})
            if not self.classes:
                refuse("without --val or --classes", {"--test-net": self.test_net})
        if self.val_images and not Path(self.val_images).is_dir():
            raise Error(f"--val-images {self.val_images}: no such folder")

    def validation_images(self, names: Sequence[str]) -> tuple[Roidb, list[str]]:
        """Return the images of --val and the class names. names: those of the training's images. Raises Error."""
        known = names or (read_names(self.class_file) if self.class_file else None)
        splits, skip = self.val_split or ("val", "test"), self.skip_unreadable
        return read_annotations(self.val or "", splits, self.val_images, known, skip=skip, prefix="--val-")

    def start_validation(self, trainer: SGDSolver, names: Sequence[str]) -> Validation | None:
        """Return the validation of --val, or None. names: the classes of the training's images. Raises Error."""
        if not self.val:
            return None
        from minicaffe.training.validation import Validation

        entries, classes = self.validation_images(names)
        _warn_of_overlap(self.val, entries, trainer)
        try:
            net = self.test_net or find_test_net(trainer)
        except Error as error:
            raise Error(f"--val: {error} with --test-net") from error
        entries = self.with_proposals(entries) if "rois" in input_names(net) else entries
        try:
            found = Validation(trainer, entries, classes or None, net=net, every=self.val_every, patience=self.patience)
        except Error as error:
            raise Error(f"--val {self.val}: {error}") from error
        count = f"{len(entries)} image{'s' * (len(entries) != 1)}"
        echo(f"{self.val}: {count} for validation with {net}, every {found.every} iterations and at the end")
        if not found.measures_coco:
            inform(f"for COCO's average precision install pycocotools: {install('coco')}")
        return found


def _warn_of_overlap(source: str, entries: Roidb, trainer: SGDSolver) -> None:
    """Warn if images for validation are also trained on."""
    trained = {os.path.realpath(str(entry["image"])) for entry in roidb_of(trainer.net)}
    if both := sum(os.path.realpath(str(entry["image"])) in trained for entry in entries):
        warn(f"{source}: {both} of {len(entries)} images are also trained on, so the results will look too good (--val-split?)")


class Lines:
    """Lines on a training: every so many iterations, and at least every INTERVAL seconds."""

    def __init__(self, every: int) -> None:
        self._every, self._last = every, time.monotonic()

    def progress(self, progress: Progress) -> None:
        """Print a line if it is time for one."""
        if progress.iteration % self._every == 0 or self._is_late():
            self._print(f"iteration {progress.iteration}: {progress_text(progress)}")

    def image(self, done: int, total: int) -> None:
        """Print the number of images that are validated, if no line came for long."""
        if self._is_late():
            self._print(f"validated {done} of {total} images")

    def validated(self, done: Validated, validation: Validation) -> None:
        """Print the result of a validation."""
        self._print(f"iteration {done.iteration}: {validated_text(done, validation)}")

    def _is_late(self) -> bool:
        return time.monotonic() - self._last >= INTERVAL

    def _print(self, line: str) -> None:
        self._last = time.monotonic()
        echo(line)


def progress_text(progress: Progress) -> str:
    return f"loss {progress.loss:.4f}  lr {progress.lr:g}  {progress.rate:.1f} it/s"


def validated_text(done: Validated, validation: Validation) -> str:
    """Return the numbers of a validation, and the best ones so far."""
    best = "the best so far" if done.is_best else f"best {validation.best:.4f} at {validation.best_iteration}"
    return f"{numbers_text(done.numbers)}  ({best})"


def numbers_text(numbers: dict[str, float]) -> str:
    return "  ".join(f"{name} {value:.4f}" for name, value in numbers.items())


def tell_best(validation: Validation) -> None:
    """Print the file of the best weights, and their numbers."""
    if validation.best is None:
        echo("no validation is complete")
        return
    numbers = f"iteration {validation.best_iteration}: {numbers_text(validation.best_numbers)}"
    lost = "" if validation.best_file.is_file() else ", but the file is missing"
    echo(f"best: {validation.best_file} ({numbers}){lost}")
