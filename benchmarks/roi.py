"""The ROI layers, forward and backward, compared with torchvision, onnxruntime and a plain C++ loop.

    python -m benchmarks roi --threads 1 [--rows "ROIAlign AVE"] [--rois 300 2000] [--write]

float32, one map of 38 x 63, pooled to 7 x 7. Boxes are mixed (32 pixels to half the image), small (a twentieth to a fifth of
its sides) or large (half to all of them). Results are compared first if torchvision computes the same function.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import minicaffe
from benchmarks._contenders import both, leave_out, same, session_of
from benchmarks._loop import cpp_loop
from benchmarks._report import OURS, Row, Table, options
from benchmarks._roi import CASES, POOLED, SCALE, Array, Case, Roi, check_against_peer, inputs
from benchmarks._smoke import smoking, usual
from benchmarks._timing import interleaved
from minicaffe import TEST

Run = Callable[[], Any]

SIZE = usual((38, 63), (8, 9))
BOXES = usual({"mixed": None, "small": (0.05, 0.2), "large": (0.5, 1.0)}, {"mixed": None})
ALIGN = f"pooled_h: {POOLED} pooled_w: {POOLED} spatial_scale: {SCALE}"
MORE = [
    Case(
        "ROIAlign AVE, adaptive",
        f'type: "ROIAlign" roi_align_param {{ {ALIGN} pool: AVE }}',
        peer=lambda ops, x, rois: ops.roi_align(x, rois, POOLED, SCALE, sampling_ratio=-1, aligned=False),
    ),
    Case(
        "PSROIAlign, 3969 channels",
        f'type: "PSROIAlign" psroi_align_param {{ output_dim: 81 group_size: {POOLED} spatial_scale: {SCALE} }}',
        channels=81 * POOLED**2,
        peer=lambda ops, x, rois: ops.ps_roi_align(x, rois, POOLED, SCALE, 2),
        same=False,
    ),
]
ONNX = {
    "ROIPooling": ("MaxRoiPool", {"pooled_shape": [POOLED, POOLED], "spatial_scale": SCALE}),
    "ROIAlign AVE, 2 samples": ("RoiAlign", {"sampling_ratio": 2}),
    "ROIAlign AVE, adaptive": ("RoiAlign", {"sampling_ratio": 0}),
}
"""onnxruntime's operators that compute the same forward."""


def main(arguments: Sequence[str] = ()) -> None:
    parser = options("roi", __doc__ or "")
    parser.add_argument(
        "--rois", type=int, nargs="+", default=usual([300, 2000], [3]), help="numbers of rois (default 300 2000)"
    )
    given = parser.parse_args(arguments)
    names = (*OURS, "torchvision", "onnxruntime", "C++ loop")
    table = Table("roi", ("layer", "direction", "rois", "boxes", "threads"), names)
    for case in [*CASES, *MORE]:
        for count in given.rois:
            for boxes in BOXES if count <= 300 else ("mixed",):
                if given.rows in case.name:
                    add(table, case, count, boxes)
    if given.write:
        table.write()


def add(table: Table, case: Case, count: int, boxes: str) -> None:
    """Add the rows of one layer on one set of rois."""
    x, rois = inputs(case.channels, count, SIZE, BOXES[boxes])

    def make() -> dict[str, Run]:
        training, testing = Roi(case, x, rois), Roi(case, x, rois, TEST)
        results = training.results()
        testing.forward()
        same(f"{case.name}: TEST and TRAIN", testing.top[0].read_data(), results["forward"], 1e-5)
        with_argmax = {"forward, with argmax": training.forward} if case.argmax else {}
        return {"forward": testing.forward, **with_argmax, "backward": training.backward, "results": lambda: results}

    runs = both(make)
    plain, *fast = (run() for run in runs.pop("results").values())
    for results in fast:
        for direction, y in results.items():
            same(f"{case.name}, {direction}: with compiled loops and without", y, plain[direction], 1e-4)
    theirs = None if smoking() else torchvision(case, x, rois)
    forward: dict[str, Run] = {"torchvision": theirs.forward} if theirs else {}
    forward |= {} if smoking() else onnxruntime(case, x, rois)
    for peer, run in forward.items():
        if case.same:
            agree(f"{case.name}: {peer}", np.asarray(run()), plain["forward"])
    for direction, contenders in runs.items():
        if direction.startswith("forward"):
            contenders.update(forward)
            if case.name == "ROIPooling" and not smoking():
                contenders.update(cpp_loop(x, rois, argmax=direction != "forward"))
        elif theirs:
            contenders["torchvision"] = theirs.backward
        times = interleaved(contenders, seconds=0.7)
        keys = (case.name, direction, str(count), boxes, str(minicaffe.get_num_threads()))
        table.add(Row(keys, times))


def torchvision(case: Case, x: Array, rois: Array) -> Any:
    """torchvision's operator, compared with ours if it is the same function; None without one."""
    if case.peer is None:
        return None
    try:
        import torch

        from benchmarks._torch import RoiPeer

        torch.set_num_threads(minicaffe.get_num_threads())
    except Exception as error:  # an import of broken libraries may raise anything
        return leave_out("torchvision", error)
    theirs = RoiPeer(case.peer, torch.from_numpy(x.copy()), torch.from_numpy(rois))
    if case.same:
        check_against_peer(case, Roi(case, x, rois), theirs)
    return theirs


def onnxruntime(case: Case, x: Array, rois: Array) -> dict[str, Run]:
    """Return a model of one node, by the runtime's name; empty without an operator of the same function."""
    if case.name not in ONNX:
        return {}
    try:
        from onnx import TensorProto, helper
    except ImportError as error:
        leave_out("onnxruntime", error)
        return {}
    kind, more = ONNX[case.name]
    given = {"x": x, "rois": rois}
    if kind == "RoiAlign":
        more = {**more, "output_height": POOLED, "output_width": POOLED, "spatial_scale": SCALE, "mode": "avg"}
        more |= {"coordinate_transformation_mode": "output_half_pixel"}
        given = {"x": x, "rois": np.ascontiguousarray(rois[:, 1:]), "items": rois[:, 0].astype(np.int64)}
    types = {name: helper.np_dtype_to_tensor_dtype(array.dtype) for name, array in given.items()}
    ends = [helper.make_tensor_value_info(name, types[name], array.shape) for name, array in given.items()]
    graph = helper.make_graph(
        [helper.make_node(kind, list(given), ["y"], **more)],
        "roi",
        ends,
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 16)], ir_version=8)
    try:
        session = session_of(model.SerializeToString())
    except ImportError as error:
        leave_out("onnxruntime", error)
        return {}
    return {"onnxruntime": lambda: session.run(None, given)[0]}


def agree(what: str, found: Array, expected: Array) -> None:
    """Exit unless nearly all numbers agree; a few bin edges may round differently."""
    part = float(np.mean(np.isclose(found, expected, rtol=1e-4, atol=1e-4)))
    if part < 0.99:
        raise SystemExit(f"{what}: only {part:.1%} of the numbers agree")
