"""LSTMUnit explained: one unit of one step, its four gates, and where their gradients come from."""

from __future__ import annotations

import math
from typing import NamedTuple

from minicaffe.layers.recurrent.lstm import LSTMUnit
from minicaffe.registry import explains, explains_gradient

from .explanation import SHARE, Case, Explanation, dy_term
from .terms import Index, Terms, number, signed


class Unit(NamedTuple):
    """One unit: the gates after activation (f times cont), the cell before and after, and the steps as text."""

    i: float
    f: float
    o: float
    g: float
    before: float
    c: float
    steps: tuple[str, ...]


def _unit(case: Case[LSTMUnit], n: int, d: int) -> Unit:
    before, cont = float(case.bottoms[0][0, n, d]), float(case.bottoms[2][0, n])
    x = [float(v) for v in case.bottoms[1][0, n].reshape(4, -1)[:, d]]
    i, f, o = (1 / (1 + math.exp(-v)) if v > -700 else 0.0 for v in x[:3])
    g, opened = math.tanh(x[3]), f * cont
    c = opened * before + i * g
    steps = (
        f"i = sigmoid({number(x[0])}) = {number(i)}, o = sigmoid({number(x[2])}) = {number(o)}",
        f"f = sigmoid({number(x[1])}) * cont {number(cont)} = {number(opened)}, g = tanh({number(x[3])}) = {number(g)}",
        f"c = f * c_before + i * g = {number(opened)} * {signed(before)} + {number(i)} * {signed(g)} = {number(c)}",
    )
    return Unit(i, opened, o, g, before, c, steps)


@explains(LSTMUnit)
def lstm_unit(case: Case[LSTMUnit], at: Index) -> Explanation:
    unit = _unit(case, at[1], at[2])
    size = abs(unit.f * unit.before) + abs(unit.i * unit.g) + 1e-30
    if case.number == 0:
        return case.function(at, "c = f * c_before + i * g", unit.c, 2 * SHARE * size, *unit.steps)
    h = unit.o * math.tanh(unit.c)
    step = f"h = o * tanh(c) = {number(unit.o)} * tanh({number(unit.c)}) = {number(h)}"
    return case.function(at, "h = o * tanh(c), c = f * c_before + i * g", h, 2 * SHARE * min(size, 1), *unit.steps, step)


@explains_gradient(LSTMUnit)
def lstm_unit_gradient(case: Case[LSTMUnit], at: Index) -> Explanation:
    units = case.bottoms[0].shape[2]
    gate, d = divmod(at[2], units) if case.number else (4, at[2])
    place, unit = (0, at[1], d), _unit(case, at[1], d)
    i, f, o, g, before, c, steps = unit
    t = math.tanh(c)
    to_c, name = (
        (g * i * (1 - i), "i: g * i * (1 - i)"),
        (before * f * (1 - f), "f: c_before * f * (1 - f)"),
        (0.0, "o"),
        (i * (1 - g * g), "g: i * (1 - g^2)"),
        (f, "c_before: f"),
    )[gate]
    to_h = t * o * (1 - o) if gate == 2 else to_c * o * (1 - t * t)
    dc, dh = (case.dy[k][place] for k in (0, 1))
    parts = [dy_term(case, place, to_h, top=1)]
    if gate != 2:
        parts.insert(0, dy_term(case, place, to_c))
    formula = (
        "do = dh * tanh(c) * o * (1 - o)"
        if gate == 2
        else f"d{name[0] if gate < 4 else 'c_before'} = (dc + dh * o * (1 - tanh(c)^2)) * dc/d{name}"
    )
    large = (abs(before) if gate == 1 else 1.0) + abs(to_c)  # 1 - tanh(c)^2 and 1 - f cancel
    return case.gradient(at, formula, Terms.joined(parts), steps=steps, size=4 * (abs(float(dc)) + abs(float(dh))) * large)
