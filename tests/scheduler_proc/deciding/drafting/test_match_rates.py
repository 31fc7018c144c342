"""The probability of a match by its length, the history of its row and that of all rows."""

from scheduler_proc.deciding.drafting.match_rates import KINDS, MAX_LENGTH, MatchRates


def count(rates: MatchRates, length: int, *, right: int = 0, wrong: int = 0) -> None:
    for is_right in [True] * right + [False] * wrong:
        rates.count(KINDS[length], is_right)


def test_every_length_counts_and_a_longer_match_is_trusted_more_from_the_start():
    assert len(KINDS) == MAX_LENGTH + 1
    chances = [MatchRates().chance(KINDS[length]) for length in range(2, MAX_LENGTH + 1)]
    assert chances == sorted(chances)
    assert chances[0] < 0.5 < 0.9 < chances[-1] < 1


def test_a_row_is_distinguished_by_its_own_tokens_and_a_new_one_begins_with_what_all_report():
    general = MatchRates()
    repeating, random_text = MatchRates(general), MatchRates(general)
    for _ in range(10):
        count(repeating, 2, right=2)
        count(random_text, 2, wrong=2)
    assert random_text.chance(KINDS[2]) < 0.2 < 0.8 < repeating.chance(KINDS[2])
    assert 0.3 < MatchRates(general).chance(KINDS[2]) < 0.7
    assert random_text.chance(KINDS[8]) > 0.7, "nothing is known of longer matches"


def test_what_was_long_ago_is_forgotten():
    general = MatchRates()
    for rates in (general, MatchRates(general)):
        count(rates, 4, right=500)
        assert rates.chance(KINDS[4]) > 0.9
        count(rates, 4, wrong=120)
        assert rates.chance(KINDS[4]) < 0.35


def test_no_chance_is_certain():
    rates = MatchRates(MatchRates())
    count(rates, 20, right=5_000)
    count(rates, 2, wrong=5_000)
    assert 0 < rates.chance(KINDS[2]) < 0.02 < 0.98 < rates.chance(KINDS[20]) < 1
