"""rllm-tiny's tokenizer, and conversations as token ids with the replies marked."""

__all__ = ["CONTEXT", "END", "build_tokenizer", "encode"]

from itertools import islice
from pathlib import Path

from data import LONG, SHORT, Example, examples
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
MARKS = ("<tools>", "</tools>", "<tool_call>", "</tool_call>")
"""One id each, but not special: decoding keeps them, for they are part of what a reply says."""

VOCABULARY = 768
CONTEXT = 8192
TRAINED_ON = 5_000
"""Conversations with tools, and as many without, that the merges are learned from."""

ALPHABET = " " + " ".join("abcdefghijklmnopqrstuvwxyz")


def build_tokenizer(seed: int) -> PreTrainedTokenizerFast:
    """Byte-level BPE with single digits, its merges learned from the pre-training data."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[PAD, START, END, *MARKS],
        show_progress=False,
    )
    template = Path(__file__).with_name("chat_template.jinja").read_text(encoding="utf-8")
    plain = PreTrainedTokenizerFast(tokenizer_object=tokenizer, chat_template=template)
    texts = [_text(plain, e) for kinds in (SHORT, LONG) for e in islice(examples(seed, kinds), TRAINED_ON)]
    # So often that every letter after a space becomes one token, rare ones too.
    tokenizer.train_from_iterator(texts + [ALPHABET] * len(texts), trainer)
    tokenizer.add_tokens([AddedToken(mark, special=False, normalized=False) for mark in MARKS])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        chat_template=template,
        bos_token=START,
        eos_token=END,
        pad_token=PAD,
        model_max_length=CONTEXT,
    )


def encode(tokenizer: PreTrainedTokenizerFast, example: Example) -> tuple[list[int], list[bool]]:
    """Token ids of a conversation, and which of them an assistant says (the end of its turn included)."""
    ids: list[int] = tokenizer(_text(tokenizer, example), add_special_tokens=False)["input_ids"]
    opening: list[int] = tokenizer(f"{START}assistant\n", add_special_tokens=False)["input_ids"]
    end = tokenizer.convert_tokens_to_ids(END)
    is_reply, inside = [False] * len(ids), False
    for index, token in enumerate(ids):
        is_reply[index] = inside
        if token == end:
            inside = False
        elif ids[index + 1 - len(opening) : index + 1] == opening:
            inside = True
    return ids, is_reply


def _text(tokenizer: PreTrainedTokenizerFast, example: Example) -> str:
    text: str = tokenizer.apply_chat_template(example.messages, tools=example.tools or None, tokenize=False)
    return text
