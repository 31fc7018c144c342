"""Checks that calls of real tools can be forced and their arguments validate, with BFCL's functions as `tools`.

    pip download --no-deps bfcl-eval && unzip -q bfcl_eval-*.whl
    python -m benchmarks.experiments.structured_output_0044.check_tools bfcl_eval/data --json FILE

The server has the bundled tokenizer, one layer of random weights, and a chat template in Hermes format. Every function,
alone and in its question's list, is sent with `tool_choice` `required` and a bias for tokens that close something.
Arguments must validate under `jsonschema` unless `max_tokens` cuts them off. An unsupported schema must be refused with
a 400 that gives the reason.
"""

import argparse
import asyncio
import json
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import numpy as np
from tokenizers import Tokenizer

from benchmarks.experiments.structured_output_0044.check_schemas import MAX_TOKENS, as_schema, validate
from benchmarks.result_file import write_result
from benchmarks.server_process import ROOT, ServerProcess

BUNDLED = ROOT / "assets" / "shakespeare-gpt2"
SHAPE = {"n_layer": 1, "n_embd": 64, "n_head": 1}
TEMPLATE = "{# calls: <tool_call> #}{{ messages[-1].content }}"
"""It leaves the tools out: those of some questions are longer than the model's context."""

NUM_AT_ONCE = 32
CLOSERS = ('"', "}", "]")
CLOSING_BIAS = 8.0
START_S = 120.0
TIMEOUT_S = 600.0
FLAGS = ("--load-format", "dummy", "--dtype", "float32", "--device", "cpu", "--cpu-threads", "1")


class Outcome(msgspec.Struct, frozen=True):
    """`kind`: valid, invalid, length (cut before a call was whole), refused, error. `words`: why."""

    name: str
    kind: str
    words: str = ""
    num_calls: int = 0
    seconds: float = 0.0


def main(arguments: list[str] | None = None) -> int:
    """Returns 0, or 1 if arguments are not valid or the server has failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("path", type=Path, help="the folder bfcl_eval/data")
    add("--limit", type=int, default=10**9, help="lists and functions at most")
    add("--json", type=Path, metavar="FILE", help="write the result to FILE")
    options = parser.parse_args(arguments)
    asked = list(read_tools(options.path))[: options.limit]
    with tempfile.TemporaryDirectory() as directory:
        write_model(Path(directory))
        server = ServerProcess(["--model", directory, *FLAGS])
        try:
            target = server.wait_until_ready(START_S)
            outcomes = asyncio.run(ask_all(f"http://{target.host}:{target.port}", asked))
        finally:
            server.stop()
    result = summarize(outcomes)
    print(json.dumps({name: value for name, value in result.items() if name != "names"}, indent=1))
    if options.json:
        write_result(options.json, "tools", {"tokenizer": BUNDLED.name, "package": package_of(options.path), **result})
    return 1 if {"invalid", "error"} & set(result["outcomes"]) else 0


def write_model(directory: Path) -> None:
    """Writes all files of a model but its weights."""
    config = json.loads((BUNDLED / "config.json").read_text(encoding="utf-8"))
    (directory / "config.json").write_text(json.dumps(config | SHAPE), encoding="utf-8")
    shutil.copy(BUNDLED / "tokenizer.json", directory)
    shutil.copy(BUNDLED / "tokenizer_config.json", directory)
    (directory / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")


def package_of(path: Path) -> str:
    """Returns the name and version of the package of which `path` is the data."""
    found = [*path.resolve().parents[1].glob("bfcl_eval-*")]
    return found[0].name.removesuffix(".dist-info") if found else ""


def read_tools(path: Path) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yields each list of functions with a name, and each function by itself; every one once."""
    seen: set[str] = set()
    for file in sorted(path.rglob("*.json")):
        if "possible_answer" in file.parts:
            continue
        for index, functions in enumerate(_read_functions(file)):
            lists = [functions] if len(functions) == 1 else [functions, *([function] for function in functions)]
            for each in lists:
                text = json.dumps(each)
                if text not in seen:
                    seen.add(text)
                    name = f" {each[0]['name']}" if len(each) == 1 else f" with {len(each)}"
                    yield f"{file.name} {index}{name}", [_as_tool(function) for function in each]


def _read_functions(file: Path) -> Iterator[list[dict[str, Any]]]:
    for line in file.read_text(encoding="utf-8").splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            return  # this file has no functions
        if isinstance(entry, dict):
            functions = entry.get("function") or ([entry] if "parameters" in entry else [])
            if functions:
                yield functions


def _as_tool(function: dict[str, Any]) -> dict[str, Any]:
    fields = {name: function[name] for name in ("name", "description") if name in function}
    return {"type": "function", "function": {**fields, "parameters": as_schema(function["parameters"])}}


async def ask_all(url: str, asked: Iterable[tuple[str, list[dict[str, Any]]]]) -> list[Outcome]:
    bias = closing_bias()
    waiting = iter(asked)
    outcomes: list[Outcome] = []
    async with httpx.AsyncClient(base_url=url, timeout=TIMEOUT_S) as client:

        async def ask_some() -> None:
            for name, tools in waiting:
                outcomes.append(await ask(client, name, tools, bias, len(outcomes)))
                if len(outcomes) % 500 == 0:
                    print(f"{len(outcomes)} asked", file=sys.stderr, flush=True)

        await asyncio.gather(*(ask_some() for _ in range(NUM_AT_ONCE)))
    return sorted(outcomes, key=lambda outcome: outcome.name)


def closing_bias() -> dict[str, float]:
    """Returns a `logit_bias` for tokens that close something, and for the end."""
    tokenizer = Tokenizer.from_file(str(BUNDLED / "tokenizer.json"))
    ids = [token_id for token_id in range(tokenizer.get_vocab_size()) if tokenizer.decode([token_id])[:1] in CLOSERS]
    return {str(token_id): CLOSING_BIAS for token_id in [0, *filter(None, ids)]}


async def ask(
    client: httpx.AsyncClient, name: str, tools: list[dict[str, Any]], bias: dict[str, float], seed: int
) -> Outcome:
    body = {
        "messages": [{"role": "user", "content": "Go."}],
        "tools": tools,
        "tool_choice": "required",
        "max_tokens": MAX_TOKENS,
        "logit_bias": bias,
        "seed": seed,
    }
    begin_s = time.perf_counter()
    reply = await client.post("/v1/chat/completions", json=body)
    seconds = round(time.perf_counter() - begin_s, 3)
    if reply.status_code != 200:
        error = reply.json()["error"]
        kind = "refused" if reply.status_code == 400 and error["param"] == "tools" else "error"
        return Outcome(name, kind, error["message"], 0, seconds)
    choice = reply.json()["choices"][0]
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools}
    calls = [call["function"] for call in choice["message"].get("tool_calls") or ()]
    is_cut = choice["finish_reason"] == "length"
    whole = calls[:-1] if is_cut else calls
    for call in whole:
        words = validate(call["arguments"], schemas[call["name"]]) if call["name"] in schemas else "unknown name"
        if words:
            return Outcome(name, "invalid", f"{words}: {call}", len(whole), seconds)
    if not whole:
        return Outcome(name, "length" if is_cut else "invalid", f"{choice}"[:300], 0, seconds)
    return Outcome(name, "valid", "", len(whole), seconds)


def summarize(outcomes: list[Outcome]) -> dict[str, Any]:
    refused = [outcome.words for outcome in outcomes if outcome.kind == "refused"]
    seconds = [outcome.seconds for outcome in outcomes if outcome.kind == "refused"]
    return {
        "num_requests": len(outcomes),
        "num_lists": sum(" with " in outcome.name for outcome in outcomes),
        "num_valid_calls": sum(outcome.num_calls for outcome in outcomes if outcome.kind == "valid"),
        "outcomes": dict(Counter(outcome.kind for outcome in outcomes)),
        "refusals": dict(Counter(refused).most_common(25)),
        "refused_within_s": round(float(np.max(seconds)), 3) if seconds else None,
        "bad": [(each.name, each.words) for each in outcomes if each.kind in ("error", "invalid")][:40],
        "names": {
            kind: [each.name for each in outcomes if each.kind == kind] for kind in sorted({o.kind for o in outcomes})
        },
    }


if __name__ == "__main__":
    raise SystemExit(main())
