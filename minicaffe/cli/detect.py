"""minicaffe detect"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from minicaffe.detection.result_files import is_folder
from minicaffe.scaling.batch.find import find_sources

from .common import check_folder, check_target
from .detect_many import BatchOptions, detect_many
from .detect_print import nothing_found, print_rows
from .each_picture import check_failed
from .options import FiniteRange, option, with_options
from .output_names import output_names


@dataclass(frozen=True, kw_only=True)
class Options(BatchOptions):
    threshold: float = option("--threshold", "Lowest score shown.", type=FiniteRange(0, 1), default=0.5)
    draw_dir: str | None = option("--draw", "Write each image with its boxes into DIR.", metavar="DIR")
    save: str | None = option(
        "--save", "Write COCO's results, a table, or YOLO's text files.", metavar="FILE.json|FILE.csv|DIR"
    )
    as_json: bool = option("--json", "Print one JSON list instead of lines.")
    every: int = option("--every", "Of a video, only every N-th frame.", metavar="N", type=click.IntRange(1), default=1)
    max_detections: int = option("--max-detections", "Maximum per image.", type=click.IntRange(1), default=100)


@with_options(Options)
def command(options: Options) -> None:
    """Find objects in SOURCE... with the test prototxt NET and its WEIGHTS: of a Faster R-CNN, R-FCN, Fast R-CNN, Cascade
    R-CNN, SSD, RefineDet, YOLO, MS-CNN or SqueezeDet; faces with an SSH, and lines of text with a CTPN.
    A source is an image, a folder, a pattern, a video, a list (.txt, .lst: one path per line), a Parquet file, or a URI.

    Blobs must have py-faster-rcnn's names: data, im_info or rois; cls_prob, bbox_pred (class-aware or agnostic).
    An SSD, RefineDet or YOLO has one image input and ends in a DetectionOutput, YoloDetectionOutput or Yolov3DetectionOutput
    layer; a Cascade R-CNN in DecodeBBox layers and probabilities; an SSH in the boxes and scores of its ProposalLayers. The
    ends of YOLO v1, YOLO v2, MS-CNN and SqueezeDet nets are
    decoded as their scripts do.

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
    pictures = output_names(Path(options.draw_dir), images, options.inputs, ".png") if options.draw_dir else []
    pipeline = options.pipeline(options.threshold, options.max_detections)
    if options.out is None:
        done = print_rows(pipeline, images, pictures, options.as_json, options.save)
    else:
        done = detect_many(pipeline, images, options)
    if not done.detections and done.errors < done.images:
        nothing_found(pipeline, done.best, options.cfg)
    check_failed(done.errors, done.images, images, ": see the column error" * bool(options.out))
