"""Runs the steps of one client in its own environment: `python steps.py NAME`, by `tools/try_clients.py`.

A client is a module `with_NAME.py` with functions of the names in `STEPS`. Each raises if the client fails, and may
return a remark. A line of JSON is written for each step.
"""

import json
import os
import sys
import warnings
from importlib import import_module

STEPS = ("chat", "stream", "call", "schema", "embed")
URL = os.environ.get("CLIENT_URL", "http://127.0.0.1:8000")
MODEL = os.environ.get("CLIENT_MODEL", "")
MAX_TOKENS = 100
QUESTION = "Name three fruits."
WEATHER = "How is the weather in Rome?"
RESULT = "It rains, 12 degrees."
NO_CALL = "the model made no call"
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
    },
    "required": ["name", "age"],
}
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "weather", "parameters": PARAMETERS}}


def check(is_good: object, what: str) -> None:
    """Raises if a client gave something else than expected."""
    if not is_good:
        raise AssertionError(what)


def check_person(text: str) -> None:
    person = json.loads(text)
    check(person.keys() == {"name", "age"}, f"not the schema's fields: {text[:80]}")


def main() -> int:
    warnings.simplefilter("ignore")
    module = import_module(f"with_{sys.argv[1]}")
    for step in STEPS:
        run = getattr(module, step, None)
        outcome = {"step": step, "outcome": "none" if run is None else "works", "detail": ""}
        try:
            outcome["detail"] = (run() or "") if run is not None else ""
        except Exception as error:
            outcome |= {"outcome": "fails", "detail": f"{type(error).__name__}: {error}"}
        print(json.dumps(outcome), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
