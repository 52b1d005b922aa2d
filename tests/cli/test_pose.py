"""minicaffe pose: the people of images, as places of parts and as pictures."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from people_maps import maps_of, standing
from PIL import Image

from minicaffe import TEST, Net
from minicaffe.cli import main
from minicaffe.detection.pose import COCO, MPI

HEIGHT, WIDTH = 240, 400
NET = """input: "image" input_shape { dim: 1 dim: 3 dim: 8 dim: 8 }
layer { name: "rest" type: "Silence" bottom: "image" }
"""
MAPS = """layer { name: "%s" type: "Parameter" top: "%s" parameter_param { shape { dim: 1 dim: %d dim: 30 dim: 50 } } }
"""
PEOPLE = [standing(COCO, 90, 40), standing(COCO, 240, 50, 0.9)]


def run(*words: object) -> Result:
    return CliRunner().invoke(main, ["pose", *(str(word) for word in words)])


def write_net(name: str, **maps: np.ndarray) -> None:
    """A net whose outputs are these maps (K, 30, 50), whatever the image, and its weights."""
    text = NET + "".join(MAPS % (key, key, len(array)) for key, array in maps.items())
    Path(f"{name}.prototxt").write_text(text)
    net = Net(f"{name}.prototxt", TEST)
    for key, array in maps.items():
        net.params[key][0].data[...] = array
    net.save(f"{name}.caffemodel")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nets that see two people, all maps in one output or in two; a photo twice as large as the net's input."""
    folder, maps = tmp_path_factory.mktemp("people"), maps_of(COCO, PEOPLE, HEIGHT, WIDTH)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        write_net("net", net_output=maps)
        write_net("two", L1=maps[19:], L2=maps[:19])
        write_net("nobody", net_output=np.zeros_like(maps))
        write_net("nan", net_output=maps * np.float32(np.nan))
        write_net("heat", net_output=maps[:19])
        write_net("twice", a=maps, b=maps)
        Image.fromarray(np.full((480, 800, 3), 90, np.uint8)).save("photo.png")
    return folder


@pytest.fixture
def folder(files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the files, to work in."""
    monkeypatch.chdir(shutil.copytree(files, tmp_path, dirs_exist_ok=True))
    return tmp_path


@pytest.mark.parametrize("net", ["net", "two"])
def test_the_people_of_a_photo(folder: Path, net: str) -> None:
    result = run(f"{net}.prototxt", f"{net}.caffemodel", "photo.png", "--height", HEIGHT, "--json", "--out", "out")
    assert result.exit_code == 0, result.output
    (one,) = json.loads(result.stdout)
    assert (one["image"], one["skeleton"], one["file"]) == ("photo.png", "COCO", "out/photo_pose.png")
    assert len(one["people"]) == 2
    for person, wanted in zip(one["people"], PEOPLE, strict=True):
        assert list(person["parts"]) == list(COCO.parts) and 0.5 < person["score"] < 1.1
        for k, (x, y) in wanted.items():
            at = person["parts"][COCO.parts[k]]
            assert (at["x"], at["y"]) == pytest.approx((2 * x + 0.5, 2 * y + 0.5), abs=4)
    with Image.open("out/photo_pose.png") as picture:
        assert picture.size == (800, 480)
        nose = person["parts"]["Nose"]
        assert picture.getpixel((round(nose["x"]), round(nose["y"]))) == (255, 255, 255)
        assert picture.getpixel((790, 10)) == (90, 90, 90)


def test_lines_of_text(folder: Path) -> None:
    result = run("net.prototxt", "net.caffemodel", "photo.png", "--height", HEIGHT)
    lines = result.stdout.splitlines()
    assert len(lines) == 1 + 2 * 19
    assert lines[0] == "photo.png: 2 people" and lines[1].startswith("  1: score 0.") and lines[1].endswith(", 18 parts")
    assert lines[2].split()[0] == "Nose"


def test_nobody(folder: Path) -> None:
    result = run("nobody.prototxt", "nobody.caffemodel", "photo.png", "--out", "out")
    assert result.exit_code == 0 and result.stdout == "photo.png: no people\n  drawn: out/photo_pose.png\n"
    found = json.loads(run("nobody.prototxt", "nobody.caffemodel", "photo.png", "--json").stdout)
    assert found == [{"image": "photo.png", "skeleton": "COCO", "people": []}]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "shape"),
    [(("--height", 100), (1, 3, 96, 168)), ((), (1, 3, 368, 616)), (("--height", 8), (1, 3, 8, 16))],
)
def test_the_input_keeps_the_proportions(
    folder: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[object, ...], shape: tuple[int, ...]
) -> None:
    seen = []
    forward = Net.forward

    def watched(net: Net, *args: object, **options: object) -> object:
        seen.append(net.blobs["image"].data.copy())
        return forward(net, *args, **options)

    monkeypatch.setattr(Net, "forward", watched)
    assert run("net.prototxt", "net.caffemodel", "photo.png", *words).exit_code == 0
    assert seen[0].shape == shape
    assert seen[0] == pytest.approx((90 - 128) / 256)


@pytest.mark.parametrize(("size", "shape"), [((500, 1), (16, 6544)), ((1, 500), (368, 8)), ((170, 10), (368, 6256))])
def test_the_input_of_a_long_image_is_no_wider_than_the_limit(
    folder: Path, monkeypatch: pytest.MonkeyPatch, size: tuple[int, int], shape: tuple[int, ...]
) -> None:
    """An image of 500 x 1 made an input 184,000 pixels wide."""
    seen = []
    monkeypatch.setattr(
        "minicaffe.cli.pose.find_people", lambda maps, skeleton, high, wide, threshold: seen.append((high, wide)) or []
    )
    Image.new("RGB", size).save("long.png")
    assert run("net.prototxt", "net.caffemodel", "long.png").exit_code == 0
    assert seen == [shape]


def test_the_threshold_and_the_preprocessing(folder: Path) -> None:
    words = ("net.prototxt", "net.caffemodel", "photo.png", "--height", HEIGHT)
    assert run(*words, "--threshold", 1).stdout == "photo.png: no people\n"
    assert run(*words, "--threshold", 1.5).exit_code == 2
    assert run(*words, "--axes", "wh").exit_code == 2
    assert run(*words, "--mean", "1,2,3", "--scale-factor", 2).exit_code == 0


def test_mpi_has_its_own_threshold(folder: Path) -> None:
    write_net("mpi", net_output=maps_of(MPI, [standing(MPI, 200, 40)], HEIGHT, WIDTH) * np.float32(0.5))
    words = ("mpi.prototxt", "mpi.caffemodel", "photo.png", "--height", HEIGHT)
    assert run(*words).stdout == "photo.png: no people\n"
    assert run(*words, "--threshold", 0.3).stdout.startswith("photo.png: 1 person\n")


def test_one_image_that_fails_leaves_the_others(folder: Path) -> None:
    Path("bad.png").write_bytes(b"no picture")
    result = run("net.prototxt", "net.caffemodel", "bad.png", "photo.png", "--height", HEIGHT, "--out", "out")
    assert result.exit_code == 1 and "1 of 2 images failed" in result.stderr
    assert [path.name for path in Path("out").iterdir()] == ["photo_pose.png"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("heat",),
            "heat.prototxt: no output that holds an OpenPose net's maps: 57 (COCO: 19 and 38), 44 (MPI: 16 and 28), 78",
        ),
        (("twice",), "several outputs that hold"),
        (("nan",), "NaN or infinite"),
        (("net", "--blob", "image"), "given: image 1x3x368x616"),
        (("net", "--blob", "nothing"), "nothing"),
        (("net", "--out", "photo.png"), "--out photo.png: this is a file"),
        (("net", "--cfg", "missing.yml"), "missing.yml"),
    ],
)
def test_errors(folder: Path, words: tuple[str, ...], message: str) -> None:
    name, *options = words
    result = run(f"{name}.prototxt", f"{name}.caffemodel", "photo.png", *options)
    assert result.exit_code == 1 and message in result.stderr


def test_blobs_in_the_order_given(folder: Path) -> None:
    words = ("two.prototxt", "two.caffemodel", "photo.png", "--height", HEIGHT)
    assert run(*words, "--blob", "L2", "--blob", "L1").stdout.startswith("photo.png: 2 people\n")
    assert run("twice.prototxt", "twice.caffemodel", "photo.png", "--height", HEIGHT, "--blob", "b").exit_code == 0
