"""The planning of a step's decode attention on the host: what it adds to each step's preparation.

python -m benchmarks.bench_decode_plan [--device cpu|cuda] [--quick] [--json FILE]

The device is only that whose facts the result carries: the plan is made by the host.
"""

from collections.abc import Callable

import numpy as np

from benchmarks.kernels.measure import Row, finish, median_ms, start
from kernels.plans.decode_work import DecodeLayout, plan_decode_work

PAGE_SIZE, NUM_PROGRAMS = 16, 528
MAX_PAGES = 256
"""Of a row; a table is that wide whatever the rows hold."""

CASES = {
    "1 row of 500": (1, 500, 0, 1),
    "256 rows of 600": (256, 600, 0, 1),
    "256 rows of 2000": (256, 2000, 0, 1),
    "256 of 600, 400 shared": (256, 600, 400, 1),
    "256 of 2000, 1600 by 8s": (256, 2000, 1600, 32),
    "256 of 2000, 1600 by 2s": (256, 2000, 1600, 128),
}
"""Rows, their mean length, the tokens that those of a group share, groups."""


def make_plan(num_rows: int, mean: int, num_shared: int, num_groups: int) -> Callable[[], None]:
    rng = np.random.default_rng(0)
    num_keys = rng.integers(max(num_shared + 1, mean // 2), mean * 3 // 2 + 1, num_rows, dtype=np.int32)
    tables = rng.permutation(num_rows * MAX_PAGES).astype(np.int32).reshape(num_rows, MAX_PAGES)
    tables[:, : num_shared // PAGE_SIZE] = tables[np.arange(num_rows) % num_groups, : num_shared // PAGE_SIZE]
    tables[np.arange(MAX_PAGES) * PAGE_SIZE >= num_keys[:, None]] = -1
    layout = DecodeLayout(num_rows, 16, 8, NUM_PROGRAMS, shares_prefixes=True)
    plan = np.zeros(layout.num_words, np.int32)
    return lambda: plan_decode_work(layout, num_keys, tables, PAGE_SIZE, plan)


def main() -> int:
    options = start(__doc__)
    cases = list(CASES.items())[: 1 if options.quick else None]
    plans = {name: make_plan(*case) for name, case in cases}
    rows: list[Row] = [{"case": name, "ms": ms} for name, ms in median_ms(plans, options.rounds).items()]
    finish(options, "decode_plan", rows, {})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
