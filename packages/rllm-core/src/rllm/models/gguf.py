"""From a GGUF file to a Hugging Face folder in float32, with what the conversion loses put right."""

__all__ = ["convert_gguf"]

from pathlib import Path
from typing import Any

import torch
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

from rllm.errors import ModelError


def convert_gguf(gguf: Path, target: Path, template: Path) -> None:
    """Write weights (float32), tokenizer and the chat template of the file ``template`` to the folder ``target``.

    For models whose tokenizer is byte-level BPE with single digits, as SmolLM2's is. Raises ModelError.
    """
    had_bar = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        network = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
        _forget_quantization(network)
        _mend_tokenizer(tokenizer, template, int(network.config.max_position_embeddings))
        network.save_pretrained(target)
        tokenizer.save_pretrained(target)
    except Exception as error:
        # The reader trusts the file: a damaged one fails in as many ways as it has bytes.
        raise ModelError(f"{gguf.name} can't be converted: {type(error).__name__}: {error}") from error
    finally:
        if had_bar:
            transformers_logging.enable_progress_bar()


def _forget_quantization(network: Any) -> None:
    """The weights are float32 now, but the model still says that it is quantized, and then refuses to be saved."""
    network.hf_quantizer = None
    network.is_quantized = False
    del network.config.quantization_config


def _mend_tokenizer(tokenizer: Any, template: Path, context_tokens: int) -> None:
    """GGUF keeps only the ByteLevel step of the pre-tokenizer; without the other, "12" becomes one unknown merge."""
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.model_max_length = context_tokens
    tokenizer.chat_template = template.read_text(encoding="utf-8")
