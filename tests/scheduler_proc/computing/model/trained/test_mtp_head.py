"""The small trained Qwen3.5 with a trained head of multi-token prediction: no token changes, and most drafts are right.

The reference is made of transformers' blocks, in the order of vLLM's and llama.cpp's: neither is in transformers.
"""

import logging
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from messages.errors import BootError
from messages.ring.steps import Batch
from scheduler_proc.computing.backends.cpu.forward_passes import CpuForwardPasses
from scheduler_proc.computing.load_runner import load_runner, measure_models
from scheduler_proc.computing.model.decoder import DescribedDecoder
from scheduler_proc.computing.model.mtp_decoder import MtpDecoder
from scheduler_proc.computing.runner import Runner
from scheduler_proc.deciding.drafting import draft_model
from scheduler_proc.deciding.drafting.draft_planner import DraftPlanner
from scheduler_proc.deciding.scheduler import Scheduler
from scheduler_proc.deciding_half import make_scheduler
from scheduler_proc.step_times import StepTimes
from scheduler_proc.stepper import Stepper
from tests.checkpoints import build_checkpoint, make_config
from tests.scheduler_proc.clients import Inbox, user_msg
from tests.scheduler_proc.computing.backends.cuda.late_device import LateDevice, late_backend, no_triton
from tests.scheduler_proc.computing.kv_cache.test_kv_memory import wait_until_free
from tests.scheduler_proc.computing.model.trained.train_models import FOLDER
from tests.scheduler_proc.computing.model.trained.train_mtp_head import MtpHead, head_file, load_model
from tests.scheduler_proc.computing.ranks import ranks_of
from tests.scheduler_proc.simulated_drafter import AllDrafts

NAME = "qwen3_5"
MODEL, HEAD = FOLDER / NAME, head_file(NAME)
GREEDY = {"temperature": 0.0}
SAMPLED = {"temperature": 0.8, "top_p": 0.95, "presence_penalty": 0.3}
SIZES = {"max_num_seqs": 4, "num_pages": 512}
Turn = Sequence[Sequence[int]]


def no_report(text: str, fraction: float | None) -> None:
    pass


def write_checkpoint(path: Path, change: Callable[[dict[str, Tensor]], object] = lambda weights: None) -> Path:
    path.mkdir(exist_ok=True)
    weights = load_file(MODEL / "model.safetensors") | load_file(HEAD)
    change(weights)
    save_file(weights, path / "model.safetensors")
    (path / "config.json").write_text((MODEL / "config.json").read_text())
    return path


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("mtp"))


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    text = (MODEL.parent / "held_out.txt").read_bytes()
    return [list(text[512 * row : 512 * row + 50 + 11 * row]) for row in range(4)]


class Service:
    """A scheduler and its runner. With `always_drafts` rows get all draft tokens, whether or not they are worth it."""

    def __init__(
        self,
        path: Path,
        kv_file: Path | None = None,
        *,
        always_drafts: bool = True,
        runner: Runner | None = None,
        **flags: Any,
    ):
        config = make_config(path, **SIZES | flags)
        self.runner: Runner = runner or load_runner(config, no_report, kv_file)
        self.scheduler: Scheduler = make_scheduler(config, self.runner)
        planner = self.scheduler._draft_planner
        self.proposed: list[tuple[array[int], array[int]]] = []
        """The tokens of a request, and those proposed after them."""
        if isinstance(planner, DraftPlanner):
            planner._lengths = AllDrafts() if always_drafts else planner._lengths
            end_proposal = planner.end_proposal

            def record(rows: Any, drafts: Any) -> Any:
                self.proposed += [(req.token_ids[:], drafts[req.uid]) for req in rows.reqs if drafts.get(req.uid)]
                return end_proposal(rows, drafts)

            planner.end_proposal = record  # pyright: ignore[reportAttributeAccessIssue]
        self._uid = 0

    def generate(self, prompts: Turn, num_tokens: int, **params: Any) -> list[list[int]]:
        first, stepper, inbox = self._uid, Stepper(self.scheduler, self.runner, StepTimes()), Inbox()
        for prompt in prompts:
            self.scheduler.receive(user_msg(self._uid, list(prompt), num_tokens, **{"seed": len(prompt), **params}))
            self._uid += 1
        while (batch := stepper.plan()) is not None or stepper.has_step:
            stepper.step(batch, 0.0)
            inbox.take(self.scheduler.pop_replies())
        return [inbox.tokens[uid, 0] for uid in range(first, self._uid)]


@pytest.fixture(scope="module")
def expected(checkpoint: Path, prompts: list[list[int]]) -> dict[str, list[list[list[int]]]]:
    """Two turns of each kind without speculation."""
    return {name: two_turns(Service(checkpoint), prompts, params) for name, params in KINDS.items()}


KINDS = {"greedy": GREEDY, "sampled": SAMPLED}


def two_turns(service: Service, prompts: Turn, params: dict[str, Any]) -> list[list[list[int]]]:
    first = service.generate(prompts, 60, **params)
    again = [[*prompt, *output, *prompt[:20]] for prompt, output in zip(prompts, first, strict=True)]
    return [first, service.generate(again, 40, **params)]


CHUNKS_OF_7 = {"max_num_batched_tokens": 7, "max_num_seqs": 1}
WAYS: dict[str, tuple[dict[str, Any], str]] = {
    "together": ({"num_speculative_tokens": 3}, "accepted_tokens"),
    "as many as pay": ({"always_drafts": False}, "steps"),
    "in chunks of 7": (
        {"max_num_batched_tokens": 7, "max_num_seqs": 1, "num_speculative_tokens": 2},
        "accepted_tokens",
    ),
    "preempted": ({"num_pages": 24, "max_model_len": 260, "num_speculative_tokens": 3}, "preemptions"),
    "one token a page": ({"block_size": 1, "num_pages": 2048, "num_speculative_tokens": 3}, "accepted_tokens"),
    "with K and V in codes": ({"kv_cache_dtype": "int8", "num_speculative_tokens": 3}, "accepted_tokens"),
}
"""Flags that cut the steps of four requests in other ways, and what they count then."""


@pytest.mark.parametrize(
    ("kind", "way"),
    [*(("greedy", way) for way in WAYS), *(("sampled", way) for way in ("together", "in chunks of 7", "preempted"))],
)
def test_no_token_changes(
    kind: str, way: str, checkpoint: Path, prompts: list[list[int]], expected: dict[str, list[list[list[int]]]]
) -> None:
    flags, counter = WAYS[way]
    service = Service(checkpoint, speculative="mtp", **flags)
    plain = expected[kind]
    if "kv_cache_dtype" in flags:
        plain = two_turns(Service(checkpoint, kv_cache_dtype="int8"), prompts, KINDS[kind])
    assert two_turns(service, prompts, KINDS[kind]) == plain
    assert service.scheduler.gauges()[counter] > 0


def test_no_token_changes_on_a_device_that_stands_in_for_a_gpu(
    checkpoint: Path, prompts: list[list[int]], expected: dict[str, list[list[list[int]]]]
) -> None:
    flags = {"speculative": "mtp", "num_speculative_tokens": 3, "max_num_batched_tokens": 64}
    with late_backend(LateDevice, no_triton):
        service = Service(checkpoint, **flags)
        assert two_turns(service, prompts, KINDS["sampled"]) == expected["sampled"]
    gauges = service.scheduler.gauges()
    assert gauges["accepted_tokens"] > 0.5 * gauges["draft_tokens"] > 0


def test_drafts_are_those_of_transformers_blocks(checkpoint: Path, prompts: list[list[int]]) -> None:
    service = Service(checkpoint, speculative="mtp", num_speculative_tokens=3, max_num_seqs=2)
    service.generate(prompts[:2], 40, **GREEDY)
    assert_drafts(NAME, service.proposed)


def assert_drafts(name: str, proposed: "list[tuple[array[int], array[int]]]") -> None:
    """Each of three draft tokens in a row is the likeliest one of the reference, or as likely as that."""
    model = load_model(name)
    head = MtpHead(name, model)
    head.load(load_file(head_file(name)))
    num_right = [0] * 3
    with torch.inference_mode():
        for token_ids, drafts in proposed:
            ids = torch.tensor([list(token_ids)])
            embedded, hidden = model.model.embed_tokens(ids), model.model(ids).last_hidden_state
            embedded, hidden = embedded[:, 1:], hidden[:, :-1]
            for depth, token_id in enumerate(drafts):
                own = head(embedded, hidden)[:, -1:]
                logits_V = model.lm_head(own)[0, -1]
                assert logits_V[token_id] == pytest.approx(logits_V.max().item(), abs=2e-3)
                num_right[depth] += 1
                drafted = model.model.embed_tokens(torch.tensor([[token_id]]))
                embedded, hidden = torch.cat((embedded, drafted), 1), torch.cat((hidden, own), 1)
    assert min(num_right) >= 10


def swap_inputs(weights: dict[str, Tensor]) -> None:
    weights["mtp.fc.weight"] = weights["mtp.fc.weight"].roll(160, 1)


def change(name: str, by: Callable[[Tensor], Tensor]) -> Callable[[dict[str, Tensor]], object]:
    return lambda weights: weights.update({f"mtp.{name}.weight": by(weights[f"mtp.{name}.weight"]).contiguous()})


MISTAKES: dict[str, Callable[[dict[str, Tensor]], object]] = {
    "the state comes before the embedding": swap_inputs,
    "the norm of states is not centred at zero": change("pre_fc_norm_hidden", lambda weight: weight - 1),
    "there is no MLP": change("layers.0.mlp.down_proj", torch.zeros_like),
}


def acceptance(path: Path, prompts: Turn, num_drafts: int = 1) -> float:
    """Returns the share of draft tokens that are accepted if each row gets this many in a step."""
    service = Service(path, speculative="mtp", num_speculative_tokens=num_drafts)
    service.generate(prompts, 80, **SAMPLED)
    gauges = service.scheduler.gauges()
    return gauges["accepted_tokens"] / gauges["draft_tokens"]


@pytest.fixture(scope="module")
def usual(checkpoint: Path, prompts: list[list[int]]) -> dict[int, float]:
    return {num_drafts: acceptance(checkpoint, prompts, num_drafts) for num_drafts in (1, 3)}


def test_most_draft_tokens_are_accepted(usual: dict[int, float]) -> None:
    print(f"accepted: {usual[1]:.1%} of one draft token, {usual[3]:.1%} of three")
    assert usual[1] > 0.8
    assert usual[3] > 0.5


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_weights_shows(mistake: str, prompts: Turn, usual: dict[int, float], tmp_path: Path) -> None:
    found = acceptance(write_checkpoint(tmp_path, MISTAKES[mistake]), prompts)
    print(f"{mistake}: {found:.1%}")
    assert found < usual[1] - 0.2


def test_hidden_states_of_other_tokens_show(
    checkpoint: Path, prompts: Turn, usual: dict[int, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    forward: Any = MtpDecoder.forward
    monkeypatch.setattr(
        MtpDecoder, "forward", lambda self, *provided: forward(self, *provided[:-1], provided[-1].roll(1, 0))
    )
    found = acceptance(checkpoint, prompts)
    print(f"the states of the tokens before: {found:.1%}")
    assert found < usual[1] - 0.3


def test_a_chain_that_does_not_keep_its_own_states_shows(
    checkpoint: Path, prompts: Turn, usual: dict[int, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    at_places_before = draft_model.at_places_before

    def keep_none(batch: Batch, page_size: int) -> Batch:
        batch = at_places_before(batch, page_size)
        return msgspec.structs.replace(batch, hidden_slots=b"\xff" * len(batch.hidden_slots))

    monkeypatch.setattr(draft_model, "at_places_before", keep_none)
    found = acceptance(checkpoint, prompts, 3)
    print(f"states of earlier steps: {found:.1%}")
    assert found < usual[3] - 0.1


def test_a_successor_drafts_from_the_hidden_states_in_kept_memory(
    checkpoint: Path, prompts: list[list[int]], tmp_path: Path
) -> None:
    """It has none of the head's K and V, and proposes the same tokens after the same cached pages."""
    flags = {"speculative": "mtp", "num_speculative_tokens": 2, "max_num_seqs": 1}
    whole = Service(checkpoint, **flags)
    (first,) = whole.generate(prompts[:1], 60, **GREEDY)
    again, num_proposed = [*prompts[0], *first, *prompts[1][:20]], len(whole.proposed)
    expected = whole.generate([again], 40, **GREEDY)
    path = tmp_path / "kv"
    path.touch()
    assert Service(checkpoint, path, **flags).generate(prompts[:1], 60, **GREEDY) == [first]
    wait_until_free(path)
    successor = Service(checkpoint, path, **flags)
    assert successor.generate([again], 40, **GREEDY) == expected
    assert successor.scheduler.gauges()["pages_recovered"] > 4
    assert successor.proposed == whole.proposed[num_proposed:]


def test_its_steps_are_captured_and_weights_shared(checkpoint: Path, prompts: Turn) -> None:
    service = Service(checkpoint, speculative="mtp", num_speculative_tokens=1, max_num_seqs=1)
    service.generate(prompts[:1], 30, **GREEDY)
    model, head = service.runner, service.runner.draft_runner
    assert isinstance(head, Runner)
    passes, own = model.forward_passes, head.forward_passes
    assert isinstance(passes, CpuForwardPasses)
    assert isinstance(own, CpuForwardPasses)
    assert {num_rows for _, num_rows in own.captures} == {1, 2}
    assert own.can_capture
    assert own.cache.hidden is passes.cache.hidden
    assert isinstance(head._decoder, MtpDecoder)
    assert isinstance(model._decoder, DescribedDecoder)
    assert model._decoder.head is not None
    assert head._decoder.head.block is model._decoder.head.block
    sizes = [sum(tensor.nbytes for tensor in each.cache.tensors) // 512 for each in (passes, own)]
    measured = measure_models(make_config(checkpoint, speculative="mtp", num_speculative_tokens=1))[1]
    assert measured.page_bytes == sum(sizes)
    assert sizes == [16 * 4 * (128 + 160), 16 * 4 * 128]  # K and V of two heads of 32 in a layer each; hidden states


def test_the_last_of_two_stages_has_the_head_and_drafts(
    checkpoint: Path, prompts: Turn, expected: dict[str, list[list[list[int]]]], tmp_path: Path
) -> None:
    flags = {"speculative": "mtp", "num_speculative_tokens": 2}
    with ranks_of(checkpoint, 1, tmp_path / "ranks", 2, **SIZES, **flags) as (leader, first):
        service = Service(checkpoint, runner=leader, **flags)
        assert first.draft_runner is None
        assert two_turns(service, prompts, GREEDY) == expected["greedy"]
        assert service.proposed


def test_without_a_head_it_reports_what_to_use(tmp_path: Path) -> None:
    build_checkpoint(tmp_path, "llama-gqa-tied")
    for path in (tmp_path, MODEL):
        with pytest.raises(BootError, match=r"no head of multi-token prediction.*use --speculative ngram"):
            load_runner(make_config(path, speculative="mtp"), no_report)


def test_a_head_that_is_not_used_is_mentioned_and_takes_no_memory(
    checkpoint: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        runner = load_runner(make_config(checkpoint), no_report)
    assert "--speculative mtp drafts with it" in caplog.text
    assert "not used" not in caplog.text
    assert runner.draft_runner is None
    assert isinstance(runner.forward_passes, CpuForwardPasses)
    assert runner.forward_passes.cache.hidden is None


def test_a_head_that_lacks_a_tensor_ends_the_start(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, lambda weights: weights.pop("mtp.layers.0.mlp.up_proj.weight"))
    with pytest.raises(BootError, match=r"lacks 1 of \d+ tensors: mtp.layers.0.mlp.up_proj.weight"):
        load_runner(make_config(tmp_path, speculative="mtp"), no_report)
