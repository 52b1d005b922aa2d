"""Two runs at once on one folder: the second is refused; the remains of a dead run block nobody."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner
from detecting import ARGUMENTS, detect, finished
from forked import begun, needs_fork

from minicaffe.cli import main
from minicaffe.errors import Error
from minicaffe.scaling.batch import run as batch_run
from minicaffe.scaling.batch.folder import LOCK, Folder, locked

pq = pytest.importorskip("pyarrow.parquet", reason="Parquet needs pyarrow")


pytestmark = needs_fork

RUN = ("photos", "--out", "found", "--part-size", "1")


@pytest.fixture
def running(folder: Path) -> Iterator[int]:
    """A process whose run has begun its first part, and will be at it for long."""
    reader, writer = os.pipe()

    def slow(*_: object) -> None:
        os.write(writer, b"a part")
        time.sleep(60)

    def run() -> None:
        batch_run.do_part = slow  # type: ignore[assignment]
        main([*ARGUMENTS, *RUN])

    child = begun(run)
    os.close(writer)
    assert os.read(reader, 6) == b"a part"
    os.close(reader)
    yield child.pid
    os.kill(child.pid, signal.SIGKILL)
    child.end()


def test_a_second_run_is_refused_and_names_the_first(folder: Path, running: int) -> None:
    for more in ((), ("--threshold", 0.4), ("--out", f"file://{folder}/found")):
        result = detect(*RUN, *more)
        assert result.exit_code == 1
        who = f"another run writes there now (process {running} on {socket.gethostname()}, since {time.strftime('%Y')}-"
        assert who in result.stderr
        assert result.stderr.endswith(": wait for its end, or give another --out\n")
    (folder / "other").symlink_to(folder / "found")
    assert "another run writes there now" in detect(*RUN, "--out", "other").stderr


def test_a_killed_run_hinders_nobody_and_goes_on(folder: Path, running: int) -> None:
    os.kill(running, signal.SIGKILL)
    os.waitid(os.P_PID, running, os.WEXITED | os.WNOWAIT)
    assert (folder / "found" / LOCK).exists()
    result = detect(*RUN)
    assert finished(result), result.output
    assert pq.read_table("found").num_rows == 7
    assert not (folder / "found" / LOCK).exists()


def test_two_runs_of_different_settings_at_once(folder: Path) -> None:
    """Begun together, real processes: one does all of it, the other is refused; no part is of the other's settings."""
    commands = [[*ARGUMENTS, *RUN, "--threshold", threshold] for threshold in ("0.05", "0.6")]
    ended = [child.end() for child in [begun(partial(main, command)) for command in commands]]
    losers = [i for i, one in enumerate(ended) if "images failed: see the column error" not in one.stderr]
    assert len(losers) == 1 and ended[losers[0]].status == 1
    loser, winner = ended[losers[0]].stderr, 1 - losers[0]
    assert "another run writes there now" in loser or "belongs to another run: threshold" in loser
    rows = pq.read_table("found").to_pylist()
    alone = CliRunner().invoke(main, [*commands[winner], "--out", "alone"])
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
    monkeypatch.setattr("minicaffe.scaling.batch.folder._flock", lambda _: True)
    real = Folder.write

    def write(self: Folder, number: int, table: object) -> None:
        real(self, number, table)
        Path("found/_minicaffe.json").write_text('{"threshold": 0.4}')

    monkeypatch.setattr(Folder, "write", write)
    result = detect(*RUN)
    assert result.exit_code == 1
    assert "found: belongs to another run: " in result.stderr
