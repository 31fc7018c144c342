"""The token usage of a request, summed over its choices, in OpenAI's format."""

from collections.abc import Iterable

import msgspec
from msgspec import UNSET, UnsetType

from frontend.requests.generation import Generation
from messages.columns import unpack_int32
from messages.ring.replies import Usage


class PromptTokensDetails(msgspec.Struct, frozen=True):
    cached_tokens: int
    image_tokens: int | UnsetType = UNSET
    """Absent for a prompt without images."""


class UsageReply(msgspec.Struct, frozen=True):
    """A prompt counts once, regardless of its number of choices. Tokens of choices that are not returned count, too."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


def usage_of(generations: Iterable[Generation], num_choices: int) -> UsageReply:
    """Returns the usage of finished choices, in the order of their prompts with `num_choices` per prompt."""
    prompts: dict[int, list[int]] = {}
    num_output = 0
    for generation in generations:
        usage = generation.ended.usage
        index = generation.index // num_choices
        counts = usage.prompt_tokens, usage.cached_tokens, usage.image_tokens
        prompts[index] = list(map(max, prompts.get(index, (0, 0, 0)), counts))
        num_output += usage.completion_tokens
    num_prompt, num_cached, num_image = map(sum, zip(*prompts.values(), strict=True))
    return _reply(Usage(num_prompt, num_cached, num_output, num_image))


def usage_so_far(generation: Generation, *, is_last: bool) -> UsageReply:
    """Returns the usage of one choice up to and including the next chunk; `is_last` if that ends the choice.

    The usage of the prompt is known from the first token on.
    """
    final = generation.final
    prompt = (final.usage if final is not None else generation.prompt_usage) or Usage()
    num_output = final.usage.completion_tokens if final is not None and is_last else generation.num_taken
    return _reply(msgspec.structs.replace(prompt, completion_tokens=num_output))


def prompt_ids_of(generation: Generation) -> list[int]:
    """Returns the token ids of the prompt: those that the tokenizer returned, otherwise those that the client sent."""
    ids = generation.message.prompt_ids if generation.prompt is None else generation.prompt.token_ids
    return unpack_int32(ids).tolist()


def _reply(usage: Usage) -> UsageReply:
    num_prompt, num_output = usage.prompt_tokens, usage.completion_tokens
    details = PromptTokensDetails(usage.cached_tokens, usage.image_tokens or UNSET)
    return UsageReply(num_prompt, num_output, num_prompt + num_output, details)
