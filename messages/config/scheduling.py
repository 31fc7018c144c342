"""The flags of the scheduler: a section of the configuration (`messages/config/server.py`)."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from messages.config.flag import Flag, NonNegativeInt, PositiveInt, UpTo64

PART_WHILE_LIVE = 64
"""While other requests are open, yielding ones get 1/PART_WHILE_LIVE of the rows: each makes the steps longer."""


CPU_STEP_TOKENS = 512
"""The default of `--max-num-batched-tokens` on a CPU."""


class SchedulingConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Scheduling"""

    max_num_seqs: Annotated[PositiveInt, Flag("maximum number of rows per step")] = 256
    max_num_batched_tokens: Annotated[
        PositiveInt | None,
        Flag("maximum number of prefill and decode tokens per step (default: 8192; CPU: 512; encoders: 2048)"),
    ] = None
    overlap: Annotated[bool, Flag("plan the next step while the current one runs, and on a GPU also launch it")] = True
    speculative: Annotated[
        Literal["auto", "none", "ngram", "draft", "mtp"],
        Flag(
            "speculative decoding, which does not change the output; ngram: draft from the prompt, the output and "
            "other requests; draft: draft with --draft-model; mtp: draft with the model's multi-token prediction "
            "head; auto: ngram on a CPU, none on a GPU"
        ),
    ] = "auto"
    draft_model: Annotated[
        str,
        Flag("draft model for --speculative draft: a directory or Hub ID of a smaller model with the same tokenizer"),
    ] = ""
    num_speculative_tokens: Annotated[
        UpTo64, Flag("maximum draft tokens per row and step; fewer are used when they would not pay off")
    ] = 16
    max_batch_seqs: Annotated[
        PositiveInt | None,
        Flag(
            "maximum number of rows for batch requests (default: half of --max-num-seqs; one in 64 while other "
            "requests are open)"
        ),
    ] = None
    max_queued_requests: Annotated[
        NonNegativeInt, Flag("maximum number of waiting requests; beyond it, clients get 503 with Retry-After")
    ] = 1024
    max_queued_tokens: Annotated[
        PositiveInt | None,
        Flag("maximum number of waiting prompt tokens, estimated from the text length (default: no limit)"),
    ] = None
    grammar_timeout_s: float = 10.0
    """Seconds that a grammar may take to compile before it is refused. Not a flag."""
    max_n_sequences: int = 64
    """Most choices of one prompt (`n`, `best_of`). Not a flag."""
    seed: Annotated[
        Annotated[int, Meta(ge=0, le=2**63 - 1)] | None,
        Flag(
            "base of the random seeds for requests without a seed (default: from the clock); a request with its own "
            "seed has the same text at any load"
        ),
    ] = None

    def rows_while_live(self) -> int:
        """Number of rows that yielding requests (`YIELDING_PRIORITY`) may use while other requests are open."""
        return self.max_batch_seqs or max(1, self.max_num_seqs // PART_WHILE_LIVE)
