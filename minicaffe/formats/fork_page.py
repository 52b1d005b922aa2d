"""The forks' fields as text for a terminal, and as docs/forks.md.

python -m minicaffe forks --markdown -o docs/forks.md
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from .forks import ANY, Effect, Fork, ForkField, fork_fields, forks

WIDTH = 80
ORDER = (Effect.NOT_BUILT, Effect.REFUSED, Effect.NONE, Effect.HONOURED)
HEAD = """# The forks of Caffe

minicaffe knows {known} forks of Caffe by name. {forks} of them have fields that BVLC Caffe lacks, {fields} in all.
This page lists these fields by fork. `minicaffe forks NAME` prints the list of one fork.
BVLC Caffe's own fields are not listed, because minicaffe has all of them.

A message is a part of a prototxt: `LayerParameter` is a layer, and `PoolingParameter` is its block `pooling_param`.
With the fields under "Honoured", minicaffe computes what the fork computes. The tables list all other fields:

| here | minicaffe |
|---|---|
| not built | stops with an error, because the field changes the numbers |
| refused | stops with an error that `--skip-unknown` does not prevent |
| no effect | skips the field quietly, because it does not change the numbers |

- To compute without a field that is not built, use `--skip-unknown` (in Python `strict=False`).
- To run a net with a refused field, delete the field.
- A value listed as harmless has the same effect as a missing field. minicaffe accepts it.

`--fork` and `fork=` take the names on this page, and the names of these forks without own fields:
{others}.

[layers.md](layers.md) lists the layer types that are built in.

## Where forks disagree

Some forks use one type name for different layers. minicaffe chooses a layer in this order:

1. by the layer's fields, bottoms, tops and `param` blocks;
2. by the number and shapes of the stored blobs;
3. by the fork that you name: `--fork NAME`, or `fork="NAME"` in Python;
4. by layers of the net that only one family of forks has.

If none of these decides, the net is refused with [a list of the candidates](porting.md#which-fork).

| type | fork | what the layer computes | signs in the files | `--fork` |
|---|---|---|---|---|
{disagreements}

"Default" means that minicaffe uses this layer if there is no other sign.

- **BatchNorm**: with `happynear` the default `moving_average_fraction` is 0.99 instead of 0.999.
- **BoxData**: without a named fork the net's other layers decide. `DetectionLoss` or `EvalDetection` of cells select labels
  of cells. `DetectionOutput` of one bottom selects labels of boxes.
- **Crop**: all Crops of a net are of the same fork. minicaffe writes the offsets into `crop_param`.
- **Lstm**: the named fork decides before the bottom's axes. Stored weights can change the choice.
- **RegionLoss**: the named fork decides before the number of truths.
- **ROIAlign**: `BoxOutput`, `BoxGroupOutput` or `DecodeBBox` layers make a net Cascade R-CNN's, if no fork is named.

Forks also use field 13 of `pooling_param` in a .caffemodel differently. The file's other fields decide, then `--fork`:

- BVLC: `round_mode`, where 1 rounds down
- Cascade R-CNN, py-RFCN-priv, makefile/frcnn: `ceil_mode`, where 1 rounds up
- Intel: `avg_include_pad`
"""
SHORT = {Effect.NONE: "no effect", Effect.NOT_BUILT: "not built", Effect.REFUSED: "refused"}
"""The effects in the page's tables."""
MISSING = "not built in"
DISAGREEMENTS = (
    ("BN", "PSPNet", "learnt slope and bias, stored mean and variance",
     "`slope_filler`, `bias_filler`, `momentum`, `eps`, `frozen`; over 2 `param` blocks; 4 blobs", "pspnet happynear tsn"),
    ("BN", "SegNet, DeconvNet", "learnt scale and shift; the batch's statistics in every phase",
     "`scale_filler`, `shift_filler`, `bn_mode`; 3 tops; 2 blobs", "segnet noh synopsys"),
    ("BN", "CTPN", MISSING, "`var_eps`, `moving_average`, `decay`, `axis`", ""),
    ("BatchNorm", "BVLC", "blobs: sums of mean and variance, factor", "default; 3 blobs", "bvlc"),
    ("BatchNorm", "Intel", "BVLC's blobs, then scale and bias", "4 blobs or `param` blocks", "intel"),
    ("BatchNorm", "NVIDIA 0.17", "blobs: mean, variance, correction, and optionally scale, bias",
     "`scale_bias`, `scale_filler`, `bias_filler`; 5 blobs, the third with one value", "nv17"),
    ("BatchNorm", "NVIDIA 0.15", "blobs: scale, bias, mean, variance, correction",
     "5 blobs, the last with one value; 5 `param` blocks", "nv15"),
    ("Normalize", "SSD", "a learnt scale, for each position or for the image", "`norm_param`; `param` blocks; 1 blob",
     "ssd refinedet beniz mkfrcnn nv17 yolo intel synopsys textboxes opencv"),
    ("Normalize", "caffe-windows", "L1 or L2 for each position, without a scale",
     "`normalize_param`; a second top; no stored blob", "happynear"),
    ("Normalize", "PSPNet", MISSING, "", "pspnet"),
    ("Upsample", "SegNet", "values at the places of a mask", "two bottoms", "segnet beniz"),
    ("Upsample", "MobileNet-YOLO", "repeated pixels", "one bottom", "yolo"),
    ("ROIAlign", "Caffe", "maxima of samples", "default", ""),
    ("ROIAlign", "Mask R-CNN", "means of samples", "`sampling_ratio`; `pool: AVE`", ""),
    ("ROIAlign", "Cascade R-CNN, MS-CNN", "samples at the corners of the bins", "`pad_ratio`", "cascade mscnn"),
    ("ROIAlign", "makefile/frcnn, Synopsys", MISSING, "`bi_type`", "mkfrcnn synopsys"),
    ("Proposal", "py-faster-rcnn", "a Python layer", "`python_param`", ""),
    ("Proposal", "PVANET", "scales in units of `base_size`", "`proposal_param`", "pvanet"),
    ("Proposal", "caffe-windows", "scales in pixels", "`proposal_param`", "happynear"),
    ("ProposalTarget", "py-faster-rcnn", "a Python layer", "default", ""),
    ("ProposalTarget", "Cascade R-CNN, MS-CNN", "targets of several images", "`proposal_target_param`", ""),
    ("DetectionOutput", "SSD", "detections from priors", "three or four bottoms", ""),
    ("DetectionOutput", "RefineDet", "refines the priors first", "five bottoms; a fourth of shape (N, P * 2)", ""),
    ("DetectionOutput", "caffe-yolov2", "detections from YOLO's maps, as `YoloDetectionOutput`", "one bottom", ""),
    ("PriorBox", "SSD", "each box once in a cell", "default", "ssd"),
    ("PriorBox", "TextBoxes", "each box twice, the second half a cell lower", "", "textboxes"),
    ("PriorBox", "OpenCV", "each box at each pair of offsets", "`offset_h` and `offset_w`", "opencv"),
    ("PriorBox", "FaceBoxes", "`min_size` 32 at 16 places, 64 at 4 places", "", "faceboxes"),
    ("DetectionEvaluate", "SSD", "boxes in parts of the image", "two bottoms", ""),
    ("DetectionEvaluate", "Cascade R-CNN", "boxes in pixels, with the images' sizes", "three bottoms", ""),
    ("DetectionLoss", "caffe-yolo", "YOLO's first loss", "default", ""),
    ("DetectionLoss", "MS-CNN", "the loss of one field at each cell", "`cls_num`", ""),
    ("EvalDetection", "caffe-yolo", "YOLO's first version", "no `biases`", ""),
    ("EvalDetection", "caffe-yolov2", "boxes from anchors", "`biases`; labels (N, 5 T)", ""),
    ("EvalDetection", "Intel", "boxes from anchors", "`biases`; labels (1, 1, G, 8)", ""),
    ("RegionLoss", "MobileNet-YOLO", "a sum, divided by the number of images", "default", "yolo"),
    ("RegionLoss", "caffe-yolov2", "a sum; `rescore` is not read", "30 truths per image", "yolov2"),
    ("BoxData", "caffe-yolo", "labels of cells", "", "yolov1"),
    ("BoxData", "caffe-yolov2", "labels of 30 boxes", "", "yolov2"),
    ("FrcnnRoiData", "caffe-faster-rcnn", "omits difficult boxes, mirrors images", "", "dxy"),
    ("FrcnnRoiData", "makefile/frcnn", "keeps difficult boxes, shrinks by means of areas", "settings that only this fork reads",
     "mkfrcnn"),
    ("DecodeBBox", "Cascade R-CNN, MS-CNN", "deltas of one class", "deltas (R, 8), rois", ""),
    ("DecodeBBox", "makefile/frcnn", "deltas and scores of several classes", "deltas (R, 4 K), scores (R, K), rois", ""),
    ("MultiBoxLoss", "SSD", "the loss of all priors", "four bottoms", ""),
    ("MultiBoxLoss", "RefineDet", "filters and refines the priors first", "six bottoms", ""),
    ("FocalLoss", "makefile/frcnn, py-RFCN-priv, DeepDetect", "alpha (1 - p)^gamma", "`axis`, `engine`; alpha 1",
     "mkfrcnn soeaver beniz"),
    ("FocalLoss", "caffe-windows", "(alpha - p)^gamma", "`type: ONEADDP`", "happynear"),
    ("CTCLoss", "ChWick", "takes labels and indicators", "this spelling", ""),
    ("CtcLoss", "crnn.caffe", "calls warp-ctc", "this spelling", ""),
    ("WarpCTCLoss", "caffe_ocr", "labels (N, L), or labels with lengths", "two bottoms", "caffeocr"),
    ("WarpCTCLoss", "ChWick", MISSING, "", "ctc"),
    ("CTCGreedyDecoder", "ChWick", "scores with indicators (T, N)", "three bottoms; a second of shape (T, N)", "ctc"),
    ("CTCGreedyDecoder", "caffe_ocr", "scores; optionally labels (N, L)", "one bottom; a second of shape (N, L)", "caffeocr"),
    ("LSTM", "BVLC", "an unrolled net", "this spelling", ""),
    ("Lstm", "caffe-lstm", "steps and streams in one axis", "two axes, or another `batch_size`; stored weights", "jlstm"),
    ("Lstm", "CTPN, caffe_ocr, makefile/frcnn", "steps and streams in two axes",
     "three axes, unless `batch_size` differs from the second; stored weights", "ctpn caffeocr mkfrcnn"),
    ("SigmoidCrossEntropyLoss", "BVLC", "all targets have the same weight", "default", "bvlc"),
    ("SigmoidCrossEntropyLoss", "HED", "the rarer target weighs more, image by image", "", "hed"),
    ("SigmoidCrossEntropyLoss", "RCF", "as HED; zeros weigh 1.1 times as much", "", "rcf"),
    ("SigmoidCrossEntropyLoss", "MNC", "weights from a bottom", "three bottoms", ""),
    ("Pooling", "BVLC", "means count the padding", "default; `avg_include_pad: true`", "bvlc"),
    ("Pooling", "Intel", "means omit the padding", "`avg_include_pad: false`", "intel"),
    ("ContrastiveLoss", "BVLC", "takes whether two items are alike", "three bottoms", ""),
    ("ContrastiveLoss", "caffe-windows", "takes a label of each item", "four bottoms", ""),
    ("Embed", "BVLC", "appends an axis", "default", ""),
    ("Embed", "bottom-up-attention", MISSING, "", "butd"),
    ("Crop", "BVLC", "takes `axis` and `offset`", "`crop_param` in any Crop of the net", "bvlc rcf"),
    ("Crop", "FCN of 2014", "aligns its bottoms by the layers between them", "whole offsets for every Crop",
     "longjon hed crfrnn"),
    ("ImageLabelmapData", "HED", "labels 0 and 1", "default", "hed"),
    ("ImageLabelmapData", "RCF", "labels 0 to 0.5 and 1", "", "rcf"),
    ("VideoData", "C3D", "clips of the listed videos", "`use_image`, `sampling_rate` or similar; a list of files", "c3d c3dv1"),
    ("VideoData", "SSD", "the frames of one video", "`video_file`", "ssd refinedet nv17 beniz"),
    ("VideoData", "temporal segment networks", "frames from parts of the videos",
     "`num_segments`, `modality`, `name_pattern`; a list of folders", "tsn"),
)  # fmt: skip
"""Type, owner of the layer, function, signs, and the names of the forks that choose it."""


def text(chosen: Sequence[Fork]) -> str:
    """Return the fields of each fork, at most 80 columns wide."""
    return "\n".join(line for fork in chosen for line in _section(fork))


def known_forks() -> int:
    """Return the number of forks in forks.tsv, except BVLC Caffe itself."""
    return len(forks()) - 1


def markdown() -> str:
    """Return the text of docs/forks.md."""
    rows = "\n".join(map(_disagreement, DISAGREEMENTS))
    bare = [f"`{fork.name}`" for fork in forks().values() if not _of(fork)]
    known = known_forks()
    head = HEAD.format(
        fields=len(fork_fields()), known=known, forks=known - len(bare) + 1, others=", ".join(bare), disagreements=rows
    )
    return head + "".join(_markdown_section(fork) for fork in forks().values() if _of(fork))


def _disagreement(row: Sequence[str]) -> str:
    kind, owner, function, signs, names = row
    return f"| `{kind}` | {owner} | {function} | {signs} | {_code(names.split())} |"


def records(chosen: Sequence[Fork]) -> list[dict[str, Any]]:
    """Return the forks with their fields, for JSON."""
    return [
        {**asdict(fork), "fields": [{**asdict(field), "effect": field.effect.value} for field in _of(fork)]} for fork in chosen
    ]


def _of(fork: Fork) -> list[ForkField]:
    return [field for field in fork_fields() if fork.title in field.forks]


def _groups(fork: Fork, effect: Effect) -> Iterator[tuple[str, str, tuple[str, ...], list[str]]]:
    """Yield the message, sentence and harmless values that fields share, and the fields' names.

    Messages of other types are left out: no layer here reads them.
    """
    groups: dict[tuple[str, str, tuple[str, ...]], list[str]] = {}
    for field in _of(fork):
        if field.effect is effect and field.name != ANY:
            name = f"{field.name}: {field.value}" if field.value else field.name
            groups.setdefault((field.message, field.sentence, field.harmless), []).append(name)
    for (message, sentence, harmless), names in groups.items():
        yield "any message" if message == ANY else message, sentence, harmless, names


def _section(fork: Fork) -> Iterator[str]:
    yield f"{fork.name}: {fork.title} ({fork.repository})"
    if not _of(fork):
        yield "  no fields that BVLC Caffe lacks"
    for effect in ORDER:
        for i, (message, sentence, harmless, names) in enumerate(_groups(fork, effect)):
            if i == 0:
                yield f"  {effect.value}"
            yield _wrapped(f"{message}: {', '.join(names)}", 4)
            if sentence:
                yield _wrapped(_shown(sentence, harmless), 8)
    yield ""


def _wrapped(line: str, indent: int) -> str:
    return textwrap.fill(line, WIDTH, initial_indent=" " * indent, subsequent_indent=" " * (indent + 2), break_on_hyphens=False)


def _shown(sentence: str, harmless: tuple[str, ...]) -> str:
    return f"{sentence} (harmless: {', '.join(harmless)})" if harmless else sentence


def _markdown_section(fork: Fork) -> str:
    rows = [
        f"| `{message}` | {_code(names)} | {_shown(sentence, harmless)} | {SHORT[effect]} |\n"
        for effect in ORDER[:-1]
        for message, sentence, harmless, names in _groups(fork, effect)
    ]
    table = ["\n| message | fields | what a field does | here |\n|---|---|---|---|\n", *rows] if rows else []
    items = [f"- `{message}`: {_code(names)}\n" for message, _, _, names in _groups(fork, Effect.HONOURED)]
    honoured = ["\nHonoured:\n\n", *items] if items else []
    return "".join([f"\n## {fork.title}\n\n`{fork.name}`, {fork.repository}.\n", *table, *honoured])


def _code(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
