"""Load and run the published detection prototxts (../shared/models), unedited, and print how many did.

    python tests/published_models.py [--match TEXT] [--load-only] [--steps 3] [--brief]

Every net loads, in TRAIN or TEST as it is meant. Every test net runs on a photograph at 600 pixels with seeded random
weights. Every end-to-end train net does three forward, backward and update steps on a made-up roidb, with finite losses.
With --brief every net loads, but of the nets that differ by project and data set only, one runs. The exit status is 1
when any net fails.
"""

from __future__ import annotations

import argparse
import gc
import math
import sys
import time
import warnings
from pathlib import Path

import numpy as np

from minicaffe import TEST, TRAIN, Net, SGDSolver, allow_path, set_random_seed
from minicaffe.data.images import load_image, prepare_image
from minicaffe.data.roidb import prepare_roidb
from minicaffe.data.settings import DetectionSettings, read_settings
from minicaffe.detection.inputs import put_array
from minicaffe.proto import caffe_pb2

SHARED = Path(__file__).resolve().parents[2] / "shared"
MODELS, PHOTOS = SHARED / "models", SHARED / "zoo" / "pyfaster_demo"


def nets() -> list[Path]:
    """Every net of both projects: prototxts and .pt files that are no solvers."""
    files = sorted([*MODELS.rglob("*.prototxt"), *MODELS.rglob("*.pt")])
    return [path for path in files if "solver" not in path.name]


def is_train(path: Path) -> bool:
    return "train" in path.stem


def settings_of(path: Path) -> DetectionSettings:
    """Return the project's own yml for a net, by its folder."""
    project = path.relative_to(MODELS).parts[0]
    folder = next(part for part in path.parts if part.startswith(("rfcn_", "faster_rcnn_", "fast_rcnn")))
    ohem = "_ohem" if "ohem" in path.stem and not folder.endswith("ohem") else ""
    yml = MODELS / "cfgs" / project / f"{folder}{ohem}.yml"
    return read_settings(yml) if yml.exists() else DetectionSettings()


def randomize(net: Net, seed: int) -> None:
    """He-initialised weights, small in the branches' last scales and in the scores, so that deep sums stay finite."""
    random = np.random.default_rng(seed)
    for name, blobs in net.params.items():
        kind = net.layer_dict[name].param.type
        for i, blob in enumerate(blobs):
            data, shape = blob.data, blob.shape
            if kind == "BatchNorm" and i:
                data[...] = 0.5 + random.uniform(size=shape) if i == 1 else 1
                continue
            random.standard_normal(out=data, dtype=np.float32)
            if kind == "Scale" and i == 0:
                data *= 0.1
                data += 1
                data *= 0.2 if "branch2c" in name else 1
            elif len(shape) >= 2:
                score = any(word in name for word in ("score", "bbox", "rfcn_cls"))
                data *= 0.001 if score else math.sqrt(2 / math.prod(shape[1:]))
            else:
                data *= 0.1 if kind in ("BatchNorm", "Scale") else 0.01


def run_test_net(net: Net) -> str:
    """Forward on a photograph; the outputs' shapes."""
    data, im_info = prepare_image(load_image(PHOTOS / "000456.jpg"), net.settings)
    for name in net.inputs:
        if name == "data":
            put_array(net, name, data)
        elif name == "im_info":
            put_array(net, name, im_info)
        elif name == "rois":
            put_array(net, name, made_rois(300, data.shape[2:]))
        elif name == "labels":
            put_array(net, name, np.zeros((300, 1)))
    out = net.forward()
    for name, array in out.items():
        if not np.isfinite(array).all():
            raise ValueError(f"output {name} is not finite")
    return ", ".join(f"{name} {'x'.join(map(str, array.shape))}" for name, array in out.items())


def made_rois(count: int, size: tuple[int, ...]) -> np.ndarray:
    corners = np.random.default_rng(1).uniform(0, [size[1], size[0]], (count, 2, 2))
    return np.concatenate([np.zeros((count, 1)), corners.min(axis=1), corners.max(axis=1)], axis=1)


def made_roidb(classes: int) -> list[dict[str, object]]:
    """Return the photographs, with three made-up boxes each."""
    random = np.random.default_rng(2)
    entries: list[dict[str, object]] = []
    for photo in sorted(PHOTOS.glob("*.jpg")):
        height, width = load_image(photo).shape[:2]
        low = random.uniform(0, 0.4, (3, 2)) * [width, height]
        high = low + random.uniform(0.2, 0.5, (3, 2)) * [width, height]
        boxes = np.concatenate([low, high], axis=1).round()
        entries.append({"image": str(photo), "boxes": boxes, "gt_classes": random.integers(1, classes, 3), "flipped": False})
    return prepare_roidb(entries, classes)


def solver_of(path: Path) -> caffe_pb2.SolverParameter:
    """Return a solver with a low rate, since random weights give larger gradients than trained ones."""
    return caffe_pb2.SolverParameter(train_net=str(path), base_lr=1e-4, lr_policy="fixed", momentum=0.9, weight_decay=5e-4)


def train_net(solver: SGDSolver, steps: int) -> str:
    """Forward, backward and update, steps times; the losses."""
    randomize(solver.net, 4)
    reader = solver.net.layers[0]
    reader.set_roidb(made_roidb(reader.num_classes))
    losses: list[float] = []
    solver.on_progress(lambda progress: losses.append(progress.last_loss))
    solver.step(steps)
    if len(losses) != steps:
        raise ValueError(f"{len(losses)} of {steps} steps were done")
    if not all(math.isfinite(loss) for loss in losses):
        raise ValueError(f"losses are not finite: {losses}")
    return "losses " + " ".join(f"{loss:.4g}" for loss in losses)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--match", default="", help="only nets whose path holds this text")
    parser.add_argument("--load-only", action="store_true", help="build the nets, run none")
    parser.add_argument("--steps", type=int, default=3, help="training steps of each end-to-end net")
    parser.add_argument("--brief", action="store_true", help="run one net of each backbone and method, load the others")
    arguments = parser.parse_args()
    allow_path(MODELS)
    if not MODELS.is_dir():
        print("skipped: ../shared/models is absent")
        return 0
    warnings.simplefilter("error")
    chosen = [path for path in nets() if arguments.match in str(path)]
    loaded = tested = trained = failed = 0
    met: set[tuple[str, ...]] = set()
    for path in chosen:
        start = time.perf_counter()
        name = str(path.relative_to(MODELS))
        try:
            settings = settings_of(path)
            set_random_seed(3)
            load_only = arguments.load_only or (arguments.brief and path.parts[-3:] in met)
            met.add(path.parts[-3:])
            if is_train(path) and "end2end" in name and not load_only:
                solver = SGDSolver(solver_of(path), settings=settings)
                loaded += 1
                note = train_net(solver, arguments.steps)
                trained += 1
            else:
                net = Net(path, TRAIN if is_train(path) else TEST, settings=settings)
                loaded += 1
                note = f"{len(net.layers)} layers"
                if not is_train(path) and not load_only:
                    randomize(net, 4)
                    note = run_test_net(net)
                    tested += 1
        except Exception as error:  # any failure is counted, and the rest of the nets still run
            failed += 1
            note = f"FAILED: {type(error).__name__}: {error}"
        net = solver = None
        gc.collect()
        print(f"{name}: {note} ({time.perf_counter() - start:.1f} s)", flush=True)
    ran = f"{tested} test nets ran, {trained} end-to-end nets trained, {failed} failed"
    print(f"models: {loaded} of {len(chosen)} nets loaded, {ran}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
