"""Whether the model that a request asks for is the one that is served."""

from frontend.errors import not_found
from messages.config.server import ModelFacts


def check_model(facts: ModelFacts, name: str | None) -> None:
    """Raises `RequestError` (404) for a name that is not served; no name means the one model there is."""
    if name is not None and name not in facts.served_names:
        raise not_found(f"The model `{name[:200]}` does not exist", "model_not_found", "model")
