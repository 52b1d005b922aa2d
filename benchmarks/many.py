"""Detection on many images: minicaffe on one thread, on several with one image at a time, and with several at once.

    python -m benchmarks many [--threads 2] [--images 100] [--rows R-FCN] [--net NAME=FILE ...] [--write]

The nets of examples/shapes on their scenes, read from JPEG files, as `minicaffe detect --out` computes them; and SSD nets of
test prototxts, with random weights. A time is that of an image. In brackets: how many times as many images a second as on one
thread.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from PIL import Image

import minicaffe
from benchmarks._report import Row, Table, named_files, options
from benchmarks._timing import interleaved
from minicaffe import Net
from minicaffe.cli.pictures import concurrent_images
from minicaffe.data.settings import DetectionSettings, read_settings
from minicaffe.detection.random_weights import make_up_weights
from minicaffe.files import allow_path
from minicaffe.formats.prototxt import read_text
from minicaffe.mode import TEST
from minicaffe.scaling.batch.find import find_sources
from minicaffe.scaling.batch.recipe import Pipeline, Recipe
from minicaffe.scaling.batch.run import detected
from minicaffe.scaling.batch.sources import Sources
from minicaffe.scaling.in_flight import in_flight

SHAPES = Path(__file__).parents[1] / "examples" / "shapes"
OWN = {"Faster R-CNN of shapes": "faster_rcnn", "R-FCN of shapes": "rfcn"}


def main(arguments: Sequence[str] = ()) -> None:
    parser = options("many", __doc__ or "")
    parser.add_argument("--images", type=int, default=100, help="scenes (default 100)")
    parser.add_argument("--net", action="append", default=[], metavar="NAME=FILE", help="an SSD net's test prototxt, too")
    parser.set_defaults(threads=2)
    given = parser.parse_args(arguments)
    found = {name: partial(of_shapes, folder) for name, folder in OWN.items()}
    found |= {name: partial(with_random_weights, file) for name, file in named_files(given.net).items()}
    labels = ("1 thread", f"{given.threads} threads, one image at a time", f"{given.threads} threads")
    table = Table("many", ("net", "images"), labels, speedup=True)
    with tempfile.TemporaryDirectory() as folder:
        images = scenes(Path(folder), given.images)
        for name, make in found.items():
            if given.rows in name:
                times = measured(make(), images, given.threads)
                table.add(Row((name, str(len(images))), dict(zip(labels, times, strict=True))))
    if given.write:
        table.write()


def scenes(folder: Path, count: int) -> Sources:
    """Scenes as JPEG files."""
    sys.path.insert(0, str(SHAPES))
    from scenes import scene

    for seed in range(count):
        Image.fromarray(scene(seed)[0]).save(folder / f"{seed:06d}.jpg")
    allow_path(folder)
    return find_sources([str(folder)])


def of_shapes(folder: str) -> Pipeline:
    net = SHAPES / folder / "test.prototxt"
    return detector(net, read_settings(SHAPES / "shapes.yml"), SHAPES / folder / f"shapes_{folder}.caffemodel")


def with_random_weights(net: Path) -> Pipeline:
    made = detector(net, DetectionSettings(), None)
    make_up_weights(made.net, list(made.net.params), 0)
    return made


def detector(file: Path, settings: DetectionSettings, weights: Path | None) -> Pipeline:
    net = Net(file, TEST, keep="outputs", settings=settings, weights=weights)
    return Pipeline(net, Recipe(str(file), read_text(file), settings))


def measured(made: Pipeline, images: Sources, count: int) -> list[float]:
    """Seconds for an image: on one thread, on count threads one by one, and on count threads. Exits if results differ."""

    def run(threads: int, at_once: Callable[[Pipeline, int], int]) -> list[Any]:
        minicaffe.set_num_threads(threads)
        with in_flight(partial(detected, made), images.pictures(), at_once(made, len(images))) as found:
            return list(found)

    runs = {
        "one": partial(run, 1, concurrent_images),
        "in turn": partial(run, count, lambda *_: 1),
        "several": partial(run, count, concurrent_images),
    }
    results = runs["in turn"]()
    if failed := [record["error"] for record, _ in results if record["error"]]:
        raise SystemExit(f"{made.recipe.net}: {failed[0]}")
    if results != runs["several"]():
        raise SystemExit(f"{made.recipe.net}: the results differ")
    return [seconds / len(images) for seconds in interleaved(runs, seconds=1).values()]
