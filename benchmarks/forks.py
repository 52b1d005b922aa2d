"""Layers of forks, forward and backward, compared with PyTorch's operators of the same function or a plain C++ loop.

    python -m benchmarks forks --threads 1 [--rows Interp] [--write]

float32, maps of an image of 600 x 1000: at its size, a half, a quarter and an eighth of it. Results are compared first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

import minicaffe
from benchmarks._contenders import both, leave_out, same
from benchmarks._meanfield import NAME, meanfield_row
from benchmarks._report import OURS, Row, Table, options
from benchmarks._smoke import smoking, usual
from benchmarks._timing import interleaved
from minicaffe import TRAIN, Blob
from minicaffe.formats.prototxt import parse_net
from minicaffe.layers import create

Array = NDArray[Any]


@dataclass(frozen=True)
class Case:
    """A layer: its prototxt, the shapes of its bottoms, and the same function of (torch, torch.nn.functional, tensors).

    mask: whether the last bottom is a mask of 2 x 2 max pooling; flow: whether it is a flow that points into the image.
    differentiable: how many of the bottoms get a gradient.
    """

    name: str
    layer: str
    shapes: Sequence[tuple[int, ...]]
    peer: Callable[..., Any]
    mask: bool = False
    flow: bool = False

    @property
    def differentiable(self) -> int:
        return len(self.shapes) - self.mask


def resize(height: int, width: int) -> Callable[..., Any]:
    return lambda torch, f, x: f.interpolate(x, (height, width), mode="bilinear", align_corners=True)


def warp(torch: Any, f: Any, x: Any, flow: Any) -> Any:
    height, width = x.shape[2:]
    places = torch.stack(torch.meshgrid(torch.arange(width), torch.arange(height), indexing="xy")) + flow
    grid = places.permute(0, 2, 3, 1) * torch.tensor([2 / (width - 1), 2 / (height - 1)]) - 1
    return f.grid_sample(x, grid, align_corners=True)


def correlate(most: int, step: int) -> Callable[..., Any]:
    """Return the products with b, displaced in steps up to a maximum of pixels."""

    def peer(torch: Any, f: Any, a: Any, b: Any) -> Any:
        (height, width), moves = a.shape[2:], range(0, 2 * most + 1, step)
        padded = f.pad(b, (most,) * 4)
        moved = (padded[:, :, p : p + height, o : o + width] for p in moves for o in moves)
        return torch.stack([(a * other).mean(1) for other in moved], 1)

    return peer


CASES = [
    Case(
        "Interp, 21 x 75 x 125 zoomed by 8",
        'type: "Interp" interp_param { zoom_factor: 8 }',
        [(1, 21, 75, 125)],
        resize(593, 993),
    ),
    Case(
        "Interp, 512 x 75 x 125 zoomed by 2",
        'type: "Interp" interp_param { zoom_factor: 2 }',
        [(1, 512, 75, 125)],
        resize(149, 249),
    ),
    Case(
        "Interp, 21 x 600 x 1000 shrunk by 8",
        'type: "Interp" interp_param { shrink_factor: 8 }',
        [(1, 21, 600, 1000)],
        resize(75, 125),
    ),
    Case(
        "Interp, 64 x 600 x 1000 shrunk by 2",
        'type: "Interp" interp_param { shrink_factor: 2 }',
        [(1, 64, 600, 1000)],
        resize(300, 500),
    ),
    Case(
        "Interp, 64 x 600 x 1000 to 473 x 713",
        'type: "Interp" interp_param { height: 473 width: 713 }',
        [(1, 64, 600, 1000)],
        resize(473, 713),
    ),
    Case(
        "Upsample by 2, 256 x 150 x 250",
        'type: "Upsample" upsample_param { scale: 2 }',
        [(1, 256, 150, 250)],
        lambda torch, f, x: f.interpolate(x, scale_factor=2, mode="nearest"),
    ),
    Case(
        "Upsample with a mask, 64 x 300 x 500",
        'type: "Upsample" upsample_param { scale: 2 }',
        [(1, 64, 300, 500)] * 2,
        lambda torch, f, x, mask: f.max_unpool2d(x, mask, 2),
        mask=True,
    ),
    Case(
        "Axpy, 256 x 150 x 250",
        'type: "Axpy"',
        [(1, 256), (1, 256, 150, 250), (1, 256, 150, 250)],
        lambda torch, f, a, x, y: a[:, :, None, None] * x + y,
    ),
    Case(
        "ShuffleChannel, 240 x 150 x 250, 3 groups",
        'type: "ShuffleChannel" shuffle_channel_param { group: 3 }',
        [(1, 240, 150, 250)],
        lambda torch, f, x: torch.channel_shuffle(x, 3),
    ),
    Case(
        "Correlation, 256 x 75 x 125, 441 displacements",
        'type: "Correlation" correlation_param { kernel_size: 1 max_displacement: 20 pad: 20 stride_1: 1 stride_2: 2 }',
        [(1, 256, 75, 125)] * 2,
        correlate(20, 2),
    ),
    Case(
        "Correlation, 32 x 75 x 125, 81 displacements",
        'type: "Correlation" correlation_param { kernel_size: 1 max_displacement: 4 pad: 4 stride_1: 1 stride_2: 1 }',
        [(1, 32, 75, 125)] * 2,
        correlate(4, 1),
    ),
    Case("FlowWarp, 3 x 300 x 500", 'type: "FlowWarp"', [(1, 3, 300, 500), (1, 2, 300, 500)], warp, flow=True),
    Case("FlowWarp, 64 x 150 x 250", 'type: "FlowWarp"', [(1, 64, 150, 250), (1, 2, 150, 250)], warp, flow=True),
]
CASES = usual(CASES, CASES[8:9])


def main(arguments: Sequence[str] = ()) -> None:
    given = options("forks", __doc__ or "").parse_args(arguments)
    table = Table("forks", ("layer", "direction", "threads"), (*OURS, "torch", "C++ loop"))
    for case in CASES:
        if given.rows in case.name:
            add(table, case)
    if given.rows in NAME:
        table.add(meanfield_row())
    if given.write:
        table.write()


def add(table: Table, case: Case) -> None:
    """Add the two rows of one layer."""
    arrays = inputs(case)

    def make() -> dict[str, Callable[[], Any]]:
        ours = Ours(case, arrays)
        ours.forward()
        ours.backward()
        return {"forward": ours.forward, "backward": ours.backward, "itself": lambda: ours}

    runs = both(make)
    ours = [run() for run in runs.pop("itself").values()]
    theirs = None if smoking() else torchs(case, arrays, ours)
    for direction, contenders in runs.items():
        if theirs:
            contenders["torch"] = getattr(theirs, direction)
        table.add(Row((case.name, direction, str(minicaffe.get_num_threads())), interleaved(contenders, seconds=3)))


def inputs(case: Case) -> list[Array]:
    """Normal numbers; as a mask, a place of each 2 x 2 window; as a flow, some five pixels, to between four
    pixels of the image, where the slope has no jump."""
    random = np.random.default_rng(0)
    arrays = [random.standard_normal(shape, dtype=np.float32) for shape in case.shapes]
    if case.mask:
        *_, rows, columns = case.shapes[-1]
        row, column = (random.integers(0, 2, case.shapes[-1]) for _ in range(2))
        places = 2 * np.arange(rows)[:, None] + row, 2 * np.arange(columns) + column
        arrays[-1] = (places[0] * 2 * columns + places[1]).astype(np.float32)
    if case.flow:
        size = np.array(case.shapes[-1][:1:-1])[:, None, None]
        here = np.mgrid[: size[1, 0, 0], : size[0, 0, 0]][::-1]
        pixels = np.clip(np.round(here + 5 * arrays[-1]), 0, size - 2)
        arrays[-1] = (pixels + random.uniform(0.2, 0.8, arrays[-1].shape) - here).astype(np.float32)
    return arrays


class Ours:
    """The layer with its blobs, whose tops have normal diffs."""

    def __init__(self, case: Case, arrays: Sequence[Array]) -> None:
        names = "".join(f' bottom: "{i}"' for i in range(len(arrays)))
        param = parse_net(f'layer {{ name: "one"{names} top: "y" {case.layer} }}').param.layer[0]
        self.bottom, self.top = [Blob(array.shape) for array in arrays], [Blob()]
        for blob, array in zip(self.bottom, arrays, strict=True):
            blob.data[...] = array
        self.layer = create(param, phase=TRAIN)
        self.layer.connect(self.bottom, self.top)
        self.top[0].diff[...] = np.random.default_rng(1).standard_normal(self.top[0].shape, dtype=np.float32)
        self.asked = [i < case.differentiable for i in range(len(arrays))]

    def forward(self) -> None:
        self.layer.forward(self.bottom, self.top)

    def backward(self) -> None:
        self.layer.backward(self.top, self.asked, self.bottom)


def torchs(case: Case, arrays: Sequence[Array], ours: Sequence[Ours]) -> Any:
    """PyTorch's function with the same numbers, compared with each of ours; None without PyTorch."""
    try:
        import torch
        from torch.nn import functional
    except Exception as error:  # an import of broken libraries may raise anything
        return leave_out("torch", error)
    torch.set_num_threads(minicaffe.get_num_threads())

    class Theirs:
        def __init__(self) -> None:
            tensors = [torch.from_numpy(array.copy()) for array in arrays]
            self.given = [tensor.requires_grad_() for tensor in tensors[: case.differentiable]]
            self.more = [tensor.long() for tensor in tensors[case.differentiable :]]
            self.y, self.dy = self.run(), torch.from_numpy(ours[0].top[0].diff.copy())

        def run(self) -> Any:
            return case.peer(torch, functional, *self.given, *self.more)

        def forward(self) -> Any:
            with torch.no_grad():
                return self.run()

        def backward(self) -> Any:
            return torch.autograd.grad(self.y, self.given, self.dy, retain_graph=True)

    theirs = Theirs()
    for one in ours:
        same(case.name, one.top[0].read_data(), theirs.forward().numpy(), 1e-4)
        for i, gradient in enumerate(theirs.backward()):
            same(f"{case.name}: gradient {i}", one.bottom[i].diff, gradient.numpy(), 1e-4)
    return theirs
