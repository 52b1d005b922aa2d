"""A stand-in for nvcc: compiles a .cu file with g++ to a shared library, where PyCUDA expects a cubin.

Knows what PyCUDA asks of nvcc: --version, --preprocess FILE and --cubin FILE. Of the options, -D and -I count; the others
speak of GPUs. MINICAFFE_TEST_DEVICE_FLAGS holds further options for g++ (a sanitizer's); they are part of the version, so
that PyCUDA's cache keeps what they made apart.
"""

import itertools
import os
import re
import subprocess
import sys
import zlib
from pathlib import Path

HERE = Path(__file__).resolve().parent
HEADER = HERE / "cpu_device.h"
FLAGS = os.environ.get("MINICAFFE_TEST_DEVICE_FLAGS", "")
BOUNDS = r"(?:__launch_bounds__\s*\(([^()]*(?:\([^()]*\)[^()]*)*)\)\s*)?"
KERNEL = re.compile(rf"__global__\s+(?:void\s+)?{BOUNDS}(?:void\s+)?(\w+)\s*\(")
COMPILE = [
    *("g++", "-x", "c++", "-std=c++20", "-O3", "-march=native", "-ffp-contract=off", "-fPIC", "-shared", "-pthread"),
    *("-fno-semantic-interposition", "-Wl,-z,start-stop-visibility=hidden"),  # a kernel is inlined where it is launched
    *("-fno-gnu-unique",),  # so that a module can be unloaded
    *("-Werror=frame-larger-than=65536", "-include", str(HEADER)),  # a fiber's stack has room for two such frames
]


def kept(arguments: list[str]) -> list[str]:
    """Of nvcc's options, those that g++ takes with the same meaning: -Dname, -D name, -Ifolder, -I folder."""
    joined = [option for option in arguments if re.match(r"-[DI].", option)]
    pairs = [pair for pair in itertools.pairwise(arguments) if pair[0] in ("-D", "-I")]
    return joined + [word for pair in pairs for word in pair]


def preprocess(source: Path, options: list[str]) -> str:
    """The source with its includes, comments and CUDA's words, but without the header that defines those."""
    command = ["g++", "-E", "-P", "-C", "-x", "c++", "-std=c++20", "-D__CUDACC__=1", *options, str(source)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    return done.stdout


def entries(preprocessed: str) -> str:
    """For each __global__ function, the object under which the device finds it (kernel_entry.h)."""
    code = re.sub(r"//[^\n]*|/\*.*?\*/", " ", preprocessed, flags=re.DOTALL)
    return "".join(
        f'extern "C" const KernelEntry cpu_kernel_{name} = '
        f"{{cpu_device::first({bounds or 1024}), cpu_device::parameter_bytes({name}), cpu_device::launch<{name}>}};\n"
        for bounds, name in KERNEL.findall(code)
    )


def compile_cubin(source: Path, options: list[str]) -> int:
    """g++'s exit status; FILE.cubin beside FILE.cu. Only an error is said: warnings are the real nvcc's to give."""
    preprocessed = preprocess(source, options)
    if re.search(r"\bextern\s+__shared__", preprocessed):
        sys.exit(f"{source}: the CPU test device has no dynamic shared memory: give the array its size")
    text = f'#line 1 "{source}"\n{source.read_text()}\n#line 1 "<entries>"\n{entries(preprocessed)}'
    command = [*COMPILE, *FLAGS.split(), *options, "-I", str(source.parent), "-", "-o", str(source.with_suffix(".cubin"))]
    done = subprocess.run(command, check=False, input=text, capture_output=True, text=True)
    if done.returncode:
        sys.stderr.write(done.stderr)
    return done.returncode


def main(arguments: list[str]) -> int:
    for variable in ("LD_PRELOAD", "LD_LIBRARY_PATH"):  # a sanitizer's and the device's, not for the compiler
        os.environ.pop(variable, None)
    if "--version" in arguments:
        print(f"the CPU test device's compiler {zlib.crc32(HEADER.read_bytes()):08x} {FLAGS}")
        return 0
    source = Path(next(word for word in arguments if word.endswith(".cu")))
    if "--preprocess" in arguments:
        print(preprocess(source, kept(arguments)))
        return 0
    return compile_cubin(source, kept(arguments))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
