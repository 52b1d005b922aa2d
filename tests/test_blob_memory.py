"""Memory of blobs: what keep="outputs" gives back and keeps, and that nothing is taken in vain or leaks."""

from __future__ import annotations

import gc
import re
import threading
import tracemalloc
from collections.abc import Iterable
from typing import Any
from weakref import ref

import numpy as np
import pytest

import minicaffe
from minicaffe import kernels
from minicaffe.blob import Blob, MemoryState, SyncedMemory, current_version
from minicaffe.compiled import jit
from minicaffe.compiled.arena import _Shared, _spread
from minicaffe.compiled.jit import WAYS
from minicaffe.errors import Error
from minicaffe.formats.prototxt import parse_net
from minicaffe.mode import TEST, TRAIN
from minicaffe.net import Net

MILLION = 1 << 20


def conv(name: str, bottom: str, outputs: int) -> str:
    return (
        f'layer {{ name: "{name}" type: "Convolution" bottom: "{bottom}" top: "{name}" convolution_param {{ '
        f'num_output: {outputs} kernel_size: 3 pad: 1 weight_filler {{ type: "msra" }} }} }}\n'
    )


TEXT = (
    'name: "made" layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 1 dim: 3 dim: 24 dim: 20 } } }\n'
    'layer { name: "fixed" type: "DummyData" top: "fixed" dummy_data_param { shape { dim: 1 dim: 5 dim: 24 dim: 20 } '
    'data_filler { type: "constant" value: 3 } } }\n'
    + conv("a", "data", 8)
    + 'layer { name: "relu" type: "ReLU" bottom: "a" top: "a" }\n'
    + conv("b", "a", 5)
    + 'layer { name: "flat" type: "Flatten" bottom: "b" top: "flat" }\n'
    + 'layer { name: "map" type: "Reshape" bottom: "flat" top: "map" '
    "reshape_param { shape { dim: 0 dim: 5 dim: 24 dim: -1 } } }\n"
    + 'layer { name: "sum" type: "Eltwise" bottom: "map" bottom: "b" bottom: "fixed" top: "sum" }\n'
    + 'layer { name: "scale" type: "Scale" bottom: "sum" top: "sum" scale_param { bias_term: true } }\n'
    + 'layer { name: "bnll" type: "BNLL" bottom: "sum" top: "sum" }\n'
    + 'layer { name: "prelu" type: "PReLU" bottom: "sum" top: "sum" }\n'
    + conv("out", "sum", 4)
    + 'layer { name: "also" type: "Pooling" bottom: "a" top: "also" pooling_param { kernel_size: 2 stride: 2 } }\n'
)


def net_of(keep: Any, text: str = TEXT, phase: int = TEST) -> Net:
    minicaffe.set_random_seed(3)
    net = Net(parse_net(text, "made.prototxt"), phase, keep=keep)
    net.blobs["data"].data[...] = np.random.default_rng(5).standard_normal(net.blobs["data"].shape)
    return net


def freed_message(net: Net) -> set[str]:
    """Return the blobs that hold nothing."""
    names = set()
    for name, blob in net.blobs.items():
        try:
            blob.read_data()
        except Error as error:
            assert re.match('the blob ".*" was freed .*keep="all"', str(error))
            names.add(name)
    return names


INNER = {"a", "b", "flat", "map", "sum"}


def inner(net: Net) -> set[str]:
    """Return the names without those that the net gives to Splits."""
    return {name.split("_")[0] for name in freed_message(net)}


@pytest.mark.parametrize("looked_on", [False, True])
def test_inner_blobs_give_their_memory_back(looked_on: bool) -> None:
    whole, net = net_of("all"), net_of("outputs")
    if looked_on:
        for one in (whole, net):
            one.after_forward(lambda i: None)
    for height in (24, 24, 30, 24):
        for one in (whole, net):
            one.blobs["data"].reshape(1, 3, height, 20)
            one.blobs["data"].data[...] = np.random.default_rng(height).standard_normal((1, 3, height, 20))
            one.blobs["fixed"].reshape(1, 5, height, 20)
            one.blobs["fixed"].data[...] = 3
            one.layer_dict["map"].param.reshape_param.shape.dim[2] = height
        wanted, found = whole.forward(), net.forward()
        assert set(wanted) == set(found) == {"out", "also"}
        for name in wanted:
            np.testing.assert_array_equal(found[name], wanted[name])
        assert inner(net) == INNER
        assert freed_message(whole) == set()
    assert net.blobs["data"].data.any()
    assert net.blobs["fixed"].data.all()


def test_a_constant_that_is_written_once_stays() -> None:
    net = net_of("outputs")
    first = net.forward()["out"].copy()
    np.testing.assert_array_equal(net.forward()["out"], first)


@pytest.mark.parametrize("way", WAYS[1:])
def test_nothing_else_holds_the_memory_that_inner_blobs_give_back(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither do steps that are kept for the next forward."""
    if way == "numba":
        pytest.importorskip("numba", reason="Numba (the extra fast) is not installed")
    given: list[ref[SyncedMemory]] = []
    give_back = Blob.give_back

    def noted(blob: Blob, freed_message: str) -> None:
        given.append(ref(blob.data_memory))
        give_back(blob, freed_message)

    monkeypatch.setattr(Blob, "give_back", noted)
    with kernels.using(way):
        net = net_of("outputs")
        for _ in range(3):
            net.forward()
    assert given
    assert [memory() for memory in given] == [None] * len(given)


def test_what_forward_is_asked_for_stays_until_the_next() -> None:
    net, whole = net_of("outputs"), net_of("all")
    whole.forward()
    out = net.forward(blobs=["b", "map"])
    np.testing.assert_array_equal(out["b"], whole.blobs["b"].data)
    np.testing.assert_array_equal(net.blobs["map"].data, whole.blobs["map"].data)
    assert {"b", "map"}.isdisjoint(freed_message(net))
    out = net.forward(end="b")
    np.testing.assert_array_equal(out["b"], whole.blobs["b"].data)
    net.forward()
    assert inner(net) == INNER


def test_a_blob_that_is_put_in_by_hand() -> None:
    """Running on from a layer whose bottom is gone is an error, unless somebody fills it."""
    net, whole = net_of("outputs"), net_of("all")
    wanted = whole.forward()["out"].copy()
    net.forward()
    with pytest.raises(Error, match=r'the blob "sum" was freed .*keep="all".*blobs=\["sum"\]'):
        net.forward(start="out", end="out")
    with pytest.raises(Error, match='"sum" was freed'):
        net.blobs["sum"].data[...] = 0
    net.blobs["sum"].reshape(whole.blobs["sum"].shape)
    net.blobs["sum"].data[...] = whole.blobs["sum"].data
    np.testing.assert_array_equal(net.forward(start="out", end="out")["out"], wanted)


def test_there_is_no_backward() -> None:
    net = net_of("outputs")
    net.forward()
    with pytest.raises(Error, match=r'backward reads .* keep="all"'):
        net.backward()


def test_keep_is_one_of_two() -> None:
    with pytest.raises(Error, match='keep is "all" or "outputs", got "most"'.replace('"most"', "'most'")):
        net_of("most")


def test_no_layer_keeps_its_input_where_no_backward_comes() -> None:
    net = net_of("outputs")
    net.after_forward(lambda i: None)
    net.forward()
    for name in ("scale", "bnll", "prelu"):
        assert net.layer_dict[name]._input.blob.data_state is MemoryState.UNINITIALISED
    net = net_of("all")
    net.force_backward()
    net.forward()
    for name in ("scale", "bnll", "prelu"):
        assert net.layer_dict[name]._input.blob.data_state is MemoryState.HOST


BATCH_NORM = (
    'layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 2 dim: 3 dim: 5 dim: 7 } } }\n'
    'layer { name: "apart" type: "BatchNorm" bottom: "data" top: "apart" batch_norm_param { use_global_stats: false } }\n'
    'layer { name: "in_place" type: "BatchNorm" bottom: "apart" top: "apart" batch_norm_param { use_global_stats: false } }\n'
    'layer { name: "scale" type: "Scale" bottom: "apart" top: "apart" scale_param { filler { value: 3 } } }\n'
)


@pytest.mark.parametrize("phase", [TEST, TRAIN])
def test_batch_norm_keeps_nothing_where_no_backward_comes(phase: int) -> None:
    """Its numbers stay the same, and so does its input if it has a top of its own."""
    whole, net = net_of("all", BATCH_NORM, phase), net_of("outputs", BATCH_NORM, phase)
    before = net.blobs["data"].data.copy()
    np.testing.assert_array_equal(net.forward()["apart"], whole.forward()["apart"])
    np.testing.assert_array_equal(net.blobs["data"].data, before)
    for name in ("apart", "in_place"):
        assert whole.layer_dict[name]._normalised.data_state is MemoryState.HOST
        assert net.layer_dict[name]._normalised.data_state is MemoryState.UNINITIALISED
        for mine, theirs in zip(net.params[name], whole.params[name], strict=True):
            np.testing.assert_array_equal(mine.data, theirs.data)


@pytest.mark.parametrize("keep", ["all", "outputs"])
def test_forward_takes_no_memory_for_diffs(keep: str) -> None:
    net = net_of(keep)
    net.forward()
    blobs = [*net.blobs.values(), *net.learnable_params]
    assert all(blob.diff_state is MemoryState.UNINITIALISED for blob in blobs)


def test_splits_take_no_memory() -> None:
    net = net_of("all")
    net.forward()
    splits = [node for node in net.nodes if node.layer.type == "Split"]
    assert len(splits) == 2
    assert all(top.shares_data_with(node.bottoms[0]) for node in splits for top in node.tops)


@pytest.mark.parametrize("way", ["numpy", "numba"])
def test_what_has_a_kept_blobs_memory_stays_where_it_is(way: str) -> None:
    """Splits of an input: to give them back would free nothing, and be a change after which all is looked at anew."""
    if way == "numba":
        pytest.importorskip("numba", reason="Numba (the extra fast) is not installed")
    text = (
        'layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 1 dim: 3 dim: 8 dim: 6 } } }\n'
        + conv("a", "data", 4)
        + conv("b", "data", 4)
        + 'layer { name: "sum" type: "Eltwise" bottom: "a" bottom: "b" top: "sum" }\n'
    )
    with kernels.using(way):
        net = net_of("outputs", text)
        for _ in range(3):
            net.forward()
        before = current_version()
        net.forward()
        assert way == "numpy" or current_version() is before  # layer by layer, blobs are given back in each forward
        for name in ("data_data_0_split_0", "data_data_0_split_1"):
            assert np.shares_memory(net.blobs[name].read_data(), net.blobs["data"].read_data())
        assert {"a", "b"} <= freed_message(net)


def test_memory_given_back_stays_with_who_holds_it() -> None:
    blob, other = Blob((2, MILLION)), Blob()
    blob.data[...] = 7
    other.reshape(blob.shape)
    other.share_data(blob)
    blob.give_back("gone")
    with pytest.raises(Error, match=r"^gone$"):
        blob.data[...] = 1
    assert (other.data == 7).all()
    held = other.data[0]
    other.give_back("gone too")
    blob.take_again()
    blob.data[...] = 8
    assert (held == 7).all()
    blob.reshape(3, MILLION)
    assert blob.data.shape == (3, MILLION)


# Leaks.


@pytest.mark.slow
@pytest.mark.parametrize(
    ("keep", "phase"), [pytest.param("all", TEST, marks=pytest.mark.slow), ("outputs", TEST), ("all", TRAIN)]
)
def test_reshapes_to_random_sizes_do_not_leak(keep: str, phase: int) -> None:
    """The 90 runs take long. Training also runs forward."""
    loss = 'layer { name: "loss" type: "Reduction" bottom: "out" top: "loss" loss_weight: 1 }'
    text = TEXT.replace('bottom: "map" bottom: "b" bottom: "fixed"', 'bottom: "b" bottom: "b"') + loss * (phase == TRAIN)
    net, random = net_of(keep, text, phase), np.random.default_rng(1)

    def run(height: int, width: int) -> None:
        net.blobs["data"].reshape(1, 3, height, width)
        net.layer_dict["map"].param.reshape_param.shape.dim[2] = height
        if phase == TRAIN:
            net.forward_backward()
        else:
            net.forward()

    sizes = random.integers(4, 40, (30, 2))  # window tables are cached for a bounded number of sizes

    def held_after(which: Iterable[int]) -> int:
        """Return the bytes held after runs at these sizes."""
        for i in which:
            run(*sizes[i])
        for thread in threading.enumerate():
            if thread.name == jit.AHEAD:  # compiled loops are no leak
                thread.join()
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        run(40, 40)
        before = held_after(range(30))
        after = held_after(random.integers(0, 30, 60))
    finally:
        tracemalloc.stop()
    assert after < before + 50_000  # leaking a blob per run would take millions of bytes


# Memory that layers in one list of jobs share.


KINDS = {
    "conv": '"Convolution" convolution_param { num_output: 6 kernel_size: 3 pad: 1 weight_filler { type: "msra" } }',
    "pixel": '"Convolution" convolution_param { num_output: 6 kernel_size: 1 weight_filler { type: "msra" } }',
    "relu": '"ReLU" relu_param { negative_slope: 0.5 }',
    "sum": '"Eltwise"',
    "double": '"Concat" concat_param { axis: 0 }',
    "shuffle": '"ShuffleChannel" shuffle_channel_param { group: 3 }',
    "turn": '"Permute" permute_param { order: [0, 2, 3, 1] }',
    "flat": '"Flatten"',
    "softmax": '"Softmax"',
    "power": '"Power" power_param { power: 2 }',  # its step is not kept
}
BACK = {
    "double": '"Pooling" pooling_param { kernel_size: 2 }',  # halves the images that Concat doubled: nobody else reads its top
    "turn": '"Permute" permute_param { order: [0, 3, 1, 2] }',
    "flat": '"Reshape" reshape_param { shape { dim: [-1, 6, 9, 7] } }',
    "conv": '"ReLU"',
}


def random_text(random: np.random.Generator) -> str:
    """Return a net of layers whose steps are kept, each reading blobs of layers before it."""
    made = ["data"]
    text = 'layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 2 dim: 6 dim: 9 dim: 7 } } }\n'
    for i in range(int(random.integers(4, 16))):
        kind, top = str(random.choice(list(KINDS))), f"t{i}"
        bottoms = [str(random.choice(made)) for _ in range(2 if kind in ("sum", "double") else 1)]
        read = " ".join(f'bottom: "{name}"' for name in bottoms)
        text += f'layer {{ name: "{kind}{i}" type: {KINDS[kind]} {read} top: "{top}" }}\n'
        if kind in BACK:
            back = top if kind == "conv" else f"back{i}"
            text += f'layer {{ name: "b{i}" type: {BACK[kind]} bottom: "{top}" top: "{back}" }}\n'
            top = back
        if kind != "double":
            made.append(top)
    return text


CHANGES = ["asked for", "weights", "size", "reshape", "part", "in two", "by one"]


@pytest.mark.parametrize("seed", range(12))
def test_what_lies_in_the_same_memory_is_the_same(seed: int) -> None:
    """Whatever is asked for, changed or run in part in between."""
    pytest.importorskip("numba", reason="Numba (the extra fast) is not installed")
    random = np.random.default_rng(seed)
    text = random_text(random)
    minicaffe.set_num_threads(1 + seed % 3)
    with kernels.using("numba"):
        whole, net = net_of("all", text), net_of("outputs", text)
        names = list(whole.blobs)
        for _ in range(30):
            change = random.choice(["nothing"] * 3 + CHANGES)
            asked = [str(name) for name in random.choice(names, 2)] if change == "asked for" else []
            end = str(random.choice([layer.name for layer in whole.layers])) if change == "part" else None
            size = (int(random.integers(1, 4)), 6, 9, 7)
            values = random.standard_normal(size if change == "size" else whole.blobs["data"].shape)
            hooks = []
            for one in (whole, net):
                if change == "weights" and one.params:
                    one.params[next(iter(one.params))][0].data[...] *= -0.5
                if change == "size":
                    one.blobs["data"].reshape(*size)
                if change == "reshape":
                    one.reshape()
                if change == "by one":
                    hooks.append(one.after_forward(lambda i: None))
                one.blobs["data"].data[...] = values
            if change == "in two":  # blobs that the second part reads stay
                parts = sorted(random.choice(len(whole.layers), 2, replace=False))
                for one in (whole, net):
                    one.forward_from_to(0, parts[0])
                    one.forward_from_to(parts[0] + 1, parts[1])
                    one.forward_from_to(parts[1] + 1, len(one.layers) - 1)
                for name in net.outputs:
                    np.testing.assert_array_equal(net.blobs[name].data, whole.blobs[name].data, err_msg=f"{change}: {name}")
                continue
            wanted, found = (one.forward(blobs=asked, end=end) for one in (whole, net))
            assert set(wanted) == set(found)
            for name in wanted:
                np.testing.assert_array_equal(found[name], wanted[name], err_msg=f"{change}: {name}")
            for one, hook in zip((whole, net), hooks):
                one.remove_hook(hook)
            if end is None:
                kept = set(net.outputs) | set(asked) | {"data"}
                shared = {id(net.blobs[name].data_memory) for name in kept}
                assert freed_message(net) == {n for n in names if n not in kept and id(net.blobs[n].data_memory) not in shared}


def needs(first: int, last: int) -> _Shared:
    return _Shared([], first, last)


def memory_of(kilobytes: int) -> SyncedMemory:
    return SyncedMemory(256 * kilobytes, np.dtype(np.float32))


def test_small_blobs_lie_where_none_has_lain_for_the_longest_time() -> None:
    """A large blob, then five small ones, each the input of the next. Other blobs already lie after the large one."""
    large, *small = [memory_of(size) for size in (32, 7, 7, 7, 7, 7)]
    borrowed = {large: needs(0, 1)} | {one: needs(1 + i, 2 + i) for i, one in enumerate(small)}
    starts = {large: 0} | {one: (32 - 32 * (i % 2)) << 10 for i, one in enumerate(small)}
    others, end = [(47 << 10, 64 << 10, needs(0, 99))], 64 << 10
    places = _spread(starts, borrowed, others, end)
    assert places[large] == 0
    assert [places[one] >> 10 for one in small] == [35, 0, 7, 14, 21]
    no_room = [(0, 40 << 10, needs(3, 99)), (47 << 10, 64 << 10, needs(0, 99))]
    assert _spread(starts, borrowed, no_room, end) == starts


@pytest.mark.parametrize("seed", range(20))
def test_what_is_needed_at_the_same_time_lies_apart(seed: int) -> None:
    random, borrowed, starts, taken = np.random.default_rng(seed), {}, {}, [(0, 5 << 10, needs(0, 99))]
    for size in sorted(random.integers(1, 60, 30).tolist(), reverse=True):
        first, memory = int(random.integers(20)), memory_of(size)
        borrowed[memory], start = needs(first, first + int(random.integers(0, 4))), 0
        for from_, to, other in sorted(taken, key=lambda place: place[0]):
            if other.first <= borrowed[memory].last and borrowed[memory].first <= other.last and start + (size << 10) > from_:
                start = max(start, to)
        taken.append((start, start + (size << 10), borrowed[memory]))
        starts[memory] = start
    end = 2 * max(to for _, to, _ in taken)
    places = _spread(starts, borrowed, taken[:1], end)
    assert places.keys() == starts.keys() and places != starts
    found = [taken[0], *((start, start + 4 * memory.size, borrowed[memory]) for memory, start in places.items())]
    assert all(from_ >= 0 and to <= end for from_, to, _ in found)
    for i, (from_, to, one) in enumerate(found):
        for before, behind, other in found[:i]:
            at_once = other.first <= one.last and one.first <= other.last
            assert not (at_once and before < to and from_ < behind)
