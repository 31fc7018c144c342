"""`POST /v1/embeddings`, `/pooling`, `/classify`: one result for each input."""

import sys
from array import array
from base64 import b64encode
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, cast

import msgspec
from msgspec import Meta
from starlette.requests import Request

from extras.embeddings.heads import activate, class_activation
from extras.embeddings.pooled_requests import PooledCalls, PooledFields, ResultList, values_of, vector_of
from extras.embeddings.prompts import InputType, PromptName, find_prompt
from frontend.api.answers.chat_messages import MESSAGES_TEXT, Messages, make_chat_prompt
from frontend.api.parameters.sampling import TOKEN_IDS_TEXT, AtLeastOne, NonEmpty, Switch, TokenId, TokenIds
from frontend.http.stream import WholeReply
from frontend.requests.generation import Generation
from frontend.requests.prompt_request import Prompt
from frontend.requests.trace import trace_of
from messages.errors import bad_request
from messages.ring.requests import Pooling

Several = Annotated[list[NonEmpty | TokenId | TokenIds], Meta(min_length=1)]
INPUT_TEXT = f"a string, a list of strings, {TOKEN_IDS_TEXT} or a list of such lists, none of them empty"
Task = Literal["embed", "token_embed", "classify"]


def base64_of(values: "array[float]") -> str:
    if sys.byteorder == "big":
        values.byteswap()
    return b64encode(values).decode()


Kind = Literal["float", "base64"]
FORMS: dict[Kind, Callable[["array[float]"], list[float] | str]] = {
    "float": lambda values: values.tolist(),
    "base64": base64_of,
}
"""What clients get of a vector."""


class InputFields(PooledFields, frozen=True, kw_only=True):
    """`messages` are rendered by the model's chat template, without a generation prompt unless it is requested."""

    input: Annotated[NonEmpty | Several | None, Meta(description=INPUT_TEXT)] = None
    messages: Annotated[Messages | None, Meta(description=MESSAGES_TEXT)] = None
    add_generation_prompt: Switch = None
    chat_template_kwargs: Annotated[dict[str, Any] | None, Meta(description="an object")] = None
    prompt_name: PromptName = None
    input_type: InputType = None


class EmbeddingBody(InputFields, frozen=True, kw_only=True):
    encoding_format: Annotated[Kind | None, Meta(description='"float" or "base64"')] = None
    dimensions: AtLeastOne = None
    normalize: Switch = None


class PoolingBody(EmbeddingBody, frozen=True, kw_only=True):
    task: Annotated[Task | None, Meta(description='"embed", "token_embed" or "classify"')] = None


class ClassifyBody(InputFields, frozen=True, kw_only=True):
    activation: Switch = None


class EmbeddingData(msgspec.Struct, frozen=True):
    """`embedding` is a list of numbers or, in base64, their little-endian float32 bytes."""

    index: int
    embedding: list[float] | str
    object: Literal["embedding"] = "embedding"


class PoolingData(msgspec.Struct, frozen=True):
    """`data` is a vector or, for `token_embed`, a list of vectors; in base64, all their numbers."""

    index: int
    data: list[float | list[float]] | str
    object: Literal["pooling"] = "pooling"


class ClassData(msgspec.Struct, frozen=True):
    """The probability of each label, and the name of the label with the highest one."""

    index: int
    label: str
    probs: list[float]
    num_classes: int


class VectorApi:
    def __init__(self, calls: PooledCalls):
        self._calls = calls
        self._embeddings = calls.reader(EmbeddingBody)
        self._poolings = calls.reader(PoolingBody)
        self._classifications = calls.reader(ClassifyBody, {"use_activation": "activation"})

    async def embed(self, request: Request) -> WholeReply:
        """Raises `RequestError`."""
        body = await self._embeddings.read(request)
        pooling, form = embedding(body), FORMS[body.encoding_format or "float"]
        return self._reply(request, body, pooling, lambda index, row: EmbeddingData(index, form(vector_of(row))))

    async def pool(self, request: Request) -> WholeReply:
        """Raises `RequestError`."""
        body = await self._poolings.read(request)
        task = body.task or ("classify" if self._calls.pooling.kind == "classify" else "embed")
        pooling = Pooling("classify") if task == "classify" else embedding(body, task)
        return self._reply(request, body, pooling, lambda index, row: PoolingData(index, _pooled_data(body, task, row)))

    async def classify(self, request: Request) -> WholeReply:
        """Raises `RequestError`."""
        body = await self._classifications.read(request)
        facts = self._calls.pooling
        activation = "identity" if body.activation is False else class_activation(facts)

        def data_of(index: int, row: Generation) -> ClassData:
            probs = activate(activation, values_of(row))
            best = max(range(len(probs)), key=probs.__getitem__)
            return ClassData(index, facts.labels[best], probs, len(probs))

        return self._reply(request, body, Pooling("classify"), data_of)

    def _reply(
        self, request: Request, body: InputFields, pooling: Pooling, data_of: Callable[[int, Generation], Any]
    ) -> WholeReply:
        trace = trace_of(request.scope)
        requests = [self._calls.request(body, prompt, pooling) for prompt in self._prompts(body)]

        def content(rows: Sequence[Generation]) -> ResultList[Any]:
            data = [data_of(index, row) for index, row in enumerate(rows)]
            return self._calls.result_list("pool", trace, body, rows, data)

        return self._calls.reply(body, trace, requests, content, "input")

    def _prompts(self, body: InputFields) -> list[Prompt]:
        """Returns the inputs, texts with the prompt that the body chooses before them. Raises `RequestError` (400)."""
        if (body.input is None) == (body.messages is None):
            raise bad_request("give either input or messages", "input")
        if body.messages is not None:
            chat = make_chat_prompt(
                body.messages,
                add_generation_prompt=bool(body.add_generation_prompt),
                continue_final_message=False,
                template_kwargs=body.chat_template_kwargs,
            )
            return [chat]
        before = find_prompt(self._calls.pooling, body.prompt_name, body.input_type)
        return read_inputs(body.input or "", before, "input")


def read_inputs(provided: str | list[str | int | list[int]], before: str, param: str) -> list[Prompt]:
    """Returns the inputs, texts with the prompt `before`. Raises `RequestError` (400) for a list that mixes types."""
    if isinstance(provided, str):
        return [before + provided]
    kinds = {type(entry) for entry in provided}
    if len(kinds) > 1:
        raise bad_request(f"{param} must be {INPUT_TEXT}, got a list that mixes them", param)
    inputs = cast("list[Any]", provided)
    if kinds == {int}:
        return [inputs]
    return [before + entry for entry in inputs] if kinds == {str} else inputs


def embedding(body: EmbeddingBody, kind: Task = "embed") -> Pooling:
    return Pooling(kind, dimensions=body.dimensions or 0, normalizes=body.normalize)


def _pooled_data(body: PoolingBody, task: Task, row: Generation) -> list[Any] | str:
    values = vector_of(row)
    if task != "token_embed" or body.encoding_format == "base64":
        return FORMS[body.encoding_format or "float"](values)
    assert row.pooled is not None
    size = len(values) // row.pooled.num_rows
    return [values[start : start + size].tolist() for start in range(0, len(values), size)]
