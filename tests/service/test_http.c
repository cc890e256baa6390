/* SPDX-License-Identifier: Apache-2.0
 *
 * The HTTP server as a client meets it: answers, streams, errors, limits. Texts are those of the
 * model alone. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/http.h"

/* What a test asks of a build without libmicrohttpd. */
static void needs_server(void)
{
    if (!dt_server_is_built()) dt_test_skip("this build has no HTTP server");
}

#define COMPLETE "/v1/completions"
#define CHAT     "/v1/chat/completions"
#define TURN     "\"messages\":[{\"role\":\"user\",\"content\":\"Speak.\"}]"

static http_answer complete(const http_server *h, const char *body)
{
    return http_post(h->port, COMPLETE, body, "");
}

/* --- answers ---------------------------------------------------------------------------------- */

/* The greedy text of the model alone. */
static void text_alone(http_server *h, const char *prompt, int64_t n_new, char *out, size_t room)
{
    dt_generate_options o = DT_GENERATE_OPTIONS_INIT;
    char folder[DT_TEST_PATH_BYTES], *text;
    dt_tokenizer *tok;
    dt_generated *g;
    int32_t *ids;
    dt_ids made;
    size_t n;

    DT_ASSERT_OK(dt_tokenizer_open(dt_test_source_path(folder, "examples/checkpoint"), &tok));
    DT_ASSERT_OK(dt_tokenizer_encode(tok, prompt, strlen(prompt), DT_ENCODE_ADD_SPECIAL, &ids, &n));
    o.max_new_tokens = n_new;
    DT_ASSERT_OK(dt_service_generate(h->model, &(dt_ids){ ids, (int64_t)n }, 1, &o, NULL, &g));
    made = dt_generated_ids(g, 0);
    DT_ASSERT_OK(dt_tokenizer_decode(tok, made.ids, (size_t)made.n, true, &text, &n));
    (void)snprintf(out, room, "%s", text);
    dt_tokenizer_free(text);
    dt_tokenizer_free(ids);
    dt_generated_release(&g);
    dt_tokenizer_release(&tok);
}

/* A JSON string's content, with \n alone as an escape. */
static const char *json_of(const char *text, char *out, size_t room)
{
    size_t n = 0;

    for (; *text != '\0' && n + 3 < room; text++) {
        if (*text == '\n') out[n++] = '\\';
        out[n++] = *text == '\n' ? 'n' : *text;
    }
    out[n] = '\0';
    return out;
}

DT_TEST(http, a_completion_is_the_text_of_the_model_alone)
{
    static http_server h;
    char text[512], json[600], want[700];

    needs_server();
    http_start(&h, NULL, 4);
    text_alone(&h, "ROMEO:", 20, text, sizeof text);
    (void)snprintf(want, sizeof want,
                   "\"text\":\"%s\",\"logprobs\":null,\"finish_reason\":\"length\"",
                   json_of(text, json, sizeof json));
    HTTP_EXPECT(complete(&h, "{\"prompt\":\"ROMEO:\",\"max_tokens\":20,\"temperature\":0}"), 200,
                want, "\"object\":\"text_completion\"", "\"prompt_tokens\":3",
                "\"completion_tokens\":20", "\"model\":\"small\"", "application/json");
    /* the same twice for n 2; echo puts the prompt before it */
    (void)snprintf(want, sizeof want, "\"index\":1,\"text\":\"ROMEO:%s\"",
                   json_of(text, json, sizeof json));
    HTTP_EXPECT(complete(&h, "{\"prompt\":\"ROMEO:\",\"max_tokens\":20,\"temperature\":0,\"n\":2,"
                             "\"echo\":true,\"model\":\"other\"}"),
                200, want, "\"model\":\"other\"", "\"completion_tokens\":40");
    http_stop(&h);
}

/* Puts the texts of a stream's events together. */
static void join_events(const char *body, const char *name, char *out, size_t room)
{
    const size_t k = strlen(name);
    size_t n = 0;

    for (const char *at = body; (at = strstr(at, name)) != NULL;) {
        for (at += k; *at != '"' && n + 2 < room; at++) {
            if (*at == '\\') out[n++] = *at++;
            out[n++] = *at;
        }
    }
    out[n] = '\0';
}

DT_TEST(http, a_stream_says_the_same_in_events)
{
    static http_server h;
    char text[512], json[600], joined[600];
    http_answer a;

    needs_server();
    http_start(&h, NULL, 4);
    text_alone(&h, "ROMEO:", 20, text, sizeof text);
    a = complete(&h, "{\"prompt\":\"ROMEO:\",\"max_tokens\":20,\"temperature\":0,\"stream\":true,"
                     "\"stream_options\":{\"include_usage\":true}}");
    HTTP_EXPECT(a, 200, "text/event-stream", "Cache-Control: no-cache", "X-Accel-Buffering: no",
                "data: {\"id\":\"cmpl-", "\"finish_reason\":\"length\"}],\"usage\":null}\n\n",
                "\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":20,");
    DT_ASSERT(strcmp(a.body + a.n - 14, "data: [DONE]\n\n") == 0);
    join_events(a.body, "\"text\":\"", joined, sizeof joined);
    DT_ASSERT_EQ_STR(joined, json_of(text, json, sizeof json));
    http_stop(&h);
}

DT_TEST(http, a_chat_stream_begins_with_the_role_and_ends_with_the_reason)
{
    static http_server h;
    char whole[600], joined[600];
    http_answer a;

    needs_server();
    http_start(&h, NULL, 4);
    a = http_post(h.port, CHAT, "{" TURN ",\"max_tokens\":12,\"temperature\":0}", "");
    HTTP_EXPECT(a, 200, "\"object\":\"chat.completion\"", "\"id\":\"chatcmpl-",
                "\"message\":{\"role\":\"assistant\",\"content\":\"",
                "\"finish_reason\":\"length\"");
    join_events(a.body, "\"content\":\"", whole, sizeof whole);
    a = http_post(h.port, CHAT,
                  "{" TURN ",\"max_completion_tokens\":12,\"max_tokens\":3,"
                  "\"temperature\":0,\"stream\":true}",
                  "");
    HTTP_EXPECT(a, 200, "\"object\":\"chat.completion.chunk\"",
                "\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},"
                "\"logprobs\":null,\"finish_reason\":null}]}\n\n",
                "\"delta\":{},\"logprobs\":null,\"finish_reason\":\"length\"}]}\n\n"
                "data: [DONE]\n\n");
    join_events(a.body, "\"content\":\"", joined, sizeof joined);
    DT_ASSERT_EQ_STR(joined, whole);
    http_stop(&h);
}

DT_TEST(http, stop_strings_end_a_text_before_them_in_streams_too)
{
    static http_server h;
    char text[512], stop[3] = "", body[256], joined[600], json[600];
    http_answer a;
    size_t cut;

    needs_server();
    http_start(&h, NULL, 4);
    text_alone(&h, "ROMEO:", 40, text, sizeof text);
    cut = strlen(text) / 2;
    while (text[cut] == '\n' || text[cut + 1] == '\n') cut++;
    (void)memcpy(stop, text + cut, 2);
    text[strstr(text, stop) - text] = '\0';
    for (int stream = 0; stream < 2; stream++) {
        (void)snprintf(
            body, sizeof body,
            "{\"prompt\":\"ROMEO:\",\"max_tokens\":40,\"temperature\":0,\"stop\":[\"%s\","
            "\"never said\"],\"stream\":%s}",
            stop, stream ? "true" : "false");
        a = complete(&h, body);
        HTTP_EXPECT(a, 200, "\"finish_reason\":\"stop\"");
        join_events(a.body, "\"text\":\"", joined, sizeof joined);
        DT_ASSERT_EQ_STR(joined, json_of(text, json, sizeof json));
    }
    http_stop(&h);
}

DT_TEST(http, a_seed_gives_the_same_texts_and_choices_differ)
{
    static const char body[] = "{\"prompt\":[[0,872,27],\"JULIET:\"],\"max_tokens\":16,\"n\":2,"
                               "\"seed\":7,\"temperature\":1.2}";
    static http_server h;
    char first[2048], again[2048];
    http_answer a;

    needs_server();
    http_start(&h, NULL, 4);
    a = complete(&h, body);
    HTTP_EXPECT(a, 200, "\"index\":3");
    join_events(a.body, "\"text\":\"", first, sizeof first);
    join_events(complete(&h, body).body, "\"text\":\"", again, sizeof again);
    DT_ASSERT_EQ_STR(first, again);
    join_events(complete(&h, "{\"prompt\":[[0,872,27],\"JULIET:\"],\"max_tokens\":16,\"n\":2,"
                             "\"seed\":8,\"temperature\":1.2}")
                    .body,
                "\"text\":\"", again, sizeof again);
    DT_ASSERT(strcmp(first, again) != 0);
    http_stop(&h);
}

DT_TEST(http, logprobs_biases_and_penalties_are_those_of_the_library)
{
    static http_server h;

    needs_server();
    http_start(&h, NULL, 4);
    HTTP_EXPECT(complete(&h, "{\"prompt\":\"ROMEO:\",\"max_tokens\":2,\"temperature\":0,"
                             "\"logprobs\":2}"),
                200, "\"tokens\":[\"\\n\",", "\"token_logprobs\":[-0.00", "\"text_offset\":[0,1]",
                "\"top_logprobs\":[{\"\\n\":-0.00");
    HTTP_EXPECT(http_post(h.port, CHAT,
                          "{" TURN ",\"max_tokens\":1,\"temperature\":0,\"logprobs\":true,"
                          "\"top_logprobs\":1}",
                          ""),
                200, "\"logprobs\":{\"content\":[{\"token\":\"", "\"bytes\":[",
                "\"top_logprobs\":[{\"token\":\"", "\"refusal\":null}");
    HTTP_EXPECT(complete(&h, "{\"prompt\":\"ROMEO:\",\"max_tokens\":1,\"temperature\":0,"
                             "\"logprobs\":1,\"logit_bias\":{\"5\":100}}"),
                200, "\"tokens\":[\"$\"]", "{\"\\n\":-0.00");
    http_stop(&h);
}

DT_TEST(http, a_format_of_json_gives_an_object)
{
    static http_server h;
    http_answer a;
    char text[2048];

    needs_server();
    http_start(&h, NULL, 4);
    for (int seed = 0; seed < 4; seed++) {
        char body[256];
        size_t n;
        (void)snprintf(body, sizeof body,
                       "{\"prompt\":\"ROMEO:\",\"seed\":%d,\"temperature\":1.5,\"max_tokens\":200,"
                       "\"response_format\":{\"type\":\"json_object\"}}",
                       seed);
        a = complete(&h, body);
        HTTP_EXPECT(a, 200, "\"text\":\"");
        join_events(a.body, "\"text\":\"", text, sizeof text);
        n = strlen(text);
        DT_ASSERT(n > 0 && strchr(text, '{') != NULL);
        if (strstr(a.body, "\"finish_reason\":\"stop\"") != NULL)
            DT_ASSERT(strrchr(text, '}') != NULL);
    }
    http_stop(&h);
}

#define SCHEMA(schema)                                                                         \
    "{\"prompt\":\"ROMEO:\",\"max_tokens\":300,\"response_format\":{\"type\":\"json_schema\"," \
    "\"json_schema\":{\"name\":\"a\",\"strict\":true,\"schema\":" schema "}}}"

DT_TEST(http, a_format_of_a_schema_gives_a_value_of_it)
{
    static const struct {
        const char *body, *says;
    } refused[] = {
        { SCHEMA("{\"type\":\"object\",\"patternProperties\":{}}"),
          "\\\"patternProperties\\\" is not supported" },
        { SCHEMA("3"), "with a \\\"schema\\\"" },
        { SCHEMA("{}"), "says no type" },
        { SCHEMA("{\"type\":\"object\"},\"also\":1"), "not known here" },
        { "{\"prompt\":\"a\",\"response_format\":{\"type\":\"json_schema\"}}", "json_schema" },
        { "{\"prompt\":\"a\",\"response_format\":{\"type\":\"grammar\"}}", "are supported" },
        { "{\"prompt\":\"a\",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":"
          "{\"name\":\"x\",\"schema\":{},\"strict\":\"yes\"}}}",
          "strict must be true or false" },
    };
    static http_server h;

    needs_server();
    http_start(&h, NULL, 4);
    HTTP_EXPECT(complete(&h, SCHEMA("{\"enum\":[\"yes, my lord\"]}")), 200, "\"yes, my lord\\\"\"",
                "\"finish_reason\":\"stop\"");
    HTTP_EXPECT(complete(&h, SCHEMA("{\"properties\":{\"grave\":{\"const\":true},"
                                    "\"list\":{\"type\":\"array\",\"maxItems\":0}},"
                                    "\"required\":[\"grave\",\"list\"]}")),
                200, "\\\"grave\\\"", "true", "\\\"list\\\"", "\"finish_reason\":\"stop\"");
    for (size_t i = 0; i < DT_COUNT(refused); i++)
        HTTP_EXPECT(complete(&h, refused[i].body), 400, refused[i].says,
                    "\"param\":\"response_format\"");
    http_stop(&h);
}

#define TOOLS                                                                                      \
    "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"sing\"}},{\"type\":\"function\","  \
    "\"function\":{\"name\":\"dance\",\"parameters\":{\"$defs\":{\"step\":{\"enum\":[\"left\"]}}," \
    "\"properties\":{\"to\":{\"$ref\":\"#/$defs/step\"}},\"required\":[\"to\"]}}}]"
#define NAMED(name) "\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"" name "\"}}"

DT_TEST(http, an_answer_is_a_call_where_it_has_to_be)
{
    static const struct {
        const char *body, *says, *param;
    } refused[] = {
        { "{" TURN ",\"tool_choice\":\"required\"}", "there are no tools", "tool_choice" },
        { "{" TURN "," TOOLS "," NAMED("walk") "}", "no such tool", "tool_choice" },
        { "{" TURN "," TOOLS ",\"tool_choice\":\"must\"}", "required", "tool_choice" },
        { "{" TURN "," TOOLS ",\"tool_choice\":\"required\"}", "names nothing", "tools" },
        { "{" TURN "," TOOLS "," NAMED("sing") ",\"add_generation_prompt\":false}", "is false",
          "add_generation_prompt" },
        { "{" TURN "," TOOLS "," NAMED("sing") ",\"response_format\":{\"type\":\"json_object\"}}",
          "a call of a tool", "response_format" },
        { "{" TURN ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"sing\","
          "\"strict\":\"yes\"}}]}",
          "strict must be true or false", "tools" },
    };
    static http_server h;
    char param[64];

    needs_server();
    http_start(&h, NULL, 4);
    HTTP_EXPECT(http_post(h.port, CHAT, "{" TURN "," TOOLS "," NAMED("dance") ",\"seed\":3}", ""),
                200, "\"content\":null",
                "\"name\":\"dance\",\"arguments\":\"{\\\"to\\\": \\\"left\\\"}\"",
                "\"finish_reason\":\"tool_calls\"");
    HTTP_EXPECT(http_post(h.port, CHAT,
                          "{" TURN "," TOOLS "," NAMED("dance") ",\"stream\":true,\"seed\":4}", ""),
                200, "\"tool_calls\":[{\"index\":0", "\"name\":\"dance\"", "\"tool_calls\"}");
    HTTP_EXPECT(
        http_post(h.port, CHAT,
                  "{" TURN ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"a\","
                  "\"parameters\":{\"additionalProperties\":false}}},{\"type\":\"function\","
                  "\"function\":{\"name\":\"b\",\"parameters\":{\"additionalProperties\":"
                  "false}}}],\"tool_choice\":\"required\"}",
                  ""),
        200, "\"arguments\":\"{}\"", "\"finish_reason\":\"tool_calls\"");
    for (size_t i = 0; i < DT_COUNT(refused); i++) {
        (void)snprintf(param, sizeof param, "\"param\":\"%s\"", refused[i].param);
        HTTP_EXPECT(http_post(h.port, CHAT, refused[i].body, ""), 400, refused[i].says, param);
    }
    http_stop(&h);
}

DT_TEST(http, texts_become_tokens_and_back)
{
    static http_server h;

    needs_server();
    http_start(&h, NULL, 4);
    HTTP_EXPECT(http_post(h.port, "/tokenize", "{\"content\":\"hello\"}", ""), 200,
                "\"tokens\":[259,277,80]", "\"count\":3");
    HTTP_EXPECT(http_post(h.port, "/tokenize", "{\"prompt\":\"hello\"}", ""), 200,
                "\"tokens\":[0,259,277,80]", "\"max_model_len\":512");
    HTTP_EXPECT(http_post(h.port, "/tokenize", "{" TURN "}", ""), 200, "\"tokens\":[");
    HTTP_EXPECT(http_post(h.port, "/detokenize", "{\"tokens\":[259,277,80]}", ""), 200,
                "\"content\":\"hello\"", "\"prompt\":\"hello\"");
    HTTP_EXPECT(http_post(h.port, "/detokenize", "{\"tokens\":[1024]}", ""), 400, "tokens");
    http_stop(&h);
}

DT_TEST(http, health_models_metrics_and_the_page_are_there)
{
    static http_server h;

    needs_server();
    http_start(&h, NULL, 4);
    HTTP_EXPECT(http_get(h.port, "/health", ""), 200, "{\"status\":\"ok\"}");
    HTTP_EXPECT(http_get(h.port, "/v1/models", ""), 200, "\"id\":\"small\"", "\"id\":\"other\"",
                "\"max_model_len\":64", "\"n_vocab\":1024");
    HTTP_EXPECT(http_get(h.port, "/", ""), 200, "<!doctype html>", "Content-Security-Policy");
    (void)complete(&h, "{\"prompt\":\"a\",\"max_tokens\":3}");
    HTTP_EXPECT(http_get(h.port, "/metrics", ""), 200,
                "dtensor_requests_answered_total{model=\"small\"} 1\n",
                "dtensor_generation_tokens_total{model=\"small\"} 3\n",
                "dtensor_time_to_first_token_seconds_count{model=\"small\"} 1\n",
                "dtensor_cache_blocks_used{model=\"small\"} 0\n",
                "dtensor_prompt_tokens_read_total{model=\"small\"} ",
                "dtensor_memory_bytes{rank=\"0\",kind=\"weights\"}", "text/plain");
    http_stop(&h);
}

/* A number of /metrics. */
static double metric(const char *text, const char *name)
{
    const char *at = strstr(text, name);

    DT_ASSERT(at != NULL);
    return atof(at + strlen(name));
}

/* Each replica has blocks of its own: rank 0 has half of them. */
DT_TEST(http, bytes_of_caches_are_those_of_a_rank)
{
    static http_server h;
    const char *text;

    needs_server();
    h.mesh = "dp=2";
    http_start(&h, NULL, 4);
    (void)complete(&h, "{\"prompt\":\"a\",\"max_tokens\":3}");
    text = http_get(h.port, "/metrics", "").body;
    DT_ASSERT(metric(text, "dtensor_cache_bytes{model=\"small\"} ") > 0);
    DT_ASSERT(metric(text, "dtensor_cache_bytes{model=\"small\"} ") ==
              metric(text, "dtensor_memory_bytes{rank=\"0\",kind=\"caches\"} "));
    http_stop(&h);
}

/* --- errors ----------------------------------------------------------------------------------- */

DT_TEST(http, errors_name_the_field_and_say_why)
{
    static const struct {
        const char *path, *body;
        int status;
        const char *says;
    } cases[] = {
        { COMPLETE, "{\"prompt\":\"a\",\"temperature\":3}", 400,
          "temperature must be a number from 0 to 2" },
        { COMPLETE, "{\"prompt\":\"a\",\"nope\":1}", 400, "\"param\":\"nope\"" },
        { COMPLETE, "{\"prompt\":\"a\",\"n\":0}", 400, "\"param\":\"n\"" },
        { COMPLETE, "{\"prompt\":\"a\",\"model\":\"x\"}", 404, "\"param\":\"model\"" },
        { COMPLETE, "{\"prompt\":[5,1024]}", 400, "token 1 is no id" },
        { COMPLETE, "{}", 400, "prompt is missing" },
        { COMPLETE, "{\"prompt\":\"a\",\"stop\":\"\"}", 400, "\"param\":\"stop\"" },
        { COMPLETE, "{\"prompt\":\"a\",\"stream_options\":{}}", 400, "stream_options" },
        { COMPLETE, "{\"prompt\":\"a\",\"response_format\":{\"type\":\"grammar\"}}", 400,
          "response_format" },
        { COMPLETE, "{\"prompt\":\"a\",\"logit_bias\":{\"99999\":1}}", 400, "logit_bias" },
        { CHAT, "{\"messages\":[]}", 400, "\"param\":\"messages\"" },
        { CHAT, "{\"messages\":[{\"role\":\"king\",\"content\":\"a\"}]}", 400, "message 0" },
        { CHAT, "{" TURN ",\"top_logprobs\":2}", 400, "top_logprobs need" },
        { CHAT, "{" TURN ",\"tools\":[]}", 400, "\"param\":\"tools\"" },
        { CHAT, "{" TURN ",\"chat_template_kwargs\":{\"messages\":[]}}", 400,
          "chat_template_kwargs" },
        { CHAT, "{" TURN ",\"model\":\"other\"}", 400, "has no chat template" },
    };
    static http_server h;
    char long_prompt[2048], body[2200];

    needs_server();
    http_start(&h, NULL, 4);
    for (size_t i = 0; i < DT_COUNT(cases); i++)
        HTTP_EXPECT(http_post(h.port, cases[i].path, cases[i].body, ""), cases[i].status,
                    cases[i].says, "{\"error\":{\"message\":\"");
    memset(long_prompt, 'a', sizeof long_prompt - 1);
    for (size_t i = 1; i < sizeof long_prompt - 1; i += 2) long_prompt[i] = ' ';
    long_prompt[sizeof long_prompt - 1] = '\0';
    for (int stream = 0; stream < 2; stream++) {
        (void)snprintf(body, sizeof body, "{\"prompt\":\"%s\",\"stream\":%s}", long_prompt,
                       stream ? "true" : "false");
        HTTP_EXPECT(complete(&h, body), 400, "exceed_context_size_error", "\"n_ctx\":512");
    }
    HTTP_EXPECT(http_get(h.port, "/nowhere", ""), 404, "not_found_error");
    HTTP_EXPECT(http_get(h.port, COMPLETE, ""), 405, "Allow: POST");
    HTTP_EXPECT(http_post(h.port, "/health", "{}", ""), 405, "Allow: GET");
    http_stop(&h);
}

DT_TEST(http, a_rank_that_fails_is_told_to_clients_and_to_who_asks_for_health)
{
    static http_server h = { .fault = "rank=1,op=all_reduce,call=60" };
    static const char body[] =
        "{\"prompt\":\"a\",\"max_tokens\":200,\"ignore_eos\":true,\"stream\":%s}";
    char text[256];
    http_answer a;

    needs_server();
    http_start(&h, NULL, 2);
    (void)snprintf(text, sizeof text, body, "true");
    a = complete(&h, text);
    /* after its first tokens: an event, and no end as of a whole answer */
    if (a.status != 503) HTTP_EXPECT(a, 200, "data: {\"error\":{\"message\":\"");
    DT_ASSERT(strstr(a.body, "[DONE]") == NULL && strstr(a.body, "rank 1") != NULL);
    (void)snprintf(text, sizeof text, body, "false");
    HTTP_EXPECT(complete(&h, text), 503, "x-should-retry: false", "rank 1");
    DT_ASSERT(strstr(complete(&h, text).body, "examples/checkpoint") == NULL);
    HTTP_EXPECT(http_get(h.port, "/health", ""), 503, "has failed");
    HTTP_EXPECT(http_get(h.port, "/metrics", ""), 200, "dtensor_model_up{model=\"small\"} 0");
    http_stop(&h);
}

DT_TEST(http, keys_hosts_and_origins_are_checked)
{
    static const char *const keys[] = { "first", "second" }, *const names[] = { "model.example" };
    static http_server h;
    dt_server_options o = http_options(&h);

    needs_server();
    o.keys = keys;
    o.n_keys = 2;
    o.hosts = names;
    o.n_hosts = 1;
    http_start(&h, &o, 4);
    HTTP_EXPECT(http_get(h.port, "/health", ""), 200, "ok");
    HTTP_EXPECT(http_get(h.port, "/v1/models", ""), 401, "WWW-Authenticate",
                "authentication_error");
    HTTP_EXPECT(http_get(h.port, "/metrics", "Authorization: Bearer firs\r\n"), 401, "not known");
    HTTP_EXPECT(http_get(h.port, "/v1/models", "Authorization: Bearer second\r\n"), 200, "small");
    HTTP_EXPECT(http_get(h.port, "/v1/models", "X-Api-Key: first\r\n"), 200, "small");
    HTTP_EXPECT(http_get(h.port, "/nowhere", ""), 401, "key");
    HTTP_EXPECT(http_raw(h.port, "GET /health HTTP/1.1\r\nHost: evil.example\r\n\r\n", 44), 403,
                "Host");
    HTTP_EXPECT(http_raw(h.port, "GET /health HTTP/1.1\r\nHost: MODEL.example:80\r\n\r\n", 48), 200,
                "ok");
    HTTP_EXPECT(http_get(h.port, "/health", "Origin: http://evil.example\r\n"), 403, "origin");
    http_stop(&h);
}

DT_TEST(http, an_address_of_other_machines_needs_a_key)
{
    static http_server h;
    dt_server_options o = http_options(&h);
    dt_server_model model = { "a", NULL, 0, NULL };
    dt_server *server;

    needs_server();
    http_start(&h, NULL, 4);
    model.model = h.model;
    o.host = "0.0.0.0";
    DT_ASSERT_STATUS(dt_server_start(&o, &model, 1, &server), DT_ERR_ARG, "there is no key");
    o.open = true;
    DT_ASSERT_OK(dt_server_start(&o, &model, 1, &server));
    HTTP_EXPECT(http_get(dt_server_port(server), "/metrics", ""), 404, "--metrics");
    dt_server_stop(&server, 0);
    o.host = "127.0.0.1";
    o.port = h.port;
    DT_ASSERT_STATUS(dt_server_start(&o, &model, 1, &server), DT_ERR_IO, "cannot listen");
    DT_ASSERT_STATUS(dt_server_start(&o, (dt_server_model[]){ model, model }, 2, &server),
                     DT_ERR_ARG, "two models");
    http_stop(&h);
}
