"""Which server a prompt goes to."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from spangrad_vllm._prefixes import BLOCK, Prefixes

A = list(range(4 * BLOCK))


def test_what_extends_a_prompt_goes_where_the_prompt_went() -> None:
    prefixes = Prefixes()

    assert prefixes.choose(A, {0: 1, 1: 0}) == 1
    assert prefixes.choose([*A, 9, 9], {0: 0, 1: 2}) == 1
    assert prefixes.choose(A, {0: 0, 1: 4}) == 1


def test_a_server_with_much_more_to_do_than_the_idlest_gets_no_more() -> None:
    prefixes = Prefixes()
    prefixes.choose(A, {0: 0, 1: 1})

    assert prefixes.choose(A, {0: 5, 1: 0}) == 1
    assert prefixes.choose(A, {0: 0, 1: 0}) == 1  # which has the beginning in its cache now


def test_an_opening_that_all_share_draws_nobody() -> None:
    prefixes = Prefixes()
    opening = list(range(2 * BLOCK))
    prefixes.choose([*opening, *[1] * 4 * BLOCK], {0: 0, 1: 0})

    assert prefixes.choose([*opening, *[2] * 4 * BLOCK], {0: 1, 1: 0}) == 1


def test_a_server_whose_cache_is_gone_is_no_longer_preferred() -> None:
    prefixes = Prefixes()
    prefixes.choose(A, {1: 0})
    prefixes.forget(1)

    assert prefixes.choose(A, {0: 0, 1: 0}) == 0


@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(0, 1), max_size=80), st.dictionaries(st.integers(0, 3), st.integers(0, 9), min_size=1)
        ),
        max_size=30,
    )
)
def test_the_choice_can_be_chosen_and_has_never_much_more_to_do_than_the_idlest(
    asked: list[tuple[list[int], dict[int, int]]],
) -> None:
    prefixes = Prefixes()

    for prompt, loads in asked:
        chosen = prefixes.choose(prompt, loads)
        assert chosen in loads
        assert loads[chosen] <= min(loads.values()) + 4
