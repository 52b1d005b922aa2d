"""minicaffe train"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from minicaffe.errors import Error
from minicaffe.layers.roi_data import RoIData
from minicaffe.prototxt import read_solver
from minicaffe.roidb import add_flipped, add_proposals, load_roidb
from minicaffe.settings import DetectionSettings, read_settings, use
from minicaffe.solver import Progress, SGDSolver, get_solver

from .common import allow_modules, say_loudly
from .detect import read_proposals


@click.command()
@click.argument("solver")
@click.option("--weights", multiple=True, metavar="FILE", help="Weights to start from; may be repeated.")
@click.option("--snapshot", metavar="FILE.solverstate", help="Go on where this snapshot stopped.")
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
@click.option("--allow-module", multiple=True, help="A module that Python layers may be imported from; may be repeated.")
def command(
    solver: str,
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
    allow_module: tuple[str, ...],
) -> None:
    """Train the net of the solver prototxt SOLVER; show loss, learning rate and speed; write snapshots.

    A snapshot's box layers hold the targets' means and deviations, as the test net wants them.

    Example:  minicaffe train solver.prototxt --roidb VOC2007 --cfg end2end.yml --weights zf.caffemodel --iterations 70000
    """
    allow_modules(allow_module)
    if weights and snapshot:
        raise Error("--weights starts anew and --snapshot goes on: give one of them")
    if iterations is not None and iterations < 1:
        raise Error(f"--iterations must be at least 1, got {iterations}")
    settings = read_settings(cfg) if cfg else DetectionSettings()
    use(settings)
    param = read_solver(solver)
    chosen = seed if seed is not None else param.random_seed if param.random_seed >= 0 else settings.rng_seed
    trainer = get_solver(solver, settings=settings, seed=chosen)
    click.echo(f"net: {trainer.net.file}" + f" ({trainer.net.name})" * bool(trainer.net.name))
    for file in weights:
        _load(trainer, file)
    _set_roidb(trainer, settings, roidb, split, images, proposals)
    if snapshot:
        trainer.restore(snapshot)
    _solve(trainer, iterations)
    if out:
        trainer.save(out)
        click.echo(f"written: {out}")


def _load(trainer: SGDSolver, file: str) -> None:
    report = trainer.net.copy_from(file)
    if not report.loaded:
        say_loudly(f"no layer of the net has its name in {file}: nothing was loaded from it")
    elif report.missing:
        click.echo(f"{file}: not in it, so started from their fillers: {', '.join(report.missing)}", err=True)


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
    click.echo(
        f"{source}: {len(entries)} images{' with their mirror images' * settings.train.use_flipped}, {len(classes)} classes"
    )


def _solve(trainer: SGDSolver, iterations: int | None) -> None:
    """solve, with a progress bar on a terminal and a line each `display` iterations (or each 100) elsewhere."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    total = iterations if iterations is not None else max(trainer.param.max_iter - trainer.iter, 0)
    if not console.is_terminal:
        trainer.on_progress(lambda p: _line(p, trainer.param.display or 100))
        with _solver_lines(lambda line: click.echo(line, err=True)):
            trainer.solve(iterations=iterations)
        return
    columns = (MofNCompleteColumn(), BarColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
    with Bar(*columns, console=console) as bar, _solver_lines(lambda line: console.print(line, markup=False, highlight=False)):
        task = bar.add_task("", total=total)
        trainer.on_progress(lambda p: bar.update(task, advance=1, description=_text(p)))
        trainer.solve(iterations=iterations)


@contextmanager
def _solver_lines(show: Callable[[str], None]) -> Iterator[None]:
    """Inside the block the solver's lines on tests and snapshots are shown; its lines on the loss are the progress bar's."""
    handler = logging.Handler()
    handler.emit = lambda record: show(record.getMessage())  # type: ignore[method-assign]
    handler.addFilter(lambda record: not str(record.msg).startswith(("Iteration %d, loss", "    Train net output")))
    log = logging.getLogger("minicaffe.solver")
    level = log.level
    log.setLevel(logging.INFO)
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)


def _text(progress: Progress) -> str:
    return f"loss {progress.loss:.4f}  lr {progress.lr:g}  {progress.rate:.1f} it/s"


def _line(progress: Progress, every: int) -> None:
    if progress.iteration % every == 0:
        click.echo(f"iteration {progress.iteration}: {_text(progress)}")
