"""minicaffe doctor"""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution, version

from minicaffe.version import __version__

from .diagnosis import examine
from .options import option, with_options
from .terminal import echo


@dataclass(frozen=True, kw_only=True)
class Options:
    report: bool = option("--report", "Print it for a bug report, with versions, and without the names of folders.")


@with_options(Options)
def command(options: Options) -> None:
    """Show what compiles loops, the GPU, driver, compiler and libraries found here, and what to do about missing ones.

    Example:  minicaffe doctor
    """
    if not options.report:
        for finding in examine():
            echo(str(finding))
        return
    for line in report():
        echo(line)


def report() -> Iterator[str]:
    """What a bug report should say, as a block of Markdown."""
    yield "```text"
    yield f"minicaffe {__version__}, Python {platform.python_version()} ({platform.python_implementation()})"
    yield f"{platform.system()} {platform.release()}, {platform.machine()}"
    yield ", ".join(f"{name} {known}" for name, known in packages())
    for finding in examine():
        yield without_folders(str(finding))
    yield "```"


def packages() -> Iterator[tuple[str, str]]:
    """What minicaffe and its extras need, and the versions that are installed, sorted by name."""
    try:
        needed = distribution("minicaffe").requires or []
    except PackageNotFoundError:
        needed = ["numpy", "protobuf", "click", "rich", "pillow", "pyyaml", "threadpoolctl"]
    names = {re.split(r"[^A-Za-z0-9._-]", line, maxsplit=1)[0] for line in needed} - {"minicaffe"}
    for name in sorted(names, key=str.lower):
        try:
            yield name, version(name)
        except PackageNotFoundError:
            continue


PATH = re.compile(r"(?<![\w.])(?:[A-Za-z]:)?(?:[/\\][^/\\\s,;:()\"']+)+")


def without_folders(text: str) -> str:
    """text with the last name alone of each absolute path."""
    return PATH.sub(lambda path: ".../" + re.split(r"[/\\]", path[0])[-1], text)
