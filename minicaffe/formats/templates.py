"""Prototxts that are templates: variables, in place of values, that a script of their repository fills in.

$NAME$ or $NAME: FlowNet 2's, PWC-Net's        ${NAME}: DeepLab's
"""

from __future__ import annotations

import re
from collections.abc import Mapping


def fill_variables(text: str, values: Mapping[str, object]) -> str:
    """A template's text with these variables' values; other variables stay."""
    if not values:
        return text
    names = "|".join(map(re.escape, values))
    return re.sub(rf"\$\{{({names})\}}|\$({names})\b\$?", lambda found: str(values[found[1] or found[2]]), text)
