"""A package with a layer type: y = 3 x, with all that minicaffe's tools ask of one. tests/test_registry.py installs it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from minicaffe import Blob, Layer
from minicaffe.registry import explains, explains_gradient, exports, layer, torch_form
from minicaffe.tracing.explanations.explanation import Case, Explanation, FunctionExplanation, dy_term


@layer("Tripled")
class Tripled(Layer):
    """y = 3 x. bottom: x (any shape). top: y (the same shape)."""

    num_bottom = num_top = 1
    weight_names = ()
    elementwise = True
    copies = (0, 0)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        top[0].reshape(bottom[0].shape)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        top[0].data[...] = 3 * bottom[0].data

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if propagate_down[0]:
            bottom[0].diff[...] = 3 * top[0].diff


@explains(Tripled)
def explained(case: Case[Tripled], at: tuple[int, ...]) -> Explanation:
    x = float(case.x[at])
    return FunctionExplanation(formula="y = 3 x", computed=3 * x, steps=(f"3 * {x} = {3 * x}",), **case.named(at))


@explains_gradient(Tripled)
def gradient_explained(case: Case[Tripled], at: tuple[int, ...]) -> Explanation:
    return case.gradient(at, "dx = 3 dy", dy_term(case, at, 3.0))


@exports(Tripled)
def exported(g: Any, layer: Tripled, bottom: list[Any], top: list[Any]) -> list[str]:
    return [g("Mul", bottom[0], 3.0)]


@torch_form(Tripled)
def in_torch(layer: Tripled, bottom: Sequence[Blob], top: Sequence[Blob]) -> Any:
    return lambda x: 3 * x
