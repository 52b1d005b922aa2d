"""`python -m minicaffe`: the command line."""

from .cli import main

main(prog_name="minicaffe")
