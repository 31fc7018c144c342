"""The flags of batches: a section of the configuration (`messages/config/server.py`)."""

from typing import Annotated

import msgspec
from msgspec import Meta

BATCH_PRIORITY = 100
"""The priority of every line and the lowest level: its requests give way to all others (decision 0058)."""

PART_WHILE_LIVE = 64
"""While clients have requests open, batches get 1/PART_WHILE_LIVE of the rows, as each makes the steps longer."""


class BatchConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Batches"""

    batch_dir: Annotated[
        str,
        Meta(
            description="directory in which /v1/files and /v1/batches keep their files, also from run to run (default: "
            "none, and these are refused)"
        ),
    ] = ""
    batch_dir_gb: Annotated[
        float, Meta(gt=0, description="GiB of files in --batch-dir beyond which none is taken; results still are")
    ] = 10.0
    max_batch_file_mb: Annotated[float, Meta(gt=0, description="largest file of a batch in MiB")] = 200.0
    max_batch_seqs: (
        Annotated[
            int,
            Meta(ge=1),
            Meta(
                description="rows that batches may use at once (default: half of --max-num-seqs; one in 64 while "
                "other requests are open, when the rest of the running ones are paused)"
            ),
        ]
        | None
    ) = None
    batch_run: Annotated[
        tuple[str, ...],
        Meta(
            description="answer the requests in the first of two files, write the results to the second, and end "
            "(launch.py batch)",
            extra={"metavar": "FILE"},
        ),
    ] = ()

    def rows_while_live(self, max_num_seqs: int) -> int:
        """Number of rows that batches may use while clients have requests open."""
        return self.max_batch_seqs or max(1, max_num_seqs // PART_WHILE_LIVE)
