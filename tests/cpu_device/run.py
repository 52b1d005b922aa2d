"""Runs the tests that need a GPU on the CPU test device, where PyCUDA runs the .cu files with no GPU.

    python tests/cpu_device/run.py [PYTEST ARGUMENTS]                  every test marked gpu
    python tests/cpu_device/run.py --sanitize address,undefined [...]  the same, with g++'s sanitizers in the kernels
    python tests/cpu_device/run.py --sanitize thread [...]             tests marked gpu_barrier, each CUDA thread a real one
    python tests/cpu_device/run.py [--sanitize ...] --python ...       not pytest: any arguments of Python

The device is built once and kept, with the kernels it compiled, in the user's temporary folder, under a hash of what it is
made of. A sanitizer's reports are printed at the end; with any, the exit status is not 0.
"""

from __future__ import annotations

import contextlib
import getpass
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
sys.path.insert(0, str(HERE))

from build import CannotBuildError, build, include_folder, run  # noqa: E402

SANITIZERS = {
    "": "",
    "address,undefined": "-O1 -g1 -fsanitize=address,undefined -fsanitize-sections=cuda_shared -fno-sanitize-recover=all",
    "thread": "-O1 -g1 -fsanitize=thread -DCPU_DEVICE_THREADS -Wl,-z,nodelete",
}
PRELOADED = {  # the C++ library too: the sanitizers find its throw only where it is loaded from the start
    "": [],
    "address,undefined": ["libasan.so", "libstdc++.so.6"],
    "thread": ["libtsan.so", "libstdc++.so.6"],
}
SOURCES = ("fakecuda.cpp", "queues.h", "cpu_device.h", "kernel_entry.h", "nvcc.py", "build.py")
MARKS = {"": "gpu", "address,undefined": "gpu", "thread": "gpu and gpu_barrier"}
NOTHING_RUN = 5  # pytest's status
FOUND = ("ERROR: AddressSanitizer", "runtime error:", "WARNING: ThreadSanitizer")  # in a report; other reports are advice


def device_folder() -> Path:
    """The built device: from the temporary folder, or built now."""
    made_of = [(HERE / name).read_bytes() for name in SOURCES]
    made_of += [run("g++", "--version").encode(), str(include_folder()).encode(), sys.executable.encode()]
    name = hashlib.sha256(b"".join(made_of)).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"minicaffe-cpu-device-{getpass.getuser()}" / name
    if not folder.exists():
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as unfinished:
            build(Path(unfinished, name))
            with contextlib.suppress(OSError):  # another run was faster
                Path(unfinished, name).rename(folder)
    return folder


def environment(sanitize: str, reports: Path) -> dict[str, str]:
    """The environment in which PyCUDA finds the test device; sanitizers write files that begin with `reports`."""
    folder = device_folder()
    cache = folder / f"cache-{sanitize.replace(',', '-') or 'plain'}"  # never a real GPU's, nor another sanitizer's
    cache.mkdir(exist_ok=True)
    said = f"log_path={reports}"
    changes = {
        "LD_LIBRARY_PATH": os.pathsep.join(filter(None, [str(folder), os.environ.get("LD_LIBRARY_PATH")])),
        "PATH": os.pathsep.join([str(folder), os.environ.get("PATH", "")]),
        "MINICAFFE_NVCC": str(folder / "nvcc"),
        "MINICAFFE_TEST_DEVICE_FLAGS": SANITIZERS[sanitize],
        "MINICAFFE_TEST_DEVICE_NVCC": shutil.which("nvcc") or "",  # its ptxas says what registers a kernel takes
        "PYCUDA_CACHE_DIR": str(cache),
        "XDG_CACHE_HOME": str(cache),
        "MINICAFFE_EXACT_MEMORY": "1" if sanitize else "",  # a pool's spare bytes would hide a stray access
        "ASAN_OPTIONS": f"detect_leaks=0:allocator_may_return_null=1:{said}",
        "UBSAN_OPTIONS": f"print_stacktrace=1:{said}",
        "TSAN_OPTIONS": f"ignore_noninstrumented_modules=1:history_size=0:{said}",
    }
    if sanitize:
        changes["MINICAFFE_CUDNN"] = "off"  # the real one does not start here, and under a sanitizer ends the process
    if PRELOADED[sanitize]:
        changes["LD_PRELOAD"] = " ".join(run("g++", f"-print-file-name={name}").strip() for name in PRELOADED[sanitize])
    return os.environ | changes


def options(arguments: list[str]) -> tuple[str, list[list[str]]]:
    """(sanitizers, what Python is to run, one after the other)."""
    sanitize = ""
    if arguments[:1] == ["--sanitize"]:
        sanitize, arguments = (arguments[1] if len(arguments) > 1 else "?"), arguments[2:]
        if sanitize not in SANITIZERS:
            sys.exit("run.py: --sanitize takes address,undefined or thread")
    if arguments[:1] == ["--python"]:
        return sanitize, [arguments[1:]]
    command = ["-m", "pytest", "-m", MARKS[sanitize]]
    if sanitize != "thread":
        return sanitize, [[*command, *arguments]]
    folders = [Path(word) for word in arguments if Path(word).is_dir()] or [REPOSITORY / "tests"]
    others = [word for word in arguments if not Path(word).is_dir()]
    if any(Path(word.partition("::")[0]).is_file() for word in others):
        return sanitize, [[*command, *arguments]]
    files = sorted(path for folder in folders for path in folder.rglob("test_*.py") if "gpu_barrier" in path.read_text())
    return sanitize, [[*command, str(path), *others] for path in files]  # a process keeps room for so many threads only


def check_pycuda(variables: dict[str, str]) -> None:
    """End with PyCUDA's words where it is missing or does not take the device: no test would run."""
    program = "import pycuda.driver as driver; driver.init(); driver.Device(0)"
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, env=variables | {"LD_PRELOAD": ""}, stderr=subprocess.PIPE
    )
    if done.returncode:
        said = done.stderr.decode().strip().splitlines()[-1]
        sys.exit(f"run.py: PyCUDA does not run here: {said} ({HERE / 'install_pycuda.sh'} {sys.executable} installs it)")


def main(arguments: list[str]) -> int:
    sanitize, commands = options(arguments)
    with tempfile.TemporaryDirectory() as scratch:
        try:
            variables = environment(sanitize, Path(scratch) / "report")
        except CannotBuildError as error:
            sys.exit(f"run.py: {error}")
        if variables.get("MINICAFFE_TEST_DEVICE_COUNT") != "0":
            check_pycuda(variables)
        fixed = ["setarch", "-R"] if sanitize == "thread" and shutil.which("setarch") else []  # addresses the sanitizer can map
        runs = [subprocess.run([*fixed, sys.executable, *command], check=False, env=variables) for command in commands]
        statuses = [done.returncode for done in runs]
        reports = [path.read_text(errors="replace") for path in sorted(Path(scratch).iterdir())]
    found = [report for report in reports if any(words in report for words in FOUND)]
    if len(statuses) > 1:  # in some of the files there may be no test to run
        statuses = [status for status in statuses if status != NOTHING_RUN] or [NOTHING_RUN]
    status = next((status for status in statuses if status), 0)
    reports = found if status in range(6) else reports  # not a status of pytest: the sanitizer ended it, and said why
    if reports:
        sys.stdout.flush()
        sys.stderr.write("\n".join(reports))
    if status or reports:
        seed = variables.get("MINICAFFE_TEST_DEVICE_SEED") or "0"
        sys.stderr.write(f"run.py: the order of streams and blocks was that of MINICAFFE_TEST_DEVICE_SEED={seed}\n")
    return status or len(reports)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
