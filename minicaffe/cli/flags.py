"""Translates the caffe tool's flags to options before click reads them. Source: Caffe's tools/caffe.cpp.

    device_query                       device-query
    upgrade_solver_proto_text          upgrade --solver
    -solver s.prototxt, --solver=...   --solver=s.prototxt
    -weights a,b                       --weights=a --weights=b
    -sigint_effect stop                --sigint-effect=stop

gflags accepts -x or --x, with =v or a space before the value; an empty value counts as none.

The data tools' commands are GflagsCommands, whose options have these spellings: -resize_width=32, -gray=true.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

import click

TOOL_FLAGS = (
    "solver", "model", "weights", "snapshot", "gpu", "iterations", "phase", "level", "stage", "sigint_effect", "sighup_effect",
)  # fmt: skip
COMMANDS = ("train", "test", "time", "device-query")
"""The commands that take TOOL_FLAGS."""

ALIASES = {
    "upgrade-net-proto-text": ("upgrade",),
    "upgrade-net-proto-binary": ("upgrade", "--binary"),
    "upgrade-solver-proto-text": ("upgrade", "--solver"),
}
"""Caffe's tools that are options of a command here."""

LISTS = ("weights", "stage")
"""Flags whose value may be a comma-separated list."""


def translate(arguments: Sequence[str], known: Sequence[str]) -> list[str]:
    """arguments with the tool's spellings replaced; known: the commands of this command line. Raises click.UsageError for
    a flag with two different values."""
    place = next((i for i, word in enumerate(arguments) if not word.startswith("-")), len(arguments))  # the command's name
    if place == len(arguments):
        return list(arguments)
    command, rest = arguments[place], arguments[place + 1 :]
    dashed = command.replace("_", "-")
    if dashed in known:
        command = dashed
    words = ALIASES.get(dashed, (command,))
    return [*arguments[:place], *words, *(_translated(rest) if command in COMMANDS else rest)]


def _translated(words: Sequence[str]) -> Iterator[str]:
    given: dict[str, tuple[str, str]] = {}
    rest = iter(words)
    for word in rest:
        name, equals, value = word.lstrip("-").partition("=")
        name = name.replace("-", "_")
        if word == "--":
            yield from (word, *rest)  # what follows -- is not for us
            return
        if not word.startswith("-") or name not in TOOL_FLAGS:
            yield word
            continue
        option = f"--{name.replace('_', '-')}"
        if not equals:
            following = next(rest, None)
            if following is None:
                yield option  # click says what is missing
                return
            value = following
        if not value:
            continue
        if name in LISTS:
            yield from (f"{option}={part}" for part in _listed(value))
            continue
        spelling = f"{word.partition('=')[0]} {value}"
        before, other = given.setdefault(name, (value, spelling))  # gflags would take the last one silently
        if before != value:
            raise click.UsageError(f"{other} and {spelling}: give one of them")
        yield f"{option}={value}"


def _listed(value: str) -> list[str]:
    """The parts of a value; an existing file with commas in its name stays whole."""
    return [value] if os.path.exists(value) else [part for part in value.split(",") if part]


class GflagsCommand(click.Command):
    """A command whose long options may have one dash, underscores and, if they are switches, =true or =false."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        switches = {name for p in self.params if isinstance(p, click.Option) and p.is_flag for name in p.opts}
        return super().parse_args(ctx, list(_as_options(args, switches)))


def _as_options(words: Sequence[str], switches: set[str]) -> Iterator[str]:
    for word in words:
        name, equals, value = word.partition("=")
        bare = name.lstrip("-")
        if not name.startswith("-") or len(bare) < 2 or not bare[0].isalpha():
            yield word
            continue
        option = "--" + bare.replace("_", "-")
        if option not in switches:
            yield option + equals + value
        elif value.lower() not in ("false", "0", "no"):
            yield option
