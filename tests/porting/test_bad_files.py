"""The commands that take a model elsewhere, given files that are wrong: one line that names the file or the layer and says why,
exit status 1, nothing written."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from detecting import DETECTOR
from PIL import Image

pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")
pytest.importorskip("safetensors", reason="the extra safetensors is not installed")
pytest.importorskip("h5py", reason="the extra hdf5 is not installed")

from onnx_graphs import node, save

from minicaffe import TEST, Net
from minicaffe.cli import main

NET = """name: "small"
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 1 dim: 3 dim: 10 dim: 12 } } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv" convolution_param { num_output: 4 kernel_size: 3 } }
layer { name: "ip" type: "InnerProduct" bottom: "conv" top: "ip" inner_product_param { num_output: 5 } }
"""
KINDS = ("caffemodel", "caffemodel.h5", "safetensors", "npz")
INT8 = "export net.prototxt net.caffemodel --int8 --calibrate"
FEATURES = "features detector.prototxt detector.caffemodel --proposals boxes.npy --blob cls_prob --min 1"
USES = {
    "to-torch": "to-torch {net}.prototxt {weights} -o there.py",
    "cut": "cut {net}.prototxt {weights} -o there.prototxt there.caffemodel",
    "int8": "export {net}.prototxt {weights} --int8 --calibrate photos -o there.onnx",
    "with-boxes": "export {net}.prototxt {weights} --with-boxes -o there.onnx",
    "with-image": "export {net}.prototxt {weights} --with-image -o there.onnx",
    "features": "features {net}.prototxt {weights} photos --proposals boxes.npy --blob cls_prob --out there",
}
"""By command: how it reads a net and its weights."""
WRITES = {
    "port": ("port two -o {}", "r.html"),
    "to-torch": ("to-torch net.prototxt net.caffemodel -o {}", "model.py"),
    "cut": ("cut net.prototxt net.caffemodel -o {} p.caffemodel", "p.prototxt"),
    "cut's weights": ("cut net.prototxt net.caffemodel -o p.prototxt {}", "p.safetensors"),
    "import": ("import good.onnx -o {} p.caffemodel", "p.prototxt"),
    "import's weights": ("import good.onnx -o p.prototxt {}", "p.caffemodel"),
    "features": (f"{FEATURES} photos --out {{}}", ""),
    "int8": (f"{INT8} photos -o {{}}", "m.onnx"),
    "export": ("export net.prototxt net.caffemodel -o {}", "m.onnx"),
    "dump to .safetensors": ("dump net.caffemodel -o {}", "a.safetensors"),
    "dump to .npz": ("dump net.safetensors -o {}", "a.npz"),
    "dump to .caffemodel": ("dump net.npz -o {}", "a.caffemodel"),
    "rescue": ("rescue net.caffemodel -o {}", "r.prototxt"),
}
"""By command: how it writes, and the name of a file."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what is right and what is wrong, and with a file for each output."""
    folder = tmp_path_factory.mktemp("made")
    for name, text in {
        "net": NET,
        "wide": NET.replace("num_output: 5", "num_output: 7"),
        "other": NET.replace('"conv"', '"c"').replace('"ip"', '"i"'),
        "detector": DETECTOR,
    }.items():
        (folder / f"{name}.prototxt").write_text(text)
        for kind in KINDS:
            Net(folder / f"{name}.prototxt", TEST).save(folder / f"{name}.{kind}")
            (folder / f"empty.{kind}").write_bytes(b"")
            (folder / f"cut.{kind}").write_bytes((folder / f"net.{kind}").read_bytes()[:-40])
    for name in ("empty", "folder", "folder.py", "taken.safetensors", "two", "apart", "photos", "texts"):
        (folder / name).mkdir()
    for name, files in {"two": ("net", "net"), "apart": ("net", "other")}.items():
        shutil.copy(folder / f"{files[1]}.caffemodel", folder / name / "w.caffemodel")
        for net in ("first", "second") if name == "two" else ("first",):
            shutil.copy(folder / f"{files[0]}.prototxt", folder / name / f"{net}.prototxt")
    np.save(folder / "boxes.npy", np.array([[3, 4, 30, 20.0]]))
    Image.new("RGB", (40, 30)).save(folder / "photos" / "a.png")
    for name in ("texts/b.png", "text.png", *(f"there.{end}" for end in ("py", "prototxt", "caffemodel", "onnx", "npz"))):
        (folder / name).write_text("only text")
    x = (2, 3)
    save(folder / "good.onnx", [node("Relu", "x", "y")], {"x": x})
    save(folder / "operators.onnx", [node("Erf", "x", "a"), node("Einsum", "a a", "y", equation="ij,ij->ij")], {"x": x})
    save(folder / "dynamic.onnx", [node("Relu", "x", "y")], {"x": ("n", 3, "h", "w")})
    (folder / "cut.onnx").write_bytes((folder / "good.onnx").read_bytes()[:30])
    return folder


def contents() -> dict[str, bytes | None]:
    return {str(path): path.read_bytes() if path.is_file() else None for path in Path().rglob("*")}


def refused(command: str, *words: str) -> Result:
    """Assert that a command fails with one line that contains the words, and changes no file."""
    before = contents()
    ran = CliRunner().invoke(main, shlex.split(command), catch_exceptions=False)
    (line,) = (line for line in ran.stderr.splitlines() if not line.startswith("Preprocessing: "))
    assert ran.exit_code == 1 and line.startswith("minicaffe: "), ran.output
    for word in words:
        assert word in line
    assert contents() == before
    return ran


@pytest.fixture(autouse=True)
def in_folder(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(made)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("port nothing", ["nothing: no such file: give the folder of a model"]),
        ("port text.png", ["text.png: a file: give the folder of a model"]),
        ("port empty -o there.html", ["empty: neither a prototxt nor weights: give the folder"]),
        ("port texts --run", ["texts: neither a prototxt nor weights"]),
        ("port apart --run", ["apart: no weights fit a net, so nothing was tried"]),
        ("port two -o two/first.prototxt", ["--out two/first.prototxt: this command writes .html, not .prototxt"]),
        ("to-torch net.prototxt net.safetensors -o net.py", ["--out net.safetensors: this is an input"]),
        ("to-torch net.prototxt net.caffemodel -o taken.py", ["--out taken.safetensors: this is a folder"]),
        ("to-torch net.prototxt net.caffemodel -o there", ["--out there: give the name of a module, as model.py"]),
        ("to-torch net.prototxt net.caffemodel --input data=text.png -o there.py", ["text.png: cannot read the image"]),
        ("to-torch net.prototxt empty -o there.py", ["empty: cannot be read: Is a directory"]),
        ("to-torch empty net.caffemodel -o there.py", ["empty: cannot be read: Is a directory"]),
        (
            "import dynamic.onnx -o there.prototxt there.caffemodel",
            ["inputs are dynamic: give their sizes with --shape 'x=1,3,?,?'"],
        ),
        ("import cut.onnx -o there.prototxt there.caffemodel", ["cut.onnx: damaged, or not an ONNX model"]),
        ("import empty -o there.prototxt there.caffemodel", ["empty: Is a directory"]),
        ("import net.prototxt -o there.prototxt there.caffemodel", ["net.prototxt: damaged, or not an ONNX model"]),
        (f"{FEATURES} empty --out there", ["empty: no images in this folder"]),
        (f"{FEATURES} nothing --out there", ["nothing: no such file"]),
        ("features net.prototxt net.caffemodel photos --out there", ["a detector's inputs are data and im_info"]),
        (f"{INT8} empty -o there.onnx", ["empty: no images in this folder"]),
        (f"{INT8} nothing -o there.onnx", ["nothing: no such file"]),
        (f"{INT8} text.png -o there.onnx", ["--calibrate text.png: no image can be read", "not an image, or damaged"]),
        (f"{INT8} texts -o there.onnx", ["--calibrate texts: no image can be read: texts/b.png"]),
        ("export net.prototxt net.caffemodel --with-boxes -o there.onnx", ["net.prototxt: a detector's inputs are data"]),
        (
            "export detector.prototxt detector.caffemodel --with-image -o there.onnx",
            ["takes rois, which a model cannot propose"],
        ),
        ("dump text.png -o there.npz", ["text.png: this is a text file"]),
        ("dump empty -o there.npz", ["empty: cannot be read: Is a directory"]),
        ("dump net.npz -o net.npz", ["--out net.npz: this is an input"]),
        ("dump net.npz -o there.h5", ["there.h5: dump writes .npz, .safetensors and .caffemodel; for HDF5 use Net.save"]),
        (
            "rescue net.safetensors -o there.prototxt",
            ["net.safetensors: safetensors weights contain no net: give a .caffemodel"],
        ),
        ("rescue net.npz -o there.prototxt", ["net.npz: .npz weights contain no net: give a .caffemodel"]),
    ],
)
def test_inputs(command: str, words: list[str]) -> None:
    refused(command, *words)


def test_all_operators_that_cannot_be_imported() -> None:
    before = contents()
    ran = CliRunner().invoke(main, "import operators.onnx -o there.prototxt there.caffemodel".split())
    assert ran.exit_code == 1
    assert 'node "a_node" (Erf)' in ran.stderr
    assert 'node "y_node" (Einsum)' in ran.stderr
    assert contents() == before


def test_a_picture_that_is_none_and_a_line_for_all() -> None:
    before = contents()
    ran = CliRunner().invoke(main, f"{FEATURES} text.png --out there".split())
    said = [line for line in ran.stderr.splitlines() if not line.startswith("Preprocessing: ")]
    assert said[0].startswith("minicaffe: text.png: cannot read the image")
    assert said[1:] == ["minicaffe: 1 of 1 images failed"]
    assert ran.exit_code == 1
    assert contents() == before


def test_two_nets_and_weights_that_fit_both() -> None:
    """Both are reported, and the steps are for one of them."""
    ran = CliRunner().invoke(main, ["port", "two"])
    assert ran.exit_code == 0
    for net in ("first", "second"):
        assert f"w.caffemodel in {net}.prototxt\n      2 of 2 layers fit" in ran.stdout
    assert "minicaffe run two/first.prototxt two/w.caffemodel" in ran.stdout
    assert "minicaffe run two/second.prototxt" not in ran.stdout


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("use", [*USES, "dump", "rescue"])
def test_weights_that_are_cut_short_or_empty(use: str, kind: str) -> None:
    command = {"dump": "dump {weights} -o there.npz", "rescue": "rescue {weights} -o there.prototxt"}.get(use) or USES[use]
    for name in ("cut", "empty"):
        refused(command.format(net="net", weights=f"{name}.{kind}"), f"{name}.{kind}: ")


@pytest.mark.parametrize("use", USES)
def test_weights_of_another_net(use: str) -> None:
    command = USES[use]
    refused(
        command.format(net="net", weights="other.npz"), "other.npz: none of its layers has the name of a layer", "net.prototxt"
    )
    said = ['InnerProduct layer "ip": blob 0 has shape (5, 320)', "wide.safetensors stores (7, 320) (net.prototxt:4)"]
    refused(command.format(net="net", weights="wide.safetensors"), *said)


@pytest.mark.parametrize("use", WRITES)
def test_places_that_cannot_be_written_to(use: str) -> None:
    command, name = WRITES[use]
    if name:
        refused(command.format("folder" if use != "to-torch" else "folder.py"), "folder")
        refused(command.format(f"nothing/{name}"), f"nothing/{name}: there is no folder")
        refused(command.format(f"text.png/{name}"), f"text.png/{name}: there is no folder")
    else:
        refused(command.format("text.png"), "--out text.png: this is a file; give the name of a folder")
        refused(command.format("text.png/out"), "text.png is a file; give the name of a folder")


@pytest.mark.skipif(not Path("/sys/kernel").is_dir(), reason="there is no /sys here")
@pytest.mark.parametrize("use", WRITES)
def test_a_folder_in_which_nobody_may_write(use: str) -> None:
    """Not even root may there."""
    command, name = WRITES[use]
    place = f"/sys/kernel/{name or 'out'}"
    said = refused(command.format(place), place).stderr.lower()
    assert any(why in said for why in ("permission denied", "not permitted", "read-only file system"))
    assert not os.path.exists(place)


@contextmanager
def full_disk() -> Iterator[None]:
    """In the block, writing more than a little into any file fails: not for longer, for pytest may write into one too."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (60, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("use", WRITES)
def test_a_disk_that_is_full(use: str) -> None:
    """The message names the file, not its draft."""
    command, name = WRITES[use]
    before = {name for name, content in contents().items() if content is not None}
    with full_disk():
        ran = CliRunner().invoke(main, shlex.split(command.format(name or "out")))
    (line,) = (line for line in ran.stderr.splitlines() if not line.startswith("Preprocessing: "))
    assert re.fullmatch(r"minicaffe: (\w\S*): cannot be written: .*File too large.*", line), line
    written = line.split(": ")[1]
    assert Path(written).name in (name, "p.caffemodel", "model.safetensors", "a.npz")
    assert "." not in Path(written).stem
    assert {name for name, content in contents().items() if content is not None} == before
