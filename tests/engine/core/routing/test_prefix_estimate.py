"""What a router knows of a prefix cache from the prompts that it has sent there."""

from hypothesis import given
from hypothesis import strategies as st

from engine.core.routing.views.prefix_estimate import PrefixEstimate


@given(st.integers(0, 12), st.lists(st.text("ab", max_size=7), max_size=30))
def test_what_is_known_of_a_cache_are_the_blocks_used_last(capacity: int, prompts: list[str]) -> None:
    estimate, used = PrefixEstimate(capacity), list[int]()  # in order of use, the last at the end
    for prompt in prompts:
        hashes = [int("1" + prompt[:end].translate({97: "0", 98: "1"}), 2) for end in range(1, len(prompt) + 1)]
        expected = next((i for i, block in enumerate(hashes) if block not in used), len(hashes))
        assert estimate.num_hits([*hashes, 0], len(hashes)) == expected
        estimate.add([*hashes, 0], len(hashes))
        used = [block for block in used if block not in hashes] + hashes[::-1]
        used = used[max(0, len(used) - capacity) :]
        assert len(estimate) == len(used)
