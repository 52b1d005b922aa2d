"""The house: which files are the engine, which are layer types, who imports whom, and what a checkout without links says."""

from __future__ import annotations

import ast
import configparser
import os
import re
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from minicaffe.layer import Layer

ROOT = Path(__file__).resolve().parents[1]
LINKS = ("layers", "proto", "cuda")


def test_the_engine_is_the_modules_that_its_contract_names() -> None:
    contracts = configparser.ConfigParser()
    contracts.read(ROOT / ".importlinter")
    named = contracts["importlinter:contract:engine"]["source_modules"].split()
    engine = {path.stem for path in (ROOT / "minicaffe").glob("*.py")}
    assert {name.removeprefix("minicaffe.") for name in named} == engine - {"__init__", "__main__"}
    assert len(engine) <= 26


def test_the_catalogue_is_the_one_module_of_layers_beside_the_families() -> None:
    assert [path.stem for path in (ROOT / "layers").glob("*.py")] == ["__init__"]


def test_layer_is_small() -> None:
    """Members that fewer than four types need belong to the types' base class, or to the tool that reads them."""
    own = {name for name in vars(Layer) if not name.startswith("__") or name in ("__init__", "__setattr__", "__delattr__")}
    methods = {name for name in own if callable(getattr(Layer, name)) or isinstance(vars(Layer)[name], property)}
    attributes = own - methods | set(Layer.__annotations__)
    assert len(methods) <= 30
    assert len(attributes) <= 25


def test_no_module_imports_itself_by_way_of_others() -> None:
    """Imports inside functions count."""
    grimp = pytest.importorskip("grimp", reason="import-linter (the extra dev) is not installed")
    graph = grimp.build_graph(
        "minicaffe", "minicaffe.cuda", "minicaffe.proto", exclude_type_checking_imports=True, cache_dir=None
    )
    edges = {module: set(graph.find_modules_directly_imported_by(module)) for module in graph.modules}
    assert len(edges) > 400
    edges["minicaffe.layers"].discard("minicaffe.pycaffe.net_spec")  # imported when NetSpec's functions are first used
    tuple(TopologicalSorter(edges).static_order())  # CycleError names a cycle


OF_ANOTHER = re.compile(r"(?<!\bself)\._(?!_)")
"""What a module that reads a private attribute of anything but self has in its text."""
NAMED_TUPLES = {"_replace", "_asdict", "_fields", "_make"}
"""Public methods of NamedTuples."""


def private_reads(code: str) -> list[str]:
    """Private attributes of other modules' objects that a module reads, as "line: expression"."""
    nodes = list(ast.walk(ast.parse(code)))
    defined = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    defined |= {node.attr for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)}
    return [
        f"{node.lineno}: {ast.unparse(node)}"
        for node in nodes
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
        if node.attr.startswith("_") and not node.attr.startswith("__") and node.attr not in defined | NAMED_TUPLES
        if ast.unparse(node.value) not in ("self", "cls", "super()", "os")
    ]


def test_private_reads() -> None:
    inside = "class A:\n  def f(self, other):\n    self._x = 1; self._y; super()._z; other._x; other._f; other.__class__"
    assert private_reads(inside.replace("def f", "def _f")) == []
    outside = "a.b\na._b\na.b._c(1)\nf()._d\nself.a._e\na._replace(b=1)\nos._exit(1)"
    assert sorted(private_reads(outside)) == ["2: a._b", "3: a.b._c", "4: f()._d", "5: self.a._e"]


def test_no_module_reads_what_is_private_to_another() -> None:
    found = {}
    for folder in ("minicaffe", "layers", "cuda"):
        for path in (ROOT / folder).rglob("*.py"):
            code = path.read_text()
            if OF_ANOTHER.search(code) and (reads := private_reads(code)):
                found[str(path.relative_to(ROOT))] = reads
    assert not found


def test_pycuda_is_imported_in_one_module() -> None:
    imports = re.compile(r"""import_module\(["']pycuda|^\s*(import|from) pycuda""", re.MULTILINE)
    files = {path.resolve() for folder in ("minicaffe", *LINKS) for path in (ROOT / folder).rglob("*.py")}
    assert {path.relative_to(ROOT).as_posix() for path in files if imports.search(path.read_text(encoding="utf-8"))} == {
        "cuda/device.py"
    }


@pytest.fixture(scope="module")
def without_links(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a checkout as git makes it without symbolic links."""
    if not (ROOT / ".git").exists():
        pytest.skip("needs git's checkout")
    folder = tmp_path_factory.mktemp("clone") / "minicaffe"
    subprocess.run(["git", "clone", "-q", "-c", "core.symlinks=false", str(ROOT), str(folder)], check=True)
    assert (folder / "minicaffe" / "layers").read_text() == "../layers"
    return folder


@pytest.mark.slow
def test_a_checkout_without_links_is_not_installed(without_links: Path) -> None:
    pytest.importorskip("setuptools", reason="setuptools (the extra dev brings it) is not installed")
    code = "import setuptools.build_meta as build; build.build_wheel('dist')"
    done = subprocess.run([sys.executable, "-c", code], cwd=without_links, capture_output=True, text=True, check=False)
    assert done.returncode
    said = done.stderr.strip().splitlines()[-1]
    assert said.startswith("minicaffe/layers is a link that git wrote as a text file: make the checkout anew with")


def test_a_checkout_without_links_is_not_imported(without_links: Path) -> None:
    python = [sys.executable, "-c", "import minicaffe"]
    environment = {**os.environ, "PYTHONPATH": str(without_links)}
    done = subprocess.run(python, cwd=without_links, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode
    assert (
        done.stderr.strip().splitlines()[-1].startswith("ImportError: minicaffe/layers is a link that git wrote as a text file")
    )
