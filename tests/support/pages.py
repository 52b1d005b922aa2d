"""A page of a trace, open in a browser."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Opened:
    """A page with what it logged and asked for."""

    page: Any
    problems: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def layer(self, name: str) -> None:
        """Click a layer in the graph."""
        self.page.locator(f'.node[aria-label^="{name},"]').dispatch_event("click")

    def step(self) -> str:
        return str(self.page.locator(".step-label strong").inner_text())

    def overlay(self) -> dict[str, str]:
        """Return the data attributes of what is drawn on the feature map."""
        return dict(self.page.locator(".overlay").evaluate("e => ({...e.dataset})"))

    def put(self, label: str, value: int) -> None:
        """Put a number into a field of the inspector."""
        field = self.page.get_by_label(label, exact=True)
        field.evaluate("(e, value) => { e.value = value; e.dispatchEvent(new Event('change')); }", value)

    def select(self, layer: str, roi: int, channel: int, row: int, column: int) -> dict[str, str]:
        self.layer(layer)
        self.page.locator(".overlay").wait_for(state="attached")
        for label, value in (("roi", roi), ("channel", channel), ("bin row", row), ("bin column", column)):
            self.put(label, value)
        found = self.overlay()
        assert (found["roi"], found["bin"]) == (str(roi), f"{row},{column}")
        return found


Open = Callable[..., Opened]
"""file, width, height, colour scheme -> the page."""


def violations(page: Any, axe: str) -> list[tuple[str, str, str]]:
    """Return the rules that axe-core, given as its source, finds broken: rule, element and what to do, for each."""
    page.evaluate(axe)
    found = page.evaluate("axe.run().then((result) => result.violations)")
    return [(each["id"], str(node["target"]), node["failureSummary"]) for each in found for node in each["nodes"]]
