"""features: the features of the best regions of images. Source: bottom-up-attention's tools/generate_tsv.py."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np

from minicaffe.data.drawings import class_name
from minicaffe.detection.class_names import first_names, read_lines
from minicaffe.detection.region_features import Choice
from minicaffe.errors import Error, on_one_line
from minicaffe.formats.arrays import read_npz, write_npz
from minicaffe.parameters import weights_of
from minicaffe.scaling.batch.find import find_sources
from minicaffe.scaling.batch.recipe import Pipeline, Row
from minicaffe.scaling.batch.run import Done, manifest
from minicaffe.scaling.batch.sources import Picture, Sources

from .common import check_folder, refuse
from .detectors import BatchOptions, detect_many
from .options import FiniteRange, option, with_options
from .pictures import check_failed, in_processes, output_names, say_failed
from .terminal import echo

FORMATS = ("npz", "parquet")


@dataclass(frozen=True, kw_only=True)
class Options(BatchOptions):
    out: str | None = option("-o --out", "Write the features there; run again to resume.", metavar="DIR|URI")
    blob: str = option("--blob", "Blob of the features, with one item per roi.", metavar="BLOB", default=Choice.blob)
    threshold: float = option("--threshold", "Lowest score of a region.", type=FiniteRange(0, 1), default=Choice.threshold)
    least: int = option("--min", "Fewest regions per image.", type=click.IntRange(1), default=Choice.least)
    max_detections: int = option("--max", "Most regions per image.", type=click.IntRange(1), default=Choice.most)
    attributes: str | None = option(
        "--attributes",
        "Attribute names, one per line, without 'none'; of synonyms with commas the first counts.",
        metavar="FILE",
    )
    format: str = option(
        "--format", "npz: one file per image; parquet: tables of many images.", type=click.Choice(FORMATS), default="npz"
    )

    @property
    def inputs(self) -> list[str | None]:
        return [*super().inputs, self.attributes]


@with_options(Options)
def features_command(options: Options) -> None:
    """Store boxes, class scores, attributes and features of the best regions of the images SOURCE... in --out.

    A source is an image, a folder, a pattern, a video, a list (.txt, .lst: one path per line), a Parquet file, or a URI.

    The regions are the rois that NMS keeps for a class with a score of at least --threshold. NET must have the blobs rois and
    cls_prob, and attr_prob for attributes. --cfg is the net's .yml; its TEST.NMS also applies here.

    Run the same command again to resume. For other blobs, such as fc7 of a classifier, use extract-features.

    Example:  minicaffe features test.prototxt net.caffemodel photos/ --cfg resnet.yml --min 36 --max 36 --out features
    """
    if options.out is None:
        raise click.UsageError("--out DIR is missing: give a folder for the features")
    images = find_sources(options.sources)
    attributes = first_names(read_lines(options.attributes)) if options.attributes else []
    choice = Choice(options.blob, options.threshold, options.least, options.max_detections, tuple(attributes))
    if options.format == "parquet":
        options.check(options.sources, {})
        done = detect_many(options.pipeline(choice), images, options)
        check_failed(done.errors, done.images, images, ": see the column error")
    else:
        refuse("without --format parquet", {"--engine": options.engine, "--part-size": options.part_size})
        refuse("without --engine ray", {"--address": options.address, "--workers": options.workers})
        check_folder("--out", options.out)
        names = output_names(Path(options.out), images, options.inputs, ".npz")
        _write(options.pipeline(choice), images, names)


def _write(pipeline: Pipeline, images: Sources, targets: Sequence[Path]) -> None:
    """Write the file of each image that has none yet. Raises Error if another run wrote one."""
    run = hashlib.sha256(json.dumps(manifest(images, pipeline.recipe, weights_of(pipeline.net), 1)).encode()).digest()
    mark = np.frombuffer(run, np.uint8)
    there = {target for target in targets if _is_ours(target, mark)}
    todo = ((image, target) for image, target in zip(images.pictures(), targets, strict=True) if target not in there)
    left, total = len(images) - len(there), Done()

    def written(item: tuple[Picture, Path]) -> tuple[str, Done]:
        row = pipeline.row(item[0])
        if row.found is not None:
            item[1].parent.mkdir(parents=True, exist_ok=True)
            write_npz(item[1], {**_arrays(row, pipeline), "run": mark})
        return f"{on_one_line(row.image)}: {row.error}" if row.failure else "", Done.of(row)

    with in_processes(pipeline, written, todo, left) as results:
        for error, done in results:
            total = total.plus(done)
            if error:
                say_failed(total.errors, error)
    before = f", {len(there)} of which were there" if there else ""
    echo(f"{targets[0].parent}: {len(images)} image{'s' * (len(images) != 1)}{before}; {total.detections} regions")
    check_failed(total.errors, len(images), images)


def _arrays(row: Row, pipeline: Pipeline) -> dict[str, np.ndarray]:
    """Return the arrays of an image's file."""
    assert row.found is not None
    assert row.pixels is not None
    height, width = row.pixels.shape[:2]
    own = {name: getattr(row.found, name) for name in ("boxes", "scores", "classes", *pipeline.region_columns)}
    names = [class_name(int(k), pipeline.detector.classes) for k in row.found.classes]
    texts = {"image": np.array(row.image), "names": np.array(names, str)}
    return {"width": np.array(width), "height": np.array(height), **texts, **own}


def _is_ours(target: Path, mark: np.ndarray) -> bool:
    """Return True if this run wrote the file, False if it does not exist. Raises Error if another run wrote it."""
    try:
        found = read_npz(target, "run").get("run")
    except FileNotFoundError:
        return False
    if found is None or not np.array_equal(found, mark):
        raise Error(f"{target}: belongs to another run, with other images, net, weights or options: give another --out")
    return True
