"""The fork of Caffe that wrote a .caffemodel, found by the field numbers on which forks disagree; their translation to ours.

Names and blobs have the same numbers in every fork (caffemodel.py). The blocks of detection layers do not:
roi_pooling_param is 8266711 in caffe-fast-rcnn, 147 in Microsoft's Caffe (where BVLC has swish_param), 154 in Intel's, 229 in
mini-caffe. The layer's type, which is text, identifies the block.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from minicaffe.proto import caffe_pb2

from .wire import BYTES, FOUR_BYTES, VARINT, Buffer, Field, delimited, encoded, fields

FRCNN, RFCN, OPENCV = "Faster R-CNN (caffe-fast-rcnn)", "R-FCN (caffe-rfcn)", "OpenCV"
MICROSOFT, PSROIALIGN, INTEL, MINI = "Microsoft's Caffe", "R-FCN-PSROIAlign", "Intel Caffe", "mini-caffe (luoyetx)"
NVIDIA, SSD, OURS, GUIDE = "NVIDIA Caffe", "SSD", "minicaffe", "a vendor's ROIAlign guide"
CTPN, DEEP_DETECT, CRNN, CHWICK = "CTPN", "DeepDetect's Caffe", "crnn.caffe", "ChWick's Caffe (ctc-dev)"
SHUFFLENET, YOLO, YOLO2 = "ShuffleNet", "MobileNet-YOLO", "caffe-yolov2"
FRCNN_CXX, DEFORMABLE, RFCN_PRIV = "frcnn (makefile)", "Deformable-ConvNets-caffe (unsky)", "py-RFCN-priv (soeaver)"
SSDS = (SSD, NVIDIA, INTEL, OURS)
MS = (MICROSOFT, PSROIALIGN)
PRE_FIXED_3 = (RFCN, *MS, INTEL)
"""The forks whose LossParameter.normalization has PRE_FIXED = 3 and NONE = 4; elsewhere 3 is NONE."""

Numbers = dict[int, tuple[str, ...]]

_SMOOTH_L1: Numbers = {8266712: (FRCNN, RFCN, OURS), 148: (*MS, INTEL)}
BLOCKS: dict[str, tuple[str, Numbers]] = {
    "ROIPooling": ("roi_pooling_param", {8266711: (FRCNN, RFCN, OPENCV, OURS), 147: MS, 154: (INTEL,), 229: (MINI,)}),
    "SmoothL1Loss": ("smooth_l1_loss_param", _SMOOTH_L1),
    "SmoothL1LossOHEM": ("smooth_l1_loss_param", _SMOOTH_L1),
    "PSROIPooling": ("psroi_pooling_param", {10001: (RFCN, OURS), 149: MS, 153: (INTEL,), 225: (MINI,), 10002: (OPENCV,)}),
    "BoxAnnotatorOHEM": ("box_annotator_ohem_param", {10000: (RFCN, OURS), 150: MS, 152: (INTEL,)}),
    "PSROIAlign": ("psroi_align_param", {90000: (PSROIALIGN, OURS)}),
    "ROIAlign": ("roi_align_param", {90001: (OURS,), 154: (GUIDE,)}),
    "Proposal": ("proposal_param", {224: (MINI,), 201: (OPENCV,)}),
    "Normalize": ("norm_param", {206: SSDS, 149: (OPENCV,)}),
    "Permute": ("permute_param", {202: SSDS}),
    "PriorBox": ("prior_box_param", {203: SSDS}),
    "DetectionOutput": ("detection_output_param", {204: SSDS}),
    "MultiBoxLoss": ("multibox_loss_param", {201: SSDS}),
    "AnnotatedData": ("annotated_data_param", {200: SSDS}),
    "CTCGreedyDecoder": ("ctc_decoder_param", {149: (CHWICK,), 91010: (OURS,)}),
    "CTCLoss": ("ctc_loss_param", {148: (CHWICK,), 91009: (OURS,)}),
    "DeformableConvolution": ("deformable_convolution_param", {229: (FRCNN_CXX, OURS), 999: (DEFORMABLE, RFCN_PRIV)}),
    "DeformablePSROIPooling": ("deformable_psroi_pooling_param", {228: (FRCNN_CXX, OURS), 20006: (RFCN_PRIV,)}),
    "ContinuationIndicator": ("continuation_indicator_param", {201: (CRNN,), 91011: (OURS,)}),
    "LabelsequenceAccuracy": ("labelsequence_accuracy_param", {203: (CRNN,), 159: (DEEP_DETECT,), 91012: (OURS,)}),
    "Reorg": ("reorg_param", {149: (YOLO, OURS), 147: (YOLO2,)}),
    "Reverse": ("reverse_param", {143: (CTPN,), 209: (DEEP_DETECT,), 91007: (OURS,)}),
    "ShuffleChannel": ("shuffle_channel_param", {154: (SHUFFLENET, DEEP_DETECT, OURS)}),
    "Transpose": ("transpose_param", {142: (CTPN,), 91008: (OURS,)}),
}
"""By layer type: the block's name, and its numbers in the forks."""

NVIDIA_FIELDS = {
    145: "forward_type", 146: "backward_type", 147: "forward_math", 148: "backward_math", 149: "debug",
    150: "cudnn_math_override",
}  # fmt: skip
"""Integers in NVIDIA's layers, at the numbers of blocks in other forks."""

LOSS, DROPOUT, POOLING = 101, 108, 121
UNSUPPORTED = {(LOSS, 4, (NVIDIA,)), (DROPOUT, 2, (NVIDIA,)), (POOLING, 13, (INTEL,))}
"""Fields of those blocks whose meaning in the fork has no field in minicaffe."""


@dataclass(frozen=True)
class Evidence:
    """A field that only some forks write, or whose meaning differs between forks. forks: its possible origins."""

    layer: str
    sentence: str
    forks: tuple[str, ...]

    def __str__(self) -> str:
        return f'layer "{self.layer}": {self.sentence}'


@dataclass(frozen=True)
class Origin:
    """The forks that may have written a file; none if no field is specific to a fork."""

    forks: tuple[str, ...] = ()
    evidence: list[Evidence] = field(default_factory=list)

    def __str__(self) -> str:
        if not self.evidence:
            return "no field is specific to a fork: BVLC Caffe's, or any"
        return " or ".join(self.forks)


@dataclass(frozen=True)
class RawLayer:
    """A V2 layer in the file: its name, its type, all its fields."""

    name: str
    type: str
    fields: list[Field]


def raw_layers(buffer: Buffer) -> Iterator[RawLayer]:
    """The V2 layers of a serialised NetParameter. Raises WireError."""
    for item in fields(buffer, 0, len(buffer)):
        if item.number == 100 and item.kind == BYTES:
            yield raw_layer(buffer, item)


def raw_layer(buffer: Buffer, item: Field) -> RawLayer:
    """The V2 layer that item holds. Raises WireError."""
    inside = list(fields(buffer, item.start, item.end))
    texts = {f.number: buffer[f.start : f.end].decode("utf-8", "replace") for f in inside if f.number < 3 and f.kind == BYTES}
    return RawLayer(texts.get(1, ""), texts.get(2, ""), inside)


def origin(buffer: Buffer) -> Origin:
    """The forks that may have written a serialised NetParameter. Raises WireError."""
    found = [evidence for layer in raw_layers(buffer) for evidence in _evidence(buffer, layer)]
    every = list(dict.fromkeys(fork for evidence in found for fork in evidence.forks))
    common = [fork for fork in every if all(fork in evidence.forks for evidence in found)]
    return Origin(tuple(common or every), found)  # contradictory evidence: all that it names


def _evidence(buffer: Buffer, layer: RawLayer) -> Iterator[Evidence]:
    name, numbers = BLOCKS.get(layer.type, ("", {}))
    for item in layer.fields:
        if item.number in numbers and item.kind == BYTES:
            yield Evidence(layer.name, f"{name} is field {item.number}", numbers[item.number])
        elif item.number in NVIDIA_FIELDS and item.kind == VARINT:
            yield Evidence(layer.name, f"{NVIDIA_FIELDS[item.number]} (field {item.number})", (NVIDIA,))
        elif item.number == 7 and item.kind == BYTES:
            if any(inner.number in (10, 12) for inner in fields(buffer, item.start, item.end)):
                yield Evidence(layer.name, "a blob's values are raw data (fields 10 and 12)", (NVIDIA,))
        elif item.number in (LOSS, DROPOUT, POOLING) and item.kind == BYTES:
            yield from _inner_evidence(buffer, layer.name, item)


def _inner_evidence(buffer: Buffer, layer: str, block: Field) -> Iterator[Evidence]:
    """Fields whose meaning differs between forks, in blocks that all forks have."""
    forks: tuple[str, ...]
    for item in fields(buffer, block.start, block.end):
        where = (block.number, item.number, item.kind)
        if where == (LOSS, 3, VARINT) and item.value == 4:
            yield Evidence(layer, "loss_param.normalization 4: NONE there, PRE_FIXED in minicaffe", (*PRE_FIXED_3, OURS))
        elif where == (LOSS, 3, VARINT) and item.value == 3:
            forks = (*PRE_FIXED_3, "BVLC Caffe", FRCNN, NVIDIA, SSD)
            yield Evidence(layer, f"loss_param.normalization 3: PRE_FIXED in {', '.join(PRE_FIXED_3)}, NONE elsewhere", forks)
        elif where == (LOSS, 4, FOUR_BYTES):
            forks = (*PRE_FIXED_3, OURS, NVIDIA)
            yield Evidence(layer, f"loss_param field 4: label_smoothing in {NVIDIA}, pre_fixed_normalizer elsewhere", forks)
        elif where == (DROPOUT, 2, VARINT):
            forks = (NVIDIA,) if item.value > 1 else (FRCNN, RFCN, *MS, OURS, NVIDIA)
            yield Evidence(layer, f"dropout_param field 2: engine in {NVIDIA}, scale_train in the R-CNN forks", forks)
        elif where == (POOLING, 13, VARINT):
            forks = (INTEL, "BVLC Caffe", OURS)
            yield Evidence(layer, f"pooling_param field 13: avg_include_pad in {INTEL}, round_mode in BVLC Caffe", forks)


_LAYER = caffe_pb2.LayerParameter.DESCRIPTOR.fields_by_name
_MESSAGES = {f.number for f in _LAYER.values() if f.message_type}


def todays_layer(buffer: Buffer, item: Field, forks: tuple[str, ...]) -> bytes:
    """A V2 layer without its blobs, as a net's field 100, with the fork's field numbers translated to minicaffe's.

    forks: the possible origins, for numbers whose meaning differs between forks. Raises WireError."""
    layer = raw_layer(buffer, item)
    name, numbers = BLOCKS.get(layer.type, ("", {}))
    parts: list[bytes] = []
    for inner in layer.fields:
        if inner.number == 7:
            continue
        if inner.number in numbers and inner.kind == BYTES:
            if name in _LAYER:  # otherwise our schema lacks the block too
                parts.append(delimited(_LAYER[name].number, buffer[inner.start : inner.end]))
        elif inner.number in _MESSAGES and inner.kind != BYTES:
            continue  # NVIDIA's integers
        elif inner.number in (LOSS, DROPOUT, POOLING) and inner.kind == BYTES:
            parts.append(delimited(inner.number, _todays_block(buffer, inner, forks)))
        else:
            parts.append(bytes(buffer[inner.offset : inner.end]))
    return delimited(100, b"".join(parts))


def _todays_block(buffer: Buffer, block: Field, forks: tuple[str, ...]) -> bytes:
    """A block's bytes, without the fields whose meaning differs in the file's fork."""
    parts = []
    for item in fields(buffer, block.start, block.end):
        raw = bytes(buffer[item.offset : item.end])
        if (block.number, item.number) == (LOSS, 3) and forks and set(forks) <= set(PRE_FIXED_3) and item.value in (3, 4):
            raw = encoded(3 << 3 | VARINT) + encoded(7 - item.value)  # these forks have our 3 and 4 exchanged
        elif (block.number, item.number, forks) in UNSUPPORTED:  # dropped only if the fork is certain
            continue
        parts.append(raw)
    return b"".join(parts)
