"""Published nets with seeded weights, blob by blob, against what the original computed (where ../shared is present)."""

from __future__ import annotations

import gc
import hashlib
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import cublas_stand_in
import numpy as np
import pytest
from golden import GOLDEN, compare, inside
from numpy.typing import NDArray
from recordings import absent
from which_device import is_test_device

import minicaffe
from minicaffe.cuda.device import current
from minicaffe.formats.prototxt import NetFile, read_net
from minicaffe.mode import Phase
from minicaffe.net import Net

Array = NDArray[Any]

FOLDER = GOLDEN / "whole_nets"
CHUNK = 1 << 15
"""Numbers drawn at a time: they stay in the processor's cache."""

BLOBS, PARAM_DIFFS = 1e-3, 5e-3
"""rtol, and atol as a part of the greatest absolute value, from the golden data's own table."""

SMALL = ("lenet", "rfcn_resnet50_ohem_train")
"""Nets of each default run of the tests. The others take seconds, each of layers that a net of these has, too, or nearly."""


def whole_nets() -> list[Any]:
    if not GOLDEN.is_dir():
        return [pytest.param(("", "cpu"), marks=absent)]
    names = sorted(path.stem for path in FOLDER.glob("*.json"))
    return [pytest.param((name, "cpu"), id=name, marks=[pytest.mark.slow] * (name not in SMALL)) for name in names] + [
        pytest.param((name, "gpu"), id=f"{name}-gpu", marks=pytest.mark.gpu) for name in names
    ]


@dataclass
class Run:
    """One net after its one forward (in TRAIN also backward) pass.

    digest: of the weights. proposed: what Proposal alone made of the stored scores and deltas.
    """

    case: str
    facts: dict[str, Any]
    stored: dict[str, Array]
    net: Net
    digest: str = ""
    proposed: Array = field(default_factory=lambda: np.zeros((0, 5), np.float32))


@pytest.fixture(scope="module", params=whole_nets())
def run(request: pytest.FixtureRequest) -> Iterator[Run]:
    case, device = request.param
    with pytest.MonkeyPatch.context() as patch:
        if device == "gpu":
            minicaffe.set_mode_gpu()
            if is_test_device():
                cublas_stand_in.installed(patch)  # its own products take minutes
        try:
            yield from ran(case, device)
        finally:
            minicaffe.set_mode_cpu()


def ran(case: str, device: str) -> Iterator[Run]:
    facts = json.loads((FOLDER / f"{case}.json").read_text())
    with np.load(FOLDER / f"{case}.npz") as file, inside(FOLDER):
        stored = {key: file[key] for key in file.files}
        net = Net(without_fillers(facts.get("prototxt_run", facts["prototxt"])), Phase[facts["phase"]])
    done = Run(case, facts, stored, net)
    done.digest = put_weights(net, facts["weight_seed"], facts["weight_scale"])
    put_inputs(done)
    if device == "gpu" and facts["phase"] == "TEST":
        check_what_moves(net)
    if "proposal" in net.layer_dict:
        run_around_proposal(done)
    else:
        net.forward()
    if facts["phase"] == "TRAIN":
        net.clear_param_diffs()
        net.backward()
    yield done
    del done, net
    gc.collect()


def without_fillers(path: str) -> NetFile:
    """Return the prototxt without fillers, since put_weights overwrites all weights."""
    file = read_net(path)
    for layer in file.param.layer:
        for name in ("convolution_param", "inner_product_param"):
            if layer.HasField(name):
                getattr(layer, name).ClearField("weight_filler")
    return file


def check_what_moves(net: Net) -> None:
    """On the GPU only the inputs, once, and the outputs; and of Proposal the number of rois, and what checks found."""
    net.forward()
    transfers = current().transfers
    transfers.reset()
    outputs = net.forward()
    assert transfers.to_device == 0
    assert transfers.to_host - sum(array.nbytes for array in outputs.values()) in range(64)


def put_weights(net: Net, seed: int, scales: dict[str, float]) -> str:
    """Return the golden data's weights, drawn in float64; the sha256 of them all as float32."""
    random, digest = np.random.RandomState(seed), hashlib.sha256()
    for name, blobs in net.params.items():
        for i, blob in enumerate(blobs):
            scale = scales.get(name, 1) if i == 0 else 1
            flat = blob.data.reshape(-1)
            for start in range(0, flat.size, CHUNK):
                part = flat[start : start + CHUNK]
                part[...] = drawn(random, net.layer_dict[name].param.type, i, blob.shape, part.size) * scale
            digest.update(blob.data)
    return digest.hexdigest()


def drawn(random: np.random.RandomState, kind: str, i: int, shape: tuple[int, ...], count: int) -> Array:
    """Return the next count numbers of learnable blob i."""
    if kind == "BatchNorm" and i:
        return 0.5 + random.uniform(size=count) if i == 1 else np.ones(count)
    numbers = random.standard_normal(count)
    if kind in ("BatchNorm", "Scale"):
        return 1 + 0.1 * numbers if kind == "Scale" and i == 0 else 0.1 * numbers
    return numbers * math.sqrt(2 / math.prod(shape[1:])) if len(shape) >= 2 else 0.01 * numbers


def put_inputs(run: Run) -> None:
    for name, given in run.facts["inputs"].items():
        if given.get("unused_in_inputs_prototxt"):
            continue
        if given["kind"] == "normal":
            value = np.random.RandomState(given["seed"]).standard_normal(given["shape"]) * given["scale"]
        else:
            value = run.stored[given["key"]] if given["kind"] == "npz" else np.array(given["values"])
        put(run.net, name, value.reshape(given["shape"]))


def put(net: Net, name: str, value: Array) -> None:
    net.blobs[name].reshape(value.shape)
    net.blobs[name].data[...] = value


def run_around_proposal(run: Run) -> None:
    """Run the layers before Proposal, Proposal on the stored blobs, and the layers after it on the stored rois."""
    net = run.net
    names = [layer.name for layer in net.layers]
    at = names.index("proposal")
    scores, deltas = net.layers[at].param.bottom[:2]
    net.forward(end=names[at - 1])
    mine = {name: net.blobs[name].data.copy() for name in (scores, deltas)}
    for name in mine:
        put(net, name, run.stored[f"blob.{name}.full"])
    net.forward(start="proposal", end="proposal")
    run.proposed = net.blobs["rois"].data.copy()
    for name, value in mine.items():
        put(net, name, value)
    put(net, "rois", run.stored["blob.rois.full"])
    net.forward(start=names[at + 1])


def close(actual: Array, stored: dict[str, Array], key: str, tolerance: float, what: str) -> None:
    """actual against key.full, or against key.shape, .stats and .idx, .val (the numbers at flat indices)."""
    if f"{key}.full" in stored:
        expected = stored[f"{key}.full"]
        greatest = float(np.abs(expected).max(initial=0))
    else:
        assert actual.shape == tuple(stored[f"{key}.shape"]), what
        stats = np.array([actual.mean(dtype=np.float64), actual.std(dtype=np.float64), np.abs(actual).max()])
        expected, actual = stored[f"{key}.val"], actual.reshape(-1)[stored[f"{key}.idx"]]
        greatest = float(np.abs(expected).max())
        compare(
            stats, stored[f"{key}.stats"], (tolerance, tolerance * float(stored[f"{key}.stats"][2])), f"{what}: mean, std, max"
        )
    compare(actual, expected, (tolerance, tolerance * greatest), what)


def names_of(stored: dict[str, Array], kind: str) -> list[str]:
    """Return the names under kind: blob or param_diff."""
    return list(dict.fromkeys(key.removeprefix(f"{kind}.").rpartition(".")[0] for key in stored if key.startswith(f"{kind}.")))


def test_the_net_is_the_original(run: Run) -> None:
    facts, net = run.facts, run.net
    assert [layer.name for layer in net.layers] == facts["layer_names"]
    assert list(net.blobs) == facts["blob_names"]
    assert {name: list(blob.shape) for name, blob in net.blobs.items()} == facts["blob_shapes"]
    assert {name: list(net.blobs[name].shape) for name in net.outputs} == facts["outputs"]
    assert [[n, i, list(b.shape)] for n, blobs in net.params.items() for i, b in enumerate(blobs)] == facts["params"]


def test_the_weights_are_the_originals(run: Run) -> None:
    assert run.digest == run.facts["param_sha256"]


def test_golden_blobs(run: Run) -> None:
    names = names_of(run.stored, "blob")
    assert set(run.net.blobs) - set(names) == {name for name in run.net.blobs if "_split_" in name}
    for name in names:
        close(run.net.blobs[name].data, run.stored, f"blob.{name}", BLOBS, f"{run.case} blob {name}")


def test_losses(run: Run) -> None:
    for name, loss in run.facts.get("losses", {}).items():
        assert run.net.blobs[name].data.item() == pytest.approx(loss, rel=BLOBS), name


def test_proposals(run: Run) -> None:
    """Equal scores and rounding may order proposals otherwise: the rois agree as sets."""
    if "proposal" not in run.net.layer_dict:
        return
    expected = run.stored["blob.rois.full"]
    assert run.proposed.shape == expected.shape
    distance = np.abs(run.proposed[:, None] - expected).max(axis=2)
    assert sorted(distance.argmin(axis=0)) == list(range(len(expected)))
    assert distance.min(axis=0).max() <= 1e-3


def test_param_diffs(run: Run) -> None:
    names = names_of(run.stored, "param_diff")
    assert bool(names) == (run.facts["phase"] == "TRAIN")
    for name in names:
        layer, _, i = name.rpartition(".")
        close(run.net.params[layer][int(i)].diff, run.stored, f"param_diff.{name}", PARAM_DIFFS, f"{run.case} {name}")
