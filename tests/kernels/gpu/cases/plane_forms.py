"""What the kernels of weights in planes are compiled for: every combination of planes that a form has."""

import torch

from kernels.arguments.block_forms import FORMS
from kernels.arguments.code_planes import CodePlanes
from kernels.gpu.plane_codes import planes_of
from kernels.operations.code_planes import num_plane_bytes, view_planes

NUM_INPUTS = 4096
TYPES = {
    torch.int8: "*i8:16",
    torch.float8_e4m3fn: "*fp8e4nv:16",
    torch.int16: "*i16:16",
    torch.int32: "*i32:16",
    torch.float16: "*fp16:16",
    torch.bfloat16: "*bf16:16",
    torch.float32: "*fp32:16",
}
NAMES = ("low", "high", "scales", "scale_factors", "minimums", "minimum_factors", "table")


def make_planes(form: str) -> CodePlanes:
    stored = torch.empty(num_plane_bytes(form, 16, NUM_INPUTS), dtype=torch.uint8)
    return view_planes(stored, form, 16, NUM_INPUTS)


PLANES = {form: make_planes(form) for form in FORMS}


def signature_of(planes: CodePlanes) -> dict[str, str]:
    return {name: TYPES[plane.dtype] for name, plane in zip(NAMES, planes_of(planes), strict=True)}
