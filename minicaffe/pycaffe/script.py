"""Run an old pycaffe script: `import caffe`, with all its submodules, means minicaffe.

    minicaffe script tools/train_net.py --solver solver.prototxt          # run_script("tools/train_net.py", [...])

In your program, serve_as_caffe() alone makes `import caffe` work. run_script also sets up what Python and Caffe give a script:
its folder first on sys.path, sys.argv, __file__, __name__ == "__main__", the log on stderr, and names that newer NumPy and
PyYAML dropped.

Trust: a script is code that its user runs by name, so its files may run code too. As in Caffe, Python layers are imported from
any module on the script's sys.path; outside scripts a net imports only allowed modules.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from types import CodeType, ModuleType
from typing import Any

import numpy as np

import minicaffe
from minicaffe.aliases import serve_as_caffe
from minicaffe.errors import Error, unread
from minicaffe.files import allow_path, read_bytes
from minicaffe.layers.python.python import ANY, allow_module
from minicaffe.pycaffe import init_log

NUMPY_NAMES: dict[str, Any] = {
    "bool": bool, "int": int, "float": float, "complex": complex, "object": object, "str": str, "long": int, "unicode": str,
    "float_": np.float64, "complex_": np.complex128, "string_": np.bytes_, "unicode_": np.str_,
    "Inf": np.inf, "Infinity": np.inf, "infty": np.inf, "PINF": np.inf, "NINF": -np.inf, "NaN": np.nan, "NAN": np.nan,
    "product": np.prod, "cumproduct": np.cumprod, "alltrue": np.all, "sometrue": np.any, "round_": np.round,
    "row_stack": np.vstack, "asscalar": lambda a: a.item(), "in1d": lambda a, b, **how: np.isin(np.ravel(a), b, **how),
}  # fmt: skip
"""Names that NumPy removed: np.float and the other aliases of Python's types (1.24), and those removed in 1.23 to 2.4."""


def restore_old_names() -> None:
    """Restore NUMPY_NAMES, np.fromstring of bytes, and yaml.load(text) without a Loader, for plain data and tuples."""
    for name, meaning in NUMPY_NAMES.items():
        if name not in vars(np):
            setattr(np, name, meaning)
    if getattr(np.fromstring, "__module__", "") != __name__:
        np.fromstring = _fromstring_with(np.fromstring)
    import yaml

    from minicaffe.formats.param_str import read_yaml

    if getattr(yaml.load, "__module__", "") != __name__:
        original = yaml.load

        def load(stream: Any, Loader: Any = None) -> Any:
            """Load YAML with an optional Loader."""
            if Loader is not None:
                return original(stream, Loader)
            return read_yaml(stream if isinstance(stream, str) else stream.read())

        yaml.load = load


def _fromstring_with(original: Any) -> Any:
    """Return np.fromstring with its binary mode, which NumPy 2.3 removed."""

    def fromstring(string: Any, dtype: Any = float, count: int = -1, *, sep: str = "", **more: Any) -> Any:
        """Return the numbers stored in bytes, or with sep those written in a text."""
        if sep:
            return original(string, dtype, count, sep=sep, **more)
        return np.frombuffer(string.encode("latin-1") if isinstance(string, str) else string, dtype, count).copy()

    return fromstring


def run_script(path: str | os.PathLike[str], arguments: Sequence[str] = (), *, cpu: bool = False) -> dict[str, Any]:
    """Run a script as Python would, with minicaffe as caffe, and return its global names.

    cpu: set_mode_gpu and set_device do nothing, so that a script written for a GPU runs. Exceptions of the script pass
    through; Error for a script that cannot be read or is not Python 3.
    """
    name = os.fspath(path)
    code = compiled(name)

    serve_as_caffe()
    allow_module(ANY)
    allow_path("/")  # the script may open any file anyway
    restore_old_names()
    if sys.platform == "linux" and multiprocessing.get_start_method(allow_none=True) is None:
        multiprocessing.set_start_method("fork")  # Python 3.14 starts new processes by default, in which `import caffe` fails
    sys.argv = [name, *arguments]
    sys.path.insert(0, os.path.dirname(os.path.realpath(name)))  # as python does
    logger = logging.getLogger("minicaffe")
    level, handlers = logger.level, logger.handlers[:]
    init_log()
    try:
        with _staying_on_cpu() if cpu else nullcontext():
            return _run(code, name)
    finally:  # another command may follow in this process
        logger.setLevel(level)
        logger.handlers[:] = handlers


def compiled(name: str) -> CodeType:
    """Return the script's code. Raises Error."""
    try:
        source = read_bytes(name)
        if b"\0" in source:
            raise Error(f"{name}: this is a binary file, not a Python script")
        return compile(source, name, "exec", dont_inherit=True)
    except OSError as error:
        raise Error(unread(name, "cannot read the script", error)) from error
    except (SyntaxError, ValueError) as error:
        raise Error(_syntax_text(name, error)) from error


def _syntax_text(name: str, error: SyntaxError | ValueError) -> str:
    """Return the message for a script that Python 3 cannot parse."""
    line = getattr(error, "lineno", None)
    text = (getattr(error, "text", None) or "").rstrip()
    place = f"{name}:{line}: " if line else f"{name}: "
    shown = f"\n  {text.strip()}" if text else ""
    return f"{place}{getattr(error, 'msg', None) or error}{shown}\n{PYTHON_2}"


PYTHON_2 = (
    "hint: convert a Python 2 script to Python 3 first: print(...), `except X as e`, range, items(), pickle, input;"
    " the 2to3 program (in Python up to 3.12, `2to3 -w SCRIPT`) does that"
)
LEFTOVERS = (
    "xrange", "raw_input", "unicode", "unichr", "basestring", "long", "reduce", "execfile", "iteritems", "itervalues",
    "iterkeys", "has_key", "cPickle", "ConfigParser", "Queue", "urllib2", "cStringIO", "StringIO", "__builtin__",
)  # fmt: skip
"""Names of Python 2 that Python 3 lacks."""


def python_2_hint(error: BaseException) -> str:
    """Return PYTHON_2 if an error comes from a name or syntax that only Python 2 has, else ""."""
    name = getattr(error, "name", None)
    known = isinstance(error, NameError | AttributeError | ModuleNotFoundError) and name in LEFTOVERS
    return PYTHON_2 if known or isinstance(error, SyntaxError) else ""


def _run(code: CodeType, name: str) -> dict[str, Any]:
    """Run the code as the module __main__, which other code may import."""
    main = ModuleType("__main__")  # pickle and multiprocessing look up names there
    main.__dict__["__file__"] = name
    before = sys.modules["__main__"]
    sys.modules["__main__"] = main
    try:
        exec(code, main.__dict__)
    finally:
        sys.modules["__main__"] = before
    return main.__dict__


@contextmanager
def _staying_on_cpu() -> Iterator[None]:
    """In the block, make set_mode_gpu and set_device do nothing for scripts."""

    def ignored(*arguments: Any) -> None:
        """Do nothing: the command line selected the CPU."""

    places = (minicaffe, sys.modules["minicaffe.pycaffe"])  # the latter also serves as caffe.pycaffe and caffe._caffe
    before = [(place, name, getattr(place, name)) for place in places for name in ("set_mode_gpu", "set_device")]
    for place, name, _ in before:
        setattr(place, name, ignored)
    try:
        yield
    finally:
        for place, name, value in before:
            setattr(place, name, value)
