"""Computes the texts of a checkpoint in many ways, in every form of weights, and compares the bits of their logprobs.

A token's logprob depends on all of its logits: if any bit of its hidden state differs, so does the logprob. The texts
are computed token by token, in steps of decode rows, and every other way is compared with that.

All checkpoints, forms and ways, or those named: python -m tests.scheduler_proc.bits [NAME ...]
"""

import sys
import tempfile
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from messages.ring.requests import UserMsg
from scheduler_proc.computing.load_runner import load_runner
from scheduler_proc.computing.loading.checkpoint import READERS
from scheduler_proc.computing.loading.sources.safetensors_file import SafetensorsFile
from scheduler_proc.computing.loading.sources.tensor_file import NUMBERS, StoredTensor
from scheduler_proc.computing.runner import Runner
from scheduler_proc.deciding.drafting.drafts import Draft
from scheduler_proc.deciding.pages.open_cache import open_cache
from scheduler_proc.deciding.pages.running_request import Req
from scheduler_proc.deciding.pages.state_plans import REWRITTEN_TOKENS
from scheduler_proc.deciding.requests import Limits
from scheduler_proc.deciding.scheduler import Scheduler
from scheduler_proc.deciding.step_plan import Budget
from tests.checkpoints import CONTEXT, EVERY_ARCHITECTURE, GPT2_VARIANTS, VOCAB_SIZE, build_checkpoint, make_config
from tests.gguf_models import small_blocks
from tests.scheduler_proc.clients import Inbox, user_msg
from tests.scheduler_proc.simulated_drafter import plan_all_drafts

PAGE_SIZE, OTHER_PAGE_SIZES, NUM_PAGES = 4, (1, 16, 128), 3000
PLENTY, SCARCE, SCARCE_STATES = 400, 38, 4
NUM_TEXTS, NUM_TOP = 8, 2
LENGTH = 48
"""Tokens of each text. `tests/kernels/operations/test_attention_bits.py` has longer ones."""

VARIANTS = list(dict.fromkeys(variant for variants in EVERY_ARCHITECTURE.values() for variant in variants))


@dataclass(frozen=True)
class Form:
    """How weights are stored: flags of the server, and the forms of matrices in the file, coarse and fine."""

    flags: Mapping[str, str] = field(default_factory=dict)
    blocks: tuple[str, str] | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Fields of config.json."""


FORMS = {
    "float32": Form({"dtype": "float32"}),
    "bfloat16": Form({"dtype": "bfloat16"}),
    "int8": Form({"dtype": "bfloat16", "quantization": "int8"}),
    "int4": Form({"dtype": "bfloat16", "quantization": "int4"}),
    "int8-float32": Form({"dtype": "float32", "quantization": "int8"}),
    "int4-float32": Form({"dtype": "float32", "quantization": "int4"}),
    "Q4_K_M": Form({"dtype": "auto"}, ("Q4_K", "Q6_K"), {"hidden_size": 256, "intermediate_size": 256}),
    "Q8_0": Form({"dtype": "auto"}, ("Q8_0", "Q8_0")),
    "MXFP4": Form({"dtype": "auto"}, ("MXFP4", "Q8_0")),
    "Q4_0-bfloat16": Form({"dtype": "bfloat16"}, ("Q4_0", "Q5_1")),
    "int8-cache": Form({"dtype": "bfloat16", "kv_cache_dtype": "int8"}),
    "int8-cache-float32": Form({"dtype": "float32", "kv_cache_dtype": "int8"}),
}
SMALLER_BLOCKS = {"Q4_K": "Q5_0", "Q6_K": "Q8_0"}
"""What llama.cpp stores where rows are not whole blocks of 256."""

FINE = ("down_proj", "v_proj", "lm_head", "embed_tokens")
"""Parts of the names of matrices that are stored finely."""


class BlocksFile(SafetensorsFile):
    """A file with random blocks in place of the matrices whose rows are whole blocks."""

    def __init__(self, path: Path, blocks: tuple[str, str]):
        super().__init__(path)
        self._blocks = blocks

    def forms(self) -> dict[str, str]:
        return {name: self._form_of(name, tensor) for name, tensor in super().read(list(super().forms()))}

    def read(self, names: list[str]) -> Iterator[tuple[str, Any]]:
        for name, tensor in super().read(names):
            yield name, self._in_blocks(name, tensor)

    def _in_blocks(self, name: str, tensor: Tensor) -> StoredTensor:
        form = self._form_of(name, tensor)
        return tensor if form == NUMBERS else small_blocks(form, tensor.shape[0], tensor.shape[1], sum(name.encode()))

    def _form_of(self, name: str, tensor: Tensor) -> str:
        if tensor.dim() != 2 or not name.endswith(".weight") or tensor.shape[1] % 32:
            return NUMBERS
        form = self._blocks[any(part in name for part in FINE)]
        return SMALLER_BLOCKS.get(form, form) if tensor.shape[1] % 256 else form


class Texts:
    """What `runner` computes token by token, each text from one token on. `load` loads the checkpoint once more."""

    def __init__(self, runner: Runner, load: Callable[..., Runner] | None = None):
        self.runner, self.load = runner, load
        first = Run(self, Budget(NUM_TEXTS, 4096))
        begins = [37 * text + 5 for text in range(NUM_TEXTS)]
        requests = [user_msg(text, [begin], LENGTH - 1, **params_of(text)) for text, begin in enumerate(begins)]
        first.finish(requests)
        self.ids = [[begin, *first.inbox.tokens[text, 0]] for text, begin in enumerate(begins)]
        self.logprobs = [first.inbox.logprobs[text, 0] for text in range(NUM_TEXTS)]


def open_texts(path: Path, variant: str, form: str) -> Texts:
    """Writes the checkpoint into `path`, and computes its texts."""
    own = FORMS[form]
    sizes: dict[str, Any] = {} if variant in GPT2_VARIANTS else {"intermediate_size": 96, **own.sizes}
    build_checkpoint(path, variant, **sizes)

    def load(**flags: Any) -> Runner:
        config = make_config(path, **{"block_size": PAGE_SIZE, "num_pages": NUM_PAGES, **own.flags, **flags})
        reader = SafetensorsFile if own.blocks is None else partial(BlocksFile, blocks=own.blocks)
        with mock.patch.dict(READERS, safetensors=reader):
            return load_runner(config, lambda text, fraction: None)

    return Texts(load(), load)


def params_of(text: int) -> dict[str, Any]:
    return {"temperature": 1.0, "seed": text, "num_logprobs": NUM_TOP}


class TextDrafter:
    """Proposes up to 7 tokens that come next in the texts; in every second draft, one is wrong."""

    def __init__(self, texts: Texts):
        self._texts, self._num_drafts = texts, 0

    def propose(self, req: Req, max_tokens: int) -> Draft:
        ids = list(req.token_ids)
        text = next((own for own in self._texts.ids if own[: len(ids)] == ids), ids)
        drafts = text[len(ids) : len(ids) + min(max_tokens, 1 + self._num_drafts % 7)]
        self._num_drafts += 1
        if drafts and self._num_drafts % 2:
            drafts[len(drafts) // 2] ^= 1
        return Draft(array("i", drafts), [1.0] * len(drafts))


class Run:
    """A scheduler with an empty cache, before a model of the texts."""

    def __init__(self, texts: Texts, budget: Budget, num_pages: int = PLENTY, *, is_drafting: bool = False):
        self.texts, self.inbox = texts, Inbox()
        self.sent: list[UserMsg] = []
        self._runner, self._budget = texts.runner, budget
        self._open(num_pages, PAGE_SIZE, is_drafting=is_drafting)

    def _open(self, num_pages: int, page_size: int, *, is_drafting: bool = False) -> None:
        windows, states = self._runner.windows, self._runner.states
        windows = windows and (windows[0], min(windows[1], num_pages))
        if states is not None and num_pages == SCARCE:
            states = states._replace(num_slots=SCARCE_STATES)
        cache = open_cache(num_pages, page_size, True, None, None, windows, states)
        planner = plan_all_drafts(cache, TextDrafter(self.texts)) if is_drafting else None
        self.scheduler = Scheduler(cache, Limits(CONTEXT, VOCAB_SIZE), self._budget, planner)

    def use_pages_of(self, page_size: int) -> None:
        """Loads the checkpoint again, with pages of this size."""
        assert self.texts.load is not None
        self._runner = self.texts.load(block_size=page_size)
        self._open(PLENTY, page_size)

    def send(self, text: int, num_prompt: int, num_sent: int = 0, max_tokens: int = LENGTH, **params: Any) -> None:
        """Requests the text from its first `num_prompt` tokens on; `num_sent` after them were computed elsewhere."""
        ids, uid = self.texts.ids[text], NUM_TEXTS * len(self.sent) + text
        request = user_msg(
            uid,
            ids[:num_prompt],
            min(max_tokens, LENGTH - num_prompt),
            int(num_sent > 0),
            ids[num_prompt : num_prompt + num_sent],
            **(params_of(text) | params),
        )
        self.sent.append(request)
        self.scheduler.receive(request)

    def finish(self, requests: Sequence[UserMsg] = ()) -> None:
        for request in requests:
            self.scheduler.receive(request)
        while (batch := self.scheduler.schedule()) is not None:
            self.scheduler.commit(self._runner.run(batch))
            self.inbox.take(self.scheduler.pop_replies())
        self.inbox.take(self.scheduler.pop_replies())

    def differences(self) -> list[str]:
        """Finishes all requests; returns where tokens and logprobs are not those of the texts."""
        self.finish()
        found: list[str] = []
        for request in self.sent:
            key, text = (request.uid, request.attempt), request.uid % NUM_TEXTS
            ids, values = self.texts.ids[text], self.texts.logprobs[text]
            begin = (len(request.input_ids) + len(request.output_ids)) // 4
            tokens = self.inbox.tokens[key]
            assert tokens, "no token to compare"
            if tokens != ids[begin : begin + len(tokens)]:
                found.append(f"tokens of text {text} after {begin}")
                continue
            logprobs = dict(enumerate(self.inbox.logprobs[key], begin))
            logprobs |= dict(enumerate(self.inbox.prompt_logprobs.get(key, ()), 1))
            for position, ours in logprobs.items():
                theirs = values[position - 1]
                if ours != theirs:
                    found.append(f"text {text} token {position} after {begin}: {ours[1] - theirs[1]:+.1e}")
        return found


def alone(texts: Texts) -> list[str]:
    run = Run(texts, Budget(1, 4096))
    for text in (0, 3):
        run.send(text, 1)
    return run.differences()


def as_one_prompt(texts: Texts) -> list[str]:
    run = Run(texts, Budget(1, 4096))
    for text in range(NUM_TEXTS):
        run.send(text, LENGTH - 1, num_prompt_logprobs=NUM_TOP, cache_salt=str(text))
    return run.differences()


def as_prompts_of_any_length(texts: Texts) -> list[str]:
    """In the last layer, only the last token is computed."""
    run = Run(texts, Budget(1, 4096))
    for end in range(2, LENGTH):
        run.send(end % NUM_TEXTS, end, max_tokens=1, cache_salt=str(end))
    return run.differences()


def in_chunks(texts: Texts) -> list[str]:
    found: list[str] = []
    for size in (1, 7, 32):
        run = Run(texts, Budget(4, size))
        for text in range(4):
            run.send(text, LENGTH - 1, num_prompt_logprobs=NUM_TOP if text % 2 else None, cache_salt=str(text))
        found += [f"{size} tokens a step: {difference}" for difference in run.differences()]
    return found


def after_hits(texts: Texts) -> list[str]:
    """At every page boundary: each prompt has a page more than the one before. States are kept at some boundaries."""
    run = Run(texts, Budget(1, 4096))
    ends = range(PAGE_SIZE, LENGTH - REWRITTEN_TOKENS, PAGE_SIZE)
    for end in ends:
        run.send(0, end + REWRITTEN_TOKENS, max_tokens=1)
    for end in ends:
        run.send(0, end + 1, max_tokens=1)
    found = run.differences()
    hits = {run.inbox.finished[request.uid, 0].usage.cached_tokens for request in run.sent}
    assert hits.issuperset(ends[:-1]) or (texts.runner.states and len(hits) > 2), hits
    return found


def with_others(texts: Texts) -> list[str]:
    """Prompts of many lengths, in steps with decode rows."""
    run = Run(texts, Budget(NUM_TEXTS, 48))
    for turn in range(2):
        for text in range(NUM_TEXTS):
            run.send(text, 1 + (text * 11 + turn * 29) % (LENGTH - 6), cache_salt=str(turn))
    return run.differences()


def preempted(texts: Texts) -> list[str]:
    run = Run(texts, Budget(NUM_TEXTS, 40), SCARCE)
    for text in range(NUM_TEXTS):
        run.send(text, 1 + 5 * text)
    found = run.differences()
    assert run.scheduler.gauges()["preemptions"] > 0
    return found


def with_drafts(texts: Texts) -> list[str]:
    found: list[str] = []
    for num_rows in (1, NUM_TEXTS):
        run = Run(texts, Budget(num_rows, 64), is_drafting=True)
        for text in range(NUM_TEXTS):
            run.send(text, 1 + 5 * text)
        found += run.differences()
        gauges = run.scheduler.gauges()
        assert gauges["draft_tokens"] - 10 > gauges["accepted_tokens"] > 10
    return found


def continued(texts: Texts) -> list[str]:
    """After a restart the cache is empty, and clients have some tokens."""
    run = Run(texts, Budget(NUM_TEXTS, 64))
    for text in range(NUM_TEXTS):
        run.send(text, 1 + 3 * text, 5 + 2 * text)
    return run.differences()


def call_by_call(texts: Texts) -> list[str]:
    """Steps are not captured, and no calls of a layer are repeated for others."""
    passes: Any = texts.runner.forward_passes
    with mock.patch.multiple(passes, can_capture=False, repeats=None):
        return prompts_of_some_lengths(Run(texts, Budget(4, 64)))


def prompts_of_some_lengths(run: Run, **params: Any) -> list[str]:
    for text in range(NUM_TEXTS):
        run.send(text, 1 + 5 * text, **params)
    return run.differences()


def without_logprobs(texts: Texts) -> list[str]:
    """Captured steps then draw their tokens."""
    return prompts_of_some_lengths(Run(texts, Budget(NUM_TEXTS, 64)), num_logprobs=None)


def in_other_pages(texts: Texts) -> list[str]:
    found: list[str] = []
    for size in OTHER_PAGE_SIZES:
        run = Run(texts, Budget(4, 64))
        run.use_pages_of(size)
        found += [f"pages of {size}: {difference}" for difference in prompts_of_some_lengths(run)]
    return found


def with_threads(texts: Texts) -> list[str]:
    found: list[str] = []
    before = torch.get_num_threads()
    for number in (2, 3):
        torch.set_num_threads(number)
        try:
            found += [f"{number} threads: {difference}" for difference in as_one_prompt(texts) + with_others(texts)]
        finally:
            torch.set_num_threads(before)
    return found


Way = Callable[[Texts], list[str]]
"""Returns where it differs."""

WAYS: dict[str, Way] = {
    way.__name__: way
    for way in (
        *(alone, as_one_prompt, with_others, in_chunks, with_drafts, as_prompts_of_any_length, continued, preempted),
        *(after_hits, call_by_call, without_logprobs, in_other_pages, with_threads),
    )
}


def main(names: Sequence[str]) -> None:
    """Prints the first difference of each way, for the checkpoints, forms and ways of these names, or all."""
    chosen = [[name for name in known if name in names] or list(known) for known in (VARIANTS, FORMS, WAYS)]
    for variant in chosen[0]:
        for form in chosen[1]:
            with tempfile.TemporaryDirectory() as folder:
                try:
                    texts = open_texts(Path(folder), variant, form)
                except Exception as error:  # some families do not have these sizes
                    print(f"{variant} {form}: not built: {type(error).__name__} {str(error)[:100]}", flush=True)
                    continue
                found = {way: WAYS[way](texts) for way in chosen[2]}
            texts_of = [f"{way}: {len(each)}, first {each[0]}" for way, each in found.items() if each]
            print(f"{variant} {form}: {'; '.join(texts_of) or 'equal'}", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1:])
