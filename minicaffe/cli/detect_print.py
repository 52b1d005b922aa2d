"""minicaffe detect without --out: prints detections as lines or JSON, and draws them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from minicaffe.data.drawings import class_name
from minicaffe.data.settings import DetectionSettings
from minicaffe.detection.detect import Detections, draw, to_json
from minicaffe.detection.detect_cascade import cascade_ends, sides_multiple
from minicaffe.detection.detect_ssh import PYRAMID, ssh_modules
from minicaffe.detection.result_files import write_results
from minicaffe.detection.text_lines import has_text_lines
from minicaffe.errors import on_one_line
from minicaffe.files import replacing
from minicaffe.formats.skipped import named
from minicaffe.layers.proposal.proposal import Proposal
from minicaffe.net import Net
from minicaffe.scaling.batch.detector import Detector, Row
from minicaffe.scaling.batch.run import Done
from minicaffe.scaling.batch.sources import Picture, Sources
from minicaffe.scaling.in_flight import in_flight

from .at_once import images_at_once
from .each_picture import say_failed
from .progress import counted
from .terminal import echo


def print_rows(detector: Detector, images: Sources, pictures: Sequence[Path], as_json: bool, save: str | None) -> Done:
    """Print the detections of each image at once, or all as JSON; draw them if there are names of pictures; save: see
    write_results."""
    names = detector.find.classes
    results, kept, done = [], [], Done()
    lacking = {"skipped": named(detector.net.skipped)} if detector.net.skipped else {}

    def drawn(image: tuple[Picture, Path | None]) -> Row:
        row, target = detector.row(image[0]), image[1]
        if row.failure and len(images) == 1:
            raise row.failure
        if target and row.found is not None and row.pixels is not None:
            _draw(target, row.pixels, row.found, names)
        return row.without_pixels()

    targets: Sequence[Path | None] = pictures or [None] * len(images)
    todo = zip(images.pictures(), targets, strict=False)
    with in_flight(drawn, todo, images_at_once(detector, len(images))) as rows:
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


def nothing_found(detector: Detector, best: float | None, cfg: str | None) -> None:
    """Print the best score, if known, and the preprocessing settings."""
    score = "" if best is None else f": the best score is {best:.4g}"
    echo(f"nothing reaches --threshold {detector.recipe.threshold:g}{score}. {taken(detector, cfg)}", err=True)


def taken(detector: Detector, cfg: str | None) -> str:
    """The preprocessing settings in one line."""
    r = detector.recipe
    if detector.find.is_ssd:
        return _ssd_settings(r.means, r.scale_factor)
    source = f"from {cfg}" if cfg else "--cfg FILE.yml changes them: give the settings that the net was trained with"
    return f"Taken: {', '.join(filter(None, _settings_texts(detector.net, r.settings)))} ({source})"


def _settings_texts(net: Net, settings: DetectionSettings) -> tuple[str, str, str]:
    """The size, the means and the suppression that this net takes from the settings; it may have been trained with others."""
    test, means = settings.test, "means " + ",".join(f"{mean:g}" for mean in settings.pixel_means)
    scales, multiple = ",".join(map(str, test.scales)), test.scale_multiple_of
    size, of_boxes = f"short side {scales}, long side at most {test.max_size}", f"NMS {test.nms:g}"
    if ssh_modules(net):
        return size if len(test.scales) == 1 else f"a pyramid of {scales} over {PYRAMID[0]}", means, of_boxes
    if cascade_ends(net):
        multiple = sides_multiple(settings)
    elif has_text_lines(net):
        of_boxes = ""  # fixed by CTPN's script
    elif any(isinstance(layer, Proposal) and not layer.by_param for layer in net.layers):
        of_boxes = f"proposals >= {test.rpn_min_size:g} pixels, NMS {test.rpn_nms_thresh:g} and {test.nms:g}"
    return size + f", sides multiples of {multiple}" * (multiple > 1), means, of_boxes


def _ssd_settings(means: Sequence[float], scale_factor: float) -> str:
    """The same line for an SSD net."""
    text = ",".join(f"{mean:g}" for mean in means)
    return f"Taken: means {text}, factor {scale_factor:g} (--mean and --scale-factor change them)"


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
