"""Results of 1, 2, 3 and 8 threads are equal bit for bit, forward and backward, as NumPy computes and with compiled loops.

Where OpenBLAS has kernels for AVX-512: its others round a product's numbers otherwise where it is cut into other parts.

By hand, 100 runs:  python tests/test_equal_threads.py 100
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

import minicaffe
from minicaffe import TEST, TRAIN, Net, kernels
from minicaffe.blob import Array
from minicaffe.compiled import jit
from minicaffe.formats.prototxt import parse_net
from minicaffe.layers.conv import convolve, gradients

SHAPES = Path(__file__).resolve().parents[1] / "examples" / "shapes"


def convolution(name: str, bottom: str, outputs: int, kernel: int, more: str = "", kind: str = "Convolution") -> str:
    param = f"num_output: {outputs} kernel_size: {kernel} weight_filler {{ type: 'xavier' }} {more}"
    return f"layer {{ name: '{name}' type: '{kind}' bottom: '{bottom}' top: '{name}' convolution_param {{ {param} }} }}\n"


def layer(name: str, kind: str, bottoms: str, top: str, param: str = "") -> str:
    read = " ".join(f"bottom: '{bottom}'" for bottom in bottoms.split())
    return f"layer {{ name: '{name}' type: '{kind}' {read} top: '{top}' {param} }}\n"


PIECES = (
    'name: "pieces" force_backward: true input: "data" input_shape { dim: 2 dim: 3 dim: 61 dim: 83 }'
    + ' input: "rois" input_shape { dim: 9 dim: 5 }\n'
    + convolution("c1", "data", 24, 7, "stride: 2 pad: 3")
    + layer("r1", "ReLU", "c1", "c1")
    + layer("n1", "LRN", "c1", "n1")
    + layer("nw", "LRN", "n1", "nw", "lrn_param { local_size: 3 norm_region: WITHIN_CHANNEL }")
    + layer("p1", "Pooling", "nw", "p1", "pooling_param { kernel_size: 3 stride: 2 }")
    + convolution("s5", "c1", 20, 5, "pad: 2 stride: 2")
    + convolution("g", "p1", 36, 5, "pad: 2 group: 2")
    + convolution("w1", "g", 48, 3, "pad: 1")
    + convolution("w2", "w1", 49, 3, "pad: 1")
    + layer("bn", "BatchNorm", "w2", "w2")
    + layer("sc", "Scale", "w2", "w2", "scale_param { bias_term: true }")
    + convolution("dw", "w2", 49, 3, "pad: 1", "DepthwiseConvolution")
    + convolution("dw2", "dw", 49, 3, "pad: 1 stride: 2", "DepthwiseConvolution")
    + convolution("few", "w2", 52, 3, "pad: 1")
    + layer("e", "Eltwise", "w2 dw", "e")
    + layer("er", "ReLU", "e", "e")
    + convolution("one", "e", 50, 1)
    + layer("ave", "Pooling", "one", "ave", "pooling_param { pool: AVE kernel_size: 2 stride: 2 }")
    + convolution("up", "ave", 12, 4, "stride: 2", "Deconvolution")
    + layer("roi", "ROIPooling", "w2 rois", "roi", "roi_pooling_param { pooled_h: 3 pooled_w: 2 spatial_scale: 0.25 }")
    + layer(
        "mean",
        "ROIAlign",
        "w2 rois",
        "mean",
        "roi_align_param { pooled_h: 3 pooled_w: 2 spatial_scale: 0.25 sampling_ratio: 2 }",
    )
    + layer("max", "ROIAlign", "w2 rois", "max", "roi_align_param { pooled_h: 3 pooled_w: 2 spatial_scale: 0.25 }")
    + layer("ps", "PSROIPooling", "w2 rois", "ps", "psroi_pooling_param { output_dim: 1 group_size: 7 spatial_scale: 0.25 }")
    + layer(
        "pa",
        "PSROIAlign",
        "w2 rois",
        "pa",
        "psroi_align_param { output_dim: 1 group_size: 7 spatial_scale: 0.25 sample_num: 2 }",
    )
    + layer("ip", "InnerProduct", "up", "ip", "inner_product_param { num_output: 17 weight_filler { type: 'xavier' } }")
    + layer("wide", "InnerProduct", "up", "wide", "inner_product_param { num_output: 1100 weight_filler { type: 'xavier' } }")
    + layer("sm", "Softmax", "ip", "sm")
)


def pieces() -> dict[str, Array]:
    """Return all blobs, their diffs and the weights' gradients of a net of the layers that run on threads, in TRAIN."""
    minicaffe.set_random_seed(3)
    net = Net(parse_net(PIECES.replace("'", '"')), TRAIN)
    random = np.random.default_rng(0)
    corners = random.uniform([0, 0, 20, 20], [60, 40, 90, 70], (9, 4))
    rois = np.column_stack([random.integers(0, 2, 9), corners])
    net.forward(data=random.normal(size=(2, 3, 61, 83)), rois=rois)
    for name in net.outputs:
        net.blobs[name].diff[...] = random.normal(size=net.blobs[name].shape)
    net.blobs["few"].diff[...] *= random.random(net.blobs["few"].shape[-2:]) < 0.1  # only a few windows have gradients
    with patch.object(gradients, "LEAST", 1):
        net.backward()
    found = {name: blob.data.copy() for name, blob in net.blobs.items()}
    found |= {f"{name}'s diff": blob.diff.copy() for name, blob in net.blobs.items()}
    return found | {f"{name}[{i}]'s": blob.diff.copy() for name, blobs in net.params.items() for i, blob in enumerate(blobs)}


def detectors() -> dict[str, Array]:
    """Return all blobs of the shapes detectors on noise, in TEST."""
    found = {}
    for kind in ("rfcn", "faster_rcnn"):
        net = Net(SHAPES / kind / "test.prototxt", TEST, weights=SHAPES / kind / f"shapes_{kind}.caffemodel")
        net.blobs["data"].reshape(1, 3, 240, 360)
        net.forward(data=np.random.default_rng(0).normal(0, 60, (1, 3, 240, 360)), im_info=[[240, 360, 1]])
        found |= {f"{kind}'s {name}": blob.data.copy() for name, blob in net.blobs.items()}
    return found


def unequal(runs: int) -> Iterator[str]:
    """Yield the differences from the result of 1 thread, run by run."""
    for made, counts in ((pieces, (1, 2, 3, 8)), (detectors, (1, 3) if runs == 1 else (1, 2, 3, 8))):
        minicaffe.set_num_threads(1)
        expected = made()
        for i in range(runs):
            for threads in counts:
                minicaffe.set_num_threads(threads)
                for name, found in made().items():
                    if found.tobytes() != expected[name].tobytes():
                        yield f"run {i}, {threads} threads: {name} by {np.abs(found - expected[name]).max():g}"


@pytest.mark.slow
@pytest.mark.usefixtures("loops_way", "products_round_alike")
def test_results_do_not_depend_on_the_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolve, "MOST_ALONE", 0)  # threads share small convolutions, too
    assert list(unequal(1)) == []


if __name__ == "__main__":
    for way in ("numpy", "numba") if jit.installed() else ("numpy",):
        with kernels.using(way):
            differences = list(unequal(int(sys.argv[1])))
        print(f"{way}: {len(differences)} differences", *differences[:40], sep="\n")
