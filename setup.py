"""setup.cfg says what is installed; here, that the checkout is whole: a wheel of links that came out as text would be empty."""

import sys
from pathlib import Path

from setuptools import setup

for name in ("layers", "proto", "cuda"):
    if not (Path(__file__).parent / "minicaffe" / name).is_dir():
        sys.exit(
            f"minicaffe/{name} is a link that git wrote as a text file: make the checkout anew with"
            " `git clone -c core.symlinks=true` (on Windows in Developer Mode), or install a release"
        )
setup()
