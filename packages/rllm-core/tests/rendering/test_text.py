"""Ids to text in pieces: whatever is cut, it joins to the text of the whole, and no character is broken."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from template_families import sentencepiece, tokenizer

from rllm.rendering import TextStream, alternative_strings, token_strings

KINDS = {
    "byte level": lambda: tokenizer("qwen25"),
    "added tokens outside the alphabet": lambda: tokenizer("deepseek"),
    "sentencepiece": lambda: sentencepiece(drops_first_space=False),
    "sentencepiece that drops the first space": lambda: sentencepiece(drops_first_space=True),
}


@pytest.fixture(params=KINDS, scope="module")
def made(request):
    return KINDS[request.param]()


def whole(tokenizer, ids):
    return tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


texts = st.text(max_size=30) | st.text("the a\n🙂é漢", max_size=20)


@settings(max_examples=60, deadline=None)
@given(text=texts)
def test_a_stream_joins_to_the_whole_text_and_never_breaks_a_character(made, text):
    ids = made(text, add_special_tokens=False)["input_ids"]
    stream = TextStream(made)
    pieces = [stream.push(i) for i in ids]
    if "\N{REPLACEMENT CHARACTER}" not in text:
        assert all("\N{REPLACEMENT CHARACTER}" not in p for p in pieces)
    assert "".join(pieces) + stream.flush() == stream.text == whole(made, ids)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_a_stream_of_any_ids_joins_to_the_whole_text(made, data):
    ids = data.draw(st.lists(st.integers(0, len(made) - 1) | st.just(100_000), max_size=20))
    stream = TextStream(made)
    pieces = [stream.push(i) for i in ids]
    assert "".join(pieces) + stream.flush() == whole(made, ids)


@settings(max_examples=60, deadline=None)
@given(text=texts)
def test_the_bytes_of_tokens_spell_the_text_whose_characters_are_spread_over_several(made, text):
    ids = made(text, add_special_tokens=False)["input_ids"]
    strings = token_strings(made, ids)
    assert len(strings) == len(ids)
    assert b"".join(raw for _, raw in strings) == whole(made, ids).encode()


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_the_bytes_of_any_ids_spell_their_text(made, data):
    ids = data.draw(st.lists(st.integers(0, len(made) - 1) | st.just(100_000), max_size=20))
    spelt = b"".join(raw for _, raw in token_strings(made, ids))
    assert spelt.decode(errors="replace") == whole(made, ids)


def test_an_emoji_is_spread_over_tokens_whose_bytes_are_its_own():
    made = tokenizer("chatml")
    ids = made("🙂", add_special_tokens=False)["input_ids"]
    assert len(ids) > 1
    assert b"".join(raw for _, raw in token_strings(made, ids)) == "🙂".encode()
    assert all("\N{REPLACEMENT CHARACTER}" in text for text, _ in token_strings(made, ids))


def test_byte_tokens_keep_their_bytes_where_the_first_space_is_dropped():
    made = sentencepiece(drops_first_space=True)
    ids = made("a 🙂", add_special_tokens=False)["input_ids"]
    assert [raw for _, raw in token_strings(made, ids)] == [b"a", b" ", b"\xf0", b"\x9f", b"\x99", b"\x82"]


def test_a_special_token_has_its_name_and_no_text():
    made = tokenizer("chatml")
    ids = made("hi<|im_end|>", add_special_tokens=False)["input_ids"]
    assert token_strings(made, ids)[-1] == ("<|im_end|>", b"")


def test_an_id_beyond_the_tokenizer_is_no_text():
    # Vocabularies are padded: a model can sample ids that no tokenizer names.
    made = tokenizer("chatml")
    assert token_strings(made, [100_000]) == [("", b"")]


def test_alternatives_are_spelt_as_they_would_stand_at_their_place():
    made = sentencepiece(drops_first_space=True)
    ids = made.convert_tokens_to_ids(["▁the", "▁a", "the"])
    assert [raw for _, raw in alternative_strings(made, ids, at_start=True)] == [b"the", b"a", b"the"]
    assert [raw for _, raw in alternative_strings(made, ids, at_start=False)] == [b" the", b" a", b"the"]


def test_a_stream_gives_out_text_as_soon_as_it_is_whole():
    made = tokenizer("chatml")
    stream = TextStream(made)
    pieces = [stream.push(i) for i in made("the🙂!", add_special_tokens=False)["input_ids"]]
    assert [p for p in pieces if p] == ["the", "🙂", "!"] or "".join(pieces[:-1]) == "the🙂"
