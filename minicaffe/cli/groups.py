"""The groups of options that commands share, and their functions: threads and devices, nets, images and inputs."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar

import click

from minicaffe import rng, threads
from minicaffe.data.settings import DetectionSettings
from minicaffe.detection.data_inputs import image_shape, lacks_data, with_inputs
from minicaffe.detection.random_weights import draw_weights, make_up_weights
from minicaffe.errors import DeviceError, Error, WeightsError, on_one_line
from minicaffe.formats.prototxt import NetFile, read_net
from minicaffe.formats.skipped import skipping_unknown, summed_up
from minicaffe.formats.weights import WeightsFile, no_name_fits, read_weights
from minicaffe.mode import TEST, Phase, set_mode_cpu, set_mode_gpu
from minicaffe.net import Keep, Net, Watch
from minicaffe.net_arguments import state_applied
from minicaffe.porting.suggestions import suggested_names
from minicaffe.proto import caffe_pb2

from .common import listed
from .options import option
from .terminal import inform, warn

FEWEST = 4
"""One layer of so many must be in the files of weights, else they are another net's."""


def _use_threads(context: click.Context, parameter: click.Parameter, count: int | None) -> int | None:
    """Compute on count threads until the command is over."""
    if count is not None:
        with suppress(Error):  # the environment's invalid number does not matter here
            context.with_resource(threads.threads_kept())
        threads.set_num_threads(count)
    return count


@dataclass(frozen=True, kw_only=True)
class ThreadOptions:
    """--threads, which applies until the command is over."""

    heading: ClassVar[str] = "Device"
    threads: int | None = option(
        "--threads", "Number of threads.  [default: one per core]", type=click.IntRange(1, threads.MOST), callback=_use_threads
    )


@dataclass(frozen=True, kw_only=True)
class Tf32Options:
    """--tf32, for every command that may run a net on a GPU."""

    heading: ClassVar[str] = "Device"
    tf32: bool = option("--tf32", "On a GPU, compute float32 products in TF32: faster, about 3 decimal digits.")

    def use_tf32(self, on_gpu: bool, advice: str = "give --device gpu, or auto") -> None:
        """With --tf32, compute products in TF32 until the command is over. Raises Error without a GPU."""
        if not self.tf32:
            return
        if not on_gpu:
            raise Error(f"--tf32 is for a GPU: {advice}")
        from minicaffe.cuda.blas import allow_tf32

        click.get_current_context().call_on_close(lambda: allow_tf32(False))
        allow_tf32()


@dataclass(frozen=True, kw_only=True)
class DeviceOptions(Tf32Options, ThreadOptions):
    """--device, --gpu, --tf32 and --threads."""

    heading: ClassVar[str] = "Device"
    device: str | None = option(
        "--device", "Device for the layers; auto: a GPU if there is one.  [default: cpu]", metavar="cpu|gpu|gpu:N|auto"
    )
    gpu: str | None = option("--gpu", "Number of the GPU, or all, as in the caffe tool.", metavar="ID")

    def use_device(self) -> None:
        """Run layers on this device until the command is over. Raises DeviceError for a GPU that cannot be used."""
        use_device(self.device, self.gpu)
        self.use_tf32(self.gpu is not None or self.device not in (None, "cpu"))


def use_device(device: str | None, gpu: str | None) -> None:
    """Run layers on --device or --gpu until the command is over. Raises Error."""
    if device and gpu:
        raise click.UsageError(f"--device {device} and --gpu {gpu}: give one of them")
    given = f"--device {device}: give cpu, gpu, gpu:N or auto"
    if gpu is not None:
        if "," in gpu:
            raise Error(f"--gpu {gpu}: a net runs on one GPU here; give one number")
        given = f"--gpu {gpu}: give a number, or all"
        device = "gpu" if gpu == "all" else f"gpu:{gpu}"
    kind, _, number = (device or "cpu").partition(":")
    if kind not in ("cpu", "gpu", "auto") or (number and (kind != "gpu" or not (number.isdecimal() and len(number) < 10))):
        raise Error(given)
    click.get_current_context().call_on_close(set_mode_cpu)  # the mode is global, and main may be called again in this process
    set_mode_cpu()
    if kind == "cpu":
        return
    try:
        if number:
            from minicaffe.cuda.device import choose

            click.get_current_context().call_on_close(lambda: choose(None))
            choose(int(number))
        set_mode_gpu()
    except DeviceError as error:
        if kind != "auto":
            raise
        inform(f"on the CPU: {error}")


def phase_option(default: Phase = TEST) -> Any:
    choice = click.Choice(Phase, case_sensitive=False)
    return option("--phase", "Phase of the net.", type=choice, metavar="TRAIN|TEST", default=default)


def seed_option() -> Any:
    return option("--seed", "Seed of random weights, inputs and samples.", default=0)


def random_weights_option() -> Any:
    help = "Fill layers without weights with random values that stay finite at any depth."
    return option("--random-weights", help)


def fork_option() -> Any:
    help = "Fork to use when a layer type differs between forks and the files do not show which: pspnet, segnet, nv15, ..."
    return option("--fork", help, metavar="NAME")


def modules_option() -> Any:
    help = "Python module with layers that may be imported; may be repeated."
    return option("--allow-module", help, metavar="MODULE", callback=_allow_modules)


def _allow_modules(context: click.Context, parameter: click.Parameter, modules: tuple[str, ...]) -> tuple[str, ...]:
    """Allow modules until the command is over.

    Each is searched in the working directory first, as Caffe's users expect, and may import caffe.
    """
    from minicaffe.aliases import serve_as_caffe
    from minicaffe.layers.python.python import allow_module, modules_kept

    context.with_resource(modules_kept())
    if modules:
        serve_as_caffe()  # a module of Python layers begins with `import caffe`
    for module in modules:
        allow_module(module, os.getcwd())
    return modules


def _skip_unknown(context: click.Context, parameter: click.Parameter, given: bool) -> bool:
    """Ignore unknown fields until the command is over, and then print their names."""
    if given:
        found = context.with_resource(skipping_unknown())
        context.call_on_close(lambda: warn(summed_up(found)) if found else None)
    return given


@dataclass(frozen=True, kw_only=True)
class UnknownFieldOptions:
    """--skip-unknown, which applies until the command is over."""

    heading: ClassVar[str] = "The net"
    skip_unknown: bool = option(
        "--skip-unknown",
        "Ignore unknown fields that may change the numbers, and list them at the end.",
        callback=_skip_unknown,
    )


@dataclass(frozen=True, kw_only=True)
class StateOptions(UnknownFieldOptions):
    """--level, --stage, --fork, --allow-module and --skip-unknown, and methods that make a net.

    phase, seed, random_weights, shapes: constants unless a command has the options. needs_data: whether data layers stay even
    if their database is missing.
    """

    heading: ClassVar[str] = "The net"
    level: int = option("--level", "Level of the net's state.", type=click.IntRange(-(2**31), 2**31 - 1), default=0)
    stages: tuple[str, ...] = option("--stage", "Stage of the net's state; may be repeated.", metavar="NAME")
    fork: str | None = fork_option()
    allow_module: tuple[str, ...] = modules_option()
    phase: Phase = TEST
    seed: int = 0
    random_weights: bool = False
    shapes: tuple[tuple[str, tuple[int, ...]], ...] | None = None
    needs_data: bool = False

    @cached_property
    def settings(self) -> DetectionSettings:
        """The detection settings of the nets: the defaults, unless a command has --cfg."""
        return DetectionSettings()

    def check_net(self, net: Net) -> None:
        """Raise Error for an option that does nothing for a net. Commands with --anchors check it."""

    def state_of(self, file: NetFile, phase: Phase | None = None) -> caffe_pb2.NetState:
        """Return the state of a net of this file, for its include and exclude rules. phase: the command's by default."""
        return state_applied(file.param, self.phase if phase is None else phase, self.level, self.stages).state

    def open_net(self, net: str | NetFile, *, images: bool = False, phase: Phase | None = None) -> NetFile:
        """Return the net of a prototxt, with an input in place of each data layer whose database or list is missing.

        A line on stderr reports each input. images: replace all data layers of a net without inputs, for one image. phase: the
        command's by default. Raises Error.
        """
        file = read_net(net, warn=False) if isinstance(net, str) else net
        if self.needs_data and not images:
            return file
        hint = "give --shape {}=1,3,HEIGHT,WIDTH"
        if self.shapes is None:
            hint = f"minicaffe deploy {file.file} --shape {{}}=1,3,HEIGHT,WIDTH -o deploy.prototxt writes a net with an input"
        shapes = dict(self.shapes or ())
        shape = partial(image_shape, given=shapes, batch=1 if images else None, hint=hint)
        replaced = None if images else lacks_data
        notes = list[str]()
        file = with_inputs(file, self.state_of(file, phase), shape, replaced=replaced, shapes=shapes, say=notes.append)
        for note in notes:
            inform(on_one_line(note))
        return file

    def build(
        self,
        net: str | NetFile | caffe_pb2.NetParameter,
        phase: Phase | None = None,
        watch: Watch | None = None,
        keep: Keep = "all",
    ) -> Net:
        """Return the net of a prototxt. watch, keep: see Net."""
        phase = self.phase if phase is None else phase
        state = self.level, list(self.stages)
        made = Net(net, phase, *state, watch=watch, keep=keep, settings=self.settings, fork=self.fork or "")
        self.check_net(made)
        return made

    def load(
        self,
        net: str | NetFile,
        weights: Sequence[str | WeightsFile],
        *,
        watch: Watch | None = None,
        keep: Keep = "all",
        say: Callable[[str], None] = warn,
        no_zeros: bool = False,
    ) -> Net:
        """Return the net of a prototxt with the weights of all files. say: called with a sentence on layers without weights.

        watch, keep: see Net. no_zeros: weights without a file and a filler are Gaussian. Raises WeightsError.
        """
        rng.set_random_seed(self.seed)  # before Net: fillers draw when layers are set up
        net_file = self.open_net(net)
        files = [file if isinstance(file, WeightsFile) else read_weights(file) for file in weights]
        loaded = self.build(net_file, watch=watch, keep=keep)
        missing = set(loaded.params)
        for stored in files:
            file, report = stored.path, loaded.copy_from(stored)
            missing -= set(report.loaded)
            if loaded.params and not report.loaded:
                raise no_name_fits(file, net_file.file, suggested_names(loaded, stored))
            if report.unused:
                inform(f"{file}: skipped, because the net lacks these layers: {_short(report.unused)}")
        names, total = [name for name in loaded.params if name in missing], len(loaded.params)
        if self.random_weights:
            inform(draw_weights(loaded, names, self.seed, lambda: self.build(net_file)))
            return loaded
        if names and not weights:
            say(f"no weights given: all {len(names)} layers with parameters start from their fillers (seed {self.seed})")
        elif (matched := total - len(names)) * FEWEST < total:
            found = _short([name for name in loaded.params if name not in missing])
            given = ", ".join(file.path for file in files)
            raise WeightsError(f"{given}: looks like another net's file: {matched} of {total} layers match: {found}")
        elif names:
            say(f"no weights found for {len(names)} of {total} layers, which start from their fillers: {_short(names)}")
        if no_zeros and (note := make_up_weights(loaded, names, self.seed)):
            say(note)
        return loaded


def _short(names: Sequence[str], most: int = 8) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return listed(names[:most]) + more


def classes_option() -> Any:
    return option("--classes", "Class names, one per line.  [default: VOC's for 21, COCO's for 81]", metavar="FILE")


def backward_option(start: str = "from the losses, or from ones at the outputs of a net without a loss") -> Any:
    return option("--backward", f"Also run backward, {start}.")


def _check_iterations(context: click.Context, parameter: click.Parameter, count: int | None) -> int | None:
    if count is not None and count < 1:
        raise Error(f"--iterations must be at least 1, got {count}")
    return count


def iterations_option(help: str, default: int | None = 50, **attributes: Any) -> Any:
    return option("--iterations", help, default=default, callback=_check_iterations, **attributes)


def model_option() -> Any:
    return option("--model", "Net, in place of the argument.", metavar="FILE")


def weights_option() -> Any:
    return option("--weights", "Weights to start from; may be repeated.", metavar="FILE,...")


@dataclass(frozen=True, kw_only=True)
class NetOptions(StateOptions):
    """--phase, --seed, --level, --stage, --fork, --allow-module and --skip-unknown."""

    heading: ClassVar[str] = "The net"
    phase: Phase = phase_option()
    seed: int = seed_option()
