"""What several commands share: loading a net with its weights (and saying loudly what is missing), options, tables."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click
import numpy as np

from minicaffe import rng, threads
from minicaffe.data.settings import DetectionSettings
from minicaffe.detection.inputs import make_up_weights
from minicaffe.errors import DeviceError, Error, WeightsError, on_one_line, shortened
from minicaffe.formats.weights import read_weights
from minicaffe.mode import TEST, TRAIN, Phase, set_device, set_mode_cpu, set_mode_gpu
from minicaffe.net import Keep, Net, Watch
from minicaffe.porting.near_layers import near_text

from .terminal import echo

if TYPE_CHECKING:
    from rich.text import Text

Function = TypeVar("Function", bound=Callable[..., Any])


def phase_option_with(default: str) -> Callable[[Function], Function]:
    """--phase, with this default."""
    phases = click.Choice(["TRAIN", "TEST"], case_sensitive=False)
    return click.option("--phase", type=phases, default=default, show_default=True, help="The net's phase.")


phase_option = phase_option_with("TEST")
seed_option = click.option("--seed", type=int, default=0, show_default=True, help="Of random weights, inputs and samples.")


def state_options(function: Function) -> Function:
    """--level, --stage and --allow-module."""
    for option in (
        click.option("--level", type=click.IntRange(-(2**31), 2**31 - 1), default=0, help="The net state's level."),
        click.option("--stage", "stages", multiple=True, help="A stage of the net's state; may be repeated."),
        click.option(
            "--allow-module", multiple=True, help="A module that Python layers may be imported from; may be repeated."
        ),
    ):
        function = option(function)
    return function


def allow_modules(modules: Iterable[str]) -> None:
    """Let Python layers come from these modules, each looked for in the working directory first, as Caffe's users expect."""
    from minicaffe.layers.python import allow_module

    for module in modules:
        allow_module(module, os.getcwd())


def _use_threads(context: click.Context, option: click.Parameter, count: int | None) -> None:
    """Compute on count threads until the command is over."""
    if count is not None:
        with suppress(Error):  # of the environment's number, which does not count here
            before = threads.get_num_threads()
            context.call_on_close(lambda: threads.set_num_threads(before))
        threads.set_num_threads(count)


threads_option = click.option(
    "--threads",
    type=click.IntRange(1, threads.MOST),
    metavar="N",
    expose_value=False,
    callback=_use_threads,
    help="On how many threads layers compute.  [default: one for each core]",
)


def device_options(function: Function) -> Function:
    """--device and --gpu, which set the mode before the command runs, after which it is CPU again; and --threads."""

    @functools.wraps(function)
    def run_there(*args: Any, device: str | None, gpu: str | None, **options: Any) -> Any:
        with on_device(device, gpu):
            return function(*args, **options)

    return cast(Function, device_flags(run_there))


def device_flags(function: Function) -> Function:
    """--device and --gpu, handed to the command; and --threads."""
    for option in (
        threads_option,
        click.option("--gpu", metavar="ID", help="As in the caffe tool: the number of the GPU, or all."),
        click.option(
            "--device",
            metavar="cpu|gpu|gpu:N|auto",
            help="Where layers run; auto takes a GPU if there is one.  [default: cpu]",
        ),
    ):
        function = option(function)
    return function


@contextmanager
def on_device(device: str | None, gpu: str | None) -> Iterator[None]:
    """A block in which layers run where --device or --gpu says; after it, on the CPU."""
    choose_device(device, gpu)
    try:
        yield
    finally:
        set_mode_cpu()


def choose_device(device: str | None, gpu: str | None) -> None:
    """Set the mode: --device's, or --gpu's. DeviceError where a GPU is asked for and there is none."""
    if device and gpu:
        raise click.UsageError(f"--device {device} and --gpu {gpu}: give one of them")
    if gpu is not None:
        if "," in gpu:
            raise Error(f"--gpu {gpu}: a net runs on one GPU here; give one number")
        device = "gpu" if gpu == "all" else f"gpu:{gpu}"
    kind, _, number = (device or "cpu").partition(":")
    if kind not in ("cpu", "gpu", "auto") or (number and (kind != "gpu" or not (number.isdecimal() and len(number) < 10))):
        raise Error(
            f"--device {device}: give cpu, gpu, gpu:N or auto" if gpu is None else f"--gpu {gpu}: give a number, or all"
        )
    if kind == "cpu":
        set_mode_cpu()
        return
    try:
        if number:
            set_device(int(number))
        set_mode_gpu()
    except DeviceError as error:
        if kind != "auto":
            raise
        echo(f"on the CPU: {error}", err=True)


def one_of(argument: str | None, option: str | None, place: str, flag: str) -> str:
    """A file that is given in its place or by the caffe tool's flag. Raises click.UsageError for none, and for two."""
    if (argument is None) == (option is None):
        given = f"{argument} and {flag} {option}: give one of them" if argument else f"give {place}, or {flag} FILE"
        raise click.UsageError(given)
    return argument or option or ""


def say_loudly(message: str) -> None:
    """A warning that nobody overlooks, on stderr."""
    echo(shortened(f"WARNING: {message}"), fg="yellow", bold=True, err=True)


def load_net(
    net: str,
    weights: Sequence[str],
    *,
    phase: Phase = TEST,
    seed: int = 0,
    level: int = 0,
    stages: Sequence[str] = (),
    watch: Watch | None = None,
    say: Callable[[str], None] = say_loudly,
    no_zeros: bool = False,
    keep: Keep = "all",
    settings: DetectionSettings | None = None,
) -> Net:
    """The net with the weights of all files given; layers left at their random start are named to say.

    watch, keep, settings: as Net's. no_zeros: weights that no file and no filler gives are Gaussian.
    """
    rng.set_random_seed(seed)
    loaded = Net(net, phase, level, list(stages), watch=watch, keep=keep, settings=settings)
    missing = set(loaded.params)
    for file in weights:
        report = loaded.copy_from(file)
        missing -= set(report.loaded)
        if loaded.params and not report.loaded:
            none = f"{file}: none of its layers has the name of a layer with weights in {net}: of another net?"
            raise WeightsError(none.rstrip("?") + near_text(loaded, read_weights(file)))
        if report.unused:
            echo(f"{file}: not in the net, and left alone: {_short(report.unused)}", err=True)
    if missing and not weights:
        say(f"no weights given: all {len(missing)} layers with parameters start from their fillers (seed {seed})")
    elif missing:
        names = [name for name in loaded.params if name in missing]
        say(
            f"no weights found for {len(names)} of {len(loaded.params)} layers, which start from their fillers: {_short(names)}"
        )
    if no_zeros and (note := make_up_weights(loaded, [name for name in loaded.params if name in missing], seed)):
        say(note)
    return loaded


def numbers(option: str, text: str, count: int) -> tuple[float, ...]:
    """An option's comma-separated numbers. Raises Error for another count of them."""
    try:
        values = tuple(float(value) for value in text.split(","))
    except ValueError:
        values = ()
    if len(values) != count or not np.isfinite(values).all():
        raise Error(f"{option} {text}: give {count} numbers with commas between them")
    return values


def check_target(option: str, path: str | None, inputs: Iterable[str | None] = ()) -> None:
    """Raises Error, before any work is done, for a file that cannot be written because of its folder, or that is one of the
    inputs, which writing would replace."""
    if not path:
        return
    check_no_input(option, path, inputs)
    folder = Path(path).absolute().parent
    if os.path.isdir(path):
        raise Error(f"{option} {path}: this is a folder; give the name of a file")
    if not os.path.isdir(folder):
        raise Error(f"{option} {path}: there is no folder {folder}")
    if not os.path.exists(path) and not os.access(folder, os.W_OK):
        raise Error(f"{option} {path}: nothing can be written into {folder}: permission denied")


def check_no_input(option: str, path: str, inputs: Iterable[str | None]) -> None:
    """Raises Error for a file to write that is one of the inputs, by whatever name."""
    found = identity(path)
    for given in inputs:
        if given and os.path.isfile(path) and identity(given) == found:
            also = f" ({given})" * (given != path)
            raise Error(f"{option} {path}: this is an input{also}, and would be replaced; give another name")


def check_apart(option: str, path: str | None, other: str, second: str | None) -> None:
    """Raises Error for two options that name one regular file to write."""
    if not path or not second or (os.path.exists(path) and not os.path.isfile(path)):
        return
    if os.path.realpath(path) == os.path.realpath(second):
        raise Error(f"{other} {second}: {option} names this file too; give another name")


def check_folder(option: str, path: str | None) -> None:
    """Raises Error, before any work is done, for a folder that cannot be made because a file stands there."""
    if path:
        whole = Path(path).absolute()
        nearest = next(place for place in (whole, *whole.parents) if place.exists())
        if not nearest.is_dir():
            raise Error(f"{option} {path}: {'this' if nearest == whole else nearest} is a file; give the name of a folder")


def identity(path: str | os.PathLike[str]) -> tuple[int, int] | None:
    """What two names of one file have in common, as os.path.samefile compares; None where no file is."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return found.st_dev, found.st_ino


class FiniteRange(click.FloatRange):
    """click.FloatRange, and no NaN; what is no number is told the range."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            float(value)
        except ValueError:
            wanted = f"above {self.min:g}" if self.max is None else f"from {self.min:g} to {self.max:g}"
            self.fail(f"{value} is no number: give one {wanted}", param, ctx)
        number = super().convert(value, param, ctx)
        return number if np.isfinite(number) else self.fail(f"{value} is not a finite number", param, ctx)


def phase_of(name: str) -> Phase:
    return TRAIN if name.upper() == "TRAIN" else TEST


def shape_text(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) or "scalar"


def number_text(value: float) -> str:
    """1234567 -> 1.23 M."""
    for limit, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if value >= limit:
            return f"{value / limit:.2f}{unit}"
    return f"{value:.0f}"


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str | Text]], right: Sequence[str] = ()) -> None:
    """A table on stdout; columns named in right are aligned right. A cell is a text on one line, or rich's Text, which has
    styles. Only names without an end are cut (errors.shortened)."""
    import sys

    from rich import box
    from rich.table import Table

    from .console import PlainConsole

    table = Table(title=shortened(on_one_line(title)), box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(shortened(on_one_line(cell)) if isinstance(cell, str) else cell for cell in row))
    console = PlainConsole(width=None if sys.stdout.isatty() else 160)
    if console.is_terminal:
        console.print(table)
        return
    with console.capture() as captured:
        console.print(table)
    echo("\n".join(line.rstrip() for line in captured.get().splitlines()))


def statistics_text(array: np.ndarray[Any, Any]) -> str:
    """min, mean, max in short, and NaN or infinity where there is any."""
    if not array.size:
        return "empty"
    if not np.isfinite(array).all():
        return f"{int(np.isnan(array).sum())} NaN, {int(np.isinf(array).sum())} inf"
    return f"{array.min():.4g} / {array.mean():.4g} / {array.max():.4g}"


def listed(names: Iterable[str]) -> str:
    """Names of a file, in one line."""
    return ", ".join(map(on_one_line, names))


def _short(names: Sequence[str], most: int = 8) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return listed(names[:most]) + more
