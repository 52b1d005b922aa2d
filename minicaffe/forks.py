"""Which fork of Caffe a field belongs to that minicaffe's schema does not have."""

from __future__ import annotations

_FIELDS: dict[str, dict[str, str]] = {}
FORK_OF_FIELD = {name: fork for fork, names in _FIELDS.items() for name in names}


def fork_of(message: str, name: str) -> str:
    """The fork that has this field in this message; empty where unknown."""
    return FORK_OF_FIELD.get(f"{message}.{name}", FORK_OF_FIELD.get(name, ""))
