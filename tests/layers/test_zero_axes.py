"""Blobs without an element: every layer type, with each axis of each bottom 0, computes or raises a minicaffe.Error."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from field_nets import LAYERS, net_text, write_files
from layer_case import LayerCase

from minicaffe import TEST, TRAIN, Error, Net
from minicaffe.formats.prototxt import parse_net

SETTINGS: dict[str, list[str]] = {
    "Accuracy": ["top_k: 2"],
    "ArgMax": ["axis: 1", "out_max_val: true top_k: 2"],
    "BatchNorm": ["use_global_stats: true"],
    "ContrastiveLoss": ["legacy_version: true"],
    "Convolution": ["group: 2", "dilation: 2", "stride: 2"],
    "Deconvolution": ["group: 2", "stride: 2"],
    "Eltwise": ["operation: PROD", "operation: MAX"],
    "HingeLoss": ["norm: L2"],
    "InnerProduct": ["transpose: true", "axis: 2"],
    "LRN": ["norm_region: WITHIN_CHANNEL"],
    "MVN": ["across_channels: true normalize_variance: false"],
    "Normalize": ["across_spatial: false channel_shared: false"],
    "Pooling": ["pool: AVE", "pool: STOCHASTIC", "pad: 1"],
    "Reduction": [f"axis: 1 operation: {name}" for name in ("SUM", "ASUM", "SUMSQ", "MEAN")],
    "ROIAlign": ["pool: AVE", "sampling_ratio: 2", "sampling_ratio: 2 aligned: true"],
    "Softmax": ["axis: 2"],
    "SPP": ["pool: AVE"],
}
"""Beside the fields of field_nets: what else a type computes."""


def texts(kind: str) -> list[str]:
    """The type's net, with each dim of its inputs 0, and each axis of all inputs at once."""
    plain = net_text(kind)
    head, brace, words = plain.rpartition(f'type: "{kind}"')
    nets = [plain, *(head + brace + words.replace("_param {", f"_param {{ {more}", 1) for more in SETTINGS.get(kind, []))]
    one = [
        text[: dim.start()] + "dim: 0" + text[dim.end() :]
        for text in nets
        for dim in re.finditer(r"dim: [1-9]\d*", text.rpartition('name: "it"')[0])
    ]
    every = [re.sub(rf"(shape {{ (?:dim: \d+ ){{{axis}}})dim: \d+", r"\1dim: 0", text) for text in nets for axis in range(4)]
    return list(dict.fromkeys([*one, *every]))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("phases", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_each_axis_of_each_bottom(phases: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each net in TRAIN or TEST, in turn; in both takes twice as long."""
    for module in ("h5py", "lmdb"):
        pytest.importorskip(module)
    monkeypatch.chdir(tmp_path)
    write_files()
    wrong = []
    for kind in LAYERS:
        for number, text in enumerate(texts(kind)):
            for phase in (TRAIN, TEST, TRAIN)[number % 2 :][:phases]:
                try:
                    net = Net(parse_net(text), phase)
                    net.forward()
                    net.backward()
                except Error:
                    continue
                except Exception as error:
                    wrong.append((text, phase, repr(error)))
    assert wrong == []


@pytest.mark.parametrize("more", ["", "pool: AVE", "sampling_ratio: 2"])
def test_roi_align_of_nothing(more: str) -> None:
    words = f'type: "ROIAlign" roi_align_param {{ pooled_h: 2 pooled_w: 3 spatial_scale: 1 {more} }}'
    rois = np.array([[0, 1, 1, 4, 4]], np.float32)
    case = LayerCase(words, np.ones((1, 0, 6, 7)), rois)
    assert case.forward()[0].shape == (1, 0, 2, 3)
    for shape in ((1, 2, 0, 7), (1, 2, 6, 0)):
        assert not LayerCase(words, np.ones(shape), rois).forward()[0].any()
