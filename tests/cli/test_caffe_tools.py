"""convert-imageset, compute-image-mean, extract-features: what they store, that layers read it, that nothing is half done."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from batches import batches, image, net_of, save_images
from click.testing import CliRunner, Result
from PIL import Image

import minicaffe.cli.caffe_tools
from minicaffe import TEST, Net, files, set_random_seed
from minicaffe.cli import main
from minicaffe.cli.pictures import concurrent_batches
from minicaffe.cuda.device import current
from minicaffe.data.database import datum_array, open_database, parse_datum
from minicaffe.formats.weights import read_binaryproto
from minicaffe.mode import gpu_mode
from minicaffe.scaling.in_flight import CAN_FORK

pytest.importorskip("lmdb", reason="the extra minicaffe[lmdb] is not installed")


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(a) for a in arguments])


def items(path: str, backend: str = "lmdb") -> list[tuple[str, np.ndarray, int]]:
    """Keys, arrays and labels of a database."""
    found = []
    for key, value in open_database(path, backend).items():
        datum = parse_datum(value, path)
        found.append((key.decode(), datum_array(datum, path), datum.label))
    return found


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with four images and their list."""
    monkeypatch.chdir(tmp_path)
    names = save_images(tmp_path / "images", 4)
    (tmp_path / "list.txt").write_text("".join(f"{name} {7 - i}\n" for i, name in enumerate(names)))
    return tmp_path


def test_pixels_keys_and_labels() -> None:
    result = run("convert-imageset", "images", "list.txt", "db")
    assert result.exit_code == 0, result.output
    assert result.stdout == "db: 4 images\n"
    stored = items("db")
    assert [(key, label) for key, _, label in stored] == [(f"{i:08d}_im{i}.png", 7 - i) for i in range(4)]
    for i, (_, array, _) in enumerate(stored):
        np.testing.assert_array_equal(array, image(i)[:, :, ::-1].transpose(2, 0, 1))


def test_leveldb_holds_the_same() -> None:
    pytest.importorskip("plyvel", reason="the extra minicaffe[leveldb] is not installed")
    for backend in ("lmdb", "leveldb"):
        assert run("convert-imageset", "images", "list.txt", backend, "--backend", backend).exit_code == 0
    assert str(items("lmdb")) == str(items("leveldb", "leveldb"))


@pytest.mark.parametrize(
    "flags",
    [
        ["--gray", "--resize-width", "6", "--resize-height", "3", "--shuffle"],
        ["-gray", "-resize_width=6", "--resize_height=3", "-shuffle=true", "-backend", "lmdb", "-encoded=false"],
    ],
)
def test_options_and_the_old_spellings(flags: list[str]) -> None:
    assert run("convert-imageset", *flags, "images/", "list.txt", "db").exit_code == 0
    stored = items("db")
    assert {array.shape for _, array, _ in stored} == {(1, 3, 6)}
    assert sorted(label for *_, label in stored) == [4, 5, 6, 7]
    assert [label for *_, label in stored] != [7, 6, 5, 4]


@pytest.mark.parametrize("flags", [["--encoded"], ["--encoded", "--encode-type", "png"], ["--encode-type", "jpg"]])
def test_encoded(flags: list[str]) -> None:
    assert run("convert-imageset", "images", "list.txt", "db", *flags).exit_code == 0
    values = [value for _, value in open_database("db", "lmdb").items()]
    files = [parse_datum(value, "db") for value in values]
    assert all(datum.encoded for datum in files)
    same = files[0].data == Path("images/im0.png").read_bytes()
    assert same == ("jpg" not in flags)
    assert items("db")[1][1].shape == (3, 5, 7)


def test_encoded_anew_where_size_or_colour_differ() -> None:
    flags = ["--encoded", "--gray", "--resize-width", "8", "--resize-height", "6"]
    assert run("convert-imageset", "images", "list.txt", "db", *flags).exit_code == 0
    assert {array.shape for _, array, _ in items("db")} == {(1, 6, 8)}


@pytest.mark.parametrize(
    ("line", "flags", "message"),
    [
        ("absent.png 1", [], "list.txt:5: images/absent.png: no such file"),
        ("bad.png 1", [], "list.txt:5: images/bad.png: cannot read the image: not an image, or damaged"),
        ("im0.png", [], 'list.txt:5: "im0.png" has no label'),
        ("im0.png x", [], 'list.txt:5: the label "x" is not a whole number'),
        ("im0.png 99999999999", [], "list.txt:5: the label 99999999999 is not in [-2147483648, 2147483647]"),
        ("im0.png -9", ["--resize-width", "65536", "--resize-height", "32768"], "list.txt:1: an image resized to 65536 x"),
        ("tall.png 1", ["--check-size"], "list.txt:5: tall.png is not of the size of im0.png"),
        ("./" * 252 + "im0.png 1", [], 'an LMDB takes keys of 1 to 511 bytes, but "00000004_./'),
        ("im0.png 1", ["--resize-width", "3"], "--resize-width and --resize-height go together"),
        ("im0.png 1", ["--encode-type", "xyz"], 'list.txt:1: images/im0.png: cannot encode images as "xyz"'),
    ],
)
def test_errors_leave_no_database(folder: Path, line: str, flags: list[str], message: str) -> None:
    (folder / "images" / "bad.png").write_bytes(b"no picture")
    Image.fromarray(image(0, 9)).save("images/tall.png")
    with open("list.txt", "a") as file:
        file.write(line + "\n")
    before = set(folder.iterdir())
    result = run("convert-imageset", "images", "list.txt", "db", *flags)
    assert result.exit_code == 1
    assert message in result.output
    assert set(folder.iterdir()) == before


@pytest.mark.parametrize("flags", [[], ["--encoded"]])
@pytest.mark.parametrize("name", ["../../secret/im0.png", "link.png"])
def test_images_elsewhere_are_read_where_that_is_allowed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, flags: list[str], name: str
) -> None:
    monkeypatch.setattr(files, "_allowed", set())
    save_images(folder / "secret", 1)
    (folder / "images" / "link.png").symlink_to(folder / "secret" / "im0.png")
    (folder / "work").mkdir()
    monkeypatch.chdir(folder / "work")
    (folder / "images").rename("images")
    Path("list.txt").write_text(f"im1.png 3\n{name} 1\n")
    result = run("convert-imageset", "images", "list.txt", "db", *flags)
    assert result.exit_code == 1
    assert f"list.txt:2: images/{name}" in result.output and "is not in the working directory" in result.output
    assert not Path("db").exists()
    result = run("convert-imageset", "images", "list.txt", "db", *flags, "--allow", folder / "secret")
    assert result.exit_code == 0, result.output
    assert len(items("db")) == 2


def test_the_root_folder_may_lie_anywhere(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_allowed", set())
    (folder / "work").mkdir()
    monkeypatch.chdir(folder / "work")
    for i, root in enumerate((folder / "images", "../images/")):
        assert run("convert-imageset", root, "../list.txt", f"db{i}").exit_code == 0


def test_an_interrupted_run_leaves_no_database(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Path] = []

    def interrupted(*arguments: object) -> None:
        seen.extend(path for path in folder.iterdir() if path.name.startswith(".db."))
        raise KeyboardInterrupt

    monkeypatch.setattr(minicaffe.cli.caffe_tools, "image_datum", interrupted)
    before = set(folder.iterdir())
    assert run("convert-imageset", "images", "list.txt", "db").exit_code != 0
    assert seen
    assert set(folder.iterdir()) == before


def test_unreadable_images_can_be_left_out() -> None:
    Path("images/im1.png").write_bytes(b"no picture")
    result = run("convert-imageset", "images", "list.txt", "db", "--skip-unreadable")
    assert result.exit_code == 0
    assert "list.txt:2: left out: images/im1.png" in result.stderr
    assert result.stdout == "db: 3 images, 1 left out\n"
    assert [label for *_, label in items("db")] == [7, 5, 4]


def test_an_existing_database_is_kept() -> None:
    for code in (0, 1):
        result = run("convert-imageset", "images", "list.txt", "db")
        assert result.exit_code == code
    assert "db exists already" in result.output
    assert len(items("db")) == 4


@pytest.mark.slow
def test_a_database_grows_beyond_its_first_size(monkeypatch: pytest.MonkeyPatch) -> None:
    from minicaffe.data.database import new_database

    with new_database("large", "lmdb") as database:
        for i in range(2300):
            database.put(f"{i:08d}".encode(), bytes([i % 256]) * 40_000)
    stored = list(open_database("large", "lmdb").items())
    assert len(stored) == 2300
    assert stored[2222][1][:1] == bytes([2222 % 256])


def test_mean_is_the_pixels_mean_and_fits_mean_file() -> None:
    run("convert-imageset", "images", "list.txt", "db", "--encoded")
    result = run("compute_image_mean", "-backend=lmdb", "db", "mean.binaryproto")
    assert result.exit_code == 0, result.output
    expected = np.mean([image(i)[:, :, ::-1] for i in range(4)], axis=0).transpose(2, 0, 1)
    np.testing.assert_allclose(read_binaryproto("mean.binaryproto"), expected[None], rtol=1e-6)
    assert f"mean_value channel [2]: {expected[2].mean():.6g}" in result.output
    net = net_of(
        'layer { name: "in" type: "Data" top: "x" transform_param { mean_file: "mean.binaryproto" }\n'
        'data_param { source: "db" backend: LMDB batch_size: 4 } }'
    )
    ((x,),) = batches(net, 1)
    np.testing.assert_allclose(x.mean(axis=0), 0, atol=1e-4)


@pytest.mark.parametrize(
    ("db", "message"),
    [("none", "none: no such database"), ("mixed", 'mixed, key "00000004_tall.png": its shape is (3, 9, 7)')],
)
def test_mean_errors(db: str, message: str) -> None:
    Image.fromarray(image(0, 9)).save("images/tall.png")
    with open("list.txt", "a") as file:
        file.write("tall.png 1\n")
    run("convert-imageset", "images", "list.txt", "mixed")
    result = run("compute-image-mean", db)
    assert result.exit_code == 1
    assert message in result.output


NET = """
layer { name: "in" type: "Data" top: "x" data_param { source: "db" backend: LMDB batch_size: 2 } }
layer { name: "ip" type: "InnerProduct" bottom: "x" top: "y"
  inner_product_param { num_output: 5 weight_filler { type: "xavier" } } }
layer { name: "pool" type: "Pooling" bottom: "x" top: "p" pooling_param { kernel_size: 2 stride: 2 } }
"""


@pytest.mark.parametrize("count", [1, 2])
def test_features_are_the_blobs(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Of the input, too; with two threads, two batches are computed at once."""
    chosen = []

    def at_once(net: Net, batches: int) -> tuple[int, int]:
        chosen.append(concurrent_batches(net, batches))
        return chosen[-1]

    monkeypatch.setattr("minicaffe.cli.caffe_tools.concurrent_batches", at_once)
    run("convert-imageset", "images", "list.txt", "db")
    Path("net.prototxt").write_text(NET)
    set_random_seed(4)
    net = Net("net.prototxt", TEST)
    net.save("net.caffemodel")
    given = ["y,p,x,y", "y_db,p_db,x_db,again", 5, "lmdb", "CPU", "--threads", count]
    result = run("extract_features", "net.caffemodel", "net.prototxt", *given)
    assert result.exit_code == 0, result.output
    assert chosen == [(2, 1) if count == 2 and CAN_FORK else (1, 0)]
    taken = [{name: array.copy() for name, array in net.forward(blobs=["x"]).items()} for _ in range(5)]
    shapes = {"y_db": (5, 1, 1), "p_db": (3, 3, 4), "x_db": (3, 5, 7), "again": (5, 1, 1)}
    for (path, shape), name in zip(shapes.items(), "ypxy", strict=True):
        stored = items(path)
        assert [key for key, *_ in stored] == [f"{i:010d}" for i in range(10)]
        expected = np.concatenate([batch[name] for batch in taken]).reshape(10, *shape)
        np.testing.assert_array_equal([array for _, array, _ in stored], expected)


@pytest.mark.parametrize("count", [1, 2])
def test_features_of_images_one_of_which_is_damaged(count: int) -> None:
    """Nothing is stored, as with one batch after the other."""
    Path("some.txt").write_text("im0.png 4\nbroken.png 5\n")
    Path("images/broken.png").write_bytes(b"no picture")
    data = 'name: "in" type: "ImageData" top: "x" top: "l" image_data_param { source: "some.txt" root_folder: "images/" }'
    Path("net.prototxt").write_text("layer { " + data + ' } layer { name: "r" type: "ReLU" bottom: "x" top: "y" }')
    Net("net.prototxt", TEST).save("net.caffemodel")
    result = run("extract-features", "net.caffemodel", "net.prototxt", "y", "y_db", 6, "--threads", count)
    assert result.exit_code == 1
    assert 'ImageData layer "in": some.txt:2: images/broken.png: cannot read the image' in result.output
    assert not Path("y_db").exists()


@pytest.mark.gpu
def test_features_on_a_gpu() -> None:
    run("convert-imageset", "images", "list.txt", "db")
    Path("net.prototxt").write_text(NET)
    Net("net.prototxt", TEST).save("net.caffemodel")
    for path, device in (("cpu_db", ["CPU"]), ("gpu_db", ["GPU", "0"]), ("first_db", ["GPU"])):
        transfers = current().transfers
        transfers.reset()
        result = run("extract_features", "net.caffemodel", "net.prototxt", "y", path, 2, "lmdb", *device)
        assert result.exit_code == 0, result.output
        assert (transfers.to_device > 0) == (path != "cpu_db")
        assert not gpu_mode()
        for (key, found, _), (other, expected, _) in zip(items(path), items("cpu_db"), strict=True):
            assert key == other
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-3)
    result = run("extract_features", "net.caffemodel", "net.prototxt", "y", "db99", 2, "lmdb", "GPU", "99")
    assert result.exit_code == 1
    assert "there is no GPU 99: the driver shows" in result.output
    assert not Path("db99").exists()


def test_features_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    run("convert-imageset", "images", "list.txt", "db")
    Path("net.prototxt").write_text(NET)
    Net("net.prototxt", TEST).save("net.caffemodel")
    monkeypatch.setattr("minicaffe.cuda.device._devices", {})
    monkeypatch.setitem(sys.modules, "pycuda.driver", None)
    result = run("extract_features", "net.caffemodel", "net.prototxt", "y", "y_db", 2, "lmdb", "GPU")
    assert result.exit_code == 1
    assert "no GPU: PyCUDA is not installed" in result.output
    assert not Path("y_db").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["y,p", "one", 1], "2 blobs but 1 databases given: give one per blob"),
        (["z", "one", 1], 'the net has no blob "z"; there are "x", '),
        (["y", "db", 1], "db exists already"),
    ],
)
def test_features_errors(arguments: list[object], message: str) -> None:
    run("convert-imageset", "images", "list.txt", "db")
    Path("net.prototxt").write_text(NET)
    Net("net.prototxt", TEST).save("net.caffemodel")
    result = run("extract-features", "net.caffemodel", "net.prototxt", *arguments)
    assert result.exit_code == 1
    assert message in result.output
    assert not Path("one").exists()
