"""Image formats that are not read, recognised by a file's first bytes."""

from __future__ import annotations

import re

START = 30
"""The number of bytes to look at."""

OTHERS = {
    rb"GIF8[79]a": "a GIF",
    rb"(?s).{4}ftypavi[fs]": "an AVIF",
    rb"(?s).{4}ftyp(hei[cxms]|hev[cmsx]|mif1|msf1)": "a HEIC",
    rb"\xff\x0a|\0\0\0\x0cJXL ": "a JPEG XL",
    rb"8BPS": "a Photoshop",
    rb"\x00\x00\x01\x00": "an ICO",
    rb"%!PS|\xc5\xd0\xd3\xc6": "a PostScript",
}
"""Pattern of the first bytes: the format, with its article."""


def other_format(start: bytes) -> str:
    """What an image of a format that is not read is, by its first bytes: "a GIF image"; "" for any other file."""
    return next((f"{kind} image" for pattern, kind in OTHERS.items() if re.match(pattern, start)), "")
