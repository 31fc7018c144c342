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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from deploy.ray_serve import DRAIN_S, Arguments
from messages.config.processes import RunConfig
from messages.config.server import ModelConfig
from supervisor.flags import parse_flags

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


def instructions(name: str) -> Iterator[str]:
    """Yields what follows `name` in the Dockerfile."""
    for line in DOCKERFILE.read_text().splitlines():
        if line.startswith(f"{name} "):
            yield line.removeprefix(f"{name} ")


def test_the_images_command_is_one():
    (entry,), (command,) = instructions("ENTRYPOINT"), instructions("CMD")
    assert json.loads(entry) == ["python", "launch.py"]
    parse_flags(json.loads(command))


def test_the_image_installs_what_the_project_needs():
    (torch,) = (found for found in PROJECT["dependencies"] if found.startswith("torch"))
    runs = " ".join(instructions("RUN"))
    assert f'"{torch}"' in runs
    version = re.match(r"python:([\d.]+)-", next(instructions("FROM")))
    assert version
    assert version[1] in ("3.11", "3.12")
    extras = re.search(r"EXTRAS=\[([\w,-]+)\]", DOCKERFILE.read_text())
    assert extras
    assert set(extras[1].split(",")) <= set(PROJECT["optional-dependencies"])


@pytest.mark.parametrize("name", COMPOSE["services"])
def test_a_service_is_built_here_and_its_flags_exist(name: str):
    service = COMPOSE["services"][name]
    build = service["build"]
    context = (DEPLOY / "docker" / build["context"]).resolve()
    assert (context / build["dockerfile"]) == DOCKERFILE
    assert set(build.get("args", {})) <= {line.split("=")[0] for line in instructions("ARG")}
    parse_flags(service["command"])
    drain_s = RunConfig().drain_timeout_s
    assert float(service["stop_grace_period"].removesuffix("s")) > drain_s
    (volume,) = instructions("VOLUME")
    assert service["volumes"][0].split(":") == ["cache", volume]


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
