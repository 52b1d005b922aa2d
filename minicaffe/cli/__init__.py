"""The command line: `minicaffe COMMAND`, also `python -m minicaffe COMMAND`. A command's module is imported when it runs."""

from __future__ import annotations

import importlib
import logging
import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import click

from minicaffe import limits
from minicaffe.errors import Error, nearest, offering, out_of_memory, shortened
from minicaffe.files import allowing, is_uri, pattern_folder, plain
from minicaffe.scaling.stops import exit_status, sigterm_stops
from minicaffe.version import __version__

from .options import ALIASES, translate
from .terminal import check_read, echo, guarded, saying, warn

GROUPS = {
    "Run": {
        "detect": "find objects in images with a detection net",
        "classify": "print the best classes of images",
        "segment": "find the class of each pixel of images",
        "pose": "find people and their body parts in images (OpenPose)",
        "read": "print the text of images with a CRNN",
        "flow": "find the optical flow between two images with a FlowNet",
        "features": "store features of the best regions of images (bottom-up attention)",
        "evaluate": "measure a detector's average precision on annotated images",
        "run": "run any net forward (and backward) once",
    },
    "Port": {
        "port": "report what an old model's folder contains, and the next commands",
        "upgrade": "convert an old prototxt or .caffemodel to the current format",
        "rescue": "write a runnable prototxt from the training net in a .caffemodel",
        "deploy": "write the deploy prototxt of a train_val.prototxt",
        "retarget": "change the number of classes of a detection prototxt",
        "cut": "extract a part of a net, for other tool chains",
        "merge-bn": "fold BatchNorm and Scale into the convolutions before them, in Caffe's format",
        "export": "write a net as an ONNX model",
        "import": "write an ONNX model as a Caffe net",
        "to-torch": "convert a net to PyTorch source that needs only torch",
        "compare": "find the first layer where two nets differ, and why",
    },
    "Look inside": {
        "summary": "print layers, shapes, parameters, multiply-adds and memory of a net",
        "draw": "draw a net as a picture: SVG, PNG, PDF or DOT",
        "dump": "export or list the arrays of weights, training states and means",
        "trace": "write a page that shows every layer of a net at work",
        "trace-diff": "find the first step where two traces of one net differ",
        "explain": "show the arithmetic of one number or one gradient of a layer",
        "live": "edit a net in the browser and see what every layer does",
    },
    "Train": {
        "new": "write a new detector for your classes, ready to train",
        "train": "train a net with a solver prototxt",
        "train-alternating": "train a Faster R-CNN in four alternating stages",
        "film": "make a page from the frames of train --film",
        "test": "average a net's outputs over many forward passes",
        "time": "time each layer of a net, forward and backward",
    },
    "Caffe's own tools": {
        "script": "run a script written for pycaffe",
        "convert-imageset": "make a database of the images in a list",
        "convert-annoset": "make a database of annotated images, for SSDs",
        "compute-image-mean": "average the images of a database, for mean_file",
        "extract-features": "store blobs for each item of a net's data layer",
        "parse-log": "turn a training log into tables or a plot",
    },
    "About": {
        "doctor": "check processor, BLAS, compiled loops and GPU",
        "layers": "list the layer types",
        "forks": "list how minicaffe treats the fields of Caffe's forks",
        "docs": "open the documentation, without a network",
    },
}
"""The commands by what they are for, each with what it does."""
COMMANDS = {name: about for group in GROUPS.values() for name, about in group.items()}
HIDDEN = ("device-query",)
"""Names of the caffe tool for what another command does."""

FILES = {
    "annoset": ("convert-annoset",),
    "caffe_tools": ("compute-image-mean", "convert-imageset", "extract-features", "upgrade"),
    "compare": ("trace-diff",),
    "convert": ("import", "merge-bn", "to-torch"),
    "doctor": ("device-query",),
    "log": ("parse-log",),
    "reference": ("docs", "forks", "layers"),
    "rewrite": ("cut", "deploy", "rescue", "retarget"),
    "run": ("test", "time"),
    "summary": ("draw", "dump"),
    "train": ("film",),
    "train_alternating": ("train-alternating",),
}
"""The modules of commands that have none of their own name."""

FEW_PASSES = {
    *("compare", "cut", "explain", "export", "import", "merge-bn", "port", "run", "summary", "to-torch", "trace"),
    *("classify", "detect", "evaluate", "extract-features", "features", "flow", "pose", "read", "segment", "test", "train"),
}
"""Commands that run a net once or twice, and those that say how many passes they `expect`: compiled loops have to pay."""

CAFFE = "--caffe"
"""The option of the installed command `caffe`, whose training that a signal stops ends with status 0."""

WORDS = "minicaffe.words"
"""Key of the command line in a context's meta."""


class _Place(click.Path):
    """A parameter type: an existing file or folder, or a URI."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value if is_uri(value) else super().convert(value, param, ctx)


ALLOW = click.Option(
    ["--allow"],
    multiple=True,
    metavar="PATH|URI",
    type=_Place(exists=True),
    expose_value=False,
    help="File, folder or bucket that prototxts, lists and tables may name; may be repeated. The working directory and "
    "files on the command line are always allowed.",
)
"""An option of every command. Its values are allowed like everything else that the command line names."""


_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def _raise_limits(context: click.Context, option: click.Parameter, given: Sequence[str]) -> None:
    """Change limits until the command is over."""
    try:
        context.with_resource(limits.raised(dict(_limit(text) for text in given)))
    except Error as error:
        raise click.BadParameter(str(error)) from error


def _limit(text: str) -> tuple[str, float]:
    """Return the name and the number of a text NAME=N. Raises Error."""
    name, _, number = text.partition("=")
    unit = _UNITS.get(number[-1:].upper(), 1)
    for read in (int, float):  # a large int is not exact as a float
        with suppress(ValueError):
            return name, read(number if unit == 1 else number[:-1]) * unit
    raise Error(f"write it as NAME=N, with N as 1000, 1e9 or 4G, got {text!r}")


LIMIT = click.Option(
    ["--limit"],
    multiple=True,
    metavar="NAME=N",
    expose_value=False,
    callback=_raise_limits,
    help=f"Limit for files: {', '.join(limits.NAMES)}. N may end in K, M, G or T (powers of 1024); may be repeated.",
)


def _set_level(context: click.Context, option: click.Parameter, given: bool) -> None:
    """Show more or less on stderr until the command is over."""
    if given:
        context.with_resource(saying(logging.DEBUG if option.name == "verbose" else logging.WARNING))


VERBOSE = click.Option(
    ["-v", "--verbose"], is_flag=True, expose_value=False, callback=_set_level, help="Show on stderr what the engine does."
)
QUIET = click.Option(
    ["-q", "--quiet"], is_flag=True, expose_value=False, callback=_set_level, help="Hide notes and progress on stderr."
)


def command_of(name: str) -> click.Command:
    """Return the command of a name in COMMANDS or HIDDEN: the function NAME_command of its module."""
    module = next((file for file, names in FILES.items() if name in names), name)
    command: click.Command = getattr(importlib.import_module(f"minicaffe.cli.{module}"), f"{name.replace('-', '_')}_command")
    return command


class _Commands(click.Group):
    """The command group: imports commands on demand, and turns minicaffe's errors into one message and exit status 1."""

    def main(self, *args: Any, **options: Any) -> Any:
        with guarded():
            return super().main(*args, **options)

    def make_context(self, *args: Any, **options: Any) -> click.Context:
        try:
            return super().make_context(*args, **options)
        except KeyboardInterrupt as stop:  # click's status would be 1
            raise click.exceptions.Exit(exit_status(stop)) from None

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*COMMANDS, *HIDDEN]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        command = command_of(cmd_name)
        if all(param.name != ALLOW.name for param in command.params):  # only once: the module's command is kept between calls
            command.params += [ALLOW, LIMIT, VERBOSE, QUIET]
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        words = translate(args, self.list_commands(ctx))
        ctx.meta[WORDS] = list(words)
        # Before any option's callback may read a file.
        ctx.with_resource(allowing(path for word in words for path in _paths(word)))
        try:
            return super().parse_args(ctx, words)
        except BaseException:
            ctx.close()  # click leaves this to the garbage collector, which may then withdraw a later call's permissions
            raise

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        known = self.list_commands(ctx)
        if args[0] not in known and not args[0].startswith("-"):
            near = nearest(args[0].lower().replace("_", "-"), [*known, *ALIASES])
            ctx.fail(f"No such command '{args[0]}'." + (f" Did you mean '{near[0]}'?" if near else ""))
        name, command, words = super().resolve_command(ctx, args)
        if command is not None:
            ctx.with_resource(offering(option for param in command.params for option in param.opts))
            from minicaffe.kernels import expecting  # NumPy, which --help does without

            ctx.with_resource(expecting(1 if name in FEW_PASSES else None))
        return name, command, words

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for group, commands in GROUPS.items():
            with formatter.section(group):
                formatter.write_dl(list(commands.items()))

    def invoke(self, ctx: click.Context) -> Any:
        with warnings.catch_warnings(), sigterm_stops(), saying(logging.INFO):
            warnings.showwarning = _show_warning
            try:
                if not any(word.partition("=")[0] == "--threads" for word in ctx.meta[WORDS]):
                    from minicaffe.threads import check_variable

                    check_variable()
                result = super().invoke(ctx)
                check_read()
                return result
            except KeyboardInterrupt as stop:  # unfinished files have been removed
                ctx.exit(exit_status(stop))
            except BrokenPipeError:
                raise  # the reader of stdout is gone: click ends quietly
            except click.NoSuchOption as error:
                raise _whole(error, ctx.meta[WORDS]) from None
            except (Error, OSError, MemoryError) as error:
                if ctx.params.get("debug"):
                    traceback.print_exc()
                message = shortened(plain(error)) if isinstance(error, OSError) else str(error)
                echo(f"minicaffe: {out_of_memory(error) if isinstance(error, MemoryError) else message}", err=True)
                ctx.exit(1)


def _paths(word: str) -> list[str]:
    """Return the existing places that a word of the command line names, also as in --allow=FILE and --input data=FILE.

    Places are files, folders and URIs.
    """
    # a file's name may have a "=" too
    texts = [word] if is_uri(word.partition("=")[0]) else [word, *word.split("=")[1:], word.partition("=")[2]]
    places = [pattern_folder(text) or text for text in texts if text]
    return [place for place in places if is_uri(place) or os.path.exists(place)]


def _whole(error: click.NoSuchOption, words: Sequence[str]) -> click.NoSuchOption:
    """Return the error for the whole word, such as -itertions, of which click names only -i; suggest close matches."""
    name = error.option_name
    word = next((word for word in words if len(name) == 2 and word.startswith(name) and len(word) > 2), "").partition("=")[0]
    if not word or error.ctx is None:
        return error
    options = [option for param in error.ctx.command.get_params(error.ctx) for option in param.opts]
    near = nearest(f"--{word.lstrip('-').replace('_', '-')}", [o for o in options if o.startswith("--")])
    return click.NoSuchOption(word, possibilities=near, ctx=error.ctx)


def _show_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, file: Any = None, line: str | None = None
) -> None:
    warn(str(message))


def _install_completion(context: click.Context, parameter: click.Parameter, shell: str | None) -> None:
    if shell is not None and not context.resilient_parsing:
        from .completion import install_completion

        install_completion(context, shell)


# color: click must not strip escape sequences, since the guard escapes them
@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "color": True, "show_default": True})
@click.option("--debug", is_flag=True, help="Show a traceback with an error.")
@click.option(
    "--install-completion",
    help="Install completion of commands and options for bash, zsh or fish.  [default: $SHELL]",
    metavar="[SHELL]",
    is_flag=False,
    flag_value="auto",
    expose_value=False,
    is_eager=True,
    callback=_install_completion,
)
@click.option(CAFFE, is_flag=True, hidden=True)
@click.version_option(__version__, prog_name="minicaffe")
def main(debug: bool, caffe: bool) -> None:
    """Run, train and inspect Caffe models: R-FCN, Faster R-CNN and others, with no compiler.

    Example:  minicaffe detect test.prototxt net.caffemodel photo.jpg --draw out
    """


if __name__ == "__main__":
    sys.exit(main())
