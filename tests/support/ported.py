"""The results of porting a net, as arrays for tests/replay.py: PyTorch source, torch Modules, ONNX models, prototxt texts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from golden import computed, inside
from recordings import SHARED

from minicaffe import TEST, Net, allow_path
from minicaffe.formats.prototxt import read_net, to_text
from minicaffe.net_arguments import state_applied

Arrays = Mapping[str, np.ndarray[Any, Any]]
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def scenes(cases: Iterable[tuple[str, Path]]) -> Iterator[tuple[str, Callable[[], Arrays]]]:
    """Yield each net's name, and the function that computes its ported forms. cases: the golden ones, each with its root."""
    for case, root in cases:
        yield f"forms of {root.name}/{case}", lambda case=case, root=root: of_case(case, root)
    for path in sorted(EXAMPLES.rglob("test.prototxt")):
        yield f"forms of examples/{path.parent.relative_to(EXAMPLES)}", lambda path=path: of_example(path)
    for folder in (EXAMPLES, SHARED / "models", SHARED / "wild"):
        allow_path(folder)
        for path in sorted([*folder.rglob("*.prototxt"), *folder.rglob("*.pt")]):
            if "solver" not in path.name:
                yield f"texts of {folder.name}/{path.relative_to(folder)}", lambda path=path: texts_of_file(path)


def of_case(case: str, root: Path) -> Arrays:
    with inside((root / case).parent):
        return forms_of(computed(case, root=root, backward=False)[0])


def of_example(path: Path) -> Arrays:
    net = Net(path, TEST, weights=next(path.parent.glob("*.caffemodel")))
    random = np.random.default_rng(1)
    for name in net.inputs:
        blob = net.blobs[name]
        blob.data[...] = (96, 128, 1) if name == "im_info" else random.normal(0, 40, blob.shape)
    return forms_of(net) | texts_of_net(net)


def forms_of(net: Net) -> dict[str, np.ndarray[Any, Any]]:
    """Return the PyTorch source, the torch Module's outputs and gradients, and the ONNX model; or their errors."""
    return gathered(source=lambda: _source(net), torch=lambda: _torch(net), onnx=lambda: _onnx(net))


def texts_of_net(net: Net) -> dict[str, np.ndarray[Any, Any]]:
    """Return the prototxts of the net's parts, of the merged net and of the one rescued from its weights; or their errors."""
    from minicaffe.porting.cut import blob_at, cut_at, drop_head
    from minicaffe.porting.merge_bn import merge_net
    from minicaffe.porting.rescue import rescue

    def rescued() -> dict[str, Any]:
        with TemporaryDirectory() as folder:
            net.save(Path(folder) / "net.caffemodel")
            return {"": rescue(Path(folder) / "net.caffemodel").text}

    def parts(made: Any) -> dict[str, Any]:
        return {str(i): to_text(part.param) + str(part.outputs) for i, part in enumerate(made)}

    return gathered(
        head=lambda: parts(drop_head(net)),
        rknn=lambda: parts(drop_head(net, "rknn")),
        half=lambda: parts(cut_at(net, blob_at(net, 0.5) or "data")),
        merged=lambda: {"": to_text((made := merge_net(net)[1]).param) + str((made.folded, made.left)), **made.weights},
        rescued=rescued,
    )


def texts_of_file(path: Path) -> Arrays:
    """Return the prototxts of retarget and deploy; or their errors."""
    from minicaffe.porting.deploy import deploy
    from minicaffe.porting.retarget import retarget

    file = read_net(path, warn=False)
    return gathered(
        retarget=lambda: {"": str((made := retarget(path, 7)).text) + str((made.edits, made.renamed, made.notes))},
        deploy=lambda: {"": deploy(file, state_applied(file.param, TEST, 0, ()).state, {}).text},
    )


def gathered(**made: Callable[[], Mapping[str, Any]]) -> dict[str, np.ndarray[Any, Any]]:
    """Return all results as arrays, texts and lists too; the error's text for one that raises."""
    found: dict[str, Any] = {}
    for name, run in made.items():
        try:
            found |= {f"{name} {key}".strip(): value for key, value in run().items()}
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
    flat = {f"{key} {i}": each for key, value in found.items() if isinstance(value, list) for i, each in enumerate(value)}
    texts = {key: np.frombuffer(value.encode(), np.uint8) for key, value in found.items() if isinstance(value, str)}
    return {key: value for key, value in found.items() if not isinstance(value, str | list)} | flat | texts


def _source(net: Net) -> dict[str, Any]:
    from minicaffe.porting.torch_source import source_of

    text, made = source_of(net, "model", "model.safetensors")
    return {"": text, **made.tensors}


def _torch(net: Net) -> dict[str, Any]:
    import torch

    from minicaffe.torch import to_torch

    torch.manual_seed(0)
    module = to_torch(net)
    inputs = [torch.tensor(net.blobs[name].data).requires_grad_() for name in module.inputs]
    outputs = module(*inputs)
    total = sum(tensor.double().square().sum() for tensor in outputs.values() if tensor.requires_grad)
    if not isinstance(total, int):
        total.backward()
    found = {name: tensor.detach().numpy() for name, tensor in outputs.items()}
    found |= {f"d {name}": tensor.grad.numpy() for name, tensor in zip(module.inputs, inputs) if tensor.grad is not None}
    return found | {f"d {name}": weight.grad.numpy() for name, weight in module.named_parameters() if weight.grad is not None}


def _onnx(net: Net) -> dict[str, Any]:
    from minicaffe.porting.onnx import onnx_model

    model, weights = onnx_model(net)
    return {"": np.frombuffer(model.SerializeToString(deterministic=True), np.uint8), **weights}
