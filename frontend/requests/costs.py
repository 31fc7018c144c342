"""What one HTTP request may cost, counted over all its prompts and choices."""

from collections.abc import Sequence

from frontend.requests.admission import estimate_tokens
from frontend.requests.prompt_request import PromptRequest
from messages.errors import bad_request
from messages.requests import ChatPrompt, SamplingParams

LONG_CHARS = 100_000
"""From so much text on the tokenizer serves shorter requests first: it takes about a tenth of a second."""

MAX_CUT_IDS = 1 << 20
"""Token ids of a prompt that is cut to what the context holds."""

MAX_PROMPT_LOGPROBS = 1 << 20
"""Of one reply; each takes some 200 bytes of memory and 70 of the reply."""


def is_long(requests: Sequence[PromptRequest]) -> bool:
    """Tells whether the prompts, and the texts in the parameters of each, are long together."""
    num_chars = sum(_num_prompt_chars(request) + _num_param_chars(request.params) for request in requests)
    return num_chars >= LONG_CHARS


def estimate_prompts(requests: Sequence[PromptRequest]) -> int:
    """Returns about how many tokens the prompts of all choices have together."""
    return sum(_num_tokens(request) * request.num_choices for request in requests)


def check_num_ids(requests: Sequence[PromptRequest], max_model_len: int) -> None:
    """Raises `RequestError` (400) for more token ids than the context holds, or than may be cut to it."""
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
    """Raises `RequestError` (400) for more logprobs of prompt tokens than a reply may have."""
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


def _num_tokens(request: PromptRequest) -> int:
    prompt = request.prompt
    if isinstance(prompt, list):
        return len(prompt)
    if isinstance(prompt, ChatPrompt):
        return estimate_tokens(None, b"", prompt)
    return estimate_tokens(prompt, b"", None)


def _num_prompt_chars(request: PromptRequest) -> int:
    prompt = request.prompt
    if isinstance(prompt, ChatPrompt):
        return len(prompt.messages) + len(prompt.template_kwargs)
    return len(prompt) if isinstance(prompt, str) else 0


def _num_param_chars(params: SamplingParams) -> int:
    breakers = params.dry.sequence_breakers if params.dry is not None else ()
    return sum(map(len, (*params.bad_words, *breakers, *(text for text, _ in params.bias_texts))))
