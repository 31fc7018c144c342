"""The fields of a body that control reasoning: whether the model reasons, and for how many tokens."""

from typing import Annotated, Any

from msgspec import Meta

from frontend.api.parameters.sampling import MAX_INT32
from frontend.parsing.model_format import ModelFormat
from messages.errors import bad_request
from messages.ring.requests import THINKING_BUDGET, THINKING_SWITCHES

NO_EFFORT = "none"
BUDGET_TEXT = "the maximum number of reasoning tokens, a whole number from 0; -1 for no limit"
ThinkingBudget = Annotated[Annotated[int, Meta(ge=-1, le=MAX_INT32)] | None, Meta(description=BUDGET_TEXT)]


def template_kwargs(reasoning_effort: str | None, others: dict[str, Any] | None) -> dict[str, Any]:
    """Returns the variables for the chat template; `others` take precedence."""
    effort = {} if reasoning_effort is None else {"reasoning_effort": reasoning_effort}
    off = dict.fromkeys(THINKING_SWITCHES, False) if reasoning_effort == NO_EFFORT else {}
    return {**effort, **off, **(others or {})}


def turns_thinking_off(reasoning_effort: str | None, others: dict[str, Any] | None) -> bool:
    """True if the effort disables reasoning and no template variable of the body enables it."""
    return reasoning_effort == NO_EFFORT and not any((others or {}).get(name) for name in THINKING_SWITCHES)


def checked_budget(budget: int | None, model_format: ModelFormat) -> int | None:
    """Returns the maximum number of reasoning tokens, `None` for no limit. Raises `RequestError` (400)."""
    if budget is None or budget < 0:
        return None
    if model_format.thought is None:
        raise bad_request(
            f"{THINKING_BUDGET} needs a known reasoning format, and the model's chat template shows none; "
            "name one with --reasoning-parser when the server starts",
            THINKING_BUDGET,
            "not_supported",
        )
    return budget
