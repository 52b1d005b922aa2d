"""The nets of a solver prototxt: the train net, and a test net for each test_iter. Source: Caffe's solver.cpp (Init*Nets)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from minicaffe.errors import DataError, SolverError
from minicaffe.files import granted
from minicaffe.mode import TEST, TRAIN, Phase
from minicaffe.net import Net
from minicaffe.proto import caffe_pb2

TRAIN_FIELDS = ("net", "net_param", "train_net", "train_net_param")


MakeNet = Callable[..., Net]
"""Net, with the arguments that all nets of a solver have."""


def train_net(param: caffe_pb2.SolverParameter, folder: Path, make: MakeNet) -> Net:
    """Return the net that the solver trains. Raises SolverError unless it names exactly one."""
    given = [name for name in TRAIN_FIELDS if param.HasField(name)]  # type: ignore[arg-type]
    if len(given) != 1:
        raise SolverError(f"a solver needs exactly one of {', '.join(TRAIN_FIELDS)}; got {' and '.join(given) or 'none'}")
    return _net(getattr(param, given[0]), TRAIN, param.train_state, folder, make)


def test_nets(param: caffe_pb2.SolverParameter, folder: Path, make: MakeNet) -> list[Net]:
    """Return a test net for each test_iter: those of test_net_param, then of test_net, then the solver's net in TEST.

    Raises SolverError.
    """
    sources: list[str | caffe_pb2.NetParameter] = [*param.test_net_param, *param.test_net]
    iterations = len(param.test_iter)
    generic = param.net if param.HasField("net") else param.net_param if param.HasField("net_param") else None
    if iterations < len(sources) or (generic is None and iterations != len(sources)):
        raise SolverError(f"{iterations} test_iter given for {len(sources)} test nets: give one for each")
    if generic is not None:
        sources += [generic] * (iterations - len(sources))  # Caffe: the other test_iters are for net, in phase TEST
    if sources and param.test_interval <= 0:
        raise SolverError(f"test_interval must be > 0 when there are test nets, got {param.test_interval}")
    states = list(param.test_state)
    if states and len(states) != len(sources):
        raise SolverError(f"{len(states)} test_state given for {len(sources)} test nets: give one for each, or none")
    states = states or [caffe_pb2.NetState()] * len(sources)
    return [_net(source, TEST, state, folder, make) for source, state in zip(sources, states, strict=True)]


def found(name: str, folder: Path, *beside: Path) -> Path:
    """Return the path of a file that a solver names.

    The name is relative to the working directory as in Caffe, else to the solver's folder or one above it. Otherwise, if the
    name ends in FOLDER/FILE and the solver's folder is called FOLDER, the file is there ("models/zf/train.prototxt" for a
    solver in .../zf).

    Raises SolverError if the file is missing. Raises DataError unless it is in the solver's folder, in one of beside, or where
    a prototxt may name files (files.py).
    """
    refused: DataError | None = None
    for path in _candidates(Path(name), folder.resolve()):
        if path.is_file():
            try:
                return Path(granted(path, folder, *beside))
            except DataError as error:
                refused = refused or error
    raise refused or SolverError(f"{name}: no such file in the working directory, in the solver's folder {folder}, or above it")


def _candidates(name: Path, folder: Path) -> Iterator[Path]:
    yield name
    yield from (place / name for place in (folder, *folder.parents))  # a solver's paths may start at its project's root
    if name.parent.name == folder.name:
        yield folder / name.name


def _net(source: str | caffe_pb2.NetParameter, phase: Phase, state: caffe_pb2.NetState, folder: Path, make: MakeNet) -> Net:
    net = found(source, folder) if isinstance(source, str) else source
    return make(net, phase, level=state.level, stages=list(state.stage))
