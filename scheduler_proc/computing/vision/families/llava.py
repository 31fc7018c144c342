"""LLaVA 1.5: the second last layer of CLIP, and an MLP."""

from functools import partial

from scheduler_proc.computing.vision.family import TowerFamily
from scheduler_proc.computing.vision.llava import LlavaTower, describe_llava, llava_names

FAMILY = TowerFamily(
    describe=partial(describe_llava, default_layer=-2, has_newline=False), namings=llava_names(), make=LlavaTower
)
