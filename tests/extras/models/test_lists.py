"""The lists and the metrics of a router whose models' servers are played by the test."""

from pathlib import Path
from typing import Any

from extras.models.messages import Description
from runtime.run_dir import RunDir
from supervisor.flags import parse_flags
from supervisor.run import build_config
from tests.extras.models.router_run import LOADING, RouterRun
from tests.frontend.frontend_run import wait_until
from tests.vision_models import make_vision_model

PAGE = b"# HELP up Serves.\n# TYPE up gauge\nup 1.0\n"


def listed(run: RouterRun, name: str, path: str = "/models") -> dict[str, Any]:
    (model,) = (model for model in run.client.get(path).json()["data"] if model["id"] == name)
    return model


def test_a_model_shows_the_progress_of_its_load_and_why_it_failed():
    with RouterRun() as run:
        run.health = LOADING
        assert listed(run, "a")["status"] == {"value": "unloaded", "args": []}
        assert "max_model_len" not in listed(run, "a", "/v1/models"), "its files have not been read"
        run.client.post("/models/load", json={"model": "a"})
        progress = {"phase": "reading weights", "fraction": 0.5}
        wait_until(lambda: listed(run, "a")["status"].get("progress") == progress)
        assert listed(run, "a")["status"]["value"] == "loading"
        run.end("a", "its server was killed")
        wait_until(lambda: listed(run, "a")["status"]["value"] == "unloaded")
        assert listed(run, "a")["status"] == {
            "value": "unloaded",
            "args": [],
            "failed": True,
            "error": "its server was killed",
        }


def test_models_are_in_ollamas_list_before_their_files_have_been_read(tmp_path: Path):
    file = tmp_path / "x.gguf"
    file.write_bytes(b"GGUF")
    with RouterRun(flags=(f"--model={file}",)) as run:
        run.report("a", description=None)
        run.report("b", description=Description(error="it is damaged"))
        wait_until(lambda: "damaged" in run.client.get("/models").text)
        (model,) = run.client.get("/api/tags").json()["models"]
        assert (model["name"], model["size"], model["details"]["format"]) == ("a", 4, "gguf")


def test_no_flag_with_a_key_or_a_password_is_listed():
    secret = ("--api-key=k", "--admin-key=k", "--otlp-endpoint=http://me:k@host", "--max-num-seqs=4")
    with RouterRun(flags=secret) as run:
        assert listed(run, "a")["status"]["args"] == ["--max-num-seqs=4"]


def test_metrics_are_those_of_the_models_that_answer():
    with RouterRun() as run:
        first, second = run.load("a"), run.load("b")
        with run.ask(b"", "/metrics", "GET", {"Authorization": "Bearer sk-one"}) as asked:
            arrived = first.take()
            assert arrived.headers["authorization"] == "Bearer sk-one"
            arrived.answer(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(PAGE), PAGE))
            second.take().cut()
            lines = asked.reply().text.splitlines()
        assert 'up{model="a"} 1.0' in lines
        assert "sluice_models_missing 1.0" in lines
        assert 'sluice_model_state{model="b",state="loaded"} 1.0' in lines
        assert "sluice_model_load_seconds_count 2.0" in lines


def test_lists_say_which_model_reads_images(tmp_path: Path):
    model = make_vision_model("idefics3", tmp_path / "model")
    files = RunDir(tmp_path)
    files.write_config(build_config(parse_flags(["--model", str(model), "--served-model-name", "a"])))
    with RouterRun() as run:
        run.report("a", description=Description(str(files.config_file), 10, 5))
        wait_until(lambda: "capabilities" in listed(run, "a"))
        for path in ("/models", "/v1/models"):
            assert listed(run, "a", path)["capabilities"] == ["completion", "tools", "vision"]
            assert listed(run, "a", path)["architecture"]["input_modalities"] == ["text", "image"]
            assert "capabilities" not in listed(run, "b", path)
        of_anthropic = run.client.get("/v1/models", headers={"anthropic-version": "2023-06-01"}).json()["data"]
        assert not any("capabilities" in model for model in of_anthropic)
        tagged = [model for model in run.client.get("/api/tags").json()["models"] if model["name"] == "a"]
        shown = run.client.post("/api/show", json={"model": "a"}).json()
        assert tagged[0]["capabilities"] == shown["capabilities"] == ["completion", "tools", "vision"]


def test_an_unknown_model_is_not_listed():
    with RouterRun() as run:
        assert run.client.get("/v1/models/a").json()["id"] == "a"
        assert run.client.get("/v1/models/other/a").status_code == 404
        first = run.client.get("/v1/models").json()
        assert (first["first_id"], first["last_id"], first["has_more"]) == ("a", "b", False)
