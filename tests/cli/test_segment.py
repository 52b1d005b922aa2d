"""minicaffe segment: the class of each pixel, as shares and as pictures."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from PIL import Image

from minicaffe import TEST, Net
from minicaffe.cli import main
from minicaffe.cli.segment import _with_variance
from minicaffe.data.drawings import palette

NET = """input: "data" input_shape { dim: 2 dim: 3 dim: 10 dim: 12 }
layer { name: "score" type: "Convolution" bottom: "data" top: "score"
  convolution_param { num_output: 3 kernel_size: 1 bias_term: false } }
"""
LISTED = """layer { name: "data" type: "DenseImageData" top: "data" top: "label" dense_image_data_param { source: "/gone" }
  transform_param { scale: 0.01 mean_value: 0 } }
layer { name: "twice" type: "Power" bottom: "label" top: "twice" power_param { scale: 2 } include { phase: TEST } }
layer { name: "loss" type: "EuclideanLoss" bottom: "twice" bottom: "label" top: "loss" }
layer { name: "writer" type: "HDF5Output" bottom: "data" bottom: "label" hdf5_output_param { file_name: "written" } }
"""
ARG_MAX = 'layer { name: "best" type: "ArgMax" bottom: "score" top: "best" argmax_param { axis: 1 } }\n'
MEAN = ("--mean", "0,0,0", "--scale-factor", "0.01")


def run(*words: object) -> Result:
    return CliRunner().invoke(main, ["segment", *(str(word) for word in words)])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nets whose class is the brightest channel, blue first; a picture that is one quarter red, the rest green."""
    monkeypatch.chdir(tmp_path)
    Path("deploy.prototxt").write_text(NET)
    Path("argmax.prototxt").write_text(NET + ARG_MAX)
    net = Net("deploy.prototxt", TEST)
    net.params["score"][0].data[...] = np.eye(3).reshape(3, 3, 1, 1)
    net.save("net.caffemodel")
    photo = np.zeros((20, 36, 3), np.uint8)
    photo[:, :9], photo[:, 9:] = (250, 20, 30), (40, 240, 30)
    Image.fromarray(photo).save("photo.png")
    Path("names.txt").write_text("blue\ngreen\nred\n")
    return tmp_path


@pytest.mark.parametrize("net", ["deploy.prototxt", "argmax.prototxt"])
def test_shares_and_pictures(folder: Path, net: str) -> None:
    result = run(net, "net.caffemodel", "photo.png", "--classes", "names.txt", "--out", "out", *MEAN)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[:3] == ["photo.png:", "   75.0 %  green", "   25.0 %  red"]
    assert sorted(path.name for path in Path("out").iterdir()) == [
        f"photo_{what}.png" for what in ("legend", "mask", "overlay")
    ]
    with Image.open("out/photo_mask.png") as mask:
        classes = np.asarray(mask)
        assert classes.shape == (20, 36) and (classes[:, :9] == 2).all() and (classes[:, 9:] == 1).all()
        assert mask.convert("RGB").getpixel((0, 0)) == (0, 128, 0)
    with Image.open("out/photo_overlay.png") as overlay:
        assert overlay.getpixel((0, 0)) == (125, 74, 15)
    with Image.open("out/photo_legend.png") as legend:
        assert legend.height == 56 and legend.getpixel((20, 16)) == (128, 0, 0)


def test_a_net_that_reads_its_images_from_lists(folder: Path) -> None:
    """As SegNet's: neither its list is read nor its labels; its own factor and mean are taken where no option says others."""
    text = LISTED + NET.split("\n", 1)[1]
    Path("listed.prototxt").write_text(text)
    result = run("listed.prototxt", "net.caffemodel", "photo.png")
    assert result.exit_code == 1 and '"data" lacks the size of its images: give --shape data=1,3,' in result.stderr
    result = run("listed.prototxt", "net.caffemodel", "photo.png", "--shape", "data=1,3,10,12")
    assert result.stdout.splitlines()[1:] == ["   75.0 %  class 1", "   25.0 %  class 2"], result.output
    assert not Path("written").exists()
    for means, best in (("mean_value: 0", 1), ("mean_value: 10 mean_value: 240 mean_value: 5", 2)):
        cropped = text.replace("mean_value: 0", f"{means} crop_h: 10 crop_w: 12").replace("DenseImageData", "ImageData")
        Path("listed.prototxt").write_text(cropped)
        found = json.loads(run("listed.prototxt", "net.caffemodel", "photo.png", "--json").stdout)[0]["classes"]
        assert found[0]["class_index"] == best
        found = json.loads(run("listed.prototxt", "net.caffemodel", "photo.png", "--json", *MEAN).stdout)[0]["classes"]
        assert found[0]["class_index"] == 1


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        ('mean_file: "a.binaryproto"', '"data" subtracts a.binaryproto: give it with --mean-file, or its means with --mean'),
        ("mean_value: 1 mean_value: 2", '"data" has 2 mean_value for 3 channels: give --mean'),
    ],
)
def test_means_of_lists_that_do_not_fit(folder: Path, transform: str, message: str) -> None:
    Path("listed.prototxt").write_text(LISTED.replace("mean_value: 0", transform) + NET.split("\n", 1)[1])
    result = run("listed.prototxt", "net.caffemodel", "photo.png", "--shape", "data=1,3,10,12")
    assert result.exit_code == 1 and message in result.stderr


def test_a_template(folder: Path) -> None:
    text = NET.replace("num_output: 3", "num_output: ${NUM_LABELS}").replace('"score"', '"score_${EXP}"')
    Path("template.prototxt").write_text(text)
    Path("named.prototxt").write_text(NET.replace('"score"', '"score_voc"'))
    named = Net("named.prototxt", TEST)
    named.params["score_voc"][0].data[...] = np.eye(3).reshape(3, 3, 1, 1)
    named.save("named.caffemodel")
    words = ("template.prototxt", "named.caffemodel", "photo.png", *MEAN)
    result = run(*words, "--define", "NUM_LABELS=3", "--define", "EXP=voc")
    assert result.stdout.splitlines()[1] == "   75.0 %  class 1", result.output
    result = run(*words)
    assert result.exit_code == 1 and "`minicaffe segment --define NAME=VALUE` others" in result.stderr
    result = run(*words, "--define", "NUM_LABELS")
    assert result.exit_code == 1 and "--define NUM_LABELS: write it as NAME=VALUE" in result.stderr


@pytest.mark.parametrize("axes", ["hw", "wh"])
def test_a_map_of_probabilities(folder: Path, axes: str) -> None:
    """As HED's: a Sigmoid of one channel, here of red less green; the share above 0.5, and a grey picture."""
    sigmoid = 'layer { name: "edges" type: "Sigmoid" bottom: "score" top: "edges" }\n'
    Path("edges.prototxt").write_text(NET.replace("num_output: 3", "num_output: 1") + sigmoid)
    net = Net("edges.prototxt", TEST)
    net.params["score"][0].data[...] = np.array([0, -1, 1]).reshape(1, 3, 1, 1)
    net.save("edges.caffemodel")
    words = ("edges.prototxt", "edges.caffemodel", "photo.png", "--out", "out", "--axes", axes, *MEAN)
    result = run(*words, "--json")
    (found,) = json.loads(result.stdout)
    assert found["above_half"] == pytest.approx(0.25, abs=0.03) and found["files"] == [str(Path("out/photo_map.png"))]
    assert [path.name for path in Path("out").iterdir()] == ["photo_map.png"]
    with Image.open("out/photo_map.png") as drawn:
        grey = np.asarray(drawn)
    high, low = 255 / (1 + np.exp(-2.3)), 255 / (1 + np.exp(2.0))
    assert grey.shape == (20, 36) and (grey[:, :5] == round(high)).all() and (grey[:, 13:] == round(low)).all()
    assert "%  above 0.5 (mean 0.3" in run(*words).stdout


def test_the_palette_is_pascal_vocs() -> None:
    colours = palette()
    assert colours[[0, 1, 2, 7, 8, 20, 255]].tolist() == [
        [0, 0, 0], [128, 0, 0], [0, 128, 0], [128, 128, 128], [64, 0, 0], [0, 64, 128], [224, 224, 192],
    ]  # fmt: skip


def test_the_order_of_the_channels_and_axes(folder: Path) -> None:
    result = run("deploy.prototxt", "net.caffemodel", "photo.png", "--rgb", "--json", *MEAN)
    assert [one["class_index"] for one in json.loads(result.stdout)[0]["classes"]] == [1, 0]
    result = run("deploy.prototxt", "net.caffemodel", "photo.png", "--axes", "wh", "--out", "wh", *MEAN)
    with Image.open("wh/photo_mask.png") as mask:
        classes = np.asarray(mask)
    assert (classes[:, :8] == 2).all() and (classes[:, 10:] == 1).all()


def test_an_image_is_never_replaced(folder: Path) -> None:
    Path("photo_mask.png").write_bytes(Path("photo.png").read_bytes())
    before = Path("photo_mask.png").read_bytes()
    result = run("deploy.prototxt", "net.caffemodel", "photo.png", "photo_mask.png", "--out", ".", *MEAN)
    assert result.exit_code == 0, result.output
    assert Path("photo_mask.png").read_bytes() == before and Path("photo-2_mask.png").exists()


def test_an_image_that_fails_leaves_the_others(folder: Path) -> None:
    Path("bad.png").write_bytes(b"no picture")
    result = run("deploy.prototxt", "net.caffemodel", "bad.png", "photo.png", "--out", "out", *MEAN)
    assert result.exit_code == 1 and "1 of 2 images failed" in result.stderr
    assert sorted(path.name for path in Path("out").iterdir())[1] == "photo_mask.png"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--blob", "data2"), "data2"),
        (("--classes", "short.txt"), "short.txt has 1 names, but the net has 3 classes"),
        (("--shape", "data=1,3,0,4"), "has no pixels"),
        (("--out", "names.txt"), "--out names.txt: this is a file"),
    ],
)
def test_errors(folder: Path, words: tuple[str, ...], message: str) -> None:
    Path("short.txt").write_text("one\n")
    result = run("deploy.prototxt", "net.caffemodel", "photo.png", *words)
    assert result.exit_code == 1 and message in result.stderr


def test_nets_without_scores_of_pixels(folder: Path) -> None:
    Path("two.prototxt").write_text(NET + NET.split("\n", 1)[1].replace('"score"', '"other"'))
    result = run("two.prototxt", "photo.png", "--random-weights")
    assert "2 outputs that hold a score" in result.stderr and "--blob" in result.stderr
    Path("one.prototxt").write_text(NET.replace("num_output: 3", "num_output: 1"))
    assert "no output that holds" in run("one.prototxt", "photo.png", "--random-weights").stderr
    result = run("one.prototxt", "photo.png", "--random-weights", "--blob", "score")
    assert "holds one number for each pixel" in result.stderr


def test_scores_that_are_nan(folder: Path) -> None:
    net = Net("deploy.prototxt", TEST)
    net.params["score"][0].data[...] = np.nan
    net.save("nan.caffemodel")
    assert "NaN or infinite" in run("deploy.prototxt", "nan.caffemodel", "photo.png").stderr


BAYESIAN = NET.replace(
    'layer { name: "score"',
    """layer { name: "drop" type: "Dropout" bottom: "data" top: "kept"
  dropout_param { dropout_ratio: 0.25 sample_weights_test: true } }
layer { name: "score" """.rstrip(),
).replace('bottom: "data" top: "score"', 'bottom: "kept" top: "score"')


def test_samples_give_the_mean_and_the_variance(folder: Path) -> None:
    Path("bayesian.prototxt").write_text(BAYESIAN)
    words = ("bayesian.prototxt", "net.caffemodel", "photo.png", "--out", "out", *MEAN, "--samples", "40")
    result = run(*words)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[1:3] == ["   75.0 %  class 1", "   25.0 %  class 2"]
    assert lines[3].startswith("  variance: mean ") and "out/photo_variance.png" in lines[4]
    with Image.open("out/photo_variance.png") as picture:
        assert picture.size == (36, 20) and np.asarray(picture).max() == 255
    assert run(*words).stdout == result.stdout
    assert run(*words, "--seed", "1").stdout != result.stdout
    (found,) = json.loads(run(*words, "--json").stdout)
    x = np.array([0.4, 2.4, 0.3])  # of most pixels: each value is 4/3 x or 0
    expected = float((x**2).mean() / 3)
    assert found["variance"]["mean"] == pytest.approx(expected, rel=0.2) and found["variance"]["largest"] > expected


@pytest.mark.filterwarnings("error")
def test_the_picture_of_a_tiny_variance(folder: Path) -> None:
    """float32 rounds the variance 1e-50 to 0."""
    Path("bayesian.prototxt").write_text(BAYESIAN)
    net = Net("deploy.prototxt", TEST, weights="net.caffemodel")
    net.params["score"][0].data[...] *= 1e-25
    net.save("tiny.caffemodel")
    result = run("bayesian.prototxt", "tiny.caffemodel", "photo.png", "--out", "out", *MEAN, "--samples", "5")
    assert result.exit_code == 0, result.output
    with Image.open("out/photo_variance.png") as picture:
        assert np.asarray(picture).max() == 255


@pytest.mark.filterwarnings("error")
def test_a_photo_that_skips_the_pixels_that_vary() -> None:
    variance = np.zeros((2, 9, 15))
    variance[:, 0, 0] = 1
    values, _, drawn = _with_variance(({}, [], {}), variance, np.zeros((1, 3, 3), np.uint8))
    assert values["variance"]["largest"] == 1 and not np.asarray(drawn["_variance.png"]).any()


def test_each_image_has_its_own_samples(folder: Path) -> None:
    Path("bayesian.prototxt").write_text(BAYESIAN)
    Path("other.png").write_bytes(Path("photo.png").read_bytes())
    words = ("bayesian.prototxt", "net.caffemodel", *MEAN, "--samples", "3", "--json")
    both = json.loads(run(*words[:2], "photo.png", "other.png", *words[2:]).stdout)
    assert both[0]["variance"] == both[1]["variance"]


def test_samples_that_say_nothing(folder: Path) -> None:
    result = run("deploy.prototxt", "net.caffemodel", "photo.png", "--samples", "2")
    assert result.exit_code == 1 and "all 2 samples of score are equal: no layer draws" in result.stderr
    result = run("argmax.prototxt", "net.caffemodel", "photo.png", "--samples", "2")
    assert result.exit_code == 1 and "best holds the classes of an ArgMax, which have no mean" in result.stderr
    assert run("deploy.prototxt", "net.caffemodel", "photo.png", "--samples", "1").exit_code == 2
