"""detect: detections as lines, JSON, files of other tools, pictures, or with --out as Parquet."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from minicaffe.data.drawings import class_name
from minicaffe.detection.detect import Detections, draw, to_json
from minicaffe.detection.result_files import is_folder, write_results
from minicaffe.errors import on_one_line
from minicaffe.formats.skipped import named
from minicaffe.scaling.batch.find import find_sources
from minicaffe.scaling.batch.recipe import Pipeline, Row
from minicaffe.scaling.batch.run import Done
from minicaffe.scaling.batch.sources import Picture, Sources

from .common import check_folder, check_target, save_png
from .detectors import BatchOptions, detect_many
from .options import FiniteRange, option, with_options
from .pictures import check_failed, in_processes, output_names, say_failed
from .terminal import echo, inform


@dataclass(frozen=True, kw_only=True)
class Options(BatchOptions):
    threshold: float | None = option(
        "--threshold", "Lowest score shown.  [default: 0.5; UltraFace, MTCNN: 0.7]", type=FiniteRange(0, 1)
    )
    draw_dir: str | None = option("--draw", "Write each image with its boxes into DIR.", metavar="DIR")
    save: str | None = option("--save", "Write COCO results, a table, or YOLO text files.", metavar="FILE.json|FILE.csv|DIR")
    as_json: bool = option("--json", "Print one JSON list instead of lines.")
    every: int = option("--every", "Use every N-th frame of a video.", metavar="N", type=click.IntRange(1), default=1)
    max_detections: int = option("--max-detections", "Maximum of detections per image.", type=click.IntRange(1), default=100)


@with_options(Options)
def detect_command(options: Options) -> None:
    """Find objects in the images SOURCE... with the test prototxt NET and its WEIGHTS.

    A source is an image, a folder, a pattern, a video, a list (.txt, .lst: one path per line), a Parquet file, or a URI.

    Objects: Faster R-CNN, R-FCN, Fast R-CNN, Cascade R-CNN, SSD, RefineDet, YOLO, MS-CNN, SqueezeDet and DetectNet. Faces:
    SSH, UltraFace and MTCNN. Lines of text: CTPN. For an MTCNN give det1; det2 and det3 must be in the same folder.

    Blobs must have py-faster-rcnn's names: data, im_info or rois; cls_prob, bbox_pred (class-aware or agnostic). An SSD,
    RefineDet or YOLO has one image input and ends in a DetectionOutput, YoloDetectionOutput or Yolov3DetectionOutput layer. A
    Cascade R-CNN ends in DecodeBBox layers and probabilities, an SSH in the boxes and scores of its ProposalLayers. A
    DetectNet ends in ClusterDetections. YOLO v1, YOLO v2, MS-CNN, SqueezeDet and UltraFace may end as published; minicaffe does
    the decoding of their scripts.

    Example:  minicaffe detect test.prototxt net.caffemodel photos/ --draw out --threshold 0.8
    """
    check_folder("--draw", options.draw_dir)
    options.check(options.sources, {"--draw": options.draw_dir, "--save": options.save, "--json": options.as_json or None})
    if options.save is not None:
        if is_folder(options.save):
            check_folder("--save", options.save)
        else:
            check_target("--save", options.save, options.inputs)
    images = find_sources(options.sources, options.every)
    targets: Sequence[Path | None] = [None] * len(images)
    if options.draw_dir:
        targets = output_names(Path(options.draw_dir), images, options.inputs, ".png")
    pipeline = options.pipeline()
    done = print_rows(pipeline, images, targets, options) if options.out is None else detect_many(pipeline, images, options)
    if not done.detections and done.errors < done.images:
        score = "" if done.best is None else f": the best score is {done.best:.4g}"
        inform(f'nothing reaches --threshold {pipeline.detector.threshold:g}{score}. Check the line "Preprocessing" above')
    check_failed(done.errors, done.images, images, ": see the column error" * bool(options.out))


def print_rows(pipeline: Pipeline, images: Sources, targets: Sequence[Path | None], options: Options) -> Done:
    """Print the detections of each image at once, or with --json all at the end; save them as the options say.

    targets: the picture to write of each image, or None.
    """
    names, as_json = pipeline.detector.classes, options.as_json
    results, kept, done = [], [], Done()
    lacking = {"skipped": named(pipeline.net.skipped)} if pipeline.net.skipped else {}

    def drawn(image: tuple[Picture, Path | None]) -> Row:
        row, target = pipeline.row(image[0]), image[1]
        if row.failure and len(images) == 1:
            raise row.failure
        if target and row.found is not None and row.pixels is not None:
            save_png(target, draw(row.pixels, row.found, names))
        return row.without_pixels()

    todo = zip(images.pictures(), targets, strict=False)
    with in_processes(pipeline, drawn, todo, len(images), quiet=as_json) as rows:
        for row, target in zip(rows, targets, strict=False):
            done = done.plus(Done.of(row))
            if row.found is None:
                say_failed(done.errors, f"{row.image}: {row.error}")
                continue
            if options.save:
                kept.append((row.image, row.size, row.found))
            if as_json:
                results.append({"image": row.image, "detections": to_json(row.found, names), **lacking})
            else:
                _print_row(row, row.found, names)
            if target:
                echo(f"  drawn: {on_one_line(str(target))}", err=as_json)
    if as_json:
        echo(json.dumps(results, indent=1))
    if options.save:
        write_results(Path(options.save), kept, names)
        echo(f"written: {options.save}", err=as_json)
    return done


def _print_row(row: Row, found: Detections, names: Sequence[str] | None) -> None:
    echo(f"{on_one_line(row.image)}: {len(found)} detection{'s' * (len(found) != 1)} in {row.seconds:.2f} s")
    for line in detection_lines(found, names):
        echo(line)


def detection_lines(found: Detections, names: Sequence[str] | None) -> list[str]:
    """Return a line for each detection: its class, score and box."""
    labels = [on_one_line(class_name(int(k), names)) for k in found.classes]
    width = max(map(len, labels), default=0)
    corners = [
        "  ".join(f"{side} {at:6.1f}" for side, at in zip(("x1", "y1", "x2", "y2"), box, strict=True)) for box in found.boxes
    ]
    return [f"  {label:{width}}  {score:.3f}  {box}" for label, score, box in zip(labels, found.scores, corners, strict=True)]
