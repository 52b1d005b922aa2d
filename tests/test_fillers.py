"""Fillers: what each one draws, and what it refuses."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from golden import GOLDEN, inside, needs_golden
from google.protobuf import text_format
from hypothesis import given, settings
from hypothesis import strategies as st

from minicaffe import Blob, files, rng
from minicaffe.blob import MemoryState
from minicaffe.errors import Error, FillerError, LayerError
from minicaffe.files import allowing
from minicaffe.fillers import FILLERS, bilinear_kernel, fan, fill, leaves_zeros
from minicaffe.formats.prototxt import parse_net
from minicaffe.layers import CATALOGUE, create
from minicaffe.net import Net
from minicaffe.proto import caffe_pb2

FAN_IN, FAN_OUT, AVERAGE = range(3)
SHAPE = (40, 30, 5, 5)


def filled(shape: tuple[int, ...], dtype: Any = np.float32, **fields: Any) -> np.ndarray:
    array = np.full(shape, 77, dtype)
    fill(array, caffe_pb2.FillerParameter(**fields))
    return array


def test_the_default_is_zeros() -> None:
    assert (filled((2, 3)) == 0).all()


def test_constant() -> None:
    assert (filled((2, 3), type="constant", value=1.5) == 1.5).all()


def test_uniform() -> None:
    x = filled(SHAPE, type="uniform", min=-2, max=4)
    assert x.min() >= -2
    assert x.max() < 4
    assert abs(x.mean() - 1) < 0.05
    assert abs(x.std() - 6 / math.sqrt(12)) < 0.05


def test_gaussian() -> None:
    x = filled(SHAPE, type="gaussian", mean=3, std=0.5)
    assert abs(x.mean() - 3) < 0.02
    assert abs(x.std() - 0.5) < 0.02


def test_sparse_gaussian_keeps_sparse_out_of_the_outputs() -> None:
    x = filled((40, 3000), type="gaussian", std=2, sparse=10)
    assert abs((x != 0).mean() - 10 / 40) < 0.01
    assert abs(x[x != 0].std() - 2) < 0.05
    assert (filled((4, 5), type="gaussian", sparse=0) == 0).all()
    assert (filled((4, 5), type="gaussian", sparse=4) != 0).all()


def test_positive_unitball() -> None:
    x = filled((7, 3, 5), type="positive_unitball")
    assert (x >= 0).all()
    np.testing.assert_allclose(x.sum(axis=(1, 2)), np.ones(7), rtol=1e-5)


def test_gaussian_unitball() -> None:
    x = filled((7, 3, 5), type="gaussian_unitball")
    np.testing.assert_allclose(np.square(x).sum(axis=(1, 2)), np.ones(7), rtol=1e-5)
    assert (x < 0).any() and (x > 0).any()


@pytest.mark.parametrize(("norm", "n"), [(FAN_IN, 750), (FAN_OUT, 1000), (AVERAGE, 875)])
def test_xavier_and_msra(norm: int, n: int) -> None:
    assert fan(SHAPE, norm) == n
    x = filled(SHAPE, type="xavier", variance_norm=norm)
    assert np.abs(x).max() <= math.sqrt(3 / n)
    assert abs(x.std() * math.sqrt(n) - 1) < 0.03
    x = filled(SHAPE, type="msra", variance_norm=norm)
    assert abs(x.mean()) < 0.001
    assert abs(x.std() * math.sqrt(n / 2) - 1) < 0.03


def test_fan_of_short_shapes() -> None:
    assert [fan((), FAN_IN), fan((5,), FAN_IN), fan((5,), FAN_OUT)] == [1, 1, 5]


def test_bilinear() -> None:
    np.testing.assert_allclose(bilinear_kernel(4)[1], np.array([0.25, 0.75, 0.75, 0.25]) * 0.75)
    np.testing.assert_allclose(bilinear_kernel(3)[1], np.array([0.5, 1, 0.5]))
    x = filled((2, 3, 4, 4), type="bilinear")
    assert (x == bilinear_kernel(4).astype(np.float32)).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", sorted(set(FILLERS) - {"file"}))
def test_seed_repeats_and_dtype_stays(kind: str, dtype: type) -> None:
    rng.set_random_seed(11)
    first, other = filled((3, 2, 5, 5), dtype, type=kind), filled((3, 2, 5, 5), dtype, type=kind)
    rng.set_random_seed(11)
    np.testing.assert_array_equal(filled((3, 2, 5, 5), dtype, type=kind), first)
    assert (first != other).any() == (kind not in {"constant", "bilinear", "diagonal"})


def test_a_negative_seed() -> None:
    with pytest.raises(Error, match="a random seed must be >= 0, got -3"):
        rng.set_random_seed(-3)


@settings(deadline=None)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=5), st.sampled_from(sorted(set(FILLERS) - {"bilinear", "file"})))
def test_every_element_of_every_shape_is_filled(shape: list[int], kind: str) -> None:
    x = filled(tuple(shape), type=kind)
    assert not (x == 77).any()
    assert np.isfinite(x).all()


@pytest.mark.parametrize(
    ("shape", "fields", "message"),
    [
        ((2,), {"type": "Xavier"}, 'unknown filler type "Xavier"; did you mean xavier\\? the fillers are constant'),
        ((2,), {"type": "zzz"}, 'unknown filler type "zzz"; the fillers are constant'),
        ((2,), {"type": "uniform", "min": 2, "max": 1}, "the uniform filler needs min <= max, got min 2 and max 1"),
        ((2,), {"type": "gaussian", "std": -1}, "the gaussian filler needs std >= 0, got -1"),
        ((2,), {"type": "gaussian", "sparse": -2}, "sparse must be -1 \\(off\\) or >= 0, got -2"),
        ((2, 3), {"type": "gaussian", "sparse": 3}, "sparse 3 is more than the 2 outputs of shape \\(2, 3\\)"),
        ((2,), {"type": "xavier", "sparse": 1}, "sparse is for the gaussian filler, not for xavier \\(got sparse 1\\)"),
        ((), {"type": "gaussian_unitball"}, "the gaussian_unitball filler needs at least one axis, got a scalar"),
        ((), {"type": "positive_unitball"}, "the positive_unitball filler needs at least one axis, got a scalar"),
        ((2, 3), {"type": "bilinear"}, "the bilinear filler needs 4 axes with a square kernel, got shape \\(2, 3\\)"),
        ((2, 3, 4, 5), {"type": "bilinear"}, "with a square kernel, got shape \\(2, 3, 4, 5\\)"),
    ],
)
def test_errors(shape: tuple[int, ...], fields: dict[str, Any], message: str) -> None:
    assert issubclass(FillerError, Error)
    with pytest.raises(FillerError, match=message):
        filled(shape, **fields)


@needs_golden
def test_golden_fillers() -> None:
    """Layers whose fillers are constant or bilinear start with the numbers that the original starts with."""
    ran = 0
    for path in sorted(GOLDEN.glob("*/filler_*.npz")):
        stored = np.load(path)
        prototxt = path.with_suffix(".prototxt")
        if path.parent.name not in CATALOGUE:
            continue
        with inside(path.parent):
            net = Net(prototxt.name, int(stored["phase"]))
        for i, blob in enumerate(net.layer_dict["layer"].blobs):
            np.testing.assert_allclose(blob.data, stored[f"param.{i}"], rtol=1e-6, err_msg=str(path))
            ran += 1
    assert ran >= 2


@pytest.mark.parametrize(
    ("text", "zeros"),
    [
        ("", True),
        ("value: 0.5", False),
        ('type: "gaussian" std: 0', False),
        ('type: "constant" sparse: 3', False),
        ('type: "unheard of"', False),
    ],
)
def test_which_fillers_leave_new_memory_alone(text: str, zeros: bool) -> None:
    assert leaves_zeros(text_format.Parse(text, caffe_pb2.FillerParameter())) is zeros


def test_weights_that_start_from_zero_take_no_memory_before_they_are_used() -> None:
    layer = create(caffe_pb2.LayerParameter(type="InnerProduct", inner_product_param={"num_output": 4}))
    layer.connect([Blob((2, 3))], [Blob()])
    assert [blob.data_state for blob in layer.blobs] == [MemoryState.UNINITIALISED] * 2
    assert not layer.blobs[0].data.any()


def test_diagonal_by_hand() -> None:
    """Outputs beyond the inputs, and kernels off the diagonal, are 0; a value without diag_val is 1."""
    expected = np.zeros((4, 3, 1, 2))
    expected[0, 0], expected[1, 1], expected[2, 2] = 2, 3, 0.5
    np.testing.assert_array_equal(filled((4, 3, 1, 2), type="diagonal", diag_val=[4, 6]), expected)
    np.testing.assert_array_equal(filled((2, 3), type="diagonal"), np.eye(2, 3))
    np.testing.assert_array_equal(filled((3,), type="diagonal", diag_val=[5]), [5, 0, 0])
    assert filled((0, 3), type="diagonal").shape == (0, 3)
    with pytest.raises(FillerError, match="the diagonal filler needs at least one axis, got a scalar"):
        filled((), type="diagonal")


def test_msras_alpha() -> None:
    """alpha is the slope of a following PReLU: the deviation of alpha 0 is divided by sqrt(1 + alpha^2)."""
    rng.set_random_seed(3)
    plain = filled(SHAPE, type="msra")
    rng.set_random_seed(3)
    np.testing.assert_allclose(filled(SHAPE, type="msra", alpha=2), plain / math.sqrt(5), rtol=1e-5)


@given(st.lists(st.floats(width=32, allow_nan=False), min_size=6, max_size=6), st.sampled_from([" ", "\n", "\t \r\n"]))
def test_a_files_numbers(tmp_path_factory: pytest.TempPathFactory, numbers: list[float], between: str) -> None:
    path = tmp_path_factory.mktemp("filler") / "numbers.txt"
    path.write_text(between.join(map(repr, numbers)) + "\n")
    with allowing([path]):
        np.testing.assert_array_equal(filled((2, 3), type="file", file=str(path)), np.float32(numbers).reshape(2, 3))


def test_a_file_beside_the_prototxt_fills_a_layer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name is relative to the working directory, like a source's."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "theta.txt").write_text("1 0 0\n0 1 0.5")
    text = """
    layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 1 } } }
    layer { name: "theta" type: "InnerProduct" bottom: "x" top: "theta" inner_product_param { num_output: 6
      weight_filler { value: 0 } bias_filler { type: "file" file: "theta.txt" } } }
    """
    net = Net(parse_net(text))
    np.testing.assert_array_equal(net.forward(x=np.ones((2, 1)))["theta"], [[1, 0, 0, 0, 1, 0.5]] * 2)
    (tmp_path / "theta.txt").write_text("1 0 0 0 1")
    with pytest.raises(LayerError, match=r'InnerProduct layer "theta": theta.txt holds 5 numbers, the shape \(6,\) takes 6'):
        Net(parse_net(text))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"1 2 3 4 5 six", "holds 'six', which is not a number"),
        (b"1 2 3 4 5 6 7", r"holds 7 numbers, the shape \(2, 3\) takes 6"),
        (b"\xff\xfe", "is not a text file"),
        (None, "no such file"),
    ],
)
def test_files_that_cannot_fill(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "numbers.txt"
    if content is not None:
        path.write_bytes(content)
    with allowing([tmp_path]), pytest.raises(FillerError, match=rf"numbers.txt:? {message}"):
        filled((2, 3), type="file", file=str(path))


def test_a_filler_names_no_file_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_allowed", set())
    (tmp_path / "numbers.txt").write_text("1")
    with pytest.raises(FillerError, match="may name files elsewhere only where that is allowed"):
        filled((1,), type="file", file=str(tmp_path / "numbers.txt"))
    with pytest.raises(FillerError, match="the file filler needs file"):
        filled((1,), type="file")
