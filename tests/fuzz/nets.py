"""Check random nets: python tests/fuzz/nets.py --count N [--seed S] [--seconds T] [--device | --graphs | --onnx]

Each seed is one net (random_nets.py). Every layer of it runs in float32 beside float64, forward and backward (net_beside.py);
some gradients of the whole are checked against differences (net_gradients.py); and the ways to run it must agree
(net_ways.py). A finding is printed with its seed and the net cut after the first layer with which it is found; the run goes
on, ends with counts, and its status is 1 where anything was found. --onnx: in place of the other ways, each net in
onnxruntime, where otherwise each eighth is. --device: forward and backward on a GPU beside the CPU; --graphs: there as CUDA
graphs beside plain launches; where there is no GPU:

    python tests/cpu_device/run.py --python tests/fuzz/nets.py --device --count N
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
import warnings
from collections import Counter
from importlib.util import find_spec

from net_beside import TooLargeError, check_beside
from net_builder import RandomNet
from net_gradients import check_gradients
from net_values import FoundError
from net_ways import check_device, check_graphs, check_keep, check_onnx, check_plan, check_saved, check_threads
from random_nets import random_net

from minicaffe import TEST, TRAIN, set_num_threads

Counts = Counter[str]


ALONE = {"device": check_device, "graphs": check_graphs, "onnx": check_onnx}
"""Ways that are taken in place of the others where they are asked for."""


def check(random: RandomNet, seed: int, way: str = "") -> Counts:
    """Every check of one net, or one way of ALONE; what was counted. Raises FoundError, or whatever the net raises."""
    if way == "onnx" and random.phase == TRAIN:
        return Counter({"in TRAIN: not exported": 1})
    counts: Counts = Counter()
    beside = check_beside(random)
    counts["layers beside float64"] += beside.compared
    counts.update({f"left out: unsteady {what}": number for what, number in beside.unsteady.items()})
    if way:
        counts.update(ALONE[way](random))
        return counts
    gradients = check_gradients(random, seed)
    counts["gradients"] += gradients.checked
    counts["left out: gradients at kinks"] += gradients.left_out
    if random.phase == TEST:
        counts.update(check_plan(random))
    check_keep(random)
    check_saved(random)
    counts["kept and saved"] += 1
    if random.large or seed % 8 == 1:
        counts.update(check_threads(random))
    if seed % 8 == 0 and find_spec("onnxruntime"):
        counts.update(check_onnx(random))
    return counts


def smallest(random: RandomNet, seed: int, way: str) -> RandomNet:
    """The net up to the first layer with which a check fails."""
    for count in range(1, len(random.layers)):
        try:
            check(random.first(count), seed, way)
        except Exception:
            return random.first(count)
    return random


def run(seed: int, counts: Counts, way: str = "") -> str:
    """Check the net of a seed; what was found, as text, or nothing."""
    random = random_net(seed)
    try:
        counts.update(check(random, seed, way))
    except TooLargeError:
        counts["left out: values beyond 10,000"] += 1
        return ""
    except Exception as error:
        words = str(error) if isinstance(error, FoundError) else "".join(traceback.format_exc(limit=-3))
        net = smallest(random, seed, way)
        again = f"python tests/fuzz/nets.py --count 1 --seed {seed}{way and f' --{way}'}"
        return f"\nseed {seed}: {words}\n{net.text}again: {again}\n"
    counts["nets"] += 1
    counts["layers"] += len(random.layers)
    counts.update({f"type {kind}": 1 for kind in set(random.kinds)})
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description="Check random nets.")
    parser.add_argument("--count", type=int, default=1000, help="how many nets")
    parser.add_argument("--seed", type=int, default=0, help="the first one's seed; each next one's is one more")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so many seconds")
    ways = parser.add_mutually_exclusive_group()
    ways.add_argument("--device", dest="way", action="store_const", const="device", help="on a GPU beside the CPU")
    ways.add_argument(
        "--graphs", dest="way", action="store_const", const="graphs", help="on a GPU as CUDA graphs beside plain launches"
    )
    ways.add_argument("--onnx", dest="way", action="store_const", const="onnx", help="each net in onnxruntime")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    set_num_threads(1)
    counts: Counts = Counter()
    found, start, seed = 0, time.monotonic(), arguments.seed
    while seed < arguments.seed + arguments.count and time.monotonic() - start < arguments.seconds:
        if words := run(seed, counts, arguments.way or ""):
            found += 1
            print(words, flush=True)
        seed += 1
    for name, number in sorted((+counts).items()):
        print(f"{name:<48}{number:>10,}")
    print(f"seeds {arguments.seed} to {seed - 1} in {time.monotonic() - start:.0f} s: {found} found")
    return int(found > 0)


if __name__ == "__main__":
    sys.exit(main())
