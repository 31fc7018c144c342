"""The settings of a server that are tried out, and the configuration of the scheduler under each."""

import msgspec

from extras.whatif.calibration import Calibration
from messages.config.server import CacheConfig, Config, ModelFacts, SchedulingConfig
from messages.errors import UsageError

VOCAB_SIZE = 2**31 - 1
"""Prompts have made-up tokens: with this vocabulary, two prompts are equal only by design."""

MAX_PAGES = 10_000_000
"""More than any machine has memory for; the simulated scheduler keeps a list of all pages."""


class Setting(msgspec.Struct, frozen=True):
    """Flags of the server."""

    max_num_seqs: int
    num_pages: int
    max_num_batched_tokens: int
    enable_prefix_caching: bool = True

    def __str__(self) -> str:
        flags = (
            f"--max-num-seqs {self.max_num_seqs} --num-pages {self.num_pages} "
            f"--max-num-batched-tokens {self.max_num_batched_tokens}"
        )
        return flags if self.enable_prefix_caching else f"{flags} --no-enable-prefix-caching"


def check_possible(setting: Setting, calibration: Calibration) -> None:
    """Raises `UsageError` for a setting with which a server would not start."""
    if setting.num_pages > MAX_PAGES:
        raise UsageError(f"--num-pages {setting.num_pages} is more than {MAX_PAGES}, which no machine has memory for")
    needed_pages = -(-calibration.max_model_len // calibration.block_size)
    if setting.num_pages < needed_pages:
        raise UsageError(
            f"--num-pages {setting.num_pages} holds {setting.num_pages * calibration.block_size} tokens, but a request "
            f"may have {calibration.max_model_len} (--max-model-len): at least {needed_pages} pages are needed"
        )


def make_config(setting: Setting, calibration: Calibration) -> Config:
    """Returns the configuration for the scheduler alone."""
    names, max_model_len = (calibration.model,), calibration.max_model_len
    facts = ModelFacts(served_names=names, vocab_size=VOCAB_SIZE, max_model_len=max_model_len)
    cache = CacheConfig(block_size=calibration.block_size, enable_prefix_caching=setting.enable_prefix_caching)
    num_drafts = calibration.num_speculative_tokens
    scheduling = SchedulingConfig(
        max_num_seqs=setting.max_num_seqs,
        speculative="auto" if num_drafts else "none",
        num_speculative_tokens=max(1, num_drafts),
    )
    return Config(cache=cache, scheduling=scheduling, facts=facts)
