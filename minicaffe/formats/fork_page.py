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

minicaffe knows {known} forks of Caffe by name. {forks} of them have fields that BVLC Caffe lacks, {fields} in all; this page
says what each means here. `minicaffe forks` prints the tables, `minicaffe forks NAME` one fork's part. `--fork` also takes the
names without such fields: {others}.
BVLC Caffe's own fields are not listed: minicaffe has all of them.

- **honoured**: minicaffe computes what the fork does.
- **without effect on the numbers**: engines, workspaces, logging, memory, threads, and blocks of other layer types. Left out
  quietly.
- **changes the numbers, and is not built**: `--skip-unknown` (in Python `strict=False`) computes without the field. A value
  listed as harmless computes what the field's absence does.
- **changes the numbers, and is refused with an error**: the same, but `--skip-unknown` does not help: take the field out.

A fork's layer types are in [layers.md](layers.md) if they are built in.

## Where forks disagree

Forks gave one name to different layers. In this order, the choice follows the fields and blobs in the prototxt, the stored
weights, what the caller says (`--fork`, `fork=`), and without that layers of the net that only one family of forks has.

| name | the layers | what tells them apart |
|---|---|---|
{disagreements}
"""
DISAGREEMENTS = (
    ("`BN`", "PSPNet's: slope, bias, mean, variance. SegNet's and DeconvNet's: scale and shift, with the batch's statistics "
     "in every phase. CTPN's is not built", "`bn_param`'s fields; two further tops are SegNet's, more than two `param` blocks "
     "PSPNet's; 4 stored blobs or 2; `pspnet`, `segnet`, `noh`"),
    ("`BatchNorm`", "BVLC's: sums of mean and variance, and a factor. NVIDIA's 0.17: mean, variance, correction, then scale "
     "and bias if it has them. NVIDIA's 0.15: scale, bias, mean, variance, correction. Intel's: BVLC's, then scale and bias",
     "`scale_bias`, `scale_filler` and `bias_filler` are NVIDIA's; of 5 stored blobs, the one with a single value is third in "
     "0.17 and last in 0.15; 4 are Intel's; `nv15`, `nv17`, `intel`; without any sign BVLC's. With `happynear` the statistics' "
     "default fraction is 0.99, not 0.999"),
    ("`Normalize`", "SSD's: a learnt scale, over a position or an image. caffe-windows': no scale, L1 or L2. "
     "PSPNet's, of an image without a scale, is not built in",
     "`norm_param` or `normalize_param`; a second top is caffe-windows'; one stored blob is SSD's, none caffe-windows'; "
     "`ssd`, `happynear`, `pspnet`"),
    ("`Upsample`", "SegNet's: values at a mask's places. MobileNet-YOLO's: repeated pixels",
     "SegNet's has a second bottom, the mask"),
    ("`ROIAlign`", "Caffe's: maxima of samples. Mask R-CNN's: means. Cascade R-CNN's: samples at the corners of the bins. "
     "makefile/frcnn's and Synopsys' are not built", "`roi_align_param` is of the first two, `pad_ratio` Cascade R-CNN's; else "
     "`fork`, else layers that Cascade R-CNN and MS-CNN have: `BoxOutput`, `BoxGroupOutput`, `DecodeBBox`; else Caffe's"),
    ("`Proposal`", "py-faster-rcnn's Python layer. With `proposal_param`: PVANET's, whose scales count in `base_size`, and "
     "caffe-windows', whose scales count in pixels", "`python_param` or `proposal_param`; then `pvanet` or `happynear`"),
    ("`ProposalTarget`", "py-faster-rcnn's Python layer. Cascade R-CNN's, of several images", "`proposal_target_param`"),
    ("`DetectionOutput`", "SSD's. RefineDet's refines the priors first. caffe-yolov2's decodes YOLO's maps, as "
     "`YoloDetectionOutput` does", "five bottoms, or a fourth of shape (N, P * 2), are RefineDet's; one is caffe-yolov2's"),
    ("`PriorBox`", "SSD's. TextBoxes' makes each box twice, the second half a cell lower. OpenCV's makes it at each pair of "
     "`offset_h` and `offset_w`. FaceBoxes' makes a `min_size` of 32 at 16 places and one of 64 at 4",
     "`offset_h` is OpenCV's; `textboxes`, `faceboxes`; without any sign SSD's"),
    ("`DetectionEvaluate`", "SSD's takes boxes in parts of the image, Cascade R-CNN's in pixels, with the images' sizes",
     "three bottoms are Cascade R-CNN's"),
    ("`DetectionLoss`", "YOLO's. MS-CNN's, of one field at each cell", "`cls_num` is MS-CNN's"),
    ("`EvalDetection`", "caffe-yolo's, of YOLO's first version. caffe-yolov2's and Intel's, which differ in their labels",
     "`biases` are of the latter; labels (1, 1, G, 8) are Intel's"),
    ("`RegionLoss`", "MobileNet-YOLO's is divided by the number of images. caffe-yolov2's is not, and does not read `rescore`",
     "`yolo`, `yolov2`; else 30 truths an image are caffe-yolov2's"),
    ("`BoxData`", "caffe-yolo's labels are of cells. caffe-yolov2's are of 30 boxes",
     "layers `DetectionLoss` or `EvalDetection` of cells in the net; `yolov1`, `yolov2`"),
    ("`FrcnnRoiData`", "caffe-faster-rcnn's leaves difficult boxes out and mirrors images. makefile/frcnn's keeps them, and "
     "shrinks by means of areas", "settings that makefile/frcnn alone reads; `dxy`, `mkfrcnn`"),
    ("`DecodeBBox`", "Cascade R-CNN's has deltas of one class. makefile/frcnn's has deltas and scores of several",
     "the bottoms' shapes"),
    ("`MultiBoxLoss`", "SSD's. RefineDet's filters and refines the priors", "six bottoms are RefineDet's"),
    ("`Swish`", "BVLC's and MobileNet-YOLO's are the same function", "nothing needs to"),
    ("`CTCLoss`, `CtcLoss`", "ChWick's takes labels and indicators. crnn.caffe's calls warp-ctc", "the type's spelling"),
    ("`Lstm`, `LSTM`", "caffe-lstm's and CTPN's have one matrix for the input and one for the state. BVLC's unrolls",
     "the type's spelling"),
    ("`Lstm`", "caffe-lstm's takes steps and streams in one axis. CTPN's, caffe_ocr's and makefile's take them in two",
     "the stored weights; then `ctpn`, `caffeocr`, `mkfrcnn`, `jlstm`; else three axes are CTPN's, unless a `batch_size` is "
     "not the second's length"),
    ("`SigmoidCrossEntropyLoss`", "BVLC's. HED's weighs a target by its image's share of the other class; MNC's by a bottom",
     "three bottoms are MNC's; `hed`; without any sign BVLC's"),
    ("`Pooling`", "BVLC's means count padding. Those of Intel's MKL engines leave it out, without `avg_include_pad: true`",
     "`avg_include_pad`; `intel`; without any sign BVLC's"),
    ("`ContrastiveLoss`", "BVLC's takes whether the two are alike. caffe-windows' takes a label of each",
     "four bottoms are caffe-windows'"),
    ("`Embed`", "BVLC's appends an axis. bottom-up-attention's, which replaces a last axis of 1, is not built in", "`butd`"),
    ("`Crop`", "BVLC's takes `axis` and `offset`. That of 2014 aligns by the layers between its bottoms", "`crop_param` in any "
     "Crop of the net is BVLC's; then `bvlc`, `longjon`, `hed`, `crfrnn`; else, if every Crop has whole offsets, that of 2014"),
    ("`VideoData`", "C3D's: clips of the videos of a list. SSD's: the frames of one video. Temporal segment networks': frames "
     "of parts of videos", "`use_image`, `sampling_rate` and others are C3D's, `video_file` SSD's, `num_segments`, `modality`, "
     "`name_pattern` temporal segment networks'; else `fork`, else whether the list's first path is a folder"),
    ("`pooling_param`'s field 13, in a .caffemodel", "`round_mode` (BVLC, 1 rounds down), `ceil_mode` (Cascade R-CNN, "
     "py-RFCN-priv, makefile's, 1 rounds up), `avg_include_pad` (Intel)", "the file's other fields, else `--fork`"),
)  # fmt: skip
"""Type, layers, evidence."""


def text(chosen: Sequence[Fork]) -> str:
    """Return the fields of each fork, at most 80 columns wide."""
    return "\n".join(line for fork in chosen for line in _section(fork))


def known_forks() -> int:
    """Return the number of forks in forks.tsv, except BVLC Caffe itself."""
    return len(forks()) - 1


def markdown() -> str:
    """Return the text of docs/forks.md."""
    rows = "\n".join(f"| {' | '.join(row)} |" for row in DISAGREEMENTS)
    bare = [f"`{fork.name}`" for fork in forks().values() if not _of(fork)]
    known = known_forks()
    head = HEAD.format(
        fields=len(fork_fields()), known=known, forks=known - len(bare) + 1, others=", ".join(bare), disagreements=rows
    )
    return head + "".join(_markdown_section(fork) for fork in forks().values() if _of(fork))


def records(chosen: Sequence[Fork]) -> list[dict[str, Any]]:
    """Return the forks with their fields, for JSON."""
    return [{**asdict(fork), "fields": [_record(field) for field in _of(fork)]} for fork in chosen]


def _record(field: ForkField) -> dict[str, Any]:
    return {**asdict(field), "effect": field.effect.value}


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
        f"| `{message}` | {', '.join(f'`{name}`' for name in names)} | {_shown(sentence, harmless) or '–'} | {effect.value} |"
        for effect in ORDER
        for message, sentence, harmless, names in _groups(fork, effect)
    ]
    table = "\n".join(["| message | fields | what they do | here |", "|---|---|---|---|", *rows])
    return f"\n## {fork.title}\n\n`{fork.name}`, {fork.repository}.\n\n{table}\n"
