"""The stages of an alternating training of a Faster R-CNN, and the record of what each was made from.

    stage                starts from          trains on
    stage1_rpn           the given weights    images and boxes
    stage1_fast_rcnn     the given weights    the proposals of stage1_rpn
    stage2_rpn           stage1_fast_rcnn     images and boxes; its convolutions stay fixed
    stage2_fast_rcnn     stage2_rpn           the proposals of stage2_rpn; only its own layers change

Source: Faster R-CNN (arXiv:1506.01497), section 3.2; py-faster-rcnn's tools/train_faster_rcnn_alt_opt.py.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from minicaffe.data.roidb import image_name
from minicaffe.data.roidb_entry import Entry
from minicaffe.data.settings import DetectionSettings
from minicaffe.data.state_fields import MISFITS
from minicaffe.errors import DataError, Error, os_errors_as, read_errors_as
from minicaffe.files import opened, read_text, replacing, unlinked
from minicaffe.formats.prototxt import read_net, read_solver

from .solver_nets import found

Facts = dict[str, Any]
"""What something was made from, as JSON. A file is {"file": its name, "sha256": its checksum}."""


@dataclass(frozen=True)
class Stage:
    """A stage of the training.

    iterations: the original script's. starts_from: the stage whose weights it starts from; "" for the given weights. proposals:
    the RPN on whose proposals it trains; "" for an RPN.
    """

    name: str
    title: str
    iterations: int
    starts_from: str = ""
    proposals: str = ""

    def settings(self, settings: DetectionSettings) -> DetectionSettings:
        """Return the settings of the stage: the given ones, changed as by the original script."""
        train = replace(
            settings.train,
            has_rpn=not self.proposals,
            proposal_method="rpn" if self.proposals else "gt",
            ims_per_batch=2 if self.proposals else 1,
            bbox_reg=settings.train.bbox_reg and bool(self.proposals),  # RPNs have no box layers of classes
            snapshot_infix=self.name.partition("_")[0],
        )
        return replace(settings, train=train)


STAGES = (
    Stage("stage1_rpn", "stage 1, RPN", 80_000),
    Stage("stage1_fast_rcnn", "stage 1, Fast R-CNN", 40_000, proposals="stage1_rpn"),
    Stage("stage2_rpn", "stage 2, RPN", 80_000, starts_from="stage1_fast_rcnn"),
    Stage("stage2_fast_rcnn", "stage 2, Fast R-CNN", 40_000, starts_from="stage2_rpn", proposals="stage2_rpn"),
)
RPN_TEST, TEST_NET = "rpn_test.pt", "faster_rcnn_test.pt"
"""The test nets in the folder: of the RPN, and of the result."""


def proposals_step(stage: Stage) -> str:
    """Return the name of the step that makes the proposals of an RPN."""
    return stage.name.replace("_rpn", "_proposals")


def stage_of(name: str) -> Stage:
    """Return the stage of a name."""
    return next(stage for stage in STAGES if stage.name == name)


@dataclass(frozen=True)
class StageFiles:
    """The files of a stage: its solver, and the net that the solver trains."""

    solver: Path
    net: Path


def stage_files(folder: Path) -> dict[str, StageFiles]:
    """Return each stage's files in a folder with the files of faster_rcnn_alt_opt.

    Raises Error for a missing file, and PrototxtError for one that cannot be read.
    """
    files = {stage.name: _files(folder, stage) for stage in STAGES}
    for path in (folder / RPN_TEST, folder / TEST_NET):
        if not path.is_file():
            raise _missing(folder, path.name)
        read_net(path, warn=False)
    return files


def _files(folder: Path, stage: Stage) -> StageFiles:
    pattern = f"{stage.name}_solver*.pt"
    solvers = sorted(folder.glob(pattern))
    if not solvers:
        raise _missing(folder, pattern)
    if len(solvers) > 1:
        raise Error(f"{folder}: {len(solvers)} files {pattern}: keep one of {', '.join(path.name for path in solvers)}")
    param = read_solver(solvers[0])
    name = Path(param.train_net or param.net)
    if not name.name:
        raise Error(f"{solvers[0]}: names no net: name it with train_net")
    try:
        net = found(str(name), folder)
    except Error as error:
        if name.parent.name == folder.resolve().name:
            raise _missing(folder, name.name) from error
        way = f"call the folder {name.parent.name}, or correct train_net" if name.parent.name else "correct train_net"
        raise Error(f"{solvers[0]}: train_net {error}: {way}") from error
    read_net(net, warn=False)
    return StageFiles(solvers[0], net)


def _missing(folder: Path, name: str) -> Error:
    return Error(
        f"{folder / name}: no such file: give the folder with the four solvers and six prototxts of faster_rcnn_alt_opt"
    )


# What a step was made from.


def file_facts(path: Path) -> Facts:
    """Return the facts of a file. Raises Error if it cannot be read."""
    digest = hashlib.sha256()
    with read_errors_as(Error, f"{path}: cannot be read"), opened(path) as file:
        while part := file.read(1 << 20):
            digest.update(part)
    return {"file": path.name, "sha256": digest.hexdigest()}


def folder_facts(folder: Path, files: Iterable[Path]) -> Facts:
    """Return the facts of some files of a folder, in this order. Raises Error if one cannot be read."""
    digest = hashlib.sha256("".join(file_facts(path)["sha256"] for path in files).encode())
    return {"file": folder.name, "sha256": digest.hexdigest()}


def roidb_facts(roidb: Sequence[Entry], source: str) -> Facts:
    """Return the facts of annotated images: their names, boxes and classes. source: where they come from."""
    digest = hashlib.sha256()
    for entry in roidb:
        digest.update(f"{Path(image_name(entry)).name}\n".encode("utf-8", "surrogateescape"))
        for part in ("boxes", "gt_classes"):
            digest.update(np.asarray(entry[part], float).tobytes())
    return {"file": f"{source}, {len(roidb)} images", "sha256": digest.hexdigest()}


RECORDS = "stages.json"


class Records:
    """The record of what each step was made from, and of what it made: FOLDER/stages.json.

    {"stage1_rpn": {"made_from": {"weights": {"file": ..., "sha256": ...}, ...}, "made": {...}}}

    A step that is not finished has no "made". Raises DataError for a damaged file, and Error for a folder with other files.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / RECORDS
        self._steps = self._read()

    def begin(self, step: str, title: str, facts: Mapping[str, Any], results: str) -> bool:
        """Record what a step is made from; return True if it was begun before.

        results: the pattern of the step's files in the folder. Raises Error if some exist, made from something else.
        """
        now, has_results = json.loads(json.dumps(facts)), any(self.folder.glob(results))
        before = self._steps.get(step, {"made_from": now})["made_from"]
        for name in dict.fromkeys([*before, *now]) if has_results or self.made(step) else ():
            if _identity(before.get(name)) != _identity(now.get(name)):
                was, given = _shown(before.get(name)), _shown(now.get(name))
                raise Error(
                    f"{self.path}: {title}, was begun with other {name}: {was}, now {given}\n"
                    "give what it was begun with, or train anew with another --out"
                )
        if not has_results and not self.made(step):
            self._steps[step] = {"made_from": now}
            self._write()
        return has_results

    def finish(self, step: str, facts: Facts) -> None:
        """Record what a step has made."""
        self._steps[step]["made"] = facts
        self._write()

    def made(self, step: str) -> Facts | None:
        """Return what a finished step has made, or None."""
        made: Facts | None = self._steps.get(step, {}).get("made")
        return made

    def check(self, step: str, facts: Facts) -> None:
        """Raise Error if what a finished step made has changed since. facts: those of today."""
        if _identity(self.made(step)) != _identity(facts):
            raise Error(
                f"{self.folder / facts['file']}: changed since {step} was finished, so the later stages would not fit\n"
                "restore it, or train anew with another --out"
            )

    def _read(self) -> dict[str, Facts]:
        if not self.path.exists():
            with os_errors_as(Error, f"{self.folder}: cannot be read"):
                other = next(self.folder.iterdir(), None) if self.folder.is_dir() else None
            if other:
                raise Error(
                    f"{self.folder}: has other files, such as {other.name}, but no {RECORDS}: give a new folder as --out"
                )
            return {}
        with read_errors_as(DataError, f"{self.path}: cannot be read"):
            text = read_text(self.path, errors="replace")
        try:
            steps = json.loads(text)
            sound = all(_is_sound(step) for step in steps.values())
        except (*MISFITS, RecursionError):
            sound = False
        if not sound:
            raise DataError(f"{self.path}: damaged: train anew with another --out")
        return dict(steps)

    def _write(self) -> None:
        with os_errors_as(Error, f"{self.folder}: cannot be made"):
            self.folder.mkdir(parents=True, exist_ok=True)
        with replacing(unlinked(self.path)) as temporary:
            temporary.write_text(json.dumps(self._steps, indent=1) + "\n", encoding="utf-8")


def _is_sound(step: Any) -> bool:
    made = step.get("made")
    return isinstance(step["made_from"], dict) and (made is None or {type(made[key]) for key in ("file", "sha256")} == {str})


def _identity(value: Any) -> Any:
    return value["sha256"] if isinstance(value, dict) and "sha256" in value else value


def _shown(value: Any) -> str:
    if isinstance(value, dict) and "sha256" in value:
        return f"{value.get('file')} (sha256 {str(value['sha256'])[:12]})"
    return "none" if value is None else json.dumps(value)
