"""Which GPUs of a node are taken."""

import math
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from services.scheduler.domain.gpus import Links, choose, share_out
from services.scheduler.testing import links

# The measured matrix of an 8-GPU V100 server, GB/s in both directions: two NVLinks 96.4, one 48.4, PCIe or
# QPI about 15.
#
#   0 ═ 3   0 - 1   0 - 2   0 ═ 4      4 ═ 7   4 - 5   4 - 6
#   1 ═ 2   1 - 3   1 ═ 5              5 ═ 6   5 - 7
#   2 ═ 6...                           "═" two links, "-" one
D, S, P = 96.4, 48.4, 15.0
V100 = (
    (0, S, S, D, D, P, P, P),
    (S, 0, D, S, P, D, P, P),
    (S, D, 0, D, P, P, S, P),
    (D, S, D, 0, P, P, P, S),
    (D, P, P, P, 0, S, S, D),
    (P, D, P, P, S, 0, D, S),
    (P, P, S, P, S, D, 0, D),
    (P, P, P, S, D, S, D, 0),
)
V100_LINKS = Links.of(links(V100))


def test_four_of_eight_get_the_best_bottleneck_of_all_subsets() -> None:
    chosen = choose(range(8), V100_LINKS, 4)
    assert chosen is not None
    best = max(V100_LINKS.bottleneck(subset) for subset in combinations(range(8), 4))
    assert V100_LINKS.bottleneck(chosen) == best == S
    assert chosen in ((0, 1, 2, 3), (4, 5, 6, 7))


def test_two_get_a_double_link_and_leave_another_whole() -> None:
    chosen = choose(range(8), V100_LINKS, 2)
    assert chosen is not None
    assert V100_LINKS.between(*chosen) == D


def test_a_single_gpu_leaves_pairs_whole() -> None:
    #  0 ═ 1   2   3 ═ 4      2 hangs on PCIe alone
    matrix = [[P] * 5 for _ in range(5)]
    for a, b in ((0, 1), (3, 4)):
        matrix[a][b] = matrix[b][a] = D
    assert choose(range(5), Links.of(links(matrix)), 1) == (2,)


def test_a_single_gpu_takes_the_one_whose_partner_is_taken() -> None:
    #  0 ═ 1   2 ═ 3      3 is taken
    matrix = [[P] * 4 for _ in range(4)]
    for a, b in ((0, 1), (2, 3)):
        matrix[a][b] = matrix[b][a] = D
    assert choose((0, 1, 2), Links.of(links(matrix)), 1) == (2,)


def test_gpus_without_links_are_taken_in_order() -> None:
    assert choose((5, 1, 3), Links({}), 2) == (1, 3)


def test_too_few_are_none() -> None:
    assert choose((0,), Links({}), 2) is None


def test_workers_of_a_node_share_out_its_pairs() -> None:
    #  0 ═ 2   1 ═ 3
    matrix = [[P] * 4 for _ in range(4)]
    for a, b in ((0, 2), (1, 3)):
        matrix[a][b] = matrix[b][a] = D
    shares = share_out((0, 1, 2, 3), Links.of(links(matrix)), 2)
    assert sorted(shares) == [(0, 2), (1, 3)]


@given(
    st.integers(1, 7).flatmap(
        lambda n: st.tuples(
            st.just(n),
            st.lists(st.sampled_from([0.0, P, S, D]), min_size=n * n, max_size=n * n),
            st.integers(0, n),
            st.sets(st.integers(0, n - 1)),
        )
    )
)
def test_the_bottleneck_is_the_best_there_is(case: tuple[int, list[float], int, set[int]]) -> None:
    n, cells, count, free = case
    table = Links.of(links([cells[i * n : (i + 1) * n] for i in range(n)]))
    chosen = choose(sorted(free), table, count)
    if count > len(free):
        assert chosen is None
        return
    assert chosen is not None
    assert set(chosen) <= free
    assert len(chosen) == len(set(chosen)) == count
    best = max((table.bottleneck(subset) for subset in combinations(sorted(free), count)), default=math.inf)
    assert table.bottleneck(chosen) == best
