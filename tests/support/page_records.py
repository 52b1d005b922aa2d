"""What tracing gives of a net, as text: explanations, receptive fields, the data of a trace's page, drawings, summaries."""

from __future__ import annotations

import base64
import gzip
import json
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from click.testing import CliRunner
from golden import computed, inside
from net_values import forward_backward, make
from random_nets import random_net

from minicaffe import Error, Net, Tracer, explain, receptive_field
from minicaffe.cli import main

Texts = dict[str, str]
SHAPES = Path(__file__).resolve().parents[2] / "examples" / "shapes"
TOURS = {"faster_rcnn": ("roi-pooling",), "rfcn": ("rfcn",)}
DTYPES = {"f4": "<f4", "i4": "<i4", "u1": "u1"}


def pages(cases: Iterable[tuple[str, Path]], nets: int) -> Iterator[tuple[str, Callable[[], Texts]]]:
    """Yield the golden cases (name, root of their copies), random nets, and the example detectors."""
    for case, root in cases:
        yield f"{root.name}/{case}", lambda case=case, root=root: of_golden_case(case, root)
    for seed in range(nets):
        yield f"random net {seed}", lambda seed=seed: of_random_net(seed)
    for name in TOURS:
        yield f"examples/{name}", lambda name=name: of_example(SHAPES / name)


def of_golden_case(case: str, root: Path) -> Texts:
    path = root / f"{case}.prototxt"
    with inside(path.parent):
        net, _ = computed(case, root=root)
        commands = {name: printed(name, path.name) for name in ("summary", "draw")}
        return commands | of_page(net) | of_layers(net, ["layer"])


def of_random_net(seed: int) -> Texts:
    random = random_net(seed)
    net = make(random, np.float32)
    forward_backward(net, random)
    return of_page(net) | of_layers(net, [layer.name for layer in net.layers])


def of_example(folder: Path) -> Texts:
    with inside(folder):
        return of_detector(folder.name, Path("test.prototxt"), next(Path().glob("*.caffemodel")))


def of_detector(name: str, net: Path, weights: Path) -> Texts:
    given = [f"--weights={weights}", "--cfg=../shapes.yml", "--image=../scene.png"]
    found = {command: printed(command, str(net)) for command in ("summary", "draw")}
    with tempfile.TemporaryDirectory() as made:
        page, tours = Path(made) / "page.html", [f"--tour={tour}" for tour in TOURS[name]]
        result = CliRunner().invoke(main, ["trace", str(net), *given, "--backward", "-o", str(page), *tours])
        assert not result.exit_code, result.output
        found |= {f"page {key}": text for key, text in data_of(page).items()}
    for layer in re.findall(r'name: *"(\w+)"', net.read_text()):
        at = ["--at", "0,0,0,0"]
        for way in ([], ["--backward"]):
            found[f"explain {layer} {way}"] = CliRunner().invoke(main, ["explain", str(net), layer, *given, *at, *way]).output
    return found


def printed(command: str, net: str) -> str:
    """Return what a command prints, or writes, for a net."""
    with tempfile.TemporaryDirectory() as made:
        picture = Path(made) / "net.dot"
        result = CliRunner().invoke(main, [command, net, *([str(picture)] if command == "draw" else [])])
        return picture.read_text() if picture.exists() else result.output


def of_page(net: Net) -> Texts:
    """Trace both passes; the page's data, and the receptive fields of two cells of each blob of maps."""
    with tempfile.TemporaryDirectory() as made:
        page = Path(made) / "page.html"
        with Tracer(net, page):
            net.forward()
            net.backward()
        found = {f"page {key}": text for key, text in data_of(page).items()}
    random = np.random.default_rng(0)
    for name, blob in net.blobs.items():
        if len(blob.shape) == 4 and blob.count:
            cells = [[int(random.integers(n)) for n in blob.shape[2:]] for _ in range(2)]
            found[f"field {name}"] = "\n".join(str(receptive_field(net, name, *cell)) for cell in cells)
    return found


def data_of(page: Path) -> Texts:
    """Return the page's document by key, those of its layers and steps apart; arrays as what they hold; without times."""
    html = page.read_text()
    text, packed = (re.search(rf'id="{name}">(.*?)</script>', html, re.DOTALL)[1] for name in ("trace", "arrays"))  # type: ignore[index]
    document, arrays = json.loads(text), gzip.decompress(base64.b64decode(packed))
    found: dict[str, Any] = {}
    for key, value in resolved(document, arrays).items():
        if key in ("layers", "steps"):
            found |= {f"{key}.{inner}": [one.get(inner) for one in value] for inner in {k: 0 for one in value for k in one}}
        else:
            found[key] = value
    return {key: json.dumps(value) for key, value in found.items() if key != "minicaffe"}


def resolved(value: Any, arrays: bytes) -> Any:
    if isinstance(value, list):
        return [resolved(one, arrays) for one in value]
    if not isinstance(value, dict):
        return re.sub(r"[\d.]+ (s|ms|µs)\b", "TIME", value) if isinstance(value, str) else value
    if value.keys() == {"at", "dtype", "shape"}:
        dtype = np.dtype(DTYPES[value["dtype"]])
        return [
            value["dtype"],
            value["shape"],
            np.frombuffer(arrays, dtype, int(np.prod(value["shape"])), value["at"]).tobytes().hex(),
        ]
    return {key: resolved(one, arrays) for key, one in value.items() if key != "ms"}


def of_layers(net: Net, layers: Iterable[str]) -> Texts:
    """Explain two numbers of each top, of the gradient in each bottom and in each weight."""
    found: Texts = {}
    for layer in layers:
        node = next(node for node in net.nodes if node.layer.name == layer)
        sides = [("top", node.tops, {}), ("bottom", node.bottoms, {"backward": True, "dy": "random"})]
        sides.append(("weight", node.layer.blobs, {"dy": "random"}))
        for side, blobs, more in sides:
            for number, blob in enumerate(blobs):
                found[f"{layer}, {side} {number}"] = explained(net, layer, blob.shape, {side: number, **more})
    return found


def explained(net: Net, layer: str, shape: tuple[int, ...], more: dict[str, Any]) -> str:
    random, texts = np.random.default_rng(len(shape)), []
    for _ in range(3 if 0 not in shape else 0):
        at = tuple(int(random.integers(n)) for n in shape)
        try:
            found = explain(net, layer, at, **more)
            texts.append(f"{found.text(40)}\n{found.agrees} {float(found.computed)!r}")
        except Error as error:
            texts.append(str(error))
    return "\n".join(texts)
