"""Compares a served GGUF file with llama.cpp on the same file: greedy tokens, and perplexity.

    python -m benchmarks.experiments.gguf_0101.compare_llama_cpp --sluice URL --peer URL --perplexity BIN --gguf FILE

Greedy texts are compared up to their first difference, whose margin shows whether it was a near tie: the difference of
the logprobs of the two best tokens, in both servers. Perplexity is llama-perplexity's: the second half of each chunk of
512 tokens of plain text.
"""

import argparse
import json
import math
import re
import statistics
import subprocess
from pathlib import Path
from typing import Any

from benchmarks.load.connection import Target, parse_url
from benchmarks.load.server_facts import post_json
from benchmarks.result_file import write_result

SHARED = Path("../shared/prompts")
CHUNK = 512
TIMEOUT_S = 600.0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sluice", required=True, metavar="URL")
    parser.add_argument("--peer", required=True, metavar="URL", help="llama-server")
    parser.add_argument("--perplexity", type=Path, help="the program llama-perplexity")
    parser.add_argument("--gguf", type=Path, required=True)
    parser.add_argument("--prompts", type=int, default=50)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--chunks", type=int, default=16)
    parser.add_argument("--text", type=Path, default=SHARED / "tinyshakespeare" / "input.txt")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    ours, peer = (Target(*parse_url(url), timeout_s=TIMEOUT_S) for url in (options.sluice, options.peer))
    results: dict[str, Any] = {"gguf": options.gguf.name, "greedy": compare_greedy(ours, peer, options)}
    if options.perplexity:
        results["perplexity"] = compare_perplexity(ours, options)
    print(json.dumps({name: value for name, value in results.items() if name != "greedy"}))
    print(json.dumps(results["greedy"]["summary"]))
    if options.json:
        write_result(options.json, "gguf_greedy", results)
    return 0


def compare_greedy(ours: Target, peer: Target, options: argparse.Namespace) -> dict[str, Any]:
    lines = (SHARED / "mt-bench" / "question.jsonl").read_text(encoding="utf-8").splitlines()
    questions = [json.loads(line)["turns"][0] for line in lines][: options.prompts]
    found: list[dict[str, Any]] = []
    for question in questions:
        messages = [{"role": "user", "content": question}]
        ids = post_json(ours, "/tokenize", {"messages": messages})["tokens"]
        own, own_margins = our_greedy(ours, ids, options.tokens)
        other, other_margins = peer_greedy(peer, ids, options.tokens)
        same = next((i for i, (a, b) in enumerate(zip(own, other, strict=False)) if a != b), None)
        differs = same is not None
        found.append(
            {
                "tokens": len(own),
                "equal": same if differs else min(len(own), len(other)),
                "margin": own_margins[same] if differs else None,
                "peer_margin": other_margins[same] if differs else None,
            }
        )
    margins = [max(line["margin"], line["peer_margin"]) for line in found if line["margin"] is not None]
    summary = {
        "prompts": len(found),
        "equal_to_the_end": sum(line["margin"] is None for line in found),
        "median_equal_tokens": statistics.median(line["equal"] for line in found),
        "largest_margin_at_a_difference": max(margins, default=0.0),
        "median_margin_at_a_difference": statistics.median(margins) if margins else 0.0,
    }
    return {"summary": summary, "prompts": found}


def our_greedy(target: Target, ids: list[int], num_tokens: int) -> tuple[list[int], list[float]]:
    body = {"prompt": ids, "max_tokens": num_tokens, "temperature": 0.0, "logprobs": 2, "stream": False}
    reply = post_json(target, "/generate", body)
    return reply["token_ids"], [_margin(token["top"]) for token in reply["logprobs"]]


def peer_greedy(target: Target, ids: list[int], num_tokens: int) -> tuple[list[int], list[float]]:
    body = {"prompt": ids, "n_predict": num_tokens, "temperature": 0.0, "n_probs": 2, "cache_prompt": False}
    tokens = post_json(target, "/completion", body)["completion_probabilities"]
    return [token["id"] for token in tokens], [_margin(token["top_logprobs"]) for token in tokens]


def _margin(top: list[dict[str, Any]]) -> float:
    first, second = sorted((float(token["logprob"]) for token in top), reverse=True)[:2]
    return first - second


def compare_perplexity(ours: Target, options: argparse.Namespace) -> dict[str, float]:
    command = [options.perplexity, "-m", options.gguf, "-f", options.text, "-c", CHUNK, "--chunks", options.chunks]
    result = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=True)
    estimate = re.search(r"PPL = ([\d.]+)", result.stdout + result.stderr)
    assert estimate is not None
    text = options.text.read_text(encoding="utf-8")[: 8 * CHUNK * options.chunks]
    ids = post_json(ours, "/tokenize", {"prompt": text, "add_special_tokens": False})["tokens"]
    total, count = 0.0, 0
    for chunk in range(options.chunks):
        part = ids[chunk * CHUNK : (chunk + 1) * CHUNK]
        body = {"prompt": part, "max_tokens": 1, "temperature": 0.0, "prompt_logprobs": 0, "stream": False}
        logprobs = post_json(ours, "/generate", body)["prompt_logprobs"]
        for token in logprobs[CHUNK // 2 + 1 :]:  # llama-perplexity predicts from the middle token on
            (found,) = token.values()
            total, count = total - found["logprob"], count + 1
    return {"sluice": math.exp(total / count), "llama.cpp": float(estimate[1])}


if __name__ == "__main__":
    raise SystemExit(main())
