"""Records what a trained model writes, by transformers in float32 on the CPU: tokens that every other way must give.

    python -m tools.record_golden assets/shakespeare-gpt2 'ROMEO:' 'First Citizen:' …

golden.json in the model's directory has, for each prompt, its token ids, the greedy output, and the least distance of
the two best logits on the way: float32 on any device errs by far less. A prompt that comes nearer is refused.
"""

import argparse
import json
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, __version__

NUM_TOKENS = 96
LEAST_MARGIN = 1e-3


def main(arguments: list[str] | None = None) -> int:
    """Returns 0, or 1 if the choice of a token is too close to be the same on all machines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model_dir", type=Path)
    parser.add_argument("prompts", nargs="+")
    options = parser.parse_args(arguments)
    model = AutoModelForCausalLM.from_pretrained(options.model_dir, dtype=torch.float32).eval()
    tokenizer = Tokenizer.from_file(str(options.model_dir / "tokenizer.json"))
    cases: list[dict[str, object]] = []
    for prompt in options.prompts:
        prompt_ids = tokenizer.encode(prompt).ids
        output_ids, margin = generate(model, prompt_ids)
        if margin < LEAST_MARGIN:
            print(f"{prompt!r}: two logits are {margin:.1e} apart; choose another prompt", file=sys.stderr)
            return 1
        case: dict[str, object] = {"prompt": prompt, "prompt_ids": prompt_ids, "output_ids": output_ids}
        cases.append(case | {"min_top1_top2_margin": round(margin, 5)})
    how = f"transformers {__version__}, float32, CPU, greedy, each token from the whole text before it"
    text = json.dumps({"how": how, "cases": cases}, ensure_ascii=False)
    (options.model_dir / "golden.json").write_text(f"{text}\n", encoding="utf-8")
    return 0


@torch.no_grad()
def generate(model: torch.nn.Module, prompt_ids: list[int]) -> tuple[list[int], float]:
    """Returns the greedy output, past end tokens, and the least distance of the two best logits."""
    ids, margin = list(prompt_ids), float("inf")
    for _ in range(NUM_TOKENS):
        best = model(torch.tensor([ids])).logits[0, -1].topk(2)
        margin = min(margin, float(best.values[0] - best.values[1]))
        ids.append(int(best.indices[0]))
    return ids[len(prompt_ids) :], margin


if __name__ == "__main__":
    raise SystemExit(main())
