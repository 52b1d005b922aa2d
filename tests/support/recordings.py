"""What others made, and the repository does not publish: what the original Caffe and its forks computed, models and prototxts.

They lie in a folder beside the repository, `../shared`; CI has it. A test that needs a part of it is skipped elsewhere.
"""

from __future__ import annotations

from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[3] / "shared"
REASON = "compares with others' recordings or models (../shared), which are not published with this repository"
absent = pytest.mark.skip(reason=REASON)


def needs(path: Path) -> pytest.MarkDecorator:
    """Return a mark for a test that reads this file or folder of SHARED."""
    return pytest.mark.skipif(not path.exists(), reason=REASON)
