"""The prompts of a model's files: texts that are put before inputs, by name or by what the input is."""

from typing import Annotated

from msgspec import Meta

from messages.config.pooling import PoolingFacts
from messages.errors import bad_request, quoted

QUERY = ("query",)
DOCUMENT = ("document", "passage", "corpus")
"""Names of prompts, in the order in which sentence-transformers looks for one."""

KINDS = {
    **dict.fromkeys(("query", "search_query", "retrieval.query"), QUERY),
    **dict.fromkeys(("document", "passage", "search_document", "retrieval.passage"), DOCUMENT),
}
"""Values of `input_type` in the APIs of Cohere, Voyage, NVIDIA and Jina."""

PromptName = Annotated[str | None, Meta(description="a string, the name of one of the model's prompts")]
InputType = Annotated[
    str | None, Meta(description='a string, such as "query" or "document", or the name of one of the model\'s prompts')
]


def find_prompt(facts: PoolingFacts, prompt_name: str | None, input_type: str | None = None) -> str:
    """Returns the text to put before an input, which may be empty. Raises `RequestError` (400) for an unknown name.

    An input type for which the model has no prompt gets the default one, as an input without either does.
    """
    prompts = facts.prompts
    if prompt_name is not None:
        if prompt_name not in prompts:
            names = ", ".join(map(repr, prompts)) or "none"
            raise bad_request(f"the model has no prompt {quoted(prompt_name)}; it has {names}", "prompt_name")
        return prompts[prompt_name]
    names = KINDS.get(input_type or "", (input_type or "",))
    default = prompts.get(facts.default_prompt or "", "")
    return next((prompts[name] for name in names if name in prompts), default)
