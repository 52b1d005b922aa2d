"""Extreme values in every field of every layer: python tests/fuzz/fields.py [TYPE ...] [--seconds T] [--cases N] [--seed S]

Each case is a small valid net (field_nets.py) with one field of its layer changed: to 0, -1, the ends of its type, NaN and
infinity, text with a NUL, and for repeated ones none, one and many of these. It is made, and runs forward and backward once,
with small limits. A finding is an exception that is no minicaffe.Error, 2 seconds of CPU time, or 4 times the memory that the
limits allow. The order is the seed's; the last line says with which --from a run that --seconds ended goes on.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from field_nets import LAYERS, net_text, write_files
from google.protobuf.descriptor import FieldDescriptor as Field

from minicaffe import TRAIN, Error, Net, kernels, limits
from minicaffe.formats.prototxt import parse_net
from minicaffe.proto import caffe_pb2

LIMITS = {"blob_elements": 1 << 20, "layers": 200, "bytes": 1 << 24}
SLOW = 2.0
MEMORY = 4 * LIMITS["bytes"]
NOT_MEANT = ("name", "type", "bottom", "top", "phase", "include", "exclude")
"""Fields of a layer that say what net it is in."""

FLOATS = [0.0, -1.0, 1.0, 1e-45, 3.4e38, -3.4e38, float("inf"), float("-inf"), float("nan"), 0.5, 1e9]
VALUES: dict[int, list[Any]] = {
    Field.CPPTYPE_INT32: [0, -1, 1, 2, 100_000, 2**31 - 1, -(2**31)],
    Field.CPPTYPE_INT64: [0, -1, 1, 2, 100_000, 2**31, 2**63 - 1, -(2**63)],
    Field.CPPTYPE_UINT32: [0, 1, 2, 3, 100_000, 2**31 - 1, 2**31, 2**32 - 1],
    Field.CPPTYPE_FLOAT: FLOATS,
    Field.CPPTYPE_DOUBLE: [*FLOATS, 1e308],
    Field.CPPTYPE_BOOL: [False, True],
    Field.CPPTYPE_STRING: ["", "\0", "x", "x" * 100_000, "../../x", "\x1b[2J\n", "\u00e9", "'a': [", "[]", "{}", "1"],
}


class Case(NamedTuple):
    """A layer's type, the field's path, and the value put there."""

    kind: str
    path: str
    value: Any

    def __str__(self) -> str:
        text = repr(self.value)
        return f"{self.kind} {self.path} = {text if len(text) < 60 else text[:40] + '...'}"


def cases(kind: str) -> Iterator[Case]:
    """Every case of a layer type."""
    layer = parse_net(net_text(kind)).param.layer[-1]
    for field in layer.DESCRIPTOR.fields:
        if field.name in NOT_MEANT or (field.name.endswith("_param") and not layer.HasField(field.name)):
            continue
        yield from (Case(kind, path, value) for path, value in _of_field(field, field.name, 2))


def _of_field(field: Any, path: str, deeper: int) -> Iterator[tuple[str, Any]]:
    if field.message_type:
        for inner in field.message_type.fields if deeper else ():
            yield from _of_field(inner, f"{path}.{inner.name}", deeper - 1)
        return
    values = [v.number for v in field.enum_type.values] if field.enum_type else VALUES[field.cpp_type]
    if not (field.is_repeated if hasattr(field, "is_repeated") else field.label == field.LABEL_REPEATED):  # protobuf 4
        yield from ((path, value) for value in values)
        return
    yield path, []
    for value in values:
        yield from ((path, [value] * count) for count in (1, 2, 3))
    yield path, [values[-1]] * 1000


def changed(case: Case) -> caffe_pb2.NetParameter:
    """The net of a case."""
    param = parse_net(net_text(case.kind)).param
    *outer, name = case.path.split(".")
    message: Any = param.layer[-1]
    for part in outer:
        message = getattr(message, part)
        message = message if hasattr(message, "DESCRIPTOR") else (message[0] if message else message.add())
    if isinstance(case.value, list):
        message.ClearField(name)
        getattr(message, name).extend(case.value)
    else:
        setattr(message, name, case.value)
    return param


def found(case: Case, again: bool = False) -> str:
    """What is wrong with the outcome of a case; nothing where it is right. again: its loops are compiled."""
    memory, start = _peak(), time.process_time()
    try:
        with limits.raised(LIMITS), warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.filterwarnings("ignore", category=UserWarning)
            _run(changed(case))
    except Error as error:
        if isinstance(error.__cause__, MemoryError):
            return f"out of memory: {error}"[:300]
    except Exception:
        return "".join(traceback.format_exc(limit=-3))
    seconds, more = time.process_time() - start, _peak() - memory
    if (seconds > SLOW or more > MEMORY) and kernels.compiled() and not again:  # it may be the compiler's
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak is counted anew
        return found(case, again=True)
    return f"{seconds:.1f} seconds" if seconds > SLOW else f"{more >> 20} MiB" if more > MEMORY else ""


def _run(param: caffe_pb2.NetParameter) -> None:
    net = Net(param, TRAIN)
    for name in net.inputs:
        net.blobs[name].data[...] = 0.5
    net.forward()
    net.backward()


def _bound_memory() -> None:
    """Let the process take 1 GiB more than it has, so that a finding does not take the machine's."""
    size = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + (1 << 30), resource.RLIM_INFINITY))


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def check(args: argparse.Namespace) -> int:
    """Run the cases in the working directory, and print what is found; how many findings."""
    write_files()
    every = [case for kind in args.kinds or LAYERS for case in cases(kind)]
    random.Random(args.seed).shuffle(every)
    end, count, wrong = time.monotonic() + args.seconds, 0, 0
    for case in every[args.first :][: args.cases]:
        if time.monotonic() > end:
            break
        count += 1
        Path("now").write_text(str(case), encoding="utf-8")
        if text := found(case):
            wrong += 1
            print(f"\n{case}: {text}", flush=True)
    print(f"{count} of {len(every)} cases, {wrong} findings; the next: --from {args.first + count}")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("kinds", nargs="*", metavar="TYPE")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--cases", type=int, help="how many cases at most")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--from", type=int, default=0, dest="first", help="how many cases to pass over")
    args = parser.parse_args()
    _bound_memory()
    with tempfile.TemporaryDirectory(prefix="minicaffe-fields-") as folder:
        os.chdir(folder)
        wrong = check(args)
        os.chdir("/")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
