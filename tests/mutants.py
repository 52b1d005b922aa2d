"""Measure the strength of the tests: make small faults in the sources, and count how many of them the tests find.

    python tests/mutants.py [--count 300] [--seed 1] [--jobs 2] [--room NAME] [--contexts FILE] [--list] [-o FILE]

A mutant is one change of one place: another operator or comparison, a constant one larger, two arguments in each other's
place. The same seed and the same sources draw the same mutants, the same number from each room. Each runs against the tests
that reach the changed line, those of its file first, then the quickest, for at most LIMIT seconds. Where no test is seen
there, as in compiled loops, those count that reach the file or a file that imports it. Which tests these are is measured
first, by a run of the suite under coverage (--contexts keeps it). A mutant that no test finds is printed with its place; the
exit status is 0.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

TOP = Path(__file__).resolve().parents[1]
ROOMS = {
    "conv": ["layers/conv/*.py"],
    "roi": ["layers/roi/*.py"],
    "boxes": ["layers/proposal/*.py", "layers/ssd/*.py"],
    "losses": ["layers/loss/*.py"],
    "pooling": ["layers/pool/*.py"],
    "normalisation": ["layers/norm/*.py"],
    "blob": ["minicaffe/blob*.py"],
    "net": ["minicaffe/net*.py"],
    "plan": ["minicaffe/plan.py"],
    "detection": ["minicaffe/detection/*.py"],
    "formats": ["minicaffe/formats/*.py"],
}
LIMIT = 15.0  # seconds of tests for one mutant
MOST_TESTS = 400
QUIETLY = ("-q", "-p", "no:cacheprovider", "-p", "no:randomly")
COMPARISONS = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
OPERATORS = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.LShift: ast.RShift, ast.RShift: ast.LShift,
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """A change of one place. `start` and `stop` are offsets into the file's bytes."""

    room: str
    path: str
    line: int
    start: int
    stop: int
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.old} -> {self.new}"


def changed(node: ast.AST) -> Iterator[ast.expr]:
    """Yield what may stand in place of a node."""
    match node:
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in COMPARISONS:
            yield ast.Compare(left, [COMPARISONS[type(op)]()], [right])
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS and not _of_types(node):
            yield ast.BinOp(left, OPERATORS[type(op)](), right)
        case ast.BoolOp(op=op, values=values):
            yield ast.BoolOp(ast.And() if isinstance(op, ast.Or) else ast.Or(), values)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield operand
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value) | float(value)):
            yield ast.Constant(value + 1)
        case ast.Call(func=func, args=[first, second, *rest], keywords=keywords) if _ordered(func, first, second):
            yield ast.Call(func, [second, first, *rest], keywords)


def _of_types(node: ast.BinOp) -> bool:
    """Tell `str | None` and text put together from numbers: their change breaks the import, or a message alone."""
    sides = (node.left, node.right)
    return any(isinstance(s, (ast.JoinedStr, ast.Constant)) and not _is_number(s) for s in sides)


def _is_number(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, (int, float))


def _ordered(func: ast.expr, *arguments: ast.expr) -> bool:
    """Tell whether the order of the arguments matters."""
    name = ast.unparse(func).rpartition(".")[2]
    starred = any(isinstance(argument, ast.Starred) for argument in arguments)
    return not starred and name not in {"max", "min", "maximum", "minimum", "gcd", "lcm", "add", "multiply", "zip"}


def places(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes that compute: none of annotations, decorators, messages, imports, GPU mode or TYPE_CHECKING."""
    skipped = {"annotation", "returns", "decorator_list", "type_params"}
    for field, value in ast.iter_fields(tree):
        if field in skipped:
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or isinstance(child, (ast.Raise, ast.JoinedStr, ast.Assert)):
                continue
            if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
                continue
            if isinstance(child, ast.FunctionDef) and "gpu" in child.name:
                continue
            yield child
            yield from places(child)


def mutants_of(room: str, path: Path) -> list[Mutant]:
    source = path.read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found = []
    for node in places(ast.parse(source)):
        for new in changed(node):
            assert isinstance(node, ast.expr) and node.end_lineno is not None and node.end_col_offset is not None
            start, stop = starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset
            # Keep the number of lines, so that the lines recorded for each test stay valid.
            text = "(" + ast.unparse(new) + "\n" * (node.end_lineno - node.lineno) + ")"
            old = source[start:stop].decode()
            found.append(Mutant(room, str(path.relative_to(TOP)), node.lineno, start, stop, " ".join(old.split()), text))
    return found


def drawn(count: int, seed: int, rooms: Sequence[str]) -> list[Mutant]:
    """Return `count` mutants, as many from each room, in an order that depends on the seed and the sources alone."""
    chosen = []
    for i, room in enumerate(rooms):
        paths = sorted({path for pattern in ROOMS[room] for path in TOP.glob(pattern)})
        every = [mutant for path in paths for mutant in mutants_of(room, path)]
        share = count // len(rooms) + (i < count % len(rooms))
        chosen += random.Random(f"{seed} {room}").sample(every, min(share, len(every)))
    return chosen


class Tests:
    """The tests that reach a line, and the seconds of each, from a run of the suite under coverage."""

    def __init__(self, folder: Path) -> None:
        self.data = folder / "coverage.sqlite"
        self.times = folder / "seconds.json"
        if not self.times.exists():
            self._measure(folder)
        self.seconds: dict[str, float] = json.loads(self.times.read_text(encoding="utf-8"))
        self.lines: dict[str, dict[str, set[int]]] = {}  # by file, then by test
        with sqlite3.connect(self.data) as database:
            rows = database.execute(
                "SELECT file.path, context.context, numbits FROM line_bits JOIN file ON file.id = file_id"
                " JOIN context ON context.id = context_id WHERE context.context != ''"
            )
            for path, test, bits in rows:
                name = _in_repository(path)
                if test in self.seconds and name:
                    numbers = {8 * i + bit for i, byte in enumerate(bits) for bit in range(8) if byte >> bit & 1}
                    self.lines.setdefault(name, {}).setdefault(test, set()).update(numbers)
        if not self.lines:
            raise SystemExit(f"{self.data}: no test reaches a file of the repository")

    def _measure(self, folder: Path) -> None:
        """Run the suite under coverage in a copy, as mutants run: a test that fails there finds no mutant."""
        folder.mkdir(parents=True, exist_ok=True)
        left_out = ("browser", "cpu_device", "cuda", "examples", "scaling", "test_docs.py", "torch")
        command = [sys.executable, "-m", "coverage", "run", f"--data-file={self.data}", "-m", "pytest", *QUIETLY]
        command += ["-p", "contexts", *(f"--ignore=tests/{name}" for name in left_out)]
        with tempfile.TemporaryDirectory(prefix="minicaffe-measured-") as place:
            Copy(Path(place)).start(command, MINICAFFE_TEST_SECONDS=str(self.times)).wait()

    def of(self, mutant: Mutant) -> list[str]:
        """Return the tests for a mutant: those of its file, then the quickest, of LIMIT seconds altogether."""
        by_test = self.lines.get(mutant.path, {})
        reached = [test for test, lines in by_test.items() if mutant.line in lines]
        if not reached:
            reached = list(by_test)
            for path in importers(mutant.path):
                reached += self.lines.get(path, {})
        chosen: list[str] = []
        sum_of_seconds = 0.0
        own = f"/test_{Path(mutant.path).stem}.py::"
        for test in sorted(set(reached), key=lambda test: (own not in test, self.seconds[test], test))[:MOST_TESTS]:
            sum_of_seconds += self.seconds[test]
            if chosen and sum_of_seconds > LIMIT:
                break
            chosen.append(test)
        return chosen


def _in_repository(path: str) -> str:
    """Return a file's name in the repository: minicaffe/layers and minicaffe/cuda are links to layers and cuda."""
    try:
        return str((TOP / path).resolve().relative_to(TOP))
    except ValueError:
        return ""


def importers(path: str) -> list[str]:
    """Return the files whose imports name this one."""
    name = path.removesuffix(".py").replace("/", ".").removeprefix("minicaffe.")
    parent, _, stem = name.rpartition(".")
    names = (f".{name} import", f"minicaffe.{parent} import {stem}\n", f".{stem} import", f"from . import {stem}\n")
    files = [file for folder in ("minicaffe", "layers", "cuda") for file in (TOP / folder).rglob("*.py")]
    return [str(file.relative_to(TOP)) for file in files if any(n in file.read_text(encoding="utf-8") for n in names)]


class Copy:
    """A copy of the repository, in which one mutant after another is run."""

    def __init__(self, folder: Path) -> None:
        self.top = folder / "minicaffe"
        subprocess.run(["git", "clone", "-q", str(TOP), str(self.top)], check=True)
        changes = ["git", "diff", "--name-only", "HEAD"]
        for name in subprocess.run(changes, cwd=TOP, check=True, capture_output=True, text=True).stdout.split():
            shutil.copyfile(TOP / name, self.top / name)
        if (TOP.parent / "shared").exists() and not (folder / "shared").exists():
            (folder / "shared").symlink_to((TOP.parent / "shared").resolve())

    def start(self, command: Sequence[str], **environment: str) -> subprocess.Popen[bytes]:
        path = os.pathsep.join([str(self.top), str(self.top / "tests" / "support")])
        environment = {**os.environ, "PYTHONPATH": path, "NUMBA_CACHE_DIR": str(self.top.parent / "numba"), **environment}
        nothing = subprocess.DEVNULL
        return subprocess.Popen(command, cwd=self.top, env=environment, stdout=nothing, stderr=nothing, start_new_session=True)

    def run(self, tests: Sequence[str]) -> tuple[str, float]:
        """Return what these tests say, "found", "missed" or "time" (found: they ended before), and the seconds."""
        listed = self.top.parent / f"{self.top.parent.name}.tests"
        listed.write_text("\n".join(tests) + "\n", encoding="utf-8")
        start = time.monotonic()
        # Limit CPU time, with room to compile loops, so that other programs do not decide the result.
        command = [
            "bash",
            "-c",
            f'ulimit -t {8 * LIMIT:.0f}; exec "$@"',
            "bash",
            sys.executable,
            "-m",
            "pytest",
            "-x",
            *QUIETLY,
        ]
        process = self.start([*command, f"@{listed}"])
        try:
            status = process.wait(timeout=30 * LIMIT)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            status = process.wait()
        verdict = "missed" if status == 0 else "found" if status > 0 else "time"
        return verdict, time.monotonic() - start

    def try_out(self, mutant: Mutant, tests: Sequence[str]) -> tuple[str, float]:
        if not tests:
            return "missed", 0.0
        path = self.top / mutant.path
        before = path.read_bytes()
        path.write_bytes(before[: mutant.start] + mutant.new.encode() + before[mutant.stop :])
        try:
            return self.run(tests)
        finally:
            path.write_bytes(before)


def score_of(results: Sequence[dict[str, Any]]) -> str:
    found = sum(result["verdict"] != "missed" for result in results)
    return f"{found} of {len(results)} found ({found / max(len(results), 1):.0%})"


def run_all(chosen: Sequence[Mutant], tests: Tests, jobs: int, output: Path | None) -> list[dict[str, Any]]:
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="minicaffe-mutants-") as folder:
        copies = []
        for i in range(jobs):
            (Path(folder) / str(i)).mkdir()
            copies.append(Copy(Path(folder) / str(i)))
        free = list(copies)

        def one(mutant: Mutant) -> None:
            copy = free.pop()
            try:
                selected = tests.of(mutant)
                verdict, seconds = copy.try_out(mutant, selected)
                results.append({**asdict(mutant), "verdict": verdict, "tests": len(selected), "seconds": round(seconds, 1)})
            finally:
                free.append(copy)
            print(f"{len(results):4} {verdict:7} {seconds:5.1f} s {len(selected):4} tests  {mutant}", flush=True)
            if output:
                output.write_text(json.dumps(results, indent=1), encoding="utf-8")

        with ThreadPoolExecutor(jobs) as pool:
            for _ in pool.map(one, chosen):
                pass
    return results


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--room", action="append", choices=ROOMS)
    parser.add_argument("--contexts", type=Path, help="the folder in which the measurement of the tests is kept")
    parser.add_argument("--list", action="store_true", help="list the mutants and end")
    parser.add_argument("-o", "--output", type=Path, help="write the results as JSON, after each mutant")
    arguments = parser.parse_args()
    rooms = arguments.room or list(ROOMS)
    chosen = drawn(arguments.count, arguments.seed, rooms)
    if arguments.list:
        print(*chosen, sep="\n")
        return 0
    with tempfile.TemporaryDirectory(prefix="minicaffe-contexts-") as folder:
        tests = Tests(arguments.contexts or Path(folder))
    results = run_all(chosen, tests, arguments.jobs, arguments.output)
    print("\nnot found:")
    for result in results:
        if result["verdict"] == "missed":
            new = " ".join(result["new"].split())
            print(f"  {result['path']}:{result['line']}: {result['old']} -> {new}  ({result['tests']} tests)")
    for room in rooms:
        print(f"{room:15} {score_of([result for result in results if result['room'] == room])}")
    print(f"mutants: {score_of(results)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
