"""What of a command's output is not text: all that acts on a terminal, but for the styles and bars that are ours."""

from __future__ import annotations

import re

from minicaffe.errors import UNSEEN

STYLE = "(?:38;5;[0-9]+|38;2;[0-9;]+|0|1|2|3|4|7|3[0-7]|39|9[0-7])"
"""A colour of letters, bold, faint, italic, underlined, reversed; no background and no blinking, so that tests can tell."""
OURS = re.compile(rf"\x1b\[(?:{STYLE}(?:;{STYLE})*)?m|\x1b\[\?25[lh]|\x1b\[[0-9]*[ABK]|\r")


def foreign(text: str, *, terminal: bool) -> list[str]:
    """The characters that should not have been written; terminal: where one reads, with styles and bars."""
    return UNSEEN.findall(OURS.sub("", text) if terminal else text)
