"""Classifier and Detector on nets whose outputs say what they were given."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import minicaffe as caffe
from minicaffe.errors import Error
from minicaffe.formats.prototxt import parse_net
from minicaffe.pycaffe.io import oversample

MEANS = """
input: "data" input_shape { dim: 4 dim: 3 dim: 6 dim: 6 }
layer { name: "pool" type: "Pooling" bottom: "data" top: "pool" pooling_param { pool: AVE global_pooling: true } }
layer { name: "scale" type: "Scale" bottom: "pool" top: "mean" }
"""
"""Three outputs: the mean of each channel."""


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    (tmp_path / "net.prototxt").write_text(MEANS)
    caffe.Net(parse_net(MEANS), caffe.TEST).save(tmp_path / "net.caffemodel")
    return tmp_path / "net.prototxt", tmp_path / "net.caffemodel"


def test_predict_takes_the_mean_of_ten_crops_or_the_centre(files: tuple[Path, Path]) -> None:
    classifier = caffe.Classifier(*files, image_dims=(8, 10), raw_scale=10, channel_swap=(2, 1, 0))
    images = np.random.default_rng(0).random((3, 8, 10, 3), np.float32)
    crops = oversample(list(images), (6, 6)).reshape(3, 10, 6, 6, 3)
    means = 10 * crops.mean(axis=(2, 3))[:, :, ::-1]
    np.testing.assert_allclose(classifier.predict(list(images)), means.mean(axis=1), rtol=1e-5)
    centre = classifier.predict(list(images), oversample=False)
    assert centre.shape == (3, 3, 1, 1)
    np.testing.assert_allclose(centre[:, :, 0, 0], means[:, 4], rtol=1e-5)


def test_a_classifier_subtracts_its_mean_and_scales(files: tuple[Path, Path]) -> None:
    classifier = caffe.Classifier(*files, mean=np.array([1.0, 2, 3]), input_scale=2)
    scores = classifier.predict([np.full((9, 7, 3), 5.0)], oversample=False)
    np.testing.assert_allclose(scores.ravel(), [8, 6, 4])


def test_a_classifier_s_errors(files: tuple[Path, Path]) -> None:
    with pytest.raises(Error, match="at least one image"):
        caffe.Classifier(*files).predict([])
    with pytest.raises(Error, match=r"crops of \(6, 6\) do not fit into images of \(5, 9\)"):
        caffe.Classifier(*files, image_dims=(5, 9)).predict([np.zeros((5, 9, 3))], oversample=False)


def test_windows_without_context(files: tuple[Path, Path], tmp_path: Path) -> None:
    detector = caffe.Detector(*files)
    image = np.zeros((20, 30, 3), np.float32)
    image[4:10, 5:11] = [0.2, 0.4, 0.6]
    Image.fromarray((image * 255).astype(np.uint8)).save(tmp_path / "image.png")
    found = detector.detect_windows([(tmp_path / "image.png", [(4, 5, 10, 11), (12, 5, 18, 11)]), (image, [[4, 5, 10, 11]])])
    assert [entry["filename"] for entry in found] == [tmp_path / "image.png"] * 2 + [None]
    assert found[1]["window"].tolist() == [12, 5, 18, 11]
    predictions = np.array([entry["prediction"].ravel() for entry in found])
    np.testing.assert_allclose(predictions, [[0.2, 0.4, 0.6], [0, 0, 0], [0.2, 0.4, 0.6]], atol=1e-6)


def test_context_is_the_image_around_and_the_mean_outside(files: tuple[Path, Path]) -> None:
    detector = caffe.Detector(*files, mean=np.array([10.0, 20, 30]), raw_scale=100, channel_swap=(2, 1, 0), context_pad=1)
    image = np.full((40, 40, 3), 0.7, np.float32)
    image[18:22, 18:22] = 0.5
    middle = detector.crop(image, (18, 18, 21, 21))
    assert middle.shape == (6, 6, 3)
    assert (middle[0] > 0.6).all() and (middle[2:4, 2:4] == 0.5).all()
    corner = detector.crop(image, (0, 0, 11, 11))
    np.testing.assert_allclose(corner[0, :], np.tile([0.3, 0.2, 0.1], (6, 1)), rtol=1e-6)
    np.testing.assert_allclose(corner[1:, 1:], 0.7, rtol=1e-6)


def test_a_detector_s_errors(files: tuple[Path, Path]) -> None:
    detector = caffe.Detector(*files)
    image = np.zeros((20, 30, 3), np.float32)
    with pytest.raises(Error, match=r"window \(25, 0, 30, 4\) contains no pixel of an image of 20 x 30"):
        detector.detect_windows([(image, [(25, 0, 30, 4)])])
    with pytest.raises(Error, match="at least one window"):
        detector.detect_windows([(image, np.zeros((0, 4)))])
    with pytest.raises(Error, match="selective search is not part of minicaffe"):
        detector.detect_selective_search(["image.png"])
    with pytest.raises(Error, match="context_pad 3 leaves nothing of an input of 6 x 6"):
        detector.configure_crop(3)
