"""Compares the results of lm-evaluation-harness through a running server with those of transformers on the same model.

    python launch.py --model DIR --dtype float32 --port 8000
    python tools/compare_lm_eval.py --model DIR --url http://127.0.0.1:8000 --text TEXT_FILE

The tasks are made of a text: which of four lines comes next (the harness scores each by `echo` and `logprobs`), and
the perplexity of passages. Needs `.venv/bin/pip install -e '.[eval]'`. Exits with 1 if a number differs by more than
1e-4.
"""

import argparse
import importlib
import json
import os
import random
import sys
import tempfile
import urllib.request
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

TOLERANCE = 1e-4
NUM_CONTEXT_LINES = 4
NUM_CHOICES = 4
LINES_A_PASSAGE = 8
TOKENIZING = "add_bos_token=False"
"""The two backends of the harness differ in their default."""

CHOICE_TASK = """
task: next_line
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
output_type: multiple_choice
test_split: test
doc_to_text: "{{{{context}}}}"
doc_to_choice: choices
doc_to_target: answer
target_delimiter: ""
metric_list:
  - {{metric: acc}}
  - {{metric: acc_norm}}
"""

PASSAGE_TASK = """
task: passages
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
output_type: loglikelihood_rolling
test_split: test
doc_to_text: ""
doc_to_target: "{{{{text}}}}"
metric_list:
  - {{metric: word_perplexity}}
  - {{metric: byte_perplexity}}
  - {{metric: bits_per_byte}}
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="the model's directory")
    parser.add_argument("--url", required=True, help="a server of that model, with --dtype float32")
    parser.add_argument("--text", required=True, type=Path, help="a text file whose lines make the tasks")
    parser.add_argument("--documents", type=int, default=50, help="documents of each task (default: 50)")
    options = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    lines = [line for line in options.text.read_text(encoding="utf-8").splitlines() if len(line) > 20]
    with tempfile.TemporaryDirectory() as directory:
        os.environ["HF_DATASETS_CACHE"] = str(Path(directory) / "cache")
        write_tasks(Path(directory), lines, options.documents)
        reference = evaluate("hf", f"pretrained={options.model},dtype=float32,device=cpu,{TOKENIZING}", directory)
        card = ask(options.url)
        server = f"model={card['id']},base_url={options.url}/v1/completions,max_length={card['max_model_len']}"
        arguments = f"{server},tokenizer={options.model},num_concurrent=8,{TOKENIZING}"
        found = evaluate("local-completions", arguments, directory)
    return compare(reference, found)


def write_tasks(directory: Path, lines: Sequence[str], num_documents: int) -> None:
    """Writes both tasks and their documents, the same for the same text."""
    chance = random.Random(0)
    choices = [choice_document(lines, chance) for _ in range(num_documents)]
    starts = [chance.randrange(len(lines) - LINES_A_PASSAGE) for _ in range(num_documents)]
    passages = [{"text": "\n".join(lines[start : start + LINES_A_PASSAGE])} for start in starts]
    for name, task, documents in (("next_line", CHOICE_TASK, choices), ("passages", PASSAGE_TASK, passages)):
        file = directory / f"{name}.jsonl"
        file.write_text("".join(json.dumps(document) + "\n" for document in documents), encoding="utf-8")
        (directory / f"{name}.yaml").write_text(task.format(file=file), encoding="utf-8")


def choice_document(lines: Sequence[str], chance: random.Random) -> dict[str, Any]:
    start = chance.randrange(len(lines) - NUM_CONTEXT_LINES - 1)
    following = lines[start + NUM_CONTEXT_LINES]
    choices = [following, *chance.sample(lines, NUM_CHOICES - 1)]
    chance.shuffle(choices)
    context = "\n".join(lines[start : start + NUM_CONTEXT_LINES])
    return {"context": context + "\n", "choices": choices, "answer": choices.index(following)}


def evaluate(model: str, arguments: str, directory: str) -> dict[str, Any]:
    """Returns the harness's results by task, the log-likelihood of every document included."""
    harness: Any = importlib.import_module("lm_eval")
    manager = importlib.import_module("lm_eval.tasks").TaskManager(include_path=directory, include_defaults=False)
    found = harness.simple_evaluate(
        model=model,
        model_args=arguments,
        tasks=["next_line", "passages"],
        task_manager=manager,
        log_samples=True,
        bootstrap_iters=0,
    )
    return {"metrics": found["results"], "likelihoods": likelihoods_of(found["samples"])}


def likelihoods_of(samples: dict[str, Any]) -> dict[str, list[float]]:
    """Returns all log-likelihoods of each task, in the order of its documents."""
    found: dict[str, list[float]] = {}
    for task, documents in samples.items():
        ordered = sorted(documents, key=lambda document: document["doc_id"])
        found[task] = [float(value) for document in ordered for value in numbers_of(document["filtered_resps"])]
    return found


def numbers_of(responses: Iterable[Any]) -> Iterable[float]:
    """Yields the log-likelihoods: a response is one, or a pair of one and whether it is the greedy choice."""
    for response in responses:
        yield response[0] if isinstance(response, list | tuple) else response


def ask(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{url}/v1/models") as reply:
        return json.loads(reply.read())["data"][0]


def compare(reference: dict[str, Any], served: dict[str, Any]) -> int:
    """Prints both side by side. Returns 1 if they differ."""
    worst = 0.0
    for task, metrics in reference["metrics"].items():
        for name, value in metrics.items():
            if isinstance(value, float):
                other = served["metrics"][task][name]
                worst = max(worst, abs(value - other) / max(1.0, abs(value)))
                sys.stdout.write(f"{task:12}{name:24}{value:14.6f}{other:14.6f}\n")
    for task, values in reference["likelihoods"].items():
        others = served["likelihoods"][task]
        assert len(values) == len(others) > 0, f"{task}: {len(values)} and {len(others)} log-likelihoods"
        differences = [abs(one - other) / max(1.0, abs(one)) for one, other in zip(values, others, strict=True)]
        worst = max(worst, *differences)
        sys.stdout.write(
            f"{task:12}{len(values)} log-likelihoods, largest relative difference {max(differences):.2e}\n"
        )
    sys.stdout.write(f"largest relative difference of all: {worst:.2e} (allowed: {TOLERANCE:g})\n")
    return 0 if worst <= TOLERANCE else 1


if __name__ == "__main__":
    raise SystemExit(main())
