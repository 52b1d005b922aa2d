"""Training on MPI, part by part, in one process without MPI."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from minicaffe.blob import Blob
from minicaffe.errors import SolverError
from minicaffe.formats.prototxt import parse_net
from minicaffe.net import Net
from minicaffe.scaling.mpi import device_buckets
from minicaffe.scaling.mpi.buckets import Bucket, Gradients, grouped
from minicaffe.scaling.mpi.job import part_of
from minicaffe.scaling.mpi.sameness import check_same


@pytest.mark.parametrize(
    ("mine", "beside", "expected"),
    [
        (range(12), [range(12)] * 6, 2),  # 12 / 6 in floats, added up: 1.9999999999999998
        (range(4), [range(4), range(4, 8)], 4),
        (range(2), [range(2)] * 3, 1),
        (range(6), [range(6), range(3)], 4),
    ],
)
def test_cores_are_divided_among_those_who_have_them(mine, beside, expected):
    assert part_of(mine, beside) == expected


class Others:
    """Ranks that have these facts, and go through the same checks."""

    def __init__(self, *facts: dict[str, Any]) -> None:
        self.facts = facts
        self.gathered = 0

    def gather(self, value: Any) -> list[Any]:
        self.gathered += 1
        return [str(list(fact.items())) for fact in self.facts] if isinstance(value, str) else list(self.facts)

    def name(self, rank: int) -> str:
        return f"rank {rank}"


def test_facts_alike_are_compared_by_their_checksum_alone():
    ranks = Others({"a": 1}, {"a": 1})
    check_same(ranks, {"a": 1})  # type: ignore[arg-type]
    assert ranks.gathered == 1


def test_layers_in_another_order_are_no_same_net():
    ranks = Others({"a": 1, "b": 2}, {"a": 1, "b": 2}, {"b": 2, "a": 1})
    with pytest.raises(SolverError, match=r"rank 2 differs from rank 0 in the order of layers"):
        check_same(ranks, {"a": 1, "b": 2})  # type: ignore[arg-type]


NET = """
layer { name: "in" type: "DummyData" top: "x" top: "y" dummy_data_param { shape { dim: 4 dim: 6 } shape { dim: 4 dim: 5 }
  data_filler { type: "gaussian" } } }
layer { name: "a" type: "InnerProduct" bottom: "x" top: "a" inner_product_param { num_output: 6
  weight_filler { type: "xavier" } } param { name: "w" } }
layer { name: "b" type: "InnerProduct" bottom: "a" top: "b" inner_product_param { num_output: 6
  weight_filler { type: "xavier" } } param { name: "w" } param { lr_mult: 0 } }
layer { name: "c" type: "InnerProduct" bottom: "b" top: "c" inner_product_param { num_output: 5
  weight_filler { type: "xavier" } } }
layer { name: "loss" type: "EuclideanLoss" bottom: "c" bottom: "y" }
"""


def test_a_group_is_whole_after_the_last_user_of_what_is_in_it():
    net = Net(parse_net(NET), 0)
    a, b, c = (net.params[name] for name in "abc")
    found = [(list(map(id, blobs)), last) for blobs, last in grouped(net, 1)]
    assert found == [([id(c[0])], 3), ([id(c[1])], 3), ([id(a[0])], 1), ([id(a[1])], 1)]  # b's bias learns nothing
    assert b[0].shares_data_with(a[0])
    together = grouped(net, 4 * (5 * 6 + 5 + 6 * 6))
    assert [(len(blobs), last) for blobs, last in together] == [(3, 1), (1, 0)]


class Twice:
    """A rank with another one that has the same gradients: sums are done when polled for the second time."""

    count = 2

    def __init__(self) -> None:
        self.waited = 0

    def start_sum(self, array: np.ndarray) -> Any:
        array *= 2
        return lambda: True

    def wait(self, done: Any, what: str) -> None:
        self.waited += 1
        assert done()


@pytest.mark.parametrize("overlapped", [True, False])
def test_gradients_are_means_and_an_error_in_a_pass_leaves_no_hook(overlapped):
    net = Net(parse_net(NET), 0)
    sums = Gradients(net, Twice(), overlapped)  # type: ignore[arg-type]
    net.forward()
    net.clear_param_diffs()
    net.backward()
    expected = [blob.diff.copy() for blob in net.learnable_params]
    net.clear_param_diffs()
    with pytest.raises(KeyError), sums.averaged():
        raise KeyError
    with sums.averaged():
        net.backward()
    for blob, diff in zip(net.learnable_params, expected, strict=True):
        np.testing.assert_array_equal(blob.diff, diff)
    assert sums.ranks.waited == len(sums.buckets)  # type: ignore[attr-defined]
    net.backward()
    assert sums.ranks.waited == len(sums.buckets)  # type: ignore[attr-defined]


def test_a_bucket_of_one_blob_copies_nothing():
    blob = Blob((2, 3))
    bucket = Bucket([blob], 0)
    blob.diff[...] = 1
    bucket.start(Twice())  # type: ignore[arg-type]
    assert np.shares_memory(bucket.flat, blob.diff)
    bucket.put(0.25)
    assert (blob.diff == 0.5).all()


class Library:
    """What device_buckets asks of mpi4py.MPI, with a file that is no library."""

    __file__ = "/no/such/library.so"


@pytest.mark.parametrize(("value", "expected"), [(None, False), ("0", False), ("1", True)])
@pytest.mark.parametrize("variable", device_buckets.VARIABLES)
def test_a_library_that_cannot_be_asked_is_cuda_aware_by_its_variable(variable, value, expected, monkeypatch):
    monkeypatch.setattr(device_buckets, "mpi", Library)
    for name in device_buckets.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    if value is not None:
        monkeypatch.setenv(variable, value)
    assert device_buckets.cuda_aware() is expected
