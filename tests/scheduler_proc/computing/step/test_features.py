"""What the declarations of optional parts of a step must keep to, and what follows from them."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from messages.errors import BootError
from messages.ring.axes import fill_columns
from messages.ring.steps import ROW, SAMPLED, TOKEN, Batch
from scheduler_proc.computing.step import packing
from scheduler_proc.computing.step.features.adapters import ADAPTERS
from scheduler_proc.computing.step.features.registry import FEATURES
from scheduler_proc.computing.step.features.windows import windowed
from scheduler_proc.computing.step.inputs import StepFeature
from scheduler_proc.computing.step.packing import NO_ROWS, make_step_inputs
from scheduler_proc.computing.step.shapes import StepLimits, StepShapes
from tests.scheduler_proc.computing.drive import Row, plan_batch

CPU = torch.device("cpu")


def limits_with(*names: str) -> StepLimits:
    return StepLimits(4, 64, 8, frozenset(names))


def decode_step(**columns: Any) -> Batch:
    """Returns a step of two decode rows."""
    filled = fill_columns(Batch, {ROW: 2, TOKEN: 2, SAMPLED: 2}, page_tables=bytes(8), **columns)
    return Batch(step_id=0, num_decode_rows=2, num_pages_per_row=1, **filled)


def test_names_of_features_and_of_their_columns_are_used_once() -> None:
    names = [name for feature in FEATURES for name in feature.columns]
    assert len(set(names)) == len(names)
    assert not set(names) & packing.COMMON_COLUMNS.keys()
    assert len({feature.name for feature in FEATURES}) == len(FEATURES)


@pytest.mark.parametrize("feature", FEATURES, ids=lambda feature: feature.name)
def test_a_step_without_a_feature_has_none_of_it(feature: StepFeature[Any]) -> None:
    assert not feature.is_in(NO_ROWS)
    step = make_step_inputs(decode_step(), CPU)
    assert step.view(feature) is None
    assert windowed(step) is step


def test_captures_are_made_with_and_without_what_only_some_steps_have() -> None:
    plain, adapted, mixed = limits_with(), limits_with("adapters"), limits_with("states", "adapters", "token_types")
    assert plain.captures == [frozenset()]
    assert adapted.captures == [{"adapters"}, frozenset()]
    assert mixed.captures == [{"states", "adapters"}, {"states"}], "steps with token types are never captured"
    assert len(StepShapes(adapted).all()) == 2 * len(StepShapes(plain).all())
    assert {shape.features for shape in StepShapes(adapted).largest()} == {frozenset({"adapters"})}


@pytest.mark.parametrize("has_tables", [False, True])
def test_the_capture_of_a_step_is_that_of_its_features(has_tables: bool) -> None:
    decoder = SimpleNamespace(adapters=SimpleNamespace(tables=has_tables))
    limits, adapted = limits_with("states", "adapters"), decode_step(adapter_slots=bytes(8))
    assert limits.find_capture(decode_step(), decoder) == {"states"}
    assert limits.find_capture(adapted, decoder) == (None if has_tables else {"states", "adapters"})
    assert limits_with("states").find_capture(adapted, decoder) == {"states"}, "no row of this model can have one"
    shape = StepShapes(limits).find(adapted, decoder)
    assert (shape is None) == has_tables


def test_limits_follow_from_the_model_and_its_role() -> None:
    cache = SimpleNamespace(block_size=16, kv_disk="", kv_offload_gb=0)
    config: Any = SimpleNamespace(
        cache=cache, facts=SimpleNamespace(max_model_len=256), model=SimpleNamespace(num_lora_slots=2)
    )
    model = SimpleNamespace(
        mixers=[SimpleNamespace(window=32, cache=True)],
        has_states=True,
        num_token_types=2,
        has_axes=False,
        sees_spans=True,
    )
    tested = {"windows", "states", "kept_hidden", "adapters", "token_types", "axes"}
    assert limits_with().of_model(config, model, "main").features & tested == tested - {"kept_hidden", "axes"}
    assert limits_with().of_model(config, model, "mtp").features & tested == {"kept_hidden"}
    with pytest.raises(BootError, match="recurrent layers"):
        limits_with().of_model(config, model, "draft")
    cache.kv_disk = "/tier"
    with pytest.raises(BootError, match="layers with a window"):
        limits_with().of_model(config, model, "main")
    plain = SimpleNamespace(
        mixers=[SimpleNamespace(window=None, cache=True)],
        has_states=False,
        num_token_types=1,
        has_axes=True,
        sees_spans=False,
    )
    assert limits_with().of_model(config, plain, "draft").features & tested == {"axes"}
    config.model.num_lora_slots = 0
    assert limits_with().of_model(config, plain, "main").features & tested == {"axes"}


def test_features_are_narrowed_to_the_tokens_that_go_to_the_head() -> None:
    rows = [(Row(uid, [5, 6, 7], 3, pages=[uid], adapter_slot=2 - uid), 3) for uid in range(2)]
    step = make_step_inputs(plan_batch(0, rows, 16), CPU)
    for each, slots in ((step, [2, 2, 2, 1, 1, 1]), (step.at_head(), [2, 1])):
        slots_T = each.view(ADAPTERS)
        assert slots_T is not None
        assert slots_T.tolist() == slots
