"""minicaffe doctor"""

from __future__ import annotations

import click

from .diagnosis import examine
from .terminal import echo


@click.command()
def command() -> None:
    """Say which GPU, driver, compiler and libraries are found here, and what to do about those that are not.

    Example:  minicaffe doctor
    """
    for finding in examine():
        echo(str(finding))
