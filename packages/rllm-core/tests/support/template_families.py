"""Small tokenizers with the special tokens of the known model families, and their chat templates, shortened: what
matters here (separators, roles, tools, reasoning of older turns, what is raised) is as in the originals."""

from dataclasses import dataclass
from functools import cache

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

# Qwen2.5: Hermes' calls; results of one turn share a user's turn.
QWEN25 = """{%- if tools %}
{{- '<|im_start|>system\\n' }}
{%- if messages[0]['role'] == 'system' %}{{- messages[0]['content'] }}{%- else %}{{- 'You are helpful.' }}{%- endif %}
{{- '\\n\\n# Tools\\n\\n<tools>' }}
{%- for tool in tools %}{{- '\\n' }}{{- tool | tojson }}{%- endfor %}
{{- '\\n</tools>\\n\\nAnswer with <tool_call>\\n{"name": <name>, "arguments": <args>}\\n</tool_call><|im_end|>\\n' }}
{%- elif messages[0]['role'] == 'system' %}
{{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
{%- else %}{{- '<|im_start|>system\\nYou are helpful.<|im_end|>\\n' }}{%- endif %}
{%- for message in messages %}
{%- if message.role == 'user' or (message.role == 'system' and not loop.first)
       or (message.role == 'assistant' and not message.tool_calls) %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- elif message.role == 'assistant' %}
{{- '<|im_start|>' + message.role }}
{%- if message.content %}{{- '\\n' + message.content }}{%- endif %}
{%- for call in message.tool_calls %}
{{- '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
{{- call.function.arguments | tojson }}{{- '}\\n</tool_call>' }}
{%- endfor %}{{- '<|im_end|>\\n' }}
{%- elif message.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
{{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""

# Qwen3: as above; reasoning of turns before the last question is dropped, and an empty one put before the last reply.
QWEN3 = """{%- if tools %}
{{- '<|im_start|>system\\n# Tools\\n\\n<tools>' }}
{%- for tool in tools %}{{- '\\n' }}{{- tool | tojson }}{%- endfor %}
{{- '\\n</tools>\\n\\n<tool_call>\\n{"name": <name>, "arguments": <args>}\\n</tool_call><|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(last=messages|length - 1) %}
{%- for message in messages %}{%- if message.role == 'user' %}{%- set ns.last = loop.index0 %}{%- endif %}{%- endfor %}
{%- for message in messages %}
{%- set content = message.content if message.content is string else '' %}
{%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
{{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}
{%- elif message.role == 'assistant' %}
{%- set reasoning = message.reasoning_content if message.reasoning_content is string else '' %}
{%- if not reasoning and '</think>' in content %}
{%- set reasoning = content.split('</think>')[0].split('<think>')[-1].strip('\\n') %}
{%- set content = content.split('</think>')[-1].lstrip('\\n') %}{%- endif %}
{%- if loop.index0 > ns.last and (loop.last or reasoning) %}
{{- '<|im_start|>assistant\\n<think>\\n' + reasoning.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
{%- else %}{{- '<|im_start|>assistant\\n' + content }}{%- endif %}
{%- for call in message.tool_calls or [] %}
{%- if content or not loop.first %}{{- '\\n' }}{%- endif %}
{{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
{%- if call.function.arguments is string %}{{- call.function.arguments }}
{%- else %}{{- call.function.arguments | tojson }}{%- endif %}{{- '}\\n</tool_call>' }}
{%- endfor %}{{- '<|im_end|>\\n' }}
{%- elif message.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
{{- '\\n<tool_response>\\n' + content + '\\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""

# Qwen3-Coder: calls as tags; arguments must be an object.
QWEN3_CODER = """{%- if tools %}
{{- '<|im_start|>system\\nYou have these functions:\\n<tools>' }}
{%- for tool in tools %}{{- '\\n<function>\\n<name>' ~ tool.function.name ~ '</name>\\n</function>' }}{%- endfor %}
{{- '\\n</tools>\\nCall them as\\n<tool_call>\\n<function=example>\\n<parameter=a>\\n1\\n</parameter>\\n' }}
{{- '</function>\\n</tool_call><|im_end|>\\n' }}{%- endif %}
{%- for message in messages %}
{%- if message.role == 'assistant' and message.tool_calls %}
{{- '<|im_start|>assistant' }}
{%- if message.content is string and message.content | trim %}{{- '\\n' + message.content | trim + '\\n' }}{%- endif %}
{%- for call in message.tool_calls %}
{{- '\\n<tool_call>\\n<function=' + call.function.name + '>\\n' }}
{%- for name, value in call.function.arguments | items %}
{{- '<parameter=' + name + '>\\n' }}
{{- value | tojson if value is mapping or (value is sequence and value is not string) else value | string }}
{{- '\\n</parameter>\\n' }}{%- endfor %}
{{- '</function>\\n</tool_call>' }}{%- endfor %}{{- '<|im_end|>\\n' }}
{%- elif message.role == 'tool' %}
{%- if loop.previtem and loop.previtem.role != 'tool' %}{{- '<|im_start|>user\\n' }}{%- endif %}
{{- '<tool_response>\\n' + message.content + '\\n</tool_response>\\n' }}
{%- if loop.last or loop.nextitem.role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
{%- else %}{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""

# Llama 3.1: tools before the first question, one call a turn, results as ipython, everything trimmed.
LLAMA3 = """{{- '<|begin_of_text|>' }}
{%- if messages[0]['role'] == 'system' %}{%- set system = messages[0]['content'] | trim %}
{%- set messages = messages[1:] %}{%- else %}{%- set system = '' %}{%- endif %}
{{- '<|start_header_id|>system<|end_header_id|>\\n\\n' + system + '<|eot_id|>' }}
{%- if tools %}
{%- set first = messages[0]['content'] | trim %}{%- set messages = messages[1:] %}
{{- '<|start_header_id|>user<|end_header_id|>\\n\\nRespond in the format {"name": function name, "parameters": ' }}
{{- 'dictionary of argument name and its value}.\\n\\n' }}
{%- for tool in tools %}{{- tool | tojson(indent=4) }}{{- '\\n\\n' }}{%- endfor %}{{- first + '<|eot_id|>' }}
{%- endif %}
{%- for message in messages %}
{%- if 'tool_calls' in message %}
{%- if not message.tool_calls | length == 1 %}
{{- raise_exception('This model only supports single tool-calls at once!') }}{%- endif %}
{%- set call = message.tool_calls[0].function %}
{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n{"name": "' + call.name + '", "parameters": ' }}
{{- call.arguments | tojson }}{{- '}<|eot_id|>' }}
{%- elif message.role == 'tool' or message.role == 'ipython' %}
{{- '<|start_header_id|>ipython<|end_header_id|>\\n\\n' }}
{{- message.content | tojson if message.content is mapping else message.content }}{{- '<|eot_id|>' }}
{%- else %}
{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}"""

GEMMA = """{{ '<bos>' }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}
{% endif %}{% for message in messages %}
{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}
{%- set role = 'model' if message['role'] == 'assistant' else message['role'] %}
{{- '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"""

# DeepSeek-R1: no separators; the header opens reasoning, older turns have none; a call's arguments are text, and its
# form is one of its own.
DEEPSEEK = """{%- set ns = namespace(is_tool=false) %}{{- '<｜begin▁of▁sentence｜>' }}
{%- for message in messages %}
{%- if message['role'] == 'system' %}{{- message['content'] }}{%- endif %}
{%- if message['role'] == 'user' %}{%- set ns.is_tool = false %}{{- '<｜User｜>' + message['content'] }}{%- endif %}
{%- if message['role'] == 'assistant' and message['tool_calls'] is defined %}
{%- if ns.is_tool %}{{- '<｜tool▁outputs▁end｜>' }}{%- else %}{{- '<｜Assistant｜>' }}{%- endif %}
{%- set ns.is_tool = false %}{{- message['content'] + '<｜tool▁calls▁begin｜>' }}
{%- for call in message['tool_calls'] %}
{{- '<｜tool▁call▁begin｜>' + call['type'] + '<｜tool▁sep｜>' + call['function']['name'] + '\\n```json\\n' }}
{{- call['function']['arguments'] ~ '\\n```<｜tool▁call▁end｜>' }}{%- endfor %}
{{- '<｜tool▁calls▁end｜><｜end▁of▁sentence｜>' }}
{%- elif message['role'] == 'assistant' %}
{%- if ns.is_tool %}{{- '<｜tool▁outputs▁end｜>' + message['content'] + '<｜end▁of▁sentence｜>' }}
{%- set ns.is_tool = false %}
{%- else %}{%- set content = message['content'].split('</think>')[-1] %}
{{- '<｜Assistant｜>' + content + '<｜end▁of▁sentence｜>' }}{%- endif %}{%- endif %}
{%- if message['role'] == 'tool' %}{%- if not ns.is_tool %}{{- '<｜tool▁outputs▁begin｜>' }}{%- endif %}
{%- set ns.is_tool = true %}{{- '<｜tool▁output▁begin｜>' + message['content'] + '<｜tool▁output▁end｜>' }}{%- endif %}
{%- endfor %}
{%- if ns.is_tool %}{{- '<｜tool▁outputs▁end｜>' }}{%- endif %}
{%- if add_generation_prompt and not ns.is_tool %}{{- '<｜Assistant｜><think>\\n' }}{%- endif %}"""

# Mistral 7B v0.3: the tools move to the last question, so that nothing with tools can be continued.
MISTRAL = """{{- '<s>' }}
{%- set ns = namespace(last=0) %}
{%- for m in messages %}{%- if m.role == 'user' %}{%- set ns.last = loop.index0 %}{%- endif %}{%- endfor %}
{%- for m in messages %}
{%- if m.role == 'user' %}
{%- if tools and loop.index0 == ns.last %}{{- '[AVAILABLE_TOOLS] ' }}{{- tools | tojson }}{{- '[/AVAILABLE_TOOLS]' }}
{%- endif %}{{- '[INST] ' + m.content + '[/INST]' }}
{%- elif m.role == 'assistant' and m.tool_calls %}
{{- '[TOOL_CALLS] [' }}{%- for call in m.tool_calls %}{{- call.function | tojson }}{{- ', ' if not loop.last }}
{%- endfor %}{{- ']</s>' }}
{%- elif m.role == 'assistant' %}{{- ' ' + m.content | trim + '</s>' }}
{%- elif m.role == 'tool' %}{{- '[TOOL_RESULTS] {"content": ' + m.content + '}[/TOOL_RESULTS]' }}
{%- endif %}
{%- endfor %}"""

# Only what it says: no tools, no roles but these three; another is left out without a word.
CHATML = """{%- for m in messages %}{%- if m.role in ['system', 'user', 'assistant'] %}
{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{%- endif %}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""

# Ends a turn that calls tools with another token where nothing follows it.
FICKLE = QWEN25.replace(
    "{%- endfor %}{{- '<|im_end|>\\n' }}",
    "{%- endfor %}{{- '<|endoftext|>' if loop.last and not add_generation_prompt else '<|im_end|>\\n' }}",
)
# Tools are named, calls are not written.
HALF_TOOLS = CHATML.replace(
    "{%- for m in messages %}", "{%- if tools %}{{- tools | tojson }}{%- endif %}{%- for m in messages %}", 1
)

# Keeps only the last six messages: a long conversation can't be continued, a short one can.
FORGETFUL = CHATML.replace("in messages", "in messages[-6:]")
# Keeps only the last two: nothing can be continued.
VERY_FORGETFUL = CHATML.replace("in messages", "in messages[-2:]")
# Puts a reminder behind the last question only.
REMINDING = CHATML.replace(
    "{%- if add_generation_prompt %}",
    "{%- if add_generation_prompt %}{{- '<|im_start|>system\\nBe brief.<|im_end|>\\n' }}",
)
# Llama 2: a space stands between a reply and its end.
LLAMA2 = """{%- for m in messages %}{%- if m.role == 'user' %}{{- '<s>[INST] ' + m.content + ' [/INST]' }}
{%- else %}{{- ' ' + m.content + ' </s>' }}{%- endif %}{%- endfor %}"""
# No special token anywhere.
PLAIN = """{%- for m in messages %}{{- m.role + ': ' + m.content + '\\n' }}{%- endfor %}
{%- if add_generation_prompt %}{{- 'assistant: ' }}{%- endif %}"""
# Ends with the first reply: nothing said later shows.
SHORT = """{%- for m in messages[:2] %}{{- '<|im_start|>' + m.role + '\\n' + m.content }}{%- endfor %}"""
# Replies never show.
DEAF = """{%- for m in messages %}{%- if m.role == 'user' %}{{- '<|im_start|>user\\n' + m.content + '<|im_end|>\\n' }}
{%- elif m.role == 'assistant' %}{{- '<|im_start|>assistant\\n...<|im_end|>\\n' }}{%- endif %}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""


@dataclass(frozen=True)
class Family:
    """A template with its tokens. ``words``: added tokens that are text (not special)."""

    template: str
    special: tuple[str, ...]
    end_of_turn: str
    eos: str
    words: tuple[str, ...] = ()


IM = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TOOL_WORDS = ("<tool_call>", "</tool_call>", "<think>", "</think>")
FAMILIES = {
    "chatml": Family(CHATML, IM, "<|im_end|>", "<|im_end|>"),
    "qwen25": Family(QWEN25, IM, "<|im_end|>", "<|im_end|>", TOOL_WORDS[:2]),
    "qwen25 of a base model": Family(QWEN25, IM, "<|im_end|>", "<|endoftext|>"),
    "hermes with special markers": Family(QWEN25, IM + TOOL_WORDS[:2], "<|im_end|>", "<|im_end|>"),
    "qwen3": Family(QWEN3, IM, "<|im_end|>", "<|im_end|>", TOOL_WORDS),
    "qwen3 coder": Family(QWEN3_CODER, IM, "<|im_end|>", "<|im_end|>", TOOL_WORDS[:2]),
    "llama3": Family(
        LLAMA3,
        ("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>", "<|eot_id|>",
         "<|python_tag|>"),
        "<|eot_id|>", "<|end_of_text|>",
    ),
    "gemma": Family(GEMMA, ("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"), "<end_of_turn>", "<eos>"),
    "deepseek": Family(
        DEEPSEEK,
        ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>", "<｜tool▁calls▁begin｜>",
         "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>",
         "<｜tool▁outputs▁begin｜>", "<｜tool▁outputs▁end｜>", "<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>"),
        "<｜end▁of▁sentence｜>", "<｜end▁of▁sentence｜>", ("<think>", "</think>"),
    ),
    "mistral": Family(
        MISTRAL,
        ("<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_CALLS]",
         "[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
        "</s>", "</s>",
    ),
    "fickle": Family(FICKLE, IM, "<|im_end|>", "<|im_end|>"),
    "fickle base model": Family(FICKLE, IM, "<|im_end|>", "<|endoftext|>"),
    "half tools": Family(HALF_TOOLS, IM, "<|im_end|>", "<|im_end|>"),
    "forgetful": Family(FORGETFUL, IM, "<|im_end|>", "<|im_end|>"),
    "very forgetful": Family(VERY_FORGETFUL, IM, "<|im_end|>", "<|im_end|>"),
    "reminding": Family(REMINDING, IM, "<|im_end|>", "<|im_end|>"),
    "llama2": Family(LLAMA2, ("<s>", "</s>"), "</s>", "</s>"),
    "plain": Family(PLAIN, ("<|end|>",), "<|end|>", "<|end|>"),
    "short": Family(SHORT, IM, "<|im_end|>", "<|im_end|>"),
    "deaf": Family(DEAF, IM, "<|im_end|>", "<|im_end|>"),
}  # fmt: skip


@cache
def tokenizer(family: str) -> PreTrainedTokenizerFast:
    """A byte-level BPE of some 400 tokens with the family's added tokens and template."""
    found = FAMILIES[family]
    bpe = Tokenizer(models.BPE())
    # Llama 3's pattern, which keeps line breaks together: GPT-2's would cut a header's otherwise before a reply.
    pattern = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=list(found.special),
        show_progress=False,
    )
    bpe.train_from_iterator(
        ['user assistant system the answer is {"name": "add", "arguments": {"a": 1}}\n\n'] * 4, trainer
    )
    bpe.add_tokens([AddedToken(word, special=False, normalized=False) for word in found.words])
    made = PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token=found.eos, clean_up_tokenization_spaces=False)
    made.chat_template = found.template
    return made


@cache
def sentencepiece(*, drops_first_space: bool) -> PreTrainedTokenizerFast:
    """A character vocabulary with byte tokens, as Llama 2's (which drops a text's first space) and Gemma's."""
    characters = ["▁", *"abcdefghijklmnopqrstuvwxyz", "▁a", "▁the", "ü", "th", "the"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), *characters]
    merges = [("▁", "a"), ("t", "h"), ("th", "e"), ("▁", "the")]
    bpe = Tokenizer(
        models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges, byte_fallback=True, unk_token="<unk>")
    )
    prepend = [normalizers.Prepend("▁")] if drops_first_space else []
    bpe.normalizer = normalizers.Sequence([*prepend, normalizers.Replace(" ", "▁")])
    strip = [decoders.Strip(" ", 1, 0)] if drops_first_space else []
    bpe.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip])
    bpe.add_special_tokens(["<s>", "</s>"])
    return PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="</s>", clean_up_tokenization_spaces=False)
