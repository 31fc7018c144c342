"""What goes towards the scheduler: a request as text, as ids, and the requests to end it.

Every message about one request carries `uid` (chosen by the frontend, unique in a run) and `attempt` (0 at first;
a continuation after a process died has the next number, and messages of an older attempt are dropped).
"""

import msgspec


class SamplingParams(msgspec.Struct, frozen=True, array_like=True):
    """How the tokens of one request are chosen and when it ends. Ranges are checked in the frontend.

    `temperature` below 1e-5 is greedy. `top_k` 0 means all tokens. `seed` is always set: a client that gives none
    gets a random one, so that noise is a function of (seed, position) and a continued request goes on as it would have.
    `max_tokens` counts tokens over all attempts; the tokenizer lowers it to what the context leaves.
    `cache_salt` separates prefix-cache namespaces.
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    cache_salt: str = ""

    @property
    def is_greedy(self) -> bool:
        return self.temperature < 1e-5


class Stamps(msgspec.Struct, frozen=True, array_like=True):
    """The timeline of a request: `time.monotonic_ns()` at each border, 0 where it has not been yet.

    `CLOCK_MONOTONIC` is one clock for all processes of a host. Each process fills its own fields.
    """

    received_ns: int = 0
    tokenized_ns: int = 0
    queued_ns: int = 0
    first_scheduled_ns: int = 0
    first_token_ns: int = 0
    finished_ns: int = 0
    detokenized_ns: int = 0


class TokenizeMsg(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """frontend → tokenizer: a prompt, as text or (where `prompt_text` is None) as int32 `prompt_ids`.

    A continuation also carries what the client already has: `output_ids` (int32) and `num_chars_sent`.
    """

    uid: int
    attempt: int
    prompt_text: str | None
    prompt_ids: bytes
    sampling_params: SamplingParams
    stamps: Stamps
    output_ids: bytes = b""
    num_chars_sent: int = 0


class UserMsg(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """tokenizer → scheduler: a prompt that is known to be valid, as int32 `input_ids`, never empty."""

    uid: int
    attempt: int
    input_ids: bytes
    sampling_params: SamplingParams
    stamps: Stamps
    output_ids: bytes = b""
    num_chars_sent: int = 0


class AbortMsg(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """frontend → tokenizer → scheduler: end this request; its final message comes back round the ring.

    For a request that has ended already it is a no-op: the final message is on its way.
    """

    uid: int
    attempt: int


class StopSeen(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """detokenizer → scheduler: a stop string has been seen in the text, end the row. Idempotent."""

    uid: int
    attempt: int


class DropBefore(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """frontend → tokenizer → scheduler: every request with a smaller uid has lost its client, end it as an abort.

    A restarted frontend sends it first; it gives larger uids than all its predecessors. The scheduler passes it on to
    the detokenizer, which may know streams of requests that died with an earlier scheduler.
    """

    uid: int


ToTokenizer = TokenizeMsg | AbortMsg | DropBefore
ToScheduler = UserMsg | AbortMsg | StopSeen | DropBefore
