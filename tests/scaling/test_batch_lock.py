"""Two runs at once on one folder: the second is refused; the remains of a dead run block nobody."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from detecting import ARGUMENTS, detect, finished

from minicaffe.cli import main
from minicaffe.errors import Error
from minicaffe.scaling.batch.folder import Folder
from minicaffe.scaling.batch.lock import LOCK, locked

pq = pytest.importorskip("pyarrow.parquet", reason="Parquet needs pyarrow")


RUN = ("photos", "--out", "found", "--part-size", "1")


SLOW = """
import sys, time
from minicaffe.scaling.batch import parts
from minicaffe.cli import main
real = parts.do_part

def slow(*arguments):
    print("a part", flush=True)
    time.sleep(float(sys.argv[1]))
    return real(*arguments)

parts.do_part = slow
main(sys.argv[2:])
"""


@pytest.fixture
def running(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A run that has begun its first part, and will be at it for long."""
    command = [sys.executable, "-c", SLOW, "60", *ARGUMENTS, *RUN]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "a part\n"
        yield process
        process.kill()


def test_a_second_run_is_refused_and_names_the_first(folder: Path, running: subprocess.Popen[str]) -> None:
    for more in ((), ("--threshold", 0.4), ("--out", f"file://{folder}/found")):
        result = detect(*RUN, *more)
        assert result.exit_code == 1
        who = f"another run writes there now (process {running.pid} on {socket.gethostname()}, since {time.strftime('%Y')}-"
        assert who in result.stderr
        assert result.stderr.endswith(": wait for its end, or give another --out\n")
    (folder / "other").symlink_to(folder / "found")
    assert "another run writes there now" in detect(*RUN, "--out", "other").stderr


def test_a_killed_run_hinders_nobody_and_goes_on(folder: Path, running: subprocess.Popen[str]) -> None:
    running.send_signal(signal.SIGKILL)
    running.wait()
    assert (folder / "found" / LOCK).exists()
    result = detect(*RUN)
    assert finished(result), result.output
    assert pq.read_table("found").num_rows == 7
    assert not (folder / "found" / LOCK).exists()


def test_two_runs_of_different_settings_at_once(folder: Path) -> None:
    """Begun together, real processes: one does all of it, the other is refused; no part is of the other's settings."""
    commands = [
        [sys.executable, "-m", "minicaffe", *ARGUMENTS, *RUN, "--threshold", threshold] for threshold in ("0.05", "0.6")
    ]
    both = [subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) for command in commands]
    said = [process.communicate(timeout=100)[1] for process in both]
    losers = [i for i, text in enumerate(said) if "images could not be done: see the column error" not in text]
    assert len(losers) == 1 and both[losers[0]].returncode == 1
    loser, winner = said[losers[0]], 1 - losers[0]
    assert "another run writes there now" in loser or "belongs to another run: threshold" in loser
    rows = pq.read_table("found").to_pylist()
    alone = CliRunner().invoke(main, [*commands[winner][3:], "--out", "alone"])
    assert finished(alone), alone.output
    assert pq.read_table("alone").to_pylist() == rows


def test_the_lock_of_a_folder(tmp_path: Path) -> None:
    place = str(tmp_path / "a" / "b")
    with locked(place):
        with pytest.raises(Error, match=rf"^{place}: another run writes there now \(process {os.getpid()} on "), locked(place):
            pass
        Path(place, LOCK).write_bytes(b"nonsense")
        with pytest.raises(Error, match=rf"^{place}: another run writes there now: wait"), locked(place):
            pass
    with locked(place):
        pass
    assert not list(Path(place).iterdir())
    Path(place, LOCK).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Error, match=f"{LOCK}: this is a link"), locked(place):
        pass
    assert not (tmp_path / "elsewhere").exists()
    Path(place, LOCK).unlink()
    (tmp_path / "elsewhere").write_text("kept")
    Path(place, LOCK).hardlink_to(tmp_path / "elsewhere")
    with pytest.raises(Error, match=f"{LOCK}: this file has another name, too"), locked(place):
        pass
    assert (tmp_path / "elsewhere").read_text() == "kept"


def test_without_locks_the_end_of_a_run_tells(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As behind a URI: another run takes the folder meanwhile."""
    monkeypatch.setattr("minicaffe.scaling.batch.lock._flock", lambda _: True)
    real = Folder.write

    def write(self: Folder, number: int, table: object) -> None:
        real(self, number, table)
        Path("found/_minicaffe.json").write_text('{"threshold": 0.4}')

    monkeypatch.setattr(Folder, "write", write)
    result = detect(*RUN)
    assert result.exit_code == 1
    assert "found: belongs to another run: " in result.stderr
