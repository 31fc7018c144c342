"""The files with which others start a server name flags, paths and arguments that there are."""

import configparser
import importlib
import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

import launch
from deploy.ray_serve import DRAIN_S, Arguments
from messages import VERSION
from messages.config.http import HttpConfig
from messages.config.processes import RunConfig
from messages.config.server import ModelConfig
from supervisor.flags import parse_flags
from tests.test_import_law import FILES

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
DOCKERFILE = DEPLOY / "docker" / "Dockerfile"
COMPOSE = yaml.safe_load((DEPLOY / "docker" / "compose.yaml").read_text())
RAY_SERVICE = yaml.safe_load((DEPLOY / "kubernetes" / "rayservice.yaml").read_text())["spec"]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
UNIT_FILE = DEPLOY / "systemd" / "sluice.service"


@pytest.fixture(scope="module")
def unit() -> Any:
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment]
    parser.read(UNIT_FILE)
    return parser["Service"]


def instructions(name: str) -> list[str]:
    """Returns what follows `name` in each of its instructions in the Dockerfile."""
    lines = DOCKERFILE.read_text().replace("\\\n", "").splitlines()
    return [line.removeprefix(f"{name} ") for line in lines if line.startswith(f"{name} ")]


def health_check() -> list[str]:
    (instruction,) = instructions("HEALTHCHECK")
    return json.loads(instruction[instruction.index("CMD ") + 4 :])


def test_tags_of_images_and_the_changelog_have_the_version():
    pages = [file for file in DEPLOY.rglob("*") if file.is_file()] + [ROOT / "docs" / "operate" / "deployment.md"]
    texts = {file: file.read_text() for file in pages if file.suffix != ".pyc"}
    tags = [
        (file.name, tag) for file, text in texts.items() for tag in re.findall(r"sluice:(?:\$\{\w+:-)?([\w.]+)", text)
    ]
    assert {name for name, _ in tags} >= {"Dockerfile", "compose.yaml", "rayservice.yaml", "deployment.md"}
    assert {tag for _, tag in tags} == {VERSION}
    (latest, *_) = re.findall(r"^## ([\d.]+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert latest == VERSION


def test_the_images_command_is_one():
    (entry,) = instructions("ENTRYPOINT")
    program, serve, *flags = json.loads(entry)
    assert program in PROJECT["scripts"]
    assert serve == launch.SERVE
    http = parse_flags(flags)["http"]
    assert isinstance(http, HttpConfig)
    assert http.host == "0.0.0.0"
    assert instructions("EXPOSE") == [f"{http.port}"]
    assert f"http://127.0.0.1:{http.port}/ping" in health_check()[-1]


def test_the_image_installs_what_the_project_needs():
    (torch,) = (found for found in PROJECT["dependencies"] if found.startswith("torch"))
    runs = " ".join(instructions("RUN"))
    assert f'"{torch}"' in runs
    build, final = instructions("FROM")
    assert build == f"{final} AS build"
    (base,) = (provided.removeprefix("BASE=") for provided in instructions("ARG") if provided.startswith("BASE="))
    version = re.match(r"python:([\d.]+)-", base)
    assert version
    assert version[1] in ("3.11", "3.12")
    extras = re.search(r"EXTRAS=\[([\w,-]+)\]", DOCKERFILE.read_text())
    assert extras
    assert set(extras[1].split(",")) <= set(PROJECT["optional-dependencies"])


def test_the_builder_gets_what_it_installs():
    ignored = Path(f"{DOCKERFILE}.dockerignore").read_text().split()
    needed = {file.relative_to(ROOT).parts[0] for file in FILES} | {"setup.py", "pyproject.toml", "assets", "deploy"}
    needed |= {PROJECT["readme"], "tools", "kernels/cpu/source"}
    assert not [place for place in needed - {"benchmarks", "tests"} if any(fnmatch(place, mask) for mask in ignored)]


def test_the_user_owns_its_home_alone():
    (user,), (volume,) = instructions("USER"), instructions("VOLUME")
    assert int(user) > 0, "Kubernetes cannot tell whether a name is root's"
    assert f"HOME={volume}" in " ".join(instructions("ENV"))
    assert f"useradd --uid {user} --create-home {Path(volume).name}" in " ".join(instructions("RUN"))


@pytest.mark.parametrize("name", COMPOSE["services"])
def test_a_service_is_built_here_and_its_flags_exist(name: str):
    service = COMPOSE["services"][name]
    build = service["build"]
    context = (DEPLOY / "docker" / build["context"]).resolve()
    assert (context / build["dockerfile"]) == DOCKERFILE
    assert set(build.get("args", {})) <= {line.split("=")[0] for line in instructions("ARG")}
    http = parse_flags(service["command"])["http"]
    assert isinstance(http, HttpConfig)
    assert set(http.allowed_hosts) == {"localhost", name}, "a page of any site could be rebound to it"
    drain_s = RunConfig().drain_timeout_s
    assert float(service["stop_grace_period"].removesuffix("s")) > drain_s
    assert service["healthcheck"]["test"] == ["CMD", *health_check()]


@pytest.mark.parametrize("name", COMPOSE["services"])
def test_a_service_can_write_its_volume_and_tmp_alone(name: str):
    service = COMPOSE["services"][name]
    assert service["read_only"]
    assert "user" not in service, "the image's is not root"
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["tmpfs"] == ["/tmp"]
    home, models = service["volumes"]
    assert home.split(":") == [*COMPOSE["volumes"], *instructions("VOLUME")]
    assert models.endswith(f":{instructions('WORKDIR')[-1]}:ro")


def test_the_units_flags_exist_and_it_waits_for_the_drain(unit: Any):
    command = shlex.split(unit["ExecStart"])
    assert Path(command[1]).name == "launch.py"
    run = parse_flags(command[2:])["run"]
    assert isinstance(run, RunConfig)
    assert run.run_dir.startswith(f"%t/{unit['RuntimeDirectory']}/")
    assert run.snapshot_dir.startswith(f"%S/{unit['StateDirectory']}/")
    assert float(unit["TimeoutStopSec"]) > run.drain_timeout_s


def test_systemd_has_nothing_against_the_unit(tmp_path: Path):
    verify = shutil.which("systemd-analyze")
    if verify is None:
        pytest.skip("needs systemd-analyze")
    unit = tmp_path / UNIT_FILE.name
    unit.write_text(UNIT_FILE.read_text().replace("/opt/sluice/.venv/bin/python", sys.executable))
    found = subprocess.run([verify, "verify", str(unit)], capture_output=True, text=True, timeout=60, check=False)
    assert UNIT_FILE.name not in found.stderr, found.stderr


def test_the_ray_services_application_takes_its_arguments():
    (application,) = yaml.safe_load(RAY_SERVICE["serveConfigV2"])["applications"]
    module, _, name = application["import_path"].partition(":")
    assert callable(getattr(importlib.import_module(module), name))
    arguments = msgspec.convert(application["args"], Arguments)
    model = parse_flags(shlex.split(arguments.flags))["model"]
    assert isinstance(model, ModelConfig)
    assert model.cpu_threads == arguments.num_cpus
    (group,) = RAY_SERVICE["rayClusterConfig"]["workerGroupSpecs"]
    pod = group["template"]["spec"]
    (worker,) = pod["containers"]
    assert int(worker["resources"]["requests"]["cpu"]) >= arguments.num_cpus
    assert group["maxReplicas"] >= arguments.max_replicas
    assert pod["terminationGracePeriodSeconds"] > 2 * DRAIN_S, "Serve's wait and the server's"
