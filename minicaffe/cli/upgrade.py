"""minicaffe upgrade"""

from __future__ import annotations

import click
from google.protobuf.message import DecodeError

from minicaffe.errors import PrototxtError, WeightsError
from minicaffe.files import read_bytes, replacing
from minicaffe.formats.prototxt import read_net, read_solver, to_text
from minicaffe.formats.upgrade import upgrade_net
from minicaffe.proto import caffe_pb2

from .terminal import echo


@click.command()
@click.argument("source", metavar="IN")
@click.argument("target", metavar="OUT")
@click.option("--solver", is_flag=True, help="IN is a solver prototxt.")
@click.option("--binary", is_flag=True, help="IN is a .caffemodel, whatever its name.")
def command(source: str, target: str, solver: bool, binary: bool) -> None:
    """Bring IN, a net prototxt, solver prototxt (--solver) or .caffemodel of any age, to today's format and write it to OUT.

    The names of Caffe's tools work too: upgrade_net_proto_text, upgrade_net_proto_binary, upgrade_solver_proto_text.

    Example:  minicaffe upgrade old_v1.prototxt new.prototxt
    """
    if source.endswith(".h5"):
        raise WeightsError(f"{source}: weights in HDF5 have no older form: there is nothing to upgrade")
    if solver and (binary or source.endswith(".caffemodel")):
        raise click.UsageError(f"--solver is for a solver prototxt, and {source} is to be read as a .caffemodel")
    if binary or source.endswith(".caffemodel"):
        upgraded = upgraded_binary(source)
        with replacing(target) as path:
            path.write_bytes(upgraded.SerializePartialToString())
        echo(f"written: {target} ({len(upgraded.layer)} layers)")
        return
    message = read_solver(source) if solver else read_net(source).param
    with replacing(target) as path:
        path.write_text(to_text(message), encoding="utf-8")
    echo(f"written: {target}")


def upgraded_binary(source: str) -> caffe_pb2.NetParameter:
    """A .caffemodel of any age in today's format. Raises Error."""
    data = read_bytes(source, "bytes")
    if not data:
        raise WeightsError(f"{source}: the file is empty")
    try:
        param = caffe_pb2.NetParameter.FromString(data)
    except DecodeError as error:
        raise WeightsError(f"{source}: not a .caffemodel that protobuf can read ({error})") from error
    if not (param.layer or param.layers):
        raise PrototxtError("no layers in it: is it a .caffemodel?", file=source)
    return upgrade_net(param)[0]
