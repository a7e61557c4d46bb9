from dspark.racing.conditions import Watch, _share, _since


def test_watching_gives_shares_and_counts_or_says_unknown() -> None:
    with Watch() as watch:
        pass
    seen = watch.conditions
    assert seen.others_cpu is None or 0 <= seen.others_cpu <= 1
    assert seen.swapped_in_bytes is None or seen.swapped_in_bytes >= 0


def test_a_counter_that_went_backwards_is_no_swapping() -> None:
    assert _since(100, 40) == 0
    assert _since(100, 140) == 40
    assert _since(None, 40) is None and _since(40, None) is None


def test_the_share_is_of_all_cores_and_never_above_one() -> None:
    assert _share(10_000.0) == 1.0
    assert _share(0.0) == 0.0
    assert _share(None) is None
