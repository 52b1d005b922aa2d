"""minicaffe doctor"""

from __future__ import annotations

import click

from .diagnosis import examine
from .terminal import echo


@click.command()
def command() -> None:
    """Show what compiles loops, the GPU, driver, compiler and libraries found here, and what to do about missing ones.

    Example:  minicaffe doctor
    """
    for finding in examine():
        echo(str(finding))
