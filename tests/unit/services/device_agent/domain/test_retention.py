from services.device_agent.domain.retention import Cut, RetentionPolicy, decide_cut

POLICY = RetentionPolicy(max_count=100, max_bytes=1000, max_age_s=50.0)


def test_age_never_goes_below_what_is_looked_back_to():
    assert decide_cut(POLICY, count=1, size_bytes=1, horizon_s=10.0, now_s=1000.0) == Cut(950.0, 0, 0)
    assert decide_cut(POLICY, count=1, size_bytes=1, horizon_s=80.0, now_s=1000.0) == Cut(920.0, 0, 0)


def test_count_and_bytes_cut_whatever_is_looked_back_to():
    cut = decide_cut(POLICY, count=103, size_bytes=1007, horizon_s=1e9, now_s=1000.0)
    assert (cut.excess_count, cut.excess_bytes) == (3, 7)
