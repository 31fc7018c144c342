"""A prompt and the parameters of its choices, as an endpoint submits them."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from frontend.errors import no_such_model
from frontend.requests.client import Client
from messages.columns import pack_int32
from messages.config.server import ModelFacts
from messages.errors import bad_request
from messages.ring.images import ImageInput
from messages.ring.infill import Infill
from messages.ring.requests import ChatPrompt, SamplingParams, Sibling, Stamps, TokenizeMsg, Truncation

Prompt = str | list[int] | ChatPrompt
"""Text, token ids or a conversation."""


class PromptRequest(NamedTuple):
    """`num_choices` requests for one prompt. Their seeds count up from the seed of `params`.

    `text_pair` is a second text next to a text.
    """

    prompt: Prompt
    params: SamplingParams
    num_choices: int = 1
    add_special_tokens: bool = True
    truncation: Truncation | None = None
    text_pair: str | None = None
    infill: Infill | None = None
    """With a prompt of text only."""
    images: tuple[ImageInput, ...] = ()

    def messages(self, received_ns: int) -> Iterator[TokenizeMsg]:
        """Yields one message per choice, without a uid."""
        prompt = self.prompt
        first = TokenizeMsg(
            uid=0,
            attempt=0,
            prompt_text=prompt if isinstance(prompt, str) else None,
            prompt_ids=pack_int32(prompt) if isinstance(prompt, list) else b"",
            sampling_params=self.params,
            stamps=Stamps(received_ns=received_ns),
            chat=prompt if isinstance(prompt, ChatPrompt) else None,
            add_special_tokens=self.add_special_tokens,
            truncation=self.truncation,
            text_pair=self.text_pair,
            infill=self.infill,
            images=self.images,
        )
        yield first
        for index in range(1, self.num_choices):
            params = msgspec.structs.replace(self.params, seed=nth_seed(self.params.seed, index))
            yield msgspec.structs.replace(first, sampling_params=params)


def check_generates(requests: Sequence[PromptRequest], facts: ModelFacts) -> None:
    """Raises `RequestError` (400) for a request of text to a model that generates none."""
    known = facts.pooling
    if known is not None and not known.generates and any(request.params.pooling is None for request in requests):
        serves = "classes or scores" if known.kind == "classify" else "embeddings"
        raise bad_request(f"this model generates no text, it gives {serves}", "model", "not_supported")


def check_may_use(client: Client, requests: Sequence[PromptRequest], facts: ModelFacts) -> None:
    """Raises `RequestError` (404) for a model or an adapter that is not for the client's key."""
    for request in requests if client.models else ():
        adapter = request.params.adapter
        names = facts.served_names if adapter is None else (adapter.name,)
        if not client.may_use(names):
            raise no_such_model(names[0])


def join_choices(messages: Sequence[TokenizeMsg]) -> TokenizeMsg:
    """Returns one message for the choices of a prompt."""
    first, *others = messages
    siblings = tuple([Sibling(other.uid, other.sampling_params.seed, other.engine) for other in others])
    return msgspec.structs.replace(first, siblings=siblings) if siblings else first


def nth_seed(seed: int, index: int) -> int:
    """Returns the seed of choice `index` of a request with `seed`: their sum, in 64 bits."""
    return (seed + index + 2**63) % 2**64 - 2**63
