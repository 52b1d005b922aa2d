"""train's options in place of edited files: --classes, --batch, --epochs, --lr and --snapshot-prefix.

Each prints a line with the value that it replaces.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import click

from minicaffe.detection.class_names import read_names
from minicaffe.errors import Error
from minicaffe.files import allow_path, replacing, unlinked
from minicaffe.formats.prototxt import NetFile, parse_net, read_text
from minicaffe.layer_list import filter_layers
from minicaffe.mode import TRAIN, Phase
from minicaffe.net_arguments import state_applied
from minicaffe.porting.retarget import Retargeted, retarget_text
from minicaffe.proto import caffe_pb2
from minicaffe.registry import class_of
from minicaffe.training.epochs import epoch_of, roi_reader, roidb_of
from minicaffe.training.solver import SGDSolver
from minicaffe.training.trained_detector import find_test_net

from .common import listed
from .image_options import RoidbOptions
from .options import FiniteRange, option
from .terminal import echo, inform, warn

LENGTH, SNAPSHOTS = "Length and rate", "Snapshots and signals"
"""Headings of options in --help."""


@dataclass(frozen=True, kw_only=True)
class SizeOptions(RoidbOptions):
    """--epochs, --batch, --lr, --snapshot-prefix, and --classes, which may also be a number."""

    heading: ClassVar[str] = LENGTH
    classes: str | None = option(
        "--classes",
        "Class names, one per line, or the number of classes with the background. Changes nets with another number.  "
        "[default: the net's; VOC's names for 21, COCO's for 81]",
        metavar="FILE|N",
        heading="Data",
    )
    epochs: int | None = option(
        "--epochs", "Train until every image was seen this often, in place of max_iter.", type=click.IntRange(1)
    )
    batch: int | None = option(
        "--batch", "Images per update: changes iter_size, or the batch_size of the data layer.", type=click.IntRange(1)
    )
    lr: float | None = option("--lr", "Learning rate, in place of base_lr.", type=FiniteRange(0, min_open=True))
    snapshot_prefix: str | None = option(
        "--snapshot-prefix",
        "Folder and first part of the name of snapshots, in place of the solver's.",
        metavar="PREFIX",
        heading=SNAPSHOTS,
    )

    @property
    def class_file(self) -> str | None:
        given = self.classes
        return None if given and given.isdecimal() and not os.path.exists(given) else given

    @property
    def class_count(self) -> int | None:
        """The number of classes that --classes gives, with the background; None without it. Raises Error."""
        if self.class_file:
            return len(read_names(self.class_file))
        return int(self.classes) if self.classes else None

    def apply_to(self, param: caffe_pb2.SolverParameter) -> None:
        """Replace base_lr and snapshot_prefix. Raises Error for a policy that does not read base_lr."""
        if self.snapshot_prefix:
            check_prefix("--snapshot-prefix", self.snapshot_prefix)
            allow_path(Path(self.snapshot_prefix).parent)
            echo(f"--snapshot-prefix: {self.snapshot_prefix} in place of {param.snapshot_prefix}")
            param.snapshot_prefix = self.snapshot_prefix
        if self.lr is None:
            return
        if param.lr_policy == "multifixed":
            raise Error('--lr does nothing here: with lr_policy "multifixed" the solver lists the rates (stagelr)')
        echo(f"--lr: base_lr {self.lr:g} in place of {param.base_lr:g}")
        param.base_lr = self.lr

    def apply_epochs(self, trainer: SGDSolver) -> None:
        """Replace max_iter. Raises Error if the number of images is unknown."""
        if self.epochs is None:
            return
        epoch = epoch_of(trainer)
        if epoch is None:
            raise Error("--epochs: no data layer of the net counts its images: give --iterations")
        total = epoch.iterations_of(self.epochs)
        mirrored = " (mirror images included)" * any(entry["flipped"] for entry in roidb_of(trainer.net))
        divisor = f"{epoch.batch} a pass x iter_size {epoch.iter_size}" + f" x {epoch.ranks} ranks" * (epoch.ranks > 1)
        before = f", in place of max_iter {trainer.param.max_iter}" if trainer.param.max_iter else ""
        echo(f"--epochs: {self.epochs} x {epoch.images} images{mirrored} / ({divisor}) = {total} iterations{before}")
        trainer.param.max_iter = total


def check_prefix(option: str, name: str) -> None:
    """Raise Error for a name of snapshots that a solver cannot hold."""
    try:
        name.encode()
    except UnicodeEncodeError:
        raise Error(f"{option} {name}: a solver stores names in UTF-8, and this is not UTF-8: give another name") from None


class NetEdits:
    """The changes that --classes and --batch make to the solver's nets before they are built (SGDSolver's edit_net).

    ranks: the number of processes that train together.
    """

    def __init__(self, options: SizeOptions, param: caffe_pb2.SolverParameter, ranks: int) -> None:
        self.count, self.batch, self._param, self._ranks = options.class_count, options.batch, param, ranks
        self.retargeted: dict[str, Retargeted] = {}
        self._misfit: Error | None = None
        self._has_batch_size = False

    def __call__(self, file: NetFile, phase: Phase) -> NetFile:
        file = self._retarget(file) if self.count else file
        return self._set_batch_size(file) if self.batch and phase == TRAIN else file

    def finish(self, trainer: SGDSolver, fresh: bool) -> None:
        """Apply what is not in a net file, and print what changed. fresh: the weights come from no snapshot. Raises Error."""
        reader = roi_reader(trainer.net)
        if self._misfit and (reader is None or reader.num_classes != self.count):
            raise Error(f"--classes: {self._misfit}")
        for name, done in self.retargeted.items():
            layers = f"; new layers {listed(done.renamed.values())}" * bool(done.renamed)
            start = ", which start from their fillers" * (fresh and bool(layers))
            echo(f"--classes: {done.new} classes in place of {done.old} in {name}{layers}{start}")
            for note in done.notes:
                warn(note)
        if self.batch is None or self._has_batch_size:
            return
        if reader is None:
            raise Error("--batch: no data layer of the net has a batch_size: change the net or iter_size")
        each = reader.images_per_batch
        passes = self._share(each, f'layer "{reader.name}" reads {each} image{"s" * (each > 1)} a pass')
        echo(f"--batch: iter_size {passes} in place of {trainer.param.iter_size}, at {each} image{'s' * (each > 1)} a pass")
        trainer.param.iter_size = passes

    def write_test_net(self, trainer: SGDSolver, given: str | None) -> None:
        """Write the test net for the new classes, which the trained weights need. given: --test-net."""
        if trainer.net.file not in self.retargeted or trainer.exchange.rank:
            return
        try:
            file = given or str(find_test_net(trainer))
        except Error as error:
            inform(f"{error}; `minicaffe retarget` changes its classes")
            return
        done = retarget_text(read_text(file), file, self.count or 0)
        out = unlinked(f"{trainer.param.snapshot_prefix}_test.prototxt")
        out.parent.mkdir(parents=True, exist_ok=True)
        with replacing(out) as path:
            path.write_bytes(done.text.encode("utf-8", "surrogateescape"))
        echo(f"written: {out} ({file} for {done.new} classes)")

    def _retarget(self, file: NetFile) -> NetFile:
        assert self.count is not None
        if not os.path.isfile(file.file):
            raise Error("--classes: the solver contains its net: write the net to a file, and name it with net or train_net")
        try:
            done = retarget_text(read_text(file.file), file.file, self.count)
        except Error as error:
            self._misfit = error  # it does not matter if the net has the right number
            return file
        if done.old == done.new:
            return file
        self.retargeted[file.file] = done
        return parse_net(done.text, file.file, warn=False)

    def _set_batch_size(self, file: NetFile) -> NetFile:
        param = caffe_pb2.NetParameter()
        param.CopyFrom(file.param)
        blocks = dict(_batch_blocks(param, self._param.train_state))
        if not blocks:
            return file
        sizes = {name: block.batch_size for name, block in blocks.items()}
        if len(set(sizes.values())) > 1:
            known = ", ".join(f"{size} of {name}" for name, size in sizes.items())
            raise Error(f"--batch: the data layers have different batch_sizes ({known}): change them in {file.file}")
        size = self._share(self._param.iter_size, f"iter_size is {self._param.iter_size}")
        for block in blocks.values():
            block.batch_size = size
        if not self._has_batch_size:
            echo(f"--batch: batch_size {size} in place of {next(iter(sizes.values()))} (layer {listed(sizes)})")
        self._has_batch_size = True
        return replace(file, param=param)

    def _share(self, parts: int, reason: str) -> int:
        """Return the batch divided by the parts and the ranks. Raises Error, with the reason, if it is no whole number."""
        assert self.batch is not None
        each = parts * self._ranks
        if self.batch % each:
            ranks = f" and {self._ranks} ranks train" * (self._ranks > 1)
            raise Error(f"--batch {self.batch}: give a multiple of {each}, because {reason}{ranks}")
        return self.batch // each


def _batch_blocks(param: caffe_pb2.NetParameter, state: caffe_pb2.NetState) -> Sequence[tuple[str, Any]]:
    """Return the names of the train net's data layers that have a batch_size, and the blocks that hold it."""
    numbered: list[Any] = [(layer, i) for i, layer in enumerate(param.layer)]
    applied = state_applied(param, TRAIN, state.level, state.stage).state
    found = []
    for layer, _ in filter_layers(numbered, applied):
        kind = None if layer.bottom else class_of(layer)
        given = {field.name: block for field, block in layer.ListFields()}
        blocks = [given[name] for name in kind.param_block if name in given] if kind else []
        found += [(layer.name, block) for block in blocks if "batch_size" in block.DESCRIPTOR.fields_by_name]
    return found
