"""Chat templates with the habits of real ones, in the tokens of the embedded model."""

# Qwen3's habit: thoughts of earlier turns are dropped from a full rendering.
STRIPS_THINKING = """{%- for m in messages -%}
<|im_start|>{{ m.role }}
{% if m.role == 'assistant' and loop.last and m.reasoning_content -%}
<think>
{{ m.reasoning_content }}
</think>

{% endif %}{{ m.content }}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}<|im_start|>assistant
{% endif -%}"""
COUNTS_TURNS = """{%- for m in messages -%}
<|im_start|>{{ m.role }} {{ loop.index }}
{{ m.content }}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}<|im_start|>assistant
{% endif -%}"""

# Nothing that is not text ends a turn.
PLAIN = """{%- for m in messages -%}
{{ m.role }}: {{ m.content }}
{% endfor -%}
{%- if add_generation_prompt -%}assistant: {% endif -%}"""
# Mistral's habit: what a tool says stands with the id of its call.
WRITES_IDS = """{%- for m in messages -%}
<|im_start|>{{ m.role }}{{ ' ' + m.tool_call_id if m.role == 'tool' else '' }}
{{ m.content }}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}<|im_start|>assistant
{% endif -%}"""
# DeepSeek's habit: the first result after a question has an opening of its own.
OPENS_RESULTS = """{%- set ns = namespace(first=true) -%}
{%- for m in messages -%}
<|im_start|>{{ m.role }}
{% if m.role == 'tool' and ns.first %}{% set ns.first = false %}first {% endif -%}
{% if m.tool_calls and %WRITES% -%}
{% for c in m.tool_calls %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}
{%- endif %}{{ m.content }}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}<|im_start|>assistant
{% endif -%}"""
# Every call ends with a token of its own, and the turn after the last with none.
ENDS_CALLS = """{%- for m in messages -%}
<|im_start|>{{ m.role }}
{% if m.tool_calls %}{% for c in m.tool_calls -%}
<tool_call>{{ c.function | tojson }}</tool_call>
{%- endfor %}{% else %}{{ m.content }}<|im_end|>{% endif %}
{% endfor -%}
{%- if add_generation_prompt -%}<|im_start|>assistant
{% endif -%}"""
# GLM's habit: nothing ends an assistant's turn but the header of the next message.
WITHOUT_END = """{%- for m in messages -%}
<|im_start|>{{ m.role }}
{{ m.content }}
{%- endfor -%}
{%- if add_generation_prompt -%}<|im_start|>assistant
{% endif -%}"""
# Phi-3's habit: an end of text after the last message, but not before a generation header.
ENDS_TEXT = """{%- for m in messages -%}
<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}<|im_start|>assistant
{% else %}<|endoftext|>{% endif -%}"""
# Command R's habit: a tool message without the call that it answers is left out in silence.
DROPS_TOOLS = """{%- for m in messages if m.role != 'tool' -%}
<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}<|im_start|>assistant
{% endif -%}"""
# Gemma's habit.
REFUSES_TOOLS = """{%- for m in messages -%}
{%- if m.role == 'tool' %}{{ raise_exception('Roles must alternate') }}{% endif -%}
<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}<|im_start|>assistant
{% endif -%}"""
# Llama 3.1's habit: what a tool says is a JSON string.
QUOTES_TOOLS = """{%- for m in messages -%}
<|im_start|>{{ m.role }}
{{ m.content | tojson if m.role == 'tool' else m.content }}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}<|im_start|>assistant
{% endif -%}"""
DROPS_ASSISTANTS = """{%- for m in messages if m.role != 'assistant' or m == messages[-1] -%}
<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}<|im_start|>assistant
{% endif -%}"""
# LFM2's habit: calls as Python.
AS_PYTHON = """{%- for m in messages -%}
<|im_start|>{{ m.role }}
{% if m.tool_calls %}{% for c in m.tool_calls -%}
{{ c.function.name }}({% for k, v in c.function.arguments.items() %}{{ k }}={{ v | tojson }}, {% endfor %})
{%- endfor %}{% else %}{{ m.content }}{% endif %}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}<|im_start|>assistant
{% endif -%}"""

# Of a schema it knows types and properties, as Gemma 4's does: none by the name of a keyword within another.
NAMES_PROPERTIES = """{%- macro fields(properties, nested) -%}
{%- for k, v in properties.items() if not (nested and k in ('type', 'properties')) -%}
{{ k }}:{{ v.type | default('any') }}{% if v.properties %}{ {{- fields(v.properties, true) -}} }{% endif %};
{%- endfor -%}{%- endmacro -%}
{%- for t in tools or [] -%}
<|im_start|>tool
{% set f = t.function -%}
{{ f.name }}: {{ f.description }} ({{ fields(f.parameters.properties, false) }}), in <tool_call><|im_end|>
{% endfor -%}
{%- for m in messages -%}
<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif -%}"""
# It has no place for descriptions.
NAMES_TOOLS = NAMES_PROPERTIES.replace("{{ f.description }} ", "")
