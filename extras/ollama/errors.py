"""Errors in the form of Ollama's API."""

import msgspec

from frontend.errors import ErrorForm
from messages.errors import ErrorInfo


class OllamaError(msgspec.Struct, frozen=True):
    error: str


def ollama_error(info: ErrorInfo) -> OllamaError:
    """Returns the error, an unknown model's with the words by which Ollama's clients recognize it."""
    message = info.message
    if info.code == "model_not_found":
        message = message.replace("The model `", "model '", 1).replace("` does not exist", "' not found", 1)
    return OllamaError(message)


OLLAMA_ERRORS = ErrorForm(OllamaError, ollama_error)
