/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzing chat templates: any bytes are refused with a message, or render a text that is UTF-8, and
 * the same one twice. */
#include "tests/fuzz/fuzz.h"

#include <dtensor/chat.h>

#include "text/tokenizer/utf8.h"

enum { MOST_BYTES = 1 << 10 };

static const char variables[] =
    "{\"messages\":[{\"role\":\"system\",\"content\":\" s \"},{\"role\":\"user\",\"content\":"
    "\"\xc3\xa4 <think>x</think>\"},{\"role\":\"assistant\",\"content\":[{\"type\":\"text\","
    "\"text\":\"t\"}]}],\"bos_token\":\"<s>\",\"n\":3,\"f\":0.5,\"tools\":[{\"a\":{\"b\":[]}}]}";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    dt_chat_options options = DT_CHAT_OPTIONS_INIT;
    dt_chat *chat = NULL;
    char *text = NULL, *again = NULL;
    size_t n, n_again;

    if (size > MOST_BYTES) return 0;
    options.variables = variables;
    options.now = 1;
    if (fuzz_failed(dt_chat_create("t", (const char *)data, size, &chat))) return 0;
    if (!fuzz_failed(dt_chat_render_json(chat, &options, &text, &n))) {
        if (dti_utf8_valid(text, n) != n) fuzz_stop("a text that is not UTF-8");
        if (dt_chat_render_json(chat, &options, &again, &n_again) != DT_OK || n != n_again ||
            memcmp(text, again, n) != 0)
            fuzz_stop("another text the second time");
    }
    dt_chat_free(text);
    dt_chat_free(again);
    dt_chat_release(&chat);
    return 0;
}

#ifndef DT_LIBFUZZER

static const fuzz_seed seeds[] = {
    { "{{- bos_token }}\n{%- if messages[0]['role'] == 'system' %}\n  {%- set s = "
      "messages[0]['content']|trim %}\n  {%- set messages = messages[1:] %}\n{%- endif %}\n{%- for "
      "m in messages %}{{ m.role ~ '\\n' }}{% endfor %}",
      0 },
    { "{% set ns = namespace(k=true, i=messages|length - 1) %}{% for m in messages[::-1] %}{% set "
      "index = ns.i - loop.index0 %}{% if ns.k and m.role == \"user\" and "
      "not(m.content.startswith('<t>')) %}{% set ns.k = false %}{{ index }}{% endif %}{% endfor %}",
      0 },
    { "{{ "
      "messages[1].content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') "
      "}}{{ tools | tojson(indent=2) }}{{ messages | selectattr('role', 'equalto', 'user') | "
      "map(attribute='content') | join(', ') }}",
      0 },
    { "{% for a, b in tools[0].items() if a is string %}{{ loop.last }}{{ b | tojson }}{% else "
      "%}{{ 1 + n * -2 // 3 % 2 - f }}{% endfor %}{# c -#}  {{ 'x' if n > 2 < 9 else [1, {'a': (2, "
      "3)}] }}",
      0 },
    { "{% set w %}a{{ n }}{% endset %}{% for c in w %}{% if c in ['a', 'b'] %}{% continue %}{% "
      "elif loop.index > 3 %}{% break %}{% endif %}{{ strftime_now('%d') }}{% endfor %}{% "
      "generation %}{{ q | default('d', true) }}{% endgeneration %}",
      0 },
    { "{% macro f(a, b=n, c=[a, b]) -%}{% if a > 0 %}{{ f(a - 1, c=b) }}{% endif %}{{ c | tojson | "
      "safe ~ caller }}{% endmacro %}{% for x in messages %}{% call(y, z=1) f(n) %}{{ x.role ~ y }}"
      "{% endcall %}{{ loop.cycle('a', n) }}{% endfor %}{{ f(2) }}",
      0 },
    { "{%- macro w(k) %}<{{ k }}>{{ caller(k) if caller }}{% endmacro %}{% call(v) w('b') %}{% "
      "filter upper | replace('A', 'b') %}{{ v }}{% raw -%} {{ n }} {%- endraw %}{% endfilter "
      "%}{% endcall %}{% set q | trim %} {{ w(1) }} {% endset %}{% for k, v in tools[0] | "
      "dictsort %}{{ k }}{% endfor %}",
      0 },
};
static const char *const words[] = {
    "{{",
    "}}",
    "{%",
    "%}",
    "{%-",
    "-%}",
    "{#",
    "#}",
    "{{-",
    "-}}",
    "{%+",
    " if ",
    " else ",
    "{% endif %}",
    "{% endfor %}",
    "{% else %}",
    "{% for x in messages %}",
    "{% macro f(a, b=1) %}",
    "{% endmacro %}",
    "{{ f(n) }}",
    "{% call f(1) %}",
    "{% call(x) f(1) %}",
    "{% endcall %}",
    "{{ caller(1) }}",
    "{% filter upper %}",
    "{% endfilter %}",
    "{% set x %}",
    "{% endset %}",
    "{% raw %}",
    "{% endraw %}",
    "|safe",
    "|dictsort",
    "loop.cycle(",
    "{% for x in range(99999) %}",
    "{% set x = [x, x] %}",
    "namespace(",
    "range(",
    "raise_exception(",
    "|tojson",
    "|length",
    "|trim",
    "|join",
    "|first",
    "|list",
    "|string",
    "|items",
    "|replace('a', 'bb')",
    ".split('')",
    ".strip(",
    ".items()",
    ".get(",
    "[",
    "]",
    "[::-1]",
    "[1:]",
    "[-1]",
    "(",
    ")",
    "{",
    "}",
    "'",
    "\"",
    "\\",
    "\\u00e9",
    " is ",
    " not ",
    " in ",
    " and ",
    " or ",
    "==",
    "<",
    "+",
    "-",
    "~",
    "*",
    "//",
    "%",
    "/",
    ",",
    ":",
    "=",
    ".",
    "0",
    "-1",
    "9223372036854775807",
    "1e9",
    "0.5",
    "none",
    "true",
    "loop",
    "ns",
    "\xc3\xa4",
    "\xff",
    "\n",
    "\r",
    "  ",
};
static const fuzz_table table = { "fuzz_chat",     20000, MOST_BYTES,      seeds,
                                  DT_COUNT(seeds), words, DT_COUNT(words), NULL };

int main(int argc, char **argv)
{
    return fuzz_main(&table, argc, argv);
}

#endif
