"""Kill commands that write files with SIGKILL at random moments: what they leave is the old file or the whole new one.

    python tests/support/kill_commands.py --times 150
    python tests/support/kill_commands.py --times 150 --signals interrupt
    python tests/support/kill_commands.py --times 150 --signals terminate --commands upgrade dump

Each time one of COMMANDS, or of those given, in turn, runs in a folder where an older output lies (convert-imageset makes only
new databases: there none lies), and is killed at a random moment of the time that it took unharmed. The output must then be the
old one, byte for byte, or a new one that reads as whole; nothing else in the folder may have changed.
With --signals interrupt it is SIGINT (Ctrl-C), with terminate SIGTERM: after those no unfinished file and no temporary folder
may be left either; the longest time that a command took to end is printed. Of several signals, each is sent so many times.
Trainings: kill_training.py.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from kill_training import ROOT, finish, fork
from PIL import Image

from minicaffe.cli import main as minicaffe
from minicaffe.data.database import datum_array, open_database, parse_datum
from minicaffe.formats.arrays import read_npz
from minicaffe.formats.prototxt import read_net
from minicaffe.formats.weights import read_binaryproto, read_weights

RFCN = ROOT / "examples" / "shapes" / "rfcn"
IMAGES = 300


SIGNALS = {"kill": signal.SIGKILL, "interrupt": signal.SIGINT, "terminate": signal.SIGTERM}
PATIENCE = 30.0
"""Seconds."""


@dataclass(frozen=True)
class Command:
    """A command line, what it writes, how to see that it is whole (raises where it is not), whether an older output lies there,
    and a command line that comes before, once."""

    words: list[str]
    output: str
    check: Callable[[Path], object]
    old: bool = True
    first: Sequence[str] = ()


def check_onnx(path: Path) -> None:
    import onnx

    onnx.checker.check_model(str(path), full_check=True)


def check_page(path: Path) -> None:
    assert path.read_text().rstrip().endswith("</html>")


def check_picture(path: Path) -> None:
    with Image.open(path) as image:
        image.load()


def check_database(path: Path) -> None:
    items = list(open_database(str(path), "lmdb").items())
    assert len(items) == IMAGES
    for key, value in items:
        datum_array(parse_datum(value, key.decode()), key.decode())


def check_values(path: Path) -> None:
    assert read_npz(path)["bbox_pred"].size


NET = [str(RFCN / "test.prototxt"), str(RFCN / "shapes_rfcn.caffemodel")]
CONVERT = ["convert-imageset", "./", "list.txt", "db"]
COMMANDS = {
    "convert-imageset": Command(CONVERT, "db", check_database, old=False),
    "compute-image-mean": Command(["compute-image-mean", "db", "mean"], "mean", read_binaryproto, first=CONVERT),
    "detect": Command(["detect", *NET, "one.png", "--draw", "drawn"], "drawn/one.png", check_picture),
    "run": Command(["run", *NET, "--out", "values.npz"], "values.npz", check_values),
    "upgrade": Command(["upgrade", NET[1], "copy.caffemodel"], "copy.caffemodel", read_weights),
    "rescue": Command(["rescue", NET[1], "-o", "net.prototxt"], "net.prototxt", read_net),
    "retarget": Command(["retarget", NET[0], "--classes", "7", "--out", "net.prototxt"], "net.prototxt", read_net),
    "export": Command(["export", *NET, "-o", "net.onnx"], "net.onnx", check_onnx),
    "trace": Command(["trace", *NET, "--shape", "data=1,3,120,160", "-o", "page.html"], "page.html", check_page),
    "dump": Command(["dump", NET[1], "-o", "arrays.npz"], "arrays.npz", read_npz),
    "cut": Command(["cut", *NET, "--to", "relu2", "-o", "net.prototxt", "part.caffemodel"], "net.prototxt", read_net),
    "draw": Command(["draw", NET[0], "-o", "net.png"], "net.png", check_picture),
}


def prepare(folder: Path) -> None:
    """Write the images and the list of convert-imageset."""
    random_pixels = random.Random(0).randbytes(60 * 40 * 3)
    Image.frombytes("RGB", (60, 40), random_pixels).save(folder / "one.png")
    (folder / "list.txt").write_text("".join(f"one.png {i % 7}\n" for i in range(IMAGES)))


def content(folder: Path) -> dict[str, bytes]:
    """Return the files in folder, without unfinished ones (their names begin with a dot) and the log."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != "said")
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in files
        if not any(part.startswith(".") for part in path.relative_to(folder).parts)
    }


def run(folder: Path, words: Sequence[str]) -> int:
    return fork(folder, lambda: minicaffe(list(words)))


def _end(child: int, number: int) -> None:
    """Send the signal, and wait. Python swallows a KeyboardInterrupt in a callback of its import system, maybe with the lock of
    imports held ("Exception ignored in: ... _get_module_lock.<locals>.cb"), so as its user would, Ctrl-C is repeated: once a
    PATIENCE, which no command takes to end otherwise. Raises SystemExit after three."""
    for _ in range(1 if number == signal.SIGKILL else 3):
        os.kill(child, number)
        limit = time.monotonic() + PATIENCE
        while time.monotonic() < limit:
            if os.waitpid(child, os.WNOHANG)[0]:
                return
            time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    raise SystemExit(f"a command did not end within {PATIENCE} s of each of three signals")


def stop_once(folder: Path, command: Command, seconds: float, number: int) -> tuple[str, float]:
    """Run in folder and send the signal after some seconds; the findings in words, and the seconds until the end."""
    before = content(folder)
    child = run(folder, command.words)
    time.sleep(seconds)
    start = time.monotonic()
    _end(child, number)
    took = time.monotonic() - start
    after = content(folder)
    of_output = {name for name in before | after if name == command.output or name.startswith(f"{command.output}/")}
    for name in (before.keys() | after.keys()) - of_output:
        if before.get(name) != after.get(name):
            raise SystemExit(f"{folder}: {command.words[0]} changed {name}")
    old = {name: before[name] for name in of_output if name in before}
    new = {name: after[name] for name in of_output if name in after}
    if new != old:
        finish(folder, fork(folder, lambda: command.check(folder / command.output)))
    unfinished = sum(path.name.startswith(".") for path in folder.iterdir())
    if number != signal.SIGKILL and (unfinished or any(Path(tempfile.gettempdir()).iterdir())):
        raise SystemExit(f"{folder}: {command.words[0]} left an unfinished file, or a temporary folder")
    return f"{'as before' if new == old else 'the whole new one'}, {unfinished} unfinished", took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=150)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--signals", nargs="+", choices=SIGNALS, default=["kill"])
    parser.add_argument("--commands", nargs="+", choices=COMMANDS, default=list(COMMANDS))
    options = parser.parse_args()
    commands = {what: COMMANDS[what] for what in options.commands}
    moments, longest = random.Random(options.seed), 0.0
    with tempfile.TemporaryDirectory() as name, tempfile.TemporaryDirectory() as temporary:
        tempfile.tempdir = temporary  # for the commands, which are forked
        durations = {}
        for what, command in commands.items():
            folder = Path(name) / what
            folder.mkdir()
            prepare(folder)
            if command.first:
                finish(folder, run(folder, command.first))
            start = time.monotonic()
            finish(folder, run(folder, command.words))
            durations[what] = time.monotonic() - start
            command.check(folder / command.output)
            if command.old:
                (folder / command.output).write_bytes(b"an older one")
        turns = itertools.islice(itertools.cycle(commands.items()), options.times)
        for (i, (what, command)), sent in itertools.product(enumerate(turns, 1), options.signals):
            folder = Path(name) / what
            if not command.old:
                shutil.rmtree(folder / command.output, ignore_errors=True)
            found, took = stop_once(folder, command, moments.uniform(0, 1.1 * durations[what]), SIGNALS[sent])
            longest = max(longest, took)
            print(f"{i:3d} {sent:9} {what:17} {found}", flush=True)
            for path in folder.glob(".*"):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
    print(f"the longest end took {longest:.2f} s")


if __name__ == "__main__":
    main()
