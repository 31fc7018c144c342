"""What bodies say of the model's reasoning: whether there is to be any, and how much."""

from typing import Annotated, Any

from msgspec import Meta

from frontend.api.sampling import MAX_INT32
from frontend.parsing.model_format import ModelFormat
from messages.errors import bad_request

NO_EFFORT = "none"
SWITCHES = ("enable_thinking", "thinking")
"""Variables that tell chat templates whether the model is to reason: each knows one of them, or none."""

BUDGET = "thinking_token_budget"
BUDGET_TEXT = "the most tokens of reasoning, a whole number from 0; -1 for any number"
ThinkingBudget = Annotated[Annotated[int, Meta(ge=-1, le=MAX_INT32)] | None, Meta(description=BUDGET_TEXT)]


def template_kwargs(reasoning_effort: str | None, others: dict[str, Any] | None) -> dict[str, Any]:
    """Returns what the chat template gets; `others` win."""
    effort = {} if reasoning_effort is None else {"reasoning_effort": reasoning_effort}
    off = dict.fromkeys(SWITCHES, False) if reasoning_effort == NO_EFFORT else {}
    return {**effort, **off, **(others or {})}


def turns_thinking_off(reasoning_effort: str | None, others: dict[str, Any] | None) -> bool:
    """True if a body asks for no reasoning, by its effort and not against its own variables of the template."""
    return reasoning_effort == NO_EFFORT and not any((others or {}).get(name) for name in SWITCHES)


def checked_budget(budget: int | None, model_format: ModelFormat) -> int | None:
    """Returns the most tokens of reasoning, `None` for any number. Raises `RequestError` (400)."""
    if budget is None or budget < 0:
        return None
    if model_format.thought is None:
        raise bad_request(
            f"{BUDGET} needs a known format of reasoning, and the model's chat template shows none; name one with "
            "--reasoning-parser when the server starts",
            BUDGET,
            "not_supported",
        )
    return budget
