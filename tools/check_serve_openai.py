#!/usr/bin/env python3
"""Drive `dtensor serve` with the openai package, and say what does not hold.

What llama.cpp's and vLLM's server tests ask of a server, asked of ours on the small checkpoint of
the examples: texts equal whatever way they are asked for, errors are those that clients raise.

Run, from the repository root, after `make build`:

    python3 tools/check_serve_openai.py [build/release/bin/dtensor]

Needs the packages openai and httpx (or httpx2, which newer versions of openai bring along).
"""

import asyncio
import concurrent.futures
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from typing import Annotated, Literal, Optional

import openai
import pydantic

TEMPLATE = (
    "{% if tools %}tools: {{ tools | tojson }}\n{% endif %}"
    "{% for m in messages %}{% if m.role not in ['system', 'user', 'assistant', 'tool'] %}"
    "{{ raise_exception('what is ' ~ m.role ~ '?') }}{% endif %}{{ m.role | upper }}:\n"
    "{{ m.content }}{% for c in m.tool_calls %}<tool_call>\n{\"name\": {{ c.function.name | tojson }}, "
    "\"arguments\": {{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}\n\n{% endfor %}{% if add_generation_prompt %}ASSISTANT:{% endif %}")
PROMPT, TURN = "ROMEO:", [{"role": "user", "content": "Speak, I pray thee."}]
KEY = "a key that only this script knows"
CASES = []


def case(function):
    CASES.append(function)
    return function


class Server:
    def __init__(self, binary):
        self.folder = tempfile.TemporaryDirectory()
        template = os.path.join(self.folder.name, "chat.jinja")
        with open(template, "w", encoding="utf-8") as f:
            f.write(TEMPLATE)
        self.log = open(os.path.join(self.folder.name, "log"), "w+", encoding="utf-8")
        self.process = subprocess.Popen(
            [binary, "serve", "--model", "small=examples/checkpoint", "--port", "0",
             "--chat-template", template],
            stdout=subprocess.PIPE, stderr=self.log, text=True,
            env={**os.environ, "DTENSOR_API_KEY": KEY})
        line = self.process.stdout.readline()
        assert line.startswith("listening at "), line
        self.url = line.split()[-1]
        self.client = openai.OpenAI(base_url=self.url + "/v1", api_key=KEY, max_retries=0)

    def raw(self, path, body=None, headers=None):
        """(status, headers, text)"""
        request = urllib.request.Request(
            self.url + path, data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": "Bearer " + KEY, **(headers or {})})
        try:
            with urllib.request.urlopen(request, timeout=60) as r:
                return r.status, r.headers, r.read().decode()
        except urllib.error.HTTPError as e:
            return e.code, e.headers, e.read().decode()

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(timeout=60)
        self.log.seek(0)
        text = self.log.read()
        assert KEY not in text and PROMPT not in text, "the log says too much"
        return code


def complete(s, **more):
    return s.client.completions.create(
        **{"model": "small", "prompt": PROMPT, "max_tokens": 24, "temperature": 0, **more})


def chat(s, **more):
    return s.client.chat.completions.create(
        **{"model": "small", "messages": TURN, "max_tokens": 24, "temperature": 0, **more})


def refused(call, kind, *words):
    try:
        call()
    except kind as e:
        assert all(w in str(e) for w in words), str(e)
        return e
    raise AssertionError(f"not refused by {kind.__name__}")


@case
def models_are_listed(s):
    one = s.client.models.list().data[0]
    assert one.id == "small" and one.object == "model", one


@case
def a_completion_has_all_parts(s):
    r = complete(s)
    c = r.choices[0]
    assert r.object == "text_completion" and r.id.startswith("cmpl-") and c.index == 0
    assert c.finish_reason == "length" and c.text and c.logprobs is None
    assert (r.usage.prompt_tokens, r.usage.completion_tokens, r.usage.total_tokens) == (3, 24, 27)


@case
def a_stream_of_a_completion_is_the_same_text(s):
    chunks = list(complete(s, stream=True))
    assert "".join(c.choices[0].text for c in chunks) == complete(s).choices[0].text
    assert len({c.id for c in chunks}) == 1 and chunks[-1].choices[0].finish_reason == "length"


@case
def a_chat_has_all_parts(s):
    r = chat(s)
    c = r.choices[0]
    assert r.object == "chat.completion" and c.message.role == "assistant" and c.message.content
    assert c.finish_reason == "length" and r.usage.completion_tokens == 24


@case
def a_stream_of_a_chat_begins_with_the_role(s):
    chunks = list(chat(s, stream=True))
    first = chunks[0].choices[0].delta
    assert first.role == "assistant" and first.content == ""
    assert all(c.choices[0].delta.role is None for c in chunks[1:])
    text = "".join(c.choices[0].delta.content or "" for c in chunks)
    assert text == chat(s).choices[0].message.content
    assert [c.choices[0].finish_reason for c in chunks if c.choices[0].finish_reason] == ["length"]


@case
def usage_of_a_stream_is_a_last_chunk(s):
    chunks = list(chat(s, stream=True, stream_options={"include_usage": True}))
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == 24
    assert all(c.usage is None for c in chunks[:-1])


@case
def a_stop_string_ends_the_text_before_it(s):
    text = complete(s, max_tokens=60).choices[0].text
    stop = text[len(text) // 2:len(text) // 2 + 3]
    r = complete(s, max_tokens=60, stop=[stop, "never"])
    assert r.choices[0].text == text[:text.index(stop)] and r.choices[0].finish_reason == "stop"
    chunks = complete(s, max_tokens=60, stop=stop, stream=True)
    assert "".join(c.choices[0].text for c in chunks) == r.choices[0].text


@case
def the_same_seed_gives_the_same_text(s):
    a, b, c = (complete(s, temperature=1, seed=n, max_tokens=40).choices[0].text for n in (5, 5, 6))
    assert a == b != c


@case
def no_seed_gives_other_texts(s):
    assert len({complete(s, temperature=1.5, max_tokens=40).choices[0].text for _ in range(4)}) > 1


@case
def ids_say_the_same_as_their_text(s):
    ids = json.loads(s.raw("/tokenize", {"prompt": PROMPT})[2])["tokens"]
    assert complete(s, prompt=ids).choices[0].text == complete(s).choices[0].text


@case
def several_prompts_are_answered_in_order(s):
    texts = ["JULIET:", PROMPT]
    alone = [complete(s, prompt=t).choices[0].text for t in texts]
    r = complete(s, prompt=texts)
    assert [c.text for c in r.choices] == alone and [c.index for c in r.choices] == [0, 1]
    assert r.usage.completion_tokens == 48


@case
def requests_at_the_same_time_do_not_change_each_other(s):
    prompts = [f"{i} my lord, " for i in range(12)]
    alone = [complete(s, prompt=p).choices[0].text for p in prompts]
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        assert list(pool.map(lambda p: complete(s, prompt=p).choices[0].text, prompts)) == alone


@case
def many_texts_of_one_prompt_differ(s):
    r = complete(s, n=3, temperature=1.3, seed=1, max_tokens=30)
    assert [c.index for c in r.choices] == [0, 1, 2] and len({c.text for c in r.choices}) == 3
    chunks = list(complete(s, n=3, temperature=1.3, seed=1, max_tokens=30, stream=True))
    for i in range(3):
        text = "".join(c.choices[0].text for c in chunks if c.choices[0].index == i)
        assert text == r.choices[i].text


@case
def logprobs_of_a_chat_are_of_its_tokens(s):
    c = chat(s, logprobs=True, top_logprobs=3).choices[0]
    assert len(c.logprobs.content) == 24
    assert b"".join(bytes(t.bytes) for t in c.logprobs.content).decode().strip() == \
        c.message.content.strip()
    for t in c.logprobs.content:
        assert len(t.top_logprobs) == 3 and t.top_logprobs[0].logprob == t.logprob <= 0
        assert t.top_logprobs[0].logprob >= t.top_logprobs[1].logprob >= t.top_logprobs[2].logprob


@case
def logprobs_of_a_stream_are_the_same(s):
    whole = [(t.token, t.logprob) for t in chat(s, logprobs=True).choices[0].logprobs.content]
    parts = [(t.token, t.logprob) for c in chat(s, logprobs=True, stream=True)
             if c.choices[0].logprobs for t in c.choices[0].logprobs.content]
    assert whole == parts


@case
def logprobs_of_a_completion_have_offsets(s):
    c = complete(s, logprobs=2).choices[0]
    l = c.logprobs
    assert len(l.tokens) == len(l.token_logprobs) == len(l.top_logprobs) == len(l.text_offset) == 24
    assert "".join(l.tokens) == c.text
    assert all(c.text[o:].startswith(t) for o, t in zip(l.text_offset, l.tokens))


@case
def a_bias_of_minus_100_bans_a_token(s):
    r = complete(s, logprobs=0)
    token = json.loads(s.raw("/tokenize", {"content": r.choices[0].logprobs.tokens[0]})[2])["tokens"]
    other = complete(s, logprobs=0, logit_bias={str(token[0]): -100})
    assert other.choices[0].logprobs.tokens[0] != r.choices[0].logprobs.tokens[0]


@case
def penalties_change_the_text(s):
    assert complete(s, frequency_penalty=2, max_tokens=60).choices[0].text != \
        complete(s, max_tokens=60).choices[0].text


@case
def a_text_that_is_too_long_is_refused(s):
    for stream in (False, True):
        e = refused(lambda: complete(s, prompt="my lord " * 600, stream=stream),
                    openai.BadRequestError, "the context 512")
        assert e.type == "exceed_context_size_error" and e.body["n_ctx"] == 512 < e.body["n_prompt_tokens"], e.body


@case
def more_tokens_than_there_is_room_for_are_cut(s):
    r = complete(s, max_tokens=5000, extra_body={"ignore_eos": True})
    assert r.usage.total_tokens == 512 and r.choices[0].finish_reason == "length"


@case
def wrong_messages_are_refused(s):
    for messages in ([], "a", [{"content": "a"}], [{"role": "king", "content": "a"}],
                     [{"role": "user"}], [{"role": "user", "content": 5}],
                     [{"role": "user", "content": [{"type": "image_url"}]}]):
        e = refused(lambda: chat(s, messages=messages), openai.BadRequestError)
        assert e.param == "messages", e


@case
def parts_of_a_content_are_one_text(s):
    parts = [{"role": "user", "content": [{"type": "text", "text": TURN[0]["content"]}]}]
    assert chat(s, messages=parts).choices[0].message.content == chat(s).choices[0].message.content


@case
def formats_are_taken_or_refused(s):
    assert chat(s, response_format={"type": "text"}).choices
    for seed in range(3):
        c = chat(s, response_format={"type": "json_object"}, temperature=1.3, seed=seed,
                 max_tokens=300).choices[0]
        assert c.finish_reason == "length" or isinstance(json.loads(c.message.content), dict)
    for wrong in ({"type": "grammar"}, {"type": 5}, {}):
        refused(lambda: chat(s, response_format=wrong), openai.BadRequestError, "response_format")


class Line(pydantic.BaseModel):
    speaker: Literal["ROMEO", "JULIET"]
    words: Annotated[str, pydantic.Field(max_length=12)]
    loud: Optional[bool] = None
    steps: Annotated[int, pydantic.Field(ge=0, lt=100)]


class Answer(pydantic.BaseModel):
    speaker: Literal["ROMEO", "JULIET"]


class Scene(pydantic.BaseModel):
    lines: Annotated[list[Line], pydantic.Field(max_length=2)]


@case
def a_schema_gives_what_pydantic_reads(s):
    for seed in range(4):
        schema = {"name": "scene", "schema": Scene.model_json_schema(), "strict": True}
        c = chat(s, response_format={"type": "json_schema", "json_schema": schema}, seed=seed,
                 temperature=1.2, max_tokens=400).choices[0]
        if c.finish_reason == "stop":
            Scene.model_validate_json(c.message.content)
    c = s.client.chat.completions.parse(model="small", messages=TURN, response_format=Answer,
                                        max_tokens=300).choices[0]
    assert isinstance(c.message.parsed, Answer)
    schema["schema"] = {"type": "string", "pattern": "a"}
    refused(lambda: chat(s, response_format={"type": "json_schema", "json_schema": schema}),
            openai.BadRequestError, "pattern")


@case
def a_tool_is_called_where_it_has_to_be(s):
    tools = [{"type": "function", "function": {"name": n, "parameters": Answer.model_json_schema()}}
             for n in ("ask", "sing")]
    named = {"type": "function", "function": {"name": "sing"}}
    for choice, names in ((named, ["sing"]), ("required", ["ask", "sing"])):
        c = chat(s, tools=tools, tool_choice=choice, max_tokens=150, seed=3).choices[0]
        assert c.finish_reason == "tool_calls" and len(c.message.tool_calls) == 1
        assert c.message.tool_calls[0].function.name in names
        Answer.model_validate_json(c.message.tool_calls[0].function.arguments)


@case
def tools_are_given_to_the_template(s):
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    with_tools = chat(s, tools=tools)
    assert with_tools.usage.prompt_tokens > chat(s).usage.prompt_tokens
    none = chat(s, tools=tools, tool_choice="none")
    assert none.usage.prompt_tokens == chat(s).usage.prompt_tokens
    refused(lambda: chat(s, tools=tools, tool_choice={"type": "nobody"}), openai.BadRequestError)


@case
def fields_that_are_unknown_or_wrong_are_named(s):
    e = refused(lambda: complete(s, extra_body={"frobnicate": 1}), openai.BadRequestError)
    assert e.param == "frobnicate"
    for name, value in (("temperature", 2.5), ("top_p", 0), ("n", 0), ("max_tokens", 0)):
        e = refused(lambda: complete(s, **{name: value}), openai.BadRequestError)
        assert e.param == name, e


@case
def an_unknown_model_is_not_found(s):
    e = refused(lambda: complete(s, model="other"), openai.NotFoundError)
    assert e.param == "model"


@case
def keys_are_asked_for(s):
    other = openai.OpenAI(base_url=s.url + "/v1", api_key=KEY + "x", max_retries=0)
    refused(other.models.list, openai.AuthenticationError)
    assert s.raw("/health", headers={"Authorization": ""})[0] == 200
    for path in ("/v1/models", "/metrics", "/nowhere"):
        assert s.raw(path, headers={"Authorization": "Bearer x"})[0] == 401
    assert s.raw("/v1/models")[0] == 200


@case
def pages_of_others_get_nothing(s):
    status, headers, _ = s.raw("/v1/models", headers={"Origin": "http://evil.example"})
    assert status == 403 and headers.get("Access-Control-Allow-Origin") is None
    assert s.raw("/v1/models", headers={"Host": "evil.example"})[0] == 403


@case
def tokens_become_text_again(s):
    for text in ("hello world", "äé 中文 😀", "  two\n\tlines "):
        tokens = json.loads(s.raw("/tokenize", {"content": text})[2])["tokens"]
        assert json.loads(s.raw("/detokenize", {"tokens": tokens})[2])["content"] == text


@case
def a_client_that_goes_frees_its_place(s):
    def gauge(name):
        for line in s.raw("/metrics")[2].splitlines():
            if line.startswith("dtensor_" + name + "{"):
                return float(line.split()[-1])
        raise AssertionError(name)
    stream = complete(s, max_tokens=400, n=32, temperature=1, stream=True,
                      extra_body={"ignore_eos": True})
    next(iter(stream))
    assert gauge("requests_running") == 1
    stream.close()
    until = time.time() + 2
    while gauge("requests_running") > 0:
        assert time.time() < until, "it runs on"
        time.sleep(0.01)


@case
def figures_count_what_was_done(s):
    def figures():
        return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1])
                for line in s.raw("/metrics")[2].splitlines() if not line.startswith("#")}
    before = figures()
    complete(s)
    after = figures()
    name = 'dtensor_generation_tokens_total{model="small"}'
    assert after[name] - before[name] == 24
    name = 'dtensor_time_to_first_token_seconds_count{model="small"}'
    assert after[name] - before[name] == 1


@case
def asynchronous_clients_are_answered(s):
    async def ask():
        client = openai.AsyncOpenAI(base_url=s.url + "/v1", api_key=KEY, max_retries=0)
        stream = await client.completions.create(model="small", prompt=PROMPT, max_tokens=24,
                                                 temperature=0, stream=True)
        return "".join([c.choices[0].text async for c in stream])
    assert asyncio.run(ask()) == complete(s).choices[0].text


@case
def an_echo_begins_with_the_prompt(s):
    assert complete(s, echo=True).choices[0].text == PROMPT + complete(s).choices[0].text


def main():
    binary = sys.argv[1] if len(sys.argv) > 1 else "build/release/bin/dtensor"
    server = Server(binary)
    failed = 0
    try:
        for function in CASES:
            try:
                function(server)
            except Exception as e:  # each case by itself
                failed += 1
                print(f"FAILED {function.__name__}: {type(e).__name__}: {str(e)[:500]}")
    finally:
        code = server.stop()
    print(f"{len(CASES) - failed} of {len(CASES)} cases hold, openai {openai.__version__}; the "
          f"server ended with {code}")
    return 1 if failed or code else 0


if __name__ == "__main__":
    sys.exit(main())
