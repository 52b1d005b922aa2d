"""minicaffe train"""

from __future__ import annotations

import logging
import os
import re
import signal
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from minicaffe.access import granted
from minicaffe.data.roidb import add_flipped, add_proposals, load_roidb
from minicaffe.data.settings import DetectionSettings, read_settings
from minicaffe.errors import Error
from minicaffe.formats.prototxt import read_solver
from minicaffe.layers.roi_data import RoIData
from minicaffe.proto import caffe_pb2
from minicaffe.scaling.batch.detector import read_proposals
from minicaffe.training.finite import check_finite
from minicaffe.training.signals import Action, signal_actions
from minicaffe.training.snapshots import latest
from minicaffe.training.solver import Progress, SGDSolver
from minicaffe.training.solvers import get_solver

from .common import (
    FiniteRange,
    allow_modules,
    check_apart,
    check_target,
    device_options,
    listed,
    one_of,
    say_loudly,
    state_options,
)
from .log import logging_to, to_stderr
from .terminal import echo

if TYPE_CHECKING:
    from rich.console import Console

    from minicaffe.scaling.mpi import Job

LATEST = "latest"
"""--snapshot's value for the newest complete snapshot."""

EFFECTS = click.Choice([action.value for action in Action])


@click.command()
@click.argument("solver", required=False)
@click.option("--solver", "solver_option", metavar="FILE", help="The solver, in place of the argument.")
@click.option("--weights", multiple=True, metavar="FILE,...", help="Weights to start from; may be repeated.")
@click.option(
    "--snapshot", metavar="FILE.solverstate|latest", help="Go on where this snapshot stopped; latest: the newest complete one."
)
@click.option("--iterations", type=int, help="How many iterations to train; needed where the solver has no max_iter.")
@click.option("--roidb", metavar="FILE.json|VOC-FOLDER", help="The images and boxes for nets that begin with RoIData.")
@click.option("--split", default="trainval", show_default=True, help="The image list of a VOC folder.")
@click.option("--images", metavar="DIR", help="The images of a COCO file.  [default: its own folder]")
@click.option("--proposals", metavar="DIR", help="IMAGE-NAME.npy files of boxes (R, 4), for nets without an RPN.")
@click.option("--cfg", metavar="FILE.yml", help="Detection settings in py-faster-rcnn's format.")
@click.option("--out", metavar="FILE.caffemodel", help="Write the trained weights here too.")
@click.option(
    "--seed", type=int, help="Of weights, order and samples.  [default: the solver's random_seed, or the settings' RNG_SEED]"
)
@click.option("--log", "log_file", metavar="FILE", help="Add all lines of the run, as Caffe logs them, to FILE.")
@click.option(
    "--sigint-effect",
    type=EFFECTS,
    default="stop",
    show_default=True,
    help="What Ctrl-C does; stop writes a snapshot too. A second Ctrl-C ends at once; SIGTERM is a stop.",
)
@click.option("--sighup-effect", type=EFFECTS, default="snapshot", show_default=True, help="What the signal SIGHUP does.")
@click.option(
    "--check-finite", "finite", is_flag=True, help="Stop at the first NaN or infinity, and name its layer, blob and iteration."
)
@click.option(
    "--engine",
    type=click.Choice(["mpi"]),
    help="mpi: train with the other processes that mpiexec started, each on a share of the data.",
)
@click.option(
    "--timeout",
    type=FiniteRange(min=0, min_open=True),
    metavar="SECONDS",
    help="How long --engine mpi waits for the other processes.  [default: 300]",
)
@device_options
@state_options
def command(
    solver: str | None,
    solver_option: str | None,
    weights: tuple[str, ...],
    snapshot: str | None,
    iterations: int | None,
    roidb: str | None,
    split: str,
    images: str | None,
    proposals: str | None,
    cfg: str | None,
    out: str | None,
    seed: int | None,
    log_file: str | None,
    sigint_effect: str,
    sighup_effect: str,
    finite: bool,
    engine: str | None,
    timeout: float | None,
    level: int,
    stages: tuple[str, ...],
    allow_module: tuple[str, ...],
) -> None:
    """Train the net of the solver prototxt SOLVER; show loss, learning rate and speed; write snapshots.

    A snapshot's box layers hold the targets' means and deviations, as the test net wants them.

    The caffe tool's flags work too, as it spells them: -solver, -weights a,b, -snapshot, -level, -stage a,b, -sigint_effect,
    -sighup_effect.

    Example:  minicaffe train solver.prototxt --roidb VOC2007 --cfg end2end.yml --weights zf.caffemodel --iterations 70000

    Example:  minicaffe train -solver solver.prototxt -snapshot lenet_iter_5000.solverstate

    Example:  mpiexec -n 4 minicaffe train solver.prototxt --engine mpi
    """
    if timeout and not engine:
        raise click.UsageError("--timeout goes with --engine mpi")
    path = one_of(solver, solver_option, "SOLVER", "--solver")
    allow_modules(allow_module)
    if weights and snapshot and snapshot != LATEST:
        raise Error("--weights starts anew and --snapshot goes on: give one of them")
    if iterations is not None and iterations < 1:
        raise Error(f"--iterations must be at least 1, got {iterations}")
    read = [path, *weights, snapshot, cfg, roidb, proposals]
    check_target("--out", out, read)
    check_target("--log", log_file, read)
    check_apart("--out", out, "--log", log_file)
    _check_kinds(weights, snapshot)
    with _ranks(engine, timeout) as job:
        settings = read_settings(cfg) if cfg else DetectionSettings()
        param = read_solver(path)
        _set_train_state(param, level, stages)
        state = _state(param, snapshot, Path(path).parent)
        if weights or state:
            param.ClearField("weights")
        chosen = seed if seed is not None else param.random_seed if param.random_seed >= 0 else settings.rng_seed
        trainer = get_solver(param, folder=Path(path).parent, settings=settings, seed=chosen)
        echo(f"net: {trainer.net.file}" + f" ({trainer.net.name})" * bool(trainer.net.name))
        with job.train(trainer) if job else nullcontext():
            for file in weights if state is None else ():
                _load(trainer, file)
            _set_roidb(trainer, settings, roidb, split, images, proposals)
            if state:
                trainer.restore(state)
            checked = check_finite(trainer.net, lambda: f"iteration {trainer.iter}") if finite else nullcontext()
            first = trainer.exchange.rank == 0
            noted = None if job else partial(_say_noted, trainer.param.snapshot_after_train)
            usr1 = "stop" if job else None
            with checked, signal_actions(sigint_effect, sighup_effect, sigusr1=usr1, noted=noted) as request:
                trainer.set_action_function(request)
                _solve(trainer, iterations, log_file if first else None)
            if out and first:
                trainer.save(out)
                echo(f"written: {out}")


def _ranks(engine: str | None, timeout: float | None) -> AbstractContextManager[Job | None]:
    """The ranks that train together; None for a process that trains alone."""
    if engine is None:
        return nullcontext()
    from minicaffe.scaling import mpi

    return mpi.training(timeout or mpi.TIMEOUT)


def _say_noted(last: bool, number: int, action: Action) -> None:
    """What a signal was taken for, on stderr; last: a stop writes a snapshot. By os.write: a handler may come amid a print."""
    if action is Action.STOP:
        more = "; Ctrl-C again ends at once" if number == signal.SIGINT else ""
        text = f"stopping after this iteration{', with a snapshot' * last}{more}"
    else:
        text = "a snapshot follows this iteration" if action is Action.SNAPSHOT else "training goes on"
    with suppress(OSError):
        os.write(2, ("\n" * os.isatty(2) + text + "\n").encode())


def _check_kinds(weights: Sequence[str], snapshot: str | None) -> None:
    """Raises Error where a snapshot's two files, .caffemodel and .solverstate, are given for each other."""
    if snapshot and snapshot.endswith((".caffemodel", ".caffemodel.h5")):
        raise Error(f"--snapshot {snapshot}: give the .solverstate beside it; to start anew from its weights: --weights")
    for file in weights:
        if file.endswith((".solverstate", ".solverstate.h5")):
            raise Error(f"--weights {file}: give the .caffemodel beside it; to go on where it stopped: --snapshot")


def _load(trainer: SGDSolver, file: str) -> None:
    report = trainer.net.copy_from(file)
    if not report.loaded:
        say_loudly(f"no layer of the net has its name in {file}: nothing was loaded from it")
    elif report.missing:
        echo(f"{file}: not in it, so started from their fillers: {listed(report.missing)}", err=True)


def _state(param: caffe_pb2.SolverParameter, snapshot: str | None, folder: Path) -> Path | None:
    """The .solverstate to go on from; for "latest" the newest of snapshot_prefix, and None where there is none yet.
    folder: the solver's."""
    if snapshot != LATEST:
        return Path(snapshot) if snapshot else None
    granted(Path(param.snapshot_prefix).parent, folder)
    newest = latest(param.snapshot_prefix, folder)
    echo(f"going on from {newest}" if newest else f"no snapshot {param.snapshot_prefix}_iter_... yet: from the start")
    return newest


def _set_roidb(
    trainer: SGDSolver,
    settings: DetectionSettings,
    source: str | None,
    split: str,
    images: str | None,
    proposals: str | None,
) -> None:
    readers = [layer for layer in trainer.net.layers if isinstance(layer, RoIData)]
    if not readers:
        if source:
            raise Error(f"--roidb {source}: no layer of the net reads a roidb")
        return
    if not source:
        raise Error(f'layer "{readers[0].name}" reads a roidb: give --roidb, a JSON file or a PASCAL VOC folder')
    if images and not Path(images).is_dir():
        raise Error(f"--images {images}: no such folder")
    entries, classes = load_roidb(source, split=split, images=images)
    told = readers[0].num_classes
    if classes and len(classes) != told:
        say_loudly(f'{source} has {len(classes)} classes with the background, but layer "{readers[0].name}" is told {told}')
    if proposals:
        boxes = [read_proposals(proposals, Path(str(entry["image"]))) for entry in entries]
        entries = add_proposals(entries, [array for array in boxes if array is not None])
    if settings.train.use_flipped:
        entries = add_flipped(entries)
    readers[0].set_roidb(entries)
    echo(f"{source}: {len(entries)} images{' with their mirror images' * settings.train.use_flipped}, {len(classes)} classes")


def _set_train_state(param: caffe_pb2.SolverParameter, level: int, stages: Sequence[str]) -> None:
    if level:
        param.train_state.level = level
    param.train_state.stage.extend(stages)


def _solve(trainer: SGDSolver, iterations: int | None, log_file: str | None) -> None:
    """solve, with a progress bar on a terminal and a line each `display` iterations (or each 100) elsewhere."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

    from .console import bar

    total = iterations if iterations is not None else max(trainer.param.max_iter - trainer.iter, 0)
    shown = bar(MofNCompleteColumn(), BarColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
    if shown is None:
        trainer.on_progress(lambda p: _line(p, trainer.param.display or 100))
        with logging_to(to_stderr, log_file):
            trainer.solve(iterations=iterations)
        return
    with shown, logging_to(lambda record: _above(shown.console, record), log_file):
        task = shown.add_task("", total=total)
        trainer.on_progress(lambda p: shown.update(task, advance=1, description=_text(p)))
        trainer.solve(iterations=iterations)


def _above(console: Console, record: logging.LogRecord) -> None:
    """Show a line above the progress bar, unless it tells what the bar tells."""
    line = record.getMessage()
    if not re.match(r"Iteration \d+( \(.*)?, (loss|lr) = |    Train net output|Solving|Learning Rate Policy", line):
        console.print(line)


def _text(progress: Progress) -> str:
    return f"loss {progress.loss:.4f}  lr {progress.lr:g}  {progress.rate:.1f} it/s"


def _line(progress: Progress, every: int) -> None:
    if progress.iteration % every == 0:
        echo(f"iteration {progress.iteration}: {_text(progress)}")
