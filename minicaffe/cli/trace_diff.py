"""minicaffe trace-diff"""

from __future__ import annotations

from dataclasses import dataclass

from minicaffe.tracing.saved_trace import read_trace
from minicaffe.tracing.trace_diff import RTOL, trace_diff, write_diff_page

from .common import check_target
from .options import FiniteRange, argument, option, with_options
from .terminal import echo


@dataclass(frozen=True, kw_only=True)
class Options:
    a: str = argument(metavar="A.html")
    b: str = argument(metavar="B.html")
    out: str | None = option("-o --out", "A page with the maps of both and their difference.", metavar="FILE.html")
    rtol: float = option("--rtol", "Tolerance relative to A's largest size.", type=FiniteRange(min=0), default=RTOL)


@with_options(Options)
def command(options: Options) -> None:
    """Find the first step at which two pages of `minicaffe trace` differ. The exit status is 1 if they differ.

    Example:  minicaffe trace-diff before.html after.html -o diff.html
    """
    check_target("--out", options.out, [options.a, options.b])
    diff = trace_diff(read_trace(options.a), read_trace(options.b), options.rtol)
    echo(str(diff))
    if options.out:
        write_diff_page(diff, options.out)
        echo(f"written: {options.out}")
    if not diff.same:
        raise SystemExit(1)
