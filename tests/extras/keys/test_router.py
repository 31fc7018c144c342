"""Keys with names at the router of several models."""

from pathlib import Path

from messages.config.server import HttpConfig
from tests.extras.keys.test_part import bearer, write_keys
from tests.extras.models.router_run import RouterRun


def test_a_key_opens_its_models_alone(tmp_path: Path):
    file = tmp_path / "keys.toml"
    write_keys(file, {"one": 'models = ["a"]', "all": "", "chief": "admin = true"})
    http = HttpConfig(port=0, admin_key=("sk-operator",))
    with RouterRun(http=http, flags_of={"b": ("--api-key=own",)}, api_keys=str(file)) as run:

        def listed(key: str, path: str = "/v1/models") -> list[str]:
            return [entry["id"] for entry in run.client.get(path, headers=bearer(key)).json()["data"]]

        for path in ("/v1/completions", "/models/load"):
            for key in ("none", "sk-x"):
                assert run.client.post(path, json={"model": "a"}, headers=bearer(key)).status_code == 401
            assert run.client.post(path, json={"model": "b"}, headers=bearer("one")).status_code == 404
        for path in ("/v1/completions", "/api/show"):
            for name in ("b", "c"):
                refused = run.client.post(path, json={"model": name}, headers=bearer("one"))
                assert refused.status_code == 404
                assert "the models are a" in refused.text
                assert "a, b" not in refused.text
        assert run.asked.empty()
        assert listed("one") == listed("one", "/models") == ["a"]
        assert listed("all") == listed("sk-operator") == ["a", "b"]
        assert run.client.get("/v1/models/b", headers=bearer("one")).status_code == 404
        for key, model in (("one", "a"), ("all", "b"), ("own", "b")):
            with run.ask({"model": model}, headers=bearer(key)) as asked:
                arrived = run.next_server(model).take() if model not in run.servers else run.servers[model].take()
                assert arrived.headers["authorization"] == f"Bearer {key}"
                arrived.answer()
                assert asked.reply().status_code == 200
        assert [view["key"] for view in run.client.get("/usage", headers=bearer("chief")).json()["data"]] == [
            "one",
            "all",
            "chief",
        ]
        assert run.client.get("/metrics", headers=bearer("all")).status_code == 403
        metrics = run.client.get("/metrics", headers=bearer("chief")).text
        assert 'sluice_key_requests_total{key="one"} 0.0' in metrics
