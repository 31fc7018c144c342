import re
import tomllib
import typing
from pathlib import Path

import pytest

from extras.batches.config import BatchConfig
from extras.faults.config import FaultsConfig
from extras.keys.config import KeysConfig
from extras.models.config import ModelsConfig
from extras.remote.config import RemoteConfig
from extras.tracing.config import TracingConfig
from messages import VERSION
from messages.config.images import ImageConfig
from messages.config.server import CacheConfig, HttpConfig, ModelConfig, RunConfig, SchedulingConfig
from messages.errors import UsageError
from supervisor.flags import (
    SHORT_HELP,
    find_sections,
    flag_fields,
    flag_name,
    flags_of,
    make_parser,
    parse_flags,
)

MAX_FLAGS = 109


def test_no_flags_give_the_defaults():
    assert parse_flags([]) == {
        "model": ModelConfig(),
        "cache": CacheConfig(),
        "scheduling": SchedulingConfig(),
        "http": HttpConfig(),
        "images": ImageConfig(),
        "run": RunConfig(),
        "batches": BatchConfig(),
        "faults": FaultsConfig(),
        "keys": KeysConfig(),
        "models": ModelsConfig(),
        "remote": RemoteConfig(),
        "tracing": TracingConfig(),
    }


def test_each_kind_of_value_is_parsed():
    text = "--model m --served-model-name a b --served-model-name c --block-size 32 --kv-cache-memory-gb 1.5 --port=81"
    sections = parse_flags([*text.split(), "--no-enable-prefix-caching", "--log-requests", "--seed", "0"])
    model, cache, scheduling = sections["model"], sections["cache"], sections["scheduling"]
    assert isinstance(model, ModelConfig)
    assert isinstance(cache, CacheConfig)
    assert isinstance(scheduling, SchedulingConfig)
    assert (model.model, model.served_model_name, scheduling.seed) == ("m", ("a", "b", "c"), 0)
    assert (cache.block_size, cache.kv_cache_memory_gb, cache.enable_prefix_caching) == (32, 1.5, False)
    assert sections["http"] == HttpConfig(port=81)
    assert sections["run"] == RunConfig(log_requests=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--port abc", "--port: 'abc' is not valid: expected a whole number"),
        ("--port 70000", "--port: '70000' is not valid: expected a whole number <= 65535"),
        ("--port -1", "--port: '-1' is not valid: expected a whole number >= 0"),
        ("--port", "--port: expected one argument"),
        ("--max-num-seqs 0", "--max-num-seqs: '0' is not valid: expected a whole number >= 1"),
        ("--max-num-seqs 1.5", "--max-num-seqs: '1.5' is not valid: expected a whole number"),
        ("--gpu-memory-utilization 1.1", "--gpu-memory-utilization: '1.1' is not valid: expected a number <= 1.0"),
        ("--drain-timeout-s nan", "--drain-timeout-s: 'nan' is not valid: expected a number >= 0.0"),
        ("--drain-timeout-s inf", "--drain-timeout-s: 'inf' is not valid: expected a finite number"),
        ("--restart-hold-s -1", "--restart-hold-s: '-1' is not valid: expected a number >= 0.0"),
        ("--restart-hold-s 3601", "--restart-hold-s: '3601' is not valid: expected a number <= 3600.0"),
        ("--restart-hold-s soon", "--restart-hold-s: 'soon' is not valid: expected a number"),
        ("--block-size 3", "--block-size: '3' is not valid: expected one of 1, 2, 4, 8, 16, 32, 64, 128"),
        ("--dtype fp8", "--dtype: 'fp8' is not valid: expected one of auto, float32, bfloat16, float16"),
        ("--served-model-name", "--served-model-name: expected at least one argument"),
        ("--max-model-length 5", "--max-model-length: unknown flag; did you mean --max-model-len?"),
        ("--max-model 5", "--max-model: unknown flag; did you mean --max-model-len?"),
        ("-m x", "-m: unknown flag; did you mean --model?"),
        ("--gpu", "--gpu: unknown flag; did you mean --gpu-memory-utilization?"),
        ("--swap-space 2", "--swap-space: unknown flag; see --help-all for all flags"),
        ("m", "m: unknown argument; a model is given as --model m, and a command is the first word"),
    ],
)
def test_an_error_names_the_flag_the_value_and_what_was_expected(arguments: str, message: str):
    with pytest.raises(UsageError) as raised:
        parse_flags(arguments.split())
    assert str(raised.value) == message


def test_rules_are_a_list_that_may_be_provided_in_parts(capsys: pytest.CaptureFixture[str]):
    run = parse_flags(["--restart", "tokenizer=never", "scheduler=always", "--restart", "frontend=never"])["run"]
    assert isinstance(run, RunConfig)
    assert run.restart == ("tokenizer=never", "scheduler=always", "frontend=never")
    with pytest.raises(SystemExit):
        parse_flags(["--help-all"])
    assert "--restart NAME=RULE [NAME=RULE ...]" in capsys.readouterr().out


def test_help_groups_the_flags_and_reports_of_each_what_it_is(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        parse_flags(["--help-all"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    for struct in find_sections().values():
        assert f"{struct.__doc__}:\n" in text
        for field, _ in flag_fields(struct):
            assert flag_name(field.name).removeprefix("--") in text or field.name == "batch_run"
    assert "(default: 8000)" in text


def test_help_is_short_and_leads_to_all_flags(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        parse_flags(["--help"])
    text = capsys.readouterr().out
    flags = re.findall(r"^  --([\w-]+)", text, re.MULTILINE)
    assert {flag.replace("-", "_") for flag in flags} == {*SHORT_HELP, "models", "version", "help_all"}
    assert len(SHORT_HELP) == 10
    assert "launch.py ps," in text
    assert "--help-all" in text


def test_there_are_few_flags(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        parse_flags(["--help-all"])
    assert len(re.findall(r"^  --(?!version|help)", capsys.readouterr().out, re.MULTILINE)) <= MAX_FLAGS


def test_every_field_has_a_description():
    descriptions = [action.help for action in make_parser()._actions]
    assert all(descriptions)


def test_the_version_is_that_of_the_project(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        parse_flags(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"sluice {VERSION}\n"
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "messages.VERSION"}


def test_no_name_is_in_two_sections():
    names = [name for struct in find_sections().values() for name in struct.__struct_fields__]
    assert len(names) == len(set(names))
    assert typing.get_type_hints(RunConfig, include_extras=True).keys() <= set(names)


@pytest.mark.parametrize(
    "provided",
    [
        "",
        "--max-num-seqs=3 --max-num-batched-tokens=77",
        "--no-enable-prefix-caching --enforce-eager --no-weight-cache",
        "--served-model-name=a --served-model-name=b --restart=scheduler=never --drain-timeout-s=0.5",
        "--model=--api-key=x --served-model-name=--port --served-model-name=-1",
    ],
)
def test_a_section_becomes_its_flags_again(provided: str):
    sections = parse_flags(provided.split())
    again = [flag for section in sections.values() for flag in flags_of(section)]
    assert sorted(again) == sorted(provided.split())
    assert parse_flags(again) == sections
