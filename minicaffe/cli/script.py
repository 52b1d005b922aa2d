"""script: a script for pycaffe, unedited."""

from __future__ import annotations

import os
import sys
import traceback
from dataclasses import dataclass
from types import TracebackType

import click

import minicaffe
from minicaffe.errors import DeviceError, Error
from minicaffe.layers.python.python import modules_kept
from minicaffe.mode import set_mode_cpu
from minicaffe.pycaffe.script import python_2_hint, run_script

from .groups import Tf32Options, ThreadOptions, UnknownFieldOptions
from .options import argument, option, with_options
from .terminal import echo, without_guard


@dataclass(frozen=True, kw_only=True)
class Options(Tf32Options, ThreadOptions, UnknownFieldOptions):
    cpu: bool = option("--cpu", "Ignore set_mode_gpu and set_device in the script.")
    script: str = argument()
    arguments: tuple[str, ...] = argument(type=click.UNPROCESSED)


@with_options(Options, context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
def script_command(options: Options) -> None:
    """Run a Python 3 script for pycaffe without changes: its `import caffe` imports minicaffe.

    Everything after SCRIPT goes to the script. Python layers may come from any folder on the script's sys.path, so run only
    scripts that you trust.

    Example:  minicaffe script tools/train_net.py --solver solver.prototxt --iters 100
    """
    click.get_current_context().call_on_close(set_mode_cpu)  # the script may select the GPU
    options.use_tf32(not options.cpu, "leave out --cpu")
    script = options.script
    try:
        with without_guard(), modules_kept():
            run_script(script, options.arguments, cpu=options.cpu)
    except Exception as error:
        if error.__traceback__ is None or _inside(error.__traceback__, script) is None:
            raise
        echo("".join(_shown(error, _inside(error.__traceback__, script))), nl=False, err=True)
        if hint := python_2_hint(error) or _device_hint(error):
            echo(hint, err=True)
        sys.exit(1)


def _shown(error: Exception, trace: TracebackType | None) -> list[str]:
    """Return the traceback as lines; for minicaffe's own errors, without minicaffe's frames."""
    if not isinstance(error, Error):
        return traceback.format_exception(type(error), error, trace)
    ours = os.path.dirname(minicaffe.__file__) + os.sep
    frames = [frame for frame in traceback.extract_tb(trace) if not frame.filename.startswith(ours)]
    return ["Traceback (most recent call last):\n", *traceback.format_list(frames), *traceback.format_exception_only(error)]


def _device_hint(error: Exception) -> str:
    return "hint: with --cpu, before the script's name, set_mode_gpu and set_device do nothing" * isinstance(error, DeviceError)


def _inside(trace: TracebackType | None, script: str) -> TracebackType | None:
    """Return the part of a traceback that begins in the script."""
    while trace is not None and trace.tb_frame.f_code.co_filename != script:
        trace = trace.tb_next
    return trace
