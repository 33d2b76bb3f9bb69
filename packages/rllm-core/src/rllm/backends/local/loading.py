"""From a folder or hub id to a model in memory: weights, tokenizer, context length, stop ids, and how it is run."""

__all__ = ["LoadedModel", "info_of", "load_config", "load_model", "load_tokenizer", "load_weights", "pick_device"]

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

from rllm.backends.local.settings import TinkerSettings
from rllm.errors import ModelError, TemplateError
from rllm.protocols import BackendRequest, ModelInfo
from rllm.rendering import Renderer

log = logging.getLogger("rllm.backends")


@dataclass(frozen=True)
class LoadedModel:
    """A model as transformers made it, in float32 on its device, and what is known of it."""

    network: Any
    """A transformers ``PreTrainedModel`` with a language model head."""
    info: ModelInfo
    device: torch.device


def load_model(request: BackendRequest, settings: TinkerSettings) -> LoadedModel:
    """Raises ModelError that says what is missing."""
    device = pick_device(settings.device)
    tokenizer = load_tokenizer(request)
    network = load_weights(request.model_path).to(device)
    info = info_of(request, settings, network, tokenizer)
    if not info.stop_ids:
        log.warning("model %s names no end-of-text token: completions end at max_tokens only", info.name)
    return LoadedModel(network, info, device)


def info_of(request: BackendRequest, settings: TinkerSettings, network: Any, tokenizer: Any) -> ModelInfo:
    """What is known of a model; its weights are not read. Raises ModelError."""
    context_tokens = _context_tokens(network, tokenizer, settings)
    return ModelInfo(
        name=request.model_name,
        tokenizer=tokenizer,
        context_tokens=context_tokens,
        stop_ids=_stop_ids(network, tokenizer, context_tokens),
        vocab_size=network.get_output_embeddings().weight.shape[0],
        n_parameters=sum(p.numel() for p in network.parameters()),
    )


def pick_device(name: str) -> torch.device:
    """Raises ModelError where the device is not there."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    is_there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not is_there[name]:
        raise ModelError(f"tinker.device={name}, but torch sees no such device here. Set tinker.device=auto")
    return torch.device(name)


def load_weights(path: str) -> Any:
    """A causal language model in float32, in evaluation mode, dropout off. Raises ModelError."""
    had_bar = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        config = load_config(path)
        network = AutoModelForCausalLM.from_pretrained(path, config=config, dtype=torch.float32)
    except ModelError:
        raise
    except (OSError, ValueError, KeyError, RuntimeError, ImportError) as error:
        raise ModelError(_advice(path, error)) from error
    finally:
        if had_bar:
            transformers_logging.enable_progress_bar()
    if network.get_output_embeddings() is None:
        raise ModelError(f"the model {path!r} has no language model head; choose a causal language model")
    for module in network.modules():
        if isinstance(module, nn.Dropout):
            # The trainer must compute the probabilities that the sampler drew from.
            module.p = 0.0
    return network.eval()


def load_config(path: str) -> Any:
    """A model's transformers configuration. Raises ModelError, also where the weights are rounded."""
    try:
        config = AutoConfig.from_pretrained(path)
    except (OSError, ValueError, KeyError, RuntimeError, ImportError) as error:
        raise ModelError(_advice(path, error)) from error
    _refuse_quantised(path, config)
    return config


def _refuse_quantised(path: str, config: Any) -> None:
    """Rounded weights draw from another distribution than the one that is trained, and can't be trained themselves."""
    quantised = getattr(config, "quantization_config", None)
    if quantised is None:
        return
    method = quantised.get("quant_method") if isinstance(quantised, dict) else getattr(quantised, "quant_method", None)
    raise ModelError(
        f"the model {path!r} is quantised ({method or 'its config.json has a quantization_config'}): what it draws "
        "can't be trained on exactly. Take the model it was made from, in float32, float16 or bfloat16"
    )


def load_tokenizer(request: BackendRequest) -> Any:
    try:
        return AutoTokenizer.from_pretrained(request.model_path)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise ModelError(f"the tokenizer of {request.model_name!r}: {_advice(request.model_path, error)}") from error


def _advice(path: str, error: Exception) -> str:
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if Path(path).is_dir():
        return (
            f"the model folder {path!r} can't be loaded: {reason}. It needs config.json, the weights "
            "(model.safetensors) and the tokenizer's files, as transformers' save_pretrained writes them"
        )
    return (
        f"the model {path!r} can't be loaded: {reason}. It is no folder here, so it was looked up on the Hugging Face "
        "hub: check the name and the network, or give a folder, or one of `rllm model list`"
    )


def _context_tokens(network: Any, tokenizer: Any, settings: TinkerSettings) -> int:
    config: dict[str, Any] = network.config.get_text_config().to_dict()
    known = [config[k] for k in ("max_position_embeddings", "n_positions", "seq_length") if config.get(k)]
    own: int | None = int(known[0]) if known else None
    if own is None and tokenizer.model_max_length < 10**9:
        own = int(tokenizer.model_max_length)
    if settings.context_tokens is None:
        if own is None:
            raise ModelError("the model does not say how long its context is. Set tinker.context_tokens")
        return own
    if own is not None and settings.context_tokens > own:
        raise ModelError(f"tinker.context_tokens={settings.context_tokens}, but the model's context is {own}")
    return settings.context_tokens


def _stop_ids(network: Any, tokenizer: Any, context_tokens: int) -> tuple[int, ...]:
    """The ends of a text or turn: as the generation config, the tokenizer and the chat template say."""
    found: set[int] = set()
    for eos in (network.generation_config.eos_token_id if network.generation_config else None, tokenizer.eos_token_id):
        found |= set(eos) if isinstance(eos, list) else {eos} if eos is not None else set()
    try:
        found |= set(Renderer(tokenizer, context_tokens=context_tokens).stop_ids)
    except TemplateError as error:
        # A model without a template can be drawn from by token ids; who wants messages meets this error himself.
        log.debug("no end of turn: %s", error)
    return tuple(sorted(int(i) for i in found))
