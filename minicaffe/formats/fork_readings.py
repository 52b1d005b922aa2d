"""Fields of a .caffemodel's blocks that forks read in different ways. They are translated if the file decides, else refused.

A number is one field in BVLC Caffe and another in a fork: pooling_param's 13 is round_mode, ceil_mode or avg_include_pad. The
readings that the file's fork leaves are compared: equal ones are one, of unequal ones none is guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto

from minicaffe.errors import in_brackets, listed
from minicaffe.proto import caffe_pb2

from .fork_numbers import (
    BUTD,
    CAFFE_OCR,
    CEIL_MODE,
    CTPN,
    DEEP_DETECT,
    DEEPLAB,
    FRCNN,
    HAPPYNEAR,
    INTEL,
    LOSS,
    MAKEFILE,
    MICROSOFT,
    MNC,
    NOH,
    NUMBERS,
    NVIDIA,
    NVIDIA_15,
    OURS,
    PRE_FIXED_3,
    PSPNET,
    PSROIALIGN,
    RFCN,
    SEGNET,
    SOEAVER,
    UNSKY,
    Origin,
    block_places,
    own_blocks,
    raw_layer,
)
from .values import is_repeated
from .wire import BYTES, EIGHT_BYTES, FOUR_BYTES, VARINT, Buffer, Field, delimited, encoded, fields

SCALE_TRAIN = (FRCNN, RFCN, MICROSOFT, PSROIALIGN, MAKEFILE, MNC, CTPN, UNSKY, BUTD, SOEAVER, OURS)
HOLES = (17, 18, 19)
V1_CONVOLUTION = 10
_LAYER = caffe_pb2.LayerParameter.DESCRIPTOR.fields_by_name
_BLOCKS = {field.number for field in _LAYER.values() if field.message_type and field.number > LOSS}
_KINDS = {
    FieldDescriptor.TYPE_FLOAT: FOUR_BYTES, FieldDescriptor.TYPE_DOUBLE: EIGHT_BYTES,
    FieldDescriptor.TYPE_STRING: BYTES, FieldDescriptor.TYPE_BYTES: BYTES, FieldDescriptor.TYPE_MESSAGE: BYTES,
}  # fmt: skip
_IGNORED = {("batch_norm_param", 15), ("dropout_param", 3)}
"""Fields of others' messages that minicaffe's schema lacks and that have no effect on the numbers: engine, random_seed. The
schemas of forks reserve the numbers of such fields."""


class ForkError(Exception):
    """A field that cannot be read without knowing the file's fork, or whose meaning is not supported."""


@dataclass(frozen=True)
class Reading:
    """The meaning of a field in some forks (in all others, if none is named).

    content: the field in minicaffe's numbers, b"" if it computes what its absence does; None: not built.
    """

    forks: tuple[str, ...]
    meaning: str
    content: bytes | None = b""


@dataclass(frozen=True)
class Block:
    """A layer's block in a file: its layer, name and number, the file's possible forks, and how many blobs the layer has.

    loss: whether the layer is a loss.
    """

    layer: str
    name: str
    number: int
    forks: tuple[str, ...] = ()
    blobs: int = 0
    loss: bool = False


def todays_layer(buffer: Buffer, item: Field, found: Origin) -> bytes:
    """Return a V2 layer without its blobs as a net's field 100, with the fork's field numbers translated to minicaffe's.

    A layer keeps the blocks of its type only, as Caffe reads no other. found: the possible origins, for numbers whose meaning
    differs between forks. Raises ForkError and WireError.
    """
    layer = raw_layer(buffer, item)
    places, known = block_places(layer), bool(own_blocks(layer.type))
    blobs = sum(inner.number == 7 for inner in layer.fields)
    parts: list[bytes] = []
    for inner in layer.fields:
        name = places.get(inner.number, "") if inner.kind == BYTES else ""
        if name:
            block = Block(layer.name, name, inner.number, found.certain, blobs, "Loss" in layer.type)
            parts.append(delimited(_LAYER[name].number, todays_block(buffer, inner.start, inner.end, block)))
        elif inner.number == LOSS and inner.kind == BYTES:
            parts.append(delimited(LOSS, _todays_loss(buffer, inner, found.forks)))
        # NVIDIA's fields at the blocks' numbers are integers.
        elif inner.number != 7 and not (inner.number in _BLOCKS and (known or inner.kind != BYTES)):
            parts.append(bytes(buffer[inner.offset : inner.end]))
    return delimited(100, b"".join(parts))


def _todays_loss(buffer: Buffer, block: Field, forks: tuple[str, ...]) -> bytes:
    """Return loss_param with the normalization of R-CNN's forks in minicaffe's numbers, without NVIDIA's label_smoothing."""
    parts = []
    for item in fields(buffer, block.start, block.end):
        raw = bytes(buffer[item.offset : item.end])
        if item.number == 3 and forks and set(forks) <= set(PRE_FIXED_3) and item.value in (3, 4):
            raw = _integer(3, 7 - item.value)  # these forks swap our 3 and 4
        elif item.number == 4 and forks == (NVIDIA,):
            continue
        parts.append(raw)
    return b"".join(parts)


Reader = Callable[[Field, Sequence[Field], Block], list[Reading]]


def todays_block(buffer: Buffer, start: int, end: int, block: Block) -> bytes:
    """Return the block's fields in minicaffe's numbers. Raises ForkError and WireError."""
    if block.name.endswith("data_param"):  # inputs replace data layers when a net is made
        return bytes(buffer[start:end])
    inside = list(fields(buffer, start, end))
    parts = [_DEFAULTS.get((block.name, block.number), b"")]
    if names := _OTHER_NUMBERS.get((block.name, block.number)):
        return b"".join([*parts, *(_named(buffer, item, names, block) for item in inside)])
    for item in inside:
        reader = _READERS.get((block.name, item.number))
        readings = reader(item, inside, block) if reader else []
        content = _chosen(item, readings, block) if readings else _known(buffer, item, block)
        raw = bytes(buffer[item.offset : item.end])
        parts.append(raw if content is None else content)
    return b"".join(parts)


_DEFAULTS = {
    ("upsample_param", 150): encoded(1 << 3) + encoded(1),
    ("ctc_loss_param", 159): encoded(2 << 3) + encoded(0),
    ("ctc_decoder_param", 158): encoded(1 << 3) + encoded(0),
    ("focal_loss_param", 156): encoded(5 << 3) + encoded(1),
}
"""Fields whose default is another in the fork that numbers the block so: MobileNet-YOLO's scale, caffe_ocr's blank_index; and
FocalLoss's axis, which tells DeepDetect's kind."""

_OTHER_NUMBERS = {("focal_loss_param", 156): {1: "engine", 2: "axis", 3: "alpha", 4: "gamma"}}
"""The fields of a block of the fork that numbers the block so, where it numbers nearly all of them otherwise: DeepDetect's."""


def _named(buffer: Buffer, item: Field, names: Mapping[int, str], block: Block) -> bytes:
    """Return a field, which has one of these names, under minicaffe's number. Raises ForkError."""
    known = _descriptor(block.name).fields_by_name.get(names.get(item.number, ""))
    if known is None or item.kind != _KINDS.get(known.type, VARINT) or item.kind not in (VARINT, FOUR_BYTES):
        raise ForkError(
            f'layer "{block.layer}": {block.name} field {item.number} belongs to a fork\'s field that minicaffe lacks'
        )
    if item.kind == VARINT:
        return _integer(known.number, item.value)
    # The last of several values counts.
    return encoded(known.number << 3 | FOUR_BYTES) + bytes(buffer[item.end - 4 : item.end])


def _chosen(item: Field, readings: Sequence[Reading], block: Block) -> bytes:
    """Return the content on which the readings of the file's forks agree. Raises ForkError."""
    named, by = {fork for reading in readings for fork in reading.forks}, set(block.forks)
    left = [reading for reading in readings if by & set(reading.forks) or (not reading.forks and by - named)] or readings
    contents = {reading.content for reading in left}
    if len(contents) == 1 and (content := contents.pop()) is not None:
        return content
    where = f'layer "{block.layer}": {block.name} field {item.number}'
    if len(left) == 1:
        raise ForkError(f"{where} is {left[0].meaning} of {_names(left[0].forks)}, which is not built")
    said = "; ".join(f"{reading.meaning} in {_names(reading.forks)}" for reading in left)
    raise ForkError(f"{where} is {said}: name the fork that wrote the file{in_brackets('fork=', '--fork')}")


def _names(forks: Sequence[str]) -> str:
    return listed(forks) if forks else "BVLC Caffe and others"


def _known(buffer: Buffer, item: Field, block: Block) -> bytes | None:
    """Return None if the field is minicaffe's, b"" if it has no effect. Raises ForkError for a field of another fork."""
    known = _descriptor(block.name).fields_by_number.get(item.number)
    where = f'layer "{block.layer}": {block.name} field {item.number}'
    value = buffer[item.start : item.end]
    if known is None:
        if _is_reserved(block.name, item.number) or block.loss or (item.kind != BYTES and not any(value)):
            return b""  # a net gets probabilities instead of the loss, so fields such as hard_ratio have no effect
        raise ForkError(f"{where} belongs to a fork's field that minicaffe lacks")
    kind = _KINDS.get(known.type, VARINT)
    if item.kind != kind and not (item.kind == BYTES and kind != BYTES and is_repeated(known)):
        raise ForkError(f"{where} is not {known.name}, which is what minicaffe and BVLC Caffe have there")
    if known.enum_type is not None and item.kind == VARINT and item.value not in known.enum_type.values_by_number:
        if known.name == "engine":
            return b""
        raise ForkError(f"{where} is {known.name} {item.value}, a value of another fork")
    return None


def _is_reserved(block: str, number: int) -> bool:
    """Return whether a field has no effect on the numbers."""
    message = DescriptorProto()
    _descriptor(block).CopyToProto(message)
    return (block, number) in _IGNORED or any(kept.start <= number < kept.end for kept in message.reserved_range)


def _integer(number: int, value: int) -> bytes:
    return encoded(number << 3 | VARINT) + encoded(value)


def _descriptor(block: str) -> Descriptor:
    found = _LAYER[block].message_type
    assert found is not None, "a block is a message"
    return found


def _number(block: str, name: str) -> int:
    """Return minicaffe's number of a block's field."""
    return int(_descriptor(block).fields_by_name[name].number)


def _bool(item: Field) -> str:
    return "true" if item.value else "false"


def _round_mode(item: Field, inside: Sequence[Field], block: Block) -> list[Reading]:
    if item.kind == FOUR_BYTES:
        return [Reading((HAPPYNEAR,), "blobs_lr")]  # only pooling methods that are refused anyway read it
    raw, on = _integer(13, item.value), bool(item.value)
    if any(other.number == _number("pooling_param", "ceil_mode") for other in inside):
        return [Reading((OURS,), "round_mode", raw)]  # minicaffe writes both fields
    mean = any(other.number == 1 and other.value == 1 for other in inside)
    ceil_mode = b"" if on else _integer(_number("pooling_param", "ceil_mode"), 0)
    avg_include_pad = _integer(_number("pooling_param", "avg_include_pad"), 0) if mean and not on else b""
    return [
        Reading((), f"round_mode: {'FLOOR' if on else 'CEIL'}", raw if on else b""),
        Reading(CEIL_MODE, f"ceil_mode: {_bool(item)}", ceil_mode),
        Reading((INTEL,), f"avg_include_pad: {_bool(item)}", avg_include_pad),
        Reading((DEEPLAB,), f"do_spm: {_bool(item)}", None if on else b""),
    ]


def _ceil_mode(item: Field, inside: Sequence[Field], block: Block) -> list[Reading]:
    """Return the reading of ceil_mode next to round_mode: minicaffe wrote the file. Without round_mode return none."""
    return [Reading((OURS,), "ceil_mode")] if any(other.number == 13 for other in inside) else []


def _hole(item: Field, inside: Sequence[Field], block: Block) -> list[Reading]:
    ours = {"hole": 0, "hole_h": 0, "hole_w": 0}
    ours = {name: _number("convolution_param", name) for name in ours}
    name = ("hole", "hole_h", "hole_w")[item.number - 17]
    if item.kind != VARINT:
        return []
    hole = Reading((DEEPLAB,), f"{name}: {item.value}", b"" if item.value == 1 else _integer(ours[name], item.value))
    if _is_deeplab(inside, block):
        return [hole]
    if item.number == 17:
        return [Reading((), f"force_nd_im2col: {_bool(item)}")]
    if item.number == 18:
        return []  # 18 is minicaffe's dilation
    if {ours["hole"], ours["hole_h"]} & {other.number for other in inside}:
        return []  # minicaffe's hole_w
    tuned = Reading((NVIDIA, NVIDIA_15, HAPPYNEAR, DEEP_DETECT), f"cuDNN's algorithm {item.value}")
    return [tuned, Reading((OURS,), hole.meaning, hole.content)] if item.value == 2 else [tuned] if item.value < 2 else []


def _is_deeplab(inside: Sequence[Field], block: Block) -> bool:
    """Return whether a convolution's fields 17 to 19 are holes.

    There are three cases: DeepLab's own numbers; V1, where BVLC had no such fields; a 17 above 1, since BVLC's is a bool.
    """
    numbered = block.number != _LAYER[block.name].number
    return numbered or DEEPLAB in block.forks or any(f.number == 17 and f.kind == VARINT and f.value > 1 for f in inside)


def _dropout(item: Field, inside: Sequence[Field], block: Block) -> list[Reading]:
    engine = Reading((NVIDIA,), f"engine {item.value}")
    if item.value > 1:
        return [engine]
    on = bool(item.value)
    return [
        engine,
        Reading(SCALE_TRAIN, f"scale_train: {_bool(item)}", b"" if on else _integer(2, 0)),
        Reading((SEGNET,), f"sample_weights_test: {_bool(item)}", _integer(91001, 1) if on else b""),
        Reading((HAPPYNEAR,), f"sqrt_scale: {_bool(item)}", None if on else b""),
    ]


def _statistics(item: Field, inside: Sequence[Field], block: Block) -> list[Reading]:
    if item.kind == BYTES:  # caffe-windows has fillers at 7 and 8, NVIDIA one at 5
        return [] if item.number == 5 else [Reading((HAPPYNEAR,), "a learnt scale", None)]
    if item.number == 7 or item.value > 1:
        return []
    content = None if item.value else b""
    if item.number == 5:
        return [Reading((HAPPYNEAR,), f"disable_variance: {_bool(item)}", content)]
    return [
        Reading((PSPNET, CAFFE_OCR), f"update_global_stats: {_bool(item)}"),  # matters only in training
        Reading((HAPPYNEAR,), f"disable_mean: {_bool(item)}", content),
    ]


def _bn(item: Field, inside: Sequence[Field], block: Block) -> list[Reading]:
    """Return the reading of a BN's field: SegNet's fields have PSPNet's numbers.

    The number of stored blobs tells them apart, 2 or 4, else the block's number.
    """
    forks = NUMBERS["bn_param"].get(block.number, ())
    if CTPN in forks or any(other.number == 4 and other.kind == VARINT for other in inside):
        return [Reading((CTPN,), "a field of BN", None)]
    is_mode = any(other.number == 3 and other.kind == VARINT for other in inside)
    if is_mode or block.blobs == 2 or (block.blobs != 4 and set(forks) & {SEGNET, NOH}):
        names = {1: "scale_filler", 2: "shift_filler", 3: "bn_mode"}
        if item.number in names:
            return [Reading((SEGNET, NOH), names[item.number], _renumbered(item, _number("bn_param", names[item.number])))]
    return []


def _renumbered(item: Field, number: int) -> bytes:
    """Return a varint with another number, or an empty block in place of a filler.

    Once blobs are stored, only the presence of their filler matters.
    """
    return _integer(number, item.value) if item.kind == VARINT else delimited(number, b"")


def _moved(name: str, *numbers: int) -> Reader:
    """Return a reader of a field that has another number in minicaffe if its block has one of these numbers."""

    def reader(item: Field, inside: Sequence[Field], block: Block) -> list[Reading]:
        if block.number not in numbers:
            return []
        return [Reading((), name, _renumbered(item, _number(block.name, name)))]

    return reader


def _interp(item: Field, inside: Sequence[Field], block: Block) -> list[Reading]:
    linear = b"" if item.value == 1 else None
    return [Reading((DEEP_DETECT,), f"mode {item.value}", linear), Reading((SOEAVER,), f"use_blob_size: {_bool(item)}", None)]


_READERS: dict[tuple[str, int], Reader] = {
    ("pooling_param", 13): _round_mode,
    ("pooling_param", _number("pooling_param", "ceil_mode")): _ceil_mode,
    **{("convolution_param", number): _hole for number in HOLES},
    ("dropout_param", 2): _dropout,
    **{("batch_norm_param", number): _statistics for number in (4, 5, 7, 8)},
    **{("bn_param", number): _bn for number in (1, 2, 3, 4, 5, 6)},
    ("continuation_indicator_param", 2): _moved("axis", 158),
    ("ctc_loss_param", 1): _moved("alphabet_size", 157, 200),
    ("ctc_loss_param", 3): _moved("time_step", 157, 200),
    ("ctc_loss_param", 4): _moved("blank_label", 157, 200),
    ("interp_param", 7): _interp,
    ("proposal_target_param", 1): _moved("gt_iou_thr", 250),
    ("proposal_target_param", 2): _moved("stage", 250),
}
