"""The flags of batches, besides the scheduler's `--max-batch-seqs`."""

from typing import Annotated, ClassVar

from messages.config.flag import Flag, PositiveFloat
from messages.config.server import ExtraConfig


class BatchConfig(ExtraConfig, frozen=True, kw_only=True):
    """Batches"""

    EXTRA: ClassVar[str] = "batches"

    batch_dir: Annotated[
        str,
        Flag(
            "directory for the files of /v1/files and /v1/batches, kept across restarts (default: none; these "
            "endpoints are disabled)"
        ),
    ] = ""
    batch_dir_gb: Annotated[
        PositiveFloat, Flag("maximum size of uploaded files in --batch-dir in GiB; results are still written beyond it")
    ] = 10.0
    max_batch_file_mb: float = 200.0
    """Largest file of a batch in MiB, the limit of OpenAI. Not a flag."""
    batch_run: Annotated[
        tuple[str, ...],
        Flag(
            "run the requests of the first file, write the results to the second, and exit (launch.py batch)",
            metavar="FILE",
            is_hidden=True,
        ),
    ] = ()
