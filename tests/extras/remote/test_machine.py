import argparse
import os
from pathlib import Path

import msgspec
import pytest

from extras.remote.config import RemoteConfig
from extras.remote.machine import check_processors, make_config
from extras.remote.messages import Admitted
from messages.config.server import Config, HttpConfig, ModelConfig, ModelFacts, RunConfig
from messages.errors import BootError, UsageError
from supervisor.console import Console
from supervisor.manifest import digests_of, without_keys

FILES = {"config.json": b"{}", "model.safetensors": b"12345678"}


def write_model(folder: Path, **changed: bytes) -> Path:
    folder.mkdir()
    for name, content in FILES.items():
        (folder / name).write_bytes(changed.get(name.partition(".")[0], content))
    return folder


def admit(head_dir: Path) -> Admitted:
    facts = ModelFacts(
        model_dir=str(head_dir), tokenizer_dir=str(head_dir), served_names=("a",), vocab_size=1, max_model_len=9
    )
    run = RunConfig(data_parallel=2, record="/head/only", black_box_mb=9)
    remote = RemoteConfig(remote_engines=("tcp://a:1", "tcp://a:2"), max_engines=3)
    config = Config(
        model=ModelConfig(model="named", cpu_threads=64, device="cuda:7"),
        http=HttpConfig(api_key=("sk-secret",), admin_key=("sk-operator",)),
        run=run,
        facts=facts,
        num_remote_engines=2,
    )
    config = remote.put_into(config)
    return Admitted("scheduler-4", 2, msgspec.json.encode(without_keys(config)), digests_of(head_dir))


def options(model: str = "", device: str = "", cpu_threads: int = 0) -> argparse.Namespace:
    return argparse.Namespace(model=model, device=device, cpu_threads=cpu_threads)


def no_fetch(directory: str, local: Path | None) -> Path:
    raise AssertionError(f"{directory} is here")


def test_the_engine_has_this_machines_model_processors_and_files(tmp_path: Path):
    admitted = admit(write_model(tmp_path / "head"))
    here = write_model(tmp_path / "here")
    assert b"sk-" not in admitted.config, "keys of clients stay at the head"
    config = make_config(admitted, options(str(here), "cuda:1", 3), Console(), no_fetch)
    assert (config.facts.model_dir, config.facts.tokenizer_dir) == (str(here), str(here))
    assert (config.model.devices, config.model.cpu_threads, config.first_engine) == (("cuda:1",), 3, 4)
    assert config.model.device_type == "cuda", "where there is none, it fails instead of computing on the CPU"
    assert (config.num_engines, config.max_local_engines, config.extras) == (1, 1, {})
    assert (config.run.record, config.run.black_box_mb) == ("", 0)


def test_without_a_flag_the_model_is_where_the_head_has_it(tmp_path: Path):
    head = write_model(tmp_path / "head")
    config = make_config(admit(head), options(), Console(), no_fetch)
    assert (config.facts.model_dir, config.model.devices, config.model.cpu_threads) == (str(head), (), 0)


def test_a_stage_has_the_cores_of_its_machine_alone(tmp_path: Path):
    admitted = admit(write_model(tmp_path / "head"))
    head = msgspec.json.decode(admitted.config, type=Config)
    run = msgspec.structs.replace(head.run, pipeline_parallel=4)
    head = msgspec.structs.replace(head, run=run, num_remote_stages=2)
    assert head.local_ranks == (0, 3)
    admitted = msgspec.structs.replace(admitted, name="rank2-4", config=msgspec.json.encode(head))
    config = make_config(admitted, options(), Console())
    assert (config.local_ranks, config.run.data_parallel, config.first_engine) == ((2,), 1, 4)


@pytest.mark.parametrize(("changed", "named"), [("config", "config.json"), ("model", "model.safetensors")])
def test_another_model_is_refused_by_the_file_that_differs(tmp_path: Path, changed: str, named: str):
    admitted = admit(write_model(tmp_path / "head"))
    other = write_model(tmp_path / "other", **{changed: b"87654321"})
    with pytest.raises(BootError, match=f"the model in {other} is not the head's: {named} differs"):
        make_config(admitted, options(str(other)), Console(), no_fetch)


def test_weights_in_other_files_are_another_model(tmp_path: Path):
    admitted = admit(write_model(tmp_path / "head"))
    other = write_model(tmp_path / "other")
    (other / "model.safetensors").rename(other / "model-1.safetensors")
    with pytest.raises(BootError, match=r"model-1\.safetensors, model\.safetensors differ"):
        make_config(admitted, options(str(other)), Console(), no_fetch)


def test_processors_that_this_machine_cannot_have_are_refused_before_it_joins():
    num_cores = len(os.sched_getaffinity(0))
    check_processors("", 0)
    check_processors("cuda:12", num_cores)
    with pytest.raises(UsageError, match=f"--cpu-threads {num_cores + 1}: the engine may use {num_cores} cores here"):
        check_processors("", num_cores + 1)
    with pytest.raises(UsageError, match="--device: 'gpu1' is no GPU: name it as cuda:0"):
        check_processors("gpu1", 0)
