"""Announces requests to the detokenizer."""

from messages.ring.replies import NUM_CONTEXT_TOKENS, NUM_PROMPT_END_TOKENS, OpenStream
from messages.ring.requests import UserMsg


def open_stream(message: UserMsg) -> OpenStream:
    """Returns the announcement of a request, with the part of its prompt that decoding needs."""
    params = message.sampling_params
    wants_prompt = params.echo or params.num_prompt_logprobs is not None
    num_read = NUM_PROMPT_END_TOKENS if params.wants_prompt_end else NUM_CONTEXT_TOKENS
    return OpenStream(
        uid=message.uid,
        attempt=message.attempt,
        stop=params.stop,
        include_stop_str_in_output=params.include_stop_str_in_output,
        skip_special_tokens=params.skip_special_tokens,
        output_ids=message.output_ids,
        num_chars_sent=message.num_chars_sent,
        prompt_ids=message.input_ids if wants_prompt else message.input_ids[-4 * num_read :],
        echo=params.echo,
        num_logprobs=params.num_logprobs,
        num_prompt_logprobs=params.num_prompt_logprobs,
        min_tokens=params.min_tokens,
        wants_prompt_end=params.wants_prompt_end,
    )
