"""minicaffe dump"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from minicaffe.errors import Error, shortened
from minicaffe.files import unlinked
from minicaffe.porting.dump import Dump, read

from .common import check_target, print_table, shape_text, statistics_text, warn
from .options import argument, option, with_options
from .terminal import echo


@dataclass(frozen=True, kw_only=True)
class Options:
    file: str = argument()
    out: str | None = option("-o --out", "The .npz, .safetensors or .caffemodel.  [default without --list: FILE.npz, here]")
    listed: bool = option("--list", "Print layers, types, shapes, statistics and the fork that wrote FILE.")


@with_options(Options)
def command(options: Options) -> None:
    """Write the arrays of a .caffemodel, .h5, .safetensors, .npz, .solverstate or .binaryproto; no prototxt is needed.

    The name after -o decides the format: .safetensors, .caffemodel (weights without a net), else .npz.
    A net's arrays are named LAYER.0, LAYER.1; a training state's iter, history.0; a mean's data.
    An existing file is replaced only if -o names it.

    Example:  minicaffe dump net.caffemodel -o net.safetensors
    """
    file, out, listed = options.file, options.out, options.listed
    target = out if out is not None or listed else f"{Path(file).name}.npz"
    if out is None and target is not None and unlinked(target).exists():
        raise Error(f"{target} is there already: give -o {target} to replace it, or another name")
    check_target("--out", target, [file])
    dump = read(file)
    if listed:
        _print(dump)
    broken = [name for name, array in dump.arrays.items() if array.dtype.kind == "f" and not np.isfinite(array).all()]
    if broken:
        warn(f"{file}: NaN or infinite values in {', '.join(broken)}")
    if target is not None:
        dump.write(target)
        echo(f"written: {target} ({len(dump.arrays)} arrays)")


def _print(dump: Dump) -> None:
    types = {layer.name: layer.type for layer in dump.layers}
    rows = []
    for name, array in dump.arrays.items():
        kind = types.get(name.rpartition(".")[0], "")
        numbers = statistics_text(array) if array.dtype.kind in "fiu" else str(array)
        rows.append([name, kind, shape_text(array.shape), str(array.dtype), numbers])
    print_table(f"{dump.path} ({dump.kind})", ["array", "type", "shape", "stored as", "min / mean / max"], rows)
    bare = [f"{layer.name} ({layer.type or 'type unknown'})" for layer in dump.layers if not any(layer.blobs)]
    if bare:
        echo(shortened(f"{len(bare)} layers without weights: {', '.join(bare)}"))
    for line in dump.forks:
        echo(shortened(line))
    values = sum(array.size for array in dump.arrays.values())
    echo(f"{len(dump.arrays)} arrays, {values} values")
    if dump.kind == ".caffemodel":
        echo(shortened(f"written by: {dump.origin}"))
        for evidence in dump.origin.evidence[:8]:
            echo(shortened(f"  {evidence}"))
        if len(dump.origin.evidence) > 8:
            echo(f"  and {len(dump.origin.evidence) - 8} more such fields")
