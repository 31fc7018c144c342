from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest

from extras.remote.config import RemoteConfig
from messages.config.pooling import PoolingFacts
from messages.config.server import Config, HttpConfig, ModelConfig, ModelFacts
from messages.errors import BootError, UsageError
from supervisor import run
from supervisor.child import Command
from supervisor.flags import parse_flags
from supervisor.lifecycle import RunFailedError
from supervisor.run import build_config, check_flags, launch, ready_text, server_commands


def test_the_configuration_is_the_flags_and_the_models_facts(tmp_path: Path):
    (tmp_path / "config.json").write_text('{"vocab_size": 7, "n_ctx": 8}')
    config = build_config(parse_flags(["--model", str(tmp_path), "--port", "0", "--max-num-seqs", "3"]))
    assert (config.http.port, config.scheduling.max_num_seqs) == (0, 3)
    assert (config.facts.vocab_size, config.facts.max_model_len) == (7, 8)
    assert config.facts.model_dir == config.facts.tokenizer_dir == str(tmp_path)
    assert config.facts.served_names == (str(tmp_path),)


def test_an_unknown_external_process_is_refused_with_the_nearest_name():
    with pytest.raises(UsageError, match="--external: there is no process 'schedular'; did you mean scheduler"):
        build_config(parse_flags(["--external", "schedular"]))


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("schedular=never", "--restart: there is no process 'schedular'; did you mean scheduler"),
        ("scheduler", "--restart: 'scheduler' is not valid: expected NAME=always or NAME=never"),
    ],
)
def test_a_rule_of_restart_is_checked(rule: str, message: str):
    with pytest.raises(UsageError, match=message):
        build_config(parse_flags(["--restart", rule]))


def test_the_address_of_a_collector_is_checked():
    with pytest.raises(UsageError, match="--otlp-endpoint: localhost:4318 is not a URL, as http://localhost:4318 is"):
        build_config(parse_flags(["--otlp-endpoint", "localhost:4318"]))


def commands_of(*flags: str) -> dict[str, Command]:
    return {command.name: command for command in server_commands(check_flags(parse_flags(list(flags))))}


def test_each_process_is_a_package_of_its_own():
    commands = {
        command.name: command for command in server_commands(check_flags(parse_flags(["--external", "scheduler"])))
    }
    assert list(commands) == ["frontend", "tokenizer", "scheduler", "detokenizer"]
    assert commands["scheduler"].arguments[-2:] == ("-m", "scheduler_proc")
    assert [name for name, command in commands.items() if command.is_external] == ["scheduler"]


def test_engines_of_other_machines_come_behind_those_of_this_one():
    commands = commands_of("--data-parallel", "2", "--remote-engines", "tcp://a:1", "tcp://a:2")
    assert list(commands) == [
        "frontend", "tokenizer", "scheduler", "scheduler-2", "scheduler-3", "scheduler-4", "detokenizer"
    ]  # fmt: skip
    remote = [command for command in commands.values() if command.is_remote]
    assert [command.arguments[-3:] for command in remote] == [
        ("extras.remote.proxy", "--name", "scheduler-3"),
        ("extras.remote.proxy", "--name", "scheduler-4"),
    ]
    assert list(commands_of("--data-parallel", "0", "--remote-engines", "tcp://a:1"))[2] == "scheduler"


def test_each_engine_has_its_ranks():
    commands = {
        command.name: command
        for command in server_commands(check_flags(parse_flags(["--data-parallel", "2", "--tensor-parallel", "3"])))
    }
    ranks = ["rank1", "rank1-2", "rank2", "rank2-2"]
    assert list(commands) == ["frontend", "tokenizer", "scheduler", "scheduler-2", "detokenizer", *ranks]
    for name in ranks:
        module, *names = commands[name].arguments[3:]
        assert (module, names[-1]) == ("scheduler_proc.rank_process", name)


def test_ray_places_all_stages_except_the_last_of_each_engine():
    commands = commands_of("--data-parallel", "2", "--pipeline-parallel", "3", "--ray")
    assert [name for name, command in commands.items() if command.is_remote] == [
        "rank1", "rank1-2", "rank2", "rank2-2"
    ]  # fmt: skip
    assert {"scheduler", "scheduler-2"} < commands.keys()


STAGES = ["--remote-stages", "tcp://a:1", "tcp://a:2"]


def test_the_first_stages_of_each_engine_are_on_other_machines():
    commands = commands_of("--data-parallel", "2", "--pipeline-parallel", "3", *STAGES)
    remote = [name for name, command in commands.items() if command.arguments[3] == "extras.remote.proxy"]
    assert remote == ["rank1", "rank1-2"]
    assert [name for name, command in commands.items() if command.is_remote] == remote
    local = [name for name, command in commands.items() if command.arguments[3] == "scheduler_proc.rank_process"]
    assert local == ["rank2", "rank2-2"]
    assert not commands["scheduler"].is_scalable


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "2 addresses for 1 engines of 1 stages"),
        (["--pipeline-parallel", "2"], "at least one less than its stages, because the last one is on the head"),
        (["--pipeline-parallel", "3", "--data-parallel", "3"], "2 addresses for 3 engines"),
        (["--pipeline-parallel", "3", "--tensor-parallel", "2"], "--remote-stages: a stage on another machine has one"),
        (["--pipeline-parallel", "3", "--remote-engines", "tcp://a:1"], "leave out --remote-engines"),
        (["--pipeline-parallel", "5", "--ray"], "leave out --remote-engines and --ray"),
        (["--pipeline-parallel", "3", "--max-engines", "3"], "the number of engines with stages on other machines"),
        (["--pipeline-parallel", "4", "--remote-stages", "a:1"], "--remote-stages: 'a:1' is no address"),
    ],
)
def test_stages_on_other_machines_that_cannot_be_are_refused(flags: list[str], message: str):
    with pytest.raises(UsageError, match=message):
        build_config(parse_flags([*STAGES, *flags]))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--data-parallel", "0"], "--data-parallel 0 wants engines on other machines"),
        (["--ray", "--remote-engines", "tcp://a:1"], "--ray places all engines: give their number as --data-parallel"),
        (["--remote-engines", "gpu-box:7001"], "--remote-engines: 'gpu-box:7001' is no address: give it as tcp://"),
    ],
)
def test_there_must_be_engines_and_addresses_are_checked(flags: list[str], message: str):
    with pytest.raises(UsageError, match=message):
        build_config(parse_flags(flags))


def test_ray_places_every_engine(tmp_path: Path):
    (tmp_path / "config.json").write_text('{"vocab_size": 7, "n_ctx": 8}')
    config = build_config(parse_flags(["--model", str(tmp_path), "--ray", "--data-parallel", "3"]))
    assert (config.run.data_parallel, config.num_remote_engines) == (0, 3)
    assert RemoteConfig.of(config).ray == "auto"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ["--external", "scheduler"],
            "the launcher starts all ranks; leave out",
        ),
        (
            ["--speculative", "draft"],
            "several ranks have no draft model and no MTP head; --speculative ngram needs none",
        ),
        (["--remote-engines", "tcp://a:1"], "an engine on another machine has one rank"),
        (["--kv-disk", "/tmp/x"], "--kv-disk and --kv-offload-gb keep the pages of one rank"),
        (["--kv-offload-gb", "1"], "--kv-disk and --kv-offload-gb keep the pages of one rank"),
        (["--max-loras", "2"], "--lora and --max-loras are for one rank"),
        (["--ray"], "an engine on another machine has one rank"),
        (["--device", "cuda:0,cuda:1", "--data-parallel", "2"], "--device: 4 ranks .* need as many different GPUs"),
    ],
)
def test_what_several_ranks_cannot_have_is_refused(flags: list[str], message: str):
    with pytest.raises(UsageError, match=message):
        build_config(parse_flags(["--tensor-parallel", "2", *flags]))


def make_config(**http: Any) -> Config:
    facts = ModelFacts(model_dir="/m", tokenizer_dir="/m", served_names=("a", "b"), vocab_size=1, max_model_len=9)
    return Config(model=ModelConfig(), http=HttpConfig(**http), facts=facts)


def test_the_summary_names_what_is_served_where():
    text = ready_text(make_config(host="0.0.0.0"), "http://127.0.0.1:81", 1.26)
    assert "ready in 1.3 s" in text
    assert "a, b (context 9 tokens)" in text
    assert "http://127.0.0.1:81 (listening on 0.0.0.0)" in text
    assert "(listening" not in ready_text(make_config(), "http://127.0.0.1:81", 1.0)


def test_the_summary_has_the_sampling_of_requests_that_set_none():
    config = make_config()
    assert "sampling temperature 0.8, top_k 40, top_p 0.95, min_p 0.05 (in the chat page" in ready_text(
        config, "u", 1.0
    )
    facts = msgspec.structs.replace(config.facts, sampling_defaults={"top_k": 3}, sampling_source="the model's card")
    text = ready_text(msgspec.structs.replace(config, facts=facts), "u", 1.0)
    assert "sampling top_k 3 (the model's card)\n" in text


@pytest.mark.parametrize(
    ("kind", "generates", "path"),
    [("embed", False, "v1/embeddings"), ("classify", False, "classify"), ("embed", True, "generate")],
)
def test_the_line_to_paste_requests_what_the_model_gives(
    kind: Literal["embed", "classify"], generates: bool, path: str
):
    config = make_config()
    facts = msgspec.structs.replace(config.facts, pooling=PoolingFacts(kind=kind, generates=generates))
    text = ready_text(msgspec.structs.replace(config, facts=facts), "http://127.0.0.1:81", 1.0)
    assert f"curl -N http://127.0.0.1:81/{path} " in text


def test_a_context_that_does_not_fit_into_memory_is_shortened_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    (tmp_path / "config.json").write_text('{"vocab_size": 7, "n_ctx": 8192}')
    lengths: list[int] = []

    def lack_memory(config: Config, *_: object) -> int:
        lengths.append(config.facts.max_model_len)
        if config.model.max_model_len is None:
            raise RunFailedError("8,192 tokens need 1 GiB; raise --kv-cache-memory-gb", 4096)
        raise BootError("the port is in use")

    monkeypatch.setattr(run, "serve", lack_memory)
    assert launch(["--model", str(tmp_path), "--port", "0"]) == 1
    assert lengths == [8192, 4096]
    warning, error = "".join(capfd.readouterr()).splitlines()
    assert warning == (
        "the context is shortened to 4096 tokens (--max-model-len 4096): 8,192 tokens need 1 GiB; raise "
        "--kv-cache-memory-gb"
    )
    assert error.endswith("the port is in use")
