"""minicaffe retarget"""

from __future__ import annotations

from pathlib import Path

import click

from minicaffe.files import replacing
from minicaffe.porting.retarget import Retargeted, retarget

from .common import check_target
from .terminal import echo


@click.command()
@click.argument("net")
@click.option("--classes", required=True, type=int, metavar="N", help="How many, the background counted: 4 for 3 of your own.")
@click.option("--out", metavar="FILE", help="The prototxt to write.  [default: it goes to stdout]")
@click.option("--report", is_flag=True, help="Say what changes, and where; without --out nothing is written.")
@click.option(
    "--boxes",
    type=click.Choice(["class", "agnostic"]),
    default=None,
    help="Whose 8 box values are, in a net of 2 classes: theirs, or all classes' alike.",
)
def command(net: str, classes: int, out: str | None, report: bool, boxes: str | None) -> None:
    """Change the prototxt NET of a detector (Faster R-CNN, Fast R-CNN, R-FCN, SSD) to N classes, its comments and layout kept.

    Layers whose weights change shape get a new name (cls_score_N), so that old weights load into all the others.
    Give the same N for the train and the test prototxt.

    Example:  minicaffe retarget train.prototxt --classes 4 --out train_4.prototxt --report
    """
    check_target("--out", out, [net])
    done = retarget(net, classes, boxes=boxes or "")
    if report:
        _say(done)
    if out:
        with replacing(out) as path:
            Path(path).write_bytes(done.text.encode("utf-8", "surrogateescape"))
        echo(f"written: {out} ({done.old} -> {done.new} classes)")
    elif not report:
        echo(done.text, nl=False)


def _say(done: Retargeted) -> None:
    echo(f"{done.old} -> {done.new} classes, the background counted")
    for edited in done.edits:
        field = edited.field.replace("python_param.param_str", "num_classes in python_param.param_str")
        echo(f"line {edited.place.line}: {edited.layer}: {field}: {edited.old} -> {edited.new}")
    if done.agnostic:
        echo("boxes: class-agnostic (background and object, 8 values), left as they are")
    if done.renamed:
        names = ", ".join(f"{old} -> {new}" for old, new in done.renamed.items())
        echo(f"new layers, which start untrained: {names}; their tops and all other layers keep their names")
    if any(old.startswith(("bbox_pred", "rfcn_bbox")) for old in done.renamed):
        echo(
            "minicaffe train folds the box targets' means into them all the same; "
            "py-faster-rcnn's train.py looks for the old name"
        )
    for note in done.notes:
        echo(f"note: {note}")
