from frontend.recovery.quarantine import Quarantine
from frontend.requests.generation import Generation
from messages.ring.requests import SamplingParams, Stamps, TokenizeMsg
from tests.frontend.frontend_run import final


def make(num: int) -> list[Generation]:
    messages = [TokenizeMsg(uid, 0, "hi", b"", SamplingParams(8), Stamps()) for uid in range(1, num + 1)]
    return [Generation(message, "id") for message in messages]


def die(quarantine: Quarantine, requests: list[Generation]) -> list[Generation]:
    """The scheduler dies, and each request that is not held or refused begins its next attempt."""
    refused = quarantine.record_death(requests)
    for request in requests:
        if request not in refused and not quarantine.is_held(request):
            request.next_attempt()
    return refused


def held(quarantine: Quarantine, requests: list[Generation]) -> list[int]:
    return [request.uid for request in requests if quarantine.is_held(request)]


def test_one_death_makes_no_suspect():
    quarantine, requests = Quarantine(8), make(3)
    assert die(quarantine, requests) == []
    assert held(quarantine, requests) == []
    assert quarantine.next_suspect() is None


def test_suspects_run_one_at_a_time_until_each_is_cleared():
    quarantine, requests = Quarantine(8), make(3)
    first, second, third = requests
    die(quarantine, requests)
    die(quarantine, requests)
    assert held(quarantine, requests) == [1, 2, 3]
    assert quarantine.next_suspect() is first
    first.next_attempt()
    assert quarantine.next_suspect() is None
    first.add([1], "a")
    assert quarantine.next_suspect() is second
    second.next_attempt()
    second.is_open = False
    assert quarantine.next_suspect() is third
    assert held(quarantine, requests) == []


def test_the_suspect_with_which_it_dies_again_is_refused_and_no_one_else():
    quarantine, requests = Quarantine(8), make(4)
    die(quarantine, requests[:3])
    die(quarantine, requests)
    culprit = quarantine.next_suspect()
    assert culprit is requests[0]
    culprit.next_attempt()
    assert die(quarantine, requests) == [culprit]
    # The last one was there at the second and third death, and is now a suspect too.
    assert held(quarantine, requests) == [2, 3, 4]
    assert quarantine.next_suspect() is requests[1]


def test_a_token_between_two_deaths_clears():
    quarantine, requests = Quarantine(8), make(1)
    for _ in range(5):
        assert die(quarantine, requests) == []
        assert held(quarantine, requests) == []
        requests[0].add([1], "a")


def test_requests_that_can_have_had_no_row_are_no_suspects():
    quarantine, requests = Quarantine(2), make(4)
    die(quarantine, requests)
    die(quarantine, requests)
    assert held(quarantine, requests) == [1, 2]


def test_a_suspect_that_has_ended_is_passed_over():
    quarantine, requests = Quarantine(8), make(2)
    die(quarantine, requests)
    die(quarantine, requests)
    requests[0].is_open = False
    assert quarantine.next_suspect() is requests[1]
    assert len(quarantine) == 0


def test_a_suspect_that_has_ended_for_its_client_takes_its_turn():
    quarantine, requests = Quarantine(8), make(2)
    first, second = requests
    die(quarantine, requests)
    die(quarantine, requests)
    second.finish(final(second.message, finish_reason="timeout"))
    assert quarantine.next_suspect() is first
    first.finish(final(first.message, finish_reason="timeout"))
    assert quarantine.next_suspect() is None
    first.is_open = False
    assert quarantine.next_suspect() is second
    assert second.is_unread


def test_a_token_between_two_deaths_counts_also_when_a_later_attempt_had_none():
    quarantine, requests = Quarantine(8), make(1)
    die(quarantine, requests)
    requests[0].add([1], "a")
    requests[0].next_attempt()  # after a lost frame, or the death of another process
    assert die(quarantine, requests) == []
    assert held(quarantine, requests) == []


def test_deaths_count_at_whichever_engine_they_were():
    """The culprit kills one engine after another; requests that ran with it at one of them are not suspects."""
    quarantine, requests = Quarantine(8), make(4)
    culprit, second_update, elsewhere, last = requests
    assert quarantine.record_death([culprit, second_update], [elsewhere, last]) == []
    culprit.next_attempt()
    second_update.next_attempt()
    assert quarantine.record_death([culprit, elsewhere], [second_update, last]) == []
    assert held(quarantine, requests) == [1]
    assert quarantine.next_suspect() is culprit
    culprit.next_attempt()
    assert quarantine.record_death([second_update], [culprit, elsewhere, last]) == [], "the suspect ran somewhere else"
    assert (held(quarantine, requests), quarantine.next_suspect()) == ([2], None)
    assert quarantine.record_death([culprit, last], [elsewhere]) == [culprit]
    assert held(quarantine, requests) == [2]
