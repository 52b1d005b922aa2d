"""An ONNX model from its file: parsed, checked, with its external weights. Sizes are checked before they are used."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError

from minicaffe import limits
from minicaffe.errors import Error, install
from minicaffe.files import opened, read_bytes

if TYPE_CHECKING:
    from onnx import FunctionProto, GraphProto, ModelProto, NodeProto


OLDEST, NEWEST = 9, 22
"""The opsets whose operators are read."""


def read_model(path: str | os.PathLike[str]) -> ModelProto:
    """Return the model with all weights in it and its local functions inlined.

    Raises Error, and OSError if it cannot be opened.
    """
    try:
        import onnx
        from onnx import inliner
    except ImportError:
        raise Error(f"the import needs onnx and onnxruntime: {install('onnx')}") from None
    name = os.fspath(path)
    try:
        model = onnx.ModelProto.FromString(read_bytes(path, "bytes"))
    except DecodeError as error:
        raise Error(f"{name}: damaged, or not an ONNX model ({error})") from error
    _check_opset(model, name)
    _check_size(model, name)
    try:
        onnx.checker.check_model(name)
    except Exception as error:  # the checker's own, and those of its C++ code
        raise Error(f"{name}: not a valid ONNX model: {error}") from error
    if model.functions:
        add_defaults(model, name)
        model = inliner.inline_local_functions(model)
    _load_external(model, name)
    return model


def _check_opset(model: ModelProto, name: str) -> None:
    versions = {item.domain: item.version for item in model.opset_import}
    if not model.graph.node and not model.graph.output:
        raise Error(f"{name}: no graph in it: is it an ONNX model?")
    opset = versions.get("", versions.get("ai.onnx", 0))
    if not OLDEST <= opset <= NEWEST:
        advice = "export it with another one, or convert it with onnx.version_converter"
        raise Error(f"{name}: opset {opset}: opsets {OLDEST} to {NEWEST} are read; {advice}")


def _check_size(model: ModelProto, name: str) -> None:
    """Raise Error for sparse weights, and for a graph that is too large, also once its local functions are inlined."""
    check_unfolded(model, name)
    if model.graph.sparse_initializer:
        weight = model.graph.sparse_initializer[0].values.name
        raise Error(f'{name}: the weight "{weight}" is sparse: export the model with dense weights')


def _load_external(model: ModelProto, name: str) -> None:
    """Read the weights in other files.

    Raises Error if they are larger than those files: a file is read once, not a hundred times.
    """
    from onnx import TensorProto, external_data_helper, helper

    tensors = [tensor for tensor in model.graph.initializer if tensor.data_location == TensorProto.EXTERNAL]
    folder = Path(name).absolute().parent
    files, needed = {}, 0
    for tensor in tensors:
        place = {entry.key: entry.value for entry in tensor.external_data}
        file = folder / place.get("location", "")
        if file not in files:
            with opened(file) as handle:
                files[file] = os.fstat(handle.fileno()).st_size
        count = math.prod(max(dim, 0) for dim in tensor.dims)
        length = count * helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
        if _number(place, "offset") + length > files[file] or _number(place, "length", length) != length:
            raise Error(f'{name}: the weight "{tensor.name}" needs {length:,} bytes, which {file.name} does not have for it')
        needed += length
    if needed > sum(files.values()):
        raise Error(f"{name}: its weights take {needed:,} bytes, and the files of weights have {sum(files.values()):,}")
    limits.check(f"{name}: its weights", needed, "bytes")
    for tensor in tensors:
        try:
            external_data_helper.load_external_data_for_tensor(tensor, os.fspath(folder))
        except Exception as error:  # the checker's ValidationError, OSError, ValueError
            raise Error(f'{name}: the weight "{tensor.name}" cannot be read: {error}') from error
        tensor.data_location = TensorProto.DEFAULT
        del tensor.external_data[:]


def _number(place: Mapping[str, str], key: str, default: int = 0) -> int:
    text = place.get(key, str(default))
    return int(text) if text.isdecimal() and len(text) < 20 else -1


# The size of a model once its local functions are inlined: nested calls let a small file grow to any size.


DEEPEST = 100
"""Most calls and sub-graphs inside each other: onnx's inliner recurses, and lengthens every name with each call."""
ROOM = 2**28
"""Bytes that copies of functions may take beyond four times those of the model."""
NAME, SUFFIX = 64, 8
"""Bytes that a name takes besides its characters, and the characters that the inliner adds to it with each call."""

_Key = tuple[str, str, str]


@dataclass(frozen=True)
class _Copy:
    """A block of nodes as the inliner copies it. depth: the number of calls and sub-graphs around it.

    attributes, names: the numbers of bytes that the call puts in place of the function's attributes, and of its inputs and
    outputs.
    """

    block: GraphProto | FunctionProto
    depth: int = 0
    attributes: Mapping[str, int] = field(default_factory=dict)
    names: Mapping[str, int] = field(default_factory=dict)

    def length(self, name: str) -> int:
        return self.names.get(name, len(name) + SUFFIX * self.depth)

    def substituted(self, node: NodeProto) -> int:
        """Return the number of bytes in a node's names, and in the attributes that it takes from the call."""
        names = [node.name, *node.input, *node.output]
        given = (self.attributes.get(a.ref_attr_name, 0) for a in node.attribute if a.ref_attr_name)
        return sum(map(self.length, names)) + NAME * len(names) + sum(given)

    def called(self, node: NodeProto, function: FunctionProto) -> _Copy:
        """Return the copy that a call makes."""
        attributes = {a.name: a.ByteSize() for a in function.attribute_proto}
        attributes |= {
            a.name: self.attributes.get(a.ref_attr_name, 0) if a.ref_attr_name else a.ByteSize() for a in node.attribute
        }
        pairs = [*zip(function.input, node.input, strict=False), *zip(function.output, node.output, strict=False)]
        return _Copy(function, self.depth + 1, attributes, {formal: self.length(actual) for formal, actual in pairs})


def check_unfolded(model: ModelProto, name: str) -> None:
    """Check the graph's size with its sub-graphs, and with a function's body in place of each call. Raises Error.

    The walk visits what the inliner would write, and stops at the first step beyond a limit.
    """
    functions = _functions(model)
    sizes = {key: function.ByteSize() for key, function in functions.items()}
    _check_chains(functions, name)
    nodes = calls = size = 0
    room = ROOM + 4 * model.ByteSize()
    copies = [_Copy(model.graph)]
    while copies:
        copy = copies.pop()
        if copy.depth > DEEPEST:
            raise Error(f"{name}: its functions or sub-graphs nest more than {DEEPEST} deep, or a function calls itself")
        for node in copy.block.node:
            function = functions.get(key := _key(node.domain, node.op_type, node.overload))
            nodes, calls = (nodes + 1, calls) if function is None else (nodes, calls + 1)
            limits.check(f"{name}: the graph", max(nodes, calls), "layers")
            graphs = _graphs(node, name, called=function is not None)
            copies += [_Copy(graph, copy.depth + 1, copy.attributes, copy.names) for graph in graphs]
            if copy.depth:  # the model's own nodes are not copied
                size += copy.substituted(node)
            if function is not None:
                copies.append(copy.called(node, function))
                size += sizes[key] + sum(copies[-1].attributes.values())
            if size > room:
                raise Error(f"{name}: the copies of its functions take more than {room:,} bytes")


def add_defaults(model: ModelProto, name: str) -> None:
    """Give each call the default attributes of its function that it lacks. onnx's inliner leaves them out. Raises Error."""
    functions = {key: function for key, function in _functions(model).items() if function.attribute_proto}
    room = ROOM
    for block in _blocks([model.graph, *model.functions]) if functions else ():
        for node in block.node:
            if (function := functions.get(_key(node.domain, node.op_type, node.overload))) is None:
                continue
            given = {attribute.name for attribute in node.attribute}
            added = [attribute for attribute in function.attribute_proto if attribute.name not in given]
            room -= sum(attribute.ByteSize() for attribute in added)
            if room < 0:
                raise Error(f"{name}: the default attributes of its functions take more than {ROOM:,} bytes in their calls")
            node.attribute.extend(added)


def _functions(model: ModelProto) -> dict[_Key, FunctionProto]:
    return {_key(f.domain, f.name, f.overload): f for f in model.functions}


def _blocks(outer: Sequence[GraphProto | FunctionProto]) -> Iterator[GraphProto | FunctionProto]:
    """Yield these blocks and the sub-graphs of their nodes."""
    blocks = [*outer]
    while blocks:
        yield (block := blocks.pop())
        for node in block.node:
            for attribute in node.attribute:
                blocks += [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]


def _check_chains(functions: dict[_Key, FunctionProto], name: str) -> None:
    """Raise Error for calls nested too deep, also in functions that nothing calls, because onnx's code walks these too."""
    calls = {key: {*_called(function, functions)} for key, function in functions.items()}
    depth: dict[_Key, int] = {}
    with suppress(CycleError):
        for key in TopologicalSorter(calls).static_order():
            depth[key] = 1 + max((depth[called] for called in calls[key]), default=0)
    if len(depth) < len(calls) or max(depth.values(), default=0) > DEEPEST:
        raise Error(f"{name}: its functions or sub-graphs nest more than {DEEPEST} deep, or a function calls itself")


def _called(function: FunctionProto, functions: dict[_Key, FunctionProto]) -> Iterator[_Key]:
    """Yield the functions that a function's nodes and sub-graphs call."""
    for block in _blocks([function]):
        for node in block.node:
            if (key := _key(node.domain, node.op_type, node.overload)) in functions:
                yield key


def _key(domain: str, name: str, overload: str) -> _Key:
    return "" if domain == "ai.onnx" else domain, name, overload


def _graphs(node: NodeProto, name: str, *, called: bool) -> Iterator[GraphProto]:
    """Yield the node's sub-graphs.

    Raises Error where a call hands one over: the function's body may copy it any number of times.
    """
    from onnx import AttributeProto

    kinds = AttributeProto.GRAPH, AttributeProto.GRAPHS
    for attribute in node.attribute:
        handed = called and (attribute.HasField("g") or attribute.graphs)
        if handed or (attribute.ref_attr_name and attribute.type in kinds):
            raise Error(f'{name}: node "{node.name}" ({node.op_type}) passes a sub-graph to a function, which is not supported')
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs
