"""Fuzz every reader, or those named, for some seconds each: python tests/fuzz/run.py [--seconds N] [--keep FOLDER] [TARGET...]

Needs atheris (pip install atheris). The corpus begins with real files (targets.py) and, with --keep, goes on from one run to
the next. Prints for each target how many inputs ran and what was found; the exit status is 1 where anything was. To run one
input again: python tests/fuzz/one.py TARGET FILE. Runs of several days add up, here to an hour of processor time each:

    python tests/fuzz/run.py --seconds 60 --keep corpora --tally tests/fuzz/tally.json --until 3600
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import resource
import signal
import sys
import tempfile
import traceback
from pathlib import Path
from threading import Timer

import one
import tally
from targets import LIMITS, TARGETS

TIMEOUT = 10
"""Seconds that one input may take."""
OWN_MB = 400
"""What Python, NumPy, the fuzzer and its corpus take by themselves."""


def main() -> int:
    parser = argparse.ArgumentParser(description="Fuzz minicaffe's readers.")
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    parser.add_argument("--keep", type=Path, help="a folder of corpora and findings to go on from")
    parser.add_argument("--tally", type=Path, help="a file to which seconds and inputs are added (tally.py)")
    parser.add_argument("--until", type=int, help="only targets with less seconds than this in the tally, the least first")
    parser.add_argument("targets", nargs="*", choices=[[], *TARGETS], metavar="TARGET")
    arguments = parser.parse_args()
    if arguments.until and not arguments.tally:
        parser.error("--until wants --tally")
    names, failed = list(arguments.targets or TARGETS), 0
    if arguments.until:
        names = tally.short_of(tally.read(arguments.tally), names, arguments.until)
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.keep or Path(temporary)
        print(f"{'target':<18}{'seeds':>7}{'inputs':>12}{'corpus':>9}  found")
        for name in names:
            failed += _fuzz(name, folder / name, arguments.seconds, arguments.tally)
    return int(failed > 0)


def _fuzz(name: str, folder: Path, seconds: int, sums: Path | None) -> bool:
    """Fuzz one target, print its line, and add it to the tally; whether anything was found."""
    corpus, findings = folder / "corpus", folder / "findings"
    for path in (corpus, findings):
        path.mkdir(parents=True, exist_ok=True)
    seeds = list(TARGETS[name].seeds())
    for seed in seeds:
        (corpus / hashlib.sha256(seed).hexdigest()[:16]).write_bytes(seed)
    options = [
        f"-max_total_time={seconds}",
        f"-timeout={TIMEOUT}",
        f"-rss_limit_mb={OWN_MB + 4 * LIMITS['bytes'] // 2**20}",
        f"-artifact_prefix={findings}/",
        "-print_final_stats=1",
        "-max_len=65536",
    ]
    before = _childrens_seconds()
    status, said = _in_child(name, [*options, str(corpus)], seconds * 3 + 120)
    inputs = _number(r"number_of_executed_units:\s*(\d+)", said)
    print(f"{name:<18}{len(seeds):>7}{inputs:>12,}{len(list(corpus.iterdir())):>9}  {_what(status, said)}", flush=True)
    if sums:
        tally.add(sums, name, round(_childrens_seconds() - before), inputs, int(status != 0))
    if status:
        (findings / "log.txt").write_text(said)
        print(said[-6000:])
    return status != 0


def _in_child(name: str, options: list[str], most: int) -> tuple[int, str]:
    """Fuzz a target for at most so many seconds in a forked process, which need not import and instrument everything again;
    its status, negative for a signal, and what it said."""
    with tempfile.TemporaryFile() as output:
        sys.stdout.flush()
        child = os.fork()
        if not child:
            for stream in (1, 2):
                os.dup2(output.fileno(), stream)
            try:
                one.fuzz(name, options)
            except BaseException:
                traceback.print_exc()
            os._exit(1)
        end = Timer(most, os.kill, (child, signal.SIGKILL))
        end.start()
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        end.cancel()
        output.seek(0)
        return status, output.read().decode("utf-8", "replace")


def _childrens_seconds() -> float:
    """Processor time of the children that have ended: unlike the clock, it is the same however busy the machine is."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _number(pattern: str, text: str) -> int:
    """What a pattern finds; 0 where a finding ended the run before it was printed."""
    found = re.search(pattern, text)
    return int(found[1]) if found else 0


def _what(status: int, said: str) -> str:
    if not status:
        return "nothing"
    raised = re.findall(r"^(?:\w+\.)*\w*(?:Error|Exception|Interrupt)\b.*", said, re.MULTILINE)
    fatal = re.search(r"ERROR: libFuzzer: .*|Segmentation fault.*", said)
    return raised[-1][:100] if raised else fatal[0] if fatal else f"status {status}"


if __name__ == "__main__":
    sys.exit(main())
