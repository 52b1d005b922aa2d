"""A safe reader for YAML (param_str, settings, data.yaml), which accepts plain data and `!!python/tuple` only.

    "'feat_stride': 16 \n'scales': !!python/tuple [4, 8, 16, 32]"  ->  {"feat_stride": 16, "scales": (4, 8, 16, 32)}

Source: the originals' yaml.load(self.param_str), which could build any Python object; PyYAML's safe_load refuses tuples.
"""

from __future__ import annotations

import functools
import os
from typing import Any

from minicaffe.errors import Error, on_one_line, read_errors_as
from minicaffe.files import read_bytes, utf8

MOST = 1 << 16
"""Most characters of a text: PyYAML takes about 10 microseconds per value."""
DEEPEST = 32
"""Most nested lists and mappings: for each token PyYAML looks at all open brackets."""
PREFIX = "tag:yaml.org,2002:"
PLAIN = ("null", "bool", "int", "float", "str", "seq", "map")
"""The tags of plain data."""


def read_yaml(text: str) -> Any:
    """Return the data in the text.

    Raises Error, with PyYAML's line and column, for invalid YAML and for other tags than those of PLAIN and of tuples. A date
    is a text.

    Also refused are `*aliases`, which let a few lines expand beyond any memory, more than DEEPEST nested lists and mappings,
    and integers beyond 64 bits, which Python may fail to print or to convert to floats.
    """
    import yaml

    if len(text) > MOST:
        raise Error(f"the text has {len(text):,} characters, and at most {MOST:,} are read")
    try:
        return yaml.load(text, Loader=_loader())
    except RecursionError as error:
        raise Error("not plain YAML: nested too deeply") from error
    except Exception as error:  # YAMLError, but also KeyError for `!!bool x`, and others
        raise Error(f"not plain YAML: {error}") from error


def read_yaml_file(path: str | os.PathLike[str], kind: type[Error]) -> Any:
    """Return the data in a file.

    Raises an error of this kind, on one line, with the file and, where one is at fault, its line.
    """
    with read_errors_as(kind, f"{os.fspath(path)}: cannot be read"):
        data = read_bytes(path)
    text = utf8(data, path, kind)
    try:
        return read_yaml(text)
    except Error as error:
        mark = getattr(error.__cause__, "problem_mark", None)
        place = f"{os.fspath(path)}:{mark.line + 1}" if mark else os.fspath(path)
        raise kind(f"{place}: {on_one_line(str(error))}") from error


@functools.cache
def _loader() -> Any:
    """Return PyYAML's SafeLoader with tuples, limited to plain data, integers of 64 bits and a depth."""
    import yaml

    class Loader(yaml.SafeLoader):
        yaml_constructors = {
            tag: make
            for tag, make in yaml.SafeLoader.yaml_constructors.items()
            if tag is None or tag.removeprefix(PREFIX) in PLAIN  # the constructor for None refuses all others
        }
        yaml_implicit_resolvers = {
            first: [(tag, pattern) for tag, pattern in resolvers if tag != f"{PREFIX}timestamp"]
            for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
        }
        depth = 0

        def fetch_flow_collection_start(self, token: Any) -> None:
            if self.flow_level >= DEEPEST:
                raise yaml.scanner.ScannerError(None, None, "nested too deeply", self.get_mark())
            super().fetch_flow_collection_start(token)

        def compose_node(self, parent: Any, index: Any) -> Any:
            event: Any = self.peek_event()  # type: ignore[no-untyped-call]
            mark: Any = event.start_mark
            if isinstance(event, yaml.events.AliasEvent):
                raise yaml.composer.ComposerError(None, None, "aliases (*name) are not read", mark)
            nested = isinstance(event, yaml.events.CollectionStartEvent)
            if self.depth + nested > DEEPEST:
                raise yaml.composer.ComposerError(None, None, "nested too deeply", mark)
            self.depth += nested
            node = super().compose_node(parent, index)
            self.depth -= nested
            return node

    def as_tuple(loader: yaml.SafeLoader, node: yaml.Node) -> tuple[Any, ...]:
        if not isinstance(node, yaml.SequenceNode):
            raise yaml.constructor.ConstructorError(None, None, "a tuple must be a list", node.start_mark)
        return tuple(loader.construct_sequence(node, deep=True))  # deep: PyYAML would fill the inner lists only later

    def as_int(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
        value: int = loader.construct_yaml_int(node)  # also 0x10, 1_000 and 1:30 (base 60), as the originals read them
        if not -(2**63) <= value < 2**64:
            raise yaml.constructor.ConstructorError(None, None, "a whole number beyond 64 bits", node.start_mark)
        return value

    Loader.add_constructor(f"{PREFIX}python/tuple", as_tuple)
    Loader.add_constructor(f"{PREFIX}int", as_int)
    return Loader
