"""Some seconds of chaos with three models: nothing is lost, doubled, wrong or left behind."""

from pathlib import Path

import pytest

from tests.ring.model_ring import model_ring, write_models
from tests.ring.models_chaos import CONTEXT, report, run_models_chaos

pytestmark = pytest.mark.ring

SECONDS = 6.0


# httpcore does not close a Unix socket whose connection fails, as those of killed servers do.
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
def test_every_stream_is_exact_or_seen_to_be_cut_off(tmp_path: Path):
    write_models(tmp_path, context=CONTEXT)
    with model_ring("--models", str(tmp_path)) as (_, ring):
        counts = run_models_chaos(ring, SECONDS, seed=2)
    print(report(counts))
    assert counts.wrong == []
    assert counts.streams > 0
