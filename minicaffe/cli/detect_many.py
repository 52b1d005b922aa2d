"""minicaffe detect --out: the rows of many images as Parquet, by this process or by Ray's."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from minicaffe import threads
from minicaffe.access import is_uri
from minicaffe.errors import Error
from minicaffe.scaling.batch.detector import Arrays, Detector, Recipe, weights_of
from minicaffe.scaling.batch.folder import Folder
from minicaffe.scaling.batch.lock import locked
from minicaffe.scaling.batch.parts import PART_SIZE, Done, run_local
from minicaffe.scaling.batch.places import check_opens, require_pyarrow
from minicaffe.scaling.batch.rules import Rules
from minicaffe.scaling.batch.run import Run, begin
from minicaffe.scaling.batch.sources import Sources
from minicaffe.scaling.stops import exit_status, sigterm_stops

from .batch_display import BatchDisplay
from .common import check_folder, identity
from .terminal import echo


@dataclass(frozen=True)
class Many:
    """The options of a run whose rows go to a folder. device: as given, `gpu:N` where a number was."""

    out: str
    engine: str
    part_size: int
    address: str | None
    workers: int | None
    device: str | None
    modules: tuple[str, ...]

    def check(self, sources: Sequence[str]) -> None:
        """Raises Error for options that do not go together, and for what is not installed."""
        require_pyarrow()
        if any(source.rstrip("/") == self.out.rstrip("/") or same(source, self.out) for source in sources):
            raise Error(f"--out {self.out}: the images come from there: give another folder")
        if is_uri(self.out):
            check_opens(self.out)
        else:
            check_folder("--out", self.out)
        if self.engine == "ray":
            from minicaffe.scaling.batch.ray_cluster import require_ray

            require_ray()
            if self.device not in (None, "cpu", "gpu", "auto"):
                raise Error(f"--device {self.device}: on Ray, which hands out the GPUs, give cpu, gpu or auto")

    @property
    def place(self) -> str:
        return self.out if is_uri(self.out) else str(Path(self.out).absolute())


def many_given(
    sources: Sequence[str],
    out: str | None,
    engine: str | None,
    address: str | None,
    workers: int | None,
    part_size: int | None,
    device: str | None,
    modules: tuple[str, ...],
    draw_dir: str | None,
    as_json: bool,
) -> Many | None:
    """The options of a run with --out; None without. Raises Error for those that do not go together."""
    cluster = {"--address": address, "--workers": workers}
    if out is None:
        refuse("without --out, the folder of the Parquet files", {"--engine": engine, **cluster, "--part-size": part_size})
        return None
    refuse("with --out, whose Parquet files hold all there is", {"--draw": draw_dir, "--json": as_json or None})
    if engine != "ray":
        refuse("without --engine ray", cluster)
    many = Many(out, engine or "local", part_size or PART_SIZE, address, workers, device, modules)
    many.check(sources)
    return many


def refuse(why: str, options: dict[str, Any]) -> None:
    """Raises Error for an option that is given."""
    for option, value in options.items():
        if value is not None:
            raise Error(f"{option} does nothing {why}")


def same(source: str, out: str) -> bool:
    """Whether two names lead to one folder that is there."""
    found = identity(source)
    return found is not None and found == identity(out)


def detect_many(detector: Detector, images: Sources, many: Many) -> Done:
    """Do what is not done yet, show how far it is, and print a summary. Returns what was done. Raises Error."""
    with locked(many.place):
        return _do(detector, images, many)


def _do(detector: Detector, images: Sources, many: Many) -> Done:
    weights = weights_of(detector.net)
    run = begin(images, Folder(many.place), detector.recipe, weights, many.part_size)
    display = BatchDisplay(run.left)
    try:
        with sigterm_stops():
            if many.engine == "ray":
                where = _on_ray(detector.recipe, weights, run, many, display)
            else:
                where = _here(detector, run, display)
    except KeyboardInterrupt as stop:
        echo(f"stopped with {run.count_done()} of {run.parts} parts done: the same command goes on with the others", err=True)
        click.get_current_context().exit(exit_status(stop))
    run.check_done()
    _summary(run, display, many.out, where)
    if display.done.errors == display.done.images:
        run.check_result()
    return display.done


def _here(detector: Detector, run: Run, display: BatchDisplay) -> str:
    with display:
        run_local(detector, run.to_do(), run.folder, display.tell)
    return ""


def _on_ray(recipe: Recipe, weights: Arrays, run: Run, many: Many, display: BatchDisplay) -> str:
    """Returns what it ran on."""
    from minicaffe.scaling.batch.ray_cluster import connected, gpu_problem, node_resources
    from minicaffe.scaling.batch.ray_engine import run_ray
    from minicaffe.scaling.batch.ray_pool import pool

    if not run.left:
        return ""
    with connected(many.address, sum(array.nbytes for arrays in weights.values() for array in arrays)) as ray:
        problem = "not asked for" if many.device == "cpu" else gpu_problem(ray)
        if problem and many.device == "gpu":
            raise Error(f"--device gpu: {problem}")
        rules = Rules(_threads_given() or 1, gpu=not problem, modules=many.modules)
        actors = pool(node_resources(ray), many.workers, rules.threads, rules.gpu).at_most(run.parts_left)
        with display:
            run_ray(ray, recipe, rules, weights, run, actors, tell=display.tell, say=display.say)
    kind = "GPU" if rules.gpu else "CPU"
    return f", {actors.size} worker{'s' * (actors.size != 1)} on Ray, {kind}"


def _threads_given() -> int | None:
    """The number of --threads or of the environment; None without either."""
    source = click.get_current_context().get_parameter_source("threads")
    given = source == ParameterSource.COMMANDLINE or os.environ.get(threads.VARIABLE)
    return threads.get_num_threads() if given else None


def _summary(run: Run, display: BatchDisplay, out: str, where: str) -> None:
    done = display.done
    before = f", {len(run.before)} of which were there" if run.before else ""
    total = f"{len(run.images)} image{'s' * (len(run.images) != 1)}"
    echo(f"{out}: {total} in {run.parts} part{'s' * (run.parts != 1)}{before}")
    if done.images:
        taken = f"{done.images} image{'s' * (done.images != 1)} in {display.seconds:.1f} s: {display.rate_text()}"
        echo(f"{taken}, {done.detections} detections{where}")
