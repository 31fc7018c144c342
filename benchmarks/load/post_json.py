"""One POST of JSON to a server, answered in JSON: for clients that do not stream."""

import http.client
import json
from typing import Any

from benchmarks.load.connection import Target
from benchmarks.load.server_facts import ServerUnavailableError


def post_json(target: Target, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """Returns the body of a 200. Raises `ServerUnavailableError` for any other answer and for none."""
    connection = http.client.HTTPConnection(target.host, target.port, timeout=target.timeout_s)
    headers = {"Content-Type": "application/json"}
    if target.api_key:
        headers["Authorization"] = f"Bearer {target.api_key}"
    try:
        connection.request("POST", path, json.dumps(body), headers)
        response = connection.getresponse()
        text = response.read()
    except (OSError, http.client.HTTPException) as error:
        raise ServerUnavailableError(f"{target.origin}{path}: {error}") from None
    finally:
        connection.close()
    if response.status != 200:
        raise ServerUnavailableError(f"{target.origin}{path} answers {response.status}: {text[:200]!r}")
    return json.loads(text)
