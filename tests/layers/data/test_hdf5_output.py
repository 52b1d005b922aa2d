"""HDF5Output."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from golden import GOLDEN, cases
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe import TEST, Net
from minicaffe.errors import LayerError

h5py = pytest.importorskip("h5py", reason="the extra minicaffe[hdf5] is not installed")

TEXT = 'type: "HDF5Output" hdf5_output_param { file_name: "out.h5" }'


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def content(name: str = "out.h5") -> dict[str, np.ndarray]:
    with h5py.File(name) as file:
        return {key: file[key][...] for key in file}


@pytest.mark.parametrize("case", cases("HDF5Output"))
def test_golden(case: str) -> None:
    stored = np.load(GOLDEN / f"{case}.npz")
    net = Net(GOLDEN / f"{case}.prototxt", TEST)
    for key in ("b0", "b1"):
        net.blobs[key].data[...] = stored[f"bottom.{key}"]
    net.forward()
    written = content(net.layers[-1].param.hdf5_output_param.file_name)
    assert set(written) == {"data", "label"}
    for key, values in written.items():
        np.testing.assert_array_equal(values, stored[f"file.{key}"])


@given(st.integers(1, 4), st.integers(1, 3))
def test_every_forward_adds_its_rows_and_a_new_layer_starts_anew(rows: int, forwards: int) -> None:
    x, labels = np.arange(rows * 6.0).reshape(rows, 2, 3), np.arange(rows)
    case = LayerCase(TEXT, x, labels, tops=0)
    for _ in range(forwards):
        case.forward()
    np.testing.assert_array_equal(content()["data"], np.concatenate([x] * forwards)[..., None])
    np.testing.assert_array_equal(content()["label"].ravel(), np.concatenate([labels] * forwards))


def test_another_number_of_rows_is_added_too() -> None:
    case = LayerCase(TEXT, np.ones((4, 3)), np.ones(4), tops=0)
    case.forward()
    for blob, shape in zip(case.bottom, ((2, 3), (2,))):
        blob.reshape(*shape)
    case.forward()
    assert content()["data"].shape == (6, 3, 1, 1)
    case.bottom[0].reshape(2, 5)
    with pytest.raises(LayerError, match=r"out.h5 holds data of shape \(6, 3, 1, 1\), got \(2, 5, 1, 1\)"):
        case.forward()


def test_errors() -> None:
    with pytest.raises(LayerError, match=r"needs hdf5_output_param.file_name"):
        LayerCase('type: "HDF5Output"', np.ones((4, 3)), np.ones(4), tops=0)
    with pytest.raises(LayerError, match="data has 4 rows, label has 3"):
        LayerCase(TEXT, np.ones((4, 3)), np.ones(3), tops=0)
    case = LayerCase(TEXT.replace("out.h5", "no/out.h5"), np.ones((4, 3)), np.ones(4), tops=0)
    with pytest.raises(LayerError, match=r'HDF5Output layer "layer": no/out.h5: cannot be written'):
        case.forward()


def test_an_older_file_stays_until_the_first_rows_are_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with h5py.File("out.h5", "w") as file:
        file["older"] = np.arange(5)
    case = LayerCase(TEXT, np.ones((4, 3)), np.ones(4), tops=0)

    def full(*args: object, **kwargs: object) -> None:
        assert list(content()) == ["older"]
        raise OSError("disk full")

    with monkeypatch.context() as patched, pytest.raises(LayerError, match=r"out.h5: cannot be written: disk full"):
        patched.setattr(h5py.Group, "create_dataset", full)
        case.forward()
    assert list(content()) == ["older"] and [path.name for path in folder.iterdir()] == ["out.h5"]
    case.forward()
    assert sorted(content()) == ["data", "label"] and [path.name for path in folder.iterdir()] == ["out.h5"]


def test_rows_are_added_to_no_file_with_another_name(folder: Path) -> None:
    case = LayerCase(TEXT, np.ones((4, 3)), np.ones(4), tops=0)
    case.forward()
    Path("other.h5").hardlink_to("out.h5")
    with pytest.raises(LayerError, match=r"out\.h5: this file has another name, too"):
        case.forward()
    assert len(content("other.h5")["data"]) == 4
    Path("out.h5").unlink()
    Path("out.h5").symlink_to("other.h5")
    with pytest.raises(LayerError, match=r"out\.h5: this is a link"):
        case.forward()
    assert len(content("other.h5")["data"]) == 4
