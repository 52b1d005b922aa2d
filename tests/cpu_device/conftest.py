"""Without PyCUDA these tests are not collected, unless a command names their file."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("pycuda") else ["test_*.py"]
