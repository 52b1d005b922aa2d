"""A training log as a picture: the train net's loss and the test net's accuracy over the iterations.

python examples/digits/curve.py train.log curve.svg
"""

from __future__ import annotations

import sys
from pathlib import Path

from minicaffe.parse_log import parse_log

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 360, 60, 60, 40, 50
LOSS, ACCURACY, GREY = "#c0392b", "#2471a3", "#888"


def main(log: str, out: str) -> None:
    train, test = parse_log(log)
    losses = last_run([(row["NumIters"], row["loss"]) for row in train if "loss" in row])
    accuracies = last_run([(row["NumIters"], row["accuracy"]) for row in test if "accuracy" in row])
    Path(out).write_text(svg(losses, accuracies), encoding="utf-8")
    print(f"{out}: accuracy {accuracies[-1][1]:.4f} after {accuracies[-1][0]:.0f} iterations")


def last_run(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points after the last one that begins anew: a log that was written to twice holds two runs."""
    starts = [i for i, (iteration, _) in enumerate(points) if i and iteration <= points[i - 1][0]]
    return points[starts[-1] if starts else 0 :]


def svg(losses: list[tuple[float, float]], accuracies: list[tuple[float, float]]) -> str:
    """The picture: the loss from 0 to its maximum on the left axis, the accuracy from 0.8 to 1 on the right one."""
    last = max(x for x, _ in [*losses, *accuracies])
    most = max(y for _, y in losses)
    parts = [text(LEFT, 24, "training loss", LOSS), text(WIDTH - RIGHT, 24, "test accuracy", ACCURACY, "end")]
    for i in range(5):
        y = TOP + (HEIGHT - TOP - BOTTOM) * (1 - i / 4)
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(text(LEFT - 8, y + 4, f"{most * i / 4:.2f}", LOSS, "end"))
        parts.append(text(WIDTH - RIGHT + 8, y + 4, f"{0.8 + 0.05 * i:.2f}", ACCURACY))
        parts.append(text(LEFT + (WIDTH - LEFT - RIGHT) * i / 4, HEIGHT - BOTTOM + 20, f"{last * i / 4:.0f}", GREY, "middle"))
    parts.append(text(WIDTH / 2, HEIGHT - 8, "iteration", GREY, "middle"))
    parts.append(line([(x / last, y / most) for x, y in losses], LOSS))
    parts.append(line([(x / last, max(y - 0.8, 0) / 0.2) for x, y in accuracies], ACCURACY))
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="13">'
    return "\n".join([head, f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>', *parts, "</svg>", ""])


def line(points: list[tuple[float, float]], color: str) -> str:
    """A line through points whose coordinates are shares of the axes."""
    across, down = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    places = " ".join(f"{LEFT + across * x:.1f},{TOP + down * (1 - y):.1f}" for x, y in points)
    return f'<polyline points="{places}" fill="none" stroke="{color}" stroke-width="2"/>'


def text(x: float, y: float, content: str, color: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{color}" text-anchor="{anchor}">{content}</text>'


if __name__ == "__main__":
    main(*sys.argv[1:])
