"""Flags as Caffe's data tools take them, read as this command line's options.

-resize_width=32, --resize_width 32  ->  --resize-width=32, --resize-width 32;   -gray=true  ->  --gray
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import click


class GflagsCommand(click.Command):
    """A command whose long options may have one dash, underlines, and, where they are switches, =true or =false."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        switches = {name for p in self.params if isinstance(p, click.Option) and p.is_flag for name in p.opts}
        return super().parse_args(ctx, list(_translated(args, switches)))


def _translated(words: Sequence[str], switches: set[str]) -> Iterator[str]:
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
