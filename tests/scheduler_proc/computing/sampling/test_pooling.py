"""The vectors of a step from given hidden states: groups, adapters, classes, parts."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from messages.columns import pack_float32, pack_int32, unpack_float32, unpack_int32
from messages.ring.steps import POOLED_KINDS, POOLING_WAYS, PooledRows
from scheduler_proc.computing.sampling.pooling import compute_pooled, plan_pooling, read_pooled

HIDDEN_QE = torch.arange(24.0).view(8, 3)


def classify(vectors_NE: Tensor) -> Tensor:
    return vectors_NE.sum(1, keepdim=True)


def logits(hidden_NE: Tensor, _out: Tensor | None, slots_N: Tensor | None) -> Tensor:
    """An adapter in slot n adds n to the logit of the first token."""
    logits_NV = hidden_NE.clone()
    if slots_N is not None:
        logits_NV[:, 0] += slots_N
    return logits_NV


DECODER: Any = SimpleNamespace(
    pooler=SimpleNamespace(embed=lambda vectors: vectors * 2, classify=classify),
    logits=logits,
    token_logits=lambda hidden, ids: None,
    model=SimpleNamespace(vocab_size=3),
)


def rows(*each: dict[str, Any], carried: tuple[float, ...] = (), label_ids: tuple[int, ...] = ()) -> PooledRows:
    """Returns rows of these numbers of tokens, one after another."""
    default = {"num_tokens": 1, "num_before": 0, "kind": "embed", "way": "last", "num_carried": 0, "num_labels": 0}
    filled = [default | row for row in each]
    columns = {name: pack_int32(row[name] for row in filled) for name in default if name not in ("kind", "way")}
    counts = [row["num_tokens"] for row in filled]
    return PooledRows(
        first_tokens=pack_int32(sum(counts[:index]) for index in range(len(counts))),
        kinds=pack_int32(POOLED_KINDS.index(row["kind"]) for row in filled),
        ways=pack_int32(POOLING_WAYS.index(row["way"]) for row in filled),
        dimensions=pack_int32(row.get("dimensions", 0) for row in filled),
        normalizes=pack_int32(row.get("normalizes", 0) for row in filled),
        second_starts=bytes(4 * len(filled)),
        carried=pack_float32(carried),
        label_ids=pack_int32(label_ids),
        **columns,
    )


def pool(pooled: PooledRows, slots_Q: Tensor | None = None, max_logits: int = 1 << 20) -> list[list[float]]:
    columns: dict[str, np.ndarray] = {}
    plan = plan_pooling(pooled, columns)
    tensors = {name: torch.from_numpy(np.array(column)) for name, column in columns.items()}
    hidden_QE = HIDDEN_QE[: sum(plan.num_tokens)]
    result = read_pooled(plan, compute_pooled(hidden_QE, slots_Q, DECODER, plan, tensors, max_logits))
    values, vectors = unpack_float32(result.values).tolist(), list[list[float]]()
    for size in unpack_int32(result.sizes):
        vectors.append(values[:size])
        values = values[size:]
    assert not values
    return vectors


def test_rows_of_every_kind_come_back_in_their_order():
    vectors = pool(
        rows(
            {"num_tokens": 2, "way": "mean"},
            {"kind": "labels", "num_labels": 1},
            {"num_tokens": 2, "kind": "token_embed", "way": "mean", "dimensions": 1},
            {"kind": "classify", "num_tokens": 2, "way": "mean"},
            {"kind": "part", "way": "mean", "num_before": 2, "num_carried": 3},
            carried=(100.0, 200.0, 300.0),
            label_ids=(2,),
        )
    )
    logprob = torch.log_softmax(HIDDEN_QE[2], 0)[2].item()
    assert vectors == [[3.0, 5.0, 7.0], [pytest.approx(logprob)], [18.0], [24.0], [52.5], [121.0, 222.0, 323.0]]


def test_a_weighted_mean_continues_with_the_weights_of_its_places():
    (vector,) = pool(
        rows({"num_tokens": 2, "way": "weighted_mean", "num_before": 2, "num_carried": 3}, carried=(1.0, 2.0, 3.0))
    )
    expected = 2 * (torch.tensor([1.0, 2.0, 3.0]) + 3 * HIDDEN_QE[0] + 4 * HIDDEN_QE[1]) / 10
    assert vector == pytest.approx(expected.tolist())


def test_a_vector_of_zeros_stays_one_and_others_get_the_length_1_in_fewer_dimensions():
    assert pool(rows({"normalizes": 1, "dimensions": 1})) == [[0.0]]
    first, second = pool(rows({"normalizes": 1, "dimensions": 2}, {"normalizes": 1}))
    assert first == pytest.approx([0.0, 1.0])
    assert second == pytest.approx((HIDDEN_QE[1] / HIDDEN_QE[1].norm()).tolist())


@pytest.mark.parametrize("max_logits", [1, 6, 1 << 20])
def test_labels_are_scored_by_the_head_of_the_rows_adapter(max_logits: int):
    each = [{"kind": "labels", "num_labels": count} for count in (2, 1, 3)]
    vectors = pool(rows(*each, label_ids=(0, 2, 1, 2, 1, 0)), torch.tensor([5, 0, 7], dtype=torch.int32), max_logits)
    raised = HIDDEN_QE[:3] + torch.tensor([[5.0, 0, 0], [0, 0, 0], [7, 0, 0]])
    expected = raised.log_softmax(1)
    for row, ids in enumerate(([0, 2], [1], [2, 1, 0])):
        assert vectors[row] == pytest.approx(expected[row, ids].tolist())
