"""minicaffe classify, and the options of how images become inputs: --mean-file, --rgb, --axes."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from PIL import Image

from minicaffe import TEST, Net
from minicaffe.cli import main
from minicaffe.formats.prototxt import parse_net
from minicaffe.formats.weights import write_binaryproto

NET = """input: "data" input_shape { dim: 2 dim: 3 dim: 4 dim: 6 }
layer { name: "pool" type: "Pooling" bottom: "data" top: "pool" pooling_param { pool: AVE global_pooling: true } }
layer { name: "ip" type: "InnerProduct" bottom: "pool" top: "ip" inner_product_param { num_output: 3 bias_term: false } }
layer { name: "prob" type: "Softmax" bottom: "ip" top: "prob" }
"""
MEAN = ("--mean", "0,0,0", "--scale-factor", "0.01")


def run(*words: object) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A net whose class is the brightest channel, blue first, and pictures of one colour each."""
    monkeypatch.chdir(tmp_path)
    Path("deploy.prototxt").write_text(NET)
    net = Net("deploy.prototxt", TEST)
    net.params["ip"][0].data[...] = np.eye(3)
    net.save("net.caffemodel")
    for name, colour in {"red": (250, 20, 30), "green": (40, 240, 30), "blue": (40, 20, 200)}.items():
        Image.new("RGB", (30, 20), colour).save(f"{name}.png")
    Path("labels.txt").write_text("n00000001 blue, sky\nn00000002 green\nn00000003 red\n")
    return tmp_path


def best(*words: object) -> list[str]:
    result = run("classify", "deploy.prototxt", "net.caffemodel", *words, "--json")
    assert result.exit_code == 0, result.output
    return [one["classes"][0]["class"] for one in json.loads(result.stdout)]


def test_the_best_classes(folder: Path) -> None:
    result = run(
        "classify", "deploy.prototxt", "net.caffemodel", "red.png", "blue.png", "--classes", "labels.txt", "--top", 2, *MEAN
    )
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert (
        lines[0] == "red.png:" and lines[1].endswith("  red") and lines[3] == "blue.png:" and lines[4].endswith("  blue, sky")
    )
    assert len(lines) == 6 and float(lines[1].split()[0]) > float(lines[2].split()[0])
    assert result.stderr == "Preprocessing: means 0,0,0, factor 0.01 (--mean and --scale-factor change them)\n"
    old = run("classify", "deploy.prototxt", "net.caffemodel", "red.png", "--labels", "labels.txt", "--top", 2, *MEAN)
    assert old.stdout.splitlines() == lines[:3]
    assert best("green.png", *MEAN) == ["class 1"]


def test_drawn(folder: Path) -> None:
    """The picture is the image, enlarged, and a line for each class; no picture replaces an image, and the JSON names it."""
    words = ("classify", "deploy.prototxt", "net.caffemodel", "red.png", "blue.png", "--top", 2, *MEAN)
    result = run(*words, "--draw", "out")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[3] == f"  drawn: {Path('out/red.png')}" and lines[7] == f"  drawn: {Path('out/blue.png')}"
    with Image.open("out/red.png") as red:
        assert red.size == (330, 220 + 2 * 28) and red.getpixel((3, 3)) == red.getpixel((329, 219)) == (250, 20, 30)
    found = json.loads((told := run(*words, "--draw", ".", "--json")).stdout)
    assert [one["file"] for one in found] == ["red-2.png", "blue-2.png"]
    assert "drawn: red-2.png" in told.stderr
    assert "file; give the name of a folder" in run(*words, "--draw", "red.png").stderr
    Path("link").symlink_to("nowhere")
    assert "link is a link that leads nowhere: remove it" in run(*words, "--draw", "link").stderr
    assert not Path("nowhere").exists()


def test_rgb(folder: Path) -> None:
    """Red first: the net's first class is red; and a mean, blue first, takes it away again."""
    assert best("red.png", "green.png", "blue.png", "--rgb", *MEAN) == ["class 0", "class 1", "class 2"]
    assert best("red.png", "--rgb", "--mean", "0,0,240", "--scale-factor", "0.01") == ["class 2"]


def test_mean_files(folder: Path) -> None:
    mean = np.zeros((3, 2, 2))
    mean[2] = [[480, 0], [240, 240]]
    np.save("mean.npy", mean)
    write_binaryproto(Path("mean.binaryproto"), mean[None])
    for file in ("mean.npy", "mean.binaryproto"):
        assert best("red.png", "--mean-file", file, "--scale-factor", "0.01") == ["class 0"]


@pytest.mark.parametrize("channels", [(1, 3)])
def test_axes(channels: tuple[int, int], folder: Path) -> None:
    """An input of 4 x 6 that takes the columns first holds an image of 6 x 4, turned round."""
    picture = np.zeros((6, 4, 3), np.uint8)
    picture[5, 1] = 200
    Image.fromarray(picture).save("dot.png")
    Path("turned.prototxt").write_text(NET.replace("dim: 2 dim: 3", "dim: 1 dim: 3"))
    words = (
        "turned.prototxt",
        "net.caffemodel",
        "--input",
        "data=dot.png",
        "--mean",
        "0,0,0",
        "--axes",
        "wh",
        "--npz",
        "blobs.npz",
    )
    result = run("trace", *words, "-o", "page.html")
    assert result.exit_code == 0, result.output
    data = np.load("blobs.npz")["data/data"]
    assert data[0, 0, 1, 5] == 200 and (data != 0).sum() == 3


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["net.caffemodel"], "give it after the weights"),
        (["net.caffemodel", "gone.png"], "gone.png"),
        (["net.caffemodel", "red.png", "--classes", "two.txt"], "two.txt has 2 names, but the net has 3 classes"),
        (["net.caffemodel", "red.png", "--classes", "none.txt"], "no class names"),
        (["net.caffemodel", "red.png", "--blob", "data"], "does not hold one score for each class"),
        (["net.caffemodel", "red.png", "--mean-file", "odd.npy"], "needs 1 or 3 finite numbers"),
        (["net.caffemodel", "red.png", "--mean-file", "odd.npy", "--mean", "1,2,3"], "give one of them"),
        (["net.caffemodel", "red.png", "broken.png"], "1 of 2 images failed"),
    ],
)
def test_mistakes(words: list[str], message: str, folder: Path) -> None:
    Path("two.txt").write_text("a\nb\n")
    Path("none.txt").write_text("\n")
    Path("broken.png").write_bytes(b"no picture")
    np.save("odd.npy", np.zeros((2, 4, 4)))
    result = run("classify", "deploy.prototxt", *words)
    assert result.exit_code in (1, 2) and message in result.stderr, result.output


def test_a_list_of_names_and_labels(folder: Path) -> None:
    """Caffe's own lists have a label on each line: not every line is said, and what a list holds is."""
    Path("val.txt").write_text("".join(f"red.png {k}\n" for k in range(40)))
    result = run("classify", "deploy.prototxt", "net.caffemodel", "val.txt")
    lines = result.stderr.splitlines()
    assert result.exit_code == 1 and sum("red.png " in line for line in lines) == 10
    assert "further errors are not shown" in lines[-2] and "40 of 40 images failed" in lines[-1]
    assert "one path or URI per line, relative to the working directory" in lines[-1]


def test_a_net_without_a_softmax(folder: Path) -> None:
    Path("deploy.prototxt").write_text(NET.replace("Softmax", "Sigmoid"))
    result = run("classify", "deploy.prototxt", "net.caffemodel", "red.png")
    assert result.exit_code == 1 and "its outputs are prob: choose one with --blob" in result.stderr
    assert run("classify", "deploy.prototxt", "net.caffemodel", "red.png", "--blob", "prob").exit_code == 0


def test_a_detector_that_takes_red_first(folder: Path) -> None:
    """The same boxes for a picture whose channels are turned round."""
    shapes = Path(__file__).resolve().parents[2] / "examples" / "shapes"
    with Image.open(shapes / "scene.png") as scene:
        Image.fromarray(np.ascontiguousarray(np.asarray(scene.convert("RGB"))[..., ::-1])).save("turned.png")
    words = shapes / "rfcn" / "test.prototxt", shapes / "rfcn" / "shapes_rfcn.caffemodel"
    more = "--cfg", shapes / "shapes.yml", "--mean", "110,120,130", "--json"
    plain = run("detect", *words, shapes / "scene.png", *more)
    turned = run("detect", *words, "turned.png", "--rgb", "--cfg", shapes / "shapes.yml", "--mean", "130,120,110", "--json")
    assert plain.exit_code == turned.exit_code == 0, turned.output
    found = [json.loads(result.stdout)[0]["detections"] for result in (plain, turned)]
    assert found[0] == found[1] and len(found[0]) > 5


def test_a_net_for_training(folder: Path) -> None:
    """Caffe's train_val.prototxt takes its images from a data layer: what to give instead is said."""
    layers = NET.split("\n", 1)[1]
    source = "dummy_data_param { shape { dim: 2 dim: 3 dim: 4 dim: 6 } }"
    Path("train_val.prototxt").write_text(f'layer {{ name: "data" type: "DummyData" top: "data" {source} }}\n{layers}')
    result = run("classify", "train_val.prototxt", "net.caffemodel", "red.png")
    assert result.exit_code == 1 and "nor any other (is it for training? Give its deploy prototxt" in result.stderr


def test_a_net_that_reads_a_database(folder: Path) -> None:
    """Its labels and their loss are left out; its crop, mean and factor hold; a mean image must be given."""
    data = """layer { name: "data" type: "Data" top: "data" top: "label" data_param { source: "/gone" }
      transform_param { crop_h: 4 crop_w: 6 scale: 0.01 mean_value: 9 mean_value: 200 mean_value: 9 } }
    layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }"""
    layers = NET.split("\n", 1)[1]
    source, loss = data.split("\n    layer", 1)
    Path("test.prototxt").write_text(f"{source}\n{layers}\nlayer{loss}")
    words = ("classify", "test.prototxt", "net.caffemodel", "green.png", "--json")
    first = json.loads(run(*words).stdout)[0]["classes"][0]
    assert first["class_index"] == 1 and first["score"] == pytest.approx(
        np.exp(0.4) / np.exp([0.21, 0.4, 0.31]).sum(), abs=1e-4
    )
    assert json.loads(run(*words, "--mean", "0,240,0").stdout)[0]["classes"][0]["class_index"] == 2
    Path("test.prototxt").write_text(Path("test.prototxt").read_text().replace("mean_value: 9", 'mean_file: "m"', 1))
    assert '"data" subtracts m: give it with --mean-file' in run(*words).stderr


def test_a_net_of_listed_clips(folder: Path) -> None:
    """As C3D's, whose VideoData says the length of a clip and the crop."""
    Path("clip.prototxt").write_text("""layer { name: "data" type: "VideoData" top: "data" top: "label"
      transform_param { crop_size: 4 } video_data_param { source: "/gone" new_length: 3 new_height: 8 new_width: 9 } }
    layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip" inner_product_param { num_output: 2 } }
    layer { name: "prob" type: "Softmax" bottom: "ip" top: "prob" }""")
    Path("frames").mkdir()
    for i in range(4):
        Image.new("RGB", (30, 20), (i, i, i)).save(f"frames/{i}.png")
    result = run("classify", "clip.prototxt", "frames", "--random-weights", "--top", 1, "--draw", "out")
    assert result.exit_code == 0 and result.stdout.startswith("frames/0.png to frames/2.png:\n"), result.output
    assert result.stdout.endswith(f"  drawn: {Path('out/0.png')}\n") and len(list(Path("out").iterdir())) == 1


@pytest.mark.parametrize("grey", ["is_color: false }", "} transform_param { force_gray: true }"])
def test_a_net_of_listed_grey_images(folder: Path, grey: str) -> None:
    """Red's mean over the channels is 100, so that the classes' scores are 1, 0 and -1."""
    Path("grey.prototxt").write_text(
        f"""layer {{ name: "data" type: "ImageData" top: "data" top: "label"
          image_data_param {{ source: "/gone" new_height: 4 new_width: 6 {grey} }}"""
        + NET.split("\n", 1)[1]
    )
    net = Net(parse_net(NET.replace("dim: 2 dim: 3", "dim: 1 dim: 1")), TEST)
    net.params["ip"][0].data[...] = [[0.01], [0], [-0.01]]
    net.save("grey.caffemodel")
    found = json.loads(run("classify", "grey.prototxt", "grey.caffemodel", "red.png", "--json").stdout)
    assert found[0]["classes"][0]["class_index"] == 0 and found[0]["classes"][0]["score"] == pytest.approx(
        np.e / (np.e + 1 + 1 / np.e), abs=1e-4
    )


def test_a_net_of_clips(folder: Path) -> None:
    """The first frames decide for one class, the last for another; a rest of fewer than three frames is left out."""
    Path("clip.prototxt").write_text(
        """input: "data" input_shape { dim: 4 dim: 3 dim: 3 dim: 4 dim: 6 }
        layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip"
          inner_product_param { num_output: 2 bias_term: false } }
        layer { name: "prob" type: "Softmax" bottom: "ip" top: "prob" }"""
    )
    net = Net("clip.prototxt", TEST)
    weights = net.params["ip"][0].data.reshape(2, 3, 3, 4, 6)
    weights[...] = 0
    weights[0, :, 0], weights[1, :, 2] = 1, 1  # class 0: a bright first frame; class 1: a bright last one
    net.save("clip.caffemodel")
    Path("frames").mkdir()
    for i, grey in enumerate((200, 0, 0, 0, 0, 150, 99, 99)):
        Image.new("RGB", (30, 20), (grey, grey, grey)).save(f"frames/{i}.png")
    words = ("classify", "clip.prototxt", "clip.caffemodel")
    result = run(*words, "frames", *MEAN, "--top", 1)
    assert result.stdout == (
        "frames/0.png to frames/2.png:\n  1.0000  class 0\nframes/3.png to frames/5.png:\n  1.0000  class 1\n"
    ), result.output
    blue = run(*words, "frames", "--mean", "200,0,0", "--scale-factor", 0.01, "--top", 1, "--json")
    assert [one["classes"][0]["class_index"] for one in json.loads(blue.stdout)] == [0, 1]
    assert run(*words, "frames", "--rgb", "--mean", "200,0,0", "--scale-factor", 0.01, "--json").stdout != ""
    short = run(*words, "frames", "red.png", *MEAN)
    assert short.exit_code == 1 and "red.png: a clip has 3 frames, but its source has 1" in short.stderr
    Path("frames/1.png").write_bytes(b"no image")
    assert "frames/1.png" in run(*words, "frames", *MEAN).stderr


def test_too_little_memory_for_an_image_names_it_and_the_limit(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow's MemoryError says nothing, and NumPy's names no file."""

    def fails(error: MemoryError) -> Callable[..., None]:
        def fail(*_: object) -> None:
            raise error

        return fail

    with monkeypatch.context() as decoding:
        decoding.setattr("minicaffe.data.image_bytes._channels", fails(MemoryError()))
        result = run("classify", "deploy.prototxt", "net.caffemodel", "red.png", "blue.png")
    assert result.exit_code == 1 and "red.png: out of memory for 600 pixels: make it smaller;" in result.stderr
    assert "--limit pixels=N, refuses larger ones" in result.stderr and "\nminicaffe: blue.png: out" in result.stderr
    with monkeypatch.context() as resizing:
        resizing.setattr("minicaffe.cli.pictures.put_image", fails(MemoryError("Unable to allocate 3 GiB")))
        result = run("classify", "deploy.prototxt", "net.caffemodel", "red.png")
    assert result.stderr.splitlines()[1:] == ["minicaffe: red.png: out of memory: Unable to allocate 3 GiB"]
    monkeypatch.setattr("minicaffe.cli.classify.read_labels", fails(MemoryError()))
    result = run("classify", "deploy.prototxt", "net.caffemodel", "red.png", "--classes", "labels.txt")
    assert result.stderr == "minicaffe: out of memory\n"


def test_too_little_memory_for_a_file_names_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class File(io.FileIO):
        def read(self, size: int | None = -1, /) -> bytes:
            raise MemoryError

    monkeypatch.setattr("minicaffe.files.opened", File)
    result = run("summary", "deploy.prototxt")
    assert result.exit_code == 1 and "deploy.prototxt: out of memory for the file's" in result.stderr
