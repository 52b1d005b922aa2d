"""Compiles every cuda/*.cu with NVIDIA's nvcc for each GPU generation, float and double; a warning is an error.

    python tests/cpu_device/compile_all.py [STEM ...]

nvcc is $MINICAFFE_NVCC or the one of the PATH. Without one nothing is compiled, which is said. What has compiled once is not
compiled again until its text or the compiler changes (notes of it are in the user's temporary folder).
"""

from __future__ import annotations

import getpass
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from minicaffe.cuda import source

GENERATIONS = (75, 80, 90, 100)
STRICT = ["-fmad=false", "-Werror", "all-warnings"]
NOTES = Path(tempfile.gettempdir()) / f"minicaffe-compiled-{getpass.getuser()}"


def complaint(nvcc: str, version: str, stem: str, real: str) -> str:
    """What nvcc says against cuda/<stem>.cu, "" when it compiles."""
    text = source.text(stem)
    options = [f"-DREAL={real}", *STRICT, *(f"-gencode=arch=compute_{g},code=sm_{g}" for g in GENERATIONS)]
    note = NOTES / hashlib.sha256("\0".join([version, text, *options]).encode()).hexdigest()
    if note.exists():
        return ""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, f"{stem}.cu").write_text(text)
        command = [nvcc, "--fatbin", *options, f"{stem}.cu", "-o", f"{stem}.fatbin"]
        done = subprocess.run(command, check=False, cwd=folder, capture_output=True, text=True)
    said = done.stdout + done.stderr
    if done.returncode or said:
        return f"cuda/{stem}.cu, {real}:\n{said}"
    note.touch()
    return ""


def main(stems: list[str]) -> int:
    nvcc = os.environ.get("MINICAFFE_NVCC") or shutil.which("nvcc")
    if nvcc is None:
        print("compile_all.py: no nvcc here: nothing was compiled")
        return 0
    NOTES.mkdir(mode=0o700, parents=True, exist_ok=True)
    version = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True).stdout
    stems = stems or sorted(path.stem for path in source.FOLDER.glob("*.cu"))
    work = [(stem, real) for stem in stems for real in ("float", "double")]
    with ThreadPoolExecutor(2) as pool:
        complaints = list(filter(None, pool.map(lambda item: complaint(nvcc, version, *item), work)))
    print("\n".join(complaints), end="")
    generations = ", ".join(f"sm_{g}" for g in GENERATIONS)
    print(f"{len(work) - len(complaints)} of {len(work)} (a file, float or double) compile without warnings for {generations}")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
