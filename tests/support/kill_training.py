"""Kill a training with SIGKILL at a random moment, look at every file that it left, go on, and compare with a run never killed.

    python tests/support/kill_training.py --times 50

Each time `minicaffe train`, with a snapshot after every iteration, is killed in a fresh folder (in TMPDIR: syncing is slow);
every snapshot on disk must load; `minicaffe train --snapshot latest` must end with the very bytes of the run not killed.
The commands run in forks of this process, which holds no threads: nothing is shared with them but the code.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]
os.environ["OPENBLAS_NUM_THREADS"] = "1"

from training_case import RULES, make_training  # noqa: E402

from minicaffe.cli import main as minicaffe  # noqa: E402
from minicaffe.mode import TEST  # noqa: E402
from minicaffe.net import Net  # noqa: E402
from minicaffe.training.snapshots import latest, read_state  # noqa: E402


def fork(folder: Path, run: Callable[[], object]) -> int:
    """Start a process in folder, with its output in the file `said`; its id."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        os.chdir(folder)
        said = os.open("said", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(said, 1)
        os.dup2(said, 2)
        run()
        code = 0
    except SystemExit as stop:
        code = int(bool(stop.code))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def train(folder: Path, *options: str) -> int:
    """`minicaffe train` in folder; the process's id."""
    return fork(folder, lambda: minicaffe(["train", "solver.prototxt", *options]))


def finish(folder: Path, child: int) -> None:
    """Wait for a process, which must end well."""
    if os.waitpid(child, 0)[1]:
        raise SystemExit(f"{folder}: failed:\n{(folder / 'said').read_text()}")


def load_all() -> None:
    """Load each weights file of the working directory into a net, and read each state. Raises minicaffe's Error."""
    for file in Path().glob("solver_iter_*.caffemodel*"):
        assert not Net("net.prototxt", TEST).copy_from(file).missing, file
    for state in Path().glob("solver_iter_*.solverstate*"):
        assert Path(read_state(state).learned_net).is_file(), state


def final_bytes(folder: Path, iterations: int) -> list[bytes]:
    """Return the last snapshot's two files."""
    return [file.read_bytes() for file in sorted(folder.glob(f"solver_iter_{iterations}.*"))]


def kill_once(folder: Path, seconds: float, whole: list[bytes], iterations: int) -> str:
    """Train in folder, kill some seconds after the first snapshot, resume to the end. The findings in words."""
    child = train(folder)
    while not any(folder.glob("[!.]*.solverstate*")) and not os.waitpid(child, os.WNOHANG)[0]:
        time.sleep(0.001)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    states, unfinished = len(list(folder.glob("*.solverstate*"))), len(list(folder.glob(".solver_iter_*")))
    finish(folder, fork(folder, load_all))
    newest = latest(str(folder / "solver"))
    if newest is None:
        raise SystemExit(f"{folder}: no complete snapshot is left")
    iteration = read_state(newest).iteration
    finish(folder, train(folder, "--snapshot", "latest"))
    if final_bytes(folder, iterations) != whole or len(whole) != 2:
        raise SystemExit(f"{folder}: killed after iteration {iteration}, the end differs from the run that was not killed")
    return f"{states:2d} snapshots load, {unfinished} files unfinished; went on from {iteration:2d}; the same bytes at the end"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=50)
    parser.add_argument("--iterations", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    moments = random.Random(options.seed)
    cases = itertools.cycle([(kind, form) for kind in RULES for form in ("BINARYPROTO", "HDF5")])
    known: dict[tuple[str, str], tuple[list[bytes], float]] = {}
    with tempfile.TemporaryDirectory() as name:

        def made(what: str, kind: str, form: str) -> Path:
            folder = Path(name) / what
            folder.mkdir()
            text = f"max_iter: {options.iterations} snapshot: 1 snapshot_format: {form}"
            make_training(folder, kind, text, hidden=3000)
            return folder

        for i, case in zip(range(options.times), cases, strict=False):
            if case not in known:
                folder = made(f"whole{i}", *case)
                finish(folder, train(folder))
                times = [file.stat().st_mtime for file in folder.glob("*.solverstate*")]
                known[case] = final_bytes(folder, options.iterations), max(times) - min(times)
            whole, duration = known[case]
            found = kill_once(made(f"killed{i}", *case), moments.uniform(0, 0.9 * duration), whole, options.iterations)
            print(f"{i + 1:3d} {case[0]:9} {case[1]:12} {found}", flush=True)


if __name__ == "__main__":
    main()
