"""Names in annotations, states and result files lead nowhere but where a prototxt may lead; a NUL in a name is an Error."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from PIL import Image

from minicaffe import TEST, TRAIN, Net, files, get_solver
from minicaffe.cli import main
from minicaffe.data.roidb import load_roidb
from minicaffe.errors import DataError, LayerError
from minicaffe.training.snapshots import latest

NET = """
layer { name: "x" type: "DummyData" top: "x" dummy_data_param { shape { dim: 2 dim: 3 } data_filler { value: 1 } } }
layer { name: "f" type: "InnerProduct" bottom: "x" top: "f" inner_product_param { num_output: 4 } }
layer { name: "l" type: "EuclideanLoss" bottom: "f" bottom: "f" top: "l" }
"""
SOLVER = 'net: "net.prototxt" base_lr: 0.1 lr_policy: "fixed" snapshot_prefix: "PREFIX" max_iter: 2'


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder beside the working directory, in which a solver trained."""
    monkeypatch.setattr(files, "_allowed", set())
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    monkeypatch.chdir(inside)
    Path("net.prototxt").write_text(NET)
    Path("solver.prototxt").write_text(SOLVER.replace("PREFIX", "snap"))
    return outside


@pytest.mark.parametrize("name", ["../outside/cat.jpg", "/etc/passwd", "link.jpg"])
def test_annotations_name_images_in_their_folder_only(outside: Path, name: str) -> None:
    (outside / "cat.jpg").write_bytes(b"")
    Path("link.jpg").symlink_to(outside / "cat.jpg")
    ours = {"classes": ["cat"], "images": [{"image": name, "boxes": [[0, 0, 2, 3]], "classes": ["cat"]}]}
    coco = {
        "categories": [{"id": 1, "name": "cat"}],
        "images": [{"id": 3, "file_name": name, "width": 4, "height": 5}],
        "annotations": [{"image_id": 3, "category_id": 1, "bbox": [0, 0, 2, 3]}],
    }
    for content in (ours, coco):
        Path("roidb.json").write_text(json.dumps(content))
        with pytest.raises(DataError, match=r"is not in the working directory .*, and annotations may name files"):
            load_roidb("roidb.json")
    files.allow_path(outside)
    files.allow_path("/etc")
    assert len(load_roidb("roidb.json")[0]) == 1


@pytest.mark.parametrize(
    ("name", "wrong"), [("/etc/passwd", "/etc/passwd is not in"), ("a\0.jpg", r"a\x00.jpg' is not a file")]
)
def test_an_image_that_annotations_may_not_name_is_reported_with_its_place(outside: Path, name: str, wrong: str) -> None:
    """The first image is fine, so that its folder has been checked."""
    ours = [{"image": one, "boxes": [], "classes": []} for one in ("a.jpg", name)]
    coco = {
        "categories": [],
        "images": [{"id": i, "file_name": one, "width": 4, "height": 5} for i, one in enumerate(("a.jpg", name))],
        "annotations": [],
    }
    texts = {
        "ours.json": (json.dumps(ours), "images[1]"),
        "coco.json": (json.dumps(coco), "images[1]"),
        "boxes.csv": (f"image,xmin,ymin,xmax,ymax,class\na.jpg,,,,,\n{name},,,,,\n", "3"),
    }
    for file, (text, place) in texts.items():
        Path(file).write_text(text)
        with pytest.raises(DataError) as found:
            load_roidb(file, classes=["cat"])
        reason = "line contains NUL" if file == "boxes.csv" and "\0" in name and sys.version_info < (3, 11) else wrong
        assert str(found.value).startswith(f"{file}:{' ' * place.startswith('i')}{place}: ") and reason in str(found.value)


def test_a_list_of_voc_names_annotations_in_its_folder_only(outside: Path) -> None:
    (outside / "cat.xml").write_text("<annotation/>")
    for folder in ("Annotations", "JPEGImages", "ImageSets/Main"):
        (Path("voc") / folder).mkdir(parents=True)
    Path("voc/ImageSets/Main/trainval.txt").write_text("../../../outside/cat\n")
    with pytest.raises(DataError, match=r"^voc/ImageSets/Main/trainval\.txt:1: .* is not in the working directory"):
        load_roidb("voc")


def test_the_images_of_xml_files_are_in_their_dataset_only(outside: Path) -> None:
    """A link leads to no other folder; the folder that the caller names may lie anywhere."""
    for folder in ("images", "set/xml"):
        (outside / folder).mkdir(parents=True)
    (outside / "images/cat.jpg").write_bytes(b"")
    (outside / "set/xml/cat.xml").write_text("<annotation/>")
    (outside / "set/images").symlink_to(outside / "images")
    with pytest.raises(DataError, match=r"cat\.jpg.* is not in the working directory"):
        load_roidb(outside / "set/xml")
    (outside / "set/images").unlink()
    (outside / "images").rename(outside / "set/images")
    assert len(load_roidb(outside / "set/xml")[0]) == 1


def test_the_entities_of_an_annotation_are_not_read(outside: Path) -> None:
    (outside / "secret").write_text("cat")
    for folder in ("Annotations", "JPEGImages", "ImageSets/Main"):
        (Path("voc") / folder).mkdir(parents=True)
    Path("voc/ImageSets/Main/trainval.txt").write_text("a\n")
    for entity in (
        f'<!ENTITY e SYSTEM "file://{outside}/secret">',
        '<!ENTITY a "bbbbbbbb">' + "".join(f'<!ENTITY {name} "{f"&{of};" * 100}">' for name, of in zip("bcdefe", "abcdef")),
    ):
        text = f"<!DOCTYPE x [{entity}]><annotation><object><name>&e;</name></object></annotation>"
        Path("voc/Annotations/a.xml").write_text(text)
        with pytest.raises(DataError, match=r"a\.xml: cannot read the annotation"):
            load_roidb("voc")


def test_the_latest_snapshot_takes_no_weights_from_elsewhere(outside: Path) -> None:
    solver = get_solver("solver.prototxt")
    solver.step(1)
    solver.param.snapshot_prefix = str(outside / "other")
    files.allow_path(outside)
    solver.snapshot()
    (outside / "other_iter_1.solverstate").rename("snap_iter_1.solverstate")
    assert latest("snap") == Path("snap_iter_1.solverstate")
    files._allowed.clear()
    assert latest("snap") is None
    assert latest("snap", outside) == Path("snap_iter_1.solverstate")


def test_the_latest_snapshot_is_not_sought_elsewhere(outside: Path) -> None:
    Path("solver.prototxt").write_text(SOLVER.replace("PREFIX", f"{outside}/snap"))
    found = CliRunner().invoke(main, ["train", "solver.prototxt", "--snapshot", "latest"])
    assert found.exit_code == 1 and "is not in the working directory" in found.output


@pytest.mark.parametrize("kind", ["caffemodel", "solverstate"])
def test_a_snapshot_follows_no_link_to_elsewhere(outside: Path, kind: str) -> None:
    Path(f"snap_iter_0.{kind}").symlink_to(outside / "new")
    with pytest.raises(DataError, match=r"snap_iter_0.* \(which is .*/outside/new\) is not in the working directory"):
        get_solver("solver.prototxt").snapshot()
    assert not list(outside.iterdir())


def test_detections_follow_no_link_to_elsewhere(outside: Path) -> None:
    Path("labels.prototxt").write_text('item { name: "none" label: 0 } item { name: "cat" label: 1 }')
    Path("sizes.txt").write_text("a 60 80\nb 60 80\n")
    shapes = {"loc": (2, 4), "conf": (2, 2), "prior": (1, 2, 4)}
    text = "".join(
        f'layer {{ name: "{name}" type: "DummyData" top: "{name}" dummy_data_param {{ shape {{'
        + "".join(f" dim: {n}" for n in shape)
        + " } data_filler { value: 0.9 } } }\n"
        for name, shape in shapes.items()
    )
    text += """layer { name: "out" type: "DetectionOutput" bottom: "loc" bottom: "conf" bottom: "prior" top: "out"
    detection_output_param { num_classes: 2 save_output_param { output_directory: "found" output_format: "VOC"
    label_map_file: "labels.prototxt" name_size_file: "sizes.txt" } } }"""
    Path("detect.prototxt").write_text(text)
    Path("found").mkdir()
    Path("found/cat.txt").symlink_to(outside / "new")
    with pytest.raises(LayerError, match="is not in the working directory"):
        Net("detect.prototxt", TEST)
    Path("found/cat.txt").unlink()
    net = Net("detect.prototxt", TEST)
    Path("found/cat.txt").symlink_to(outside / "new")
    with pytest.raises(LayerError, match="is not in the working directory"):
        net.forward()
    assert not list(outside.iterdir())


def test_a_nul_in_a_name(outside: Path) -> None:
    Path("data.prototxt").write_text(
        'layer { name: "d" type: "HDF5Data" top: "x" hdf5_data_param { source: "a\\000b" batch_size: 2 } }'
    )
    with pytest.raises(LayerError, match=r"a\\x00b' is not a file's name"):
        Net("data.prototxt", TEST)


LINE = "I1121 03:09:40.283104  2001 solver.cpp:1]"
LOG = f"{LINE} Iteration 0, loss = 1\n{LINE}     Train net output #0: l = 1\n"
IMAGE = """
input: "data" input_shape { dim: 1 dim: 3 dim: 3 dim: 4 }
layer { name: "prob" type: "Softmax" bottom: "data" top: "prob" }
"""
DEPLOY = """
input: "x" input_shape { dim: 2 dim: 3 }
layer { name: "f" type: "InnerProduct" bottom: "x" top: "f" inner_product_param { num_output: 4 } }
"""


HDF5 = NET + 'layer { name: "h" type: "HDF5Output" bottom: "f" bottom: "f" hdf5_output_param { file_name: "rows.h5" } }'
CHOSEN = {
    "film/film.json": "train solver.prototxt --film film --every 1",
    "film/film.html": "train solver.prototxt --film film --every 1",
    "./film/film.html": "film film",
    "weights.caffemodel.npz": "dump weights.caffemodel",
    "parsed/train.log.train": "parse-log train.log parsed",
    "model.safetensors": "to-torch deploy.prototxt weights.caffemodel -o model.py",
    "drawn/photo.png": "detect net.prototxt weights.caffemodel photo.png --draw drawn",
    "./drawn/photo.png": "classify image.prototxt image.caffemodel photo.png --draw drawn",
    "drawn/photo_mask.png": "segment image.prototxt image.caffemodel photo.png --out drawn",
    "drawn/photo_pose.png": "pose net.prototxt weights.caffemodel photo.png --out drawn",
    "drawn/photo.npz": "features net.prototxt weights.caffemodel photo.png --format npz --out drawn",
    "trace.html": "trace deploy.prototxt weights.caffemodel",
    "rest.prototxt": "cut net.prototxt weights.caffemodel --drop-head -o part.prototxt part.caffemodel",
    "page/index.html": "live deploy.prototxt weights.caffemodel --static page",
    "snap_iter_2.caffemodel": "train solver.prototxt",
    "snap_iter_2.solverstate": "train solver.prototxt",
    "rows.h5": "run hdf5.prototxt --phase TRAIN",
    "share/bash-completion/completions/minicaffe": "--install-completion bash",
}
"""The name that a command, or a file that it reads, chooses for an output, and the command."""


@pytest.mark.slow
@pytest.mark.parametrize("leads_to", ["kept", "new"])
@pytest.mark.parametrize("name", CHOSEN)
def test_no_name_that_a_command_or_a_file_chose_leads_through_a_link(
    outside: Path, name: str, leads_to: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also within the working directory, where a file may name others."""
    Image.new("RGB", (4, 3)).save("photo.png")
    Net("net.prototxt", TRAIN).save("weights.caffemodel")
    Path("train.log").write_text(LOG)
    Path("deploy.prototxt").write_text(DEPLOY)
    Path("image.prototxt").write_text(IMAGE)
    Net("image.prototxt", TEST).save("image.caffemodel")
    Path("hdf5.prototxt").write_text(HDF5)
    monkeypatch.setenv("XDG_DATA_HOME", "share")
    if CHOSEN[name].startswith("film"):
        CliRunner().invoke(main, ["train", "solver.prototxt", "--film", "film", "--every", "1"])
    Path("kept").write_text("kept")
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).unlink(missing_ok=True)
    Path(name).symlink_to(Path(leads_to).absolute())
    found = CliRunner().invoke(main, CHOSEN[name].split())
    assert found.exit_code in (1, 2)
    assert f"{Path(name)}: this is a link, and only an output that you name" in found.output
    assert Path("kept").read_text() == "kept" and not Path("new").exists()
