import socket
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from extras.remote import ray_placement
from extras.remote.config import RemoteConfig
from extras.remote.ray_placement import JoinerActor, RayPlacement
from messages.config.server import Config, ModelConfig, ModelFacts
from messages.errors import BootError
from supervisor.python_process import ROOT
from tests.free_port import find_free_port

FACTS = ModelFacts(model_dir="/m", tokenizer_dir="/m", served_names=("a",), vocab_size=1, max_model_len=9)


class FakeRay(SimpleNamespace):
    """A cluster whose nodes have no room: an actor is taken and never begins."""

    cloudpickle = SimpleNamespace(register_pickle_by_value=lambda _: None)
    util = SimpleNamespace(get_node_ip_address=lambda: "10.0.0.1")
    num_inits = 0

    def __init__(self) -> None:
        self.waited_s: list[float] = []

    def init(self, **_: Any) -> None:
        self.num_inits += 1

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 4.0, "GPU": 1.0}

    def available_resources(self) -> dict[str, float]:
        return {"CPU": 1.5}

    def remote(self, **options: Any) -> Any:
        self.options = options
        actor = SimpleNamespace(run=SimpleNamespace(remote=lambda *_: "result"))
        return lambda _: SimpleNamespace(remote=lambda: actor)

    def wait(self, results: list[str], timeout: float) -> tuple[list[str], list[str]]:
        self.waited_s.append(timeout)
        return [], results

    def shutdown(self) -> None:
        pass


def place(folder: Path, address: str = "auto", **model: Any) -> RayPlacement:
    key = folder / "join.key"
    key.write_bytes(b"key")
    config = RemoteConfig(ray=address).put_into(Config(model=ModelConfig(**model), facts=FACTS))
    return RayPlacement(config, 7001, key)


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    fake = FakeRay()
    monkeypatch.setitem(sys.modules, "ray", fake)
    return fake


def test_without_ray_the_operator_is_notified_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(BootError, match=r"--ray needs more libraries .* -m pip install -e '/.*\[ray\]'$"):
        place(tmp_path)


def test_an_address_where_no_one_answers_is_notified_before_ray_looks_for_it_for_minutes(ray: FakeRay, tmp_path: Path):
    with socket.create_server(("127.0.0.1", find_free_port())) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        place(tmp_path, address)
    assert ray.num_inits == 1
    with pytest.raises(BootError, match=rf"no cluster at {address}: `ray start --head` makes one"):
        place(tmp_path, address)
    assert ray.num_inits == 1


def test_an_engine_for_which_no_node_has_room_reports_once_what_it_waits_for(
    ray: FakeRay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    placement = place(tmp_path, cpu_threads=8)
    assert placement.look(has_joined=False) == ""
    assert placement.look(has_joined=False) == "", "Ray gets some time first"
    monkeypatch.setattr(ray_placement, "time", SimpleNamespace(monotonic=lambda: 1e12))
    assert placement.look(has_joined=True) == "", "it has room"
    assert "asks for 8 CPUs and 1 GPUs on one node, and free in all the cluster are 1.5 CPUs and 0 GPUs" in (
        placement.look(has_joined=False)
    )
    assert placement.look(has_joined=False) == ""


def test_the_key_goes_to_the_joiner_without_a_file_and_its_end_is_notified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for name in ("TMPDIR", "XDG_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    end = JoinerActor().run(["tcp://127.0.0.1:1"], b"of another program", str(ROOT))
    assert end.startswith("the joiner exited with code 2\nlaunch.py join: /dev/stdin holds no keys"), end
    assert not list(tmp_path.iterdir())


def test_an_actor_that_has_no_room_is_not_waited_for_at_the_end(ray: FakeRay, tmp_path: Path):
    placement = place(tmp_path)
    placement.look(has_joined=False)
    placement.close(has_joined=False)
    assert not ray.waited_s
    placement.close(has_joined=True)
    assert ray.waited_s == [ray_placement.LEAVE_S]
