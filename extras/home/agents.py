"""`launch.py agents NAME`: prints, or runs with --exec, a coding agent that uses the server which runs.

    launch.py agents claude
    launch.py agents codex --exec -- --full-auto
    launch.py agents continue > ~/.continue/config.yaml

Words after -- are the agent's own.
"""

import argparse
import json
import os
import shlex
import sys
from collections.abc import Callable
from typing import NamedTuple
from urllib.parse import quote

from extras.home.server import API_KEY, StartError, Target, require_target
from messages.program import PROGRAM
from supervisor.programs import program_parser


class Agent(NamedTuple):
    """How an agent is started: environment variables, then the command."""

    environment: dict[str, str]
    command: list[str]


class Served(NamedTuple):
    """The model that an agent is to use. `context`: the most tokens that a prompt and its answer may have."""

    url: str
    model: str
    key: str
    context: int
    reads_images: bool = False


def _claude(served: Served) -> Agent:
    models = {f"ANTHROPIC_DEFAULT_{kind}_MODEL": served.model for kind in ("HAIKU", "SONNET", "OPUS")}
    own = {"ANTHROPIC_BASE_URL": served.url, "ANTHROPIC_AUTH_TOKEN": served.key}
    limits = {"CLAUDE_CODE_MAX_CONTEXT_TOKENS": str(served.context), "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}
    return Agent({**own, **models, **limits}, ["claude", "--model", served.model])


def _codex(served: Served) -> Agent:
    provider = f'{{name="Sluice", base_url="{served.url}/v1", wire_api="responses", env_key="{API_KEY}"}}'
    settings = ("model_provider=sluice", f"model_providers.sluice={provider}", f"model_context_window={served.context}")
    options = [word for setting in settings for word in ("-c", setting)]
    return Agent({API_KEY: served.key}, ["codex", *options, "-m", served.model])


def _opencode(served: Served) -> Agent:
    limit = {"context": served.context, "output": served.context // 4}
    modalities = {"input": ["text", "image"], "output": ["text"]}
    images = {"attachment": True, "modalities": modalities} if served.reads_images else {}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "Sluice",
        "options": {"baseURL": f"{served.url}/v1", "apiKey": served.key},
        "models": {served.model: {"name": served.model, "limit": limit, **images}},
    }
    config = {"provider": {"sluice": provider}, "model": f"sluice/{served.model}"}
    return Agent({"OPENCODE_CONFIG_CONTENT": json.dumps(config)}, ["opencode"])


def _aider(served: Served) -> Agent:
    environment = {"OPENAI_API_BASE": f"{served.url}/v1", "OPENAI_API_KEY": served.key}
    return Agent(environment, ["aider", "--no-show-model-warnings", "--model", f"openai/{served.model}"])


def _qwen(served: Served) -> Agent:
    environment = {"OPENAI_BASE_URL": f"{served.url}/v1", "OPENAI_API_KEY": served.key}
    return Agent(environment, ["qwen", "--auth-type", "openai", "--model", served.model])


def _continue(served: Served) -> str:
    """Returns a config.yaml, of which JSON is a form."""
    access = {"provider": "openai", "apiBase": f"{served.url}/v1", "apiKey": served.key}
    able = ["tool_use", *["image_input"] * served.reads_images]
    abilities = {"capabilities": able, "defaultCompletionOptions": {"contextLength": served.context}}
    model = {"name": served.model, "model": served.model, **access, **abilities}
    return json.dumps({"name": "Sluice", "version": "1.0.0", "schema": "v1", "models": [model]}, indent=2)


AGENTS: dict[str, Callable[[Served], Agent | str]] = {
    "claude": _claude,
    "codex": _codex,
    "opencode": _opencode,
    "aider": _aider,
    "qwen": _qwen,
    "continue": _continue,
}
"""How each agent is started or, if it is part of an editor, its configuration file."""


def main() -> int:
    """Returns 0, 1 if no server runs or the agent is not installed."""
    parser = program_parser("agents", __doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("agent", choices=AGENTS, metavar="NAME", help=f"one of {', '.join(AGENTS)}")
    parser.add_argument("--model", default="", help="served model to use, if several servers run")
    parser.add_argument("--exec", action="store_true", help="start the agent")
    end = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    options = parser.parse_args(sys.argv[1:end])
    try:
        agent = AGENTS[options.agent](_served(require_target(options.model)))
    except (StartError, OSError) as error:
        print(f"{PROGRAM} agents: {error}", file=sys.stderr)
        return 1
    if isinstance(agent, str):
        print(agent)
        return 0
    command = [*agent.command, *sys.argv[end + 1 :]]
    if not options.exec:
        variables = [f"{name}={shlex.quote(value)}" for name, value in agent.environment.items()]
        print(" ".join([*variables, shlex.join(command)]))
        return 0
    try:
        os.execvpe(command[0], command, {**os.environ, **agent.environment})
    except FileNotFoundError:
        print(f"{PROGRAM} agents: {command[0]} is not installed", file=sys.stderr)
        return 1


def _served(target: Target) -> Served:
    """Raises `StartError` if the server refuses the key."""
    with target.request(f"/v1/models/{quote(target.model, safe='')}") as reply:
        content = reply.read()
    if reply.status != 200:
        raise StartError(f"{target.url} answers {reply.status}; a server with keys needs one of them in {API_KEY}")
    card = json.loads(content)
    reads_images = "vision" in card.get("capabilities", ())
    return Served(target.url, target.model, os.environ.get(API_KEY, "none"), card["max_model_len"], reads_images)


if __name__ == "__main__":
    raise SystemExit(main())
