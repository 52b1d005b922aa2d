"""train, and film: the frames that a training with --film left."""

from __future__ import annotations

import logging
import os
import re
import signal
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import click

from minicaffe.data.image_check import MOST, ImageCheck, checking_images
from minicaffe.errors import Error, pasted
from minicaffe.files import granted, unlinked
from minicaffe.formats.prototxt import read_solver
from minicaffe.kernels import expect
from minicaffe.layers.proposal.proposal_target import ProposalTarget
from minicaffe.net import Net
from minicaffe.proto import caffe_pb2
from minicaffe.training.finite import check_finite
from minicaffe.training.signals import STOPS, Action, signal_actions
from minicaffe.training.snapshots import latest
from minicaffe.training.solver import SGDSolver
from minicaffe.training.solvers import get_solver

from .common import PAGES, WEIGHTS, check_apart, check_folder, check_target, counted, listed, one_of
from .groups import DeviceOptions, StateOptions, iterations_option, weights_option
from .log import logging_to, to_stderr
from .options import FiniteRange, argument, option, with_options
from .terminal import echo, inform, warn
from .train_augment import AugmentOptions
from .train_lr import FindLrOptions, report
from .train_record import RECORDS, RecordOptions
from .train_sizes import LENGTH, SNAPSHOTS, NetEdits
from .train_validation import Lines, ValidationOptions, progress_text, tell_best, validated_text

if TYPE_CHECKING:
    from rich.console import Console

    from minicaffe.scaling.mpi import Job
    from minicaffe.tracing.film import Film
    from minicaffe.training.validation import Validation


LATEST = "latest"
"""--snapshot's value for the newest complete snapshot."""

EFFECTS = click.Choice([action.value for action in Action])


FILM_PAGE = "film.html"


@dataclass(frozen=True, kw_only=True)
class FilmOptions:
    """--film, --every, --film-net and --film-image."""

    heading: ClassVar[str] = "Film"
    film: str | None = option("--film", "Write frames of the training to DIR, and a page that plays them.", metavar="DIR")
    every: int | None = option("--every", "Iterations between frames.  [default: 100]", type=click.IntRange(1))
    film_net: str | None = option(
        "--film-net", "Test prototxt of the detector, to show its detections.  [default: that of --val]", metavar="FILE"
    )
    film_image: tuple[str, ...] = option(
        "--film-image", "Photo for --film-net; may be repeated.  [default: the roidb's first images]", metavar="FILE"
    )

    def check_film(self) -> None:
        """Raise click.UsageError for film options without the option that they need, Error for an unusable folder."""
        if not self.film and (self.every or self.film_net or self.film_image):
            raise click.UsageError("--every, --film-net and --film-image go with --film")
        if self.film_image and not self.film_net:
            raise click.UsageError("--film-image goes with --film-net")
        check_folder("--film", self.film)

    def start_film(self, trainer: SGDSolver, classes: Sequence[str]) -> Film | None:
        """Return the film of --film, not begun yet, or None. Raises Error."""
        if not self.film:
            return None
        from minicaffe.tracing.film import EVERY, Film

        images, validation = self.film_image, trainer.validation
        shown = validation and validation.detector and "rois" not in validation.detector.net.inputs
        net = self.film_net or (validation.net if validation and shown else None)
        film = Film(trainer, self.film, self.every or EVERY, net=net, images=images, classes=classes or None)
        if film.note:
            inform(f"film: {film.note}")
        return film


@dataclass(frozen=True, kw_only=True)
class TrainingOptions(ValidationOptions, AugmentOptions, DeviceOptions, StateOptions):
    """The options of one training and of a training in stages."""

    seed_given: int | None = option(
        "--seed", "Seed of weights and samples.  [default: the solver's random_seed, or RNG_SEED of the settings]"
    )
    log: str | None = option("--log", "Append Caffe's log lines to FILE.", metavar="FILE", heading=RECORDS)
    sigint_effect: str = option(
        "--sigint-effect",
        "Effect of Ctrl-C: stop (with a last snapshot), snapshot or none. A second Ctrl-C ends at once; SIGTERM stops.",
        type=EFFECTS,
        metavar="EFFECT",
        default="stop",
        heading=SNAPSHOTS,
    )
    sighup_effect: str = option(
        "--sighup-effect", "Effect of SIGHUP.", type=EFFECTS, metavar="EFFECT", default="snapshot", heading=SNAPSHOTS
    )
    check_finite: bool = option("--check-finite", "Stop at the first NaN or infinity; name its layer, blob and iteration.")
    check: bool | None = option(
        "--check/--no-check",
        f"Decode all images before the first iteration.  [default: only sources with at most {MOST:,} images]",
        default=None,
    )
    skip_unreadable: bool = option("--skip-unreadable", "Train without unreadable images instead of stopping.")

    def checking(self) -> AbstractContextManager[None]:
        """Return a context manager that checks the images of the nets and annotations read in its block."""
        if self.check is False:
            return nullcontext()
        most = None if self.check or self.skip_unreadable else MOST

        def shown(items: Iterable[str], count: int) -> Iterable[str]:
            return counted(items, "images checked", count)

        return checking_images(ImageCheck(most=most, skip=self.skip_unreadable, report=warn, counted=shown))

    def check_training(self) -> None:
        """Raise Error or click.UsageError for options that do not go together."""
        if self.check is False and self.skip_unreadable:
            raise click.UsageError("--skip-unreadable needs the check: leave out --no-check")
        self.check_validation()


@dataclass(frozen=True, kw_only=True)
class ProcessOptions:
    """--engine and --timeout."""

    heading: ClassVar[str] = "Several processes"
    engine: str | None = option(
        "--engine", "mpi: train in all processes of mpiexec, each on a shard of the data.", type=click.Choice(["mpi"])
    )
    timeout: float | None = option(
        "--timeout",
        "With --engine mpi: how long to wait for the other processes.  [default: 300]",
        type=FiniteRange(min=0, min_open=True),
        metavar="SECONDS",
    )


@dataclass(frozen=True, kw_only=True)
class TrainOptions(RecordOptions, FindLrOptions, FilmOptions, TrainingOptions, ProcessOptions):
    """The options of train. resume_advice: see SGDSolver."""

    solver: str | None = argument(required=False)
    solver_option: str | None = option("--solver", "Solver, in place of the argument.", metavar="FILE")
    weights: tuple[str, ...] = weights_option()
    out: str | None = option("-o --out", "Also write the trained weights there; the suffix selects the format.", metavar="FILE")
    iterations: int | None = iterations_option(
        "Number of iterations; required if the solver has no max_iter.", None, heading=LENGTH
    )
    snapshot: str | None = option(
        "--snapshot", "Resume from this .solverstate, or from the newest one.", metavar="FILE|latest", heading=SNAPSHOTS
    )
    resume_advice: str = ""


@with_options(TrainOptions)
def train_command(options: TrainOptions) -> None:
    """Train the net of the solver prototxt SOLVER; show loss, learning rate and speed; write snapshots.

    The box layers in snapshots include the means and deviations of the targets, as the test net expects.

    The caffe tool's flags also work: -solver, -weights a,b, -snapshot, -level, -stage a,b, -sigint_effect, -sighup_effect.

    Example:  minicaffe train solver.prototxt --roidb VOC2007 --cfg end2end.yml --weights zf.caffemodel --iterations 70000

    Example:  minicaffe train solver.prototxt --roidb train.json --val val.json --classes classes.txt --epochs 20 --patience 5

    Example:  minicaffe train -solver solver.prototxt -snapshot lenet_iter_5000.solverstate

    Example:  minicaffe train solver.prototxt --film film --every 50 --plot training.png --csv training.csv

    Example:  minicaffe train solver.prototxt --find-lr --plot rates.png

    Example:  mpiexec -n 4 minicaffe train solver.prototxt --engine mpi
    """
    options.use_device()
    train(one_of(options.solver, options.solver_option, "SOLVER", "--solver"), options)


def train(path: str, options: TrainOptions) -> SGDSolver:
    """Train the net of a solver prototxt; return the solver. Raises Error, and click's Exit if a signal stops the training."""
    _check(path, options)
    with _ranks(options) as job:
        param, state = _solver(path, options)
        edits = NetEdits(options, param, job.count if job else 1)
        trainer = _trainer(path, param, options, edits)
        edits.finish(trainer, fresh=state is None)
        _check_test_nets(trainer)
        _remind(param, trainer.net, options)
        options.tell_augmentation(trainer.net)
        with job.train(trainer) if job else nullcontext():
            for file in options.weights if state is None else ():  # --snapshot latest: weights count only for the first start
                _load(trainer, file)
            with options.checking():
                classes = options.set_roidb(trainer.net, options.settings, trainer.test_nets)
                options.apply_epochs(trainer)
                if options.has_test_net and not options.find_lr:
                    edits.write_test_net(trainer, options.test_net)
                options.start_validation(trainer, classes)
            if options.find_lr:
                _find_lr(trainer, options)
                return trainer
            if state:
                trainer.restore(state)
            _solve(trainer, options, options.start_film(trainer, classes), alone=job is None)
    return trainer


def _trainer(path: str, param: caffe_pb2.SolverParameter, options: TrainOptions, edits: NetEdits) -> SGDSolver:
    """Return the solver with its nets, and print the train net's name."""
    # The same in a resumed run, which must end with the same bits.
    expect(None if options.epochs else param.max_iter or None)
    settings, seed = options.settings, options.seed_given
    if seed is None:
        seed = param.random_seed if param.random_seed >= 0 else settings.rng_seed
    folder, fork = Path(path).parent, options.fork or ""
    with options.checking():
        trainer = get_solver(param, folder=folder, settings=settings, fork=fork, seed=seed, edit_net=edits)
        options.check_net(trainer.net)
    trainer.keep, trainer.resume_advice = options.keep, options.resume_advice
    echo(f"net: {trainer.net.file}" + f" ({trainer.net.name})" * bool(trainer.net.name))
    return trainer


def _check(path: str, options: TrainOptions) -> None:
    """Raise Error for options that do not go together, and for outputs that cannot be written."""
    weights, snapshot = options.weights, options.snapshot
    if options.epochs and options.iterations:
        raise click.UsageError("--epochs and --iterations: give one of them")
    options.check_training()
    options.check_find_lr()
    if options.timeout and not options.engine:
        raise click.UsageError("--timeout goes with --engine mpi")
    if weights and snapshot and snapshot != LATEST:
        raise Error("--weights starts anew and --snapshot resumes: give one of them")
    read = [path, *weights, snapshot, options.cfg, options.roidb, options.proposals, options.film_net, *options.film_image]
    read += [options.val, options.test_net, options.class_file]
    check_target("--out", options.out, read, writes=WEIGHTS)
    check_target("--log", options.log, read, appended=True)
    check_apart("--out", options.out, "--log", options.log)
    options.check_record(read)
    for name, file in (("--out", options.out), ("--log", options.log)):
        check_apart(name, file, "--csv", options.csv)
    options.check_film()
    if snapshot and snapshot.endswith((".caffemodel", ".caffemodel.h5")):
        raise Error(
            f"--snapshot {snapshot}: give the .solverstate in the same folder, or start from these weights with --weights"
        )
    for file in weights:
        if file.endswith((".solverstate", ".solverstate.h5")):
            raise Error(f"--weights {file}: give the .caffemodel in the same folder, or resume from this file with --snapshot")


def _ranks(options: TrainOptions) -> AbstractContextManager[Job | None]:
    """Return the ranks that train together; None for a process that trains alone."""
    if options.engine is None:
        return nullcontext()
    from minicaffe.scaling import mpi

    return mpi.training(options.timeout or mpi.TIMEOUT)


def _solver(path: str, options: TrainOptions) -> tuple[caffe_pb2.SolverParameter, Path | None]:
    """Return the solver's parameters, and the .solverstate to resume from, if any."""
    param = read_solver(path)
    if options.level:
        param.train_state.level = options.level
    param.train_state.stage.extend(options.stages)
    options.apply_to(param)
    state = _state(param, options.snapshot, Path(path).parent)
    if options.weights or state:
        param.ClearField("weights")  # the command line replaces the solver's weights
    return param, state


def _check_test_nets(trainer: SGDSolver) -> None:
    """Raise Error for a test net whose inputs no data layer fills, such as a detector's deploy net."""
    for net in trainer.test_nets if not trainer.net.inputs else ():
        if net.inputs:
            raise Error(
                f"test_net {net.file}: no layer fills its inputs {listed(net.inputs)}, so the solver cannot test with it.\n"
                "Remove test_net, test_iter and test_interval from the solver, and validate a detector with\n"
                f"--val ANNOTATIONS --test-net {pasted(str(net.file), path=True)}"
            )


def _remind(param: caffe_pb2.SolverParameter, net: Net, options: TrainOptions) -> None:
    """Warn about settings from which the user may expect more than the command does."""
    on_gpu = param.HasField("solver_mode") and param.solver_mode == caffe_pb2.SolverParameter.GPU
    if on_gpu and not options.device and options.gpu is None:
        warn("solver_mode is GPU, but training runs on the CPU: give --device gpu or auto")
    if not options.cfg and any(isinstance(layer, ProposalTarget) for layer in net.layers):
        warn(
            "no --cfg: the net trains proposals and boxes together with default settings; py-faster-rcnn and py-R-FCN use a"
            " yml, such as --cfg faster_rcnn_end2end.yml"
        )


def _say_noted(last: bool, number: int, action: Action) -> None:
    """Confirm a signal on stderr, by os.write, since it may interrupt a print. last: whether a stop writes a snapshot."""
    if action is Action.STOP:
        more = "; Ctrl-C again ends at once" if number == signal.SIGINT else ""
        text = f"stopping after this iteration{', with a snapshot' * last}{more}"
    else:
        text = "a snapshot follows this iteration" if action is Action.SNAPSHOT else "training goes on"
    with suppress(OSError):
        os.write(2, ("\n" * os.isatty(2) + text + "\n").encode())


def _load(trainer: SGDSolver, file: str) -> None:
    report = trainer.net.copy_from(file)
    if not report.loaded:
        warn(f"{file}: no layer has a name of the net, so nothing was loaded")
    elif report.missing:
        inform(f"{file}: lacks the weights of {listed(report.missing)}, which start from their fillers")


def _state(param: caffe_pb2.SolverParameter, snapshot: str | None, folder: Path) -> Path | None:
    """Return the .solverstate to resume from, or None. "latest" is the newest one of snapshot_prefix. folder: the solver's."""
    if snapshot != LATEST:
        return Path(snapshot) if snapshot else None
    granted(Path(param.snapshot_prefix).parent, folder)
    newest = latest(param.snapshot_prefix, folder)
    echo(f"going on from {newest}" if newest else f"no snapshot {param.snapshot_prefix}_iter_... yet: from the start")
    return newest


def _solve(trainer: SGDSolver, options: TrainOptions, film: Film | None, alone: bool) -> None:
    """Train, obey signals, and write --out and the film's page. alone: no other ranks train.

    Exits with 130 after Ctrl-C and 143 after SIGTERM, but not as the command `caffe`.
    """
    checked = check_finite(trainer.net, lambda: f"iteration {trainer.iter}") if options.check_finite else nullcontext()
    first = trainer.exchange.rank == 0
    stops: list[int] = []

    def noted(number: int, action: Action) -> None:
        _say_noted(trainer.param.snapshot_after_train, number, action)
        if action is Action.STOP and number in STOPS:
            stops.append(number)

    usr1 = None if alone else "stop"  # mpiexec forwards SIGUSR1 to the ranks
    signals = signal_actions(options.sigint_effect, options.sighup_effect, sigusr1=usr1, noted=noted if alone else None)
    total = max(trainer.param.max_iter - trainer.iter, 0) if options.iterations is None else options.iterations
    with ExitStack() as stack:
        for recorder in options.recorders(trainer, trainer.iter + total):
            stack.enter_context(recorder)
        stack.enter_context(checked)
        stack.enter_context(film or nullcontext())
        trainer.set_action_function(stack.enter_context(signals))
        log = options.log if first else None
        _show_progress(trainer, lambda: trainer.solve(iterations=options.iterations), total, log)
    if options.out and first:  # rank 0: all ranks have the same weights
        trainer.save(options.out)
        echo(f"written: {options.out}")
    if trainer.validation:
        tell_best(trainer.validation)
    for file in (options.plot, options.csv, options.tensorboard) if first else ():
        if file:
            echo(f"written: {file}")
    if film:
        echo(f"written: {film.write()}")
    context = click.get_current_context()
    if stops and trainer.stopped and not context.find_root().params["caffe"]:
        context.exit(128 + stops[0])  # as in a shell: the training is not complete


def _find_lr(trainer: SGDSolver, options: TrainOptions) -> None:
    """Run the learning rate range test, and print its proposal."""
    test = options.range_test(trainer, options.iterations)
    with signal_actions("stop", "none") as request:
        _show_progress(trainer, lambda: test.run(request), test.iterations, None)
    report(test, options.plot)


def _show_progress(trainer: SGDSolver, train: Callable[[], object], total: int, log_file: str | None) -> None:
    """Call train with a progress bar; without a terminal, print Lines every `display` iterations (default: 100)."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

    from .console import bar

    shown = bar(MofNCompleteColumn(), BarColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
    validation = trainer.validation
    if shown is None:
        lines = Lines(trainer.param.display or 100)
        trainer.on_progress(lines.progress)
        if validation:
            validation.on_image(lines.image)
            validation.on_validated(lambda done: lines.validated(done, validation))
        with logging_to(to_stderr, log_file):
            train()
        return
    with shown, logging_to(lambda record: _above(shown.console, record), log_file):
        task = shown.add_task("", total=total)
        trainer.on_progress(lambda p: shown.update(task, advance=1, description=progress_text(p) + _best_text(validation)))
        if validation:
            validation.on_image(lambda done, total: shown.update(task, description=f"validating {done}/{total}"))
            validation.on_validated(lambda done: shown.update(task, description=validated_text(done, validation)))
        train()


def _best_text(validation: Validation | None) -> str:
    return f"  best voc_ap {validation.best:.4f}" if validation and validation.best is not None else ""


SHOWN_BY_BAR = re.compile(
    r"Iteration \d+( \(.*)?, (loss|lr) = |    Train net output|Solving|Learning Rate Policy|Plateau .* minimum_loss"
)


def _above(console: Console, record: logging.LogRecord) -> None:
    """Print a line above the progress bar, unless the bar already shows its content."""
    line = record.getMessage()
    if not SHOWN_BY_BAR.match(line):
        console.print(line)


@dataclass(frozen=True, kw_only=True)
class FilmPageOptions:
    folder: str = argument(metavar="DIR")
    out: str | None = option("-o --out", f"Page to write.  [default: DIR/{FILM_PAGE}]", metavar="FILE.html")


@with_options(FilmPageOptions)
def film_command(options: FilmPageOptions) -> None:
    """Make a page from the frames of `minicaffe train --film DIR`, also if that run was killed.

    Example:  minicaffe film film -o film.html
    """
    from minicaffe.tracing.film import write_film

    out = options.out or str(unlinked(Path(options.folder) / FILM_PAGE))
    check_target("--out", out, writes=PAGES)
    write_film(options.folder, out)
    echo(f"written: {out}")
