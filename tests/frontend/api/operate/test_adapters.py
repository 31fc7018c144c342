"""LoRA adapters over HTTP: they are loaded and unloaded by name, and each API passes them on."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from messages.config.server import HttpConfig, ModelConfig
from messages.errors import ErrorInfo
from messages.ring.adapters import Adapter
from messages.ring.cache import CacheExplained, ExplainCache
from messages.ring.requests import TokenizeMsg
from runtime.adapter_files import read_digest
from runtime.adapter_table import change_table, write_table
from tests.frontend.frontend_run import FACTS, Call, FrontendRun, final, make_config
from tests.runtime.test_adapter_files import save

KEY, ADMIN_KEY = "sk-client", "sk-operator"
OPERATOR = {"Authorization": f"Bearer {ADMIN_KEY}"}
CHAT = {"messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("adapters")


@pytest.fixture(scope="module")
def run(folder: Path) -> Iterator[FrontendRun]:
    write_table(str(folder / "table"), {})
    facts = msgspec.structs.replace(FACTS, adapter_table=str(folder / "table"))
    config = make_config(HttpConfig(port=0, api_key=(KEY,), admin_key=(ADMIN_KEY,)))
    config = msgspec.structs.replace(config, facts=facts, model=ModelConfig(max_loras=2))
    with FrontendRun(config, headers=OPERATOR) as run:
        yield run


def load(run: FrontendRun, name: str, path: str, error: ErrorInfo | None = None, **fields: Any) -> tuple[int, str]:
    """Loads an adapter, and plays the scheduler that reads it; returns status and text of the reply."""
    asked = run.ask("/v1/load_lora_adapter", {"lora_name": name, "lora_path": path, **fields})
    message = run.take_request()
    params = message.sampling_params
    assert (params.max_tokens, params.adapter) == (0, Adapter(name, path, read_digest(path)))
    run.send(final(message, finish_reason="error", error=error) if error else final(message))
    reply = asked.response()
    return reply.status_code, reply.text


def refuse(run: FrontendRun, body: dict[str, Any], path: str = "/v1/load_lora_adapter") -> tuple[int, str]:
    """Posts what no scheduler is asked about; returns status and message of the error."""
    reply = run.client.post(path, json=body)
    assert not run.arrived()
    return reply.status_code, reply.json()["error"]["message"]


def generate(run: FrontendRun, path: str, body: dict[str, Any]) -> TokenizeMsg:
    with Call(run.address, {"stream": False, "max_tokens": 4, "model": "poems", **body}, OPERATOR, path) as call:
        message = run.take_request()
        run.send(final(message, "ok", (1,)))
        assert call.response.status == 200
        shown = call.json()
    assert path == "/generate" or shown["model"] == "poems"
    return message


def test_an_adapter_is_served_in_every_api_until_it_is_unloaded(run: FrontendRun, folder: Path):
    path = save(folder / "poems")
    assert load(run, "poems", path) == (200, "Success: LoRA adapter 'poems' added successfully.")
    adapter = Adapter("poems", path, read_digest(path))
    for url, body in {
        "/generate": {"prompt": "hi"},
        "/v1/completions": {"prompt": "hi", "cache_salt": "tenant"},
        "/v1/chat/completions": CHAT,
        "/v1/messages": CHAT,
        "/v1/responses": {"input": "hi"},
    }.items():
        params = generate(run, url, body).sampling_params
        assert params.adapter == adapter
        assert params.cache_salt == f"{adapter.digest}\0{body.get('cache_salt', '')}"
    cards = run.client.get("/v1/models").json()["data"]
    assert [(card["id"], card["parent"], card["root"]) for card in cards] == [
        ("org/m", None, "/models/m"),
        ("m", None, "/models/m"),
        ("poems", "org/m", path),
    ]
    assert run.client.get("/v1/models/poems").json() == cards[2]
    unloaded = run.client.post("/v1/unload_lora_adapter", json={"lora_name": "poems"})
    assert (unloaded.status_code, unloaded.text) == (200, "Success: LoRA adapter 'poems' removed successfully.")
    for url in ("/generate", "/v1/completions"):
        status, text = refuse(run, {"prompt": "hi", "model": "poems"}, url)
        assert (status, text) == (404, "The model `poems` does not exist")
    assert run.client.post("/tokenize", json={"prompt": "hi", "model": "poems"}).status_code == 404
    assert run.client.get("/v1/models/poems").status_code == 404
    status, text = refuse(run, {"lora_name": "poems"}, "/v1/unload_lora_adapter")
    assert (status, text) == (404, "The lora adapter 'poems' cannot be found.")


def test_the_model_has_no_namespace_of_an_adapter_whatever_its_clients_send(run: FrontendRun, folder: Path):
    path = save(folder / "salted")
    load(run, "salted", path)
    digest = read_digest(path)
    salts = [
        generate(run, "/generate", {"prompt": "hi", "model": model, "cache_salt": salt}).sampling_params.cache_salt
        for model in ("m", "salted")
        for salt in ("t", f"{digest}\0t", "\0t", f"\0{digest}\0t")
    ]
    assert salts[0] == "t"
    assert len(set(salts)) == len(salts)
    asked = run.ask("/cache/explain", {"prompt": [1, 2], "model": "salted", "cache_salt": "t"})
    question = run.take(ExplainCache)
    assert question.cache_salt == f"{digest}\0t"
    run.send(CacheExplained(question.uid, 0, (), "salt", 0, other_uid=5))
    assert "contents of this LoRA adapter" in asked.response().json()["text"]


def test_other_contents_replace_an_adapter_in_place_and_are_another_one(run: FrontendRun, folder: Path):
    path = save(folder / "news")
    load(run, "news", path)
    before = generate(run, "/generate", {"prompt": "hi", "model": "news"}).sampling_params
    body = {"lora_name": "news", "lora_path": save(folder / "news", b"other tensors")}
    status, text = refuse(run, body)
    assert (status, "already been loaded" in text) == (400, True)
    assert generate(run, "/generate", {"prompt": "hi", "model": "news"}).sampling_params.adapter == before.adapter
    assert load(run, "news", path, load_inplace=True)[0] == 200
    after = generate(run, "/generate", {"prompt": "hi", "model": "news"}).sampling_params
    assert before.adapter != after.adapter
    assert before.cache_salt != after.cache_salt


def test_what_cannot_be_loaded_is_refused_with_the_reason(run: FrontendRun, folder: Path):
    assert refuse(run, {"lora_name": "x", "lora_path": "/nowhere"}) == (
        400,
        "lora_path: there is no directory /nowhere on the server's machine",
    )
    assert refuse(run, {"lora_name": "m", "lora_path": "/nowhere"})[1] == "lora_name: 'm' is the name of the model"
    for body in ({"lora_name": "x"}, {"lora_name": "", "lora_path": "/"}, {"lora_name": "x", "lora_path": 7}):
        assert refuse(run, body)[0] == 400
    error = ErrorInfo(400, "LoRA adapter 'x' cannot be used: q_proj has the shape 3 x 4", param="model")
    status, text = load(run, "x", save(folder / "x"), error)
    shown = json.loads(text)["error"]
    assert (status, shown["message"], shown["param"]) == (400, error.message, "lora_path")
    assert "x" not in [card["id"] for card in run.client.get("/v1/models").json()["data"]]


def test_only_the_operator_loads_adapters(run: FrontendRun):
    for path in ("/v1/load_lora_adapter", "/v1/unload_lora_adapter"):
        reply = run.client.post(path, json={"lora_name": "x"}, headers={"Authorization": f"Bearer {KEY}"})
        assert reply.status_code == 401


def test_an_adapter_that_another_frontend_has_loaded_is_served(run: FrontendRun, folder: Path):
    adapter = Adapter("elsewhere", "/elsewhere", "00")
    change_table(str(folder / "table"), lambda table: table.update(elsewhere=adapter))
    assert generate(run, "/generate", {"prompt": "hi", "model": "elsewhere"}).sampling_params.adapter == adapter


def test_a_load_is_not_counted_as_a_request_and_adapters_have_metrics(run: FrontendRun, folder: Path):
    def read_counts() -> tuple[float, int]:
        (count,) = re.findall(r"^vllm:request_prompt_tokens_count\S* (\S+)$", run.client.get("/metrics").text, re.M)
        return float(count), len(run.client.get("/requests").json()["requests"])

    before = read_counts()
    load(run, "counted", save(folder / "counted"))
    assert read_counts() == before
    with run.call({"model": "counted"}, OPERATOR) as call:
        message = run.take_request()
        text = run.client.get("/metrics").text
        assert 'vllm:lora_requests_info{max_lora="2",running_lora_adapters="",waiting_lora_adapters="counted"}' in text
        run.send(final(message, "ok", (1,)))
        call.next_event()
    assert "sluice_lora_slots_in_use" in text


def test_without_the_flags_the_reason_is_provided():
    with FrontendRun(make_config(HttpConfig(port=0, admin_key=(ADMIN_KEY,))), headers=OPERATOR) as run:
        for path in ("load", "unload"):
            status, text = refuse(run, {"lora_name": "x", "lora_path": "/x"}, f"/v1/{path}_lora_adapter")
            assert status == 400
            assert "--max-loras" in text
