"""What layers do as jobs that a net runs again and again: the same as their forward, wherever the blobs lie."""

from __future__ import annotations

import numpy as np
import pytest
from layer_case import LayerCase

from minicaffe import TEST, kernels
from minicaffe.kernels import step_of

CASES = {
    "maxima": ('type: "Pooling" pooling_param { kernel_size: 3 stride: 2 pad: 1 }', [(2, 3, 7, 8)]),
    "averages": ('type: "Pooling" pooling_param { pool: AVE kernel_h: 3 kernel_w: 2 stride: 2 }', [(2, 3, 7, 8)]),
    "of whole maps": ('type: "Pooling" pooling_param { pool: AVE global_pooling: true }', [(2, 300, 7, 11)]),
    "channels side by side": ('type: "Concat"', [(2, 3, 5, 4), (2, 1, 5, 4), (2, 6, 5, 4)]),
    "many of them": ('type: "Concat"', [(1, 70, 20, 30), (1, 9, 20, 30)]),
    "images": ('type: "Concat" concat_param { axis: 0 }', [(2, 3, 5), (1, 3, 5)]),
    "rows": ('type: "Concat" concat_param { axis: -1 }', [(2, 3, 5), (2, 3, 1)]),
    "single numbers": ('type: "Concat"', [(4, 1), (4, 1)]),
    "with one that is empty": ('type: "Concat"', [(2, 3, 5), (2, 0, 5)]),
    "channels last": ('type: "Permute" permute_param { order: 0 order: 2 order: 3 order: 1 }', [(2, 3, 5, 4)]),
    "of large maps": ('type: "Permute" permute_param { order: 0 order: 3 order: 1 order: 2 }', [(2, 30, 50, 14)]),
    "all in order": ('type: "Permute" permute_param { order: 0 order: 1 order: 2 }', [(2, 3, 5)]),
    "shuffled": ('type: "ShuffleChannel" shuffle_channel_param { group: 3 }', [(2, 12, 5, 4)]),
    "of sizes alone": (
        'type: "PriorBox" prior_box_param { min_size: 30 max_size: 60 aspect_ratio: 2 variance: 0.1 variance: 0.2 '
        "variance: 0.3 variance: 0.4 }",
        [(1, 3, 5, 4), (1, 3, 50, 60)],
    ),
    "probabilities": ('type: "Softmax"', [(2, 3, 5, 4)]),
    "probabilities of many boxes": ('type: "Softmax" softmax_param { axis: 2 }', [(2, 700, 21)]),
    "columns first": ('type: "Transpose" transpose_param { dim: 2 dim: 0 dim: 1 }', [(2, 3, 5)]),
}


def case_of(text: str, shapes: list[tuple[int, ...]]) -> LayerCase:
    bottoms = [np.random.default_rng(i).standard_normal(shape).astype(np.float32) for i, shape in enumerate(shapes)]
    return LayerCase(text, *bottoms, phase=TEST, dtype=np.float32)


@pytest.mark.parametrize("name", CASES)
def test_jobs_do_what_forward_does(name: str) -> None:
    pytest.importorskip("numba", reason="Numba (the extra fast) is not installed")
    case = case_of(*CASES[name])
    xs, wanted = [blob.data.copy() for blob in case.bottom], {}
    with kernels.using("numpy"):
        for factor in (1, 2):
            for blob, x in zip(case.bottom, xs, strict=True):
                blob.data[...] = x * factor
            wanted[factor] = [y.copy() for y in case.forward()]
    with kernels.using("numba"):
        step = step_of(case.layer, case.bottom, case.top)
        assert step is not None
        for factor, ys in wanted.items():
            for blob in (*case.bottom, *case.top):
                blob.give_back("by the test")  # the memory is another each time
                blob.take_again()
            for blob, x in zip(case.bottom, xs, strict=True):
                blob.data[...] = x * factor
            step()
            for blob, y in zip(case.top, ys, strict=True):
                np.testing.assert_allclose(blob.data, y, rtol=1e-5, atol=1e-6)
