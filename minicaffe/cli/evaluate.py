"""evaluate: a detector's average precision on annotated images."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

import click

from minicaffe.data.roidb import prepare_roidb
from minicaffe.detection.detect import Detections
from minicaffe.detection.evaluation import COCO_NUMBERS, Report, draw_curves, evaluate
from minicaffe.errors import Error, install
from minicaffe.files import replacing
from minicaffe.scaling.batch.recipe import Pipeline, Row
from minicaffe.scaling.batch.sources import Picture

from .common import check_apart, check_no_input, check_png, check_target, print_table, save_png
from .detectors import DetectorOptions
from .image_options import images_option, read_annotations, split_option
from .options import FiniteRange, argument, option, with_options
from .pictures import in_processes
from .terminal import echo, inform


@dataclass(frozen=True, kw_only=True)
class Options(DetectorOptions):
    net: str = argument()
    weights_and_sources: tuple[str, ...] = argument(required=True, metavar="WEIGHTS ANNOTATIONS")
    split: str | None = split_option("test, or val")
    images: str | None = images_option()
    threshold: float = option("--threshold", "Lowest score of a detection.", type=FiniteRange(0, 1), default=0.01)
    max_detections: int = option("--max-detections", "Maximum of detections per image.", type=click.IntRange(1), default=100)
    out: str | None = option("-o --out", "Also write the numbers there.", metavar="FILE.json")
    json_file: str | None = option("--json", "The old name of --out.", metavar="FILE.json", hidden=True)
    draw: str | None = option("--draw", "Draw the precision-recall curves.", metavar="FILE.png")


@with_options(Options)
def evaluate_command(options: Options) -> None:
    """Measure a detector's average precision on the images of ANNOTATIONS, by the rules of PASCAL VOC and COCO.

    NET is the detector's test prototxt. ANNOTATIONS is minicaffe's JSON, COCO instances, a CSV file, a VOC or YOLO folder, or
    a folder with .xml files of labelImg, whose images have the same names. COCO's numbers need the extra coco.

    Example:  minicaffe evaluate test.prototxt net.caffemodel VOCdevkit/VOC2007 --cfg end2end.yml --draw curves.png

    Example:  minicaffe evaluate test.prototxt net.caffemodel dataset/xml --images photos --classes classes.txt
    """
    options = replace(options, out=options.out or options.json_file)
    _check(options)
    roidb, classes = read_annotations(options.sources[0], options.split or ("test", "val"), options.images, options.classes)
    images = [str(entry["image"]) for entry in roidb]
    check_no_input("--out", options.out, images)
    check_no_input("--draw", options.draw, images)
    pipeline = options.pipeline()
    count, holder, _ = pipeline.detector.family.classes(pipeline.net)
    classes = classes or list(pipeline.detector.classes or [str(k) for k in range(count)])
    if len(classes) != count:
        raise Error(f"{options.sources[0]}: {len(classes)} classes with the background, but {holder} has {count}")
    prepare_roidb(roidb, count)  # checks the entries
    coco = find_spec("pycocotools") is not None
    report = evaluate(list(_found(pipeline, images)), roidb, classes, coco=coco)
    _print(report)
    if not coco:
        inform(f"for COCO's average precision install pycocotools: {install('coco')}")
    if options.out:
        with replacing(options.out) as path:
            path.write_text(json.dumps(report.as_json(), indent=1) + "\n", encoding="utf-8")
        echo(f"written: {options.out}")
    if options.draw:
        save_png(options.draw, draw_curves(report))
        echo(f"drawn: {options.draw}")


def _check(options: Options) -> None:
    """Raise Error, before work starts, for outputs that cannot be written, and click.UsageError for several annotations."""
    if len(options.sources) > 1:
        raise click.UsageError(f"give one file or folder of annotations, got {', '.join(options.sources)}")
    read = [*options.inputs, options.sources[0]]
    check_target("--out", options.out, read, writes=[".json"])
    check_png("--draw", options.draw, read)
    check_apart("--out", options.out, "--draw", options.draw)
    if options.images and not Path(options.images).is_dir():
        raise Error(f"--images {options.images}: no such folder")


def _found(pipeline: Pipeline, images: list[str]) -> Iterator[Detections]:
    """Yield the detections of each image. Raises Error for an image that fails: without it the result would be wrong."""

    def row(name: str) -> Row:
        return pipeline.row(Picture(name, Path(name))).without_pixels()

    with in_processes(pipeline, row, images, len(images)) as rows:
        for one in rows:
            if one.found is None:
                raise Error(f"{one.image}: {one.error}")
            yield one.found


def _print(report: Report) -> None:
    coco = COCO_NUMBERS if report.coco else ()
    rows = [
        [one.name, str(one.truth), str(one.found), *map(_number, (one.ap, one.ap_2007, *(one.coco[name] for name in coco)))]
        for one in report.classes
    ]
    means = report.mean_ap, report.mean_ap_2007, *(report.coco[name] for name in coco)
    truth, found = (str(sum(getattr(one, what) for one in report.classes)) for what in ("truth", "found"))
    columns = ["class", "boxes", "found", "VOC AP", "VOC 2007", *(f"COCO {name}" for name in coco)]
    title = f"{report.images} image{'s' * (report.images != 1)}"
    print_table(title, columns, [*rows, ["mean", truth, found, *map(_number, means)]], right=columns[1:])


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.4f}"
