"""The LoRA adapters that clients name as their model, and the namespaces of their KV cache."""

from frontend.errors import no_such_model
from messages.config.server import ModelFacts
from messages.ring.adapters import Adapter
from runtime.adapter_table import read_table

SEPARATOR = "\0"


def find_adapter(facts: ModelFacts, name: str | None) -> Adapter | None:
    """Returns the adapter that `name` means, `None` for the model itself, which no name also means.

    Raises `RequestError` (404) for a name that is not served.
    """
    if name is None or name in facts.served_names:
        return None
    adapter = read_table(facts.adapter_table).get(name)
    if adapter is None:
        raise no_such_model(name)
    return adapter


def salt_for(adapter: Adapter | None, client_salt: str) -> str:
    """Returns the salt with which prompts are cached: no adapter has the salts of another one, or of the model.

    The model's are those of its clients, with a separator before one that contains any.
    """
    if adapter is not None:
        return f"{adapter.digest}{SEPARATOR}{client_salt}"
    return f"{SEPARATOR}{client_salt}" if SEPARATOR in client_salt else client_salt
