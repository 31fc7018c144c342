"""schemathesis with a real server: no valid or invalid request gets an undocumented reply or a 5xx."""

import warnings
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from tests.ring.client import RingClient

with warnings.catch_warnings():  # in a library that schemathesis imports
    warnings.simplefilter("ignore")
    import schemathesis
    from schemathesis import Case, GenerationMode
    from schemathesis.schemas import APIOperation
    from schemathesis.specs.openapi import checks

pytestmark = [pytest.mark.ring, pytest.mark.timeout(300)]

MAX_EXAMPLES = {True: 5, False: 3}
"""By whether some of them must be served."""
PROBE = "GET /health/generate"
"""May answer 5xx: with an impossible deadline, 503 is correct."""

OPERATIONS = (
    *("POST /generate", "POST /v1/completions", "POST /v1/chat/completions", "POST /tokenize", "POST /detokenize"),
    *("POST /abort_request", "POST /flush_cache", "GET /v1/models", "GET /v1/models/{id}", "GET /version"),
    *("GET /server_info", "GET /health", PROBE, "GET /ping", "GET /load", "GET /metrics"),
    *("GET /requests", "GET /requests/{id}", "POST /v1/responses", "POST /v1/messages"),
    *("GET /v1/responses/{id}", "GET /v1/responses/{id}/input_items", "DELETE /v1/responses/{id}"),
    *("POST /v1/responses/{id}/cancel", "POST /v1/batches", "GET /v1/batches/{id}", "POST /infill"),
    *(
        "POST /v1/embeddings",
        "POST /v2/embed",
        "POST /pooling",
        "POST /classify",
        "POST /v1/rerank",
        "POST /v2/rerank",
        "POST /rerank",
    ),
    *("POST /v1/score", "POST /score", "POST /embed", "POST /similarity", "POST /v1/decisions"),
    *("POST /api/chat", "POST /api/generate", "POST /api/embed", "POST /api/embeddings"),
    *("POST /api/show", "GET /api/tags", "GET /api/ps", "GET /api/version"),
)
ADMINISTRATION = (
    *("GET /admin/processes", "POST /admin/restart/{process}", "POST /admin/snapshot"),
    *("POST /start_profile", "POST /stop_profile"),
    *("POST /cache/explain", "GET /cache/tree", "GET /live", "POST /v1/messages/count_tokens"),
    *("POST /v1/files", "GET /v1/files/{id}", "DELETE /v1/files/{id}", "GET /v1/files/{id}/content"),
    *("GET /v1/files", "GET /v1/batches", "POST /v1/batches/{id}/cancel"),
    *("POST /v1/load_lora_adapter", "POST /v1/unload_lora_adapter"),
    *("POST /v1/responses/input_tokens", "POST /v1/chat/completions/input_tokens"),
)
"""Described, and tested where they are: here they would restart what is being tested, never end, or take or show what
another one does."""

ANSWERED = frozenset(OPERATIONS[:5])
"""Where some of what fits the description must be served."""

NOTHING_TO_BREAK = frozenset(
    label
    for label in OPERATIONS
    if label.startswith(("GET ", "DELETE ", "POST /v1/responses", "POST /v1/messages")) and label != PROBE
)
"""They have no parameters that could be wrong; bad responses and messages are in `bad_inputs.py`."""

CHECKS = [
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
    checks.unsupported_method,
]


@pytest.fixture(scope="module")
def ring(tiny_checkpoint: Path, start_ring: Any) -> RingClient:
    return start_ring(tiny_checkpoint, "--dtype", "float32", "--max-model-len", "64")


@pytest.fixture(scope="module")
def described(ring: RingClient) -> dict[str, APIOperation]:
    """Every operation by its method and path."""
    schema = schemathesis.openapi.from_url(f"{ring.url}/openapi.json")
    found = [result.ok() for result in schema.get_all_operations()]
    return {operation.label: operation for operation in found}


def test_all_is_described(described: dict[str, APIOperation]):
    assert sorted(described) == sorted(
        (*OPERATIONS, *ADMINISTRATION)
    )  # the description itself is left out by schemathesis


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["fits", "breaks"])
@pytest.mark.parametrize("label", OPERATIONS)
def test_every_reply_is_documented_and_no_request_breaks_the_server(
    described: dict[str, APIOperation], label: str, mode: GenerationMode
):
    if label in NOTHING_TO_BREAK and mode is GenerationMode.NEGATIVE:
        pytest.skip("takes nothing that could be wrong, or bad_inputs.py has it")

    statuses: list[int] = []

    @hypothesis.settings(
        max_examples=MAX_EXAMPLES[label in ANSWERED],
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=[hypothesis.Phase.generate],
    )
    @hypothesis.given(case=described[label].as_strategy(generation_mode=mode))
    def ask(case: Case) -> None:
        response = case.call(timeout=60)
        statuses.append(response.status_code)
        is_late = response.status_code == 504 and isinstance(case.body, dict) and case.body.get("timeout_s") is not None
        assert response.status_code < 500 or label == PROBE or is_late, response.text
        case.validate_response(response, checks=CHECKS)

    ask()
    assert mode is GenerationMode.NEGATIVE or label not in ANSWERED or 200 in statuses, statuses


def test_the_server_is_well_afterwards(ring: RingClient):
    ring.wait_until_empty()
    assert ring.health()["status"] == "ready"
    assert ring.generate([5, 6, 7], max_tokens=4).usage["completion_tokens"] == 4
