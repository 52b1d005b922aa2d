"""train-alternating: the four stages of a Faster R-CNN of faster_rcnn_alt_opt."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import click

from minicaffe.data.roidb_entry import Roidb
from minicaffe.data.settings import DetectionSettings, changed_values
from minicaffe.detection.proposals import proposal_files, proposal_settings, write_proposals
from minicaffe.errors import Error, pasted
from minicaffe.files import allowing, replacing, unlinked
from minicaffe.mode import TEST
from minicaffe.net import Net
from minicaffe.proto import caffe_pb2
from minicaffe.training.alternating import (
    RPN_TEST,
    STAGES,
    TEST_NET,
    Facts,
    Records,
    Stage,
    StageFiles,
    file_facts,
    folder_facts,
    proposals_step,
    roidb_facts,
    stage_files,
    stage_of,
)
from minicaffe.training.snapshots import paths
from minicaffe.training.solver import SGDSolver

from .common import check_folder, check_target, listed
from .options import argument, option, with_options
from .terminal import echo, inform
from .train import LATEST, TrainingOptions, TrainOptions, train
from .train_sizes import check_prefix
from .train_validation import INTERVAL

AGAIN = "run the same command again"
LAST = STAGES[-1]


def _iterations(text: str) -> tuple[int, ...]:
    """Return the iterations of the four stages. Raises Error."""
    parts = text.split(",")
    if len(parts) in (2, 4) and all(part.strip().isdecimal() and int(part) for part in parts):
        return tuple(map(int, parts)) * (4 // len(parts))
    raise Error(f"--iterations {text}: give four numbers above 0, or those of RPN and Fast R-CNN: 80000,40000")


@dataclass(frozen=True, kw_only=True)
class AlternatingOptions(TrainingOptions):
    """The options of train-alternating. It sets proposals, snapshot_prefix and so on, which are options of train, itself."""

    folder: str = argument()
    roidb: str = option(
        "--roidb",
        "Images and boxes: JSON, CSV, a VOC or YOLO folder, or labelImg's folder of .xml.",
        metavar="FILE|FOLDER",
        required=True,
    )
    cfg: str = option("--cfg", "Detection settings in py-faster-rcnn's format.", metavar="FILE.yml", required=True)
    weights: str = option(
        "--weights", "ImageNet weights, from which both parts of stage 1 start.", metavar="FILE", required=True
    )
    out: str = option(
        "-o --out", "Folder for the snapshots, the proposals and the final weights.", metavar="DIR", required=True
    )
    iterations: tuple[int, ...] | None = option(
        "--iterations",
        "Iterations of the four stages, or of RPN and Fast R-CNN.  [default: 80000,40000,80000,40000, as the original script]",
        type=_iterations,
        metavar="A,B[,C,D]",
    )
    epochs: int | None = option(
        "--epochs", "Train each stage until every image was seen this often, in place of --iterations.", type=click.IntRange(1)
    )
    val: str | None = option(
        "--val",
        "Images and boxes to validate the last stage on, as for --roidb; the best weights go to DIR.",
        metavar="FILE|FOLDER",
    )
    proposals: str | None = None
    snapshot_prefix: str | None = None
    test_net: str | None = None
    batch: int | None = None
    keep: int | None = 1
    level: int = 0
    stages: tuple[str, ...] = ()

    @cached_property
    def annotations(self) -> tuple[Roidb, list[str]]:
        with self.checking():
            return super().annotations

    def check_all(self) -> dict[str, StageFiles]:
        """Return each stage's files. Raises Error, before work starts, for anything that would end a later stage."""
        if self.epochs and self.iterations:
            raise click.UsageError("--epochs and --iterations: give one of them")
        self.check_training()
        if not Path(self.folder).is_dir():
            raise Error(f"{self.folder}: no such folder: give the one with the files of faster_rcnn_alt_opt")
        check_folder("--out", self.out)
        check_prefix("--out", self.out)
        files = stage_files(Path(self.folder))
        read = [self.cfg, self.roidb, self.weights, self.val, self.class_file]
        read += [str(path) for of in files.values() for path in (of.solver, of.net)]
        check_target("--log", self.log, read, appended=True)
        roidb, classes = self.annotations
        proposal_files(roidb, self.out)
        if self.val:
            with self.checking():
                self.validation_images(classes)
        return files


@dataclass(frozen=True, kw_only=True)
class StageOptions(TrainOptions):
    """The options of train for one stage. whole: those of train-alternating."""

    stage: Stage
    whole: AlternatingOptions
    resume_advice: str = AGAIN

    @cached_property
    def settings(self) -> DetectionSettings:
        return self.stage.settings(self.whole.settings)

    @cached_property
    def annotations(self) -> tuple[Roidb, list[str]]:
        return self.whole.annotations  # read once for all stages

    def apply_to(self, param: caffe_pb2.SolverParameter) -> None:
        super().apply_to(param)
        param.snapshot_prefix = str(Path(self.whole.out) / self.stage.name)
        param.snapshot = param.snapshot or max(self.settings.train.snapshot_iters, 0)
        param.snapshot_after_train = True

    def apply_epochs(self, trainer: SGDSolver) -> None:
        super().apply_epochs(trainer)
        if self.epochs is None:
            trainer.param.max_iter = self.stage_iterations

    @property
    def stage_iterations(self) -> int:
        """The iterations of the stage without --epochs."""
        return self.whole.iterations[STAGES.index(self.stage)] if self.whole.iterations else self.stage.iterations

    def facts(self) -> Facts:
        """Return the facts that its options add to those of its files."""
        length = {"epochs": self.epochs} if self.epochs else {"iterations": self.stage_iterations}
        given = {"--seed": self.seed_given, "--lr": self.lr, "--classes": self.class_count, "--fork": self.fork}
        return {**length, **given, **changed_values(self.settings, unused="TEST")}


@with_options(AlternatingOptions)
def train_alternating_command(options: AlternatingOptions) -> None:
    """Train a Faster R-CNN in four alternating stages, as py-faster-rcnn's train_faster_rcnn_alt_opt.py.

    FOLDER has the files of faster_rcnn_alt_opt: stage1_rpn_solver60k80k.pt, stage1_rpn_train.pt and so on, rpn_test.pt and
    faster_rcnn_test.pt. After each RPN, its proposals for the images are written for the next stage.

    The same command goes on after an interruption. Finished stages are not repeated. DIR/stages.json records what each stage
    was made from; other data, files or settings are an error.

    Example:  minicaffe train-alternating ZF/faster_rcnn_alt_opt --roidb VOC2007 --cfg faster_rcnn_alt_opt.yml
    --weights ZF.v2.caffemodel --out zf
    """
    options.use_device()
    files = options.check_all()
    with allowing([options.out]):
        training = _Training(options, files)
        with _advice():
            for stage in STAGES:
                training.train(stage)
                if not stage.proposals:
                    training.write_proposals(stage)
    training.finish()


@contextmanager
def _advice() -> Iterator[None]:
    """Print how to go on after a stop by a signal."""
    try:
        yield
    except (KeyboardInterrupt, click.exceptions.Exit):
        inform(f"to go on: {AGAIN}")
        raise


@contextmanager
def _progress(count: int) -> Iterator[Callable[[int, int], object]]:
    """Yield a function that shows the number of images with proposals: a bar, or without a terminal a line now and then.

    count: the number of all images.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

    from .console import bar

    shown = bar(MofNCompleteColumn(), TextColumn("images with proposals"), BarColumn(), TimeRemainingColumn())
    if shown is not None:
        with shown:
            task = shown.add_task("", total=count)
            yield lambda done, _: shown.update(task, completed=done)
        return
    last = time.monotonic()

    def report(done: int, total: int) -> None:
        nonlocal last
        if time.monotonic() - last >= INTERVAL:
            last = time.monotonic()
            echo(f"proposals for {done} of {total} images")

    yield report


class _Training:
    """The steps of the training, each of which is skipped if it is finished."""

    def __init__(self, options: AlternatingOptions, files: dict[str, StageFiles]) -> None:
        self.options, self.files, self.out = options, files, Path(options.out)
        self.records = Records(self.out)
        self.images = roidb_facts(options.annotations[0], options.roidb)

    def train(self, stage: Stage) -> None:
        """Train a stage, or go on with it."""
        files, start = self.files[stage.name], self.start_of(stage)
        options = self._options_of(stage, start)
        facts: Facts = {"solver": file_facts(files.solver), "net": file_facts(files.net), "images": self.images}
        facts |= {"weights": file_facts(start), **options.facts()}
        if stage.proposals:
            facts["proposals"] = self.records.made(self._proposals(stage))
        if self._is_finished(stage.name, stage.title, facts, _snapshots(stage)):
            self.records.check(stage.name, file_facts(self.weights_of(stage)))
            return
        trainer = train(str(files.solver), options)
        validation = trainer.validation
        if trainer.iter < trainer.param.max_iter and not (validation and validation.is_over):
            click.get_current_context().exit(0)  # stopped as the command `caffe`
        weights, _ = paths(trainer.param, trainer.iter)
        self.records.finish(stage.name, file_facts(weights))
        for prefix in ("", "."):  # as the original script, and unfinished files of a process that was killed
            for file in {*self.out.glob(prefix + _snapshots(stage))} - {weights}:
                file.unlink(missing_ok=True)

    def write_proposals(self, stage: Stage) -> None:
        """Write the proposals of an RPN for each image."""
        step, title = proposals_step(stage), stage.title.replace("RPN", "proposals")
        folder, weights = self.out / step, self.weights_of(stage)
        options, roidb = self.options, self.options.annotations[0]
        test_net, settings = Path(options.folder) / RPN_TEST, proposal_settings(options.settings)
        facts = {"net": file_facts(test_net), "images": self.images, "weights": file_facts(weights)}
        facts |= changed_values(settings, unused="TRAIN")
        files = proposal_files(roidb, folder)
        if self._is_finished(step, title, facts, f"{step}/*.npy"):
            self.records.check(step, folder_facts(folder, files))
            return
        net = Net(str(test_net), TEST, keep="outputs", settings=settings, fork=options.fork or "")
        if missing := net.copy_from(weights).missing:
            raise Error(f"{test_net}: not the test net of {stage.name}: {weights} lacks the weights of {listed(missing)}")
        with _progress(len(roidb)) as report:
            write_proposals(net, roidb, folder, skip_existing=True, on_image=report)
        self.records.finish(step, folder_facts(folder, files))
        echo(f"written: {folder}, the proposals for {len(roidb)} images")

    def finish(self) -> None:
        """Write the final weights, and print the next command."""
        last = self.weights_of(LAST)
        final = unlinked(self.out / f"final{''.join(last.suffixes)}")
        with replacing(final) as temporary:
            shutil.copyfile(last, temporary)
        echo(f"written: {final}")
        net = self.out / f"{LAST.name}_test.prototxt"
        net = net if self.options.classes and net.is_file() else Path(self.options.folder) / TEST_NET
        words = ["minicaffe", "detect", net, final, "PHOTOS", "--cfg", self.options.cfg]
        words += ["--classes", self.options.class_file] if self.options.class_file else []
        echo(f"next: {' '.join(pasted(str(word)) for word in words)}")

    def start_of(self, stage: Stage) -> Path:
        """Return the weights that a stage starts from."""
        return self.weights_of(stage_of(stage.starts_from)) if stage.starts_from else Path(self.options.weights)

    def weights_of(self, stage: Stage) -> Path:
        """Return the weights of a finished stage."""
        made = self.records.made(stage.name)
        assert made is not None
        return self.out / Path(made["file"]).name

    def _proposals(self, stage: Stage) -> str:
        return proposals_step(stage_of(stage.proposals))

    def _is_finished(self, step: str, title: str, facts: Facts, results: str) -> bool:
        was_begun = self.records.begin(step, title, facts, results)
        is_finished = self.records.made(step) is not None
        echo(f"{title}: {'finished' if is_finished else 'going on' if was_begun else 'begins'}")
        return is_finished

    def _options_of(self, stage: Stage, start: Path) -> StageOptions:
        """Return the options for train to start or go on with a stage."""
        whole = self.options
        given: dict[str, Any] = {field.name: None for field in fields(TrainOptions) if field.default is MISSING}
        given |= {field.name: getattr(whole, field.name) for field in fields(TrainingOptions)}
        given |= {"stage": stage, "whole": whole, "weights": (str(start),), "film_image": ()}
        given["snapshot"] = LATEST if any(self.out.glob(_snapshots(stage))) else None
        if stage is not LAST:  # the other stages' weights fit no test net
            without = ("val", "val_split", "val_images", "val_every", "patience")
            given |= {**dict.fromkeys(without), "has_test_net": False}
        elif whole.val or whole.classes:
            given["test_net"] = str(Path(whole.folder) / TEST_NET)
        given["proposals"] = str(self.out / self._proposals(stage)) if stage.proposals else None
        return StageOptions(**given)


def _snapshots(stage: Stage) -> str:
    """Return the pattern of a stage's snapshots."""
    return f"{stage.name}_iter_*"
