"""The admission rate of a queue."""

from scheduler_proc.deciding.plan_notes import NUM_MEASURED, AdmissionRate

S = 1_000_000_000


def test_what_fills_free_rows_is_no_rate():
    rate = AdmissionRate()
    for _ in range(5):
        rate.record(S)
    rate.record_plan(3, S)
    assert rate.per_s(2 * S) == 0


def test_it_counts_from_the_beginning_of_the_queue_and_falls_while_nothing_moves():
    rate = AdmissionRate()
    rate.record_plan(3, S)
    rate.record(2 * S)
    rate.record(3 * S)
    assert rate.per_s(3 * S) == 1
    assert rate.per_s(5 * S) == 0.5


def test_a_long_queue_is_measured_by_its_latest_admissions():
    rate = AdmissionRate()
    rate.record_plan(3, S)
    for number in range(3 * NUM_MEASURED):
        rate.record(1000 * S + number * S // 10)
    now_ns = 1000 * S + (3 * NUM_MEASURED - 1) * S // 10
    assert abs(rate.per_s(now_ns) - 10) < 0.01


def test_a_new_queue_is_measured_anew():
    rate = AdmissionRate()
    rate.record_plan(3, S)
    rate.record(2 * S)
    rate.record_plan(0, 3 * S)
    rate.record_plan(2, 100 * S)
    assert rate.per_s(101 * S) == 0
