"""Every integer that a client can send is bounded to 64 bits, in every body of every API."""

from typing import Any

import pytest

from tests.frontend.frontend_run import FrontendRun

LEAST, MOST = -(2**63), 2**63 - 1


def integers(node: Any, schemas: dict[str, Any], seen: set[str], path: str = "") -> list[tuple[str, dict[str, Any]]]:
    """Returns the integer types below a schema, each once, with the fields that lead there."""
    if isinstance(node, list):
        return [found for each in node for found in integers(each, schemas, seen, path)]
    if not isinstance(node, dict):
        return []
    name = node.get("$ref", "").removeprefix("#/components/schemas/")
    if name and name not in seen:
        seen.add(name)
        return integers(schemas[name], schemas, seen, name)
    kind = node.get("type")
    own = [(path, node)] if kind == "integer" or (isinstance(kind, list) and "integer" in kind) else []
    return own + [found for key, each in node.items() for found in integers(each, schemas, seen, f"{path}.{key}")]


def is_bounded(kind: dict[str, Any]) -> bool:
    if "enum" in kind or "const" in kind:
        return True
    least, most = kind.get("minimum", kind.get("exclusiveMinimum")), kind.get("maximum", kind.get("exclusiveMaximum"))
    return least is not None and most is not None and least >= LEAST and most <= MOST


def test_every_integer_of_every_body_and_query_is_bounded(server: FrontendRun):
    document = server.client.get("/openapi.json").json()
    schemas, seen = document["components"]["schemas"], set[str]()
    found: list[tuple[str, dict[str, Any]]] = []
    for path, methods in document["paths"].items():
        for method in methods.values():
            found += integers([method.get("requestBody", {}), method.get("parameters", [])], schemas, seen, path)
    assert len(found) > 30
    unbounded = [f"{path}: {kind}" for path, kind in found if not is_bounded(kind)]
    assert not unbounded, "\n".join(unbounded)


@pytest.mark.parametrize(
    "kind",
    [{"type": "integer"}, {"type": "integer", "minimum": 0}, {"type": "integer", "minimum": 0, "maximum": 2**64}],
)
def test_an_integer_without_bounds_is_found(kind: dict[str, Any]):
    schemas = {"Body": {"properties": {"inner": {"anyOf": [{"items": kind}, {"type": "null"}]}}}}
    ((path, each),) = integers({"$ref": "#/components/schemas/Body"}, schemas, set())
    assert path.startswith("Body.properties.inner")
    assert not is_bounded(each)
