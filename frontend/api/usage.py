"""How many tokens a request took, over all its choices, in the form that OpenAI's clients read."""

from collections.abc import Iterable

import msgspec

from frontend.generation import Generation
from messages.columns import unpack_int32
from messages.replies import Usage, UserReply


class PromptTokensDetails(msgspec.Struct, frozen=True):
    cached_tokens: int


class UsageReply(msgspec.Struct, frozen=True):
    """A prompt counts once, however many choices it has; what was generated for a choice that is not shown counts."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


def usage_of(generations: Iterable[Generation], num_choices: int) -> UsageReply:
    """Returns the usage of choices that have ended, in the order of their prompts, `num_choices` each."""
    prompts: dict[int, tuple[int, int]] = {}
    num_output = 0
    for generation in generations:
        assert generation.final is not None, f"uid {generation.uid} has not ended"
        usage = generation.final.usage
        index = generation.index // num_choices
        num_prompt, num_cached = prompts.get(index, (0, 0))
        prompts[index] = (max(num_prompt, usage.prompt_tokens), max(num_cached, usage.cached_tokens))
        num_output += usage.completion_tokens
    num_prompt = sum(counts[0] for counts in prompts.values())
    num_cached = sum(counts[1] for counts in prompts.values())
    return _reply(Usage(num_prompt, num_cached, num_output))


def usage_so_far(generation: Generation, final: UserReply | None) -> UsageReply:
    """Returns the usage of one choice at its end or, without `final`, at what has been taken of it.

    Before the end it has the prompt's length where that is known, and nothing cached.
    """
    return _reply(Usage(len(prompt_ids_of(generation)), 0, generation.num_taken) if final is None else final.usage)


def prompt_ids_of(generation: Generation) -> list[int]:
    """Returns the ids of the prompt: as the client gave them, or as they were told; none where that was not asked."""
    ids = generation.message.prompt_ids if generation.prompt is None else generation.prompt.token_ids
    return unpack_int32(ids).tolist()


def _reply(usage: Usage) -> UsageReply:
    num_tokens = usage.prompt_tokens + usage.completion_tokens
    details = PromptTokensDetails(usage.cached_tokens)
    return UsageReply(usage.prompt_tokens, usage.completion_tokens, num_tokens, details)
