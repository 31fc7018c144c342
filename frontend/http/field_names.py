"""How the fields of a body are treated by name: supported, renamed, refused, or ignored with a warning."""

import contextlib
import difflib
import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw

from messages.errors import MAX_QUOTED_CHARS, RequestError, bad_request, cut, quoted

MISSPELLING_CUTOFF = 0.8
"""Similarity (difflib's ratio) from which an unknown name counts as a misspelling."""

NULL = Raw(b"null")

MAX_COMPARED_CHARS = 64
"""A longer name is not a misspelling of a known one, and comparing it would take time."""

WRAPPERS = ("extra_body", "sampling_params")
"""Parameters of client libraries and other servers that contain fields of the body."""

MAX_COMPARED_BYTES = 4096
"""Longer values of two names for one field agree only if they are written alike."""

MAX_LOGGED_NAMES = 256

log = logging.getLogger("sluice.frontend")


class NameRules(NamedTuple):
    """How an endpoint treats fields that its struct does not have.

    `refused`: not supported, except with the listed values, which equal its absence. `ignored`: without effect.
    `renamed`: other servers' names for a field of the struct; `neutral` has their values that equal absence.
    `foreign`: other servers' fields without a counterpart.
    `hoisted`: also read inside `WRAPPERS`, because ignoring them there would change the constraints on the answer.
    """

    refused: Mapping[str, tuple[Any, ...]] = {}
    ignored: Collection[str] = ()
    renamed: Mapping[str, str] = {}
    foreign: Collection[str] = ()
    hoisted: Collection[str] = ()
    neutral: Mapping[str, tuple[Any, ...]] = {}


class UnknownFields:
    """Ignores unknown fields, or refuses them with `is_strict`. Each name is logged once."""

    def __init__(self, *, is_strict: bool = False):
        self.is_strict = is_strict
        self._logged: set[str] = set()

    def ignore(self, name: str, what: str) -> str:
        """Returns the warning for an ignored field. Raises `RequestError` (400) with `is_strict`."""
        if self.is_strict:
            raise unknown_field(name)
        warning = f"the field {quoted(name)} {what} and is ignored"
        shown = cut(name)
        if shown not in self._logged and len(self._logged) < MAX_LOGGED_NAMES:
            self._logged.add(shown)
            log.warning("%s (said once)", warning)
        return warning


class FieldNames:
    """The field names of one kind of body; `served` are those of its struct."""

    def __init__(self, served: Collection[str], rules: NameRules, unknown: UnknownFields):
        self._served = frozenset(served)
        self._rules = rules
        self._renamed = {name: own for name, own in rules.renamed.items() if own in self._served}
        self._known = [*served, *rules.refused]
        self._unknown = unknown

    def hoist(self, fields: Mapping[str, Raw]) -> dict[str, Raw]:
        """Returns the fields inside `WRAPPERS` that count as the body's. Raises `RequestError` (400)."""
        hoisted: dict[str, Raw] = {}
        for wrapper in WRAPPERS:
            if wrapper not in fields or wrapper in self._served or self._unknown.is_strict:
                continue
            with contextlib.suppress(msgspec.DecodeError, RecursionError):
                inner = msgspec.json.decode(fields[wrapper], type=dict[str, Raw])
                found = {name: raw for name, raw in inner.items() if name in self._rules.hoisted and not is_null(raw)}
                for name, raw in found.items():
                    other = hoisted.get(name, fields.get(name, NULL))
                    if not is_null(other) and not agree(raw, other):
                        text = f"{name} is given both inside and outside {wrapper}, with another value: give it once"
                        raise bad_request(text, name)
                hoisted |= found
        return hoisted

    def check(self, fields: Mapping[str, Raw]) -> list[str]:
        """Returns a warning for each ignored field. Raises `RequestError` (400) for refused ones."""
        warnings: list[str] = []
        for name, raw in fields.items():
            if name in self._served or name in self._rules.ignored:
                continue
            if name in self._rules.refused:
                self._refuse(name, raw)
            elif name in self._renamed:
                self._check_renamed(name, fields)
            else:
                warnings.append(self._ignore(name))
        return warnings

    def rename(self, fields: Mapping[str, Raw]) -> dict[str, str]:
        """Returns the other servers' names in `fields`, by our names. A null counts as absent."""
        return {own: name for name, own in self._renamed.items() if self.is_sent(name, fields)}

    def is_sent(self, name: str, fields: Mapping[str, Raw]) -> bool:
        raw = fields.get(name, NULL)
        return not is_null(raw) and not any(_is_same(raw, value) for value in self._rules.neutral.get(name, ()))

    def _refuse(self, name: str, raw: Raw) -> None:
        if not is_null(raw) and not any(_is_same(raw, neutral) for neutral in self._rules.refused[name]):
            raise bad_request(f"{name} is not supported, got {shown(raw)}", name, "not_supported")

    def _check_renamed(self, name: str, fields: Mapping[str, Raw]) -> None:
        own = self._renamed[name]
        if self._unknown.is_strict:
            raise unknown_field(name, own)
        same = [other for other in (own, *self._renamed) if self._renamed.get(other, other) == own]
        provided = [other for other in same if self.is_sent(other, fields)]
        if name in provided and not all(agree(fields[name], fields[other]) for other in provided):
            raise bad_request(
                f"{' and '.join(provided)} mean the same and have different values: give one of them", name
            )

    def _ignore(self, name: str) -> str:
        if name in self._rules.foreign:
            return self._unknown.ignore(name, "of other servers has no effect here")
        meant = find_meant(name, self._known)
        if meant is not None:
            raise unknown_field(name, meant)
        return self._unknown.ignore(name, "is not known here")


def find_meant(name: str, known: Sequence[str]) -> str | None:
    """Returns the known name that `name` seems to misspell."""
    if len(name) > MAX_COMPARED_CHARS:
        return None
    return next(iter(difflib.get_close_matches(name, known, n=1, cutoff=MISSPELLING_CUTOFF)), None)


def unknown_field(name: str, meant: str | None = None) -> RequestError:
    hint = f": did you mean {meant}?" if meant else ""
    return bad_request(f"unknown field {quoted(name)}{hint}", name[:MAX_QUOTED_CHARS])


def shown(raw: Raw) -> str:
    """Returns the beginning of a value as the client wrote it."""
    text = bytes(memoryview(raw)[: MAX_QUOTED_CHARS * 4 + 4]).decode(errors="replace")
    return cut(text)


def is_null(raw: Raw) -> bool:
    return bytes(memoryview(raw)[:5]) == b"null"


def agree(one: Raw, other: Raw) -> bool:
    """True if two values are the same, however their numbers and spaces are written."""
    if bytes(one) == bytes(other):
        return True
    if max(memoryview(one).nbytes, memoryview(other).nbytes) > MAX_COMPARED_BYTES:
        return False
    with contextlib.suppress(msgspec.DecodeError, RecursionError):
        return _is_same(one, msgspec.json.decode(other))
    return False


def _is_same(raw: Raw, neutral: Any) -> bool:
    if memoryview(raw).nbytes > MAX_COMPARED_BYTES:
        return False
    try:
        value = msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError):  # it contains a number too large for a float
        return False
    return value == neutral and isinstance(value, bool) == isinstance(neutral, bool)
