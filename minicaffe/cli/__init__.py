"""The command line: `minicaffe COMMAND`, also `python -m minicaffe COMMAND`. One module a command, imported when it runs."""

from __future__ import annotations

import importlib
import sys
import traceback
import warnings
from typing import Any

import click

from minicaffe.cli.flags import translate
from minicaffe.errors import Error
from minicaffe.version import __version__

COMMANDS = {
    "compute-image-mean": "average the images of a database, for mean_file",
    "convert-imageset": "make a database of the images of a list",
    "detect": "find objects in images with a detection net",
    "device-query": "say what nets run on here: CPU, cores, BLAS, versions",
    "draw": "draw a net as a picture, SVG or PNG",
    "extract-features": "store what blobs of a net hold, for each item of its data",
    "layers": "list the layer types that are built in",
    "parse-log": "tables of a training log's losses and outputs",
    "run": "run any net forward (and backward) once",
    "script": "run a script that was written for pycaffe",
    "summary": "layers, shapes, parameters, multiply-adds and memory of a net",
    "test": "average a net's outputs over many forward passes",
    "time": "time each layer of a net, forward and backward",
    "train": "train a net as its solver prototxt says",
    "upgrade": "bring an old prototxt or .caffemodel to today's format",
}


class _Commands(click.Group):
    """Imports a command's module when it is asked for; turns minicaffe's errors into one message and exit status 1."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"minicaffe.cli.{cmd_name.replace('-', '_')}").command
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, translate(args, list(COMMANDS)))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def invoke(self, ctx: click.Context) -> Any:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            try:
                return super().invoke(ctx)
            except (Error, OSError, MemoryError) as error:
                if ctx.params.get("debug"):
                    traceback.print_exc()
                out_of_memory = "out of memory: " * isinstance(error, MemoryError)
                click.echo(f"minicaffe: {out_of_memory}{error}", err=True)
                ctx.exit(1)


def _show_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, file: Any = None, line: str | None = None
) -> None:
    click.echo(f"warning: {message}", err=True)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--debug", is_flag=True, help="Show a traceback with an error.")
@click.version_option(__version__, prog_name="minicaffe")
def main(debug: bool) -> None:
    """minicaffe runs, trains and inspects Caffe models: R-FCN, Faster R-CNN and others, with no compiler.

    Example:  minicaffe detect test.prototxt net.caffemodel photo.jpg --draw out
    """


if __name__ == "__main__":
    sys.exit(main())
