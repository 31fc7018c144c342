"""How well texts of a pair fit each other, by what the model is.

A model of embeddings compares two vectors, a cross-encoder has one logit for the pair, and any other model answers the
question whether the second text fits the first, with yes or no. Qwen3-Reranker is one of the last kind.
"""

from collections.abc import Callable, Sequence
from operator import mul
from typing import NamedTuple

from extras.embeddings.heads import activate, class_activation, sigmoid
from extras.embeddings.pooled_requests import PooledCalls, PooledFields, values_of
from extras.embeddings.prompts import find_prompt
from frontend.api.answers.chat_messages import ChatMessage
from frontend.api.answers.conversation import Conversation, Conversations
from frontend.requests.generation import Generation
from frontend.requests.prompt_request import PromptRequest
from messages.columns import pack_int32
from messages.config.server import Config
from messages.errors import bad_request
from messages.ring.requests import THINKING_SWITCHES, ChatPrompt, Pooling, SamplingParams
from runtime.chat_files import DEFAULT, read_chat_files

JUDGE = (
    "Judge whether the Document meets the requirements based on the Query and the Instruct provided. "
    'Note that the answer can only be "yes" or "no".'
)
INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
"""The prompt of Qwen3-Reranker, for models whose chat template has none for pairs."""

PAIR = ("query", "document")
LABELS = ("yes", "no")
QUOTES = ("'", '"')

Pair = tuple[str, str]


class Scoring(NamedTuple):
    """The requests for the scores of pairs, and what makes one score for each pair of their results.

    `places`: the part of the body that each request comes from.
    """

    requests: list[PromptRequest]
    places: list[str]
    scores: Callable[[Sequence[Generation]], list[float]]


class ScoreOptions(NamedTuple):
    """`types` or `prompt_name` choose the prompts of both texts. With `is_raw`, scores are not made probabilities."""

    types: tuple[str | None, str | None] = ("query", "document")
    names: tuple[str, str] = ("query", "documents")
    """The fields of the body with the first and the second texts."""
    instruction: str | None = None
    is_raw: bool = False
    prompt_name: str | None = None


class Scorer:
    def __init__(self, calls: PooledCalls, conversations: Conversations, config: Config):
        self._calls = calls
        self._conversations = conversations
        template = read_chat_files(config.facts.tokenizer_dir, config.model.chat_template).templates.get(DEFAULT, "")
        self._reads_pairs = reads_pairs(template)

    def score(self, body: PooledFields, pairs: Sequence[Pair], options: ScoreOptions) -> Scoring:
        """Raises `RequestError` (400)."""
        kind = self._calls.pooling.kind
        has_prompt = kind is None or self._reads_pairs
        if options.instruction is not None and (kind == "embed" or not has_prompt):
            raise bad_request("this model takes no instruction", "instruction", "not_supported")
        if kind == "embed":
            return self.compare(body, pairs, options)
        if has_prompt and body.truncate_prompt_tokens is not None:
            raise bad_request(
                "truncate_prompt_tokens is not supported with this model, whose prompt follows the document",
                "truncate_prompt_tokens",
                "not_supported",
            )
        return self._by_prompts(body, pairs, options)

    def compare(self, body: PooledFields, pairs: Sequence[Pair], options: ScoreOptions) -> Scoring:
        """Scores pairs by the cosine of their vectors. Each text is computed once. Raises `RequestError` (400)."""
        pooling = Pooling("embed", normalizes=True)
        before = [find_prompt(self._calls.pooling, options.prompt_name, each) for each in options.types]
        texts = {before[i] + pair[i]: f"{options.names[i]}[{n}]" for i in (1, 0) for n, pair in enumerate(pairs)}
        number = {text: index for index, text in enumerate(texts)}
        of_pairs = [[number[before[i] + pair[i]] for i in (0, 1)] for pair in pairs]
        requests = [self._calls.request(body, text, pooling) for text in texts]

        def scores(rows: Sequence[Generation]) -> list[float]:
            vectors = [values_of(row) for row in rows]
            cosines = [sum(map(mul, vectors[first], vectors[second])) for first, second in of_pairs]
            return [max(-1.0, min(cosine, 1.0)) for cosine in cosines]  # vectors are normalized to float32 only

        return Scoring(requests, list(texts.values()), scores)

    def _by_prompts(self, body: PooledFields, pairs: Sequence[Pair], options: ScoreOptions) -> Scoring:
        """Scores each pair by the head's logit, or by the logprobs of yes and no."""
        facts = self._calls.pooling
        pooling = Pooling("classify") if facts.kind == "classify" else self._yes_or_no()
        if facts.kind == "classify" and len(facts.labels) != 1:
            raise bad_request(
                f"scores need a model with one label, this one has {len(facts.labels)}: use /classify", "model"
            )
        requests = [self._request(body, pair, pooling, options.instruction) for pair in pairs]
        activation = "identity" if options.is_raw else class_activation(facts)

        def score_of(row: Generation) -> float:
            values = values_of(row)
            if facts.kind == "classify":
                return activate(activation, values)[0]
            odds = values[0] - values[1]
            return odds if options.is_raw else sigmoid(odds)

        def scores(rows: Sequence[Generation]) -> list[float]:
            return [score_of(row) for row in rows]

        return Scoring(requests, [f"{options.names[1]}[{index}]" for index in range(len(pairs))], scores)

    def _yes_or_no(self) -> Pooling:
        ids = self._calls.pooling.score_token_ids
        if len(ids) == 1:
            raise bad_request(
                "this reranker scores by the logit of one token, which is not supported: it needs two", "model"
            )
        return Pooling("labels", label_ids=pack_int32(ids), label_texts=() if ids else LABELS)

    def _request(self, body: PooledFields, pair: Pair, pooling: Pooling, instruction: str | None) -> PromptRequest:
        query, document = pair
        if self._reads_pairs:
            facts = self._calls.pooling
            instruction = instruction or facts.prompts.get(facts.default_prompt or "")
            system = [ChatMessage(role="system", content=instruction)] if instruction else []
            messages = [ChatMessage(role=role, content=text) for role, text in zip(PAIR, pair, strict=True)]
            return self._calls.request(body, answer_prompt(self._conversations, [*system, *messages]), pooling)
        if pooling.kind == "classify":
            return self._calls.request(body, query, pooling, document)
        text = f"<Instruct>: {instruction or INSTRUCTION}\n<Query>: {query}\n<Document>: {document}"
        messages = [ChatMessage(role="system", content=JUDGE), ChatMessage(role="user", content=text)]
        return self._calls.request(body, answer_prompt(self._conversations, messages), pooling)


def reads_pairs(template: str) -> bool:
    """True if a chat template renders a message of the query and one of the document, as those of rerankers do."""
    return all(any(f"{quote}{role}{quote}" in template for quote in QUOTES) for role in PAIR)


def answer_prompt(conversations: Conversations, messages: Sequence[ChatMessage]) -> ChatPrompt:
    """Returns a chat that ends where the model's answer begins: it does not reason. Raises `RequestError` (400)."""
    return conversations.prompt(
        Conversation(
            messages=messages,
            params=SamplingParams(max_tokens=0),
            template_kwargs=dict.fromkeys(THINKING_SWITCHES, False),
            is_thinking_off=True,
        )
    )
