"""minicaffe --install-completion: completion of commands, options and files by the shell."""

from __future__ import annotations

import os
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from minicaffe.errors import Error
from minicaffe.files import replacing, unlinked

from .terminal import echo

SHELLS = {
    "bash": ("XDG_DATA_HOME", ".local/share", "bash-completion/completions/minicaffe"),
    "zsh": ("ZDOTDIR", "", ".zfunc/_minicaffe"),
    "fish": ("XDG_CONFIG_HOME", ".config", "fish/completions/minicaffe.fish"),
}
"""Where each shell looks: a variable with a folder, the folder in the home directory without it, and the file there."""
NOTES = {
    "bash": "new shells complete minicaffe's commands, where the package bash-completion is installed",
    "zsh": "put this into .zshrc, unless it is there: fpath+=~/.zfunc; autoload -Uz compinit && compinit",
    "fish": "new shells complete minicaffe's commands",
}


def install_completion(context: click.Context, shell: str) -> None:
    """Write the shell's completion file, and exit. shell: "auto" for $SHELL. Raises UsageError."""
    name = Path(os.environ.get("SHELL", "")).name if shell == "auto" else shell
    found = get_completion_class(name)
    if found is None or name not in SHELLS:
        raise click.UsageError(f"--install-completion {name or shell}: give one of {', '.join(SHELLS)}")
    variable, folder, file = SHELLS[name]
    place = Path(os.environ.get(variable) or Path.home() / folder) / file
    try:
        text = found(context.command, {}, "minicaffe", "_MINICAFFE_COMPLETE").source()
        place.parent.mkdir(parents=True, exist_ok=True)
        with replacing(unlinked(place)) as path:
            Path(path).write_text(text, encoding="utf-8")
    except (Error, OSError, RuntimeError) as error:  # RuntimeError: the shell, asked for its version, did not start
        raise click.UsageError(f"--install-completion {name}: {error}") from error
    echo(f"written: {place}\n{NOTES[name]}")
    context.exit()
