"""Finds the GGUF file of a model's vision tower (mmproj), and reads from it how images are prepared.

The files have the numbers that llama.cpp needs. What they leave out is as in the published checkpoint of each family:
images are prepared as transformers does, not as llama.cpp does.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from messages.errors import SluiceError, UsageError, quoted
from runtime.gguf.gguf_file import SUFFIX, GgufFile, choose_mmproj, is_gguf, read_gguf

NONE = "none"

PREFIX = "clip.vision."

SMALL_GEMMA_4 = (1536, 2560)
"""The hidden sizes of Gemma 4's E2B and E4B, in which tokens of images attend to earlier ones alone."""


class UnknownTowerError(SluiceError):
    """The model may read images, but this server does not know how."""


class TowerFields(NamedTuple):
    """The family of a tower, and what `Rule.read` needs."""

    family: str
    processor: dict[str, Any]
    config: dict[str, Any]


def find_mmproj(flag: str, model: str, model_dir: Path) -> Path | None:
    """Returns the file of `--mmproj`, or else that next to the model, `None` if there is none.

    `model` is `--model`, and `model_dir` the directory with its configuration. Raises `UsageError` for a file that
    cannot be used.
    """
    links = sorted(model_dir.glob(f"*{SUFFIX}"))
    if flag == NONE or (not flag and not links):
        return None
    if flag:
        path = Path(flag).expanduser().absolute()
        if not path.is_file() or not is_gguf(path):
            raise UsageError(f"--mmproj: {path} is not a file in GGUF")
        if not links:
            raise UsageError("--mmproj is for models in GGUF: others have their vision tower in their own files")
        return path
    for directory in _places(model, links[0]):
        if name := choose_mmproj(file.name for file in directory.iterdir()):
            return directory / name
    return None


def read_tower_fields(path: Path, hidden_size: int | None) -> TowerFields:
    """Raises `UnknownTowerError` for a tower that is not known, `BootError` or `ValueError` for a damaged file."""
    file = read_gguf(path)
    kind = file.metadata.get("clip.projector_type") or file.metadata.get(f"{PREFIX}projector_type")
    if kind == "mlp" and file.metadata.get(f"{PREFIX}image_grid_pinpoints"):
        kind = "anyres"
    if kind not in READERS:
        raise UnknownTowerError(f"{path}: the vision tower of type {quoted(kind)} is not known")
    family, read = READERS[kind]
    numbers = Numbers(file)
    if (width := numbers["projection_dim"]) != hidden_size:
        widths = f"its rows have {width} numbers, and the model takes {hidden_size}"
        raise UnknownTowerError(f"{path} is the tower of another model: {widths}")
    processor, config = read(numbers)
    means = {f"image_{name}": file.metadata.get(f"{PREFIX}image_{name}") for name in ("mean", "std")}
    own = {"vision_config": {"patch_size": numbers["patch_size"]}, "hidden_size": hidden_size}
    return TowerFields(family, {"resample": 3, **means, **processor}, own | config)


class Numbers:
    """The numbers of a file's metadata, by the ends of their keys."""

    def __init__(self, file: GgufFile):
        self._metadata: Mapping[str, Any] = file.metadata
        self.has_class = "v.class_embd" in file.tensors

    def __getitem__(self, key: str) -> int:
        value = self.get(key, None)
        if not isinstance(value, int) or value < 1:
            raise ValueError(f"metadata {PREFIX}{key} is {quoted(value)}, not a positive whole number")
        return value

    def get(self, key: str, default: Any) -> Any:
        value = self._metadata.get(PREFIX + key)
        return default if value is None else value

    @property
    def side(self) -> int:
        return self["image_size"]

    def tokens(self, default_scale: int) -> int:
        """Returns the tokens of a square view whose patches are merged."""
        scale = self.get("projector.scale_factor", default_scale)
        return (self.side // max(1, int(self["patch_size"] * scale))) ** 2


Fields = tuple[dict[str, Any], dict[str, Any]]
"""Fields of the processor and fields of config.json."""


def _idefics3(numbers: Numbers) -> Fields:
    longest = numbers.get("preproc_image_size", 4 * numbers.side)
    sizes = {"size": {"longest_edge": longest}, "max_image_size": {"longest_edge": numbers.side}}
    return {"resample": 1, **sizes}, {"scale_factor": numbers["projector.scale_factor"]}


def _qwen(numbers: Numbers, min_pixels: int, max_pixels: int) -> Fields:
    flags: list[bool] = numbers.get("is_deepstack_layers", [])
    deepstack = {"deepstack_visual_indexes": [index for index, is_one in enumerate(flags) if is_one]}
    limits = {
        "min_pixels": numbers.get("image_min_pixels", min_pixels),
        "max_pixels": numbers.get("image_max_pixels", max_pixels),
    }
    patches = {"patch_size": numbers["patch_size"], "merge_size": numbers.get("spatial_merge_size", 2)}
    return {**patches, **limits}, {"vision_config": deepstack}


def _gemma3(numbers: Numbers) -> Fields:
    size = {"width": numbers.side, "height": numbers.side}
    return {"resample": 2, "size": size, "image_seq_length": numbers.tokens(4)}, {}


def _gemma4(numbers: Numbers) -> Fields:
    pooling = numbers.get("projector.scale_factor", 3)
    is_small = numbers["projection_dim"] in SMALL_GEMMA_4
    config = {"use_bidirectional_attention": None if is_small else "vision"}
    return {"do_normalize": False, "patch_size": numbers["patch_size"], "pooling_kernel_size": pooling}, config


def _pixtral(numbers: Numbers) -> Fields:
    return {"size": {"longest_edge": numbers.side}}, {"spatial_merge_size": numbers.get("spatial_merge_size", 1)} | {
        "vision_config": {"patch_size": numbers["patch_size"]}
    }


def _internvl(numbers: Numbers) -> Fields:
    size = {"width": numbers.side, "height": numbers.side}
    tiles = {"min_patches": numbers.get("preproc_min_tiles", 1), "max_patches": numbers.get("preproc_max_tiles", 12)}
    return {"size": size, "image_seq_length": numbers.tokens(2), **tiles}, {}


def _lfm2(numbers: Numbers) -> Fields:
    tiles = {"min_tiles": numbers.get("preproc_min_tiles", 2), "max_tiles": numbers.get("preproc_max_tiles", 10)}
    cell = {"encoder_patch_size": numbers["patch_size"], "downsample_factor": numbers.get("projector.scale_factor", 2)}
    return {"resample": 2, **tiles, **cell}, {}


def _llava(numbers: Numbers) -> Fields:
    view = {"width": numbers.side, "height": numbers.side}
    kind, strategy = ("clip", "default") if numbers.has_class else ("siglip", "full")
    config = {
        "vision_config": {"patch_size": numbers["patch_size"], "model_type": f"{kind}_vision_model"},
        "vision_feature_select_strategy": strategy,
    }
    return {"do_center_crop": True, "size": {"shortest_edge": numbers.side}, "crop_size": view}, config


def _llava_next(numbers: Numbers) -> Fields:
    processor, config = _llava(numbers)
    flat: list[int] = numbers.get("image_grid_pinpoints", [])
    return processor | {"image_grid_pinpoints": list(zip(flat[::2], flat[1::2], strict=False))}, config


READERS: dict[Any, tuple[str, Callable[[Numbers], Fields]]] = {
    "anyres": ("llava_next", _llava_next),
    "gemma3": ("gemma3", _gemma3),
    "gemma4v": ("gemma4", _gemma4),
    "idefics3": ("idefics3", _idefics3),
    "internvl": ("internvl", _internvl),
    "lfm2": ("lfm2_vl", _lfm2),
    "mlp": ("llava", _llava),
    "pixtral": ("pixtral", _pixtral),
    "qwen2.5vl_merger": ("qwen2_5_vl", lambda numbers: _qwen(numbers, 3136, 12_845_056)),
    "qwen3vl_merger": ("qwen3_vl", lambda numbers: _qwen(numbers, 65_536, 16_777_216)),
}
"""By the type of the projector: the family, and how its fields are read."""


def _places(model: str, link: Path) -> Iterator[Path]:
    """Yields the directories in which the tower may lie: of `--model`, of its file, and of that in the hub's cache."""
    named, target = Path(model).expanduser(), link.resolve()
    if named.exists():
        yield named if named.is_dir() else named.parent
    yield target.parent
    for snapshot in (target.parent.parent / "snapshots").glob("*"):
        if any(file.resolve() == target for file in snapshot.rglob(f"*{SUFFIX}")):
            yield snapshot
