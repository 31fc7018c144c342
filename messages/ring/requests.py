"""Messages towards the scheduler: a request as text, the same request as token ids, and requests to end it.

Every message about a request carries its `uid` (chosen by the frontend, unique in a run) and its `attempt`. The first
attempt is 0. After a process has died, the continuation is the next attempt; messages of older ones are dropped.
"""

from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from messages.columns import Float32s, Int32s
from messages.ring.adapters import Adapter
from messages.ring.cache import CacheQuestion
from messages.ring.dry import Dry
from messages.ring.encodings import EncodeImage, EngineStarted, ForgetImage, FromEncoder, OpenAsks
from messages.ring.images import ImageInput
from messages.ring.infill import Infill
from messages.ring.pooling import Pooling
from messages.ring.spans import PromptSpan

AbortReason = Literal["abort", "timeout"]
TruncationSide = Literal["left", "right"]
GrammarKind = Literal["json_schema", "regex", "choice", "lark", "structural_tag", "calls", "llguidance", "thought"]
ThoughtPlace = Literal["before", "inside", "behind"]

THINKING_SWITCHES = ("enable_thinking", "thinking")
"""Variables by which chat templates switch reasoning on or off. A template reads at most one of them."""

THINKING_BUDGET = "thinking_token_budget"


class Thought(msgspec.Struct, frozen=True, array_like=True):
    """How the model writes its reasoning: `begin`, text, `end`, `resume`.

    `answer`: begins content that is not a call. `empty`: an empty thought, as the chat template writes it.
    `is_off`: the tokenizer closes the thought in the prompt if the template has not. `budget`: the maximum number of
    tokens between the marks, `None` for no limit. `place`: where the prompt ends, set by the tokenizer.
    """

    begin: str
    end: str
    empty: str = ""
    resume: str = ""
    answer: str = ""
    is_off: bool = False
    budget: int | None = None
    place: ThoughtPlace = "before"


class ThoughtLimit(msgspec.Struct, frozen=True, array_like=True):
    """Limits a thought to `num_tokens` tokens, after which `end_ids` (int32) are forced.

    The grammar `text` accepts once the thought has ended. A thought begins with a mark of `num_begin` tokens; an output
    that begins otherwise has no limit.
    """

    text: str
    num_tokens: int
    end_ids: Int32s
    num_begin: int = 0


class CallGrammar(msgspec.Struct, frozen=True, array_like=True):
    """The tool calls that an answer must consist of. It begins with one of `calls`: (begin, schema in JSON, end).

    A schema of `None` allows any text. With a `separator`, more calls may follow, each after one. `names` are the
    tools: either each has its own entry in `calls`, with the schema of its parameters, or all share one entry whose
    schema has an alternative per tool. `tag`: the texts around the value of each argument, whose name replaces `{key}`;
    `None` if the arguments of a call are one JSON object.
    """

    calls: tuple[tuple[str, bytes | None, str], ...] = ()
    separator: str | None = None
    names: tuple[str, ...] = ()
    tag: tuple[str, str] | None = None

    def with_calls(self, calls: Iterable[tuple[str, dict[str, Any] | None, str]]) -> "CallGrammar":
        """Returns the grammar with other calls, whose schemas are encoded here."""
        encoded = [
            (begin, None if schema is None else msgspec.json.encode(schema), end) for begin, schema, end in calls
        ]
        return msgspec.structs.replace(self, calls=tuple(encoded))

    def decoded(self) -> list[tuple[str, dict[str, Any] | None, str]]:
        """Returns the calls with decoded schemas."""
        return [(begin, msgspec.json.decode(schema) if schema else None, end) for begin, schema, end in self.calls]


class Grammar(msgspec.Struct, frozen=True, array_like=True):
    """The grammar of the whole output, in one of the forms that clients use; `param` is the field that requested it.

    `text` is a JSON schema, a regular expression, a JSON list of allowed outputs, a grammar in Lark's or GBNF's syntax,
    or the JSON of a structural tag. The tokenizer translates every kind to "llguidance", that
    library's own form, for the scheduler. `whitespace` is a regular expression for the text between JSON tokens: empty
    for none, `None` for a space or a line break with indentation.

    If `calls` is set, the output may be those calls instead or, for the kind "calls", must be. `thought`, added by the
    tokenizer, comes before either. The kind "thought" only limits the reasoning: its text is empty and `limit` is set.
    `closes_objects`: objects have no properties but those of their JSON schemas (`None`: the server's default).
    """

    kind: GrammarKind
    text: str
    param: str
    whitespace: str | None = None
    calls: CallGrammar | None = None
    thought: Thought | None = None
    limit: ThoughtLimit | None = None
    closes_objects: bool | None = None


YIELDING_PRIORITY = 100
"""Requests with this `priority` or a larger number give way to all others, as those of batches do (decision 0058)."""


class SamplingParams(msgspec.Struct, frozen=True, array_like=True):
    """How the tokens of one request are sampled and when it ends. The frontend checks the ranges.

    A `temperature` below 1e-5 is greedy; `top_k` 0 means all tokens. `seed` is always set (random if the client gives
    none): noise is a function of (seed, position), so a continued request samples the same tokens. `max_tokens` counts
    the tokens of all attempts; the tokenizer lowers it to the room left in the context. `cache_salt` separates
    prefix-cache namespaces. No token may end the row before it has `min_tokens`.

    Logits are changed before temperature, in this order: `allowed_token_ids` (int32; empty: all), `grammar`, bad
    words, `min_tokens`, `bias_ids` (int32) with `bias_values` (float32, same length), `dry`, then repetition,
    frequency and presence penalty. `bad_words` are texts; the tokenizer fills in `bad_word_ids`, the id sequences
    (int32) that must not be completed. It also adds the biases of `bias_texts` to their tokens; a bias of `None` bans
    the token. Logprobs are taken before any of these changes.

    `num_logprobs` is the number of alternatives per output token, `num_prompt_logprobs` per prompt token: 0 for the
    token's own logprob, `None` for no logprobs. `echo` requests the prompt's text. Lower `priority` values are
    scheduled first. Without `is_streamed` the client gets the whole answer at the end, so tokens may be delivered some
    steps later.
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
    min_tokens: int = 0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    bias_ids: Int32s = b""
    bias_values: Float32s = b""
    allowed_token_ids: Int32s = b""
    bad_words: tuple[str, ...] = ()
    bad_word_ids: tuple[Int32s, ...] = ()
    num_logprobs: int | None = None
    num_prompt_logprobs: int | None = None
    echo: bool = False
    priority: int = 0
    grammar: Grammar | None = None
    top_n_sigma: float = 0.0
    typical_p: float = 1.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    dry: Dry | None = None
    bias_texts: tuple[tuple[str, float | None], ...] = ()
    is_streamed: bool = True
    adapter: Adapter | None = None
    """Its digest is part of `cache_salt`. With `max_tokens` 0, the request ends when the adapter has been read."""
    pooling: Pooling | None = None
    """`None` if the prompt is not pooled."""

    @property
    def needs_token_delivery(self) -> bool:
        """True if each token is needed at once, by a streaming client or by the search for stop strings."""
        return self.is_streamed or bool(self.stop)

    @property
    def is_greedy(self) -> bool:
        return self.temperature < 1e-5


class Stamps(msgspec.Struct, frozen=True, array_like=True):
    """The timeline of a request: `time.monotonic_ns()` at each process border, 0 until the request gets there.

    `CLOCK_MONOTONIC` is one clock for all processes of a host. Each process fills in its own fields.
    """

    received_ns: int = 0
    tokenized_ns: int = 0
    queued_ns: int = 0
    first_scheduled_ns: int = 0
    first_token_ns: int = 0
    finished_ns: int = 0
    detokenized_ns: int = 0
    tokenize_begun_ns: int = 0
    """When the tokenizer began to work on it."""


class ChatPrompt(msgspec.Struct, frozen=True, array_like=True):
    """A conversation that the tokenizer renders with the chat template.

    `messages` is a JSON list of objects with a `role`, checked by the frontend. `template_kwargs` is a JSON object with
    more variables for the template. `continue_final_message` leaves the last message open for the model to continue.
    `thought` is the format of reasoning, set if it affects the prompt or the output.
    """

    messages: bytes
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    template_kwargs: bytes = b"{}"
    thought: Thought | None = None


class Truncation(msgspec.Struct, frozen=True, array_like=True):
    """Truncates a longer prompt to `num_tokens`, on the left (keeps the last tokens) or on the right.

    -1 keeps as many tokens as leave room for `max_tokens` in the context or, if `max_tokens` fills it, for one token.
    `drops_messages`: only a prompt that does not fit the context; a chat first loses its oldest turns.
    """

    num_tokens: int
    side: TruncationSide = "left"
    drops_messages: bool = False


class Sibling(msgspec.Struct, frozen=True, array_like=True):
    """Another request with the prompt of a `TokenizeMsg`. It has the same attempt and differs only in these fields."""

    uid: int
    seed: int
    engine: int = 1


class TokenizeMsg(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """frontend → tokenizer: a prompt as text, as a `chat` or, if both are `None`, as int32 `prompt_ids`.

    `add_special_tokens` makes the tokenizer add its own special tokens, such as the beginning of a sequence, to a text
    or a rendered chat. A continuation also carries what the client already has: `output_ids` (int32) and
    `num_chars_sent`. `client`: the name of the sender's key, or its address (at most 64 bytes); `share`: its part.
    """

    uid: int
    attempt: int
    prompt_text: str | None
    prompt_ids: Int32s
    sampling_params: SamplingParams
    stamps: Stamps
    output_ids: Int32s = b""
    num_chars_sent: int = 0
    chat: ChatPrompt | None = None
    add_special_tokens: bool = True
    truncation: Truncation | None = None
    """`None`: a prompt that is too long is rejected."""
    engine: int = 1
    """The number of the scheduler that will run it (`messages/engines.py`)."""
    siblings: tuple[Sibling, ...] = ()
    """More choices for this prompt, which is sent and tokenized once for all of them."""
    is_long: bool = False
    """The text of its HTTP request is long, so shorter texts are tokenized first."""
    text_pair: str | None = None
    """A second text, for models that compare two: the tokenizer joins them by its template for pairs."""
    infill: Infill | None = None
    """With `prompt_text` only."""
    group: int = 0
    """The uid of the first request of its HTTP request: those of one HTTP request take turns with others (0: alone)."""
    spans: tuple[PromptSpan, ...] = ()
    """With `prompt_ids` only."""
    client: str = ""
    share: int = 1
    images: tuple[ImageInput, ...] = ()
    """Of `chat`, in the order of its parts of type `image`; of a text, in the order of the marks in it."""

    def alone(self, sibling: Sibling) -> "TokenizeMsg":
        """Returns the message of the request `sibling`."""
        params = msgspec.structs.replace(self.sampling_params, seed=sibling.seed)
        return msgspec.structs.replace(
            self, uid=sibling.uid, engine=sibling.engine, sampling_params=params, siblings=()
        )

    def each(self) -> "list[TokenizeMsg]":
        """Returns one message per request, each without siblings."""
        first = msgspec.structs.replace(self, siblings=()) if self.siblings else self
        return [first, *map(self.alone, self.siblings)]


class UserMsg(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """tokenizer → scheduler: a validated prompt as int32 `input_ids`, never empty."""

    uid: int
    attempt: int
    input_ids: Int32s
    sampling_params: SamplingParams
    stamps: Stamps
    output_ids: Int32s = b""
    num_chars_sent: int = 0
    engine: int = 1
    group: int = 0
    spans: tuple[PromptSpan, ...] = ()
    begins_in_thought: bool = False
    """The chat template has opened the model's reasoning."""
    client: str = ""
    share: int = 1
    images: tuple[ImageInput, ...] = ()
    """A span of kind `image` has the index of one."""


class AbortMsg(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """frontend → tokenizer → scheduler: end this request; its final message returns through the ring.

    No-op for a request that has already ended: its final message is on its way.
    """

    uid: int
    attempt: int
    reason: AbortReason = "abort"
    engine: int = 1
    """The scheduler of this attempt."""


class StopSeen(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """detokenizer → scheduler: end the row, because its text contains a stop string. Idempotent."""

    uid: int
    attempt: int
    engine: int = 1


class DropBefore(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """frontend → tokenizer → scheduler: abort every request with a smaller uid, because its client is gone.

    Uids in `living_blocks` are excluded: their frontends are alive (`messages/ring/uids.py`). Every frontend sends this
    when another one has died. A new frontend sends it as its first message, since its uids are larger than all earlier
    ones. The scheduler forwards it to the detokenizer, which may hold streams of requests that died with an earlier
    scheduler.
    """

    uid: int
    living_blocks: tuple[int, ...] = ()
    engines: tuple[int, ...] = (1,)
    """The schedulers that receive it."""


class FlushCache(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """frontend → tokenizer → scheduler: empty the prefix cache. `CacheFlushed` returns through the detokenizer.

    No-op while requests run, unless `is_forced`: then only pages that no request uses are freed.
    """

    uid: int
    is_forced: bool = False
    engine: int = 1


class EncodeMsg(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """frontend → tokenizer: return the token ids of a text or a chat to the client. Answered with `EncodeReply`."""

    uid: int
    prompt_text: str | None
    chat: ChatPrompt | None = None
    add_special_tokens: bool = True
    wants_token_strs: bool = False
    wants_text: bool = False
    """Return the text, too: that of the rendered chat."""
    images: tuple[ImageInput, ...] = ()
    """See `TokenizeMsg`."""


class DecodeMsg(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """frontend → tokenizer: return the text of int32 `token_ids` to the client. Answered with `DecodeReply`."""

    uid: int
    token_ids: Int32s


class FramesLost(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Any receiver, to itself and then through the ring to the frontend: frames `first` to `last` did not arrive.

    `receiver` is the process that misses them; `sender` is the end of the channel that numbered them. The message takes
    the place of the missing frames, before any later frame of that sender. The frontend resubmits its open requests.
    """

    receiver: str
    sender: int
    first: int
    last: int


ToTokenizer = TokenizeMsg | AbortMsg | DropBefore | FlushCache | EncodeMsg | DecodeMsg | FramesLost | CacheQuestion
ToScheduler = UserMsg | AbortMsg | StopSeen | DropBefore | FlushCache | FramesLost | CacheQuestion | FromEncoder
ToEncoder = EncodeImage | ForgetImage | OpenAsks | EngineStarted | FramesLost
