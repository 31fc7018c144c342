"""Drives a `Runner` as a scheduler would: plans steps from rows, and generates from prompts in any schedule."""

import random
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from messages.columns import pack_float32, pack_int32, pack_int64, unpack_float32, unpack_int32
from messages.ring.requests import SamplingParams
from messages.ring.steps import Batch, ForwardOutput, PromptLogprobTargets
from scheduler_proc.computing.runner import Runner
from tests.checkpoints import VOCAB_SIZE
from tests.scheduler_proc.computing.sampling.row_processing import RowProcessing, plan_logits_processing

GREEDY = SamplingParams(max_tokens=1, temperature=0.0)


@dataclass
class Row:
    """One request: `num_computed` of its `ids` (prompt and output) are in the cache, in `pages`.

    `window_pages`: those of windowed layers, if they have pages of their own; -1 before the window. `state_slot`: the
    slot of its recurrent state, if layers have one.
    """

    uid: int
    ids: list[int]
    num_prompt: int
    params: SamplingParams = GREEDY
    first_step: int = 0
    num_computed: int = 0
    pages: list[int] = field(default_factory=list)
    window_pages: list[int] = field(default_factory=list)
    state_slot: int = -1
    adapter_slot: int = -1

    @property
    def output_ids(self) -> list[int]:
        return self.ids[self.num_prompt :]


@dataclass(frozen=True)
class Schedule:
    """`chunk_tokens`: most prompt tokens of a row in a step. `stagger`: steps between two requests' first steps."""

    chunk_tokens: int = 1 << 30
    stagger: int = 0
    page_size: int = 16
    seed: int = 0


def generate(
    runner: Runner,
    prompts: Sequence[Sequence[int]],
    num_tokens: int | Sequence[int],
    schedule: Schedule = Schedule(),
    params: Sequence[SamplingParams] | None = None,
    adapter_slots: Sequence[int] = (),
) -> list[list[int]]:
    """Returns the output ids of each prompt. Pages are handed out in a random order of `schedule.seed`.

    A row that yields no token (-1) ends with it.
    """
    expected = [num_tokens] * len(prompts) if isinstance(num_tokens, int) else list(num_tokens)
    rows = [
        Row(index, list(prompt), len(prompt), params[index] if params else GREEDY, index * schedule.stagger)
        for index, prompt in enumerate(prompts)
    ]
    for row, slot in zip(rows, adapter_slots, strict=False):
        row.adapter_slot = slot
    free_pages = list(range(runner.num_pages))
    random.Random(schedule.seed).shuffle(free_pages)
    window, num_window_pages = runner.windows or (0, 0)
    free_window_pages = list(range(num_window_pages))
    random.Random(schedule.seed + 1).shuffle(free_window_pages)
    if runner.states is not None:
        for row, slot in zip(
            rows, random.Random(schedule.seed + 2).sample(range(runner.states.num_slots), len(rows)), strict=True
        ):
            row.state_slot = slot
    step_id = 0
    running = rows
    while running := [row for row in running if len(row.output_ids) < expected[row.uid] and row.ids[-1] >= 0]:
        planned = []
        for row in running:
            if row.first_step > step_id:
                continue
            num_new = min(schedule.chunk_tokens, len(row.ids) - row.num_computed)
            while len(row.pages) * schedule.page_size < row.num_computed + num_new:
                row.pages.append(free_pages.pop())
            for index in range(max(0, row.num_computed - window + 1) // schedule.page_size):
                if window and row.window_pages[index] >= 0:
                    free_window_pages.append(row.window_pages[index])
                    row.window_pages[index] = -1
            while window and len(row.window_pages) < len(row.pages):
                row.window_pages.append(free_window_pages.pop())
            planned.append((row, num_new))
        if planned:
            run_step(runner, step_id, planned, schedule.page_size)
        step_id += 1
    return [row.output_ids for row in rows]


def run_step(
    runner: Runner, step_id: int, planned: list[tuple[Row, int]], page_size: int
) -> tuple[list[tuple[Row, int]], ForwardOutput]:
    """Runs one step of these rows and numbers of tokens, and appends the tokens that it yields.

    Returns the rows in the order in which they ran, and what the step returned.
    """
    planned = sorted(planned, key=lambda item: not is_decode(*item))
    output = runner.run(plan_batch(step_id, planned, page_size))
    assert output.step_id == step_id
    sampling = [row for row, num_new in planned if row.num_computed + num_new == len(row.ids)]
    next_tokens = unpack_int32(output.next_tokens)
    for row, num_new in planned:
        row.num_computed += num_new
    for row, token in zip(sampling, next_tokens, strict=True):
        row.ids.append(token)
    return planned, output


def is_decode(row: Row, num_new: int) -> bool:
    return num_new == 1 and row.num_computed >= row.num_prompt


def plan_batch(step_id: int, planned: list[tuple[Row, int]], page_size: int) -> Batch:
    """Returns the plan of a step; decode rows come first in `planned`."""
    num_decode = sum(is_decode(row, num_new) for row, num_new in planned)
    num_pages = max(len(row.pages) for row, _ in planned)
    sampling = [i for i, (row, num_new) in enumerate(planned) if row.num_computed + num_new == len(row.ids)]
    params = [planned[i][0].params for i in sampling]
    ends = list(accumulate(num_new for _, num_new in planned))
    token_ids, positions, slots, window_slots = array("i"), array("i"), array("q"), array("q")
    for row, num_new in planned:
        for position in range(row.num_computed, row.num_computed + num_new):
            token_ids.append(row.ids[position])
            positions.append(position)
            slots.append(row.pages[position // page_size] * page_size + position % page_size)
            if row.window_pages:
                window_slots.append(row.window_pages[position // page_size] * page_size + position % page_size)
    return Batch(
        step_id=step_id,
        num_decode_rows=num_decode,
        uids=pack_int64(row.uid for row, _ in planned),
        query_lens=pack_int32(num_new for _, num_new in planned),
        context_lens=pack_int32(row.num_computed for row, _ in planned),
        token_ids=token_ids.tobytes(),
        positions=positions.tobytes(),
        slots=slots.tobytes(),
        page_tables=_tables([row.pages for row, _ in planned], num_pages),
        window_slots=window_slots.tobytes(),
        window_page_tables=_tables([row.window_pages for row, _ in planned], num_pages) if window_slots else b"",
        num_pages_per_row=num_pages,
        **_plan_states(planned),
        adapter_slots=_plan_adapters(planned),
        sample_tokens=pack_int32(ends[i] - 1 for i in sampling),
        temperatures=pack_float32(0.0 if p.is_greedy else p.temperature for p in params),
        top_ps=pack_float32(p.top_p for p in params),
        top_ks=pack_int32(p.top_k for p in params),
        min_ps=pack_float32(p.min_p for p in params),
        typical_ps=pack_float32(p.typical_p for p in params),
        seeds=pack_int64(p.seed for p in params),
        sample_positions=pack_int64(len(planned[i][0].ids) for i in sampling),
        logits_processing=plan_logits_processing([row_processing(planned[i][0]) for i in sampling], VOCAB_SIZE),
        num_logprobs=_plan_logprobs(params),
        prompt_logprobs=_plan_prompt_logprobs(planned),
    )


def _plan_states(planned: list[tuple[Row, int]]) -> dict[str, bytes]:
    if planned[0][0].state_slot < 0:
        return {}
    slots = (slot for row, num_new in planned for slot in (*[-1] * (num_new - 1), row.state_slot))
    sources = (row.state_slot if row.num_computed else -1 for row, _ in planned)
    return {"state_sources": pack_int32(sources), "state_slots": pack_int32(slots)}


def _plan_adapters(planned: list[tuple[Row, int]]) -> bytes:
    slots = [row.adapter_slot for row, _ in planned]
    return pack_int32(slots) if max(slots) >= 0 else b""


def row_processing(row: Row) -> RowProcessing:
    """Returns what the row's parameters change about its next token."""
    params = row.params
    biases = zip(unpack_int32(params.bias_ids), unpack_float32(params.bias_values), strict=True)
    penalties = params.repetition_penalty, params.frequency_penalty, params.presence_penalty
    allowed_ids = tuple(unpack_int32(params.allowed_token_ids)) or None
    return RowProcessing(allowed_ids, tuple(biases), *penalties, history=tuple(row.ids), num_prompt=row.num_prompt)


def _tables(rows: Sequence[list[int]], width: int) -> bytes:
    return pack_int32(page for pages in rows for page in [*pages, *[-1] * (width - len(pages))])


def _plan_logprobs(params: list[SamplingParams]) -> bytes:
    expected = [-1 if p.num_logprobs is None else p.num_logprobs for p in params]
    return pack_int32(expected) if any(number >= 0 for number in expected) else b""


def _plan_prompt_logprobs(planned: list[tuple[Row, int]]) -> PromptLogprobTargets | None:
    token_indices, target_ids, nums_top, first = array("i"), array("i"), [], 0
    for row, num_new in planned:
        if row.params.num_prompt_logprobs is not None:
            nums_top.append(row.params.num_prompt_logprobs)
            for position in range(row.num_computed, min(row.num_computed + num_new, row.num_prompt - 1)):
                token_indices.append(first + position - row.num_computed)
                target_ids.append(row.ids[position + 1])
        first += num_new
    return PromptLogprobTargets(token_indices.tobytes(), target_ids.tobytes(), max(nums_top)) if token_indices else None
