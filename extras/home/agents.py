"""`launch.py agents NAME`: prints, or runs with --exec, a coding agent that uses the server which runs.

    launch.py agents claude
    launch.py agents codex --exec -- --full-auto

Words after -- are the agent's own.
"""

import argparse
import json
import os
import shlex
import sys
from collections.abc import Callable
from typing import NamedTuple

from extras.home.server import API_KEY, StartError, Target, require_target
from messages.program import PROGRAM
from supervisor.programs import program_parser


class Agent(NamedTuple):
    """How an agent is started: environment variables, then the command."""

    environment: dict[str, str]
    command: list[str]


def _claude(server: Target, key: str) -> Agent:
    models = {f"ANTHROPIC_DEFAULT_{kind}_MODEL": server.model for kind in ("HAIKU", "SONNET", "OPUS")}
    own = {"ANTHROPIC_BASE_URL": server.url, "ANTHROPIC_AUTH_TOKEN": key}
    environment = {**own, **models, "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}
    return Agent(environment, ["claude", "--model", server.model])


def _codex(server: Target, key: str) -> Agent:
    provider = f'{{name="Sluice", base_url="{server.url}/v1", wire_api="responses", env_key="{API_KEY}"}}'
    options = ("-c", "model_provider=sluice", "-c", f"model_providers.sluice={provider}", "-m", server.model)
    return Agent({API_KEY: key}, ["codex", *options])


def _opencode(server: Target, key: str) -> Agent:
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "Sluice",
        "options": {"baseURL": f"{server.url}/v1", "apiKey": key},
        "models": {server.model: {"name": server.model}},
    }
    config = {"provider": {"sluice": provider}, "model": f"sluice/{server.model}"}
    return Agent({"OPENCODE_CONFIG_CONTENT": json.dumps(config)}, ["opencode"])


def _aider(server: Target, key: str) -> Agent:
    environment = {"OPENAI_API_BASE": f"{server.url}/v1", "OPENAI_API_KEY": key}
    return Agent(environment, ["aider", "--model", f"openai/{server.model}"])


AGENTS: dict[str, Callable[[Target, str], Agent]] = {
    "claude": _claude,
    "codex": _codex,
    "opencode": _opencode,
    "aider": _aider,
}


def main() -> int:
    """Returns 0, 1 if no server runs or the agent is not installed."""
    parser = program_parser("agents", __doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("agent", choices=AGENTS, metavar="NAME", help=f"one of {', '.join(AGENTS)}")
    parser.add_argument("--model", default="", help="the name of a served model, if several servers run")
    parser.add_argument("--exec", action="store_true", help="run the agent")
    parser.add_argument("words", nargs="*", metavar="WORD", help="what the agent gets")
    options = parser.parse_args()
    try:
        agent = AGENTS[options.agent](require_target(options.model), os.environ.get(API_KEY, "none"))
    except (StartError, OSError) as error:
        print(f"{PROGRAM} agents: {error}", file=sys.stderr)
        return 1
    command = [*agent.command, *options.words]
    if not options.exec:
        variables = [f"{name}={shlex.quote(value)}" for name, value in agent.environment.items()]
        print(" ".join([*variables, shlex.join(command)]))
        return 0
    try:
        os.execvpe(command[0], command, {**os.environ, **agent.environment})
    except FileNotFoundError:
        print(f"{PROGRAM} agents: {command[0]} is not installed", file=sys.stderr)
        return 1


if __name__ == "__main__":
    raise SystemExit(main())
