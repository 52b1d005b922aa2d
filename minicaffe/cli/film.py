"""minicaffe film, and train's options for one"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from minicaffe.files import unlinked
from minicaffe.training.solver import SGDSolver

from .common import check_folder, check_target
from .options import argument, option, with_options
from .terminal import echo

if TYPE_CHECKING:
    from minicaffe.tracing.film import Film

PAGE = "film.html"


@dataclass(frozen=True, kw_only=True)
class FilmOptions:
    """--film, --every, --film-net and --film-image."""

    film: str | None = option("--film", "Leave frames of the training in DIR, and a page that plays them.", metavar="DIR")
    every: int | None = option("--every", "Iterations from frame to frame.  [default: 100]", type=click.IntRange(1))
    film_net: str | None = option("--film-net", "The detector's test prototxt: show what it finds.", metavar="FILE")
    film_image: tuple[str, ...] = option(
        "--film-image", "A photo for it; may be repeated.  [default: the roidb's first images]", metavar="FILE"
    )

    def check_film(self) -> None:
        """Raises click.UsageError for options without --film, Error for a folder that cannot be one."""
        if not self.film and (self.every or self.film_net or self.film_image):
            raise click.UsageError("--every, --film-net and --film-image go with --film")
        if self.film_image and not self.film_net:
            raise click.UsageError("--film-image goes with --film-net")
        check_folder("--film", self.film)

    def start_film(self, trainer: SGDSolver, classes: Sequence[str]) -> Film | None:
        """The film of --film, not begun. Raises Error."""
        if not self.film:
            return None
        from minicaffe.tracing.film import Film
        from minicaffe.tracing.film.film import EVERY

        images = self.film_image
        film = Film(trainer, self.film, self.every or EVERY, net=self.film_net, images=images, classes=classes or None)
        if film.note:
            echo(f"film: {film.note}", err=True)
        return film


@dataclass(frozen=True, kw_only=True)
class Options:
    folder: str = argument(metavar="DIR")
    out: str | None = option("-o --out", f"The page to write.  [default: DIR/{PAGE}]", metavar="FILE.html")


@with_options(Options)
def command(options: Options) -> None:
    """Make a page of the frames that `minicaffe train --film DIR` left, also of a run that was killed.

    Example:  minicaffe film film -o film.html
    """
    from minicaffe.tracing.film import write_film

    out = options.out or str(unlinked(Path(options.folder) / PAGE))
    check_target("--out", out)
    write_film(options.folder, out)
    echo(f"written: {out}")
