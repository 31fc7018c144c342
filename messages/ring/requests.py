"""What goes towards the scheduler: a request as text, as ids, and the requests to end it.

Every message about one request carries `uid` (chosen by the frontend, unique in a run) and `attempt` (0 at first;
a continuation after a process died has the next number, and messages of an older attempt are dropped).
"""

from typing import Any, Literal

import msgspec

from messages.columns import Float32s, Int32s
from messages.ring.cache import CacheQuestion

AbortReason = Literal["abort", "timeout"]
TruncationSide = Literal["left", "right"]
GrammarKind = Literal["json_schema", "regex", "choice", "lark", "structural_tag", "calls", "llguidance", "thought"]
ThoughtPlace = Literal["before", "inside", "behind"]

THINKING_SWITCHES = ("enable_thinking", "thinking")
"""Variables by which chat templates switch reasoning on or off: a template knows one of them, or none."""

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

    The grammar `text` accepts from the end of the thought on. A thought begins with a mark of `num_begin` tokens; an
    output that begins otherwise has no limit.
    """

    text: str
    num_tokens: int
    end_ids: Int32s
    num_begin: int = 0


class CallGrammar(msgspec.Struct, frozen=True):
    """The tool calls that an answer must consist of. It begins with one of `calls`: (begin, JSON schema, end).

    A schema of `None` stands for any text. If there is a `separator`, further calls may follow, each after one.
    `names`: the tools. Either each has its own entry in `calls`, with the schema of its parameters, or all share one
    entry, whose schema has an alternative for each tool.
    """

    calls: tuple[tuple[str, dict[str, Any] | None, str], ...]
    separator: str = ""
    names: tuple[str, ...] = ()


class Grammar(msgspec.Struct, frozen=True, array_like=True):
    """The grammar of the whole output, in one of the forms that clients use; `param` is the field that requested it.

    `text` is a JSON schema, a regular expression, a JSON list of strings of which the output is one, a grammar in
    Lark's or GBNF's syntax, or the JSON object of a structural tag or a `CallGrammar`. The tokenizer translates all of
    them to the kind "llguidance", that library's own form, for the scheduler. `whitespace` is a regular expression for
    the text between tokens of JSON: empty for none, `None` for a blank or a line break with its indentation.

    Alternatively the output may be the calls of `calls`, the JSON of a `CallGrammar`. `thought`, added by the
    tokenizer, comes before either. The kind "thought" has nothing else: its text becomes empty and it has a `limit`.
    """

    kind: GrammarKind
    text: str
    param: str
    whitespace: str | None = None
    calls: str = ""
    thought: Thought | None = None
    limit: ThoughtLimit | None = None


class Dry(msgspec.Struct, frozen=True, array_like=True):
    """The penalty against repeating sequences that is known as DRY ("don't repeat yourself").

    Where the last n tokens, n at least `allowed_length`, stand earlier in the text too, the logit of the token that
    follows there falls by `multiplier * base ** (n - allowed_length)`. Only the last `penalty_last_n` tokens count
    (-1: all), and no repetition reaches over one of `breaker_ids` (int32), which the tokenizer makes of
    `sequence_breakers`.
    """

    multiplier: float
    base: float
    allowed_length: int
    penalty_last_n: int
    sequence_breakers: tuple[str, ...]
    breaker_ids: Int32s = b""


YIELDING_PRIORITY = 100
"""Requests with this `priority` or a larger number give way to all others, as those of batches do (decision 0058)."""


class SamplingParams(msgspec.Struct, frozen=True, array_like=True):
    """How the tokens of one request are chosen and when it ends. Ranges are checked in the frontend.

    `temperature` below 1e-5 is greedy. `top_k` 0 means all tokens. `seed` is always set: a client that gives none
    gets a random one, so that noise is a function of (seed, position) and a continued request goes on as it would have.
    `max_tokens` counts tokens over all attempts; the tokenizer lowers it to what the context leaves.
    `cache_salt` separates prefix-cache namespaces. Until the row has `min_tokens`, no token may end it.

    Changes to the logits come before temperature, in this order: `allowed_token_ids` (int32; empty: all),
    `grammar`, bad words, `min_tokens`, `bias_ids` (int32) with `bias_values` (float32, of equal length), `dry`, then
    repetition, frequency and presence penalty. `bad_words` are texts; the tokenizer fills in `bad_word_ids`, the id
    sequences (int32) that must not be completed, and gives the biases of `bias_texts` to their tokens (`None` bans
    them; banned token ids are in `bad_word_ids` already). Logprobs are of the distribution before any change.
    `num_logprobs` alternatives are wanted with each output token and `num_prompt_logprobs` with each prompt token, 0
    for the token's own alone, `None` for no logprobs. With `echo` the prompt's text is wanted, with
    `wants_prompt_end` its end: there a chat template may have begun the answer. A lower `priority` goes first.
    Where not `is_streamed`, the client gets the whole answer at its end: tokens may be told some steps later.
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
    wants_prompt_end: bool = False
    top_n_sigma: float = 0.0
    typical_p: float = 1.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    dry: Dry | None = None
    bias_texts: tuple[tuple[str, float | None], ...] = ()
    is_streamed: bool = True

    @property
    def must_tell_tokens(self) -> bool:
        """Tells whether somebody waits for each token: its client, or the search for a stop string."""
        return self.is_streamed or bool(self.stop)

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
    tokenize_begun_ns: int = 0
    """When the tokenizer took it."""


class ChatPrompt(msgspec.Struct, frozen=True, array_like=True):
    """A conversation for the chat template, which the tokenizer renders.

    `messages` is a JSON list of objects with a `role`, checked by the frontend; `template_kwargs` a JSON object of
    further variables of the template. With `continue_final_message` the last message is left open for the model.
    `thought` is the format of reasoning, if it affects the prompt or the output.
    """

    messages: bytes
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    template_kwargs: bytes = b"{}"
    thought: Thought | None = None


class Truncation(msgspec.Struct, frozen=True, array_like=True):
    """How a longer prompt is cut to `num_tokens`: on the left, so that its last ones stay, or on the right.

    -1 stands for as many as leave room for `max_tokens` in the context or, where that is all of it, for one token.
    """

    num_tokens: int
    side: TruncationSide = "left"


class Sibling(msgspec.Struct, frozen=True, array_like=True):
    """Another request for the prompt of a `TokenizeMsg`: it has the same attempt and differs only in these fields."""

    uid: int
    seed: int
    engine: int = 1


class TokenizeMsg(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """frontend → tokenizer: a prompt as text, as a `chat`, or (where both are None) as int32 `prompt_ids`.

    `add_special_tokens` has the tokenizer add its own, as the beginning of a sequence, to a text or rendered chat. A
    continuation also carries what the client already has: `output_ids` (int32) and `num_chars_sent`.
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
    """`None`: a prompt that is too long is refused."""
    engine: int = 1
    """The number of the scheduler that is to have it (`messages/engines.py`)."""
    siblings: tuple[Sibling, ...] = ()
    """Further choices for this prompt, which is sent and tokenized once for all of them."""
    is_long: bool = False
    """The text of its HTTP request is long, so shorter ones are tokenized first."""

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
    """tokenizer → scheduler: a prompt that is known to be valid, as int32 `input_ids`, never empty."""

    uid: int
    attempt: int
    input_ids: Int32s
    sampling_params: SamplingParams
    stamps: Stamps
    output_ids: Int32s = b""
    num_chars_sent: int = 0
    engine: int = 1


class AbortMsg(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """frontend → tokenizer → scheduler: end this request; its final message comes back round the ring.

    For a request that has ended already it is a no-op: the final message is on its way.
    """

    uid: int
    attempt: int
    reason: AbortReason = "abort"
    engine: int = 1
    """That of the attempt."""


class StopSeen(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """detokenizer → scheduler: a stop string has been seen in the text, end the row. Idempotent."""

    uid: int
    attempt: int
    engine: int = 1


class DropBefore(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """frontend → tokenizer → scheduler: every request with a smaller uid has lost its client, end it as an abort.

    Uids in `living_blocks` are excepted: their frontends live (`messages/ring/uids.py`). Every frontend sends it when
    another has died; a new one sends it first, as its uids are larger than all before. The scheduler forwards it to the
    detokenizer, which may have streams of requests that died with an earlier scheduler.
    """

    uid: int
    living_blocks: tuple[int, ...] = ()
    engines: tuple[int, ...] = (1,)
    """The schedulers that hear of it."""


class FlushCache(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """frontend → tokenizer → scheduler: empty the prefix cache; `CacheFlushed` comes back by way of the detokenizer.

    Nothing is done while requests run, unless `is_forced`: then what they do not use goes.
    """

    uid: int
    is_forced: bool = False
    engine: int = 1


class EncodeMsg(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """frontend → tokenizer: a text or a chat whose ids the client wants to see, answered with `EncodeReply`."""

    uid: int
    prompt_text: str | None
    chat: ChatPrompt | None = None
    add_special_tokens: bool = True
    wants_token_strs: bool = False


class DecodeMsg(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """frontend → tokenizer: int32 `token_ids` whose text the client wants to see, answered with `DecodeReply`."""

    uid: int
    token_ids: Int32s


class FramesLost(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Any receiver, to itself and then round the ring to the frontend: frames `first` to `last` did not arrive.

    `receiver` is the process that misses them, `sender` the end of the channel that has numbered them. It comes in the
    place of the missing frames, before any later one of that sender. The frontend sends the open requests again.
    """

    receiver: str
    sender: int
    first: int
    last: int


ToTokenizer = TokenizeMsg | AbortMsg | DropBefore | FlushCache | EncodeMsg | DecodeMsg | FramesLost | CacheQuestion
ToScheduler = UserMsg | AbortMsg | StopSeen | DropBefore | FlushCache | FramesLost | CacheQuestion
