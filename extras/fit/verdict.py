"""Whether a model fits, as its start would find out: the counts are those of loading, and no weight is read."""

from typing import NamedTuple

from msgspec.structs import replace

from messages.config.server import Config
from messages.errors import BootError
from scheduler_proc.computing.kv_cache.kv_tensors import choose_num_pages
from scheduler_proc.computing.load_runner import measure_models
from scheduler_proc.computing.loading.memory_needs import MemoryNeeds
from scheduler_proc.computing.model.families.registry import needs_transformers
from scheduler_proc.computing.vision.load_tower import NO_IMAGES, ImageNeeds, measure_images

PROCESS_BYTES = 450 << 20
"""What the launcher, the four processes and the scheduler's standby take without a model (measured: PSS)."""


class Verdict(NamedTuple):
    """`num_pages`: of the KV cache. `context`: the longest prompt plus output, 0 if it does not fit.

    `max_tokens`: what the largest KV cache would hold. `is_shortened`: the context is less than the model's.
    """

    needs: MemoryNeeds
    free_bytes: int
    num_pages: int
    context: int
    max_tokens: int
    images: ImageNeeds
    is_shortened: bool = False

    @property
    def num_bytes(self) -> int:
        return fixed_bytes(self.needs, self.images) + self.needs.sizes.num_bytes(self.num_pages)


def fixed_bytes(needs: MemoryNeeds, images: ImageNeeds = NO_IMAGES) -> int:
    """Returns everything but the KV cache."""
    own = PROCESS_BYTES + images.cache_bytes if needs.backend.keeps_memory else 0  # else they are in another memory
    return needs.weight_bytes + (needs.step_bytes or 0) + images.tower_bytes + own


def decide(config: Config, free_bytes: int | None) -> Verdict:
    """Returns the verdict for a machine with `free_bytes` of memory, or for this one as it is.

    Raises `BootError` for a model that cannot be served or whose memory only a start shows.
    """
    if needs_transformers(config):
        raise BootError(
            f"transformers computes {config.facts.served_names[0]}, so only a start shows what it takes besides its "
            "weights"
        )
    needs, images = measure_models(config), measure_images(config)
    if free_bytes is None:
        free_bytes = needs.backend.free_bytes(config, needs.placement)
    left_bytes = max(0, free_bytes - fixed_bytes(needs, images))
    sizes, page_size = needs.sizes, config.cache.block_size
    max_tokens = sizes.fit(left_bytes) * page_size
    is_sized = config.cache.kv_cache_memory_gb is not None or config.cache.num_pages is not None
    budget = left_bytes
    if not is_sized:
        budget = needs.backend.cache_bytes(config, left_bytes, sizes.num_bytes(sizes.pages_per_context))
    try:
        num_pages = choose_num_pages(config, sizes, budget)
    except BootError as error:
        if not error.fitting_len:
            return Verdict(needs, free_bytes, sizes.pages_per_context, 0, max_tokens, images)
        model = replace(config.model, max_model_len=error.fitting_len)
        facts = replace(config.facts, max_model_len=error.fitting_len)
        return decide(replace(config, model=model, facts=facts), free_bytes)._replace(is_shortened=True)
    fits = fixed_bytes(needs, images) + sizes.num_bytes(num_pages) <= free_bytes
    return Verdict(needs, free_bytes, num_pages, config.facts.max_model_len if fits else 0, max_tokens, images)
