"""A conversation in the form that all chat APIs share, and the choices that are opened for it."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

import msgspec

from frontend.api.answers.answer_blocks import AnswerBlocks, AnswerRules
from frontend.api.answers.call_ids import fit_ids, next_number
from frontend.api.answers.chat_messages import Chat, ChatMessage, make_chat
from frontend.api.answers.generic_tools import write_tools
from frontend.api.answers.tools import NO_TOOLS, Choice, ToolUse, choose_tools, with_calls
from frontend.api.parameters.sampling import Sampling, SamplingFields
from frontend.http.stream import take_images
from frontend.images.parts import PixelLimits
from frontend.parsing.model_format import ModelFormat
from frontend.requests.prompt_request import PromptRequest
from frontend.requests.trace import RequestTrace
from frontend.service import Service
from messages.columns import num_int32
from messages.errors import bad_request
from messages.ring.requests import ChatPrompt, EncodeMsg, SamplingParams, Truncation


class Conversation(msgspec.Struct, frozen=True, kw_only=True):
    """What a body requests, independent of its API. `params` are those of the first choice."""

    messages: Sequence[ChatMessage]
    params: SamplingParams
    tools: ToolUse = NO_TOOLS
    template_kwargs: dict[str, Any] = {}
    """Variables for the chat template, in addition to the tools."""
    is_thinking_off: bool = False
    """Reasoning is disabled, whether or not the chat template has a switch for it."""
    thinking_budget: int | None = None
    """Maximum number of reasoning tokens."""
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    allows_parallel_calls: bool = True
    max_calls: int | None = None
    shows_reasoning: bool = True
    keeps_logprobs: bool = False
    """Blocks of text keep the log-probabilities of their tokens."""
    num_choices: int = 1
    add_special_tokens: bool = False
    truncation: Truncation | None = None
    image_limits: PixelLimits = PixelLimits()

    def chat(self, model_format: ModelFormat) -> Chat:
        """Raises `RequestError` (400)."""
        tools = {} if model_format.is_generic else self.tools.template_kwargs
        chat = make_chat(
            self.messages,
            add_generation_prompt=self.add_generation_prompt,
            continue_final_message=self.continue_final_message,
            template_kwargs={**self.template_kwargs, **tools},
            adapt=lambda messages: adapt_messages(messages, self.tools, model_format),
        )
        return Chat(chat.prompt, tuple(image._replace(limits=self.image_limits) for image in chat.images))


def adapt_messages(messages: list[ChatMessage], tools: ToolUse, model_format: ModelFormat) -> list[ChatMessage]:
    """Returns valid messages as the model's chat template needs them."""
    if model_format.is_generic:
        return write_tools(messages, tools.listed)
    return fit_ids(messages, model_format.id_form) if model_format.id_form else messages


class InputTokens(msgspec.Struct, frozen=True):
    input_tokens: int
    object: Literal["response.input_tokens"] = "response.input_tokens"


class Conversations:
    """Opens conversations with a model whose answers follow `model_format`."""

    def __init__(self, service: Service, model_format: ModelFormat):
        self._service = service
        self._sampling = Sampling(service.config.facts)
        self.context_tokens = service.config.facts.max_model_len
        self.reads_images = service.config.facts.vision is not None
        self.model_format = model_format

    def make_params(self, fields: SamplingFields) -> SamplingParams:
        """Returns the sampling parameters; by default the output fills the context. Raises `RequestError` (400)."""
        return self._sampling.make_params(fields, max_tokens=self.context_tokens, seed=self._service.next_seed())

    def choose_tools(self, tools: ToolUse, choice: Choice, *, allows_several: bool) -> ToolUse:
        """Returns `tools` as `choice` limits or forces them. Raises `RequestError` (400)."""
        return choose_tools(tools, choice, self.model_format, allows_several=allows_several)

    async def open(
        self,
        conversation: Conversation,
        trace: RequestTrace,
        *,
        is_streamed: bool,
        timeout_s: float | None,
        has_parts: bool = False,
    ) -> list[AnswerBlocks]:
        """Returns the answer of each choice, which may be a refusal by another process. Raises `RequestError`.

        Raises `ClientDisconnect` if the client leaves while its images are fetched.
        """
        rules, chat = self._rules(conversation), self._chat(conversation)
        if has_parts and chat.images:
            raise bad_request("use_beam_search cannot be combined with images", "use_beam_search")
        request = PromptRequest(
            chat.prompt,
            self._adapted(conversation, rules),
            conversation.num_choices,
            add_special_tokens=conversation.add_special_tokens,
            truncation=conversation.truncation,
            images=await take_images(self._service, chat.images, trace),
        )
        choices = self._service.open_all(
            [request], trace, is_streamed=is_streamed, timeout_s=timeout_s, has_parts=has_parts
        )
        return [AnswerBlocks(choice, rules, keeps_logprobs=conversation.keeps_logprobs) for choice in choices]

    async def count(self, conversation: Conversation, trace: RequestTrace) -> InputTokens:
        """Returns the number of tokens in the prompt. Raises `RequestError` and `ClientDisconnect`."""
        chat = self._chat(conversation)
        images = await take_images(self._service, chat.images, trace)
        answer = await self._service.queries.encode(
            EncodeMsg(0, None, chat.prompt, conversation.add_special_tokens, images=images)
        )
        return InputTokens(num_int32(answer.token_ids))

    def prompt(self, conversation: Conversation) -> ChatPrompt:
        """Returns the prompt of a conversation without images. Raises `RequestError` (400)."""
        return self._chat(conversation).prompt

    def _chat(self, conversation: Conversation) -> Chat:
        """Returns the chat, with the format of reasoning if it is needed. Raises `RequestError` (400)."""
        thought = self.model_format.thought
        if thought is not None:
            thought = msgspec.structs.replace(
                thought, is_off=conversation.is_thinking_off, budget=conversation.thinking_budget
            )
        chat = conversation.chat(self.model_format)
        return chat._replace(prompt=msgspec.structs.replace(chat.prompt, thought=thought))

    def _rules(self, conversation: Conversation) -> AnswerRules | None:
        chosen = self.model_format.with_tools if conversation.tools.listed else self.model_format.without_tools
        if chosen is None:
            return None
        number, thought = next_number(conversation.messages), self.model_format.thought
        return AnswerRules(
            chosen,
            conversation.tools.schemas,
            partial(self._new_call_id, number),
            shows_reasoning=conversation.shows_reasoning,
            thought_mark=thought.begin if thought is not None else "",
            begun=conversation.messages[-1].text if conversation.continue_final_message else "",
            custom=conversation.tools.custom,
            max_calls=(conversation.max_calls or math.inf) if conversation.allows_parallel_calls else 1,
        )

    def _new_call_id(self, first_number: int, name: str, call_index: int) -> str:
        return self.model_format.new_call_id(name, first_number + call_index)

    def _adapted(self, conversation: Conversation, rules: AnswerRules | None) -> SamplingParams:
        """Returns the parameters, extended for tools and for parsing the answer. Raises `RequestError` (400).

        A forced call takes precedence over other constraints on the answer.
        """
        params, tools = conversation.params, conversation.tools
        grammar = tools.forced
        if grammar is None and params.grammar is not None:
            allows_several = conversation.allows_parallel_calls
            grammar = with_calls(params.grammar, tools, self.model_format, allows_several=allows_several)
        grammar = grammar or tools.offered
        return msgspec.structs.replace(
            params,
            grammar=grammar,
            skip_special_tokens=params.skip_special_tokens
            and not (rules is not None and rules.format.needs_special_tokens),
        )
