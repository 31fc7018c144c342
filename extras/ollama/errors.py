"""Errors in the form of Ollama's API."""

import msgspec

from frontend.errors import ErrorForm
from messages.errors import ErrorInfo


class OllamaError(msgspec.Struct, frozen=True):
    error: str


def ollama_error(info: ErrorInfo) -> OllamaError:
    return OllamaError(info.message)


OLLAMA_ERRORS = ErrorForm(OllamaError, ollama_error)
