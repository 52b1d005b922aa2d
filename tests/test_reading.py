"""Reading runs nothing and writes nothing, whatever the reader: Python's audit hooks see to it."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec

import tally

PACKAGES = {"hdf5": "h5py", "solverstate_hdf5": "h5py", "lmdb": "lmdb", "leveldb": "plyvel", "parquet": "pyarrow"}
"""What the files of a reader are made with."""


def test_reading_runs_nothing_and_writes_nothing() -> None:
    """Real files of every kind, and a pickle in place of each."""
    program = tally.HERE / "watched_readers.py"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([sys.executable, program], env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert not done.returncode, done.stderr
    *seen, tried = done.stdout.splitlines()
    assert not seen
    there = {name for name in tally.READERS if name not in PACKAGES or find_spec(PACKAGES[name])}
    assert there <= set(tried.split())
