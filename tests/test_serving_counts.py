"""No count of what serving costs is above its limit (`tests/serving_counts.py`)."""

from tests.serving_counts import LIMITS, count_all


def test_no_count_is_above_its_limit():
    counts = count_all()
    assert counts.keys() == LIMITS.keys()
    above = {name: count for name, count in counts.items() if count > LIMITS[name]}
    assert not above, "python -m tests.serving_counts prints all counts"
