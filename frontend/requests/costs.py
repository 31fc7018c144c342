"""Limits on the cost of one HTTP request, counted over all its prompts and choices."""

from collections.abc import Sequence

from frontend.requests.admission import BYTES_PER_TOKEN, estimate_tokens
from frontend.requests.prompt_request import PromptRequest
from messages.config.server import ModelFacts
from messages.errors import bad_request
from messages.ring.requests import ChatPrompt, SamplingParams

LONG_CHARS = 100_000
"""The tokenizer serves shorter requests before one with this much text, which takes about 0.1 s."""

MAX_CUT_IDS = 1 << 20
"""Maximum token ids in a prompt that is truncated to the context."""

MAX_PROMPT_LOGPROBS = 1 << 20
"""Maximum per reply; each takes about 200 bytes of memory and 70 bytes of the reply."""

MAX_OUTPUT_LOGPROBS = 1 << 22
"""Maximum per reply that is not streamed; the output may be shorter than it is allowed to be."""

MAX_NUMBERS = 1 << 22
"""Maximum numbers of vectors per reply; as JSON they take up to 20 bytes each."""

MAX_TOKEN_NUMBERS = 1 << 20
"""The same for vectors of single tokens, of which a short text has many."""


def is_long(requests: Sequence[PromptRequest]) -> bool:
    """True if the prompts and the texts in their parameters have `LONG_CHARS` characters or more in total."""
    num_chars = sum(_num_prompt_chars(request) + _num_param_chars(request.params) for request in requests)
    return num_chars >= LONG_CHARS


def estimate_prompts(requests: Sequence[PromptRequest]) -> int:
    """Returns an estimate of the tokens in the prompts of all choices."""
    return sum(_num_tokens(request) * request.num_choices for request in requests)


def check_costs(requests: Sequence[PromptRequest], facts: ModelFacts, *, is_streamed: bool) -> None:
    """Raises `RequestError` (400) if an HTTP request costs more than it may."""
    check_num_ids(requests, facts.max_model_len)
    check_prompt_logprobs(requests, facts.max_model_len)
    check_vectors(requests, facts)
    if not is_streamed:
        check_output_logprobs(requests, facts.max_model_len)


def check_num_ids(requests: Sequence[PromptRequest], max_model_len: int) -> None:
    """Raises `RequestError` (400) for more token ids than fit the context, or than may be truncated to it."""
    for request in requests:
        limit = max_model_len if request.truncation is None else max(max_model_len, MAX_CUT_IDS)
        if isinstance(request.prompt, list) and len(request.prompt) > limit:
            raise bad_request(
                f"This model's maximum context length is {max_model_len} tokens, the request has "
                f"{len(request.prompt)} in the prompt",
                "prompt",
                "context_length_exceeded",
            )


def check_prompt_logprobs(requests: Sequence[PromptRequest], max_model_len: int) -> None:
    """Raises `RequestError` (400) if the reply would have too many logprobs of prompt tokens."""
    num_logprobs = sum(
        (1 + request.params.num_prompt_logprobs) * min(_num_tokens(request), max_model_len) * request.num_choices
        for request in requests
        if request.params.num_prompt_logprobs is not None
    )
    if num_logprobs > MAX_PROMPT_LOGPROBS:
        raise bad_request(
            f"the reply would hold about {num_logprobs} logprobs of prompt tokens, all choices together, and may have "
            f"{MAX_PROMPT_LOGPROBS}: ask for fewer choices or alternatives, or send a shorter prompt",
            "prompt_logprobs",
        )


def check_output_logprobs(requests: Sequence[PromptRequest], max_model_len: int) -> None:
    """Raises `RequestError` (400) if a reply that is sent as a whole could have too many logprobs of its output."""
    num_logprobs = sum(
        (1 + request.params.num_logprobs) * min(request.params.max_tokens, max_model_len) * request.num_choices
        for request in requests
        if request.params.num_logprobs is not None
    )
    if num_logprobs > MAX_OUTPUT_LOGPROBS:
        raise bad_request(
            f"the reply could hold {num_logprobs} logprobs, all choices together, and may have {MAX_OUTPUT_LOGPROBS}: "
            "set max_tokens, ask for fewer choices or alternatives, or stream the reply",
            "logprobs",
        )


def check_vectors(requests: Sequence[PromptRequest], facts: ModelFacts) -> None:
    """Raises `RequestError` (400) if the reply would have too many numbers of vectors."""
    num_numbers, most = 0, MAX_NUMBERS
    for request in requests:
        pooling = request.params.pooling
        if pooling is not None and pooling.kind in ("embed", "token_embed"):
            is_each = pooling.kind == "token_embed"
            num_vectors = min(_num_tokens(request), facts.max_model_len) if is_each else 1
            num_numbers += num_vectors * min(pooling.dimensions or facts.vector_size, facts.vector_size)
            most = MAX_TOKEN_NUMBERS if is_each else most
    if num_numbers > most:
        raise bad_request(
            f"the reply would hold about {num_numbers} numbers of vectors, and may have {most}: "
            "send fewer or shorter texts, or ask for fewer dimensions"
        )


def _num_tokens(request: PromptRequest) -> int:
    prompt = request.prompt
    if isinstance(prompt, list):
        return len(prompt)
    if isinstance(prompt, ChatPrompt):
        return estimate_tokens(None, b"", prompt, request.images)
    return estimate_tokens(prompt, b"", None, request.images) + _num_other_chars(request) // BYTES_PER_TOKEN


def _num_prompt_chars(request: PromptRequest) -> int:
    prompt = request.prompt
    if isinstance(prompt, ChatPrompt):
        return len(prompt.messages) + len(prompt.template_kwargs)
    return len(prompt) + _num_other_chars(request) if isinstance(prompt, str) else 0


def _num_other_chars(request: PromptRequest) -> int:
    """Returns the characters of the texts that the tokenizer puts around the prompt or after it."""
    return len(request.text_pair or "") + (0 if request.infill is None else request.infill.num_chars)


def _num_param_chars(params: SamplingParams) -> int:
    breakers = params.dry.sequence_breakers if params.dry is not None else ()
    return sum(map(len, (*params.bad_words, *breakers, *(text for text, _ in params.bias_texts))))
