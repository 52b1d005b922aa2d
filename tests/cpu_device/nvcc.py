"""A stand-in for nvcc: compiles a .cu file with g++ to a shared library, where PyCUDA expects a cubin.

Knows what PyCUDA asks of nvcc: --version, --preprocess FILE and --cubin FILE. Of the options, -D and -I count; the others
speak of GPUs. MINICAFFE_TEST_DEVICE_FLAGS holds further options for g++ (a sanitizer's), MINICAFFE_TEST_DEVICE_NVCC is NVIDIA's
own nvcc, whose ptxas says what a kernel needs; both are part of the version, so that PyCUDA's cache keeps what they made apart.
"""

import itertools
import os
import re
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path

HERE = Path(__file__).resolve().parent
HEADER = HERE / "cpu_device.h"
FLAGS = os.environ.get("MINICAFFE_TEST_DEVICE_FLAGS", "")
NVCC = os.environ.get("MINICAFFE_TEST_DEVICE_NVCC", "")
PTXAS = re.compile(r"Compiling entry function '(\w+)'.*?Used (\d+) registers[^\n]*", re.DOTALL)
BOUNDS = r"(?:__launch_bounds__\s*\(([^()]*(?:\([^()]*\)[^()]*)*)\)\s*)?"
KERNEL = re.compile(rf"__global__\s+(?:void\s+)?{BOUNDS}(?:void\s+)?(\w+)\s*\(")
COMPILE = [
    *("g++", "-std=c++20", "-O3", "-march=native", "-ffp-contract=off", "-fPIC", "-pthread"),
    "-fno-semantic-interposition",  # a kernel is inlined where it is launched
    "-fno-gnu-unique",  # so that a module can be unloaded
    "-Werror=frame-larger-than=65536",  # a fiber's stack has room for two such frames
    *FLAGS.split(),
]
LINK = ["g++", "-x", "c++", "-std=c++20", "-fPIC", "-shared", "-pthread", "-Wl,-z,start-stop-visibility=hidden"]


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
        f"{{cpu_device::first({bounds or 1024}), cpu_device::parameter_bytes({name}), "
        f"cpu_device::launch<{name}>, cpu_device::pointers<{name}>}};\n"
        for bounds, name in KERNEL.findall(code)
    )


def needs_by_ptxas(source: Path, options: list[str], folder: str) -> dict[str, tuple[int, int]]:
    """What each kernel takes on a GPU of the device's capability: registers of a thread, bytes of a block's __shared__ arrays.
    Nothing where NVIDIA's nvcc is missing or does not compile it."""
    if not NVCC:
        return {}
    command = [NVCC, "--cubin", "-std=c++17", "-arch=sm_90", "-fmad=false", "-Xptxas", "-v", *options]
    done = subprocess.run([*command, str(source), "-o", f"{folder}/real.cubin"], check=False, capture_output=True, text=True)
    sizes = {found[1]: (int(found[2]), re.search(r"(\d+) bytes smem", found[0])) for found in PTXAS.finditer(done.stderr)}
    return {name: (registers, int(shared[1]) if shared else 0) for name, (registers, shared) in sizes.items()}


def shared_by_symbols(compiled: str) -> dict[str, int]:
    """The bytes of the __shared__ arrays that stand in each kernel itself, not those of the functions that it calls."""
    said = subprocess.run(["readelf", "-SsW", compiled], check=True, capture_output=True, text=True).stdout
    section = re.search(r"\[\s*(\d+)\] cuda_shared ", said)
    sizes: dict[str, int] = {}
    for size, place, name in re.findall(r"^\s*\d+: [0-9a-f]+\s+(\w+) OBJECT .* (\w+) (\w+)$", said, re.MULTILINE):
        function = re.match(r"_ZZ(\d+)(\w+)", name)
        if section and place == section[1] and function:
            kernel = function[2][: int(function[1])]
            sizes[kernel] = sizes.get(kernel, 0) + int(size, 0)
    return sizes


def precompile_header() -> None:
    """Let g++ read the header, which takes half as long as to compile most kernels, once for these flags: of the files in the
    folder HEADER.gch it takes the one that fits."""
    precompiled = Path(f"{HEADER}.gch", f"{zlib.crc32(FLAGS.encode()):08x}")
    if not precompiled.exists():
        precompiled.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=HERE) as folder:  # whoever compiles meanwhile sees all of it or none
            unfinished = Path(folder, "header")
            subprocess.run([*COMPILE, "-w", "-c", "-x", "c++-header", str(HEADER), "-o", str(unfinished)], check=True)
            unfinished.rename(precompiled)


def compile_cubin(source: Path, options: list[str]) -> int:
    """g++'s exit status; FILE.cubin beside FILE.cu. Only an error is said: warnings are the real nvcc's to give."""
    preprocessed = preprocess(source, options)
    if re.search(r"\bextern\s+__shared__", preprocessed):
        sys.exit(f"{source}: the CPU test device has no dynamic shared memory: give the array its size")
    precompile_header()
    made = entries(preprocessed)
    text = f'#line 1 "{source}"\n{source.read_text()}\n#line 1 "<entries>"\n{made}'
    with tempfile.TemporaryDirectory() as folder:
        kernels, needs = f"{folder}/kernels.o", f"{folder}/needs.cpp"
        command = [*COMPILE, *options, "-x", "c++", "-include", str(HEADER), "-I", str(source.parent), "-c", "-", "-o", kernels]
        done = subprocess.run(command, check=False, input=text, capture_output=True, text=True)
        if not done.returncode:
            known, arrays = needs_by_ptxas(source, options, folder), shared_by_symbols(kernels)
            names = re.findall(r"KernelEntry cpu_kernel_(\w+)", made)
            numbers = {name: known.get(name, (0, arrays.get(name, 0))) for name in names}
            lines = [f'extern "C" const KernelNeeds cpu_needs_{name} = {{{r}, {s}}};' for name, (r, s) in numbers.items()]
            Path(needs).write_text("\n".join([f'#include "{HERE / "kernel_entry.h"}"', *lines]))
            command = [*LINK, *FLAGS.split(), needs, "-x", "none", kernels, "-o", str(source.with_suffix(".cubin"))]
            done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        sys.stderr.write(done.stderr)
    return done.returncode


def nvcc_version() -> str:
    """What NVIDIA's nvcc says of itself, "" where there is none."""
    return subprocess.run([NVCC, "--version"], check=True, capture_output=True, text=True).stdout if NVCC else ""


def main(arguments: list[str]) -> int:
    for variable in ("LD_PRELOAD", "LD_LIBRARY_PATH"):  # a sanitizer's and the device's, not for the compiler
        os.environ.pop(variable, None)
    if "--version" in arguments:
        made_of = HEADER.read_bytes() + nvcc_version().encode()
        print(f"the CPU test device's compiler {zlib.crc32(made_of):08x} {FLAGS}")
        return 0
    source = Path(next(word for word in arguments if word.endswith(".cu")))
    if "--preprocess" in arguments:
        print(preprocess(source, kept(arguments)))
        return 0
    return compile_cubin(source, kept(arguments))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
