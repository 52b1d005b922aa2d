"""What is read is a file, of no more bytes than the limits: every reader, before a byte is read."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import all_readers
import pytest

from minicaffe import Error, limits
from minicaffe.errors import LimitError, NotAFileError
from minicaffe.files import opened, read_bytes, read_text

linux = pytest.mark.skipif(sys.platform != "linux", reason="asks for memory, pipes and devices in Linux's way")


ENDS = {"a.caffemodel.h5", "dumped.h5", "a.solverstate.h5", "rows.h5"}
"""HDF5 files say themselves where they end: what comes after is not looked at."""


@linux
def test_every_reader_refuses_what_is_no_file_or_too_large(tmp_path: Path) -> None:
    for module in ("h5py", "lmdb", "pyarrow", "onnxruntime"):
        pytest.importorskip(module)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", all_readers.__file__, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert not done.returncode, done.stderr
    *lines, megabytes = done.stdout.splitlines()
    outcomes = dict(line.split(": ", 1) for line in lines)
    assert list(outcomes) == [f"{kind} {name}" for kind in all_readers.KINDS for name in all_readers.READERS]
    ends = {"FIFO": "it is a pipe, not a file", "DEVICE": "it is a device, not a file"}
    for what, outcome in outcomes.items():
        kind, name = what.split(" ", 1)
        refused = outcome.startswith("Error: ") and (name == "data.mdb" or outcome.endswith(ends.get(kind, "")))
        assert refused or (kind == "GROWN" and name in ENDS), (what, outcome)
    assert int(megabytes) < 200


@linux
def test_a_pipe_is_not_opened(tmp_path: Path) -> None:
    """Who waits for a reader goes on to wait: opening the pipe would wake it, and closing it end it."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen(["sh", "-c", f"echo written > {pipe}"]) as writer:
        with pytest.raises(NotAFileError, match=r"pipe: it is a pipe, not a file$"):
            opened(pipe)
        assert pipe.read_text() == "written\n"
    assert writer.returncode == 0


@linux
def test_what_else_is_no_file(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))
        with pytest.raises(NotAFileError, match="it is a socket, not a file"):
            opened(tmp_path / "socket")
    with pytest.raises(IsADirectoryError):
        opened(tmp_path)
    with pytest.raises(FileNotFoundError):
        opened(tmp_path / "none")
    with pytest.raises(NotAFileError, match="no file has such a name") as caught:
        opened("a\0b")
    assert isinstance(caught.value, Error) and isinstance(caught.value, OSError)


def test_no_more_bytes_than_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(b"12\r34\r\n")
    monkeypatch.setattr(limits, "lists", 7)
    assert read_bytes(tmp_path / "a", "lists") == b"12\r34\r\n"
    assert read_text(tmp_path / "a", "lists") == "12\n34\n"
    monkeypatch.setattr(limits, "lists", 6)
    with pytest.raises(LimitError, match=r"/a: the file has 7 bytes, and the limit is 6: .* --limit lists=N"):
        read_bytes(tmp_path / "a", "lists")


@linux
def test_what_the_system_makes_up_is_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The size of such a file is 0."""
    assert read_text("/proc/self/status").startswith("Name:")
    monkeypatch.setattr(limits, "text", 10)
    with pytest.raises(LimitError, match=r"/proc/self/maps: the file has .* bytes, and the limit is 10"):
        read_bytes("/proc/self/maps")
