"""Record the bits that minicaffe computes at one commit, and compare them at another. A change of structure changes none.

    python tests/replay.py record FILE [--nets 200] [--part PART] [--way numpy|numba]
    python tests/replay.py compare BEFORE AFTER

A record holds a digest of each array that a run gives: outputs and gradients of all recorded cases of Caffe and its forks, of
random nets, and of the published detection nets, one of each kind. Each is computed by NumPy and by compiled loops, on one
thread and on two, and three times over, since a net plans its next forward in the first.

The other parts are recorded once, by NumPy: `pages` has the texts of explain, summary and draw, and the data of trace pages;
`forms` has PyTorch source, torch Modules, ONNX models, and prototxts that tools write; `commands` has what commands print.
`compare` prints each array or text that differs, and its exit status is 1 where any does.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path += [str(HERE / "support"), str(HERE / "fuzz")]

import ported  # noqa: E402
from golden import FORKS, GOLDEN, computed, inside  # noqa: E402
from net_values import forward, forward_backward, make  # noqa: E402
from page_records import pages  # noqa: E402
from published_models import MODELS, is_train, nets, randomize, run_test_net, settings_of, solver_of, train_net  # noqa: E402
from random_nets import random_net  # noqa: E402
from recorded_commands import command_runs  # noqa: E402

from minicaffe import TEST, TRAIN, Net, SGDSolver, allow_path, kernels, set_num_threads, set_random_seed  # noqa: E402
from minicaffe.layers import CATALOGUE  # noqa: E402

Arrays = Mapping[str, np.ndarray[Any, Any]] | Mapping[str, str]
Scene = tuple[str, Callable[[], Arrays]]


ONCE = ("pages", "forms", "commands")
"""The parts that are recorded by NumPy on one thread alone."""


def recorded(copies: Path) -> Iterator[tuple[str, Path]]:
    """Yield each recorded case of a layer, and its root. Cases read and write files next to them: in copies."""
    for source in (GOLDEN, FORKS):
        root = copies / source.name
        if not root.exists():
            shutil.copytree(source, root)
            allow_path(root)
        for path in sorted(root.glob("*/*.npz")):
            if path.parent.name.partition("@")[0] in CATALOGUE and path.with_suffix(".prototxt").exists():
                yield f"{path.parent.name}/{path.stem}", root


def golden_cases(copies: Path) -> Iterator[Scene]:
    """Yield each recorded case of a layer, and the function that computes it."""
    for case, root in recorded(copies):
        yield f"{root.name}/{case}", lambda case=case, root=root: of_golden_case(case, root)


def of_golden_case(case: str, root: Path) -> Arrays:
    with inside((root / case).parent):
        return computed(case, root=root)[1]


def random_nets(count: int) -> Iterator[Scene]:
    """Yield nets of seeds from 0, in float32."""
    for seed in range(count):
        yield f"random net {seed}", lambda seed=seed: of_random_net(seed)


def of_random_net(seed: int) -> Arrays:
    """Run a net forward three times, then both ways; and its outputs alone, where their memory is shared."""
    random = random_net(seed)
    whole, outputs = make(random, np.float32), make(random, np.float32, "outputs")
    for _ in range(3):
        forward(whole)
        outputs.forward()
    found = forward_backward(whole, random)
    return found | {f"{name}, outputs kept": outputs.blobs[name].data.copy() for name in outputs.outputs}


def published_nets() -> Iterator[Scene]:
    """Yield one net of each backbone and method."""
    met: set[tuple[str, ...]] = set()
    for path in nets():
        kind = path.parts[-3:]
        if kind not in met and (not is_train(path) or "end2end" in str(path)):
            met.add(kind)
            yield str(path.relative_to(MODELS)), lambda path=path: of_published_net(path)


def of_published_net(path: Path) -> Arrays:
    """Run a test net twice on a photograph, or a net one step of training."""
    set_random_seed(3)
    if is_train(path):
        solver = SGDSolver(solver_of(path), settings=settings_of(path))
        train_net(solver, 1)
        net = solver.net
    else:
        net = Net(path, TEST, settings=settings_of(path))
        randomize(net, 4)
        run_test_net(net)
        run_test_net(net)
    found = {name: blob.data for name, blob in net.blobs.items()}
    if net.phase == TRAIN:
        found |= {f"gradient of {name}'s blob {i}": b.diff for name, blobs in net.params.items() for i, b in enumerate(blobs)}
    return found


def digest(array: np.ndarray[Any, Any] | str) -> str:
    if isinstance(array, str):
        code = hashlib.blake2b(array.encode(), digest_size=8).hexdigest()
        return array if len(array) < 4000 else f"{len(array)} letters {code}"
    array = np.ascontiguousarray(array)
    return f"{array.dtype} {array.shape} {hashlib.blake2b(array.tobytes(), digest_size=8).hexdigest()}"


def of_scene(run: Callable[[], Arrays]) -> dict[str, str]:
    """Return the digests of a scene's arrays; of one that raises, the error's name."""
    set_random_seed(0)
    try:
        return {name: digest(array) for name, array in run().items()}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def record(arguments: argparse.Namespace) -> int:
    file: Path = arguments.file.resolve()
    with tempfile.TemporaryDirectory() as folder:
        found = record_all(arguments, Path(folder))
    file.write_text(json.dumps(found, indent=0), encoding="utf-8")
    errors = [f"{name}: {one['error']}" for name, one in found.items() if "error" in one]
    print(*errors, sep="\n")
    print(f"{sum(map(len, found.values()))} arrays of {len(found)} runs, {len(errors)} errors")
    return 0


def record_all(arguments: argparse.Namespace, copies: Path) -> dict[str, dict[str, str]]:
    """Return the digests of each run."""
    allow_path(MODELS)
    parts = {
        "golden": lambda: golden_cases(copies),
        "random": lambda: random_nets(arguments.nets),
        "published": published_nets,
        "pages": lambda: pages(recorded(copies), min(arguments.nets, 20)),
        "forms": lambda: ported.scenes(recorded(copies)),
        # The manifest of a run names its folder, so each record needs the same one.
        "commands": lambda: command_runs(Path(tempfile.gettempdir()) / "minicaffe_commands"),
    }
    found: dict[str, dict[str, str]] = {}
    for way in arguments.way or ("numpy", "numba"):
        for threads in (1, 2):
            set_num_threads(threads)
            for part in arguments.part or parts:
                if part in ONCE and (way, threads) != ("numpy", 1):
                    continue
                scenes = list(parts[part]())
                for name, run in scenes:
                    with kernels.using(way):
                        found[f"{name} [{way}, {threads}]"] = of_scene(run)
                    if part == "published":
                        gc.collect()
                print(f"{part}, {way}, {threads} threads: {len(scenes)}", flush=True)
    return found


def compare(arguments: argparse.Namespace) -> int:
    before, after = (json.loads(path.read_text(encoding="utf-8")) for path in (arguments.before, arguments.after))
    runs = [name for name in before if name in after]
    if not runs:
        print("no run is in both records")
        return 1
    different = 0
    for name in runs:
        arrays = dict.fromkeys([*before[name], *after[name]])
        unequal = [array for array in arrays if before[name].get(array) != after[name].get(array)]
        different += len(unequal)
        for array in unequal[:5]:
            print(f"{name}: {array}: {before[name].get(array, 'absent')} -> {after[name].get(array, 'absent')}")
        if len(unequal) > 5:
            print(f"{name}: and {len(unequal) - 5} more")
    alone = len(before) + len(after) - 2 * len(runs)
    print(f"{len(runs)} runs compared, {different} arrays differ, {alone} runs in one record alone")
    return 1 if different or alone else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    recording = commands.add_parser("record", help="compute, and write the digests to a file")
    recording.add_argument("file", type=Path)
    recording.add_argument("--nets", type=int, default=200, help="how many random nets (200)")
    recording.add_argument("--part", action="append", choices=("golden", "random", "published", *ONCE))
    recording.add_argument("--way", action="append", choices=("numpy", "numba"))
    recording.set_defaults(run=record)
    comparing = commands.add_parser("compare", help="print what differs between two records")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    comparing.set_defaults(run=compare)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    result: int = arguments.run(arguments)
    return result


if __name__ == "__main__":
    sys.exit(main())
