"""Detection on many scenes: one process, Ray with 1 and 2 workers, and 2 workers of which one is killed half-way.

    python -m benchmarks scale_ray FOLDER [--count 10000] [--seconds 100] [--only ray2] [--svg docs/images/scale_ray.svg]

The R-FCN of examples/shapes, one thread per worker. FOLDER gets the scenes, the Parquet files and the measurements, and keeps
existing ones. --seconds stops a run (SIGINT) after that time; the same command resumes it. The table at the end has images per
second between the first and the last part of a run, without the start of Ray, and the memory of all its processes, with shared
memory such as Ray's object store counted once. Linux only.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks._lines import lines
from benchmarks._processes import below, megabytes

SHAPES = Path(__file__).parents[1] / "examples" / "shapes"
FIRST_SEED = 2_000_000
PART = 50
EVERY = 0.5
"""Seconds between two measurements."""
RUNS = {
    "local": ("one process", []),
    "ray1": ("Ray, 1 worker", ["--engine", "ray", "--workers", "1"]),
    "ray2": ("Ray, 2 workers", ["--engine", "ray", "--workers", "2"]),
    "killed": ("Ray, 2 workers, one killed", ["--engine", "ray", "--workers", "2"]),
}


def main(arguments: Sequence[str] = ()) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks scale_ray", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=10_000, help="scenes")
    parser.add_argument("--seconds", type=float, default=0, help="stop a run after this time")
    parser.add_argument("--only", choices=list(RUNS), help="only this run")
    parser.add_argument("--svg", type=Path, help="draw the memory")
    given = parser.parse_args(arguments)
    end = time.monotonic() + (given.seconds or float("inf"))
    if not make_scenes(given.folder / "scenes", given.count, end):
        raise SystemExit("some scenes are missing: run the same command again")
    for name in [given.only] if given.only else RUNS:
        if not run(given.folder, name, given.count, end):
            raise SystemExit(f"{name} is not done: run the same command again")
    report(given.folder, given.count, given.svg)


def make_scenes(folder: Path, count: int, end: float) -> bool:
    """Write the missing scenes; whether all exist."""
    sys.path.insert(0, str(SHAPES))
    from PIL import Image
    from scenes import scene

    folder.mkdir(parents=True, exist_ok=True)
    for seed in range(FIRST_SEED, FIRST_SEED + count):
        path = folder / f"{seed}.jpg"
        if not path.exists():
            if time.monotonic() > end:
                return False
            Image.fromarray(scene(seed)[0]).save(path.with_suffix(".part"), "JPEG", quality=95)
            path.with_suffix(".part").rename(path)
    return True


def run(folder: Path, name: str, count: int, end: float) -> bool:
    """Resume and measure a run; whether it is done. samples: seconds, parts done, megabytes, workers."""
    out, log = folder / name, folder / f"{name}.jsonl"
    wanted = -(-count // PART)
    if parts(out) == wanted:
        return True
    rfcn = SHAPES / "rfcn"
    words = [
        "detect",
        rfcn / "test.prototxt",
        rfcn / "shapes_rfcn.caffemodel",
        folder / "scenes",
        "--cfg",
        SHAPES / "shapes.yml",
    ]
    words += ["--classes", SHAPES / "classes.txt", "--threads", 1, "--part-size", PART, "--out", out, *RUNS[name][1]]
    process = subprocess.Popen([sys.executable, "-m", "minicaffe", *map(str, words)], start_new_session=True)
    start, samples, stopped = time.monotonic(), [], False
    while process.poll() is None:
        time.sleep(EVERY)
        processes = below(process.pid)
        workers = [one for one, command in processes.items() if "MapWorker" in command]
        samples.append((time.monotonic() - start, parts(out), sum(map(megabytes, processes)), len(workers)))
        if name == "killed" and workers and samples[-1][1] >= wanted / 2 and not (folder / "victim").exists():
            os.kill(workers[0], signal.SIGKILL)
            (folder / "victim").write_text(f"{samples[-1][1] * PART}")
        if time.monotonic() > end and not stopped:
            process.send_signal(signal.SIGINT)
            stopped = True
    with log.open("a") as file:
        file.write(json.dumps(samples) + "\n")
    if process.returncode not in (0, 130):
        raise SystemExit(f"{name}: exit status {process.returncode}")
    return parts(out) == wanted


def parts(out: Path) -> int:
    return len(list(out.glob("part-*.parquet")))


def report(folder: Path, count: int, svg: Path | None) -> None:
    """Print the table of the finished runs; plot their memory over the images."""
    done = [name for name in RUNS if parts(folder / name) == -(-count // PART) and (folder / f"{name}.jsonl").exists()]
    rates = {name: rate(folder / f"{name}.jsonl") for name in done}
    heads = ("", "images/s", "of one worker's", "MB in its second tenth", "MB in its last", "most MB", "content")
    print("| " + " | ".join(heads) + " |\n" + "|---" * len(heads) + "|")
    for name in done:
        memory = [size for _, size in curve(folder / f"{name}.jsonl")]
        tenth = max(1, len(memory) // 10)
        early, late = memory[tenth : 2 * tenth] or memory[:1], memory[-tenth:]
        cells = [RUNS[name][0], f"{rates[name]:.1f}", f"{rates[name] / rates['ray1']:.2f}" if "ray1" in rates else ""]
        cells += [f"{sum(early) / len(early):.0f}", f"{sum(late) / len(late):.0f}", f"{max(memory):.0f}"]
        print("| " + " | ".join([*cells, content(folder, name, count)]) + " |")
    if (folder / "victim").exists():
        print(f"one worker was killed when {(folder / 'victim').read_text()} images were done")
    if svg:
        svg.write_text(lines({RUNS[name][0]: curve(folder / f"{name}.jsonl") for name in done}, "images done", "MB"))


def samples_of(log: Path) -> Iterator[list[list[Any]]]:
    """Yield the measurements of each start of the run, from its first part to its last, without Ray's start and end."""
    for line in log.read_text().splitlines():
        samples = json.loads(line)
        counts = [sample[1] for sample in samples]
        yield samples[bisect_right(counts, counts[0]) : bisect_left(counts, counts[-1]) + 1] if counts else []


def rate(log: Path) -> float:
    """Images per second between the first new part of each start and its last."""
    seconds = images = 0.0
    for samples in samples_of(log):
        ends = [sample for i, sample in enumerate(samples) if not i or sample[1] > samples[i - 1][1]]
        if len(ends) > 1:
            seconds += ends[-1][0] - ends[0][0]
            images += PART * (ends[-1][1] - ends[0][1])
    return images / seconds if seconds else 0.0


def curve(log: Path) -> list[tuple[float, float]]:
    """(images done, megabytes), without the last, when processes end."""
    return [(PART * sample[1], sample[2]) for samples in samples_of(log) for sample in samples[:-1]]


def content(folder: Path, name: str, count: int) -> str:
    """Return whether each image occurs once, and the files equal those of one process."""
    import pyarrow.parquet as pq

    index = pq.read_table(folder / name, columns=["index"])["index"].to_pylist()
    if sorted(index) != list(range(count)):
        return f"{len(set(index))} images, {len(index) - len(set(index))} doubled"
    files = sorted((folder / name).glob("part-*.parquet"))
    other = [file for file in files if file.read_bytes() != (folder / "local" / file.name).read_bytes()]
    return f"{len(other)} parts differ" if other else "each image once" if name == "local" else "the same, bit for bit"
