"""The values of a training state, which is an untrusted file: each value is checked before use.

    fields = Fields(state)
    position = fields.whole("position", 0, len(data) - 1)
    fields.inner("order").whole("epoch", 0, MOST)      # "order.epoch" must be a whole number from 0 to ..., got -3

All functions raise ValueError, which names the field, what it must be, and its value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeGuard, runtime_checkable

import numpy as np

from minicaffe.errors import Error, shortened

State = dict[str, Any]
"""The state of layers and generators, as JSON."""

MOST = 2**63 - 1
"""The largest count or seed."""

MISFITS = (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError)
"""The exceptions of code that restores a value of a wrong kind."""


def misfit(error: Exception) -> str:
    """Return the message for one of MISFITS from a layer's restore_training_state."""
    return f"the state to resume from does not fit: {error if type(error) is ValueError else repr(error)}"


@runtime_checkable
class Resumable(Protocol):
    """A layer with a state besides its learnable blobs, such as a data layer's position and its generator's state."""

    def training_state(self) -> State:
        """Return the state that resumed training needs, as JSON in new objects: the state after the last batch.

        The solver calls it before each iteration.
        """

    def restore_training_state(self, state: State) -> None:
        """Continue from a state that training_state returned."""


def is_resumable(layer: object) -> TypeGuard[Resumable]:
    """Return whether the layer's class has both methods. Raises Error for one alone.

    isinstance takes 50 times as long.
    """
    kind = type(layer)
    if issubclass(kind, Resumable):
        return True
    lone = [name for name in ("training_state", "restore_training_state") if hasattr(kind, name)]
    if lone:
        needs = "to be resumed, a layer needs training_state and restore_training_state"
        raise Error(f"{kind.__name__} has {lone[0]} alone: {needs}")
    return False


class Fields:
    """The members of one JSON object."""

    def __init__(self, state: State | Fields, name: str = "") -> None:
        if not isinstance(state, dict | Fields):
            raise wrong(name or "state", "an object with members", state)
        self.values: State = state.values if isinstance(state, Fields) else state
        self.name: str = state.name if isinstance(state, Fields) else name

    def __contains__(self, name: str) -> bool:
        return name in self.values

    def path(self, name: str) -> str:
        """Return a member's full name, for errors."""
        return f"{self.name}.{name}" if self.name else name

    def get(self, name: str) -> Any:
        """Return a member of any kind."""
        if name not in self.values:
            raise ValueError(f'"{self.path(name)}" is missing')
        return self.values[name]

    def inner(self, name: str) -> Fields:
        """Return a member that is an object."""
        return Fields(self.get(name), self.path(name))

    def whole(self, name: str, low: int, high: int) -> int:
        """Return a whole number from low to high, both included."""
        return whole(self.get(name), self.path(name), low, high)

    def text(self, name: str) -> str:
        """Return a member that is a text."""
        value = self.get(name)
        if not isinstance(value, str):
            raise wrong(self.path(name), "a text", value)
        return value

    def items(self, name: str) -> list[Any]:
        """Return a member that is a list."""
        return items(self.get(name), self.path(name))

    def wholes(self, name: str, low: int, high: int) -> list[int]:
        """Return a list of whole numbers from low to high."""
        return [whole(value, f"{self.path(name)}[{i}]", low, high) for i, value in enumerate(self.items(name))]

    def numbers(self, name: str) -> list[float]:
        """Return a list of numbers."""
        return numbers(self.get(name), self.path(name))

    def generator(self, name: str) -> State:
        """Return the state of a generator."""
        return generator_state(self.get(name), self.path(name))


def whole(value: Any, name: str, low: int, high: int) -> int:
    """Return value if it is a whole number from low to high."""
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise wrong(name, f"a whole number from {low} to {high}", value)
    return value


def number(value: Any, name: str) -> float:
    """Return value as a float if it is a number or NaN."""
    if not isinstance(value, float) and (not isinstance(value, int) or isinstance(value, bool) or abs(value) > MOST):
        raise wrong(name, "a number", value)
    return float(value)


def items(value: Any, name: str) -> list[Any]:
    """Return value if it is a list."""
    if not isinstance(value, list):
        raise wrong(name, "a list", value)
    return value


def numbers(value: Any, name: str) -> list[float]:
    """Return value if it is a list of numbers."""
    return [number(one, f"{name}[{i}]") for i, one in enumerate(items(value, name))]


def pair(value: Any, name: str) -> tuple[Any, Any]:
    """Return value as a tuple if it is a list of two."""
    if not isinstance(value, list) or len(value) != 2:
        raise wrong(name, "a list of two", value)
    return value[0], value[1]


def generator_state(value: Any, name: str) -> State:
    """Return value if it is a state of PCG64, NumPy's default generator."""
    fields, kind = Fields(value, name), np.random.PCG64.__name__
    if fields.text("bit_generator") != kind:
        raise wrong(fields.path("bit_generator"), kind, fields.get("bit_generator"))
    inner = {key: fields.inner("state").whole(key, 0, 2**128 - 1) for key in ("state", "inc")}
    rest = {"has_uint32": fields.whole("has_uint32", 0, 1), "uinteger": fields.whole("uinteger", 0, 2**32 - 1)}
    return {"bit_generator": kind, "state": inner, **rest}


def same_shape(value: Any, name: str, shape: Sequence[int]) -> None:
    """Raise ValueError unless value is this shape as a list."""
    if value != list(shape):
        raise wrong(name, f"the shape {list(shape)}", value)


def wrong(name: str, wanted: str, value: Any) -> ValueError:
    """Return the error about a member."""
    return ValueError(shortened(f'"{name}" must be {wanted}, got {value!r}'))
