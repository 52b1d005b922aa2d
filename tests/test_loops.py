"""Short buffers: in the block alone, in every thread of the pool, and with the same bits."""

from __future__ import annotations

import numpy as np
import pytest

from minicaffe.threads import BUFFER, computing, get_num_threads, run, set_num_threads, short_buffers


def test_ends_with_the_block_and_with_an_error() -> None:
    before = np.getbufsize()
    with pytest.raises(KeyError), short_buffers():
        assert np.getbufsize() == BUFFER != before
        raise KeyError
    assert np.getbufsize() == before


def test_the_same_bits() -> None:
    random = np.random.default_rng(4)
    x, bias = random.normal(size=(5, 3001)).astype(np.float32), random.normal(size=(5, 1)).astype(np.float32)
    plain = x[:, :3000] + bias, np.maximum(x[:, ::2], 0), x[:, 1:].sum(axis=0), x.sum(axis=1)
    with short_buffers():
        short = x[:, :3000] + bias, np.maximum(x[:, ::2], 0), x[:, 1:].sum(axis=0), x.sum(axis=1)
    old = np.lib.NumpyVersion(np.__version__) < "2.3.0"  # which summed rows in parts of its buffer
    for a, b in zip(plain, short, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5 if old else 0, atol=1e-5 if old else 0)


@pytest.mark.parametrize("threads", [1, 2])
def test_tasks_have_them(threads: int) -> None:
    before, sizes = get_num_threads(), []
    set_num_threads(threads)
    try:
        run([lambda: sizes.append(np.getbufsize())] * 3)
        with computing():
            assert np.getbufsize() == BUFFER
    finally:
        set_num_threads(before)
    assert sizes == [BUFFER] * 3
