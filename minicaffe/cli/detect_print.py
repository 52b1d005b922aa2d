"""minicaffe detect without --out: prints detections as lines or JSON, and draws them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from minicaffe.data.drawings import class_name
from minicaffe.detection.detect import Detections, draw, to_json
from minicaffe.detection.result_files import write_results
from minicaffe.errors import on_one_line
from minicaffe.files import replacing
from minicaffe.formats.skipped import named
from minicaffe.scaling.batch.recipe import Pipeline, Row
from minicaffe.scaling.batch.run import Done
from minicaffe.scaling.batch.sources import Picture, Sources
from minicaffe.scaling.in_flight import in_flight

from .at_once import images_at_once
from .each_picture import say_failed
from .progress import counted
from .terminal import echo


def print_rows(pipeline: Pipeline, images: Sources, pictures: Sequence[Path], as_json: bool, save: str | None) -> Done:
    """Print the detections of each image at once, or all as JSON; draw them if there are names of pictures; save: see
    write_results."""
    names = pipeline.detector.classes
    results, kept, done = [], [], Done()
    lacking = {"skipped": named(pipeline.net.skipped)} if pipeline.net.skipped else {}

    def drawn(image: tuple[Picture, Path | None]) -> Row:
        row, target = pipeline.row(image[0]), image[1]
        if row.failure and len(images) == 1:
            raise row.failure
        if target and row.found is not None and row.pixels is not None:
            _draw(target, row.pixels, row.found, names)
        return row.without_pixels()

    targets: Sequence[Path | None] = pictures or [None] * len(images)
    todo = zip(images.pictures(), targets, strict=False)
    with in_flight(drawn, todo, images_at_once(pipeline, len(images))) as rows:
        shown = counted(rows, "images", len(images)) if len(images) > 1 and not as_json else rows
        for row, target in zip(shown, targets, strict=False):
            done = done.plus(Done.of(row))
            if row.found is None:
                say_failed(done.errors, f"{row.image}: {row.error}")
                continue
            if save:
                kept.append((row.image, row.size, row.found))
            if as_json:
                results.append({"image": row.image, "detections": to_json(row.found, names), **lacking})
            else:
                _print(row, row.found, names)
            if target:
                echo(f"  drawn: {on_one_line(str(target))}", err=as_json)
    if as_json:
        echo(json.dumps(results, indent=1))
    if save:
        write_results(Path(save), kept, names)
        echo(f"written: {save}", err=as_json)
    return done


def nothing_found(pipeline: Pipeline, best: float | None, cfg: str | None) -> None:
    """Print the best score, if known, and the preprocessing settings."""
    score = "" if best is None else f": the best score is {best:.4g}"
    echo(f"nothing reaches --threshold {pipeline.recipe.threshold:g}{score}. {taken(pipeline, cfg)}", err=True)


def taken(pipeline: Pipeline, cfg: str | None) -> str:
    """Return how images are prepared, and what changes that, in one line."""
    if pipeline.detector.family.has_fixed_size:
        way = "--mean and --scale-factor change them"
    else:
        way = f"from {cfg}" if cfg else "--cfg FILE.yml changes them: give the settings that the net was trained with"
    return f"Taken: {', '.join(pipeline.preparation())} ({way})"


def _print(row: Row, found: Detections, names: Sequence[str] | None) -> None:
    echo(f"{on_one_line(row.image)}: {len(found)} detection{'s' * (len(found) != 1)} in {row.seconds:.2f} s")
    for line in detection_lines(found, names):
        echo(line)


def detection_lines(found: Detections, names: Sequence[str] | None) -> list[str]:
    """A line for each detection: its class, score and box."""
    labels = [on_one_line(class_name(int(k), names)) for k in found.classes]
    width = max(map(len, labels), default=0)
    corners = [
        "  ".join(f"{side} {at:6.1f}" for side, at in zip(("x1", "y1", "x2", "y2"), box, strict=True)) for box in found.boxes
    ]
    return [f"  {label:{width}}  {score:.3f}  {box}" for label, score, box in zip(labels, found.scores, corners, strict=True)]


def _draw(target: Path, image: np.ndarray, found: Detections, names: Sequence[str] | None) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with replacing(target) as path:
        draw(image, found, names).save(path, "PNG")
