"""Running the parts of a net one after the other, here and as a script."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from minicaffe.blob import Array, Arrays
from minicaffe.detection.inputs import put_array

from .part import Part

Files = tuple[str, str]

SCRIPT = '''"""Run the two parts of a net, the second on blobs of the first: the outputs of the whole net.

    import join
    outputs = join.forward(**{{name: array for each name in join.INPUTS}})

Where another program runs the first part, hand its outputs to run_rest. Written by minicaffe cut.
"""

from pathlib import Path

import minicaffe{settings_import}

HERE = Path(__file__).resolve().parent
INPUTS = {inputs}
HANDED = {handed}
"""Outputs of the first part that the second reads."""
KEPT = {kept}
"""Outputs of the first part that are outputs of the whole net."""

first = minicaffe.Net(HERE / {first!r}, minicaffe.TEST, weights=HERE / {first_weights!r}{options})
rest = minicaffe.Net(HERE / {rest!r}, minicaffe.TEST, weights=HERE / {rest_weights!r}{options})


def forward(**inputs):
    """The whole net's outputs by name. inputs: an array for each of INPUTS, of any size that the net takes."""
    made = run(first, inputs, HANDED + KEPT)
    return {{**{{name: made[name] for name in KEPT}}, **run_rest({{**inputs, **made}})}}


def run_rest(blobs):
    """The second part's outputs by name. blobs: an array for each of its inputs; others are ignored."""
    return run(rest, blobs, rest.outputs)


def run(net, blobs, outputs):
    for name in net.inputs:
        net.blobs[name].reshape(*blobs[name].shape)
        net.blobs[name].data[...] = blobs[name]
    net.forward()
    return {{name: net.blobs[name].data.copy() for name in outputs}}
'''


def join_script(first: Part, rest: Part, first_files: Files, rest_files: Files, cfg: str = "") -> str:
    """A script, to lie beside the files of both parts (the names of prototxt and weights), that runs the whole net.
    cfg: the path of its settings from there."""
    # Names come from a stranger's prototxt: they stand in the script as literals alone.
    options = (f", fork={first.fork!r}" if first.fork else "") + (f", settings=read_settings(HERE / {cfg!r})" if cfg else "")
    return SCRIPT.format(
        first=first_files[0],
        first_weights=first_files[1],
        rest=rest_files[0],
        rest_weights=rest_files[1],
        inputs=[name for name in {**first.inputs, **rest.inputs} if name not in first.outputs],
        handed=[name for name in first.outputs if name in rest.inputs],
        kept=[name for name in first.outputs if name not in rest.inputs],
        options=options,
        settings_import="\nfrom minicaffe.settings import read_settings" if cfg else "",
    )


def run_parts(parts: Sequence[Part], inputs: Mapping[str, Array]) -> Arrays:
    """Run the parts one after the other, each on the inputs and on the outputs of those before it; all outputs by name."""
    blobs = dict(inputs)
    made: Arrays = {}
    for part in parts:
        net = part.net()
        for name in net.inputs:
            put_array(net, name, blobs[name])
        net.forward()
        made |= {name: net.blobs[name].read_data().copy() for name in part.outputs}
        blobs |= made
    return made
