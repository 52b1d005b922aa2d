"""minicaffe script"""

from __future__ import annotations

import sys
import traceback
from dataclasses import dataclass
from types import TracebackType

import click

from minicaffe.pycaffe.script import python_2_hint, run_script

from .groups import ThreadOptions, UnknownFieldOptions
from .options import argument, option, with_options
from .terminal import echo, without_guard


@dataclass(frozen=True, kw_only=True)
class Options(ThreadOptions, UnknownFieldOptions):
    cpu: bool = option("--cpu", "Make the script's set_mode_gpu and set_device do nothing.")
    script: str = argument()
    arguments: tuple[str, ...] = argument(type=click.UNPROCESSED)


@with_options(Options, context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
def command(options: Options) -> None:
    """Run a Python 3 script written for pycaffe, unedited: its `import caffe` imports minicaffe.

    Everything after SCRIPT goes to the script. Its Python layers are imported from anywhere on its sys.path: you run the
    script, so you trust what it loads.

    Example:  minicaffe script tools/train_net.py --solver solver.prototxt --iters 100
    """
    script = options.script
    try:
        with without_guard():
            run_script(script, options.arguments, cpu=options.cpu)
    except Exception as error:
        if error.__traceback__ is None or _inside(error.__traceback__, script) is None:
            raise
        shown = traceback.format_exception(type(error), error, _inside(error.__traceback__, script))
        echo("".join(shown), nl=False, err=True)
        if hint := python_2_hint(error):
            echo(hint, err=True)
        sys.exit(1)


def _inside(trace: TracebackType | None, script: str) -> TracebackType | None:
    """The part of a traceback that begins in the script."""
    while trace is not None and trace.tb_frame.f_code.co_filename != script:
        trace = trace.tb_next
    return trace
