"""The options of a command: the fields of one dataclass, whose bases are the groups that commands share (groups.py).

@dataclass(frozen=True, kw_only=True)
class Options(NetOptions, DeviceOptions):
    heading: ClassVar[str] = "Options"  # in --help, the default
    net: str = argument()
    backward: bool = option("--backward", "Also run backward.")

@with_options(Options)
def run_command(options: Options) -> None: ...

The caffe tool's flags are translated to options before click reads them. Source: Caffe's tools/caffe.cpp.

    device_query                       device-query
    upgrade_solver_proto_text          upgrade --solver
    -solver s.prototxt, --solver=...   --solver=s.prototxt
    -weights a,b                       --weights=a --weights=b
    -sigint_effect stop                --sigint-effect=stop

gflags accepts -x or --x, with =v or a space before the value; an empty value counts as none.

The data tools' commands are GflagsCommands, whose options have these spellings: -resize_width=32, -gray=true.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import os
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_origin, get_type_hints

import click

from minicaffe.errors import Error

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

Chosen = TypeVar("Chosen")

EMPTY = "the name is empty: is a variable of the shell unset?"
"""The message for a file or folder on the command line."""

OWN, EVERY = "Options", "All commands"
"""Headings in --help: of options whose dataclass has no `heading`, and of every command's options."""
COLUMN = 30
"""Most characters of an option before its help, click's number."""


class _Option(click.Option):
    """An option of a dataclass. heading: that of its group in --help."""

    def __init__(self, *arguments: Any, heading: str, **attributes: Any) -> None:
        super().__init__(*arguments, **attributes)
        self.heading = heading

    def get_help_extra(self, ctx: click.Context) -> click.types.OptionHelpExtra:
        extra = super().get_help_extra(ctx)
        if isinstance(self.type, click.IntRange):
            extra.pop("range", None)  # hides ranges such as x>=1 and the 32 bits of a field
        return extra


def heading_of(option: click.Parameter) -> str:
    """Return the heading of an option's group."""
    return option.heading if isinstance(option, _Option) else EVERY


class Command(click.Command):
    """A command whose help lists its options by group, in one column."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        options = [param for param in self.get_params(ctx) if isinstance(param, click.Option)]
        options.sort(key=lambda param: heading_of(param) == EVERY)
        rows = [(heading_of(param), record) for param in options if (record := param.get_help_record(ctx))]
        width = min(max(len(flags) for _, (flags, _) in rows), COLUMN)
        for heading in dict.fromkeys(heading for heading, _ in rows):
            with formatter.section(heading):
                formatter.write_dl([(f"{row[0]:{width}}", row[1]) for one, row in rows if one == heading])


class _OldArgument(click.Argument):
    """An argument that the usage line leaves out: what an option says today."""

    def get_usage_pieces(self, ctx: click.Context) -> list[str]:
        return []


def option(flags: str, help: str, **attributes: Any) -> Any:
    """Return a dataclass field that is an option: "-o --out", its help, and click.Option's attributes.

    heading="...": that of its group in --help, in place of its dataclass's. The annotation decides: bool is a flag,
    tuple[X, ...] may be repeated, int and float are numbers.
    """
    return dataclasses.field(metadata={"flags": flags.split(), "attributes": {"help": help, **attributes}})


def argument(**attributes: Any) -> Any:
    """Return a dataclass field that is an argument, with click.Argument's attributes; tuple[X, ...] takes all that is left.

    hidden=True: it is not in the usage line.
    """
    return dataclasses.field(metadata={"flags": [], "attributes": attributes})


def parameters(options: type) -> Iterator[click.Parameter]:
    """Yield click's parameters for a dataclass: those of its own fields, then those of its bases."""
    fields, types = {field.name: field.metadata for field in dataclasses.fields(options)}, get_type_hints(options)
    for kind in inspect.getmro(options):  # --help lists own fields before the bases' fields
        for name in inspect.get_annotations(kind):
            if metadata := fields.pop(name, None):
                yield _parameter(name, types[name], vars(kind).get("heading", OWN), **metadata)


def _parameter(name: str, annotation: Any, heading: str, flags: Sequence[str], attributes: dict[str, Any]) -> click.Parameter:
    several = get_origin(annotation) is tuple
    if str in (annotation, *get_args(annotation)) and "type" not in attributes:
        attributes = {"shell_complete": _files, **attributes}
    if not flags:
        kind = _OldArgument if attributes.pop("hidden", False) else click.Argument
        return kind([name], **{"nargs": -1 if several else 1, "callback": _not_empty, **attributes})
    kinds = get_args(annotation) or (annotation,)
    number = next((kind for kind in (int, float) if kind in kinds), None)
    kept = {"heading": heading, "type": number, "is_flag": bool in kinds or None, "multiple": several}
    made = _Option([*flags, name], **{**kept, **attributes})
    if isinstance(made.type, click.types.IntParamType | click.types.FloatParamType) and not made.metavar:
        made.metavar = "N" if isinstance(made.type, click.types.IntParamType) else "X"  # click's is INTEGER RANGE
    return made


def _not_empty(context: click.Context, parameter: click.Parameter, given: Any) -> Any:
    """Return the value given. Raises Error for an empty text: as a path it would mean the working directory."""
    if given == "" or (isinstance(given, tuple) and "" in given):
        raise Error(f"{parameter.human_readable_name}: {EMPTY}")
    return given


def _files(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Let the shell complete names of files."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(incomplete, type="file")]


def with_options(
    options: type[Chosen], cls: type[click.Command] = Command, **settings: Any
) -> Callable[[Callable[[Chosen], None]], click.Command]:
    """Return a decorator that makes a click command of a function of one dataclass, whose fields are its parameters."""

    def made(function: Callable[[Chosen], None]) -> click.Command:
        @functools.wraps(function)
        def run(**given: Any) -> None:
            function(options(**given))

        return click.command(cls=cls, params=list(parameters(options)), **settings)(run)

    return made


class FiniteRange(click.FloatRange):
    """click.FloatRange without NaN and infinity."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            float(value)
        except ValueError:
            wanted = f"above {self.min:g}" if self.max is None else f"from {self.min:g} to {self.max:g}"
            self.fail(f"{value} is not a number: give one {wanted}", param, ctx)
        number = super().convert(value, param, ctx)
        return number if math.isfinite(number) else self.fail(f"{value} is not a finite number", param, ctx)


TOOL_FLAGS = (
    "solver", "model", "weights", "snapshot", "gpu", "iterations", "phase", "level", "stage", "sigint_effect", "sighup_effect",
)  # fmt: skip
TOOL_COMMANDS = ("train", "test", "time", "device-query")
"""The commands that take TOOL_FLAGS."""

ALIASES = {
    "upgrade-net-proto-text": ("upgrade",),
    "upgrade-net-proto-binary": ("upgrade", "--binary"),
    "upgrade-solver-proto-text": ("upgrade", "--solver"),
}
"""Caffe's tools that are options of a command here."""

LISTED_FLAGS = ("weights", "stage")
"""Flags whose value may be a comma-separated list."""


def translate(arguments: Sequence[str], known: Sequence[str]) -> list[str]:
    """Return the arguments, with the caffe tool's spellings replaced. known: the names of the commands.

    Raises click.UsageError for a flag with two different values.
    """
    place = next((i for i, word in enumerate(arguments) if not word.startswith("-")), len(arguments))  # the command's name
    if place == len(arguments):
        return list(arguments)
    command, rest = arguments[place], arguments[place + 1 :]
    dashed = command.replace("_", "-")
    if dashed in known:
        command = dashed
    words = ALIASES.get(dashed, (command,))
    return [*arguments[:place], *words, *(_translated(rest) if command in TOOL_COMMANDS else rest)]


def _translated(words: Sequence[str]) -> Iterator[str]:
    given: dict[str, tuple[str, str]] = {}
    rest = iter(words)
    for word in rest:
        name, equals, value = word.lstrip("-").partition("=")
        name = name.replace("-", "_")
        if word == "--":
            yield from (word, *rest)  # words after -- are not flags
            return
        if not word.startswith("-") or name not in TOOL_FLAGS:
            yield word
            continue
        option = f"--{name.replace('_', '-')}"
        if not equals:
            following = next(rest, None)
            if following is None:
                yield option  # click reports the missing value
                return
            value = following
        if not value:
            continue
        if name in LISTED_FLAGS:
            yield from (f"{option}={part}" for part in _parts(value))
            continue
        spelling = f"{word.partition('=')[0]} {value}"
        before, other = given.setdefault(name, (value, spelling))  # gflags would take the last one silently
        if before != value:
            raise click.UsageError(f"{other} and {spelling}: give one of them")
        yield f"{option}={value}"


def _parts(value: str) -> list[str]:
    """Return the parts of a value; an existing file with commas in its name stays whole."""
    return [value] if os.path.exists(value) else [part for part in value.split(",") if part]


class GflagsCommand(Command):
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
