"""`import minicaffe` brings in little, and nothing optional before it is used."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import minicaffe
from minicaffe import errors
from minicaffe.errors import install

OPTIONAL = ["h5py", "lmdb", "plyvel", "cramjam", "onnx", "onnxruntime", "torch", "pycuda", "PIL", "yaml", "rich", "click"]
CODE = f"""
import sys, minicaffe
pages = [name for name in sys.modules if name.startswith("minicaffe") and ("trace" in name or "representations" in name)]
optional = [name for name in {OPTIONAL} if name in sys.modules]
import minicaffe.formats.forks as forks
print(optional, pages, forks.fork_fields.cache_info().misses, forks.forks.cache_info().misses)
print(minicaffe.summary.summarize.__name__, minicaffe.io.load_image.__name__)
sys.modules["torch"] = None
minicaffe.torch
"""


def test_import_brings_in_nothing_before_it_is_used() -> None:
    """Nothing optional, no page of a trace, no table of the forks; then modules are there, or say what they need."""
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=False)
    assert done.stdout == "[] [] 0 0\nsummarize load_image\n"
    assert f"Error: minicaffe.torch needs PyTorch: {install('torch')}" in done.stderr


def test_import_loads_no_engine() -> None:
    """Names are imported at their first use, so that a command or script loads what it needs."""
    code = "import sys, minicaffe; print(sorted(name for name in sys.modules if name.startswith('minicaffe.'))); minicaffe.Net"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "['minicaffe.aliases', 'minicaffe.errors', 'minicaffe.version']\n"


FROM_THREADS = """
import sys, threading, minicaffe
from concurrent.futures import ThreadPoolExecutor
barrier = threading.Barrier(4)
def use(name):
    barrier.wait()
    return getattr(minicaffe, name)
with ThreadPoolExecutor(4) as pool:
    print([found.__name__ for found in pool.map(use, ["Net", "io", "settings", "Film"])])
"""


def test_threads_may_use_names_first() -> None:
    """A finder runs under a lock of all threads: one that imports may wait for a module that waits for it."""
    done = subprocess.run([sys.executable, "-c", FROM_THREADS], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout == "['Net', 'minicaffe.pycaffe.io', 'minicaffe.data.settings', 'Film']\n"


def test_names_that_are_not_there() -> None:
    assert [name for name in ("nothing", "a.b", "_net", "") if hasattr(minicaffe, name)] == []


def test_every_public_name_is_there() -> None:
    assert [name for name in minicaffe.__all__ if not hasattr(minicaffe, name)] == []
    assert set(minicaffe.__all__) <= set(dir(minicaffe))


def test_python_m_minicaffe_is_the_command_line() -> None:
    result = subprocess.run([sys.executable, "-m", "minicaffe", "--version"], capture_output=True, text=True, check=True)
    assert result.stdout.startswith("minicaffe, version ")


def test_the_command_that_installs_an_extra_works_in_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clone = Path(errors.__file__).resolve().parents[1]
    monkeypatch.chdir(clone)
    assert install("ray") == 'pip install -e ".[ray]"'
    monkeypatch.chdir(tmp_path)
    assert install("ray") == f'pip install -e "{clone}[ray]"'
    tmp_path.rmdir()
    assert install("ray") == f'pip install -e "{clone}[ray]"'
    monkeypatch.setattr(errors, "__file__", "/usr/lib/python3/dist-packages/minicaffe/errors.py")
    assert install("ray") == 'pip install -e ".[ray]" in a clone of minicaffe'
