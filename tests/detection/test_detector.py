"""minicaffe.detection.load: a detector that is called on images."""

from __future__ import annotations

import dataclasses
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from detecting import make_folder
from PIL import Image

import minicaffe
from minicaffe import TEST, Net
from minicaffe.data.images import load_image
from minicaffe.data.settings import DetectionSettings, TestSettings, current, read_settings
from minicaffe.detection import Detections, Detector, load
from minicaffe.detection.class_names import VOC
from minicaffe.detection.detect import detect
from minicaffe.errors import DataError, Error, SettingsError, WeightsError

SHAPES = Path(__file__).parents[2] / "examples" / "shapes"
NET, WEIGHTS, CFG = SHAPES / "rfcn" / "test.prototxt", SHAPES / "rfcn" / "shapes_rfcn.caffemodel", SHAPES / "shapes.yml"
SCENE = SHAPES / "scene.png"
NAMES = ["__background__", "circle", "square", "triangle"]


@pytest.fixture(scope="module")
def shapes() -> Detector:
    return load(NET, WEIGHTS, CFG, SHAPES / "classes.txt")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """detector.prototxt, which takes rois, with its weights and photos."""
    monkeypatch.chdir(tmp_path)
    make_folder(tmp_path, 1)
    return tmp_path


def same(found: Detections, other: Detections) -> bool:
    return all(np.array_equal(getattr(found, name), getattr(other, name)) for name in ("boxes", "scores", "classes"))


def test_a_file_an_array_and_an_image_of_pillow_give_the_same_detections(shapes: Detector) -> None:
    image = load_image(SCENE)
    found = shapes(SCENE)
    assert [NAMES[k] for k in found.classes].count("circle") > 2 and found.scores.min() >= 0.5 and shapes.classes == NAMES
    assert same(found, shapes(image)) and same(found, shapes(str(SCENE)))
    with Image.open(SCENE) as opened:
        assert same(found, shapes(opened))
        assert same(found, shapes(opened.convert("RGBA")))
    assert same(found, shapes(image[:, ::-1][:, ::-1]))
    assert same(found, detect(shapes.net, image, threshold=0.5))


def test_pillows_images_are_turned_upright_and_grey_is_repeated(shapes: Detector, tmp_path: Path) -> None:
    with Image.open(SCENE) as opened:
        turned, grey = opened.transpose(Image.Transpose.ROTATE_90), opened.convert("L")
    exif = turned.getexif()
    exif[0x0112] = 6
    turned.save(tmp_path / "turned.png", exif=exif)
    with Image.open(tmp_path / "turned.png") as opened:
        assert same(shapes(opened), shapes(SCENE))
    grey.save(tmp_path / "grey.png")
    assert same(shapes(grey), shapes(tmp_path / "grey.png"))


@pytest.mark.parametrize(
    "cfg", [{"TEST": {"NMS": 0.2, "SCALES": [120]}}, DetectionSettings(test=TestSettings(nms=0.2, scales=(120,)))]
)
def test_settings_as_a_dict_or_as_they_are(cfg: dict[str, object] | DetectionSettings, folder: Path) -> None:
    detector = load("detector.prototxt", "detector.caffemodel", cfg)
    assert detector.net.settings == DetectionSettings(test=TestSettings(nms=0.2, scales=(120,)))
    detector("photos/0.png", proposals=[[3, 4, 40, 30]])
    assert min(detector.net.blobs["data"].shape[2:]) == 120
    assert current() == DetectionSettings()


@pytest.mark.slow
def test_detectors_of_different_settings_work_side_by_side_and_in_threads(shapes: Detector) -> None:
    def run(nms: float) -> tuple[float, int]:
        settings = dataclasses.replace(base, test=dataclasses.replace(base.test, nms=nms))
        detector = load(NET, WEIGHTS, settings, threshold=0.05)
        return detector.net.settings.test.nms, len(detector(SCENE))

    base, before = read_settings(CFG), shapes(SCENE)
    with ThreadPoolExecutor(2) as pool:
        (few, lowest), (many, most) = pool.map(run, (0.01, 0.9))
    assert (few, many) == (0.01, 0.9) and lowest < most == run(0.9)[1]
    assert same(shapes(SCENE), before)


def test_a_net_that_was_made_before(folder: Path) -> None:
    settings = DetectionSettings(test=TestSettings(scales=(80,)))
    net = Net("detector.prototxt", TEST, settings=settings)
    detector = load(net, "detector.caffemodel", max_detections=1, threshold=0.01)
    assert detector.net is net
    found = detector("photos/0.png", proposals=[[3, 4, 40, 30], [10, 8, 60, 44]])
    assert len(found) == 1 and min(net.blobs["data"].shape[2:]) == 80
    with pytest.raises(Error, match=r"detector\.prototxt: a Net already has settings: build it with Net\(settings=\.\.\.\)"):
        load(net, cfg={})


def test_class_names(folder: Path) -> None:
    assert load("detector.prototxt").classes is None
    assert load("detector.prototxt", classes=NAMES).classes == NAMES
    with pytest.raises(Error, match=r"^classes: 3 classes with the background, but cls_prob of detector\.prototxt has 4$"):
        load("detector.prototxt", classes=NAMES[:3])
    Path("names.txt").write_text("cat\n")
    with pytest.raises(Error, match=r"^names\.txt: 2 classes with the background, but"):
        load("detector.prototxt", classes="names.txt")
    Path("voc.prototxt").write_text(Path("detector.prototxt").read_text().replace("num_output: 4", "num_output: 21"))
    assert load("voc.prototxt").classes == VOC


def test_weights_of_another_net_and_weights_that_are_missing(folder: Path) -> None:
    text = Path("detector.prototxt").read_text()
    Path("other.prototxt").write_text(text.replace('name: "score"', 'name: "mine"'))
    with pytest.warns(UserWarning, match=r"detector\.caffemodel has no weights for 1 of 3 layers of other\.prototxt: mine"):
        load("other.prototxt", "detector.caffemodel")
    with pytest.raises(WeightsError, match=r"shapes_rfcn\.caffemodel: none of its layers has the name of a layer with weights"):
        load("detector.prototxt", WEIGHTS)


@pytest.mark.parametrize("value", [np.nan, 1e38])
def test_weights_that_are_no_numbers_propose_nothing(value: float) -> None:
    """An RPN drops scores that are NaN: the error names the blob that they are in."""
    detector = load(NET, WEIGHTS, CFG)
    detector.net.params["conv1"][0].data[...] = value
    with pytest.raises(Error, match=r'NaN or infinite in "rpn_cls_prob_reshape": minicaffe\.check_finite finds'):
        detector(SCENE)


def test_what_is_no_image_and_no_detector(folder: Path, shapes: Detector) -> None:
    with pytest.raises(DataError, match=r"an image must be a path, a PIL image or an array \(height, width, 3\), got list"):
        shapes([[0]])  # type: ignore[arg-type]
    with pytest.raises(DataError, match=r"an image must be \(height, width, 3\), got shape \(8, 8\)"):
        shapes(np.zeros((8, 8), np.uint8))
    with pytest.raises(DataError, match=r"gone\.png"):
        shapes("gone.png")
    with pytest.raises(Error, match="this net proposes its own rois and takes no proposals"):
        shapes(SCENE, proposals=[[0, 0, 9, 9]])
    with pytest.raises(Error, match="this net takes rois: give it proposals"):
        load("detector.prototxt")("photos/0.png")
    Path("plain.prototxt").write_text('input: "data" input_shape { dim: 1 dim: 3 dim: 8 dim: 8 }')
    with pytest.raises(Error, match=r"plain\.prototxt: a detector's inputs are data and im_info, or data and rois"):
        load("plain.prototxt")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"threshold": float("nan")}, "threshold must be from 0 to 1, got nan"),
        ({"max_detections": 0}, "max_detections must be > 0, got 0"),
        (
            {"means": (1, 2, 3)},
            r"detector\.prototxt: means has no effect: only SSD, RefineDet, .* and MTCNN nets take it",
        ),
        (
            {"scale_factor": 1.0},
            "scale_factor has no effect: only SSD, RefineDet, YOLO, MS-CNN, SqueezeDet, DetectNet, ",
        ),
    ],
)
def test_options_that_do_not_fit(folder: Path, options: dict[str, float], message: str) -> None:
    with pytest.raises(Error, match=message):
        load("detector.prototxt", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("cfg", "message"),
    [
        ({"TEST": {"MAXSIZE": 3}}, r"unknown setting TEST.MAXSIZE; did you mean TEST.MAX_SIZE\?"),
        ({"TEST": {"NMS": float("nan")}}, "TEST.NMS must be finite, got nan"),
        (3, "settings must be DetectionSettings, got 3"),
        ("gone.yml", r"gone\.yml: no such file"),
    ],
)
def test_settings_that_are_wrong(folder: Path, cfg: object, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        load("detector.prototxt", cfg=cfg)  # type: ignore[arg-type]


def test_the_package_is_there_without_an_import_of_its_own() -> None:
    assert minicaffe.detection.load is load
