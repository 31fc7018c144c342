"""Whether the model that a request asks for is the one that is served."""

from messages.config import ModelFacts
from messages.errors import ErrorInfo, RequestError


def check_model(facts: ModelFacts, name: str | None) -> None:
    """Raises `RequestError` (404) for a name that is not served; no name means the one model there is."""
    if name is not None and name not in facts.served_names:
        raise RequestError(
            ErrorInfo(404, f"The model `{name[:200]}` does not exist", "not_found_error", "model", "model_not_found")
        )
