"""A short round of fuzz/fields.py (extreme values in the layers' fields), and what it once found."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from field_nets import LAYERS
from layer_case import LayerCase

from minicaffe.errors import LayerError
from minicaffe.layers import BUILT_IN
from minicaffe.layers.norm.lrn import neighbour_sum

FIELDS = Path(__file__).parent / "fuzz" / "fields.py"
RELIABILITY = Path(__file__).parents[1] / "docs" / "reliability.md"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="bounds the memory in Linux's way")
def test_a_short_round() -> None:
    """The round has 200 cases, computed by NumPy. .ci/full runs 30 seconds, with other cases and compiled loops."""
    for module in ("h5py", "lmdb"):
        pytest.importorskip(module)
    command = [sys.executable, str(FIELDS), "--cases", "200", "--seed", "3"]
    environment = {**os.environ, "MINICAFFE_LOOPS": "numpy"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_layer_type_has_a_net_but_those_that_the_document_names() -> None:
    (names,) = re.findall(r"each layer type except ([^.]*)\.", RELIABILITY.read_text(encoding="utf-8"))
    assert set(re.findall(r"\w+Data|FLOWriter", names)) == set(BUILT_IN) - set(LAYERS)


X, ROIS = np.ones((1, 8, 6, 7)), np.zeros((1, 5))
SIZES = 'type: "PriorBox" prior_box_param { min_size: 10 '


@pytest.mark.parametrize(
    ("text", "bottoms", "message"),
    [
        (SIZES + "aspect_ratio: inf }", [X, X], "aspect_ratio must be at most 1000000000, got inf"),
        (SIZES + "max_size: 3e38 }", [X, X], "max_size must be at most"),
        ('type: "ROIAlign" roi_align_param { pooled_h: 2 pooled_w: 2 spatial_scale: 1 sampling_ratio: 2000000000 }', [X, ROIS],
         "sampling_ratio must be at most 1000"),
        ('type: "PSROIAlign" psroi_align_param { spatial_scale: 1 output_dim: 2 group_size: 2 sample_num: 100000 }', [X, ROIS],
         "sample_num must be at most 1000"),
        ('type: "DetectionEvaluate" detection_evaluate_param { num_classes: 4294967295 background_label_id: 0 }',
         [np.ones((1, 1, 2, 7)), np.ones((1, 1, 3, 8))], "num_classes must be at most 1000000"),
        ('type: "LSTM" recurrent_param { num_output: 2 debug_info: true }', [np.ones((2001, 1, 1)), np.ones((2001, 1))],
         "with debug_info the unrolled net has 10,005 layers, and the limit is 10,000"),
        (f'type: "Python" python_param {{ module: "rpn.proposal_layer" layer: "ProposalLayer" param_str: "feat_stride: {2**31}" }}',  # noqa: E501
         [np.ones((1, 18, 3, 4)), np.ones((1, 36, 3, 4)), np.ones((1, 3))], "feat_stride must be below 2.31, got 2147483648"),
    ],
)  # fmt: skip
def test_found(text: str, bottoms: list[np.ndarray], message: str) -> None:
    with pytest.raises(LayerError, match=message):
        LayerCase(text, *bottoms).forward()


@pytest.mark.slow
@pytest.mark.parametrize("stride", [6, 7, 2**31 - 1])
def test_a_stride_beyond_the_map_costs_no_memory(stride: int) -> None:
    case = LayerCase(
        f'type: "Pooling" pooling_param {{ kernel_size: 2 stride: {stride} }}', np.arange(30.0).reshape(1, 1, 5, 6)
    )
    y = case.forward()[0]
    assert y.shape == (1, 1, 2, 2) and y[0, 0, 0, 0] == 7


def test_neighbours_beyond_the_map_are_not_added_up() -> None:
    x = np.random.default_rng(0).normal(size=(5, 3, 2))
    for size in (9, 11, 2**32 - 1):
        got = neighbour_sum(x, (0,), size, lambda name, *shape: np.zeros(shape))
        np.testing.assert_allclose(got, np.broadcast_to(x.sum(axis=0), x.shape))
