"""What stands in for data layers when published nets are tried."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from made_up_data import LARGEST, build, fill, keep_in_range

from minicaffe import TEST, TRAIN
from minicaffe.detection.random_weights import make_up_weights
from minicaffe.errors import LayerError

DATA = 'layer {{ name: "d" type: "{}" top: "data" top: "label" transform_param {{ crop_size: 9 }} }}\n'
CONV = (
    'layer { name: "conv" type: "Convolution" bottom: "data" top: "conv" convolution_param { num_output: 4 kernel_size: 3 } }\n'
)
LOSS = 'layer { name: "loss" type: "%s" bottom: "conv" bottom: "label" top: "loss" }\n'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def written(folder: Path, text: str, name: str = "train_val.prototxt") -> Path:
    (folder / name).write_text(text)
    return folder / name


@pytest.mark.parametrize(
    ("loss", "shape"),
    [("SoftmaxWithLoss", (2, 7, 7)), ("EuclideanLoss", (2, 4, 7, 7)), ("SigmoidCrossEntropyLoss", (2, 4, 7, 7))],
)
@pytest.mark.parametrize("data", ["Data", "SomeForksData"])
def test_labels_have_the_shape_that_the_loss_asks_for(folder: Path, loss: str, shape: tuple[int, ...], data: str) -> None:
    made = build(written(folder, DATA.format(data) + CONV + LOSS % loss))
    assert made.net.phase == TRAIN
    assert made.net.blobs["data"].shape == (2, 3, 9, 9)
    assert made.net.blobs["label"].shape == shape
    fill(made, seed=1)
    assert np.isfinite(made.net.forward()["loss"])


def test_what_is_wrong_otherwise_stays_wrong(folder: Path) -> None:
    with pytest.raises(LayerError, match='"Missing"'):
        build(written(folder, DATA.format("Data") + CONV + LOSS % "Missing"))
    with pytest.raises(LayerError, match='unknown layer type "SomeForksData"'):  # nothing to be run
        build(written(folder, DATA.format("SomeForksData")))
    with pytest.raises(LayerError, match="is not produced by any layer"):
        build(written(folder, CONV))


def test_the_phase_is_that_of_the_name_or_of_the_one_that_has_every_bottom(folder: Path) -> None:
    text = DATA.format("Data") + CONV
    assert build(written(folder, text, "deploy.prototxt")).net.phase == TEST
    only = text.replace('type: "Data"', 'type: "Data" include { phase: TRAIN }')
    assert build(written(folder, only, "deploy.prototxt")).net.phase == TRAIN


def test_files_that_detection_layers_read_are_made_up_here_only(folder: Path) -> None:
    shapes = "shape {{ dim: [1, 1, 2, 7] }} shape {{ dim: [1, 1, 2, 8] }}"
    text = (
        f'layer {{{{ name: "d" type: "Input" top: "x" top: "y" input_param {{{{ {shapes} }}}} }}}}'
        'layer {{ name: "e" type: "DetectionEvaluate" bottom: "x" bottom: "y" top: "z"'
        ' detection_evaluate_param {{ num_classes: 2 name_size_file: "{}" }} }}'
    )
    build(written(folder, text.format("data/sizes.txt")))
    assert (folder / "data/sizes.txt").exists()
    outside = folder.parent / f"{folder.name}_outside.txt"
    with pytest.raises(LayerError):
        build(written(folder, text.format(outside)))
    build(written(folder, text.format(f"../{outside.name}")))  # as Cascade R-CNN's nets have it: a file of that name is made
    assert (folder / outside.name).exists() and not os.path.lexists(outside)


def test_weights_are_scaled_down_while_the_net_runs(folder: Path) -> None:
    layers = [CONV.replace('"conv"', f'"c{i}"').replace('"data"', f'"c{i - 1}"' if i else '"data"') for i in range(4)]
    made = build(written(folder, DATA.format("Data") + "".join(layers)))
    make_up_weights(made.net, made.net.params, seed=1)
    for blobs in made.net.params.values():
        blobs[0].data[...] *= 1e10
    fill(made, seed=2)
    keep_in_range(made.net)
    (out,) = (array for name, array in made.net.forward().items() if name == "c3")
    np.testing.assert_allclose(np.abs(out).max(), LARGEST, rtol=1e-5)
