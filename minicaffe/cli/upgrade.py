"""minicaffe upgrade"""

from __future__ import annotations

from dataclasses import dataclass

import click
from google.protobuf.message import DecodeError, EncodeError

from minicaffe.errors import PrototxtError, WeightsError
from minicaffe.files import read_bytes, replacing
from minicaffe.formats.prototxt import read_net, read_solver, to_text
from minicaffe.formats.skipped import skip
from minicaffe.formats.upgrade import upgrade_net
from minicaffe.formats.wire import MESSAGE_BYTES
from minicaffe.net_arguments import unknown_of_file
from minicaffe.proto import caffe_pb2

from .groups import UnknownFieldOptions
from .options import argument, option, with_options
from .terminal import echo

TOO_LONG = "the net has {:,} bytes, and protobuf converts at most 2 GB; minicaffe reads the old file; Net.save writes it anew"


@dataclass(frozen=True, kw_only=True)
class Options(UnknownFieldOptions):
    source: str = argument(metavar="IN")
    target: str = argument(metavar="OUT")
    solver: bool = option("--solver", "Read IN as a solver prototxt.")
    binary: bool = option("--binary", "Read IN as a .caffemodel, whatever its name.")


@with_options(Options)
def command(options: Options) -> None:
    """Convert IN, a net prototxt, solver prototxt (--solver) or .caffemodel of any age, to the current format; write it to OUT.

    The names of Caffe's tools also work: upgrade_net_proto_text, upgrade_net_proto_binary, upgrade_solver_proto_text.

    Example:  minicaffe upgrade old_v1.prototxt new.prototxt
    """
    source, target, solver = options.source, options.target, options.solver
    binary = options.binary or source.endswith(".caffemodel")
    if source.endswith(".h5"):
        raise WeightsError(f"{source}: weights in HDF5 have no older form; there is nothing to upgrade")
    if solver and binary:
        raise click.UsageError(f"--solver is for a solver prototxt, but {source} is read as a .caffemodel")
    if binary:
        upgraded = upgraded_binary(source)
        with replacing(target) as path:
            path.write_bytes(_bytes_of(upgraded, target))
        echo(f"written: {target} ({len(upgraded.layer)} layers)")
        return
    message = read_solver(source) if solver else _net(source)
    with replacing(target) as path:
        path.write_text(to_text(message), encoding="utf-8")
    echo(f"written: {target}")


def _net(source: str) -> caffe_pb2.NetParameter:
    """The upgraded net of a prototxt, of which nothing that matters may get lost. Raises PrototxtError."""
    file = read_net(source, warn=False)
    skip(unknown_of_file(file, None))
    return file.param


def upgraded_binary(source: str) -> caffe_pb2.NetParameter:
    """A .caffemodel of any age in the current format. Raises Error."""
    data = read_bytes(source, "bytes")
    if not data:
        raise WeightsError(f"{source}: the file is empty")
    if len(data) > MESSAGE_BYTES:
        raise WeightsError(f"{source}: {TOO_LONG.format(len(data))}")
    try:
        param = caffe_pb2.NetParameter.FromString(data)
    except DecodeError as error:
        raise WeightsError(f"{source}: not a .caffemodel that protobuf can read ({error})") from error
    if not (param.layer or param.layers):
        raise PrototxtError("no layers in it: is it a .caffemodel?", file=source)
    return upgrade_net(param)[0]


def _bytes_of(net: caffe_pb2.NetParameter, target: str) -> bytes:
    try:
        return net.SerializePartialToString()
    except EncodeError as error:
        raise WeightsError(f"{target}: {TOO_LONG.format(net.ByteSize())}") from error
