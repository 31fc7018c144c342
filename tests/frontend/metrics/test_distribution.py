from frontend.metrics.distribution import Distribution, make_buckets, one_two_five


def test_values_fall_into_the_first_bucket_that_holds_them():
    values = Distribution((1.0, 2.5, 10.0))
    for value in (0.5, 1.0, 2.0, 11.0):
        values.add(value)
    values.add(5.0, 3)
    assert values.buckets() == [("1.0", 2.0), ("2.5", 3.0), ("10.0", 6.0), ("+Inf", 7.0)]
    assert values.buckets()[-1][1] == 7
    assert values.total == 0.5 + 1 + 2 + 11 + 15


def test_buckets_are_cumulative():
    assert make_buckets((1, 2), (3, 0, 4)) == [("1.0", 3.0), ("2.0", 3.0), ("+Inf", 7.0)]


def test_bounds_for_tokens_reach_just_to_the_limit():
    assert one_two_five(1) == (1,)
    assert one_two_five(2) == (1, 2)
    assert one_two_five(512) == (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
    assert one_two_five(1000)[-1] == 1000
