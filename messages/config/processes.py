"""The flags of processes: a section of the configuration (`messages/config/server.py`)."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta


class RunConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Processes"""

    run_dir: Annotated[
        str,
        Meta(description="directory of sockets and pids (default: sluice-UID-PORT under $XDG_RUNTIME_DIR or /tmp)"),
    ] = ""
    drain_timeout_s: Annotated[
        float,
        Meta(ge=0, description="seconds for running requests to finish after Ctrl-C or SIGTERM"),
    ] = 30.0
    hang_timeout_s: Annotated[
        float,
        Meta(
            gt=0,
            description="seconds without a heartbeat after which a process counts as hung and is restarted; no "
            "heartbeat comes during a step, so this must exceed the longest step",
        ),
    ] = 60.0
    boot_timeout_s: float = 600.0
    """Seconds that a process may go without progress while it starts. Not a flag."""
    tokenizer_workers: Annotated[
        int,
        Meta(ge=1, le=64, description="processes that tokenize; `launch.py scale tokenizer N` changes it at run time"),
    ] = 1
    frontend_workers: Annotated[
        int,
        Meta(
            ge=1,
            le=64,
            description="processes that speak HTTP, on one port; each takes its share of --max-num-seqs + "
            "--max-queued-requests",
        ),
    ] = 1
    data_parallel: Annotated[
        int,
        Meta(
            ge=0,
            le=32,
            description="engines: schedulers that share the requests, each with the whole model and a KV cache of its "
            "own; `launch.py scale scheduler N` changes it; 0: only those on other machines",
        ),
    ] = 1
    tensor_parallel: Annotated[
        int,
        Meta(
            ge=1,
            le=64,
            description="ranks of an engine: processes that compute each step together, each with its part of the "
            "weights and of the KV cache",
        ),
    ] = 1
    external: Annotated[
        tuple[str, ...], Meta(description="processes that you start by hand (the launcher prints their commands)")
    ] = ()
    restart: Annotated[
        tuple[str, ...],
        Meta(
            description="whether a process that dies or hangs is started again: NAME=always (the default; its requests "
            "continue) or NAME=never (its death ends the run, and a hang is only reported)",
            extra={"metavar": "NAME=RULE"},
        ),
    ] = ()
    max_restarts_per_min: Annotated[
        int, Meta(ge=0, description="restarts per minute, of all processes together, beyond which the run ends")
    ] = 10
    standby: Annotated[
        bool,
        Meta(
            description="keep a standby that takes over when the scheduler dies (not with several "
            "engines or --tensor-parallel); it costs the memory of torch's libraries"
        ),
    ] = True
    restart_hold_s: Annotated[
        float,
        Meta(
            ge=0,
            le=3600,
            description="seconds that a new request may wait while a process is replaced, before it gets 503; 0: none",
        ),
    ] = 15.0
    stall_s: Annotated[
        float,
        Meta(
            ge=0, description="seconds without progress, for no known reason, after which a stall is reported; 0: never"
        ),
    ] = 15.0
    on_stall: Annotated[
        Literal["report", "restart"], Meta(description="after a stall, also replace the process at fault (restart)")
    ] = "report"
    snapshot_dir: Annotated[
        str, Meta(description="directory of snapshots (default: sluice/snapshots in $XDG_STATE_HOME or ~/.local/state)")
    ] = ""
    max_snapshots: Annotated[
        int, Meta(ge=0, description="snapshots of crashes, hangs and stalls to keep; 0: none is taken")
    ] = 8
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], Meta(description="least severe log line that is shown")
    ] = "info"
    log_requests: Annotated[bool, Meta(description="log prompts and sampling parameters")] = False
    black_box_mb: Annotated[
        int,
        Meta(
            ge=0,
            le=65536,
            description="MiB for the last frames of all processes, in the run directory, which outlive a process that "
            "is killed (launch.py tail, decode, replay); 0: none",
        ),
    ] = 64
    record: Annotated[str, Meta(description="new directory for all frames (launch.py replay)")] = ""
    record_gb: Annotated[
        float, Meta(ge=0.01, le=65536, description="GiB of frames that --record keeps; then the oldest go")
    ] = 1.0
    log_format: Annotated[
        Literal["text", "json"], Meta(description="how log lines are written; json: one object a line")
    ] = "text"
