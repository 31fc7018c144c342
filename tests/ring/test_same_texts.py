"""The model that is served by default, in its own dtype: drafts and deaths of two engines change no bit."""

import pytest

from benchmarks.server_process import ROOT
from tests.fork_host import ForkHost
from tests.ring.same_texts import KINDS, check, make_requests

pytestmark = pytest.mark.ring

MODEL = ROOT / "assets" / "smollm2-135m-instruct"
TOKENS = 12
FLAGS = ("--kv-cache-memory-gb", "0.25", "--no-standby")


@pytest.mark.skipif(not any(MODEL.glob("*.gguf")), reason="the chat model was not fetched")
def test_every_reply_is_that_of_a_run_alone(fork_host: ForkHost) -> None:
    way = "engines-killed"
    assert check(str(MODEL), [way], FLAGS, make_requests(len(KINDS), TOKENS), fork_host.open) == {way: []}
