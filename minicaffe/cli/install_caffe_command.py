"""The caffe tool's names as commands: `python -m minicaffe.install_caffe_command [--remove] [FOLDER]`.

Writes small scripts (caffe, upgrade_net_proto_text, ...) that run minicaffe with this Python into its scripts folder or FOLDER.
Other files with these names are never touched.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from pathlib import Path

import click

from minicaffe.cli import CAFFE, COMMANDS
from minicaffe.cli.options import translate
from minicaffe.cli.terminal import echo
from minicaffe.errors import Error
from minicaffe.files import replacing

TOOLS = (
    "upgrade_net_proto_text", "upgrade_net_proto_binary", "upgrade_solver_proto_text",
    "convert_imageset", "compute_image_mean", "extract_features",
)  # fmt: skip
MARK = "minicaffe.install_caffe_command"


def scripts(python: str, windows: bool) -> dict[str, str]:
    """Return the text of each script by file name, for caffe and the TOOLS that minicaffe has."""
    names = ["caffe", *(name for name in TOOLS if translate([name], list(COMMANDS))[0] in COMMANDS)]
    made = {}
    for name in names:
        command = f" {CAFFE}" if name == "caffe" else f" {name}"
        if windows:
            made[f"{name}.cmd"] = f'@rem written by {MARK}\r\n@"{python}" -m minicaffe{command} %*\r\n'
        else:
            quoted = "'" + python.replace("'", "'\\''") + "'"  # a path may have spaces and quotes
            made[name] = f'#!/bin/sh\n# written by {MARK}\nexec {quoted} -m minicaffe{command} "$@"\n'
    return made


def install(folder: Path, remove: bool = False) -> list[Path]:
    """Write the scripts into folder, or remove them; return the files written or removed.

    Raises Error, and changes nothing, if one of the files is another program.
    """
    made = {folder / name: text for name, text in scripts(sys.executable, os.name == "nt").items()}
    there = [path for path in made if os.path.lexists(path)]
    for path in there:
        if path.is_symlink() or not path.is_file() or MARK.encode() not in path.read_bytes()[:200]:
            raise Error(f"{path}: there is another program of this name; nothing was changed")
    if remove:
        for path in there:
            path.unlink()
        return there
    folder.mkdir(parents=True, exist_ok=True)
    for path, text in made.items():
        with replacing(path) as temporary:
            temporary.write_text(text, encoding="utf-8", newline="")  # newline="": .cmd files have their \r\n already
            temporary.chmod(0o755)
    return list(made)


@click.command()
@click.argument("folder", required=False)
@click.option("--remove", is_flag=True, help="Remove these scripts.")
def main(folder: str | None, remove: bool) -> None:
    """Install `caffe` and its tools as commands that run minicaffe: into FOLDER, or into this Python's scripts folder."""
    target = Path(folder or sysconfig.get_path("scripts"))
    try:
        done = install(target, remove)
    except (Error, OSError) as error:
        raise click.ClickException(str(error)) from error
    for path in done:
        echo(f"{'removed' if remove else 'written'}: {path}")
    first = shutil.which("caffe")
    if not remove and (first is None or Path(first).parent.resolve() != target.resolve()):
        echo(f"note: on your PATH, caffe is {first or 'not found'}; put {target} first on it", err=True)


if __name__ == "__main__":
    main(prog_name="python -m minicaffe.install_caffe_command")
