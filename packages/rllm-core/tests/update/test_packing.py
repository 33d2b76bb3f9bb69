"""Token forests: whatever the rows, each row's path spells it, and what is an ancestor is a prefix."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rllm.types import Row
from rllm.update.packing import forest_of, pack, square_chunks

sequences = st.lists(
    st.lists(st.integers(0, 3), min_size=1, max_size=12).map(lambda s: np.asarray(s, np.int32)), min_size=1, max_size=8
)


def ancestors(forest, i):
    """By the definition: j is an ancestor of i, or i itself, if i lies in j's subtree."""
    return [j for j in range(i + 1) if forest.ends[j] > i]


@given(sequences)
def test_each_path_spells_its_sequence_and_is_the_ancestors_of_its_last_node(given_sequences):
    forest = forest_of(given_sequences)
    for sequence, path in zip(given_sequences, forest.paths, strict=True):
        assert forest.tokens[path].tolist() == sequence.tolist()
        assert forest.positions[path].tolist() == list(range(len(sequence)))
        assert ancestors(forest, path[-1]) == path.tolist()


@given(sequences)
def test_there_is_one_node_for_each_distinct_prefix(given_sequences):
    prefixes = {tuple(s[:n].tolist()) for s in given_sequences for n in range(1, len(s) + 1)}
    assert len(forest_of(given_sequences)) == len(prefixes)


@given(sequences, st.integers(1, 6))
def test_a_chunks_queries_find_all_their_ancestors_in_its_keys(given_sequences, size):
    forest = forest_of(given_sequences)
    chunks = square_chunks(forest.ends, size)
    assert [i for c in chunks for i in range(c.start, c.stop)] == list(range(len(forest)))
    for chunk in chunks:
        keys = {*chunk.ancestors.tolist(), *range(chunk.start, chunk.stop)}
        for i in range(chunk.start, chunk.stop):
            assert set(ancestors(forest, i)) <= keys


def row_of(tokens, mask, temperature):
    n = len(tokens)
    zeros = np.zeros(n, np.float32)
    return Row(
        np.asarray(tokens, np.int32), np.asarray(mask, np.float32), zeros, zeros, np.zeros(n, np.int32), temperature
    )


@st.composite
def rows(draw):
    made = []
    for _ in range(draw(st.integers(1, 6))):
        tokens = draw(st.lists(st.integers(0, 2), min_size=1, max_size=10))
        mask = [0.0, *draw(st.lists(st.sampled_from([0.0, 0.5]), min_size=len(tokens) - 1, max_size=len(tokens) - 1))]
        made.append(row_of(tokens, mask, draw(st.sampled_from([0.7, 1.0]))))
    return made


@settings(max_examples=200)
@given(rows(), st.integers(1, 20))
def test_every_target_is_predicted_once_from_its_own_prefix_at_its_own_temperature(given_rows, max_tokens):
    packings = pack(given_rows, max_tokens)
    seen = sorted(k for p in packings for k in p.rows)
    assert seen == [k for k, row in enumerate(given_rows) if row.n_targets]
    for packing in packings:
        for k, edges, at in zip(packing.rows, packing.edges, packing.positions, strict=True):
            row = given_rows[k]
            assert at.tolist() == np.flatnonzero(row.mask).tolist()
            for edge, t in zip(edges, at, strict=True):
                head = packing.heads[edge]
                source = packing.sources[head]
                assert packing.targets[edge] == row.tokens[t]
                assert packing.temperatures[head] == np.float32(row.temperature)
                prefix = packing.forest.tokens[ancestors(packing.forest, source)]
                assert prefix.tolist() == row.tokens[:t].tolist()


@given(rows(), st.integers(1, 20))
def test_a_micro_batch_is_too_large_only_if_it_is_a_single_sequence(given_rows, max_tokens):
    for packing in pack(given_rows, max_tokens):
        inputs = {given_rows[k].tokens[: np.flatnonzero(given_rows[k].mask)[-1]].tobytes() for k in packing.rows}
        longest = max(len(path) for path in packing.forest.paths)
        assert len(packing.forest) <= max_tokens or len(packing.forest) == longest or len(inputs) == 1


def test_a_group_costs_its_prompt_once_and_its_last_tokens_nothing():
    prompt, n = list(range(50)), 8
    group = [row_of([*prompt, 100 + k, 200], [0.0] * 50 + [1.0, 1.0], 1.0) for k in range(n)]
    (packing,) = pack(group, 10_000)
    assert len(packing.forest) == 50 + n
    assert len(packing.sources) == 1 + n
    assert len(packing.targets) == n + n


def test_enough_tokens_end_a_micro_batch_between_groups_and_not_within_one():
    def group(first, n, prompt=40):
        begin = [first] * prompt
        return [row_of([*begin, first + k, 1, 2], [0.0] * prompt + [0.5] * 3, 1.0) for k in range(1, n + 1)]

    made = [*group(10, 4), *group(30, 4), *group(50, 4)]
    assert [p.rows for p in pack(made, 1000, 32)] == [(0, 1, 2, 3), (4, 5, 6, 7), (8, 9, 10, 11)]
    assert [p.rows for p in pack(made, 1000, 60)] == [(0, 1, 2, 3, 4, 5, 6, 7), (8, 9, 10, 11)]
    assert [p.rows for p in pack(made, 1000)] == [tuple(range(12))]
