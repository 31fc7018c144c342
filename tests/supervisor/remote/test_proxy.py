from messages import VERSION
from messages.remote import Join
from messages.schema import SCHEMA_VERSION
from supervisor.remote.proxy import find_refusal


def test_another_version_of_the_program_is_turned_away_for_good():
    for join in (Join(SCHEMA_VERSION + 1, VERSION, "box"), Join(SCHEMA_VERSION, "0.0.0-other", "box")):
        refusal = find_refusal(join, present_host="")
        assert refusal is not None
        assert join.release in refusal.reason
        assert "install the same on both machines" in refusal.reason
        assert not refusal.may_try_again


def test_a_second_engine_may_try_again_when_the_first_has_left():
    join = Join(SCHEMA_VERSION, VERSION, "box")
    refusal = find_refusal(join, present_host="other-box")
    assert refusal is not None
    assert "an engine on other-box has joined here" in refusal.reason
    assert refusal.may_try_again
    assert find_refusal(join, present_host="") is None
