"""minicaffe to-torch"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from minicaffe.errors import Error
from minicaffe.files import replacing_together

from .agreement import check_option, print_agreement
from .common import check_target, warn
from .groups import StateOptions, ThreadOptions, random_weights_option, seed_option
from .image_options import InputOptions
from .options import argument, option, with_options
from .terminal import echo


@dataclass(frozen=True, kw_only=True)
class Options(InputOptions, StateOptions, ThreadOptions):
    net: str = argument()
    weights: tuple[str, ...] = argument()
    out: str = option("-o --out", "The module to write; the weights go beside it.", required=True, metavar="FILE.py")
    check: bool = check_option()
    seed: int = seed_option()
    random_weights: bool = random_weights_option()


@with_options(Options)
def command(options: Options) -> None:
    """Write the net in the prototxt NET with WEIGHTS as readable PyTorch source, which needs torch alone, and its weights as
    safetensors beside it. --check also compares the gradients.

    Example:  minicaffe to-torch test.prototxt net.caffemodel -o model.py --check
    """
    from minicaffe.porting.torch_source import compare_source, write_source

    out = Path(options.out)
    if out.suffix != ".py" or not out.stem.isidentifier():
        raise Error(f"--out {options.out}: give the name of a module, as model.py")
    files = (options.out, str(out.with_suffix(".safetensors")))
    for file in files:
        check_target("--out", file, [options.net, *options.weights, *options.read_files()])
    net = options.load(options.net, options.weights)
    for note in options.fill(net, options.seed):
        if options.check:
            warn(note)
    with replacing_together(options.out) as draft:
        made = write_source(net, draft)
        if options.check:
            print_agreement("the module beside the net", compare_source(net, draft, made), ("the net", "the module"))
    echo(f"written: {', '.join(files)}")
