"""Pooled vectors of the simulated runner, whole numbers from what the slots of a prompt hold, and the expected ones."""

from collections.abc import Callable, Sequence

from messages.columns import pack_float32, pack_int32, unpack_float32, unpack_int32
from messages.ring.pooling import Pooling, PoolingWay
from messages.ring.steps import POOLED_KINDS, POOLING_WAYS, Batch, PooledColumns

POOLINGS = (
    Pooling("embed"),
    Pooling("embed", way="mean"),
    Pooling("embed", way="max", dimensions=1),
    Pooling("embed", way="cls"),
    Pooling("token_embed", way="mean"),
    Pooling("labels", label_ids=pack_int32([5, 2, 9]), way="mean"),
    Pooling("classify", way="weighted_mean"),
)


def expected_vectors(values: Sequence[int], pooling: Pooling) -> list[float]:
    """Returns the vectors of a prompt whose slots hold `values`, one after another."""
    if pooling.kind == "token_embed":
        return [_number(value) for value in values]
    if pooling.kind == "labels":
        return [_number(values[-1]) + label for label in unpack_int32(pooling.label_ids)]
    read = {"last": values[-1:], "cls": values[:1]}.get(pooling.way, values)
    return _reduce([_number(value) for value in read], pooling.way, 0, [])[: pooling.dimensions or None]


def pool(batch: Batch, read: Callable[[int], int]) -> PooledColumns | None:
    """Returns the vectors of a step; `read` returns what the slot of a token of the step holds."""
    rows = batch.pooled
    if rows is None:
        return None
    carried, label_ids = unpack_float32(rows.carried).tolist(), unpack_int32(rows.label_ids).tolist()
    vectors: list[tuple[int, list[float]]] = []
    names = ("num_before", "ways", "kinds", "dimensions", "num_carried", "num_labels")
    columns = [unpack_int32(getattr(rows, name)) for name in names]
    for span, before, way, kind, dimensions, num_carried, num_labels in zip(rows.spans, *columns, strict=True):
        numbers = [_number(read(index)) for index in span]
        mine, carried = carried[:num_carried], carried[num_carried:]
        labels, label_ids = label_ids[:num_labels], label_ids[num_labels:]
        match POOLED_KINDS[kind]:
            case "token_embed":
                vectors += [(1, [number]) for number in numbers]
            case "labels":
                (number,) = numbers
                vectors.append((1, [number + label for label in labels]))
            case name:
                reduced = _reduce(numbers, POOLING_WAYS[way], before, mine)
                vectors.append((len(numbers), reduced if name == "part" else reduced[: dimensions or None]))
    assert not carried
    assert not label_ids
    return PooledColumns(
        pack_int32(len(vector) for _, vector in vectors),
        pack_int32(num_tokens for num_tokens, _ in vectors),
        pack_float32(number for _, vector in vectors for number in vector),
    )


def _number(value: int) -> float:
    """Returns a number for what a slot holds. The sum over a prompt is exact in float32."""
    return float(value % 1000)


def _reduce(numbers: Sequence[float], way: PoolingWay, before: int, carried: Sequence[float]) -> list[float]:
    """Returns the sum or maximum after `before` numbers with the result `carried`, and how many numbers it is of."""
    assert (before > 0) == bool(carried), "what earlier steps have pooled is missing"
    sum_before, num_before = carried or (0.0, 0.0)
    assert num_before == before
    if way == "max":
        return [max(sum_before, *numbers), before + len(numbers)]
    weights = range(before + 1, before + len(numbers) + 1) if way == "weighted_mean" else [1] * len(numbers)
    return [sum_before + sum(map(float.__mul__, numbers, map(float, weights))), float(before + len(numbers))]
