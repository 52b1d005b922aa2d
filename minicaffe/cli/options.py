"""The options of a command: the fields of one dataclass, whose bases are the groups that commands share (groups.py).

@dataclass(frozen=True, kw_only=True)
class Options(NetOptions, DeviceOptions):
    net: str = argument()
    backward: bool = option("--backward", "Also run backward.")

@with_options(Options)
def command(options: Options) -> None: ...
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import click
import numpy as np
from click.shell_completion import CompletionItem

from minicaffe.errors import Error

Chosen = TypeVar("Chosen")

EMPTY = "the name is empty: is a variable of the shell unset?"
"""Of a file or folder on the command line."""


class _Option(click.Option):
    def get_help_extra(self, ctx: click.Context) -> click.types.OptionHelpExtra:
        extra = super().get_help_extra(ctx)
        if isinstance(self.type, click.IntRange):
            extra.pop("range", None)  # at least 1, or the 32 bits of a field
        return extra


def option(flags: str, help: str, **attributes: Any) -> Any:
    """A dataclass field that is an option: "-o --out", its help, and click.Option's attributes.

    The annotation decides: bool is a flag, tuple[X, ...] may be repeated, int and float are numbers.
    """
    return dataclasses.field(metadata={"flags": flags.split(), "attributes": {"help": help, **attributes}})


def argument(**attributes: Any) -> Any:
    """A dataclass field that is an argument, with click.Argument's attributes; tuple[X, ...] takes all that is left."""
    return dataclasses.field(metadata={"flags": [], "attributes": attributes})


def parameters(options: type) -> Iterator[click.Parameter]:
    """click's parameters for a dataclass: those of its own fields, then those of its bases."""
    fields, types = {field.name: field.metadata for field in dataclasses.fields(options)}, get_type_hints(options)
    for kind in inspect.getmro(options):  # dataclasses.fields lists the bases' first; --help should not
        for name in inspect.get_annotations(kind):
            if metadata := fields.pop(name, None):
                yield _parameter(name, types[name], **metadata)


def _parameter(name: str, annotation: Any, flags: Sequence[str], attributes: dict[str, Any]) -> click.Parameter:
    several = get_origin(annotation) is tuple
    if str in (annotation, *get_args(annotation)) and "type" not in attributes:
        attributes = {"shell_complete": _files, **attributes}
    if not flags:
        return click.Argument([name], **{"nargs": -1 if several else 1, "callback": _not_empty, **attributes})
    kinds = get_args(annotation) or (annotation,)
    number = next((kind for kind in (int, float) if kind in kinds), None)
    made = _Option([*flags, name], **{"type": number, "is_flag": bool in kinds or None, "multiple": several, **attributes})
    if isinstance(made.type, click.types.IntParamType | click.types.FloatParamType) and not made.metavar:
        made.metavar = "N" if isinstance(made.type, click.types.IntParamType) else "X"  # click's is INTEGER RANGE
    return made


def _not_empty(context: click.Context, parameter: click.Parameter, given: Any) -> Any:
    """What is given. Raises Error for an empty text, which as a path would mean the working directory."""
    if given == "" or (isinstance(given, tuple) and "" in given):
        raise Error(f"{parameter.human_readable_name}: {EMPTY}")
    return given


def _files(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The shell completes names of files."""
    return [CompletionItem(incomplete, type="file")]


def with_options(
    options: type[Chosen], cls: type[click.Command] = click.Command, **settings: Any
) -> Callable[[Callable[[Chosen], None]], click.Command]:
    """A decorator: a function of one dataclass becomes a click command with the options and arguments of its fields."""

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
        return number if np.isfinite(number) else self.fail(f"{value} is not a finite number", param, ctx)
