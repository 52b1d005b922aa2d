"""`import minicaffe` brings in NumPy and protobuf, and nothing optional before it is used."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from minicaffe import errors
from minicaffe.errors import install

OPTIONAL = ["h5py", "lmdb", "plyvel", "cramjam", "onnx", "onnxruntime", "torch", "pycuda", "PIL", "yaml", "rich", "click"]


def test_import_brings_in_nothing_optional() -> None:
    code = f"import sys, minicaffe; print([m for m in {OPTIONAL} if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_python_m_minicaffe_is_the_command_line() -> None:
    result = subprocess.run([sys.executable, "-m", "minicaffe", "--version"], capture_output=True, text=True, check=True)
    assert result.stdout.startswith("minicaffe, version ")


def test_minicaffe_torch_without_torch_names_the_extra() -> None:
    code = "import sys; sys.modules['torch'] = None; import minicaffe; minicaffe.torch"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert f"Error: minicaffe.torch needs PyTorch: {install('torch')}" in result.stderr


def test_modules_are_there_when_they_are_first_used() -> None:
    code = "import minicaffe; print(minicaffe.summary.summarize.__name__, minicaffe.io.load_image.__name__)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["summarize", "load_image"]


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
