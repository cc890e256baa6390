#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tests/golden/chat/cases.json: chat templates and what Jinja makes of them, set up as
Transformers' apply_chat_template() sets it up. The templates are our own, written with the
constructs that those of Llama 3, Qwen 3, Gemma 3 and Phi-3 use.

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
