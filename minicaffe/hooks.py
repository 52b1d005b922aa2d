"""Hooks: functions called before and after each layer's forward and backward (by the tracer, the timer, debug_info)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

Hook = Callable[[int], None]
"""Called with a layer's index, before or after its forward or backward."""


class Hooked:
    """The part of Net that holds and calls hooks."""

    def __init__(self) -> None:
        self._hooks: defaultdict[str, list[Hook]] = defaultdict(list)

    def before_forward(self, hook: Hook) -> Hook:
        """Call hook(layer index) before each layer's forward."""
        return self._hook("before_forward", hook)

    def after_reshape(self, hook: Hook) -> Hook:
        """Call hook(layer index) in each layer's forward, after its reshape."""
        return self._hook("after_reshape", hook)

    def after_forward(self, hook: Hook) -> Hook:
        """Call hook(layer index) after each layer's forward."""
        return self._hook("after_forward", hook)

    def before_backward(self, hook: Hook) -> Hook:
        """Call hook(layer index) before each layer's backward."""
        return self._hook("before_backward", hook)

    def after_backward(self, hook: Hook) -> Hook:
        """Call hook(layer index) after each layer's backward."""
        return self._hook("after_backward", hook)

    def remove_hook(self, hook: Hook) -> None:
        """Remove a hook from everywhere it was added."""
        for hooks in self._hooks.values():
            while hook in hooks:
                hooks.remove(hook)

    @property
    def forward_is_watched(self) -> bool:
        """Whether a hook is called between the layers of a forward."""
        # A chain would skip them.
        return any(self._hooks[when] for when in ("before_forward", "after_reshape", "after_forward"))

    @property
    def backward_is_watched(self) -> bool:
        """Whether a hook is called between the layers of a backward."""
        return any(self._hooks[when] for when in ("before_backward", "after_backward"))

    def _hook(self, when: str, hook: Hook) -> Hook:
        self._hooks[when].append(hook)
        return hook

    def _call(self, when: str, i: int) -> None:
        for hook in tuple(self._hooks[when]):  # one may remove itself
            hook(i)
