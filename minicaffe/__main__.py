"""`python -m minicaffe`: the command line."""

import os
import sys

if sys.path[:1] == [os.getcwd()] and not getattr(sys.flags, "safe_path", False):
    del sys.path[0]  # where -m puts the working directory: an h5py.py there is not to be imported in place of the library

from .cli import main

main(prog_name="minicaffe")
