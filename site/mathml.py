"""Formulas of docstrings, plain text, as MathML: `y[i, j] = max(x[i], 0)^2` with its indices set below and its powers above."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape

TOKEN = re.compile(r"[A-Za-z_][A-Za-z0-9_']*|\d+(?:\.\d+)?(?:e-?\d+)?|\.\.\.|<=|>=|!=|==|->|<-|\S|\s+")
SIGNS = {"*": "·", "-": "−", "<=": "≤", ">=": "≥", "!=": "≠", "->": "→", "<-": "←", "...": "…", "==": "="}
GREEK = dict(
    zip("alpha beta gamma delta eps lambda mu pi sigma tau theta eta rho phi inf".split(), "αβγδελμπστθηρφ∞", strict=True)
)
WORDS = frozenset(
    """a all along an and are around as at batch before bilinear but by classes channel channels clipped column columns count
    counts divisor each else elsewhere first for from given has if in is its itself last less likewise loss map maps mean
    means next no not number of off on once one only or other others over past per pixel pixels position positions row
    rows same samples second shares sum sums that the their them then there they this those through times to two unless
    where which window windows with within without""".split()
)
"""English words, which stand as text; other names of several letters are upright identifiers."""


class _Reader:
    """The tokens of a line, read once."""

    def __init__(self, line: str) -> None:
        self.tokens: list[str] = TOKEN.findall(line)
        self.at = 0

    def peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def is_between_spaces(self) -> bool:
        """Return whether a space stands on both sides of the last token, and a name or a number behind."""
        before, after = self.tokens[self.at - 2 : self.at - 1], self.tokens[self.at : self.at + 3]
        return before == [" "] and len(after) == 3 and after[0] == " " and after[1].isidentifier() and after[2] not in "[^"

    def take(self) -> str:
        self.at += 1
        return self.tokens[self.at - 1]


PROSE = 5
"""A statement with more English words than this is text."""


def formula(lines: str) -> str:
    """Return the statements of a formula, one below the other, as MathML; sentences among them as text.

    A statement is a line, or a part of one between four spaces.
    """
    statements = [part.strip() for line in lines.split("\n") for part in re.split(r"\s{4,}", line) if part.strip()]
    made: list[str] = []
    for text in statements:
        if made and made[-1].endswith("</p>") and text[0].islower():  # a sentence goes on
            made[-1] = f"{made[-1].removesuffix('</p>')} {escape(text)}</p>"
        elif sum(word.lower() in WORDS for word in re.findall(r"[A-Za-z]{2,}", text)) > PROSE:
            made.append(f"<p>{escape(text)}</p>")
        else:
            made.append(f'<p class="statement">{_pieces(list(_atoms(_Reader(text), "")))}</p>')
    return f'<div class="formula">{"".join(made)}</div>'


def _pieces(atoms: list[str]) -> str:
    """Return a statement as <math> elements, between which a line may end: browsers do not break the lines of one."""
    pieces: list[list[str]] = [[]]
    for before, atom, after in zip(["", *atoms], atoms, [*atoms[1:], ""], strict=False):
        is_words = after.startswith("<mtext>") and not before.startswith("<mtext>")
        if atom.startswith("<mspace") and (is_words or after.startswith("<mo>") or before in ("<mo>,</mo>", "<mo>;</mo>")):
            pieces.append([])
        else:
            pieces[-1].append(atom)
    return " ".join(f'<math displaystyle="true">{"".join(piece)}</math>' for piece in pieces if piece)


def _atoms(reader: _Reader, ends: str) -> Iterator[str]:
    """Yield the elements up to a closing token of `ends`, which is read too."""
    while reader.at < len(reader.tokens):
        if reader.peek() in ends:
            reader.take()
            return
        yield _with_scripts(reader)


def _with_scripts(reader: _Reader) -> str:
    """Return an element with the index and the power that follow."""
    base = _base(reader)
    below = _index(reader) if reader.peek() == "[" and base.startswith("<mi") else ""
    above = ""
    if reader.peek() == "^":
        reader.take()
        sign = f"<mo>{SIGNS['-']}</mo>" if reader.peek() == "-" and reader.take() else ""
        above = f"<mrow>{sign}{_base(reader) if reader.peek() else ''}</mrow>"
    if below and above:
        return f"<msubsup>{base}{below}{above}</msubsup>"
    if below or above:
        return f"<msub>{base}{below}</msub>" if below else f"<msup>{base}{above}</msup>"
    return base


def _index(reader: _Reader) -> str:
    reader.take()
    return f"<mrow>{''.join(_atoms(reader, ']'))}</mrow>"


def _base(reader: _Reader) -> str:
    token = reader.take()
    if token.isspace():
        return f'<mspace width="{min(len(token), 4) * 0.25:g}em"/>'
    if token in "([":  # [a, b) is closed by either
        inner = "".join(_atoms(reader, ")]"))
        closing = f"<mo>{reader.tokens[reader.at - 1]}</mo>" * (reader.tokens[reader.at - 1] in ")]")
        return f"<mrow><mo>{token}</mo>{inner}{closing}</mrow>"
    if token[0].isdigit():
        return f"<mn>{token}</mn>"
    if token == "x" and reader.is_between_spaces():
        return "<mo>×</mo>"
    if not (token[0].isalpha() or token[0] == "_"):
        return f"<mo>{escape(SIGNS.get(token, token))}</mo>"
    if token == "sqrt" and reader.peek() == "(":
        reader.take()
        return f"<msqrt>{''.join(_atoms(reader, ')'))}</msqrt>"
    if (token.lower() in WORDS and len(token) > 1) or (token == "a" and reader.peek().isspace()):
        return f"<mtext>{token}</mtext>"
    name, _, index = token.partition("_")
    if name == "sum" and index:
        return f"<munder><mo>∑</mo>{_name(index)}</munder>"
    return f"<msub>{_name(name)}{_name(index)}</msub>" if index and len(name) == 1 else _name(token)


def _name(name: str) -> str:
    return f"<mi>{escape(GREEK.get(name, name))}</mi>"
