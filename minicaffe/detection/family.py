"""A family of detectors: nets whose objects are found in the same way. families.py lists the families.

A new family is a class in a file of its own and a line in families.py. The class is derived from Family, or from
rows.RowsFamily if the nets take one image of a fixed size.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from minicaffe.data.settings import DetectionSettings, changed
from minicaffe.errors import Error, in_brackets
from minicaffe.net import Net

if TYPE_CHECKING:
    from .detect import Detections
    from .rows import RowsEnd

SSD_MEANS = (104.0, 117.0, 123.0)
"""The means that the published SSD nets subtract: blue, green, red."""


class Classes(NamedTuple):
    """The classes of a net: their number with the background, the layer or blob that holds them, and their usual names."""

    number: int
    holder: str
    names: list[str] | None


@dataclass(frozen=True)
class FindOptions:
    """Options of Family.find.

    threshold: the minimum score. proposals: boxes (R, 4) in pixels of the image, for a net that takes rois. settings: the
    image's scale and means, and NMS (default: the net's). means, scale_factor: in place of settings where a family has a fixed
    size: subtracted from blue, green, red; multiplies the rest (default: the family's).
    """

    threshold: float = 0.05
    max_detections: int = 100
    proposals: ArrayLike | None = None
    settings: DetectionSettings | None = None
    means: Sequence[float] | None = None
    scale_factor: float | None = None


class FixedSize:
    """The rules of nets whose prototxt or script fixes the input's size and the suppression.

    kind: what such a net is called, with its article. maker: "prototxt" or "script". settings: the keys that have an effect.
    """

    kind: str
    maker: str
    settings: tuple[str, ...]

    @property
    def fixed_by(self) -> str:
        """Name what fixes the input's size and the suppression."""
        return f"the {self.maker} of {self.kind}"

    def check_settings(self, settings: DetectionSettings, holder: str) -> None:
        """Raise Error for settings without an effect, as those of an SSD all are. holder: what the error begins with."""
        without = [key for key in changed(settings) if key not in self.settings]
        if without or not self.settings:
            what = f"{', '.join(without)} of cfg" if self.settings else "cfg"
            raise Error(f"{holder}: {what} has no effect: {self.fixed_by} fixes the input size and NMS")


class Family(ABC):
    """A base class for nets whose objects are found in the same way.

    has_fixed_size: the prototxt or a script fixes the size of the input and the suppression, and means and a factor prepare an
    image; for other families the settings do. names: what nets of a fixed size are called. means, scale_factor, takes_rgb: how
    nets of a fixed size take an image where nobody says otherwise; means are blue, green, red in any case. threshold: the
    lowest score of a detection where nobody gives one. test_defaults: TEST settings that hold where nobody gives any.
    """

    names: tuple[str, ...] = ()
    has_fixed_size = False
    means: tuple[float, float, float] = SSD_MEANS
    scale_factor = 1.0
    takes_rgb = False
    threshold = 0.5
    test_defaults: Mapping[str, Any] = MappingProxyType({})

    @abstractmethod
    def matches(self, net: Net) -> bool:
        """Return True for a net of this family. Raises Error, naming the fault, for a net that is nearly one."""

    @abstractmethod
    def classes(self, net: Net) -> Classes:
        """Return the classes of a net of this family."""

    @abstractmethod
    def find(self, net: Net, image: NDArray[np.uint8], options: FindOptions) -> Detections:
        """Return the detections in image (H, W, 3), blue, green, red. Raises Error."""

    def read(self, net: Net, size: Sequence[int], options: FindOptions) -> Detections:
        """Return the detections of the net's last pass, on an image of size (height, width). Raises Error."""
        raise Error(f"{net.file}: the detections of this net take several passes: use minicaffe.detection.Detector")

    def check_proposals(self, net: Net, given: bool) -> None:
        """Raise Error for proposals that are missing or that the net refuses."""
        if "rois" in net.inputs and not given:
            way = in_brackets("--proposals")
            raise Error(f"{net.file}: this net takes rois: give it proposals, boxes (R, 4) in pixels of the image{way}")
        if "rois" not in net.inputs and given:
            raise Error(f"{net.file}: this net proposes its own rois and takes no proposals")

    def end(self, net: Net) -> RowsEnd | None:
        """Return the end that is read as rows, if there is one; else None. Raises Error as matches does."""
        return None

    def fixed_size(self, net: Net) -> FixedSize | None:
        """Return the rules of a net of a fixed size; None for another one."""
        return None

    def means_and_factor(self, options: FindOptions) -> tuple[Sequence[float], float]:
        """Return the means of blue, green, red, and the factor, of nets of a fixed size."""
        means, factor = options.means, options.scale_factor
        return self.means if means is None else means, self.scale_factor if factor is None else factor

    def reshape_to_largest(self, net: Net) -> None:
        """Give the net's input the size of the largest image. find sets the size of each image."""
        test = net.settings.test
        net.blobs["data" if "data" in net.inputs else net.inputs[0]].reshape(1, 3, max(test.scales), test.max_size)

    def preparation(self, net: Net, options: FindOptions) -> list[str]:
        """Return text on how an image is prepared and boxes are suppressed."""
        settings = options.settings or net.settings
        suppression = self.suppression_text(net, settings)
        return [self.size_text(settings), f"means {numbers_text(settings.pixel_means)}", *[suppression] * bool(suppression)]

    def size_text(self, settings: DetectionSettings) -> str:
        multiple = self.sides_multiple(settings)
        size = f"short side {','.join(map(str, settings.test.scales))}, long side at most {settings.test.max_size}"
        return size + f", sides multiples of {multiple}" * (multiple > 1)

    def sides_multiple(self, settings: DetectionSettings) -> int:
        """Return the number of which the input's height and width are multiples."""
        return settings.test.scale_multiple_of

    def suppression_text(self, net: Net, settings: DetectionSettings) -> str:
        return f"NMS {settings.test.nms:g}"


def numbers_text(numbers: Sequence[float]) -> str:
    return ",".join(f"{number:g}" for number in numbers)
