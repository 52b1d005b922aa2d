"""What minicaffe raises: every error a user can cause derives from Error and names its place.

A file may hold a name of ten million letters, or one that sets a terminal's colours or title: messages are cut to what can be
read, and control characters written out, here, whoever makes them.
"""

from __future__ import annotations

import re

LONGEST_WORD, LONGEST = 1000, 20_000
"""Characters of one word, and of a whole message."""
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def shortened(text: str) -> str:
    r"""text, where a word or the whole is too long with the middle left out; control characters as \x1b."""
    text = _CONTROL.sub(lambda control: f"\\x{ord(control[0]):02x}", text)
    if len(text) <= LONGEST_WORD:
        return text
    text = re.sub(rf"\S{{{LONGEST_WORD + 1},}}", lambda word: _cut(word[0], LONGEST_WORD), text)
    return _cut(text, LONGEST)


def _cut(text: str, most: int) -> str:
    left_out = len(text) - most
    return text if left_out <= 0 else f"{text[: most // 2]}...({left_out:,} characters more)...{text[len(text) - most // 2 :]}"


class Error(Exception):
    """Base of all of minicaffe's errors."""

    def __init__(self, *args: object) -> None:
        super().__init__(*(shortened(arg) if isinstance(arg, str) else arg for arg in args))


class PrototxtError(Error):
    """A prototxt (net or solver) that cannot be read; str() is `file:line:col: message`, the source line, a caret, a hint."""

    def __init__(
        self,
        message: str,
        *,
        file: str = "<text>",
        line: int = 0,
        column: int = 0,
        source_line: str = "",
        hint: str = "",
    ) -> None:
        self.message, self.file, self.line, self.column = shortened(message), shortened(file), line, column
        self.source_line, self.hint = source_line, shortened(hint)
        super().__init__(self._text())

    def _text(self) -> str:
        where = f"{self.file}:{self.line}:{self.column}" if self.line else self.file
        lines = [f"{where}: {self.message}"]
        if self.source_line.strip():
            first = max(0, self.column - 100)
            shown = self.source_line[first : first + 120].rstrip()
            shown = "".join(c if c.isprintable() else " " for c in shown)
            lines += [f"  {shown}", "  " + " " * (self.column - 1 - first) + "^"]
        if self.hint:
            lines.append(f"hint: {self.hint}")
        return "\n".join(lines)


class UpgradeError(PrototxtError):
    """A net of an older generation that cannot be upgraded; block is the index of the layer at fault (-1: the input fields)."""

    def __init__(self, message: str, block: int | None = None, hint: str = "") -> None:
        self.block = block
        super().__init__(message, hint=hint)


class PrototxtWarning(UserWarning):
    """A prototxt holds a field that minicaffe does not know (another fork's, or misspelt) and skips, or one that changes
    nothing where it stands."""

    def __init__(self, *args: object) -> None:
        super().__init__(*(shortened(arg) if isinstance(arg, str) else arg for arg in args))


class LimitError(Error):
    """A file declares more than minicaffe.limits allow."""


class LayerError(Error):
    """A layer that cannot be set up or run: `ROIPooling layer "roi_pool5": pooled_h must be > 0, got 0 (test.prototxt:341)`."""


class WeightsError(Error):
    """A weights file (.caffemodel, .h5, .binaryproto) that cannot be read, or does not fit the net."""


class SolverError(Error):
    """A solver prototxt that cannot be used, or a training run that cannot go on (the loss is no number)."""


class DeviceError(Error):
    """No usable GPU, or an operation that it refused."""


class BlobError(Error):
    """A shape that no blob can have; the net turns it into a LayerError that names the layer."""


class FillerError(Error):
    """A filler that is unknown or cannot fill a blob; the layer turns it into a LayerError that names it."""


class SettingsError(Error):
    """Detection settings (a yml) with an unknown key or a value of the wrong type."""


class DataError(Error):
    """An image or an annotation file that cannot be read, or boxes that no image can have."""
