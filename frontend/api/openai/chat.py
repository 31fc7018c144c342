"""`POST /v1/chat/completions`: OpenAI's endpoint for conversations."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta
from starlette.requests import Request

from frontend.api.answers.chat_messages import Messages
from frontend.api.answers.conversation import Conversation, Conversations
from frontend.api.answers.thinking import ThinkingBudget, checked_budget, template_kwargs, turns_thinking_off
from frontend.api.answers.tools import CHOICE_TEXT, TOOLS_TEXT, Choice, ToolUse, check_tools, read_choice
from frontend.api.openai.beam_search import check_choices, whole_reply
from frontend.api.openai.body import OpenAiFields, check_num_choices, check_stream_options, view_fields
from frontend.api.openai.chat_reply import ChatEvents, ChatView
from frontend.api.openai.functions import CHOICE_TEXT as FUNCTION_TEXT
from frontend.api.openai.functions import FUNCTIONS_TEXT, read_function_choice, read_functions
from frontend.api.parameters.generation_body import RequestReader, name_rules, shows_progress, truncation_of
from frontend.api.parameters.sampling import AtLeastOne, NumLogprobs, Switch
from frontend.http.field_names import UnknownFields
from frontend.http.responses import JsonReply
from frontend.http.stream import EventStream, OpenStreams, WholeReply
from frontend.images.parts import LIMITS_TEXT, read_limits
from frontend.requests.trace import RequestTrace, trace_of
from frontend.service import Service
from messages.errors import bad_request
from messages.ring.requests import THINKING_BUDGET

ASSISTANT = "assistant"

REFUSED: dict[str, tuple[Any, ...]] = {
    "modalities": (["text"],),
    "audio": (),
    "web_search_options": (),
    "chat_template": (),
    "documents": ([],),
    "best_of": (1,),
    "suffix": ("",),
}


class ChatBody(OpenAiFields, frozen=True, kw_only=True):
    messages: Messages
    max_completion_tokens: AtLeastOne = None
    logprobs: Switch = None
    top_logprobs: NumLogprobs = None
    echo: Switch = None
    add_generation_prompt: Switch = None
    continue_final_message: Switch = None
    chat_template_kwargs: Annotated[dict[str, Any] | None, Meta(description="an object")] = None
    reasoning_effort: Annotated[str | None, Meta(description="a string, for the chat template")] = None
    thinking_token_budget: ThinkingBudget = None
    include_reasoning: Switch = None
    tools: Annotated[list[Any] | None, Meta(description=TOOLS_TEXT)] = None
    tool_choice: Annotated[str | dict[str, Any] | None, Meta(description=CHOICE_TEXT)] = None
    parallel_tool_calls: Switch = None
    functions: Annotated[list[Any] | None, Meta(description=FUNCTIONS_TEXT)] = None
    function_call: Annotated[str | dict[str, Any] | None, Meta(description=FUNCTION_TEXT)] = None
    mm_processor_kwargs: Annotated[dict[str, Any] | None, Meta(description=LIMITS_TEXT)] = None


class ChatApi:
    def __init__(self, service: Service, streams: OpenStreams, unknown: UnknownFields, conversations: Conversations):
        self._service = service
        self._conversations = conversations
        self._streams = streams
        self._reader = RequestReader(service, ChatBody, name_rules(REFUSED), unknown, (check_stream_options,))

    async def create(self, request: Request) -> EventStream | WholeReply:
        """Opens the choices. Raises `RequestError`; if another process refuses the request, the response raises it."""
        body = await self._reader.read(request)
        trace = trace_of(request.scope)
        answers = await self._conversations.open(
            self._conversation(body),
            trace,
            is_streamed=bool(body.stream),
            timeout_s=body.timeout_s,
            has_parts=bool(body.use_beam_search),
        )
        choices, view = [answer.generation for answer in answers], self._view(body, trace)
        if body.stream:
            events, is_shown = ChatEvents(view, answers), shows_progress(body.stream_options)
            return EventStream(self._service, self._streams, choices, events, shows_progress=is_shown)
        return whole_reply(self._service, body, choices, len(choices), lambda: view.whole(answers))

    async def count(self, request: Request) -> JsonReply:
        """Raises `RequestError`."""
        conversation = self._conversation(await self._reader.read(request))
        return JsonReply(await self._conversations.count(conversation, trace_of(request.scope)))

    def _conversation(self, body: ChatBody) -> Conversation:
        """Raises `RequestError` (400)."""
        if body.top_logprobs and not body.logprobs:
            raise bad_request("top_logprobs need logprobs to be true", "top_logprobs")
        allows_parallel_calls = body.parallel_tool_calls is not False and not body.functions
        tools = self._conversations.choose_tools(*_tools(body), allows_several=allows_parallel_calls)
        max_tokens = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
        params = self._conversations.make_params(msgspec.structs.replace(body, max_tokens=max_tokens))
        num_choices = body.n or 1
        check_num_choices(self._service, num_choices, "n")
        params = msgspec.structs.replace(
            params, num_logprobs=(body.top_logprobs or 0) if body.logprobs else None, echo=bool(body.return_token_ids)
        )
        budget = checked_budget(body.thinking_token_budget, self._conversations.model_format)
        if budget is not None and body.use_beam_search:
            raise bad_request(f"{THINKING_BUDGET} cannot be combined with use_beam_search", THINKING_BUDGET)
        constrained = msgspec.structs.replace(params, grammar=tools.forced or params.grammar or tools.offered)
        check_choices(body, constrained, num_choices, "n", self._service.config.facts)
        return Conversation(
            messages=body.messages,
            params=params,
            tools=tools,
            template_kwargs=template_kwargs(body.reasoning_effort, body.chat_template_kwargs),
            is_thinking_off=turns_thinking_off(body.reasoning_effort, body.chat_template_kwargs),
            thinking_budget=budget,
            add_generation_prompt=body.add_generation_prompt,
            continue_final_message=bool(body.continue_final_message),
            allows_parallel_calls=allows_parallel_calls,
            shows_reasoning=body.include_reasoning is not False,
            num_choices=num_choices,
            add_special_tokens=bool(body.add_special_tokens),
            truncation=truncation_of(body, params, self._conversations.context_tokens),
            image_limits=read_limits(body.mm_processor_kwargs),
        )

    def _view(self, body: ChatBody, trace: RequestTrace) -> ChatView:
        last = body.messages[-1]
        prompts_answer = (
            not body.continue_final_message if body.add_generation_prompt is None else body.add_generation_prompt
        )
        role = ASSISTANT if prompts_answer else last.role
        return ChatView(
            **view_fields(body, "chatcmpl", trace, self._reader.model_name(body)),
            role=role,
            echoed=last.text if body.echo and last.role == role else "",
            has_logprobs=bool(body.logprobs),
            has_functions=bool(body.functions),
        )


def _tools(body: ChatBody) -> tuple[ToolUse, Choice]:
    """Raises `RequestError` (400)."""
    choice = read_function_choice(body.function_call, has_functions=bool(body.functions))
    if not body.functions:
        return check_tools(body.tools), read_choice(body.tool_choice)
    for name in ("tools", "tool_choice"):
        if getattr(body, name):
            raise bad_request(f"{name} cannot be combined with functions: give one of them", name)
    return read_functions(body.functions), choice
