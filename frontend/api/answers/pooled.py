"""Pooled prompts: how endpoints submit many at once, and wait for the numbers of all."""

import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from frontend.http.stream import WholeReply
from frontend.requests.costs import check_num_ids
from frontend.requests.generation import Generation
from frontend.requests.prompt_request import PromptRequest
from frontend.requests.trace import RequestTrace
from frontend.service import Service
from messages.config.pooling import PoolingFacts
from messages.config.server import ModelFacts
from messages.errors import ErrorInfo, RequestError, bad_request
from messages.ring.requests import Pooling

UNFINISHED = {
    "timeout": ErrorInfo(504, "the time for this request was over before it was computed", "timeout", code="timeout"),
    "abort": ErrorInfo(503, "the request was aborted", "service_unavailable", code="aborted"),
}
"""By finish reason: errors of requests that end without their numbers."""

log = logging.getLogger("sluice.frontend")


def check_num_texts(service: Service, num_texts: int, param: str | Sequence[str]) -> None:
    """Raises `RequestError` (400) for more texts than may be open; `param` as in `open_pooled`."""
    limit = service.admission.limit
    if num_texts > limit:
        raise bad_request(
            f"{num_texts} texts are requested together, and at most {limit} may be open "
            "(--max-num-seqs and --max-queued-requests)",
            (param if isinstance(param, str) else param[-1]).partition("[")[0],
        )


def open_pooled(
    service: Service,
    requests: Sequence[PromptRequest],
    trace: RequestTrace,
    *,
    timeout_s: float | None = None,
    param: str | Sequence[str] = "input",
) -> list[Generation]:
    """Submits all `requests`, whose parameters have `pooling`, or none; returns their entries.

    `param` is the field of the body with the texts, or the list of their places in it. Raises `RequestError` (400) for
    more texts than may be open, and for a kind of pooling that the model does not have; `UnavailableError`.
    """
    check_num_texts(service, len(requests), param)
    facts = service.config.facts
    for index, request in enumerate(requests):
        try:
            check_num_ids([request], facts.max_model_len)
        except RequestError as error:
            raise RequestError(_name_text(error.info, param, index if len(requests) > 1 else None)) from None
    resolved = [
        request._replace(
            params=msgspec.structs.replace(
                request.params, max_tokens=0, temperature=0.0, pooling=resolve(request.params.pooling, facts)
            )
        )
        for request in requests
    ]
    return service.open_all(resolved, trace, is_streamed=False, timeout_s=timeout_s)


def pooled_reply(
    service: Service, entries: Sequence[Generation], content: Callable[[], Any], param: str | Sequence[str] = "input"
) -> WholeReply:
    """Returns the response that sends the JSON document from `content` once all `entries` have their numbers.

    `content` finds them in `Generation.pooled`. The first error of an entry is the error of the response, which names
    its index in `param`, or its name there; the other entries are then aborted, as all are if the client leaves.
    """

    def check(index: int, entry: Generation) -> None:
        if entry.pooled is None and entry.has_listener:
            error = entry.ended.error or UNFINISHED.get(entry.ended.finish_reason, UNFINISHED["abort"])
            raise RequestError(_name_text(error, param, index if len(entries) > 1 else None))

    return WholeReply(service, entries, content, check)


def resolve(pooling: Pooling | None, facts: ModelFacts) -> Pooling:
    """Returns `pooling` with what depends on the model. Raises `RequestError` (400) if the model cannot compute it."""
    assert pooling is not None, "the request is not pooled"
    known = facts.pooling or PoolingFacts()
    if pooling.kind == "classify" and known.kind != "classify":
        raise bad_request("this model has no classification head, so it gives no classes or scores")
    if pooling.kind in ("embed", "token_embed") and known.kind == "classify":
        raise bad_request("this model gives classes or scores, not embeddings")
    if pooling.kind == "labels" and not known.generates:
        raise bad_request("this model has no language-model head, so it gives no probabilities of tokens")
    if pooling.kind == "embed" and known.kind is None:
        _warn_of_last_token(facts.served_names[0])
    normalizes = pooling.normalizes
    if normalizes is None:
        normalizes = known.normalizes and pooling.kind == "embed"
    size = pooling.dimensions or (known.truncate_dim if pooling.kind == "embed" else 0)
    own = {"dimensions": size, "way": known.pooling, "is_whole": known.is_encoder}
    return msgspec.structs.replace(pooling, normalizes=normalizes, **own)


@functools.cache
def _warn_of_last_token(name: str) -> None:
    log.warning("the files of %s name no pooling: its embeddings are its last token's, normalized", name)


def _name_text(error: ErrorInfo, param: str | Sequence[str], index: int | None) -> ErrorInfo:
    """Returns the error with the field of its text, one of several if it has an index."""
    if index is None:
        return msgspec.structs.replace(error, param=param if isinstance(param, str) else param[0])
    place = f"{param}[{index}]" if isinstance(param, str) else param[index]
    return msgspec.structs.replace(error, message=f"{place}: {error.message}", param=place)
