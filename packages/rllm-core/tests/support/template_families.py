"""Small tokenizers with the special tokens and templates of the known families, for tests of what a template does."""

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

CHATML = """{%- if tools %}<|im_start|>system
Tools:{% for tool in tools %}
{{ tool | tojson }}{% endfor %}<|im_end|>
{% endif %}{% for m in messages %}{% if m.role == 'tool' %}<|im_start|>user
<tool_response>
{{ m.content }}
</tool_response><|im_end|>
{% elif m.tool_calls %}<|im_start|>assistant
{{ m.content }}{% for c in m.tool_calls %}<tool_call>
{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% else %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

# Qwen 3: reasoning of turns before the last question is dropped.
QWEN3 = """{%- set ns = namespace(last=0) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}
{%- endif %}{% endfor %}{% for m in messages %}{% set text = m.content %}{% if m.role == 'assistant' and '</think>' in text and loop.index0 < ns.last %}
{%- set text = text.split('</think>')[-1].lstrip('\\n') %}{% endif %}<|im_start|>{{ m.role }}
{{ text }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

LLAMA3 = """<|begin_of_text|>{% for m in messages %}<|start_header_id|>{{ 'ipython' if m.role == 'tool' else m.role }}<|end_header_id|>

{% if m.tool_calls %}{"name": "{{ m.tool_calls[0].function.name }}", "parameters": {{ m.tool_calls[0].function.arguments | tojson }}}
{%- else %}{{ m.content | trim }}{% endif %}<|eot_id|>{% endfor %}{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>

{% endif %}"""

GEMMA = """<bos>{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}<start_of_turn>{{ 'model' if m.role == 'assistant' else 'user' }}
{{ m.content | trim }}<end_of_turn>
{% endfor %}{% if add_generation_prompt %}<start_of_turn>model
{% endif %}"""

DEEPSEEK = """<|bos|>{% for m in messages %}{% if m.role == 'user' %}<|User|>{{ m.content }}{% elif m.role == 'assistant' %}<|Assistant|>{{ m.content }}<|eos|>{% else %}{{ m.content }}{% endif %}{% endfor %}{% if add_generation_prompt %}<|Assistant|>{% endif %}"""

# Keeps only the last exchange: no stream can be continued.
FORGETFUL = """{% for m in messages[-2:] %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

# No special token ends the assistant's turn.
PLAIN = """{% for m in messages %}{{ m.role }}: {{ m.content }}
{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"""

FAMILIES = {
    "chatml": (CHATML, ["<|im_start|>", "<|im_end|>"], "<|im_end|>"),
    "qwen3": (QWEN3, ["<|im_start|>", "<|im_end|>"], "<|im_end|>"),
    "llama3": (LLAMA3, ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"], "<|eot_id|>"),
    "gemma": (GEMMA, ["<bos>", "<start_of_turn>", "<end_of_turn>", "<eos>"], "<eos>"),
    "deepseek": (DEEPSEEK, ["<|bos|>", "<|User|>", "<|Assistant|>", "<|eos|>"], "<|eos|>"),
    "forgetful": (FORGETFUL, ["<|im_start|>", "<|im_end|>"], "<|im_end|>"),
    "plain": (PLAIN, ["<|end|>"], "<|end|>"),
}


def tokenizer(family: str) -> PreTrainedTokenizerFast:
    """A byte-level BPE of 400 tokens with the family's special tokens and template."""
    template, special, eos = FAMILIES[family]
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=special,
        show_progress=False,
    )
    bpe.train_from_iterator(["user assistant system the answer is that one two three hello world"] * 4, trainer)
    made = PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token=eos)
    made.chat_template = template
    return made
