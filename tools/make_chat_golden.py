#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tests/golden/chat/cases.json: chat templates and what Jinja makes of them, set up as
Transformers' apply_chat_template() sets it up. The templates are our own, written with the
constructs that those of Llama 3, Qwen 2 and 3, Gemma 3 and Phi-3 use, and their kin that call
functions: macros that call themselves, loops over sorted keys, blocks that are kept as text.

usage: tools/make_chat_golden.py [FOLDER]   (needs jinja2 and transformers)

"conversations" are rendered by each of "templates" with each of the family's settings; "snippets"
are single constructs. "text" is null where Jinja raises an error, and then ours has to refuse.
"""
import datetime
import json
import os
import sys

from transformers.utils import chat_template_utils as utils

NOW = datetime.datetime(2025, 3, 9, 12, 0, 0)  # 12:00 UTC

TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}

TEMPLATES = {
    "llama": r"""{{- bos_token }}
{%- if custom_tools is defined %}
    {%- set tools = custom_tools %}
{%- endif %}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "1 Jan 2000" %}
    {%- endif %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}

{#- The system message comes first. #}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start|>system<|end|>\n\n" }}
{%- if tools is not none %}
    {{- "Tools: " + (tools | selectattr('kind', 'equalto', 'f') | map(attribute='name') | join(", ")) + "\n\n" }}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\n\n" }}
    {%- endfor %}
{%- endif %}
{{- "Date: " + date_string + "\n\n" }}
{{- system_message }}
{{- "<|eot|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start|>' + message['role'] + '<|end|>\n\n'+ message['content'] | trim + '<|eot|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("One call at a time, there are " ~ message.tool_calls|length) }}
        {%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '<|start|>assistant<|end|>\n\n{"name": "' + call.name + '", "parameters": ' }}
        {%- for name, value in call.arguments | items %}
            {{- name + '="' + value|string + '"' }}
            {%- if not loop.last %}
                {{- ", " }}
            {%- endif %}
        {%- endfor %}
        {{- call.arguments | tojson }}
        {{- "}<|eot|>" }}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {{- "<|start|>ipython<|end|>\n\n" }}
        {%- if message.content is mapping or message.content is iterable and message.content is not string %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start|>assistant<|end|>\n\n' }}
{%- endif %}
""",
    "qwen": r"""{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\n\n' }}
    {%- endif %}
    {{- "# Tools\n<tools>" }}
    {%- for tool in tools %}
        {{- "\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\n</tools><|im_end|>\n" }}
{%- else %}
    {%- if messages[0].role == 'system' %}
        {{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
    {%- endif %}
{%- endif %}
{%- set ns = namespace(searching=true, last_query=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.searching and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.searching = false %}
        {%- set ns.last_query = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "assistant" %}
        {%- set thoughts = '' %}
        {%- if message.thoughts is string %}
            {%- set thoughts = message.thoughts %}
        {%- else %}
            {%- if '</think>' in content %}
                {%- set thoughts = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
                {%- set content = content.split('</think>')[-1].lstrip('\n') %}
            {%- endif %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query %}
            {%- if loop.last or (not loop.last and thoughts) %}
                {{- '<|im_start|>' + message.role + '\n<think>\n' + thoughts.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') }}
            {%- else %}
                {{- '<|im_start|>' + message.role + '\n' + content }}
            {%- endif %}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\n' + content }}
        {%- endif %}
        {%- if message.tool_calls %}
            {%- for tool_call in message.tool_calls %}
                {%- if (loop.first and content) or (not loop.first) %}
                    {{- '\n' }}
                {%- endif %}
                {%- if tool_call.function %}
                    {%- set tool_call = tool_call.function %}
                {%- endif %}
                {{- '<tool_call>\n{"name": "' }}
                {{- tool_call.name }}
                {{- '", "arguments": ' }}
                {%- if tool_call.arguments is string %}
                    {{- tool_call.arguments }}
                {%- else %}
                    {{- tool_call.arguments | tojson }}
                {%- endif %}
                {{- '}\n</tool_call>' }}
            {%- endfor %}
        {%- endif %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\n<tool_response>\n' }}
        {{- content }}
        {{- '\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- endif %}
{%- endif %}""",
    "gemma": r"""{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}
        {%- set prefix = messages[0]['content'] + '

' -%}
    {%- else -%}
        {%- set prefix = messages[0]['content'][0]['text'] + '

' -%}
    {%- endif -%}
    {%- set turns = messages[1:] -%}
{%- else -%}
    {%- set prefix = "" -%}
    {%- set turns = messages -%}
{%- endif -%}
{%- for message in turns -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("Roles must alternate user/assistant/user/assistant/...") }}
    {%- endif -%}
    {%- if (message['role'] == 'assistant') -%}
        {%- set role = "model" -%}
    {%- else -%}
        {%- set role = message['role'] -%}
    {%- endif -%}
    {{ '<start_of_turn>' + role + '
' + (prefix if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'image' -%}
                {{ '<start_of_image>' }}
            {%- elif item['type'] == 'text' -%}
                {{ item['text'] | trim }}
            {%- endif -%}
        {%- endfor -%}
    {%- else -%}
        {{ raise_exception("Invalid content type") }}
    {%- endif -%}
    {{ '<end_of_turn>
' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{'<start_of_turn>model
'}}
{%- endif -%}
""",
    "phi": r"""{% for message in messages %}
{% if message['role'] == 'system' and message['content'] %}
{{'<|system|>
' + message['content'] + '<|end|>
'}}{% elif message['role'] == 'user' %}{{'<|user|>
' + message['content'] + '<|end|>
'}}{% elif message['role'] == 'assistant' %}{% generation %}{{'<|assistant|>
' + message['content'] + '<|end|>
'}}{% endgeneration %}{% endif %}
{% endfor %}
{% if add_generation_prompt %}{{ '<|assistant|>
' }}{% else %}{{ eos_token }}{% endif %}
""",
    "llama_functions": r"""{#- What is built in is named on a line of its own. #}
{%- macro header(role, ends=true) -%}
    {{- "<|start|>" ~ role ~ ("<|end|>\n\n" if ends else "") -}}
{%- endmacro -%}
{{- bos_token }}
{%- set date_string = date_string | default(strftime_now("%d %B %Y")) %}
{%- set system = namespace(text="", seen=0) %}
{%- for message in messages if message.role == 'system' and message.content is string %}
    {%- set system.text = system.text ~ message.content | trim ~ "\n" %}
    {%- set system.seen = loop.index %}
{%- endfor %}
{%- if tools or system.seen %}
    {{- header("system") }}
    {%- if tools %}
        {%- set names %}
            {%- for tool in tools | rejectattr("kind", "equalto", "h") %}{{ ", " if not loop.first }}{{ tool.name | capitalize }}{% endfor %}
        {%- endset %}
        {{- "Built in: " + names | trim + "\n" }}
        {%- for tool in tools %}
            {{- loop.cycle("* ", "- ") ~ tool | tojson(indent=2) | safe ~ "\n" }}
        {%- endfor %}
        {%- raw %}Call as {{"name": NAME, "parameters": {...}}} {# or not #}
{% endraw %}
    {%- endif %}
    {{- "Date: " ~ date_string ~ "\n" ~ system.text ~ "<|eot|>" }}
{%- endif %}
{%- for message in messages if message.role != 'system' %}
    {%- if message.tool_calls is defined and message.tool_calls %}
        {%- for call in message.tool_calls %}
            {%- set f = call.function if call.function is mapping else call %}
            {{- header("assistant") + '{"name": ' + f.name | tojson + ', "parameters": ' + f.arguments | tojson + '}' }}
            {{- "<|eom|>" if not loop.last else "<|eot|>" }}
        {%- endfor %}
    {%- elif message.content is none or message.content is undefined %}
        {{- raise_exception("message " ~ loop.index0 ~ " has no content") }}
    {%- else %}
        {{- header(message.role, ends=message.role in ["user", "assistant", "tool"]) }}
        {{- message.content if message.content is string else message.content | tojson }}{{ "<|eot|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ header("assistant") }}{% endif %}
""",
    "qwen_functions": r"""{% macro extra(of, known) %}
    {%- if of is mapping %}
        {%- for key in of %}
            {%- if key not in known %}
                {%- if of[key] is mapping or (of[key] is sequence and of[key] is not string) %}
                    {{- '\n<' ~ key ~ '>' ~ (of[key] | tojson | safe) ~ '</' ~ key ~ '>' }}
                {%- else %}
                    {{- '\n<' ~ key ~ '>' ~ (of[key] | string) ~ '</' ~ key ~ '>' }}
                {%- endif %}
            {%- endif %}
        {%- endfor %}
    {%- endif %}
{% endmacro %}

{%- if messages and messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set rest = messages[1:] %}
{%- else %}
    {%- set rest = messages %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = [] %}
{%- endif %}
{%- if system_message is defined %}
    {{- "<|im_start|>system\n" + system_message }}
{%- elif tools is iterable and tools | length > 0 %}
    {{- "<|im_start|>system\nYou may call functions." }}
{%- endif %}
{%- if tools is iterable and tools | length > 0 %}
    {{- "\n<tools>" }}
    {%- for tool in tools %}
        {%- if tool.function is defined %}
            {%- set tool = tool.function %}
        {%- endif %}
        {{- "\n<function>\n<name>" ~ tool.name ~ "</name>" }}
        {%- if tool.p is defined %}
            {%- for name, value in tool.p|items %}
                {{- '\n<parameter name="' ~ name ~ '">' }}
                {{- extra(value, ['type', 'description']) }}
                {{- (value | string | trim) ~ '</parameter>' }}
            {%- endfor %}
        {%- endif %}
        {{- extra(tool, ['name', 'p']) }}
        {{- "\n</function>" }}
    {%- endfor %}
    {{- "\n</tools>" }}
{%- endif %}
{%- if system_message is defined or tools %}
    {{- '<|im_end|>\n' }}
{%- endif %}
{%- for message in rest %}
    {%- if message.role == "assistant" and message.tool_calls is defined and message.tool_calls is iterable and message.tool_calls | length > 0 %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.content is defined and message.content is string and message.content | trim | length > 0 %}
            {{- '\n' + message.content | trim + '\n' }}
        {%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}
                {%- set tool_call = tool_call.function %}
            {%- endif %}
            {{- '\n<tool_call>\n<function=' + tool_call.name + '>\n' }}
            {%- if tool_call.arguments is mapping %}
                {%- for args_name, args_value in tool_call.arguments|items %}
                    {%- set args_value = args_value | tojson | safe if args_value is mapping or (args_value is sequence and args_value is not string) else args_value | string %}
                    {{- '<parameter=' + args_name + '>\n' ~ args_value ~ '\n</parameter>\n' }}
                {%- endfor %}
            {%- endif %}
            {{- '</function>\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == "user" or message.role == "system" or message.role == "assistant" %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.previtem and loop.previtem.role != "tool" or loop.first %}
            {{- '<|im_start|>user\n' }}
        {%- endif %}
        {{- '<tool_response>\n' }}
        {{- message.content }}
        {{- '\n</tool_response>\n' }}
        {%- if not loop.last and loop.nextitem.role != "tool" %}
            {{- '<|im_end|>\n' }}
        {%- elif loop.last %}
            {{- '<|im_end|>\n' }}
        {%- endif %}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
""",
    "gemma_functions": r"""{%- macro value_of(value, quoted=true) -%}
    {%- if value is string -%}
        {{ '<q>' + value + '<q>' if quoted else value }}
    {%- elif value is boolean -%}
        {{ 'true' if value else 'false' }}
    {%- elif value is mapping -%}
        {%- set ns = namespace(first=true) -%}
        {{- '{' -}}
        {%- for key, inner in value | dictsort -%}
            {%- if not ns.first %},{% endif -%}
            {%- set ns.first = false -%}
            {{ key }}:{{ value_of(inner, quoted=quoted) }}
        {%- endfor -%}
        {{- '}' -}}
    {%- elif value is sequence -%}
        {{- '[' -}}
        {%- for inner in value -%}
            {{- value_of(inner, quoted=quoted) -}}
            {%- if not loop.last %},{% endif -%}
        {%- endfor -%}
        {{- ']' -}}
    {%- else -%}
        {{ value }}
    {%- endif -%}
{%- endmacro -%}
{%- macro turn(role, open=true) -%}
    {{ '<start_of_turn>' + role + '\n' }}{{ caller(role | upper) }}{{ '<end_of_turn>\n' if open }}
{%- endmacro -%}
{{ bos_token }}
{%- if tools -%}
    {%- call(shown) turn('developer') -%}
        {%- for tool in tools -%}
            {%- filter trim | replace('  ', ' ') %}
                declaration:{{ tool['name'] | trim }}{{ value_of(tool) }} ({{ shown }})
            {% endfilter -%}
        {%- endfor -%}
    {%- endcall -%}
{%- endif -%}
{%- for message in messages -%}
    {%- set role = {'assistant': 'model', 'user': 'user', 'system': 'developer'}.get(message['role'], message['role']) -%}
    {%- call(shown) turn(role, open=not loop.last or add_generation_prompt) -%}
        {%- if 'tool_calls' in message -%}
            {%- for call in message['tool_calls'] -%}
                {%- set f = call['function'] | default(call) -%}
                {{ '<call>' + f['name'] }}{{ value_of(f['arguments'], quoted=f['arguments'] is not string) }}{{ '<end>' }}
            {%- endfor -%}
        {%- elif message['content'] is string -%}
            {{ message['content'] | trim }}
        {%- elif message['content'] is sequence -%}
            {%- for item in message['content'] -%}
                {{ '<image>' if item['type'] == 'image' else item['text'] | trim }}
            {%- endfor -%}
        {%- else -%}
            {{ raise_exception("Invalid content type") }}
        {%- endif -%}
    {%- endcall -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{ '<start_of_turn>model\n' }}
{%- endif -%}
""",
    "phi_functions": r"""{% for message in messages %}{% if message['role'] == 'system' and tools is not none and tools %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|tool|>' + tools | tojson + '<|/tool|>' + '<|end|>' }}{% else %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% else %}{{ eos_token }}{% endif %}""",
}


def turns(*pairs):
    return [{"role": role, "content": content} for role, content in pairs]


CONVERSATIONS = [
    turns(("user", "Hello")),
    turns(("system", "  Be brief.\n"), ("user", " Hello\n\n"), ("assistant", "Hi."), ("user", "And?")),
    turns(("user", ""), ("assistant", ""), ("user", "")),
    turns(("system", ""), ("user", "x")),
    turns(("user", "\u3000Grüße, 世界 \U0001f30d\u00a0"), ("assistant", "e\u0301 \u0007 \"q\" \\ </s>")),
    turns(("user", "\t a\r\nb \x1c"), ("assistant", "<think>\nhm\n</think>\n\nYes"), ("user", "{{ x }} {% if %}")),
    turns(("assistant", "first"), ("user", "second")),
    turns(("user", "a"), ("user", "b")),
    turns(("system", "s"), ("system", "t"), ("user", "u"), ("assistant", "<think>no end")),
    turns(("user", "q"), ("assistant", "<think>\n\nwhy\n\n</think>\n\n\nbecause")),
    turns(("critic", "unknown role"), ("user", "u")),
    turns(("user", None)),
    [{"role": "user"}],
    [{"content": "no role"}],
    [],
    turns(("user", [{"type": "text", "text": " part one "}, {"type": "image"}, {"type": "text", "text": "two"}])),
    [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": "", "tool_calls": [
            {"type": "function", "function": {"name": "weather", "arguments": {"city": "Köln", "days": 3, "x": 0.5, "deep": [1, {"a": None, "b": True}]}}}]},
        {"role": "tool", "content": "{\"sun\": true}"},
        {"role": "tool", "content": "<tool_response>"},
        {"role": "assistant", "content": "It is sunny.", "thoughts": "\nsun\n"},
        {"role": "user", "content": "<tool_response>x</tool_response>"},
    ],
    [{"role": "assistant", "content": "two", "tool_calls": [{"name": "a", "arguments": "{}"}, {"name": "b", "arguments": {}}]}],
    turns(("user", "long " * 50), ("assistant", "\n\n\n"), ("user", "  \n ")),
]

SETTINGS = [
    {"add_generation_prompt": True},
    {"add_generation_prompt": False, "enable_thinking": False},
    {"add_generation_prompt": True, "enable_thinking": False, "date_string": "9 Mar"},
    {"add_generation_prompt": True, "enable_thinking": True,
     "tools": [{"name": "f", "kind": "f", "p": {"a": [], "b": {}, "c": [1.0, 1e20, 1e-7, -0.25]}}, {"name": "g\n", "kind": "h"}]},
]

V = {"a": [1, 2, 3, 4, 5], "s": "Hello, Wörld", "d": {"x": 1, "y": "two", "z": None}, "n": 7, "f": 2.5,
     "t": True, "e": [], "m": [{"k": 1, "v": "p"}, {"k": 2}, {"k": 1, "v": "q"}]}

SNIPPETS = [
    "{{ 1 + 2 * 3 - 4 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 6 / 2 }} {{ -n }} {{ (1 + 2) * 3 }}",
    "{{ 0.1 + 0.2 }} {{ 1e3 is defined }}", "{{ 100.0 }} {{ 123456789.0 * 1000000000 }} {{ 0.00001 }} {{ f * 2 }} {{ 1.5e }}",
    "{{ 100.0 }} {{ 123456789.0 * 1000000000 }} {{ 0.00001 }} {{ f * 2 }} {{ 0.1 }}",
    "{{ a[0] }}{{ a[-1] }}{{ a[1:3] | join('-') }}{{ a[::-1] | join }}{{ a[:-2] | join }}{{ a[3:0:-2] | join(',') }}{{ a[9] }}|",
    "{{ s[1] }}{{ s[-5:] }}{{ s[::-1] }}{{ s[8] }}{{ s | length }}", "{{ a[10:] | length }}{{ a[-9:2] | join }}{{ a[::0] }}",
    "{{ 'abc Def' | upper }}{{ 'abc Def' | capitalize }}{{ 'ABC'.lower() }}{{ 'x'|replace('x', 'yy') }}",
    "{{ s.split(', ')[1] }}{{ 'a,b,c'.split(',', 1) | join('|') }}{{ ',a,'.split(',') | length }}", "{{ ''.split('x') | length }}",
    "{{ 'xxhixx'.strip('x') }}{{ 'ab' 'cd' }}{{ '  t '.rstrip() }}|{{ 'aXb'.startswith(('b', 'a')) }}",
    "{{ d.x }}{{ d['y'] }}{{ d.q }}{{ d.get('q', 'dflt') }}{{ d.get('q') }}{{ d.keys() | list | join(',') }}{{ d.items() | list | length }}",
    "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}{% for k in d %}{{ k }}{% endfor %}{% for c in 'äb' %}[{{ c }}]{% endfor %}",
    "{% for x in a if x is odd %}{{ loop.index }}/{{ loop.length }}:{{ x }}{{ ',' if not loop.last }}{% else %}none{% endfor %}",
    "{% for x in e %}x{% else %}none{% endfor %}{% for x in undefined_thing %}x{% else %}none{% endfor %}",
    "{% for x in a %}{% if x == 2 %}{% continue %}{% endif %}{% if x == 4 %}{% break %}{% endif %}{{ x }}{% endfor %}",
    # A loop's else is left out only after a round that came to the end of its body.
    "Q{% for x in a[:2] %}{{ x }}{% break %}{% else %}E{% endfor %}Z", "Q{% for x in a %}{% continue %}{{ x }}{% else %}E{% endfor %}Z", "{% for x in a %}{% if x == 2 %}{% break %}{% endif %}{{ x }}{% else %}E{% endfor %}",
    "{% for x in a %}{% if x != 3 %}{% continue %}{% endif %}{{ x }}{% else %}E{% endfor %}", "{% for x in a if x > 1 %}{% if x == 2 %}{% continue %}{% endif %}{% break %}{% else %}{{ x is defined }}{{ loop is defined }}{% set y = 1 %}{{ y }}{% endfor %}{{ y }}",
    "{% for x in a %}{% for y in a %}{{ y }}{% break %}{% else %}{% if x == 2 %}{% break %}{% endif %}e{% continue %}{% endfor %}n{% else %}E{% endfor %}", "{% for x in a %}{% if x %}{% for y in a %}{% if y == x %}{% break %}{% endif %}{{ y }}{% else %}e{% endfor %}{% break %}{% endif %}{% else %}E{{ x }}{% endfor %}",
    "{% for x in e %}{% else %}{% break %}{% endfor %}", "{% for x in a %}{% for y in e %}{% else %}{{ x }}{% continue %}{% endfor %}n{% else %}E{% endfor %}",
    "{% for x in a %}{% filter upper %}a{% if x == 2 %}{% break %}{% endif %}b{% endfilter %}{% else %}E{% endfor %}", "{% for x in a %}{% set w %}a{% continue %}{% endset %}{{ w }}{% else %}E{% endfor %}", "{% for x in a %}{% set w | length | last %}a{% continue %}{% endset %}{{ w }}{% else %}E{{ w }}{% endfor %}", "{% for x in a %}{% generation %}{{ x }}{% break %}{% endgeneration %}{% else %}E{% endfor %}",
    "{% for x in a %}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.previtem }}{{ loop.nextitem }} {% endfor %}",
    "{% set x = 1 %}{% for i in a %}{% set x = i %}{{ x }}{% endfor %}{{ x }}{% if t %}{% set x = 9 %}{% endif %}{{ x }}",
    "{% set ns = namespace(n=0, l=[]) %}{% for i in a %}{% set ns.n = ns.n + i %}{% set ns.l = ns.l + [i * 2] %}{% endfor %}{{ ns.n }}{{ ns.l | join(',') }}{{ ns.q }}",
    "{% set p, q = 1, 'two' %}{{ p }}{{ q }}{% set w %}in {{ s }} side{% endset %}[{{ w }}]{{ w | length }}",
    "{{ 1 < 2 < 3 }}{{ 1 < 3 < 2 }}{{ 'a' < 'b' }}{{ 'x' in d }}{{ 3 not in a }}{{ 'Wö' in s }}{{ 1 == 1.0 }}{{ true == 1 }}{{ [1, 2] == [1, 2] }}{{ {'a': 1} == {'a': 1.0} }}",
    "{{ not t and t or 'z' }}{{ t and 'y' }}{{ e or 'empty' }}{{ none or 0 }}{{ 'a' if n > 3 else 'b' }}{{ 'a' if n > 9 }}|",
    "{{ q is defined }}{{ q is undefined }}{{ n is not none }}{{ n is number }}{{ s is string }}{{ d is mapping }}{{ a is sequence }}{{ s is iterable }}{{ n is iterable }}{{ t is boolean }}{{ t is true }}{{ n is integer }}{{ f is float }}{{ t is integer }}",
    "{{ n is divisibleby 7 }}{{ n is eq(7) }}{{ not n is even }}{{ n is in a }}{{ 1 is in a and n is ne 8 }}",
    "{{ q | default('dd') }}{{ '' | default('dd') }}{{ '' | default('dd', true) }}{{ none | d('x') }}{{ q | trim }}{{ n | string + 'x' }}{{ q | length }}",
    "{{ m | selectattr('v', 'defined') | map(attribute='v') | join('+') }}{{ m | rejectattr('k', 'equalto', 1) | list | length }}{{ a | reject('odd') | join }}{{ a | select('in', [1, 9]) | first }}{{ e | first }}{{ a | last }}",
    "{{ d | tojson }}{{ m | tojson(indent=2) }}{{ s | tojson }}{{ e | tojson }}{{ {} | tojson(indent=1) }}{{ '<\\'&\"\\x7f\\u2028' | tojson }}{{ [1.5, true, none] | tojson }}",
    "{{ 'a\\tb\\\\n\\'\\x41\\u00e9\\q' }}{{ \"dq'\\\"\" }}", "{{ range(3) | join }}{{ range(2, 9, 3) | join(',') }}{{ range(3, 0, -1) | join }}{{ range(5, 2) | list | length }}",
    "a\n  {% if t %}\n  b\n  {% endif %}\nc\n", "a\n  {{ n }}\n  {# c #}\nb  {% set x = 1 %}  \nc\n\n", "  {%- if t -%}  x  {%- endif -%}  y\n\n",
    "  {%+ if t %} x\n{% endif +%}\nz", "{# a #}{#- b -#} x {#- c #}\n y\u3000{{- n -}}\u3000\n z\r\n{% if t %}\rq{% endif %}", "{{ '}}' }}{{ '%}' }}{{ {'a': {'b': 2}}.a.b }}{{ [[1]][0][0] }}",
    "{{ n ~ s ~ none ~ t ~ f }}{{ 'x' ~ 1 + 2 }}", "{{ -n | string }}|{{ (-n) | string }}|{{ not q }}|{{ 'é' | capitalize if false else 'ok' }}",
    "{{ 1 +\n 2 }}{% if\n t\n %}y{% endif %}\t{{ (1, 2) | join('/') }}{{ (3,) | first }}{{ () | length }}",
    "{% if q %}a{% elif n == 7 %}b{% else %}c{% endif %}{% if q %}a{% elif q %}b{% else %}c{% endif %}",
    "{{ loop is defined }}{% for x in a[:2] %}{% for y in a[:2] %}{{ loop.index }}{% endfor %}{{ loop.index }}{% endfor %}",
    "{{ strftime_now('%Y-%m-%d %B %b %%') }}", "{{ d.items() is iterable }}{{ d.x == d['x'] == 1 }}{{ q == z }}{{ q == none }}",
    "{{ a }}{{ d }}{{ m }}{{ ['q\'', 'b\\n', \"d\\\"'\"] }}", "{{ a | map(attribute='x') | length }}", "{{ (1, 2) == [1, 2] }}{% if e | select %}y{% endif %}{% set g = a | reject('odd') %}{{ g | join }}{{ g | join }}{{ a | list == a }}", "{{ [1] + (2,) }}",
    "{{ q.x }}", "{{ q + 'a' }}", "{{ s + 1 }}", "{{ 1 / 0 }}", "{{ n.x.y }}", "{{ q() }}", "{{ n | nofilter }}", "{{ n is notest }}", "{% nothing %}", "{% if t %}", "{% endif %}", "{{ n", "{{ }}", "{{ 1 2 }}", "{% set n.x = 1 %}",
    "{{ raise_exception('no') }}", "{{ a.append(1) }}", "{% for x in n %}{% endfor %}", "{% for a, b in [[1]] %}{% endfor %}", "{{ n | length }}", "{{ 'a' in n }}", "{{ 1 < 'a' }}", "{# open", "{{ 'open }}", "{% for x in a %}{% endif %}", "{{ a[ }}", "{{ ns.x }}{% set ns.x = 1 %}", "{% break %}",
    # Macros see the names of where they stand, as they are when they are called.
    "{% macro f(a, b=2, c=b) %}[{{ a }}{{ b }}{{ c }}]{% endmacro %}{{ f(1) }}{{ f(1, 3) }}{{ f(c=4, a=5) }}{{ f() }}{{ f(1, none) }}",
    "{% set x = 1 %}{% macro f() %}{{ x }}{{ loop is defined }}{{ y }}{% set x = 7 %}{{ x }}{% endmacro %}{% set x = 2 %}{% for y in a[:1] %}{{ f() }}{{ x }}{% endfor %}{{ x }}{% set y = 3 %}{{ f() }}",
    "{% macro down(k) %}{{ k }}{% if k > 0 %},{{ down(k - 1) }}{% endif %}{% endmacro %}{{ down(9) }}{{ down(3) | length }}{{ down(1) ~ down(0) + '!' }}",
    "{% for x in a %}{% macro g(q) %}{{ x * q }}{{ loop.index }}{% endmacro %}{{ g(2) }} {% endfor %}", "{% if t %}{% macro g() %}in {{ s }}{% endmacro %}{% endif %}{{ g() }}{{ g is defined }}{{ h is defined }}{{ 'y' if g else 'n' }}",
    "{{ f(1) }}{% macro f(x) %}{{ x }}{% endmacro %}", "{% macro f(x) %}{{ x }}{% endmacro %}{{ f(1, 2) }}", "{% macro f(x) %}{{ x }}{% endmacro %}{{ f(1, x=2) }}", "{% macro f(x) %}{{ x }}{% endmacro %}{{ f(y=2) }}",
    "{% macro f(x=1, y) %}{% endmacro %}", "{% macro f(x %}{% endmacro %}", "{% macro f %}{% endmacro %}", "{% macro f() %}", "{% macro f() %}{% break %}{% endmacro %}{% for x in a %}{{ f() }}{% endfor %}",
    "{% macro f() %}  a\n  {% if t %}\n  b\n  {% endif %}\n{% endmacro %}\n[{{ f() }}]{{ f()|trim }}", "{% macro f(x) -%}  {{ x }}  {%- endmacro %}{% for i in a if f(i) == '3' %}{{ i }}{% endfor %}{{ [f(1), f('b')] | join('-') }}",
    "{% macro f(a=[1, {'k': n}]) %}{{ a | tojson }}{% set n = 0 %}{% endmacro %}{{ f() }}{{ f(a='x') }}", "{% set n = 8 %}{% macro f(a=n) %}{{ a }}{{ n }}{% endmacro %}{{ f() }}{% set n = 9 %}{{ f() }}", "{% macro f(b=c, c=1) %}{{ b }}{{ c }}{% endmacro %}{% set c = 5 %}{{ f() }}{{ f(c=3) }}",
    "{% macro w(k) %}<{{ k }}>{{ caller() }}</{{ k }}>{% endmacro %}{% call w('b') %}x{{ n }}{% endcall %}{% for i in a[:2] %}{% call w(i) %}{{ loop.index }}{{ i }}{% endcall %}{% endfor %}",
    "{% macro w(k) %}{{ caller(k, z=2) }}{{ caller(1) }}{% endmacro %}{% call(x, z=9) w('b') %}({{ x }}{{ z }}{{ k }}){% endcall %}", "{% macro w() %}{{ 'has' if caller else 'none' }}{% endmacro %}{{ w() }}{% call w() %}{% endcall %}",
    "{% macro w() %}x{% endmacro %}{% call w() %}y{% endcall %}", "{% call 1 %}{% endcall %}", "{% call nobody() %}{% endcall %}", "{% macro a1() %}{% call b1() %}[{{ n }}]{% endcall %}{% endmacro %}{% macro b1() %}({{ caller() }}{{ caller() }}){% endmacro %}{{ a1() }}",
    "{% filter upper %}a{{ n }}b{% endfilter %}{% filter replace('a', 'x') | trim %}  banana {% for i in a %}{{ i }}{% endfor %} {% endfilter %}|", "{% filter upper %}{% filter replace('l', 'r') %}hello{% endfilter %}{% set z = 1 %}{% endfilter %}{{ z is defined }}",
    "{% set w | trim | upper %}  a {{ n }} {% endset %}[{{ w }}]{% set w | replace('a', 'o') %}banana{% endset %}{{ w }}{% set w | length %}abc{% endset %}{{ w + 1 }}", "{% set w | replace('a', f2 | default('o')) %}banana{% endset %}{{ w }}", "{% set x = 'x' %}{% filter replace('a', x) %}banana{% set x = 'y' %}{% endfilter %}{{ x }}", "{% filter nofilter %}{% endfilter %}", "{% filter %}{% endfilter %}", "{% filter upper %}",
    "{% raw %}{{ n }} {% if %} {# c #}{% endraw %}{{ n }}", "a \n  {% raw %}  \n {{ x }}  \n  {% endraw %}  \n b", "a  {%- raw -%}  \n {{ x }} \n {%- endraw -%}  \n b", "a\n  {%+ raw %}\n{%\n{%+ endraw +%}\nb{% raw %}{% endraw %}\n\nc", "  {%raw%}{% endraw x %}{%-endraw%}\n\n  {% raw   -%}\n\n x{%   endraw   %}",
    "{% raw %}open", "{% raw +%}x{% endraw %}", "{% endraw %}", "{% rawx %}{% endraw %}", "{{ 'a {% raw %} b' }}",
    "{% for x in a %}{{ loop.cycle('o', 'e') }}{{ loop.cycle(x) }}{{ loop.depth }}{{ loop.depth0 }}{% endfor %}", "{% for x in a %}{{ loop.cycle() }}{% endfor %}", "{% for x in a %}{% set loop.index = 5 %}{{ loop.index }}{% endfor %}", "{% for x in a %}{% set loop = 5 %}{% endfor %}", "{% for loop in a %}{{ loop }}{% endfor %}", "{% set loop = 5 %}{% for x in a[:2] %}{{ loop.index }}{% endfor %}{{ loop }}", "{% set c = namespace(cycle=1) %}{{ c.cycle }}{{ c.cycle(1) }}",
    "{{ d | dictsort | length }}{% for k, v in {'b': 1, 'C': 2, 'a': 3, 'B': 4, 'aa': 5, '': 6} | dictsort %}{{ k }}{{ v }} {% endfor %}{% for k, v in {'b': 1, 'C': 2, 'a': 3, 'B': 4} | dictsort(reverse=true) %}{{ k }}{{ v }} {% endfor %}{% for k, v in {'b': 1, 'C': 2, 'é': 3} | dictsort(true) %}{{ k }}{% endfor %}",
    "{{ a | dictsort }}", "{{ s | safe }}{{ n | safe }}{{ d | tojson | safe | length }}", "{{ f2 | default(n) | string | safe ~ '!' }}{{ q | safe }}|",
]


def render(source, variables):
    template = utils._compile_jinja_template(source)
    class Fixed(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return NOW
    real, utils.datetime = utils.datetime, Fixed
    try:
        return template.render(**variables)
    finally:
        utils.datetime = real


def attempt(source, variables):
    try:
        return render(source, variables)
    except Exception:  # whatever Jinja or the template raises
        return None


def main():
    folder = sys.argv[1] if len(sys.argv) > 1 else "tests/golden/chat"
    cases = []
    for name, source in TEMPLATES.items():
        for s, settings in enumerate(SETTINGS):
            for c, messages in enumerate(CONVERSATIONS):
                variables = {"tools": None, "documents": None, **TOKENS, **settings, "messages": messages}
                cases.append([name, s, c, attempt(source, variables)])
    snippets = [[source, attempt(source, {"messages": [], "tools": None, "documents": None,
                                          "add_generation_prompt": True, **V})] for source in SNIPPETS]
    out = {"tokens": TOKENS, "now": int(NOW.replace(tzinfo=datetime.timezone.utc).timestamp()), "variables": V,
           "templates": TEMPLATES, "settings": SETTINGS, "conversations": CONVERSATIONS,
           "cases": cases, "snippets": snippets}
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "cases.json"), "w", encoding="utf-8") as f:
        json.dump(out, f, ensure_ascii=False, indent=0)
        f.write("\n")
    refused = sum(text is None for *_, text in cases)
    print(f"{len(cases)} cases, {refused} refused; {len(snippets)} snippets, "
          f"{sum(t is None for _, t in snippets)} refused")


if __name__ == "__main__":
    main()
