"""These tests compute as NumPy does, and slowly with compiled loops."""

from __future__ import annotations

from ways import way

__all__ = ["way"]
