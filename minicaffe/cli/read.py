"""read: the text of images, by a CRNN, or the lines of text that a CTPN finds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import click
import numpy as np

from minicaffe.detection.detect import to_json
from minicaffe.detection.family import FindOptions
from minicaffe.detection.reading import Ctpn, decoded_text, decoder_of, has_steps, read_text, text_blob
from minicaffe.errors import Error, on_one_line, shortened
from minicaffe.files import read_text as text_of
from minicaffe.net import Net
from minicaffe.scaling.batch.sources import Picture

from .options import option, with_options
from .pictures import DataLayerOptions, Found, as_read


@dataclass(frozen=True, kw_only=True)
class Options(DataLayerOptions):
    alphabet: str = option("--alphabet", "Characters of the classes, in order, without the blank.", default="0123456789")
    alphabet_file: str | None = option("--alphabet-file", "Like --alphabet, with one character per line.", metavar="FILE")
    blank: str = option("--blank", "Position of the blank's class.", type=click.Choice(["first", "last"]), default="first")
    blob: str | None = option("--blob", "Blob of the scores.  [default: the output with the right shape]", metavar="BLOB")


@with_options(Options)
def read_command(options: Options) -> None:
    """Read a line of text in each of the images SOURCE... with a CRNN (greedy CTC).

    A source is an image, a folder, a pattern, a video, a list (.txt, .lst: one path per line), a Parquet file, or a URI.

    The output of NET is a score of each class for each time step (T, 1, C), or the labels of a CTCGreedyDecoder, which defines
    the blank. An image shows one line of text; it is resized to the net's input. A CTPN finds the lines in a whole photo but
    reads none: their scores and boxes are printed, and `minicaffe detect` draws them.

    Example:  minicaffe read deploy.prototxt crnn.caffemodel plate.png --alphabet 0123456789 --mean 128,128,128
    """
    options.use_device()
    options = as_read(options)
    images, alphabet = options.images, _alphabet(options)
    net = options.opened()

    def read(picture: Picture) -> Found:
        if Ctpn().matches(net):
            lines = _lines(net, picture, options)
            return Found({"image": picture.name, "lines": lines}, _texts(picture.name, lines))
        options.put(net, picture)
        text = _text(net, alphabet, options)
        return Found({"image": picture.name, "text": text}, [f"{on_one_line(picture.name)}: {shortened(on_one_line(text))}"])

    options.report_each(images, read, ensure_ascii=False)


def _lines(net: Net, picture: Picture, options: Options) -> list[dict[str, Any]]:
    """Return the score and box of each line that a CTPN finds."""
    pixels, settings = picture.pixels(), options.settings
    if options.rgb:
        pixels = np.ascontiguousarray(pixels[..., ::-1])
        settings = replace(settings, pixel_means=settings.pixel_means[::-1])
    found = Ctpn().find(net, pixels, FindOptions(0.7, settings=settings))
    return [{name: one[name] for name in ("score", "box")} for one in to_json(found)]


def _texts(image: str, lines: list[dict[str, Any]]) -> list[str]:
    texts = [f"{on_one_line(image)}: {len(lines)} line{'s' * (len(lines) != 1)} of text"]
    for line in lines:
        x1, y1, x2, y2 = line["box"]
        texts.append(f"  {line['score']:.3f}  x1 {x1:6.1f}  y1 {y1:6.1f}  x2 {x2:6.1f}  y2 {y2:6.1f}")
    return texts


def _alphabet(options: Options) -> list[str]:
    """Return the characters of the classes. Raises Error for a file that is not text or has no characters."""
    if options.alphabet_file is None:
        return list(options.alphabet)
    try:
        lines = text_of(options.alphabet_file).split("\n")
    except UnicodeDecodeError as error:
        raise Error(f"{options.alphabet_file}: not a text file; write one character a line") from error
    lines = lines[:-1] if lines[-1] == "" else lines  # drops only the last, empty line: a space is a character
    if not lines:
        raise Error(f"{options.alphabet_file}: no characters; write one a line")
    return lines


def _text(net: Net, alphabet: list[str], options: Options) -> str:
    """Return the text that the net reads in its input's image. Raises Error."""
    blob = options.blob or text_blob(net, options.net)
    values = np.asarray(net.forward(blobs=[blob])[blob])
    decoder = decoder_of(net, blob)
    if decoder:
        given = decoder.param.ctc_decoder_param.blank_index
        return decoded_text(values, alphabet, given if given >= 0 else None)
    if not has_steps(values.shape):
        raise Error(f"{blob} of shape {values.shape} does not hold a score of each class for each time step: (T, 1, C)")
    scores = values.reshape(len(values), -1)
    return read_text(scores, alphabet, 0 if options.blank == "first" else scores.shape[1] - 1)
