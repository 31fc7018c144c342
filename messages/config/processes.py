"""The flags of processes: a section of the configuration (`messages/config/server.py`)."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from messages.config.flag import Flag, NonNegativeFloat, NonNegativeInt, PositiveFloat, UpTo64


class RunConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Processes"""

    run_dir: Annotated[
        str, Flag("directory for sockets and process IDs (default: sluice-UID-PORT in $XDG_RUNTIME_DIR or /tmp)")
    ] = ""
    drain_timeout_s: Annotated[
        NonNegativeFloat, Flag("seconds that running requests get to finish after Ctrl-C or SIGTERM")
    ] = 30.0
    hang_timeout_s: Annotated[
        PositiveFloat,
        Flag(
            "seconds without a heartbeat after which a process is considered hung and restarted; must exceed the "
            "longest step, because no heartbeat is sent during a step"
        ),
    ] = 60.0
    boot_timeout_s: float = 600.0
    """Seconds that a process may go without progress while it starts. Not a flag."""
    tokenizer_workers: Annotated[
        UpTo64, Flag("number of tokenizer processes; change it at run time with `launch.py scale tokenizer N`")
    ] = 1
    frontend_workers: Annotated[
        UpTo64,
        Flag("number of HTTP processes on one port; --max-num-seqs + --max-queued-requests is divided among them"),
    ] = 1
    data_parallel: Annotated[
        int,
        Meta(ge=0, le=32),
        Flag(
            "number of engines (data parallelism), each a scheduler with the whole model and its own KV cache; change "
            "it at run time with `launch.py scale scheduler N`; 0: only engines on other machines"
        ),
    ] = 1
    tensor_parallel: Annotated[
        UpTo64, Flag("ranks per engine (tensor parallelism), each with a shard of the weights and the KV cache")
    ] = 1
    pipeline_parallel: Annotated[
        UpTo64,
        Flag(
            "stages per engine (pipeline parallelism): processes that each load and compute some of the layers, with "
            "--tensor-parallel ranks in each (CPU only)"
        ),
    ] = 1
    stages: Annotated[
        str,
        Flag(
            "number of layers of each stage, such as 12,20; auto: so that the slowest stage takes the least time; "
            "one-stream: so that all together do; both by the measured speed and the free memory of each",
            metavar="auto|one-stream|COUNTS",
        ),
    ] = "auto"
    external: Annotated[tuple[str, ...], Flag("processes to start by hand; the launcher prints their commands")] = ()
    restart: Annotated[
        tuple[str, ...],
        Flag(
            "restart policy of a process that dies or hangs: NAME=always (default; its requests continue) or "
            "NAME=never (its death ends the server; a hang is only reported)",
            metavar="NAME=RULE",
        ),
    ] = ()
    max_restarts_per_min: Annotated[
        NonNegativeInt, Flag("maximum number of restarts per minute across all processes; beyond it the server exits")
    ] = 10
    standby: Annotated[
        bool,
        Flag(
            "keep a standby for the only engine: a scheduler that takes over when it dies or, with several ranks or "
            "stages, a process for each that has imported torch; costs the memory of the torch libraries"
        ),
    ] = True
    restart_hold_s: Annotated[
        float,
        Meta(ge=0, le=3600),
        Flag("seconds that new requests wait for a process to be replaced before they get 503; 0: no waiting"),
    ] = 15.0
    stall_s: Annotated[
        NonNegativeFloat,
        Flag("report a stall after this many seconds without progress and without a known reason; 0: never"),
    ] = 15.0
    on_stall: Annotated[
        Literal["report", "restart"], Flag("action on a stall; restart: also replace the stalled process")
    ] = "report"
    snapshot_dir: Annotated[
        str, Flag("directory for snapshots (default: sluice/snapshots in $XDG_STATE_HOME or ~/.local/state)")
    ] = ""
    max_snapshots: Annotated[
        NonNegativeInt, Flag("maximum number of snapshots to keep of crashes, hangs and stalls; 0: take none")
    ] = 8
    log_level: Annotated[Literal["debug", "info", "warning", "error"], Flag("minimum log level")] = "info"
    log_requests: Annotated[bool, Flag("log prompts and sampling parameters")] = False
    black_box_mb: Annotated[
        int,
        Meta(ge=0, le=65536),
        Flag(
            "size in MiB of the ring buffer of recent frames in the run directory, which survives a process that is "
            "killed (see launch.py tail, decode, replay); 0: disabled"
        ),
    ] = 64
    record: Annotated[str, Flag("new directory in which to record all frames (see launch.py replay)")] = ""
    record_gb: Annotated[
        float, Meta(ge=0.01, le=65536), Flag("maximum size of --record in GiB; the oldest frames are deleted first")
    ] = 1.0
    record_images_mb: Annotated[
        int,
        Meta(ge=0, le=1048576),
        Flag(
            "with --record, maximum size in MiB of the image files of requests that are kept there for launch.py "
            "replay; 0: frames have only their digests"
        ),
    ] = 0
    log_format: Annotated[Literal["text", "json"], Flag("log format; json: one object per line")] = "text"

    @property
    def num_ranks(self) -> int:
        """The processes that compute the steps of an engine together."""
        return self.tensor_parallel * self.pipeline_parallel
