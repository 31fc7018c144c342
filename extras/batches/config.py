"""The flags of batches, besides the scheduler's `--max-batch-seqs`."""

from typing import Annotated, ClassVar

from msgspec import Meta

from messages.config.server import ExtraConfig


class BatchConfig(ExtraConfig, frozen=True, kw_only=True):
    """Batches"""

    EXTRA: ClassVar[str] = "batches"

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
    max_batch_file_mb: float = 200.0
    """Largest file of a batch in MiB, the limit of OpenAI. Not a flag."""
    batch_run: Annotated[
        tuple[str, ...],
        Meta(
            description="answer the requests in the first of two files, write the results to the second, and end "
            "(launch.py batch)",
            extra={"metavar": "FILE", "hidden": True},
        ),
    ] = ()
