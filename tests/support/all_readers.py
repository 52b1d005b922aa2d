"""Every reader of files, with paths of each kind: python all_readers.py FOLDER

    FIFO: pipes without a writer    DEVICE: /dev/zero    HOLES: files of 1 TB of nothing    GROWN: real ones and then 1 TB

Prints a line for each kind and reader, `kind name: error's type: error` (or `kind name: read`), and at the end the megabytes
that all took.
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from minicaffe import Error, Net, allow_path, limits
from minicaffe.cli.caffe_tools import upgraded_binary
from minicaffe.data.database_lmdb import LmdbDatabase
from minicaffe.data.image_bytes import read_labels
from minicaffe.data.image_list import read_image_list, read_pairs
from minicaffe.data.image_list import read_names as read_list_of_hdf5
from minicaffe.data.images import image_size, load_image
from minicaffe.data.roidb import load_roidb
from minicaffe.data.settings import read_settings
from minicaffe.data.window_file import read_window_file
from minicaffe.detection.class_names import read_names
from minicaffe.formats.arrays import read_npy, read_npz
from minicaffe.formats.prototxt import parse_net, read_net, read_solver
from minicaffe.formats.weights import read_binaryproto, read_weights, write_binaryproto
from minicaffe.layers.data.hdf5 import RowSource
from minicaffe.layers.ssd.detection_files import read_label_map, read_name_sizes
from minicaffe.porting.comparison.sides import read_map
from minicaffe.porting.dump import read as dump
from minicaffe.porting.onnx.session import Session
from minicaffe.pycaffe.script import compiled
from minicaffe.scaling.batch.find import read_list
from minicaffe.scaling.batch.places import read_uri
from minicaffe.tracing.film_frames import read_frame
from minicaffe.tracing.trace_diff import read_trace
from minicaffe.training.snapshots import TrainingState, read_state, write_state
from minicaffe.training.solver_log import parse_log

KINDS = ("FIFO", "DEVICE", "HOLES", "GROWN")
SIZE = 1 << 40
NET = (
    'layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 1 dim: 6 } } }\n'
    'layer { name: "f" type: "InnerProduct" bottom: "x" top: "y" inner_product_param { num_output: 2 } }\n'
)


def rows(path: str) -> object:
    return RowSource([path], ["t"], 1, False, np.random.default_rng(0), np.float32)


def voc(part: str) -> Callable[[str], object]:
    """Return a reader of a VOC folder that contains this file at this path."""

    def read(path: str) -> object:
        folder = Path(path + ".voc")
        for name in ("Annotations", "ImageSets/Main"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / "ImageSets/Main/trainval.txt").write_text("1\n")
        (folder / part).unlink(missing_ok=True)
        (folder / part).symlink_to(path)
        return load_roidb(folder)

    return read


READERS: dict[str, Callable[[str], object]] = {
    "net.prototxt": read_net,
    "solver.prototxt": read_solver,
    "a.caffemodel": read_weights,
    "a.caffemodel.h5": read_weights,
    "a.safetensors": read_weights,
    "weights.npz": read_weights,
    "dumped.caffemodel": dump,
    "dumped.h5": dump,
    "old.caffemodel": upgraded_binary,
    "mean.binaryproto": read_binaryproto,
    "a.solverstate": read_state,
    "a.solverstate.h5": read_state,
    "rows.h5": rows,
    "data.mdb": lambda path: list(LmdbDatabase(path).items()),
    "a.png": load_image,
    "a.jpg": load_image,
    "a.tif": load_image,
    "a.webp": load_image,
    "a.bmp": load_image,
    "labels.png": read_labels,
    "size.png": image_size,
    "uri.png": lambda path: read_uri(f"file://{path}", 1 << 20),
    "a.npy": read_npy,
    "a.npz": read_npz,
    "a.onnx": Session,
    "map.txt": lambda path: read_map(Path(path)),
    "images.txt": read_image_list,
    "pairs.txt": read_pairs,
    "hdf5s.txt": read_list_of_hdf5,
    "detect.txt": read_list,
    "windows.txt": read_window_file,
    "names.txt": read_names,
    "sizes.txt": read_name_sizes,
    "labelmap.prototxt": read_label_map,
    "a.yml": read_settings,
    "a.json": load_roidb,
    "a.xml": voc("Annotations/1.xml"),
    "trainval.txt": voc("ImageSets/Main/trainval.txt"),
    "a.log": parse_log,
    "script.py": compiled,
    "trace.html": read_trace,
    "frame.json": lambda path: read_frame(Path(path)),
}


def write_real(name: str) -> None:
    """Write a small file of this kind."""
    kind = name.rpartition(".")[2]
    if kind in ("png", "jpg", "tif", "webp", "bmp"):
        Image.new("RGB", (7, 5)).save(name)
    elif name == "a.npy":
        with open(name, "wb") as file:
            np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": (SIZE - 200,)})
    elif name == "a.npz":
        np.savez(name, x=np.ones(3))
    elif name == "mean.binaryproto":
        write_binaryproto(name, np.ones((1, 2, 3, 4)))
    elif "solverstate" in name:
        write_state(name, TrainingState(7, "net.caffemodel", 2, [np.ones(4, np.float32)]))
    elif name == "rows.h5":
        import h5py

        with h5py.File(name, "w") as file:
            file["t"] = np.ones((3, 2), np.float32)
    elif kind in ("caffemodel", "h5", "safetensors") or name == "weights.npz":
        Net(parse_net(NET)).save(name)
    else:
        Path(name).write_text("a 1\n")


def make(kind: str, name: str) -> None:
    """Make a file of this kind in the working directory."""
    if kind == "FIFO":
        os.mkfifo(name)
    elif kind == "DEVICE":
        os.symlink("/dev/zero", name)
    else:
        if kind == "GROWN":
            write_real(name)
        with open(name, "ab") as file:
            file.truncate(SIZE)


def main() -> None:
    os.chdir(sys.argv[1])
    allow_path("/dev")
    limits.bytes, limits.pixels, limits.lists = 1 << 24, 1 << 20, 1 << 24
    write_real("first.png")
    load_image("first.png")  # takes the memory that Pillow itself needs
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for kind in KINDS:
        os.mkdir(kind)
        os.chdir(kind)
        for name, read in READERS.items():
            make(kind, name)
            try:
                read(str(Path(name).absolute()))
            except Exception as error:
                print(f"{kind} {name}: {'Error' if isinstance(error, Error) else type(error).__name__}: {error}")
            else:
                print(f"{kind} {name}: read")
        os.chdir("..")
    print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)


if __name__ == "__main__":
    main()
