"""convert-annoset: what it stores, and that AnnotatedData reads from it what it reads from the annotations."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from batches import batches, image, net_of, same
from click.testing import CliRunner, Result
from PIL import Image

from minicaffe.cli import main
from minicaffe.data.annotated import parse_annotated
from minicaffe.data.database import datum_array, open_database
from minicaffe.data.roidb import load_roidb
from minicaffe.layers.ssd.annotated_data import AnnotatedData
from minicaffe.layers.ssd.detection_files import read_label_map

pytest.importorskip("lmdb", reason="the extra minicaffe[lmdb] is not installed")

SIZES = [(20, 30), (24, 16), (18, 18)]


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(a) for a in arguments])


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with COCO's annotations of three images: a colour JPEG, a turned JPEG and a grey PNG."""
    monkeypatch.chdir(tmp_path)
    names = ["a.jpg", "b.jpeg", "c.png"]
    pictures = [Image.fromarray(image(i, *size)) for i, size in enumerate(SIZES)]
    exif = Image.Exif()
    exif[0x0112] = 6
    pictures[0].save(names[0])
    pictures[1].transpose(Image.Transpose.ROTATE_90).save(names[1], exif=exif)
    pictures[2].convert("L").save(names[2])
    images = [{"id": i, "file_name": names[i], "height": h, "width": w} for i, (h, w) in enumerate(SIZES)]
    boxes = [(0, 3, [1, 2, 8, 9], 0), (0, 7, [2.5, 3, 10, 4], 0), (0, 3, [5, 5, 6, 6], 1), (2, 7, [0, 0, 18, 18], 0)]
    annotations = [{"id": i, "image_id": n, "category_id": k, "bbox": b, "iscrowd": c} for i, (n, k, b, c) in enumerate(boxes)]
    categories = [{"id": 3, "name": "cat"}, {"id": 7, "name": "dog"}]
    Path("coco.json").write_text(json.dumps({"images": images, "categories": categories, "annotations": annotations}))
    return tmp_path


def items(path: str = "db", backend: str = "lmdb") -> list[tuple[str, np.ndarray, list[list[float]]]]:
    """Keys, images and boxes of a database."""
    found = []
    for key, value in open_database(path, backend).items():
        datum, rows = parse_annotated(value, path)
        assert datum.encoded
        found.append((key.decode(), datum_array(datum, path), rows.tolist()))
    return found


def test_keys_images_and_boxes() -> None:
    result = run("convert-annoset", "coco.json", "db")
    assert result.exit_code == 0 and result.stdout == "db: 3 images, 4 boxes\n", result.output
    stored = items()
    assert [key for key, *_ in stored] == ["00000000_a.jpg", "00000001_b.jpeg", "00000002_c.png"]
    assert [array.shape for _, array, _ in stored] == [(3, *size) for size in SIZES]
    expected = [[1, 0, 1 / 30, 2 / 20, 9 / 30, 11 / 20, 0], [1, 1, 5 / 30, 5 / 20, 11 / 30, 11 / 20, 1]]
    expected += [[2, 0, 2.5 / 30, 3 / 20, 12.5 / 30, 7 / 20, 0]]
    np.testing.assert_array_equal(stored[0][2], np.array(expected, np.float32))
    assert [len(rows) for *_, rows in stored] == [3, 0, 1]
    datum, _ = parse_annotated(next(open_database("db", "lmdb").items())[1], "db")
    assert datum.data == Path("a.jpg").read_bytes() and datum.label == -1


@pytest.mark.parametrize("flags", [[], ["--encode-type", "png"]])
def test_a_database_gives_the_batches_of_its_annotations(flags: list[str]) -> None:
    if not flags:  # a turned JPEG is encoded anew, with losses
        Image.fromarray(image(1, *SIZES[1])).save("b.jpeg")
    assert run("convert-annoset", "coco.json", "db", *flags).exit_code == 0
    source = (
        'layer { name: "in" type: "AnnotatedData" top: "data" top: "label" data_param { source: "%s" backend: LMDB '
        "batch_size: 3 } transform_param { mean_value: 99 resize_param { height: 12 width: 10 } } }"
    )
    net = net_of(source % "gone")
    layer = net.layers[0]
    assert isinstance(layer, AnnotatedData)
    layer.set_roidb(*load_roidb("coco.json"))
    assert same(batches(net, 4), batches(net_of(source % "db"), 4))


def test_missing_images() -> None:
    Path("b.jpeg").unlink()
    result = run("convert-annoset", "coco.json", "db")
    ways = "(--images gives another folder, --skip-unreadable leaves them out)"
    assert result.exit_code == 1 and f"coco.json: images missing: 1 of 3; . has no b.jpeg {ways}\n" in result.stderr
    result = run("convert-annoset", "coco.json", "db", "--skip-unreadable")
    assert result.exit_code == 0 and result.stdout == "db: 2 images, 4 boxes, 1 left out\n", result.output
    Path("empty").mkdir()
    result = run("convert-annoset", "coco.json", "db2", "--skip-unreadable", "--images", "empty")
    assert "images missing: 3 of 3; empty has no a.jpg (--images gives another folder)\n" in result.stderr


def test_leveldb_holds_the_same() -> None:
    pytest.importorskip("plyvel", reason="the extra minicaffe[leveldb] is not installed")
    for backend in ("lmdb", "leveldb"):
        assert run("convert-annoset", "coco.json", backend, "--backend", backend).exit_code == 0
    assert str(items("lmdb")) == str(items("leveldb", "leveldb"))


@pytest.mark.parametrize(
    ("flags", "shapes"),
    [
        (["--gray", "--resize-width", 6, "--resize-height", 5], [(1, 5, 6)] * 3),
        (["-gray", "-resize_width=6", "-resize_height=5", "-shuffle"], [(1, 5, 6)] * 3),
        (["--min-dim", 18], [(3, 20, 30), (3, 27, 18), (3, 18, 18)]),
        (["--min-dim", 40, "--max-dim", 45], [(3, 30, 45), (3, 45, 30), (3, 40, 40)]),
        (["--max-dim", 15], [(3, 10, 15), (3, 15, 10), (3, 15, 15)]),
    ],
)
def test_sizes(flags: list[object], shapes: list[tuple[int, ...]]) -> None:
    assert run("convert-annoset", "coco.json", "db", *flags).exit_code == 0
    assert [array.shape for _, array, _ in items()] == shapes


def test_shuffle_with_a_seed() -> None:
    for name, seed in (("one", 1), ("same", 1), ("other", 2)):
        assert run("convert-annoset", "coco.json", name, "--shuffle", "--seed", seed).exit_code == 0
    one, again, other = ([key[9:] for key, *_ in items(name)] for name in ("one", "same", "other"))
    assert one == again != other and sorted(one) == ["a.jpg", "b.jpeg", "c.png"]


def test_label_maps() -> None:
    Path("map.txt").write_text('item { name: "dog" label: 5 } item { name: "cat" label: 9 }')
    flags = ["--label-map", "map.txt", "--label-map-out", "written.prototxt"]
    result = run("convert-annoset", "coco.json", "db", *flags)
    assert result.exit_code == 0 and "written: written.prototxt" in result.stdout
    assert [row[0] for row in items()[0][2]] == [9, 9, 5]
    assert {label: item.name for label, item in read_label_map("written.prototxt").items()} == {
        0: "none_of_the_above", 9: "cat", 5: "dog",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--check-size"], "b.jpeg is not of the size of a.jpg"),
        (["--resize-width", 3], "--resize-width and --resize-height go together"),
        (["--resize-width", 3, "--resize-height", 3, "--max-dim", 4], "give one of them"),
        (["--encode-type", "xyz"], 'a.jpg: cannot encode images as "xyz"'),
        (["--label-map", "absent"], "absent"),
    ],
)
def test_errors_leave_nothing(flags: list[object], message: str) -> None:
    result = run("convert-annoset", "coco.json", "db", *flags)
    assert result.exit_code == 1 and message in result.stderr
    assert not Path("db").exists() and not list(Path().glob(".db*"))


def test_unreadable_images() -> None:
    Path("b.jpeg").write_bytes(Path("b.jpeg").read_bytes()[:300])
    result = run("convert-annoset", "coco.json", "db")
    assert result.exit_code == 1 and "b.jpeg: cannot read the image" in result.stderr
    result = run("convert-annoset", "coco.json", "db", "--skip-unreadable")
    assert result.exit_code == 0 and result.stdout == "db: 2 images, 4 boxes, 1 left out\n"
