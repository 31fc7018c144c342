"""Logprobs of the runner against the log_softmax of transformers in float32, however prompts are cut into steps."""

import math
import random
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
import transformers
from torch import Tensor

from kernels.formats.plain import PlainWeight
from messages.columns import pack_int32, unpack_int32
from messages.ring.requests import SamplingParams
from messages.ring.steps import LogprobColumns
from scheduler_proc.computing.backends.cpu.device import CpuDevice
from scheduler_proc.computing.load_runner import load_runner
from scheduler_proc.computing.runner import Runner
from scheduler_proc.computing.sampling import logprobs
from tests.checkpoints import VOCAB_SIZE, build_checkpoint, make_config
from tests.scheduler_proc.computing.drive import Row, plan_batch, run_step
from tests.scheduler_proc.computing.sampling.row_processing import RowProcessing, plan_logits_processing

PAGE_SIZE = 16
TOLERANCE = 1e-4
GREEDY = SamplingParams(1, temperature=0.0)


@dataclass(frozen=True)
class Entry:
    token_id: int
    logprob: float
    top_ids: list[int]
    top_logprobs: list[float]


@dataclass(frozen=True)
class Loaded:
    model: "transformers.PreTrainedModel"
    runner: Runner


@pytest.fixture(scope="module", params=["gpt2", "llama-gqa-tied", "llama-biases"])
def loaded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    path = tmp_path_factory.mktemp(request.param)
    model = build_checkpoint(path, request.param)
    return Loaded(model, load_runner(make_config(path), lambda text, fraction: None))


def entries_of(columns: LogprobColumns | None) -> list[Entry]:
    if columns is None:
        return []
    num = len(columns.token_ids) // 4
    top_ids = np.frombuffer(columns.top_ids, np.int32).reshape(num, columns.num_top)
    top = np.frombuffer(columns.top_logprobs, np.float32).reshape(num, columns.num_top)
    chosen = np.frombuffer(columns.logprobs, np.float32)
    ids = unpack_int32(columns.token_ids)
    return [Entry(ids[i], float(chosen[i]), top_ids[i].tolist(), top[i].tolist()) for i in range(num)]


def make_rows(params: list[SamplingParams], lens: list[int]) -> list[Row]:
    chooser = random.Random(6)
    prompts = [[chooser.randrange(VOCAB_SIZE) for _ in range(length)] for length in lens]
    return [
        Row(i, prompt, len(prompt), params[i], pages=list(range(6 * i, 6 * i + 6))) for i, prompt in enumerate(prompts)
    ]


def run_all(runner: Runner, rows: list[Row], chunk_tokens: int, num_output: int) -> dict[int, list[list[Entry]]]:
    """Runs all rows until each has its output; returns by uid the entries of its prompt and of its output."""
    entries: dict[int, list[list[Entry]]] = {row.uid: [[], []] for row in rows}
    step_id = 0
    while running := [row for row in rows if len(row.output_ids) < num_output]:
        planned = [(row, min(chunk_tokens, len(row.ids) - row.num_computed)) for row in running]
        before = {row.uid: row.num_computed for row in running}
        planned, output = run_step(runner, step_id, planned, PAGE_SIZE)
        of_prompts, sampled = iter(entries_of(output.prompt_logprobs)), iter(entries_of(output.logprobs))
        for row, num_new in planned:
            if row.params.num_prompt_logprobs is not None:
                num_prompt = max(0, min(before[row.uid] + num_new, row.num_prompt - 1) - before[row.uid])
                entries[row.uid][0] += [next(of_prompts) for _ in range(num_prompt)]
            if row.params.num_logprobs is not None and row.num_computed >= row.num_prompt:
                entries[row.uid][1].append(next(sampled))
        assert next(of_prompts, None) is None
        assert next(sampled, None) is None
        step_id += 1
    return entries


def their_logprobs(model: "transformers.PreTrainedModel", ids: list[int]) -> Tensor:
    with torch.inference_mode():
        return model(torch.tensor([ids])).logits[0].float().log_softmax(-1)


def assert_entries(entries: list[Entry], ids: list[int], logprobs_LV: Tensor, num_top: int) -> None:
    """The entries are those of `ids`, one after each row of `logprobs_LV`."""
    assert [entry.token_id for entry in entries] == ids
    for entry, theirs_V in zip(entries, logprobs_LV, strict=True):
        assert abs(entry.logprob - float(theirs_V[entry.token_id])) < TOLERANCE
        top, top_ids = entry.top_logprobs[:num_top], entry.top_ids[:num_top]
        assert len(top) == len(set(top_ids)) == num_top
        assert top == sorted(top, reverse=True)
    if entries:
        top_LN = torch.tensor([entry.top_logprobs[:num_top] for entry in entries], dtype=torch.float32)
        top_ids_LN = torch.tensor([entry.top_ids[:num_top] for entry in entries], dtype=torch.int64)
        torch.testing.assert_close(top_LN, logprobs_LV.gather(1, top_ids_LN), rtol=0, atol=TOLERANCE)
        torch.testing.assert_close(top_LN, logprobs_LV.topk(num_top).values, rtol=0, atol=TOLERANCE)


PARAMS = [
    SamplingParams(1, temperature=0.0, num_logprobs=5, num_prompt_logprobs=3),
    SamplingParams(1, temperature=1.5, top_k=9, seed=1),
    SamplingParams(1, temperature=0.7, min_p=0.1, seed=2, num_logprobs=0, num_prompt_logprobs=0),
    SamplingParams(1, temperature=1.0, seed=3, num_prompt_logprobs=20),
    SamplingParams(1, temperature=0.0, num_logprobs=20),
    SamplingParams(1, temperature=0.0, num_logprobs=1, num_prompt_logprobs=1),
]
LENS = [40, 33, 17, 70, 16, 1]


@pytest.mark.parametrize("chunk_tokens", [1, 7, 16, 1000])
@pytest.mark.parametrize("slice_elements", [logprobs.MAX_LOGITS, 5 * VOCAB_SIZE, 1])
def test_logprobs_are_those_of_transformers(
    loaded: Loaded, chunk_tokens: int, slice_elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunked prompts with decode rows, and rows without logprobs between rows with some."""
    monkeypatch.setattr(CpuDevice, "max_logits", slice_elements)
    rows = make_rows(PARAMS, LENS)
    entries = run_all(loaded.runner, rows, chunk_tokens, 4)
    for row in rows:
        theirs_LV = their_logprobs(loaded.model, row.ids)
        in_prompt, in_output = entries[row.uid]
        if row.params.num_prompt_logprobs is not None:
            before_LV = theirs_LV[: row.num_prompt - 1]
            assert_entries(in_prompt, row.ids[1 : row.num_prompt], before_LV, row.params.num_prompt_logprobs)
        if row.params.num_logprobs is not None:
            after_LV = theirs_LV[row.num_prompt - 1 : -1]
            assert_entries(in_output, row.output_ids, after_LV, row.params.num_logprobs)


def test_a_prompt_whose_beginning_is_cached_has_logprobs_from_there_on(loaded: Loaded) -> None:
    (row,) = make_rows([SamplingParams(1, num_prompt_logprobs=2)], [50])
    first = msgspec.structs.replace(plan_batch(0, [(row, 32)], PAGE_SIZE), prompt_logprobs=None)
    loaded.runner.run(first)
    row.num_computed = 32
    in_prompt, _ = run_all(loaded.runner, [row], 1000, 1)[0]
    theirs_LV = their_logprobs(loaded.model, row.ids[:50])
    assert_entries(in_prompt, row.ids[33:50], theirs_LV[32:49], 2)


def test_logprobs_are_of_the_distribution_before_any_edit(loaded: Loaded) -> None:
    params = SamplingParams(1, temperature=1.7, top_k=3, seed=5, num_logprobs=4)
    rows = make_rows([params], [20])
    batch = plan_batch(0, [(rows[0], 20)], PAGE_SIZE)
    processing = plan_logits_processing(
        [RowProcessing(allowed_ids=(11, 12), biases=((11, 50.0),), repetition=2.0, history=(11, 12))], VOCAB_SIZE
    )
    output = loaded.runner.run(msgspec.structs.replace(batch, logits_processing=processing))
    assert list(unpack_int32(output.next_tokens)) == [11]
    assert_entries(entries_of(output.logprobs), [11], their_logprobs(loaded.model, rows[0].ids)[-1:], 4)


@pytest.mark.parametrize("asking", [[True, True, True], [False, True, True], [True, False, True]])
def test_a_row_without_a_token_keeps_its_place(loaded: Loaded, asking: list[bool]) -> None:
    """The first row fails; columns stay aligned, whether it wants logprobs or not."""
    params = [SamplingParams(1, temperature=0.0, num_logprobs=2 if asks else None) for asks in asking]
    rows = make_rows(params, [9, 12, 20])
    batch = plan_batch(0, [(row, len(row.ids)) for row in rows], PAGE_SIZE)
    sound = loaded.runner.run(batch)
    processing = plan_logits_processing([RowProcessing(allowed_ids=()), RowProcessing(), RowProcessing()], VOCAB_SIZE)
    output = loaded.runner.run(msgspec.structs.replace(batch, logits_processing=processing))
    assert list(unpack_int32(output.next_tokens)) == [-1, *unpack_int32(sound.next_tokens)[1:]]
    entries, expected = entries_of(output.logprobs), entries_of(sound.logprobs)
    assert len(entries) == len(expected) == sum(asking)
    assert entries[asking[0] :] == expected[asking[0] :]
    if asking[0]:
        assert entries[0].token_id == -1
        assert math.isnan(entries[0].logprob)
        assert entries[0].top_ids == expected[0].top_ids


def test_a_prompt_that_is_not_finite_fails_alone(tmp_path: Path) -> None:
    build_checkpoint(tmp_path, "llama-mha")
    runner = load_runner(make_config(tmp_path), lambda text, fraction: None)
    poisoned_token = 7
    poisoned_VE = runner._decoder.embedding.block.tokens_VE.stored.clone()
    poisoned_VE[poisoned_token] = float("nan")
    runner._decoder.embedding.block.tokens_VE = PlainWeight(poisoned_VE)
    params = SamplingParams(1, temperature=0.0, num_logprobs=1, num_prompt_logprobs=2)
    rows = make_rows([params] * 3, [10, 10, 10])
    for row in rows:
        row.ids[:] = [8 if token == poisoned_token else token for token in row.ids]
    batch = plan_batch(0, [(row, 10) for row in rows], PAGE_SIZE)
    sound = runner.run(batch)
    rows[1].ids[4] = poisoned_token
    output = runner.run(plan_batch(0, [(row, 10) for row in rows], PAGE_SIZE))
    tokens = list(unpack_int32(output.next_tokens))
    assert tokens[1] == -1
    assert tokens[::2] == list(unpack_int32(sound.next_tokens))[::2]
    assert entries_of(output.logprobs)[::2] == entries_of(sound.logprobs)[::2]
    found, expected = entries_of(output.prompt_logprobs), entries_of(sound.prompt_logprobs)
    assert len(found) == len(expected) == 27
    assert found[:9] + found[18:] == expected[:9] + expected[18:]
    assert all(math.isnan(entry.logprob) for entry in found[13:18])


def test_the_logits_of_a_prompt_are_never_there_all_at_once(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CpuDevice, "max_logits", 5 * VOCAB_SIZE)
    decoder, num_rows = loaded.runner._decoder, list[int]()
    head = decoder.logits

    def counted(hidden_NE: Tensor, out_NV: Tensor | None = None, slots_N: Tensor | None = None) -> Tensor:
        num_rows.append(len(hidden_NE))
        return head(hidden_NE, out_NV, slots_N)

    monkeypatch.setattr(decoder, "logits", counted)
    (row,) = make_rows([SamplingParams(1, num_prompt_logprobs=2)], [23])
    loaded.runner.run(plan_batch(0, [(row, 23)], PAGE_SIZE))
    assert num_rows == [1, 5, 5, 5, 5, 2]


def test_a_step_that_requests_none_returns_none(loaded: Loaded) -> None:
    rows = make_rows([GREEDY] * 2, [5, 6])
    batch = plan_batch(0, [(row, len(row.ids)) for row in rows], PAGE_SIZE)
    output = loaded.runner.run(batch)
    assert output.logprobs is None
    assert output.prompt_logprobs is None
    none_requested = msgspec.structs.replace(batch, num_logprobs=pack_int32([-1, -1]))
    assert loaded.runner.run(none_requested) == output


def test_a_step_with_prompt_logprobs_that_samples_nothing(loaded: Loaded) -> None:
    (row,) = make_rows([SamplingParams(1, num_prompt_logprobs=0)], [30])
    output = loaded.runner.run(plan_batch(0, [(row, 10)], PAGE_SIZE))
    assert output.next_tokens == b""
    entries = entries_of(output.prompt_logprobs)
    assert_entries(entries, row.ids[1:11], their_logprobs(loaded.model, row.ids[:10]), 0)


def test_no_more_alternatives_than_tokens(tmp_path: Path) -> None:
    model = build_checkpoint(tmp_path, "gpt2", vocab_size=12)
    runner = load_runner(make_config(tmp_path), lambda text, fraction: None)
    row = Row(0, [1, 2, 3, 4], 4, SamplingParams(1, num_logprobs=20, num_prompt_logprobs=20), pages=[0])
    output = runner.run(plan_batch(0, [(row, 4)], PAGE_SIZE))
    assert output.prompt_logprobs is not None
    assert output.prompt_logprobs.num_top == 12
    assert_entries(entries_of(output.prompt_logprobs), [2, 3, 4], their_logprobs(model, row.ids)[:3], 12)
