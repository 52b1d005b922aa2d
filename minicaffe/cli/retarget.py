"""minicaffe retarget"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import click

from minicaffe.files import replacing
from minicaffe.porting.retarget import Retargeted, retarget

from .common import check_folder, check_target
from .options import argument, option, with_options
from .terminal import echo


@dataclass(frozen=True, kw_only=True)
class Options:
    net: str = argument()
    classes: int = option("--classes", "Number of classes with the background: 4 for 3 objects.", required=True)
    out: str | None = option("--out", "The prototxt to write.  [default: stdout]", metavar="FILE")
    report: bool = option("--report", "List the changes; without --out nothing is written.")
    boxes: str | None = option(
        "--boxes",
        "Whether 8 box values of a net of 2 classes are per class or shared.",
        type=click.Choice(["class", "agnostic"]),
    )


@with_options(Options)
def command(options: Options) -> None:
    """Change the number of classes of the detector's prototxt NET (Faster R-CNN, Fast R-CNN, R-FCN, SSD) to N. Comments and
    layout are kept.

    Layers whose weights change shape get a new name (cls_score_N), so that old weights load into all the others.
    Use the same N for the train and the test prototxt.

    Example:  minicaffe retarget train.prototxt --classes 4 --out train_4.prototxt --report
    """
    net, out = options.net, options.out
    if out is not None:
        check_folder("--out", os.path.dirname(out) or ".")
        Path(out).parent.mkdir(parents=True, exist_ok=True)
        check_target("--out", out, [net])
    done = retarget(net, options.classes, boxes=options.boxes or "")
    if options.report:
        _report(done)
    if out:
        with replacing(out) as path:
            Path(path).write_bytes(done.text.encode("utf-8", "surrogateescape"))
        echo(f"written: {out} ({done.old} -> {done.new} classes)")
    elif not options.report:
        echo(done.text, nl=False)


def _report(done: Retargeted) -> None:
    echo(f"{done.old} -> {done.new} classes, the background counted")
    for edited in done.edits:
        field = edited.field.replace("python_param.param_str", "num_classes in python_param.param_str")
        echo(f"line {edited.place.line}: {edited.layer}: {field}: {edited.old} -> {edited.new}")
    if done.agnostic:
        echo("boxes: class-agnostic (background and object, 8 values), unchanged")
    if done.renamed:
        names = ", ".join(f"{old} -> {new}" for old, new in done.renamed.items())
        echo(f"new layers, which start untrained: {names}; their tops and all other layers keep their names")
    if any(old.startswith(("bbox_pred", "rfcn_bbox")) for old in done.renamed):
        echo(
            "minicaffe train also folds the box targets' means into the renamed layers; "
            "py-faster-rcnn's train.py looks for the old name"
        )
    for note in done.notes:
        echo(f"note: {note}")
