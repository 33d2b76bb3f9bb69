"""What is read together and what is kept of it: planning a reading, and the tree of beginnings."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rllm.backends.local.cache import KeysValues
from rllm.backends.local.prefixes import PrefixTree
from rllm.backends.local.reading import Unread, plan_reading

tokens = st.lists(st.integers(0, 2), min_size=1, max_size=12).map(lambda x: np.asarray(x, np.int32))


# --- readings ---------------------------------------------------------------------------------------------------


@settings(max_examples=300)
@given(st.lists(st.tuples(tokens, st.integers(0, 11)), min_size=1, max_size=6), st.integers(1, 30))
def test_a_reading_gives_each_row_the_next_of_its_own_tokens_at_their_places(rows, max_tokens):
    unread = [Unread(row, t, min(known, len(t) - 1)) for row, (t, known) in enumerate(rows)]
    plan = plan_reading(unread, max_tokens)
    assert 1 <= len(plan.tokens) <= max_tokens
    for part in plan.parts:
        row = unread[part.row]
        assert part.start == row.known
        assert plan.tokens[part.nodes].tolist() == row.tokens[part.start : part.stop].tolist()
        assert plan.positions[part.nodes].tolist() == list(range(part.start, part.stop))
    parts = {part.row: part for part in plan.parts}
    covered = []
    for run in plan.runs:
        # Its keys are its row's: all that the queries may see was known, or is read into this row.
        part = parts[run.row]
        assert part.start <= run.start
        assert part.nodes[run.start - part.start :][: run.n].tolist() == list(range(run.node, run.node + run.n))
        covered += range(run.node, run.node + run.n)
    assert covered == list(range(len(plan.tokens)))


@given(st.lists(tokens, min_size=1, max_size=6))
def test_rows_that_know_nothing_share_all_that_they_begin_with(sequences):
    plan = plan_reading([Unread(k, t, 0) for k, t in enumerate(sequences)], 1000)
    assert len(plan.tokens) == len({tuple(t[:n].tolist()) for t in sequences for n in range(1, len(t) + 1)})


# --- the tree ---------------------------------------------------------------------------------------------------


def state_of(sequence):
    """Keys that tell which beginning they belong to: a number made of the tokens so far."""
    codes = [hash(tuple(sequence[: k + 1].tolist())) % 2**40 for k in range(len(sequence))]
    return torch.tensor(codes, dtype=torch.float64)[None, :, None]


def add(tree, sequence, max_tokens):
    whole = state_of(sequence)
    tree.add(sequence, lambda a, b: KeysValues({0: (whole[:, a:b].clone(), whole[:, a:b].clone())}), max_tokens)


@settings(max_examples=300)
@given(st.lists(tokens, max_size=12), st.integers(0, 30), tokens)
def test_what_the_tree_finds_is_the_state_of_that_very_beginning(added, max_tokens, wanted):
    tree = PrefixTree()
    for sequence in added:
        add(tree, sequence, max_tokens)
        assert tree.n_tokens <= max_tokens
    parts = [held.layers[0][0][:, :n] for held, n in tree.find(wanted)]
    found = torch.cat([torch.zeros(1, 0, 1, dtype=torch.float64), *parts], 1)
    assert torch.equal(found, state_of(wanted)[:, : found.shape[1]])


@given(st.lists(tokens, min_size=1, max_size=12))
def test_with_room_for_all_each_distinct_beginning_is_held_once(added):
    tree = PrefixTree()
    for sequence in added:
        add(tree, sequence, 1000)
    assert tree.n_tokens == len({tuple(t[:n].tolist()) for t in added for n in range(1, len(t) + 1)})
    for sequence in added:
        assert sum(n for _, n in tree.find(sequence)) == len(sequence)


def test_what_was_used_longest_ago_is_let_go_first():
    tree = PrefixTree()
    old, kept, new = (np.full(10, k, np.int32) for k in range(3))
    add(tree, old, 20)
    add(tree, kept, 20)
    tree.find(old)
    add(tree, new, 20)
    assert [sum(n for _, n in tree.find(s)) for s in (old, kept, new)] == [10, 0, 10]
    tree.clear()
    assert (tree.n_tokens, tree.find(old)) == (0, [])
