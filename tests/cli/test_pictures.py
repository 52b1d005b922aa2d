"""When detect and extract-features compute several images or batches at once."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from batches import save_images
from detecting import DETECTOR
from PIL import Image

from minicaffe import Layer, Net, register, set_num_threads
from minicaffe.blob import Blob
from minicaffe.cli import pictures
from minicaffe.cli.pictures import concurrent_batches, concurrent_images
from minicaffe.data.settings import DetectionSettings
from minicaffe.errors import DataError, Error
from minicaffe.formats.prototxt import parse_net
from minicaffe.mode import TEST
from minicaffe.scaling.batch.find import find_sources
from minicaffe.scaling.batch.recipe import Pipeline, Recipe

NUMBERS = 'layer { name: "n" type: "DummyData" top: "x" dummy_data_param { shape { dim: 2 dim: 3 } data_filler { %s } } }'
RELU = 'layer { name: "r" type: "ReLU" bottom: "%s" top: "y" }'


@pytest.fixture(autouse=True)
def two_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "CAN_FORK", True)
    set_num_threads(2)


def detector(text: str = DETECTOR, settings: DetectionSettings | None = None) -> Pipeline:
    recipe = Recipe("test.prototxt", text, settings or DetectionSettings(), proposals="boxes.npy")
    return Pipeline(Net(parse_net(text), TEST, keep="outputs", settings=recipe.settings), recipe)


def test_a_small_detector_computes_an_image_on_each_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    small = detector()
    assert [concurrent_images(small, images) for images in (0, 1, 2, 9)] == [1, 1, 2, 2]
    set_num_threads(5)
    assert [concurrent_images(small, images) for images in (3, 9)] == [3, 5]
    set_num_threads(1)
    assert concurrent_images(small, 9) == 1
    set_num_threads(2)
    monkeypatch.setattr(pictures, "CAN_FORK", False)
    assert concurrent_images(small, 9) == 1


def test_on_a_gpu_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "gpu_mode", lambda: True)
    assert concurrent_images(detector(), 9) == 1


def test_the_largest_image_decides_what_is_small() -> None:
    """One of 6000 x 3000 needs 206 MiB as the net's input."""
    assert concurrent_images(detector(), 9) == 2
    test = dataclasses.replace(DetectionSettings().test, scales=(300, 3000), max_size=6000)
    assert concurrent_images(detector(settings=dataclasses.replace(DetectionSettings(), test=test)), 9) == 1


def test_a_users_layer_may_do_what_it_likes() -> None:
    class Counting(Layer):
        type = "Counting"

        def reshape(self, bottom: list[Blob], top: list[Blob]) -> None:
            top[0].reshape(bottom[0].shape)

        def forward_cpu(self, bottom: list[Blob], top: list[Blob]) -> None:
            top[0].data[...] = bottom[0].data

    own = 'layer { name: "mine" type: "Counting" bottom: "score" top: "mine" }\n'
    register("Counting", Counting)
    assert concurrent_images(detector(DETECTOR + own), 9) == 1


@pytest.mark.parametrize(
    "extra",
    [
        'layer { name: "d" type: "Dropout" bottom: "score" top: "d" phase: TRAIN }',
        'layer { name: "u" type: "Input" top: "u" input_param { shape { dim: 2 dim: 1 dim: 3 } } }'
        'layer { name: "c" type: "Input" top: "c" input_param { shape { dim: 2 dim: 1 } } }'
        'layer { name: "l" type: "RNN" bottom: "u" bottom: "c" top: "h" recurrent_param { num_output: 2 } }',
        NUMBERS % 'type: "uniform"',
    ],
    ids=["training", "states", "random numbers"],
)
def test_a_forward_that_depends_on_those_before_it(extra: str) -> None:
    assert concurrent_images(detector(DETECTOR + extra), 9) == 1


def test_batches_need_layers_that_read_them_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = save_images(tmp_path / "images", 2)
    (tmp_path / "list.txt").write_text("".join(f"images/{name} 0\n" for name in names))
    data = 'layer { name: "in" type: "ImageData" top: "x" top: "l" image_data_param { source: "list.txt" batch_size: 2 } }'
    end = 'layer { name: "e" type: "EuclideanLoss" bottom: "y" bottom: "z" top: "e" }'
    numbers = NUMBERS.replace('"x"', '"w"')
    twice = 'layer { name: "s" type: "ReLU" bottom: "x" top: "z" }'

    def of(*layers: str) -> tuple[int, int]:
        return concurrent_batches(Net(parse_net("\n".join(layers)), TEST), 9)

    assert of(data, RELU % "x") == (2, 1)
    assert of(data, RELU % "x", twice, end) == (2, 1), "the Split of the data belongs to the others"
    assert of(data, numbers % "", RELU % "x") == (2, 2)
    assert of(data, RELU % "x", numbers % "") == (1, 0), "it comes after a layer that computes"
    assert of(data) == (1, 0)
    assert of(data, 'layer { name: "h" type: "ReLU" bottom: "x" top: "y" phase: TRAIN }') == (1, 0)
    assert concurrent_batches(Net(parse_net(data + RELU % "x"), TEST), 1) == (1, 0)
    assert of(NUMBERS % 'type: "gaussian"', RELU % "x") == (2, 1), "one process draws all random numbers"


def test_compiled_loops_are_ready_before_the_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[tuple[Net, bool]] = []

    def compile_loops(net: Net, ahead: bool = False) -> None:
        done.append((net, ahead))

    monkeypatch.setattr(Net, "compile_loops", compile_loops)
    small = detector()
    concurrent_images(small, 1)
    assert done == []
    concurrent_images(small, 2)
    assert done == [(small.net, True), (small.net, False)], "begun, and then waited for"
    np.testing.assert_equal(small.net.blobs["data"].shape, (1, 3, 600, 1000))


@pytest.mark.parametrize("words", [["none.png"], ["none.png", "other.png"]])
def test_all_images_are_missing(words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Error, match=r"none\.png: no such file$"):
        find_sources(words)


def test_of_several_images_one_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is an image that fails, whatever its suffix says."""
    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (7, 5)).save("good.png")
    found = list(find_sources(["gone.txt", "good.png", "goood.png"]).pictures())
    assert found[1].pixels().shape == (5, 7, 3)
    for picture, said in ((found[0], "gone.txt: no such file"), (found[2], "goood.png: no such file; did you mean good.png?")):
        with pytest.raises(DataError) as error:
            picture.pixels()
        assert str(error.value) == said
