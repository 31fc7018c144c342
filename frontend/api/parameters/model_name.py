"""Checks that the requested model is the served one."""

from frontend.errors import not_found
from messages.config.server import ModelFacts


def check_model(facts: ModelFacts, name: str | None) -> None:
    """Raises `RequestError` (404) if `name` is not served; without a name, the served model is meant."""
    if name is not None and name not in facts.served_names:
        raise not_found(f"The model `{name[:200]}` does not exist", "model_not_found", "model")
