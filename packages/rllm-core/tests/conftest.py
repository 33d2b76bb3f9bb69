"""What tests of several folders share: tiny random models with a real tokenizer, saved as Hugging Face folders."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

# Read when torch is first imported: its waiting threads would spin beside other work on a busy machine.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

TRAINING_TEXT = [
    "The final answer is 12. What is 3 + 9? Give the number only.",
    "A tool is called with its name and its arguments; the tool's answer is a message too.",
    "user assistant system tool function arguments value result number letter word",
    "Wörter mit Umlauten, 漢字, emoji 🙂 and tabs\tand newlines\n are bytes in the end.",
]


def make_tokenizer():
    """A byte-level BPE of some 300 tokens, ChatML template, ``<|im_end|>`` as the end of a turn."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        show_progress=False,
    )
    inner.train_from_iterator(TRAINING_TEXT, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        model_max_length=512,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def tiny_config(family: str, vocab_size: int):
    """A configuration of a few thousand parameters, with grouped-query attention where the family has it."""
    import transformers

    common = {
        "vocab_size": vocab_size,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "tie_word_embeddings": True,
        "initializer_range": 0.3,
        "eos_token_id": 2,
        "bos_token_id": 1,
        "pad_token_id": 0,
    }
    if family == "llama":
        return transformers.LlamaConfig(**common)
    if family == "qwen2":
        return transformers.Qwen2Config(**common | {"tie_word_embeddings": False})
    if family == "qwen3":
        return transformers.Qwen3Config(**common, head_dim=8)
    if family == "mistral":
        return transformers.MistralConfig(**common, sliding_window=8, head_dim=8)
    if family == "gemma2":
        return transformers.Gemma2Config(**common, head_dim=8, sliding_window=8, query_pre_attn_scalar=8)
    if family == "gemma3":
        return transformers.Gemma3TextConfig(
            **common, head_dim=8, sliding_window=8, query_pre_attn_scalar=8, layer_types=LAYERS
        )
    if family == "gpt_oss":
        return transformers.GptOssConfig(
            **common, head_dim=8, sliding_window=8, layer_types=LAYERS, num_local_experts=2, num_experts_per_tok=1
        )
    if family == "gpt2":
        return transformers.GPT2Config(
            vocab_size=vocab_size, n_embd=32, n_layer=2, n_head=4, n_positions=512, eos_token_id=2, bos_token_id=1
        )
    if family == "bloom":
        return transformers.BloomConfig(
            vocab_size=vocab_size, hidden_size=32, n_layer=2, n_head=4, eos_token_id=2, initializer_range=0.3
        )
    if family == "mamba":
        return transformers.MambaConfig(
            vocab_size=vocab_size, hidden_size=32, state_size=4, num_hidden_layers=2, eos_token_id=2
        )
    raise ValueError(family)


LAYERS = ["sliding_attention", "full_attention"]


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory) -> Callable[[str], Path]:
    """Gives the folder of a tiny random model of a family ("llama", "qwen2", …); each is made once."""
    made: dict[str, Path] = {}

    def folder(family: str) -> Path:
        if family not in made:
            made[family] = _save(family, tmp_path_factory.mktemp(family))
        return made[family]

    return folder


def _save(family: str, path: Path) -> Path:
    import torch
    from transformers import AutoModelForCausalLM

    tokenizer = make_tokenizer()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(tiny_config(family, len(tokenizer)))
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


@pytest.fixture(scope="session")
def tiny_model_dir(model_folder) -> Path:
    """A random Llama of some 25,000 parameters: grouped-query attention, tied head, ChatML, a context of 512."""
    return model_folder("llama")
