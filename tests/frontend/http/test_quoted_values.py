"""No error shows more than 60 characters of what a client wrote, wherever in a request that is."""

import copy
import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import httpx
import pytest

from messages.config.server import SchedulingConfig
from messages.errors import MAX_QUOTED_CHARS, cut, quoted
from tests.frontend.frontend_run import FrontendRun, make_config

LONG = "y" * 3000
TOO_LONG = "y" * (MAX_QUOTED_CHARS + 1)
PATIENCE_S = (0.15, 0.5, 2.0)
"""Other processes do not answer here. On a busy machine those that were not refused yet are sent again."""

MIN_REFUSED = 250

OTHERS: tuple[Any, ...] = ([LONG], {LONG: 1}, {"type": LONG, "role": LONG, "name": LONG})


def places(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yields the path to each value in a body."""
    if path:
        yield path
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in items:
        yield from places(value, (*path, key))


def variants(body: Any, names: list[str]) -> Iterator[Any]:
    """Yields the body with each of its values, and each other field, replaced by something long of two kinds."""
    for number, path in enumerate([*places(body), *((name,) for name in names), (LONG,)]):
        for value in (LONG, OTHERS[number % len(OTHERS)]):
            changed = copy.deepcopy(body)
            node = changed
            for key in path[:-1]:
                node = node[key]
            node[path[-1]] = value
            yield changed
        if isinstance(path[-1], str):
            yield {**body, LONG: {path[-1]: LONG}}


def bodies(document: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for path, operations in document["paths"].items():
        content = operations.get("post", {}).get("requestBody", {}).get("content", {}).get("application/json", {})
        for example in list(content.get("examples", {}).values())[:1]:
            reference = content["schema"].get("$ref", "").rsplit("/", 1)[-1]
            fields = document["components"]["schemas"].get(reference, {}).get("properties", {})
            for body in variants(example["value"], list(fields)):
                yield path, body


def check(reply: httpx.Response | None, what: str, faults: list[str]) -> None:
    if reply is not None and reply.status_code >= 400 and TOO_LONG in reply.text:
        faults.append(f"{what}: {reply.text[:200]}")


@pytest.fixture(scope="module")
def busy() -> Iterator[FrontendRun]:
    """A frontend with room for all requests that it takes, which are never answered."""
    with FrontendRun(make_config(scheduling=SchedulingConfig(max_queued_requests=100_000))) as run:
        yield run


def test_no_error_shows_much_of_a_body(busy: FrontendRun):
    document = busy.client.get("/openapi.json").json()
    faults: list[str] = []

    def send(case: tuple[str, Any], patience_s: float) -> int:
        """Returns the status of the reply; 0 if none came."""
        path, body = case
        try:
            reply = httpx.post(busy.url + re.sub(r"{\w+}", "m", path), json=body, timeout=patience_s)
        except httpx.TimeoutException:
            return 0
        check(reply, f"{path} {re.sub('y{9,}', 'Y', json.dumps(body))[:300]}", faults)
        return reply.status_code

    cases, refused = list(bodies(document)), 0
    for patience_s in PATIENCE_S:
        with ThreadPoolExecutor(24) as pool:
            statuses = list(pool.map(partial(send, patience_s=patience_s), cases))
        refused += sum(status >= 400 for status in statuses)
        cases = [case for case, status in zip(cases, statuses, strict=True) if not status]
        if refused > MIN_REFUSED:
            break
    assert refused > MIN_REFUSED
    assert not faults, "\n".join(faults)


def test_no_error_shows_much_of_a_path_a_query_or_a_header(busy: FrontendRun):
    document = busy.client.get("/openapi.json").json()
    faults: list[str] = []
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            names = [each["name"] for each in operation.get("parameters", ()) if each["in"] == "query"]
            for query in (dict.fromkeys(names, LONG), {LONG: LONG}, {}):
                url = re.sub(r"{\w+}", LONG, path)
                if method == "get" and (query or "{" in path) and "/live" not in path:
                    check(busy.client.get(url, params=query), f"{method} {path} {list(query)[:3]}", faults)
    for name in ("Content-Type", "Content-Encoding", "Host", "Origin", "Expect", "Authorization"):
        headers = {"Content-Type": "application/json", name: LONG}
        check(busy.client.post("/generate", content=b"{}", headers=headers), name, faults)
    check(busy.client.get(f"/{LONG}"), "path", faults)
    check(busy.client.request(LONG, "/generate"), "method", faults)
    assert not faults, "\n".join(faults)


def test_a_quoted_value_is_short_whatever_it_is():
    for value in (LONG, LONG.encode(), [LONG] * 1000, {LONG: LONG}, 10**2000, {"a": [[[[LONG]]]]}):
        assert len(quoted(value)) < 80
    assert quoted("it's") == '"it\'s"'
    assert (quoted("short"), cut("short"), quoted(5), quoted([1])) == ("'short'", "short", "5", "[1]")
