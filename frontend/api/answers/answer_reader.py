"""One choice of a chat as it comes: told apart into content, reasoning and calls of tools, whatever the API."""

from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from frontend.parsing.custom_input import InputReader
from frontend.parsing.deltas import CallArguments, CallBroken, CallStart, Content, Delta, Deltas, Reasoning
from frontend.parsing.parser import ResponseParser
from frontend.parsing.regions import Format
from frontend.requests.generation import Generation
from messages.ring.replies import UserReply


class AnswerRules(NamedTuple):
    """How the choices of a chat are read.

    `schemas`: the schemas of the tools' parameters, by tool name. `begun`: the message that the answer continues.
    `max_calls`: further calls are dropped. `custom`: tools whose arguments are shown as plain text.
    """

    format: Format
    schemas: dict[str, Any]
    new_call_id: Callable[[], str]
    allows_parallel_calls: bool = True
    shows_reasoning: bool = True
    begun: str = ""
    custom: Collection[str] = ()
    max_calls: int | None = None


class AnswerReader:
    """Reads one choice. Its parser begins with the first text: by then the end of the prompt is known.

    A stream shows a call as it is written; otherwise a call is shown only if it is complete.
    """

    def __init__(self, rules: AnswerRules, generation: Generation):
        self.rules = rules
        self._generation = generation
        self._parser: ResponseParser | None = None
        self._deltas = Deltas(is_streamed=generation.is_streamed, custom=rules.custom)
        self._has_shown_broken = False
        self.is_cut_in_call = False
        """The answer was cut off within a call."""
        self._input: InputReader | None = None
        """The reader of the latest call's arguments, if the call is to a custom tool."""

    @property
    def has_calls(self) -> bool:
        """True if the answer makes calls and all of them are complete."""
        return self._deltas.num_calls > 0 and not self._has_shown_broken

    def feed(self, text: str) -> list[Delta]:
        """Returns what is certain with `text` and is to be shown."""
        return self._shown(self._open().feed(text)) if text else []

    def finish(self, final: UserReply) -> list[Delta]:
        """Returns the rest."""
        is_cut = final.finish_reason != "stop" or isinstance(final.stop_reason, str)
        num_broken = self._deltas.num_broken
        deltas = self._shown(self._open().finish(is_cut=is_cut))
        self.is_cut_in_call = is_cut and self._deltas.num_broken > num_broken
        return deltas

    def _open(self) -> ResponseParser:
        if self._parser is None:
            prompt = self._generation.prompt
            rules = self.rules
            prompt_end = "" if prompt is None else prompt.text
            self._parser = ResponseParser(rules.format, rules.schemas, prompt_end, rules.begun, self._deltas)
        return self._parser

    def _shown(self, deltas: list[Delta]) -> list[Delta]:
        shown = [delta for delta in map(self._with_input, deltas) if self._is_shown(delta)]
        self._has_shown_broken = self._has_shown_broken or any(isinstance(delta, CallBroken) for delta in shown)
        return shown

    def _with_input(self, delta: Delta) -> Delta:
        if isinstance(delta, CallStart):
            self._input = InputReader() if delta.name in self.rules.custom else None
        elif isinstance(delta, CallArguments) and self._input is not None:
            return CallArguments(delta.call_index, self._input.feed(delta.text))
        return delta

    def _is_shown(self, delta: Delta) -> bool:
        match delta:
            case Reasoning():
                return self.rules.shows_reasoning
            case CallStart() | CallArguments() | CallBroken():
                is_empty = isinstance(delta, CallArguments) and not delta.text
                max_calls = self.rules.max_calls if self.rules.allows_parallel_calls else 1
                return not is_empty and (max_calls is None or delta.call_index < max_calls)
            case Content():
                return True
