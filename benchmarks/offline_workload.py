"""The field's offline workload: the prompts and lengths of nano-vllm's and mini-sglang's benchmark."""

import random

SHORTEST, LONGEST = 100, 1024
LARGEST_PROMPT_ID = 10_000
TEMPERATURE = 0.6


def offline_workload(num_sequences: int = 256, longest: int = LONGEST) -> tuple[list[list[int]], list[int]]:
    """Returns prompts and numbers of output tokens, the same in every run: their calls, in their order, of seed 0."""
    chooser = random.Random(0)
    shortest = min(SHORTEST, longest)
    prompts = [
        [chooser.randint(0, LARGEST_PROMPT_ID) for _ in range(chooser.randint(shortest, longest))]
        for _ in range(num_sequences)
    ]
    return prompts, [chooser.randint(shortest, longest) for _ in range(num_sequences)]
