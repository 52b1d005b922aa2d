"""Write whole nets as PyTorch source, run the files beside the nets, and print how far they are apart.

    python tests/generated_torch.py [--match TEXT] [--brief]

The nets of exported_models.py: outputs, and the gradients of all weights and of the inputs. --brief: without the gradients of
the published detectors. The exit status is 1 where one differs by more than 1e-4 of its largest number.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import warnings
from pathlib import Path

from exported_models import PUBLISHED, nets

from minicaffe.errors import LayerError
from minicaffe.porting.torch_source import compare_source, write_source


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--match", default="", help="only nets whose name holds this text")
    parser.add_argument("--brief", action="store_true", help="without the published detectors but ZF")
    arguments = parser.parse_args()
    failed, count, without = 0, 0, []
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, make in nets():
            if arguments.match not in name or (arguments.brief and name in PUBLISHED and "ZF" not in name):
                continue
            net, path = make(), Path(folder) / "model.py"
            try:
                made = write_source(net, path)
            except LayerError as error:
                without.append(f"{name}: {error}")
                continue
            count += 1
            found = compare_source(net, path, made)
            worst = max(found, key=lambda one: one.relative)
            failed += not worst.agrees
            print(
                f"{name}: {len(found)} arrays, at most {worst.relative:.1e} apart ({worst.name}) {worst.note}".rstrip(),
                flush=True,
            )
    for sentence in without:
        print(f"no form: {sentence}")
    print(f"PyTorch source: {count - failed} of {count} nets agree to 1e-4, outputs and gradients")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
