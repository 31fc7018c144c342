"""Ollama's API in a frontend: its entries in the route table."""

from functools import partial
from typing import Any

from extras.ollama.body import ModelBody, OllamaChat, OllamaPrompt
from extras.ollama.embed import EmbedApi, EmbeddingReply, EmbedReply, OllamaEmbed, OllamaEmbeddings
from extras.ollama.endpoints import AnswerApi, Reader
from extras.ollama.errors import OLLAMA_ERRORS
from extras.ollama.models import LocalModels, ModelsApi, Shown, refuse, version
from extras.ollama.reply import ChatLine, PromptLine
from frontend.api.answers.conversation import Conversations
from frontend.api.operate.info import VersionReply
from frontend.extras import FrontendContext, FrontendPart
from frontend.http.endpoint import Endpoint

MODEL = {"model": "m"}
BRIEF: dict[str, Any] = {"model": "m", "options": {"num_predict": 8}, "stream": False}
USER = {"role": "user", "content": "How far is the moon?"}

UNSUPPORTED = (("pull", "POST"), ("create", "POST"), ("push", "POST"), ("copy", "POST"), ("delete", "DELETE"))

_OLLAMA = partial(Endpoint, tag="Ollama", error_form=OLLAMA_ERRORS)
_MODEL = partial(_OLLAMA, errors=(404,))


class OllamaPart(FrontendPart):
    def __init__(self, context: FrontendContext):
        service, config = context.service, context.service.config
        reader, conversations = Reader(service, context.unknown), Conversations(service, context.model_format)
        answers = AnswerApi(service, context.streams, reader, conversations)
        self.endpoints = routes(answers, EmbedApi(service, reader), ModelsApi(config, reader, context.model_format))


def make_part(context: FrontendContext) -> OllamaPart:
    return OllamaPart(context)


def routes(answers: AnswerApi, vectors: EmbedApi, models: ModelsApi) -> list[Endpoint]:
    """Returns the endpoints of Ollama's API."""
    return [
        _MODEL(
            "/api/chat",
            answers.chat,
            "Continue a conversation",
            ChatLine,
            body=OllamaChat,
            description="Lines of JSON unless `stream` is false.",
            examples={"one": {**BRIEF, "messages": [USER]}},
        ),
        _MODEL(
            "/api/generate",
            answers.generate,
            "Answer a prompt",
            PromptLine,
            body=OllamaPrompt,
            description="Lines of JSON unless `stream` is false.",
            examples={"one": {**BRIEF, "prompt": "Once upon a time"}},
        ),
        _MODEL(
            "/api/embed",
            vectors.embed,
            "Embeddings of texts",
            EmbedReply,
            body=OllamaEmbed,
            examples={"two": {"model": "m", "input": ["How far is the moon?", "384,400 km"]}},
        ),
        _MODEL("/api/embeddings", vectors.embeddings, "The embedding of a text", EmbeddingReply, body=OllamaEmbeddings),
        _MODEL("/api/show", models.show, "What the model is and can do", Shown, body=ModelBody),
        _OLLAMA("/api/tags", models.tags, "The served models", LocalModels),
        _OLLAMA("/api/ps", models.running, "The models in memory", LocalModels),
        *plain_routes(),
    ]


def plain_routes() -> list[Endpoint]:
    """Returns the endpoints that need no model."""
    refused = "Not supported: models come from the command that starts the server"
    return [
        _OLLAMA("/api/version", version, "The version of the server", VersionReply, access="public"),
        *(
            _OLLAMA(f"/api/{name}", refuse, refused, method=method, is_described=False)  # pyright: ignore[reportArgumentType]
            for name, method in UNSUPPORTED
        ),
    ]
