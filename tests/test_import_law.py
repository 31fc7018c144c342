"""Allowed imports: the table of packages in docs/ARCHITECTURE.md as a test."""

import ast
import functools
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Rule:
    """What the files of one place may import: our packages and third-party ones. The standard library is allowed."""

    ours: frozenset[str]
    others: frozenset[str]


def rule(ours: str, others: str) -> Rule:
    return Rule(frozenset(ours.split()), frozenset(others.split()))


RULES = {
    "launch.py": rule("supervisor", ""),
    "sluice": rule("launch", ""),
    "supervisor": rule("supervisor runtime messages", "msgspec psutil"),
    "supervisor/memory_files.py": rule("supervisor runtime messages kernels.cpu.huge_memory", ""),
    "supervisor/model/fetch.py": rule("supervisor runtime messages", "msgspec huggingface_hub"),
    "frontend": rule(
        "frontend runtime messages", "msgspec starlette uvicorn httptools uvloop prometheus_client psutil"
    ),
    "frontend/parsing": rule("frontend.parsing runtime messages", "msgspec regex"),
    "tokenizer_proc": rule("tokenizer_proc runtime messages", "msgspec tokenizers jinja2"),
    "encoder_proc": rule("encoder_proc runtime messages kernels scheduler_proc.computing", "msgspec torch"),
    "detokenizer_proc": rule("detokenizer_proc runtime messages", "msgspec tokenizers"),
    "scheduler_proc": rule("scheduler_proc runtime messages", "msgspec"),
    "scheduler_proc/deciding": rule("scheduler_proc.deciding messages", "msgspec"),
    "scheduler_proc/computing": rule(
        "scheduler_proc.computing runtime messages kernels", "msgspec torch numpy safetensors huggingface_hub"
    ),
    "scheduler_proc/computing/transformers_model": rule(
        "scheduler_proc.computing messages kernels", "torch transformers"
    ),
    "scheduler_proc/computing/tiers/slot_file.py": rule("", "xxhash"),
    "messages": rule("messages", "msgspec"),
    "messages/channels.py": rule("messages", "msgspec zmq"),
    "runtime": rule("runtime messages", "msgspec"),
    "runtime/forked_process.py": rule("runtime messages", "setproctitle"),
    "runtime/profiling.py": rule("runtime messages", "msgspec pyinstrument"),
    "runtime/tokenizer_files.py": rule("runtime messages", "msgspec tokenizers"),
    "runtime/transformers_import.py": rule("", "transformers huggingface_hub"),
    "runtime/grammars.py": rule("runtime messages", "msgspec llguidance"),
    "runtime/row_file.py": rule("messages", "xxhash"),
    "runtime/images/decoding.py": rule("runtime messages", "msgspec numpy"),
    "runtime/images/pixels.py": rule("runtime messages", "numpy PIL"),
    "tokenizer_proc/grammars.py": rule("tokenizer_proc runtime messages", "msgspec llguidance"),
    "tokenizer_proc/marked_text.py": rule("tokenizer_proc runtime messages", "msgspec llguidance"),
    "tokenizer_proc/tagged_arguments.py": rule("tokenizer_proc runtime messages", "msgspec llguidance"),
    "tokenizer_proc/thoughts.py": rule("tokenizer_proc runtime messages", "msgspec llguidance"),
    "tokenizer_proc/structural_tags.py": rule("tokenizer_proc runtime messages", "msgspec llguidance"),
    "kernels": rule("kernels", "torch triton numpy"),
    "extras/decisions": rule("extras.decisions extras.embeddings frontend runtime messages", "msgspec starlette"),
    "extras/embeddings": rule("extras.embeddings frontend runtime messages", "msgspec starlette"),
    "extras/batches": rule(
        "extras.batches frontend supervisor runtime messages", "msgspec starlette python_multipart tqdm"
    ),
    "extras/faults": rule("extras.faults scheduler_proc supervisor runtime messages", "msgspec"),
    "extras/fit": rule("extras.fit scheduler_proc supervisor runtime messages", "msgspec huggingface_hub"),
    "extras/home": rule("extras.home supervisor runtime messages", "huggingface_hub"),
    "extras/infill": rule("extras.infill frontend runtime messages", "msgspec starlette"),
    "extras/keys": rule(
        "extras.keys frontend supervisor runtime messages", "msgspec starlette prometheus_client psutil"
    ),
    "extras/live": rule("extras.live frontend runtime messages", "msgspec starlette psutil"),
    "extras/models": rule(
        "extras.models extras.keys extras.ollama extras.live extras.home frontend scheduler_proc tokenizer_proc "
        "detokenizer_proc supervisor runtime messages",
        "msgspec starlette httptools uvicorn prometheus_client setproctitle",
    ),
    "extras/ollama": rule("extras.ollama frontend runtime messages", "msgspec starlette"),
    "extras/remote": rule("extras.remote supervisor runtime messages", "msgspec zmq psutil"),
    "extras/remote/ray_placement.py": rule("extras.remote supervisor messages", "ray"),
    "extras/replay": rule("extras.replay extras.faults supervisor runtime messages", "msgspec"),
    "extras/top": rule("extras.top supervisor runtime messages", "msgspec"),
    "extras/tracing": rule("extras.tracing frontend runtime messages", "msgspec opentelemetry prometheus_client"),
    "extras/whatif": rule("extras.whatif scheduler_proc supervisor runtime messages", "msgspec numpy"),
}
"""The longest prefix of a file's path decides. A place may be missing: a file that is added there has a rule."""

LAYERS = {
    "frontend": (
        "frontend/__main__.py",
        "frontend/process.py",
        "frontend/front.py",
        "frontend/api/assembly.py",
        "frontend/api/routes.py",
        "frontend/api/openai frontend/api/responses frontend/api/anthropic frontend/api/generate frontend/api/operate",
        "frontend/api/answers",
        "frontend/api/parameters",
        "frontend/extras.py",
        "frontend/http",
        "frontend/service.py",
        "frontend/recovery frontend/metrics frontend/images/intake.py",
        "frontend/routing",
        "frontend/requests",
        "frontend/links",
        "frontend/images",
        "frontend/parsing",
        "frontend/errors.py frontend/drain.py",
    ),
    "supervisor": (
        "supervisor/cli",
        "supervisor/profiles",
        "supervisor/client",
        "supervisor/run.py",
        "supervisor/supervisor.py",
        "supervisor/admin",
        "supervisor/shutdown.py supervisor/standby.py supervisor/watch.py",
        "supervisor/lifecycle.py",
        "supervisor/process_group.py",
        "supervisor/control_plane.py supervisor/status_board.py supervisor/restarts.py supervisor/admission.py "
        "supervisor/endings.py supervisor/model supervisor/listener.py supervisor/flags.py supervisor/manifest.py "
        "supervisor/stalls.py",
        "supervisor/child.py supervisor/console.py supervisor/memory_files.py supervisor/signals.py",
        "supervisor/programs.py",
        "supervisor/log_ring.py supervisor/output_lines.py supervisor/process_files.py supervisor/early_scheduler.py",
        "supervisor/python_process.py",
    ),
    "scheduler_proc/deciding": (
        "scheduler_proc/deciding/scheduler.py",
        "scheduler_proc/deciding/schedule_reports.py",
        "scheduler_proc/deciding/policy.py scheduler_proc/deciding/results.py scheduler_proc/deciding/refusals.py",
        "scheduler_proc/deciding/yielding.py scheduler_proc/deciding/shares.py",
        "scheduler_proc/deciding/row_results.py scheduler_proc/deciding/row_groups.py "
        "scheduler_proc/deciding/step_plan.py",
        "scheduler_proc/deciding/chunk_times.py",
        "scheduler_proc/deciding/step_size.py",
        "scheduler_proc/deciding/in_flight.py",
        "scheduler_proc/deciding/stages.py scheduler_proc/deciding/isolation.py "
        "scheduler_proc/deciding/adapter_slots.py scheduler_proc/deciding/placed_spans.py "
        "scheduler_proc/deciding/drafting",
        "scheduler_proc/deciding/image_asks.py",
        "scheduler_proc/deciding/row_places.py",
        "scheduler_proc/deciding/rows",
        "scheduler_proc/deciding/waiting_queue.py scheduler_proc/deciding/plan_notes.py scheduler_proc/deciding/pages",
        "scheduler_proc/deciding/requests.py",
        "scheduler_proc/deciding/tasks",
        "scheduler_proc/deciding/sampling",
    ),
    "kernels": (
        "kernels/formats",
        "kernels/operations",
        "kernels/dispatch.py",
        "kernels/cpu kernels/gpu",
        "kernels/plans",
        "kernels/arguments",
    ),
    "scheduler_proc/computing": (
        "scheduler_proc/computing/load_runner.py scheduler_proc/computing/torch_observer.py "
        "scheduler_proc/computing/vision/load_tower.py",
        "scheduler_proc/computing/loading",
        "scheduler_proc/computing/backends",
        "scheduler_proc/computing/runner.py",
        "scheduler_proc/computing/tiers",
        "scheduler_proc/computing/device.py",
        "scheduler_proc/computing/transformers_model",
        "scheduler_proc/computing/sampling scheduler_proc/computing/kv_cache",
        "scheduler_proc/computing/model/mtp_decoder.py",
        "scheduler_proc/computing/model/decoder.py scheduler_proc/computing/vision",
        "scheduler_proc/computing/model",
        "scheduler_proc/computing/step",
        "scheduler_proc/computing/pipeline.py scheduler_proc/computing/ring_group.py",
        "scheduler_proc/computing/parallel.py scheduler_proc/computing/placement.py",
        "scheduler_proc/computing/__init__.py",
        "scheduler_proc/computing/hf_config.py scheduler_proc/computing/report.py "
        "scheduler_proc/computing/torch_import.py",
    ),
    "messages": (
        "messages/frame_files.py",
        "messages/schema.py",
        "messages/engines.py messages/frontends.py",
        "messages/channels.py",
        "messages/frames.py",
        "messages/ring",
        "messages/engine_names.py",
        "messages/control messages/config",
        "messages/columns.py messages/errors.py",
        "messages/__init__.py",
    ),
    "runtime": (
        "runtime/process.py",
        "runtime/extras.py runtime/grammars.py",
        "runtime/tokenizer_files.py runtime/images",
        "runtime/child_process.py",
        "runtime/forked_process.py",
        "runtime/black_box runtime/lifeline.py runtime/logs.py runtime/profiling.py runtime/stacks.py",
        "runtime/run_dir.py runtime/chat_files.py runtime/prefetch.py",
        "runtime/own_directory.py runtime/row_file.py runtime/stage_files.py",
        "runtime/special_tokens.py runtime/gguf",
        "runtime/pooling_files.py",
        "runtime/model_files.py runtime/adapter_table.py",
        "runtime/transformers_import.py",
        "runtime/adapter_files.py runtime/background.py runtime/histograms.py runtime/machine.py runtime/numa.py",
    ),
    "tokenizer_proc": (
        "tokenizer_proc/__main__.py",
        "tokenizer_proc/process.py",
        "tokenizer_proc/backlog.py tokenizer_proc/calls.py tokenizer_proc/grammar_checks.py "
        "tokenizer_proc/prompts.py tokenizer_proc/template_process.py",
        "tokenizer_proc/grammar_child.py tokenizer_proc/template_child.py",
        "tokenizer_proc/grammars.py tokenizer_proc/chat.py tokenizer_proc/parameter_texts.py tokenizer_proc/infill.py",
        "tokenizer_proc/thoughts.py tokenizer_proc/encoding.py tokenizer_proc/tagged_arguments.py "
        "tokenizer_proc/message_forms.py tokenizer_proc/template_sandbox.py tokenizer_proc/oldest_messages.py "
        "tokenizer_proc/image_prompts.py",
        "tokenizer_proc/image_forms.py",
        "tokenizer_proc/joined_texts.py tokenizer_proc/marked_text.py",
        "tokenizer_proc/structural_tags.py",
        "tokenizer_proc/schema_rules.py",
        "tokenizer_proc/closed_objects.py",
        "tokenizer_proc/schema_faults.py",
    ),
    "encoder_proc": (
        "encoder_proc/__main__.py",
        "encoder_proc/process.py",
        "encoder_proc/image_encoder.py",
        "encoder_proc/work.py",
    ),
    "detokenizer_proc": (
        "detokenizer_proc/__main__.py",
        "detokenizer_proc/process.py",
        "detokenizer_proc/detokenizer.py",
        "detokenizer_proc/streams.py",
        "detokenizer_proc/logprobs.py",
        "detokenizer_proc/vocabulary.py detokenizer_proc/stop_strings.py",
        "detokenizer_proc/decoders.py",
    ),
}
"""The rooms of each package from the top down. A room imports only from itself and from lines below it."""

TRANSFORMERS_LOADER = "scheduler_proc/computing/loading/transformers_loader.py"
FAMILY_LOADER = "scheduler_proc/computing/loading/family_loader.py"
FUNCTION_LEVEL_IMPORTS = {
    ("sluice/command.py", "launch"): "is found only after its folder has been named",
    ("launch.py", "supervisor.programs"): "is for commands only",
    ("launch.py", "supervisor.cli.operate"): "takes a third of the launcher's imports, for commands only",
    ("launch.py", "supervisor.run"): "the scheduler's process is begun before",
    ("encoder_proc/process.py", "encoder_proc.image_encoder"): "needs torch, which a phase of the start imports",
    ("frontend/http/server.py", "uvloop"): "does not exist on every platform",
    ("extras/remote/proxy.py", "extras.remote.ray_placement"): "is for those who use Ray",
    ("extras/remote/ray_placement.py", "ray"): "needs an extra",
    ("extras/tracing/part.py", "extras.tracing.export"): "needs an extra, and memory",
    ("scheduler_proc/process.py", "scheduler_proc.computing.load_runner"): "takes seconds (torch)",
    ("extras/models/description.py", "scheduler_proc.computing.load_runner"): "imports torch",
    ("extras/models/description.py", "scheduler_proc.computing.vision.load_tower"): "imports torch",
    ("extras/models/description.py", "scheduler_proc.computing.model.families.registry"): "imports torch",
    ("extras/models/description.py", "scheduler_proc.computing.kv_cache.kv_tensors"): "imports torch",
    ("scheduler_proc/early.py", "scheduler_proc.computing.load_runner"): "takes seconds (torch)",
    ("scheduler_proc/process.py", "scheduler_proc.computing.torch_observer"): "imports torch",
    ("scheduler_proc/rank_process.py", "scheduler_proc.computing.load_runner"): "takes seconds (torch)",
    ("scheduler_proc/rank_process.py", "scheduler_proc.computing.kv_cache.page_sums"): "imports torch",
    ("scheduler_proc/computing/torch_import.py", "torch"): "the process imports this file long before",
    ("scheduler_proc/computing/torch_import.py", "numpy"): "likewise, and under a setting",
    (FAMILY_LOADER, "scheduler_proc.computing.loading.open_weights"): "random weights need no safetensors",
    (FAMILY_LOADER, "scheduler_proc.computing.loading.adapters.read_adapter"): "random weights need no safetensors",
    (FAMILY_LOADER, "scheduler_proc.computing.loading.weight_cache"): "likewise",
    (TRANSFORMERS_LOADER, "scheduler_proc.computing.transformers_model.loading"): "takes seconds (transformers)",
    ("runtime/profiling.py", "pyinstrument"): "is needed while a profile runs, and not before",
    ("runtime/images/decoding.py", "numpy"): "the frontend imports this file, and needs none",
    ("runtime/grammars.py", "llguidance"): "is needed from the first grammar on",
    ("tokenizer_proc/grammars.py", "llguidance"): "is needed from the first grammar on",
    ("tokenizer_proc/structural_tags.py", "llguidance"): "is needed from the first grammar on",
    ("runtime/tokenizer_files.py", "tokenizers"): "the scheduler imports this file, and needs none",
    ("runtime/transformers_import.py", "transformers"): "60 MB that a process with tokenizer.json saves",
    ("runtime/transformers_import.py", "huggingface_hub.constants"): "likewise",
}
"""Imports that are not at the top of their file, with the reason."""

PLACES = sorted({name.split("/")[0] for name in RULES})
FILES = sorted(
    file
    for place in PLACES
    for file in ([ROOT / place] if place.endswith(".py") else (ROOT / place).rglob("*.py"))
    if file.is_file()
)


def name_of(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


def rule_for(name: str) -> Rule:
    places = [place for place in RULES if name == place or name.startswith(f"{place}/")]
    return RULES[max(places, key=len)]


def imports_of(tree: ast.AST) -> Iterator[tuple[str, ast.Import | ast.ImportFrom | ast.Call]]:
    """Yields each imported module. A name that is imported from one of our packages may be a module, too.

    `import_module("…")` counts as an import.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "an import is absolute"
            assert node.module is not None
            if (ROOT / Path(*node.module.split("."))).is_dir():
                for alias in node.names:
                    yield f"{node.module}.{alias.name}", node
            else:
                yield node.module, node
        elif isinstance(node, ast.Call) and _name_of_call(node) == "import_module":
            for argument in node.args[:1]:
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    yield argument.value, node


def _name_of_call(call: ast.Call) -> str:
    return getattr(call.func, "attr", getattr(call.func, "id", ""))


@functools.cache
def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


def is_allowed(module: str, allowed: Rule) -> bool:
    top = module.split(".")[0]
    if top in sys.stdlib_module_names or top in allowed.others:
        return True
    return any(module == ours or module.startswith(f"{ours}.") for ours in allowed.ours)


def is_for_types_alone(node: ast.AST, tree: ast.AST) -> bool:
    blocks = [
        block for block in ast.walk(tree) if isinstance(block, ast.If) and "TYPE_CHECKING" in ast.dump(block.test)
    ]
    return any(node is inner for block in blocks for inner in ast.walk(block))


Imported = tuple[Path, str, ast.Import | ast.ImportFrom | ast.Call]


@functools.cache
def all_imports() -> list[Imported]:
    return [(file, module, node) for file in FILES for module, node in imports_of(parsed(file))]


def test_files_import_only_what_their_places_allow():
    assert not [
        f"{name_of(file)}:{node.lineno} must not import {module}"
        for file, module, node in all_imports()
        if not is_allowed(module, rule_for(name_of(file)))
    ]


def test_imports_are_at_the_top_of_a_file():
    assert not [
        f"{name_of(file)}:{node.lineno} imports {module} inside a function"
        for file, module, node in all_imports()
        if node.col_offset
        and (name_of(file), module) not in FUNCTION_LEVEL_IMPORTS
        and not is_for_types_alone(node, parsed(file))
    ]


def find_layer(package: str, name: str) -> tuple[int, str]:
    """Returns the line and the room of a file or a module's path (without its suffix)."""
    for line, rooms in enumerate(LAYERS[package]):
        for room in rooms.split():
            if name.removesuffix(".py") == room.removesuffix(".py") or name.startswith(f"{room}/"):
                return line, room
    assert name == f"{package}/__init__.py", f"{name} belongs to no layer of {package}"
    return len(LAYERS[package]), name


def is_downward(package: str, name: str, module: str) -> bool:
    """True if the file `name` may import `module` of its own package."""
    line, room = find_layer(package, name)
    imported_line, imported_room = find_layer(package, module.replace(".", "/"))
    return imported_line > line or imported_room == room


def find_package(name: str) -> str | None:
    """Returns the package with layers that contains a file or a module's path, `None` if there is none."""
    return next((package for package in LAYERS if name.startswith(f"{package}/")), None)


def test_layers_import_downward():
    assert not [
        f"{name_of(file)}:{node.lineno} must not import {module}"
        for file, module, node in all_imports()
        if (package := find_package(name_of(file))) is not None
        and find_package(module.replace(".", "/")) == package
        and not is_downward(package, name_of(file), module)
    ]


def test_no_files_import_each_other_in_a_circle():
    modules = {name_of(file).removesuffix(".py").replace("/", ".") for file in FILES}
    graph: dict[str, set[str]] = {module: set() for module in modules}
    for file, module, node in all_imports():
        if not node.col_offset:
            graph[name_of(file).removesuffix(".py").replace("/", ".")] |= {module, module.rpartition(".")[0]} & modules
    TopologicalSorter(graph).prepare()  # raises CycleError


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("frontend/requests/prompt_request.py", "frontend.api.parameters.sampling"),
        ("frontend/metrics/process_collector.py", "frontend.api.operate.load"),
        ("frontend/http/stream.py", "frontend.api.answers.conversation"),
        ("frontend/api/anthropic/body.py", "frontend.api.openai.body"),
        ("frontend/api/generate/generate.py", "frontend.api.operate.health"),
        ("frontend/api/parameters/sampling.py", "frontend.api.answers.tools"),
        ("frontend/recovery/quarantine.py", "frontend.metrics.distribution"),
        ("supervisor/lifecycle.py", "supervisor.admin.tasks"),
        ("scheduler_proc/deciding/pages/block_allocator.py", "scheduler_proc.deciding.rows.decode_rows"),
        ("scheduler_proc/deciding/rows/decode_rows.py", "scheduler_proc.deciding.drafting.draft_state"),
        ("scheduler_proc/deciding/requests.py", "scheduler_proc.deciding.pages.radix"),
        ("kernels/gpu/rms_norm.py", "kernels.operations.rms_norm"),
        ("kernels/cpu/launchers.py", "kernels.gpu.launch_table"),
        ("kernels/operations/rms_norm.py", "kernels.formats.plain"),
        ("messages/control/processes.py", "messages.ring.requests"),
        ("messages/ring/requests.py", "messages.channels"),
        ("runtime/run_dir.py", "runtime.process"),
        ("tokenizer_proc/thoughts.py", "tokenizer_proc.grammars"),
        ("scheduler_proc/computing/model/decoder.py", "scheduler_proc.computing.kv_cache.kv_tensors"),
        ("scheduler_proc/computing/backends/cpu/weight_memory.py", "scheduler_proc.computing.loading.weights"),
    ],
)
def test_the_layers_forbid(name: str, module: str):
    package = find_package(name)
    assert package is not None
    assert not is_downward(package, name, module)


def test_the_law_covers_every_package_of_the_distribution():
    tops = {file.parent.name for file in ROOT.glob("*/__init__.py")} - {"tests", "benchmarks", "tools"}
    assert tops <= set(PLACES)


def test_an_import_by_name_is_seen():
    tree = ast.parse("import importlib\nlibrary = importlib.import_module('torch')\nimport_module(f'kernels.{name}')")
    assert [module for module, _ in imports_of(tree)] == ["importlib", "torch"]


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("frontend/http/app.py", "tokenizer_proc.encoding"),
        ("frontend/http/app.py", "torch"),
        ("tokenizer_proc/process.py", "torch"),
        ("detokenizer_proc/process.py", "transformers"),
        ("scheduler_proc/deciding/pages/pages.py", "numpy"),
        ("scheduler_proc/deciding/pages/pages.py", "scheduler_proc.computing.load_runner"),
        ("messages/config/server.py", "zmq"),
        ("messages/config/server.py", "runtime.process"),
        ("messages/channels.py", "frontend"),
        ("runtime/process.py", "zmq"),
        ("runtime/process.py", "frontend"),
        ("scheduler_proc/deciding/pages/pages.py", "runtime.process"),
        ("launch.py", "msgspec"),
        ("supervisor/run.py", "huggingface_hub"),
        ("supervisor/run.py", "frontend"),
        ("kernels/norm.py", "messages"),
        ("extras/whatif/outcome.py", "torch"),
        ("scheduler_proc/stepper.py", "extras.whatif.cost_model"),
        ("frontend/process.py", "extras.batches.part"),
        ("messages/config/server.py", "extras.batches.config"),
        ("runtime/extras.py", "extras"),
        ("runtime/process.py", "extras.faults.faults"),
        ("supervisor/run.py", "extras.remote.join_keys"),
        ("extras/live/feed.py", "extras.batches.store"),
        ("extras/replay/recording.py", "extras.remote.messages"),
    ],
)
def test_the_law_forbids(name: str, module: str):
    assert not is_allowed(module, rule_for(name))
