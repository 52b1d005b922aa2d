"""The ways to run one net, which must agree: with and without its execution plan, keeping its outputs only, on one thread and
on two, from saved weights, as an ONNX model, on the GPU, there as CUDA graphs."""

from __future__ import annotations

import gc
import tempfile
import tracemalloc
from collections import Counter
from pathlib import Path

import numpy as np
from net_builder import RandomNet
from net_values import DOUBLE, SINGLE, Arrays, FoundError, agree, forward, forward_backward, make, seed

from minicaffe import TEST, LayerError, Net, set_mode_cpu, set_mode_gpu, set_num_threads
from minicaffe.cuda import graph
from minicaffe.net import Keep

RANDOM = ("Dropout", "DummyData")
"""What draws other random numbers on a GPU than on the CPU."""

BOOKKEEPING = 100_000
"""Bytes that it takes to know which blobs are alive."""

Counts = Counter[str]


def check_plan(random: RandomNet) -> Counts:
    """In float64 and float32, where the plan has any chain."""
    counts = Counts()
    for dtype in (np.float64, np.float32):
        planned, plain = make(random, dtype), make(random, dtype)
        if not planned.plan.chains:
            return counts
        plain.plan.chains.clear()
        exact = dtype == np.float64
        results = forward_backward(planned, random), forward_backward(plain, random)
        left_out = agree(f"plan in {dtype.__name__}", *results, DOUBLE if exact else SINGLE, None if exact else random)
        counts["left out: unsteady values, plans"] += left_out
    counts["plans"] += 1
    return counts


def check_keep(random: RandomNet) -> None:
    """keep="outputs" gives the same numbers to the bit, and takes no more memory, of which large nets have enough to tell. From
    the second forward on, layers may run as one list of jobs, and their blobs lie in the same memory one after the other."""
    whole, outputs = make(random, np.float32), make(random, np.float32, "outputs")
    for time in range(4):
        _same(f"keep, forward {time + 1}", _outputs(whole), _outputs(outputs))
    if not random.large:
        return
    most = _peak(random, "all")
    if (more := _peak(random, "outputs") - most) > BOOKKEEPING:
        raise FoundError(f"keep: a net that keeps its outputs only takes {more:,} bytes more")


def _peak(random: RandomNet, keep: Keep) -> int:
    """The most bytes that a net has in its first forward pass: in later ones an output may hold the last one's memory."""
    tracemalloc.start()
    net = make(random, np.float32, keep)
    gc.collect()
    tracemalloc.reset_peak()
    _outputs(net)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return most


def check_threads(random: RandomNet) -> Counts:
    """Two threads agree with one within rounding, and with themselves to the bit."""
    one = {dtype: forward_backward(make(random, dtype), random) for dtype in (np.float64, np.float32)}
    set_num_threads(2)
    try:
        two = {dtype: forward_backward(make(random, dtype), random) for dtype in one}
        again = forward_backward(make(random, np.float32), random)
    finally:
        set_num_threads(1)
    agree("two threads in float64", two[np.float64], one[np.float64], DOUBLE)
    left_out = agree("two threads in float32", two[np.float32], one[np.float32], SINGLE, random)
    _same("two threads, twice", two[np.float32], again)
    return Counts({"on two threads": 1, "left out: unsteady values, two threads": left_out})


def check_saved(random: RandomNet) -> None:
    """Weights through each kind of file are the same to the bit, and so is what the net makes of them."""
    net = make(random, np.float32)
    wanted = _weights(net)
    with tempfile.TemporaryDirectory(dir=_memory()) as folder:
        for name in ("a.caffemodel", "a.caffemodel.h5", "a.safetensors", "a.npz"):
            net.save(Path(folder) / name)
            other = make(random, np.float32)
            for blob in other.learnable_params:
                blob.data[...] = 0
            other.copy_from(Path(folder) / name)
            _same(name, wanted, _weights(other))
            _same(f"outputs with {name}", _outputs(make(random, np.float32)), _outputs(other))


def check_onnx(random: RandomNet) -> Counts:
    """The net before its losses in onnxruntime, where it has an ONNX form."""
    from minicaffe.porting.onnx import export_onnx, run_model

    random = random.first(random.body)
    net = make(random, np.float32)
    if not net.outputs:
        return Counts({"without an ONNX form": 1})
    with tempfile.TemporaryDirectory(dir=_memory()) as folder:
        path = Path(folder) / "a.onnx"
        try:
            export_onnx(net, path)
        except LayerError:
            return Counts({"without an ONNX form": 1})
        made = run_model(path, random.inputs)
    wanted = forward(make(random, np.float32))
    left_out = agree("onnxruntime", made, {name: wanted[name] for name in made}, SINGLE, random)
    return Counts({"as ONNX": 1, "left out: unsteady values, ONNX": left_out})


def check_graphs(random: RandomNet) -> Counts:
    """On the GPU, or the CPU test device: nets of the phase TEST as CUDA graphs and with plain launches, to the bit, while
    inputs and weights change."""
    counts = Counts()
    if random.phase != TEST:
        return counts
    set_mode_gpu()
    try:
        for keep in ("all", "outputs"):
            net, plain = make(random, np.float32, keep), make(random, np.float32, keep)
            for turn in range(4):
                for one in (net, plain):
                    _change(one, random, turn)
                made = _outputs(net)
                graph.allow_graphs(False)
                wanted = _outputs(plain)
                graph.allow_graphs()
                _same(f"graphs, forward {turn}, keep {keep}", made, wanted)
            counts["replays"] += sum(part.replayed for part in net.plan.program._parts.values())
    finally:
        graph.allow_graphs()
        set_mode_cpu()
    counts["as graphs"] += 1
    return counts


def _change(net: Net, random: RandomNet, turn: int) -> None:
    """Other numbers in the inputs that may have any, and from the third forward on in the weights."""
    for name in random.seen:
        net.blobs[name].data[...] = random.inputs[name] * np.float32(1 + turn / 8)
    if turn == 2:
        for layer in net.layers:
            for blob in layer.blobs:
                blob.data[...] *= np.float32(1.25)


def check_device(random: RandomNet) -> Counts:
    """The GPU, or the CPU test device, beside the CPU, but for nets that draw random numbers."""
    counts = Counts()
    if set(random.kinds) & set(RANDOM) or "STOCHASTIC" in random.text:
        return counts
    for dtype in (np.float64, np.float32):
        wanted = forward_backward(make(random, dtype), random)
        set_mode_gpu()
        try:
            made = forward_backward(make(random, dtype), random)
        finally:
            set_mode_cpu()
        exact = dtype == np.float64
        left_out = agree(f"GPU in {dtype.__name__}", made, wanted, DOUBLE if exact else SINGLE, None if exact else random)
        counts["left out: unsteady values, device"] += left_out
    counts["on the device"] += 1
    return counts


def _outputs(net: Net) -> Arrays:
    seed(3)
    return {name: values.copy() for name, values in net.forward().items()}


def _weights(net: Net) -> Arrays:
    return {f"{name}[{i}]": blob.data.copy() for name, blobs in net.params.items() for i, blob in enumerate(blobs)}


def _same(what: str, one: Arrays, other: Arrays) -> None:
    for name, values in one.items():
        if values.tobytes() != other[name].tobytes() or values.shape != other[name].shape:
            raise FoundError(f"{what}: {name} is not the same")


def _memory() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None
