"""minicaffe script"""

from __future__ import annotations

import sys
import traceback
from types import TracebackType

import click

from minicaffe.pycaffe.script import python_2_hint, run_script

from .common import threads_option
from .terminal import echo, without_guard


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--cpu", is_flag=True, help="Let the script's set_mode_gpu and set_device change nothing.")
@threads_option
@click.argument("script")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(cpu: bool, script: str, arguments: tuple[str, ...]) -> None:
    """Run a Python 3 script written for pycaffe as it is: its `import caffe` gives minicaffe.

    All that stands behind SCRIPT is the script's own. Its Python layers are imported from wherever its sys.path reaches: you
    run the script, so you trust what it loads.

    Example:  minicaffe script tools/train_net.py --solver solver.prototxt --iters 100
    """
    try:
        with without_guard():
            run_script(script, arguments, cpu=cpu)
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
