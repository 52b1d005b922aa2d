"""`python -m minicaffe`: the command line."""

import os
import sys

if sys.path[:1] == [os.getcwd()] and not getattr(sys.flags, "safe_path", False):
    del sys.path[0]  # -m puts the working directory there: an h5py.py in it must not shadow the library

from .cli import main

main(prog_name="minicaffe")
