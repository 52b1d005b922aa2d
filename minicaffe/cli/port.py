"""minicaffe port"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from minicaffe.errors import Error
from minicaffe.files import replacing
from minicaffe.porting.folder import look, page, text
from minicaffe.porting.folder.scan import IMAGE, NET, WEIGHTS

from .common import check_no_input, check_target
from .groups import ThreadOptions, fork_option
from .options import argument, option, with_options
from .port_trials import TRIALS, try_all
from .progress import counted
from .terminal import echo

PAGES = (".html", ".htm")
"""Files of the folder that may be an older report, which --out replaces."""


@dataclass(frozen=True, kw_only=True)
class Options(ThreadOptions):
    folder: str = argument()
    out: str | None = option("-o --out", "Write the report as a page, too.", metavar="FILE.html")
    run: bool = option("--run", "Try each net with its weights: forward, ONNX and back, PyTorch, cut in two.")
    fork: str | None = fork_option()


@with_options(Options)
def command(options: Options) -> None:
    """Look through the FOLDER of an old model, and report what each file is, which weights fit which net, what is missing,
    and the commands to go on with. Nothing in it is run as a program, no link is followed, and nothing is written but --out.

    Example:  minicaffe port old_model --run -o report.html
    """
    check_target("--out", options.out)
    report = look(options.folder, fork=options.fork or "")
    if options.out:
        kept = (item.path for item in report.items if not item.path.endswith(PAGES))
        check_no_input("--out", options.out, (str(report.folder / path) for path in kept))
    if not report.of(NET) and not report.of(WEIGHTS):
        echo(text(report))
        raise Error(f"{options.folder}: neither a prototxt nor weights: give the folder of a model")
    if options.run:
        image = next(iter(report.of(IMAGE)), None)
        tried = try_all(report.best, report.folder, image)
        report.verdicts = list(counted(tried, "trials", len(TRIALS) * len(report.best)))
    echo(text(report))
    if options.out:
        with replacing(options.out) as temporary:
            Path(temporary).write_text(page(report), encoding="utf-8")
        echo(f"written: {options.out}")
    if options.run and not report.best:
        raise Error(f"{options.folder}: nothing was tried, as no weights fit a net: see what is missing")
    if failed := sum(verdict.good is False for verdict in report.verdicts):
        raise Error(f"{failed} of {len(report.verdicts)} trials failed")
