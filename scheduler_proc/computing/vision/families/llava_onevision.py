"""LLaVA-OneVision: as LLaVA-NeXT, but images of many tiles are shrunk after encoding."""

from functools import partial

from torch import Tensor
from torch.nn import functional

from scheduler_proc.computing.vision.families.llava_next import LlavaNextTower
from scheduler_proc.computing.vision.family import TowerFamily
from scheduler_proc.computing.vision.llava import describe_llava, llava_names
from scheduler_proc.computing.vision.view_tower import TowerParts

LARGEST = "anyres_max_"
LEAST_RATIO = 1.1


class LlavaOnevisionTower(LlavaNextTower):
    def __init__(self, parts: TowerParts):
        super().__init__(parts)
        name = "vision_aspect_ratio"
        text = parts.config.text(name, f"{LARGEST}9")
        number = text.removeprefix(LARGEST)
        if not (text.startswith(LARGEST) and number.isascii() and number.isdigit() and 0 < int(number) < 1000):
            raise parts.config.refuse(name, text, f"supported is {LARGEST} with a number of tiles")
        self._max_tiles = int(number)

    def _shrink(self, whole_HWE: Tensor, side: int) -> Tensor:
        height, width, _ = whole_HWE.shape
        ratio = (height * width / (self._max_tiles * side**2)) ** 0.5
        if ratio <= LEAST_RATIO:
            return whole_HWE
        image = whole_HWE.permute(2, 0, 1)[None]
        shrunk = functional.interpolate(image, [int(height // ratio), int(width // ratio)], mode="bilinear")
        return shrunk[0].permute(1, 2, 0)


FAMILY = TowerFamily(
    describe=partial(describe_llava, default_layer=-1, has_newline=True),
    namings=llava_names(),
    make=LlavaOnevisionTower,
)
