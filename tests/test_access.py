"""Which files a prototxt may name: each way of naming one is tried from outside, through a link and after it was allowed."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from minicaffe import TEST, Net, allow_path, files, get_solver
from minicaffe.cli import main
from minicaffe.data.database import new_database
from minicaffe.data.image_bytes import encode_image
from minicaffe.errors import DataError, Error, LayerError
from minicaffe.files import granted
from minicaffe.formats.weights import write_binaryproto
from minicaffe.proto import caffe_pb2

PIXELS = np.arange(4 * 5 * 3, dtype=np.uint8).reshape(4, 5, 3)


@pytest.fixture(autouse=True)
def nothing_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_allowed", set())


@pytest.fixture
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the working directory."""
    folder = tmp_path / "inside"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """Return a folder next to the working directory, with one of everything that a prototxt can name."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "cat.png").write_bytes(encode_image(PIXELS, "png"))
    (folder / "list.txt").write_text(f"{folder}/cat.png 0\n")
    (folder / "windows.txt").write_text(f"# 0\n{folder}/cat.png\n3\n4\n5\n1\n1 0.9 0 0 3 2\n")
    write_binaryproto(folder / "mean.binaryproto", np.ones((1, 3, 4, 5), np.float32))
    write_binaryproto(folder / "square.binaryproto", np.ones((1, 1, 3, 3), np.float32))
    (folder / "labels.prototxt").write_text('item { name: "cat" label: 1 display_name: "cat" }')
    (folder / "sizes.txt").write_text("cat 4 5\n")
    (folder / "results").mkdir()
    return folder


def image_data(folder: Path, more: str = "") -> str:
    return (
        'layer { name: "d" type: "ImageData" top: "x" top: "l" image_data_param { source: "'
        + f'{folder}/list.txt" batch_size: 1 }} {more} }}'
    )


def lmdb_net(folder: Path) -> str:
    pytest.importorskip("lmdb", reason="the extra minicaffe[lmdb] is not installed")
    datum = caffe_pb2.Datum(channels=3, height=4, width=5, label=2, data=PIXELS.tobytes())
    if not (folder / "images_lmdb").exists():
        with new_database(str(folder / "images_lmdb"), "lmdb") as writer:
            writer.put(b"0", datum.SerializeToString())
    return (
        'layer { name: "d" type: "Data" top: "x" top: "l" data_param { backend: LMDB batch_size: 1 source: "'
        + f'{folder}/images_lmdb" }} }}'
    )


def hdf5_net(folder: Path) -> str:
    h5py = pytest.importorskip("h5py", reason="the extra minicaffe[hdf5] is not installed")
    with h5py.File(folder / "rows.h5", "w") as file:
        file["x"] = np.ones((2, 3))
    (folder / "files.txt").write_text(f"{folder}/rows.h5\n")
    return f'layer {{ name: "d" type: "HDF5Data" top: "x" hdf5_data_param {{ source: "{folder}/files.txt" batch_size: 1 }} }}'


def window_net(folder: Path) -> str:
    return (
        'layer { name: "d" type: "WindowData" top: "x" top: "l" transform_param { crop_size: 3 } window_data_param { '
        f'source: "{folder}/windows.txt" batch_size: 1 fg_fraction: 1 fg_threshold: 0.5 bg_threshold: 0.1 }} }}'
    )


def infogain_net(folder: Path) -> str:
    return (
        'input: "x" input_shape { dim: 2 dim: 3 } input: "l" input_shape { dim: 2 } layer { name: "d" type: "InfogainLoss" '
        f'bottom: "x" bottom: "l" top: "loss" infogain_loss_param {{ source: "{folder}/square.binaryproto" }} }}'
    )


def ssd_net(folder: Path, inner: str) -> str:
    return (
        'input: "loc" input_shape { dim: 1 dim: 8 } input: "conf" input_shape { dim: 1 dim: 4 } input: "prior" '
        'input_shape { dim: 1 dim: 2 dim: 8 } layer { name: "d" type: "DetectionOutput" bottom: "loc" bottom: "conf" '
        'bottom: "prior" top: "y" detection_output_param { num_classes: 2 nms_param { nms_threshold: 0.4 } '
        f"code_type: CENTER_SIZE keep_top_k: 5 confidence_threshold: 0.1 save_output_param {{ {inner} }} }} }}"
    )


def evaluate_net(folder: Path) -> str:
    return (
        'input: "a" input_shape { dim: 1 dim: 1 dim: 2 dim: 7 } input: "b" input_shape { dim: 1 dim: 1 dim: 2 dim: 8 } layer { '
        'name: "d" type: "DetectionEvaluate" bottom: "a" bottom: "b" top: "y" detection_evaluate_param { num_classes: 2 '
        f'name_size_file: "{folder}/sizes.txt" }} }}'
    )


def hdf5_output_net(folder: Path) -> str:
    pytest.importorskip("h5py", reason="the extra minicaffe[hdf5] is not installed")
    return (
        'input: "x" input_shape { dim: 2 dim: 3 } input: "l" input_shape { dim: 2 } layer { name: "d" type: "HDF5Output" '
        f'bottom: "x" bottom: "l" hdf5_output_param {{ file_name: "{folder}/new.h5" }} }}'
    )


WAYS = {
    "an image list": image_data,
    "an LMDB": lmdb_net,
    "a list of HDF5 files": hdf5_net,
    "a window file": window_net,
    "an infogain matrix": infogain_net,
    "sizes of images": evaluate_net,
    "a written HDF5 file": hdf5_output_net,
    "a results folder": lambda folder: ssd_net(
        folder,
        f'output_directory: "{folder}/results" output_format: "VOC" output_name_prefix: "c_" '
        f'label_map_file: "{folder}/labels.prototxt" name_size_file: "{folder}/sizes.txt"',
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_prototxt_names_no_file_elsewhere(way: str, inside: Path, outside: Path) -> None:
    net = inside / "net.prototxt"
    net.write_text(WAYS[way](outside))
    with pytest.raises(LayerError, match=rf'"d".*--allow {outside}.*minicaffe\.allow_path'):
        Net(net, TEST).forward()
    (inside / "link").symlink_to(outside)
    net.write_text(WAYS[way](inside / "link"))
    with pytest.raises(LayerError, match=rf"which is {outside}"):
        Net(net, TEST).forward()
    allow_path(outside)
    Net(net, TEST)


def test_what_an_allowed_list_names_is_looked_at_too(inside: Path, outside: Path) -> None:
    (inside / "list.txt").write_text(f"{outside}/cat.png 0\n")
    (inside / "net.prototxt").write_text(image_data(inside))
    with pytest.raises(LayerError, match=r'"d".*list\.txt:1.*cat\.png is not in the working directory'):
        Net(inside / "net.prototxt", TEST).forward()
    (inside / "list.txt").write_text("../outside/cat.png 0\n")
    with pytest.raises(LayerError, match=r"list\.txt:1: \.\./outside/cat\.png is not in"):
        Net(inside / "net.prototxt", TEST).forward()


def test_a_mean_file(inside: Path, outside: Path) -> None:
    (inside / "cat.png").write_bytes((outside / "cat.png").read_bytes())
    (inside / "list.txt").write_text(f"{inside}/cat.png 0\n")
    text = image_data(inside, f'transform_param {{ mean_file: "{outside}/mean.binaryproto" }}')
    (inside / "net.prototxt").write_text(text)
    with pytest.raises(LayerError, match=rf'"d".*mean_file.*--allow {outside}'):
        Net(inside / "net.prototxt", TEST)
    allow_path(outside / "mean.binaryproto")
    assert Net(inside / "net.prototxt", TEST).blobs["x"].shape == (1, 3, 4, 5)


def test_a_prefix_does_not_climb_out_of_its_folder(inside: Path, outside: Path) -> None:
    (inside / "labels.prototxt").write_bytes((outside / "labels.prototxt").read_bytes())
    (inside / "sizes.txt").write_bytes((outside / "sizes.txt").read_bytes())
    text = 'output_directory: "." output_format: "VOC" output_name_prefix: "../c" '
    (inside / "net.prototxt").write_text(
        ssd_net(inside, text + 'label_map_file: "labels.prototxt" name_size_file: "sizes.txt"')
    )
    with pytest.raises(LayerError, match="is not in the working directory"):
        Net(inside / "net.prototxt", TEST)


def test_a_database_whose_file_is_a_link(inside: Path, outside: Path) -> None:
    lmdb_net(outside)
    (inside / "images_lmdb").mkdir()
    (inside / "images_lmdb" / "data.mdb").symlink_to(outside / "images_lmdb" / "data.mdb")
    (inside / "net.prototxt").write_text(lmdb_net(inside))
    with pytest.raises(LayerError, match=rf"data\.mdb \(which is {outside}/images_lmdb/data\.mdb\)"):
        Net(inside / "net.prototxt", TEST)


def test_a_file_that_is_no_hdf5_is_not_overwritten(inside: Path) -> None:
    text = hdf5_output_net(inside)
    (inside / "new.h5").write_text("something else")
    (inside / "net.prototxt").write_text(text)
    with pytest.raises(LayerError, match=r'"d".*new\.h5.*not overwritten'):
        Net(inside / "net.prototxt", TEST)
    assert (inside / "new.h5").read_text() == "something else"


SOLVER = 'net: "{net}" base_lr: 0.1 lr_policy: "fixed" max_iter: 1 snapshot_after_train: true snapshot_prefix: "{prefix}"'
TRAINED = """
layer { name: "x" type: "DummyData" top: "x" top: "l" dummy_data_param { shape { dim: 2 dim: 3 } shape { dim: 2 dim: 4 } } }
layer { name: "f" type: "InnerProduct" bottom: "x" top: "y" inner_product_param { num_output: 4 } }
layer { name: "loss" type: "EuclideanLoss" bottom: "y" bottom: "l" }
"""


def test_a_solver_names_nets_and_snapshots_beside_it_or_in_the_working_directory(inside: Path, outside: Path) -> None:
    (outside / "net.prototxt").write_text(TRAINED)
    (inside / "solver.prototxt").write_text(SOLVER.format(net=outside / "net.prototxt", prefix="snap"))
    with pytest.raises(DataError, match=f"--allow {outside}"):
        get_solver(inside / "solver.prototxt")
    (outside / "solver.prototxt").write_text(SOLVER.format(net="net.prototxt", prefix=outside / "snap"))
    get_solver(outside / "solver.prototxt").solve()
    assert (outside / "snap_iter_1.caffemodel").exists()
    (inside / "net.prototxt").write_text(TRAINED)
    (inside / "solver.prototxt").write_text(SOLVER.format(net="net.prototxt", prefix=outside / "other"))
    with pytest.raises(DataError, match=f"--allow {outside}"):
        get_solver(inside / "solver.prototxt").solve()
    assert not list(outside.glob("other*"))


def test_a_solver_does_not_reach_the_root_by_a_relative_name(inside: Path) -> None:
    (inside / "solver.prototxt").write_text(SOLVER.format(net="etc/passwd", prefix="snap"))
    with pytest.raises(Error, match=r"/etc/passwd.* is not in the working directory"):
        get_solver(inside / "solver.prototxt")


def test_the_command_line_allows_what_it_names_and_forgets_it_at_its_end(inside: Path, outside: Path) -> None:
    (inside / "net.prototxt").write_text(image_data(outside))
    refused = CliRunner().invoke(main, ["summary", "net.prototxt"])
    assert refused.exit_code == 1
    assert f"--allow {outside}" in refused.output
    granted = CliRunner().invoke(main, ["summary", "net.prototxt", "--allow", str(outside)])
    assert granted.exit_code == 0, granted.output
    assert CliRunner().invoke(main, ["summary", "net.prototxt", f"--allow={outside}"]).exit_code == 0
    assert CliRunner().invoke(main, ["summary", "net.prototxt"]).exit_code == 1
    missing = CliRunner().invoke(main, ["summary", "net.prototxt", "--allow", str(outside / "nothing")])
    assert missing.exit_code == 2
    assert "does not exist" in missing.output


def test_a_named_folder_does_not_allow_one_whose_name_begins_alike(inside: Path, tmp_path: Path) -> None:
    (tmp_path / "inside2").mkdir()
    with pytest.raises(DataError):
        files.granted(tmp_path / "inside2" / "x")
    assert files.granted("x") == "x"
    assert files.granted(inside / "deep" / "x") == os.fspath(inside / "deep" / "x")


def test_a_name_that_no_file_can_have(inside: Path) -> None:
    with pytest.raises(DataError, match=r"^a{200}: File name too long$"):
        granted("a" * 5000)
    Path("a").symlink_to("b")
    Path("b").symlink_to("a")
    with pytest.raises(DataError, match=r"^a: Too many levels of symbolic links$"):
        granted("a")


def test_a_command_that_ends_at_its_options_keeps_nothing_allowed(outside: Path) -> None:
    ended = CliRunner().invoke(main, ["--install-completion", "none", str(outside)])
    assert ended.exit_code == 2 and ended.exc_info  # its frames hold click's context
    assert not files._allowed
