"""Chat templates of the formats models in the wild use, written for these tests: only the format is theirs."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Example:
    """A template with what its checkpoint's tokenizer says about special tokens and stop texts."""

    template: str
    special_tokens: dict[str, str] = field(default_factory=dict)
    stop_texts: tuple[str, ...] = ()
    exact_turns: bool = True


CHATML = Example(
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"},
    ("<|im_end|>",),
)

TURNS = Example(  # Gemma 3: BOS from the template, roles user and model, the system text inside the first user turn
    """{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}
        {%- set opening = messages[0]['content'] + '\n\n' -%}
    {%- else -%}
        {%- set opening = messages[0]['content'][0]['text'] + '\n\n' -%}
    {%- endif -%}
    {%- set turns = messages[1:] -%}
{%- else -%}
    {%- set opening = "" -%}
    {%- set turns = messages -%}
{%- endif -%}
{%- for message in turns -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("roles must take turns") }}
    {%- endif -%}
    {{ '<start_of_turn>' + ("model" if message['role'] == 'assistant' else message['role']) + '\n' + (opening if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'text' -%}{{ item['text'] | trim }}{%- endif -%}
        {%- endfor -%}
    {%- endif -%}
    {{ '<end_of_turn>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{ '<start_of_turn>model\n' }}
{%- endif -%}
""",
    {"bos_token": "<bos>", "eos_token": "<eos>"},
    ("<eos>", "<end_of_turn>"),
)

HEADERS = Example(  # Llama 3: header ids, a date, a test for tools that are none
    """{{- bos_token }}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if tools is not none %}
    {{- "Tools: " + tools|tojson(indent=4) }}
{%- endif %}
{{- "Year: " + strftime_now("%Y") + "\\n\\n" + system_message + "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
""",
    {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"},
    ("<|eot_id|>", "<|end_of_text|>"),
)

THINKING = Example(  # Qwen 3: string methods, a reversed walk, an answer that is rendered differently once a question follows it
    r"""{%- if messages[0].role == 'system' %}
    {{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
{%- endif %}
{%- set ns = namespace(searching=true, last_question=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.searching and message.role == "user" and not(message.content.startswith('<tool>') and message.content.endswith('</tool>')) %}
        {%- set ns.searching = false %}
        {%- set ns.last_question = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if message.role == "user" or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "assistant" %}
        {%- set thought = '' %}
        {%- if message.reasoning_content is string %}
            {%- set thought = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set thought = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last_question and (loop.last or thought) %}
            {{- '<|im_start|>' + message.role + '\n<think>\n' + thought.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\n' + content }}
        {%- endif %}
        {{- '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}""",
    {"eos_token": "<|im_end|>"},
    ("<|im_end|>",),
)

INSTRUCTIONS = Example(  # Llama 2: BOS before every user turn, a space between an answer and its stop token
    "{% if messages[0]['role'] == 'system' %}{% set turns = messages[1:] %}{% set system = messages[0]['content'] %}"
    "{% else %}{% set turns = messages %}{% set system = false %}{% endif %}{% for message in turns %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must take turns') }}{% endif %}"
    "{% if loop.index0 == 0 and system != false %}{% set content = '<<SYS>>\n' + system + '\n<</SYS>>\n\n' + message['content'] %}"
    "{% else %}{% set content = message['content'] %}{% endif %}"
    "{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}"
    "{% else %}{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}",
    {"bos_token": "<s>", "eos_token": "</s>"},
    ("</s>",),
    exact_turns=False,
)

PYTHON = Example(  # what a template may call when only Python's jinja2 was in mind
    """{% macro shown(message, mark='#') %}
{{ mark }}{{ message.get('role', 'nobody').upper() }}: {{ message.content.strip() }}
{% endmacro %}
{% for message in messages %}
  {% if message.role == 'system' and loop.index > 1 %}
    {% continue %}
  {% endif %}
  {% if loop.index > 5 %}
    {% break %}
  {% endif %}
{{ shown(message) }}{{ message.get('name') or '' }}{{ ', '.join(['a', 'b'] + message.keys()|list|sort) }}
{{ '%s-%s' % (message.role, loop.index) }}{{ message.content.splitlines()|length }}{{ message.content.split()|length }}
{% for key, value in message.items() %}{% if key == 'role' %}{{ value.title() }}{% endif %}{% endfor %}
{% if message.tool_calls is none or message.tool_calls|length %}never{% endif %}{{ 'x' if message.content is sequence else 'y' }}
{% if message.content.startswith(('W', '2')) %}starts{% endif %}{{ message.content.replace('a', 'b')[:5] }}
{% endfor %}
{% generation %}{% endgeneration %}
{%- set tail %}{% filter upper %}answer{% endfilter %}{% endset %}
{% if add_generation_prompt %}{% with end = '>' %}{{ '<' + tail.lower() + end }}{% endwith %}{% endif %}
""",
    {"eos_token": "</answer>"},
    ("</answer>",),
    exact_turns=False,
)

EXAMPLES = {
    "chatml": CHATML,
    "turns": TURNS,
    "headers": HEADERS,
    "thinking": THINKING,
    "instructions": INSTRUCTIONS,
    "python": PYTHON,
}
