/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzing what reads requests of the HTTP server: bodies become wishes within their bounds or are
 * refused with a message, heads that pass say one thing alone, and what a model writes is never
 * read past its end in search of calls. The first byte says which. */
#include "tests/fuzz/fuzz.h"

#include <jansson.h>

#include "service/http/exchange.h"
#include "service/http/tools.h"
#include "service/http/wish.h"
#include "text/tokenizer/utf8.h"

enum { MOST_BYTES = 1 << 12, VOCAB = 1000 };

static void check_wish(const dti_wish *w)
{
    if (w->n_prompts < 1 || w->n_prompts > DTI_MOST_PROMPTS) fuzz_stop("prompts");
    if (w->variables == NULL && w->prompts == NULL) fuzz_stop("neither prompts nor messages");
    for (int64_t i = 0; w->prompts != NULL && i < w->n_prompts; i++)
        for (int64_t j = 0; j < w->prompts[i].ids.n; j++)
            if (w->prompts[i].ids.ids[j] < 0 || w->prompts[i].ids.ids[j] >= VOCAB)
                fuzz_stop("an id out of range");
    if (w->n < 1 || w->n * w->n_prompts > DTI_MOST_CHOICES) fuzz_stop("n");
    if (w->o.n_stop_strings > DTI_MOST_STOPS || w->o.n_sequence_bias > DTI_MOST_BIASES)
        fuzz_stop("lists");
    if (!(w->o.temperature >= 0 && w->o.temperature <= 2) || !(w->o.top_p > 0 && w->o.top_p <= 1))
        fuzz_stop("numbers");
    if (w->n_top > DTI_MOST_TOP || w->max_tokens < -1 || w->max_tokens == 0) fuzz_stop("counts");
    if (w->variables != NULL) {
        json_t *v = json_loads(w->variables, 0, NULL);
        if (!json_is_array(json_object_get(v, "messages"))) fuzz_stop("no messages");
        json_decref(v);
    }
}

static void try_body(unsigned api, const char *body, size_t n)
{
    dti_wish w = { .o = DT_GENERATE_OPTIONS_INIT, .api = api, .vocab = VOCAB };
    json_t *tree = dti_wish_parse(&w, body, n);
    const bool well = tree != NULL && dti_wish_read_tree(&w, tree);

    json_decref(tree);
    if (well && (api == DTI_API_TEXT || api == DTI_API_CHAT)) check_wish(&w);
    if (!well && (w.message[0] == '\0' || w.status != 400)) fuzz_stop("refused without a word");
    if (!well && dti_utf8_valid(w.param, strlen(w.param)) != strlen(w.param))
        fuzz_stop("a name that is not UTF-8");
    dti_wish_free(&w);
}

/* Lines of a head, the first of which is a method and a path. */
static void try_head(char *text)
{
    static const char *const known[] = { "secret" };
    char *keys[] = { (char *)(uintptr_t)known[0] }, host[] = "127.0.0.1";
    dt_server server = { .options = DT_SERVER_OPTIONS_INIT, .host = host, .keys = keys };
    dti_exchange x = { .server = &server };
    char *rest = text, *line = strsep(&rest, "\n"), *path = strchr(line, ' ');

    server.options.keys = known;
    server.options.n_keys = 1;
    if (path != NULL) *path++ = '\0';
    x.head.method = line;
    (void)snprintf(x.head.path, sizeof x.head.path, "%s", path != NULL ? path : "");
    while ((line = strsep(&rest, "\n")) != NULL) {
        char *value = strchr(line, ':');
        if (value != NULL) *value++ = '\0';
        while (value != NULL && *value == ' ') value++;
        dti_head_add(&x.head, line, value);
    }
    if (dti_guard(&x)) {
        if (x.head.n_lengths + x.head.n_encodings > 1 || x.head.n_hosts != 1) fuzz_stop("frames");
        if (strcmp(x.head.path, "/v1/models") == 0 && strcmp(x.head.key, "secret") != 0)
            fuzz_stop("a key");
    } else if (x.status < 400 || x.out.n == 0 || x.out.n > 1024) {
        fuzz_stop("refused without a word");
    }
    dti_buffer_free(&x.out);
}

static void try_calls(const char *text, size_t n)
{
    dti_http_choice c = { .tools = true, .ended = true, .finish = "stop" };
    const size_t begin = dti_tools_begin(text, n);

    if (begin > n) fuzz_stop("calls begin behind the end");
    dti_buffer_add(&c.text, text, n);
    if (dti_tools_take(&c) != DT_OK || c.text.n > n) fuzz_stop("calls");
    if ((c.n_calls > 0) != (c.calls.n > 0)) fuzz_stop("calls without a text");
    dti_choice_free(&c);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const unsigned apis[] = { DTI_API_TEXT, DTI_API_CHAT, DTI_API_TOKENIZE,
                                     DTI_API_DETOKENIZE };
    char *text;

    if (size == 0 || size > MOST_BYTES) return 0;
    text = calloc(size, 1);
    if (text == NULL) return 0;
    memcpy(text, data + 1, size - 1);
    if (data[0] == 'h')
        try_head(text);
    else if (data[0] == 't')
        try_calls(text, size - 1);
    else
        try_body(apis[data[0] % 4], text, size - 1);
    free(text);
    return 0;
}

#ifndef DT_LIBFUZZER

/* '0' % 4 is 0: completions; '1' chat; '2' tokenize; '3' detokenize. */
static const fuzz_seed seeds[] = {
    { "0{\"model\":\"m\",\"prompt\":\"a\\u00e4\",\"max_tokens\":5,\"temperature\":0.5,\"top_p\":0."
      "9,"
      "\"n\":2,\"stop\":[\"x\",\"yz\"],\"seed\":7,\"logprobs\":3,\"stream\":true,\"stream_"
      "options\":{"
      "\"include_usage\":true},\"logit_bias\":{\"5\":-100,\"17\":0.5}}",
      0 },
    { "0{\"prompt\":[[1,2,3],\"b\",[999]],\"echo\":false,\"presence_penalty\":-2,\"user\":\"u\","
      "\"frequency_penalty\":1.5,\"stop_token_ids\":[3],\"min_tokens\":1,\"top_k\":-1,\"min_p\":0."
      "1}",
      0 },
    { "1{\"messages\":[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\",\"content\":[{"
      "\"type\":\"text\",\"text\":\"a\"},{\"type\":\"text\",\"text\":\"b\"}]},{\"role\":"
      "\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"c\",\"type\":\"function\","
      "\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"a\\\":1}\"}}]},{\"role\":\"tool\","
      "\"tool_call_id\":\"c\",\"content\":\"5\"}],\"tools\":[{\"type\":\"function\",\"function\":{"
      "\"name\":\"f\",\"parameters\":{\"type\":\"object\"}}}],\"tool_choice\":\"auto\"}",
      0 },
    { "1{\"messages\":[{\"role\":\"developer\",\"content\":\"s\"}],\"logprobs\":true,"
      "\"top_logprobs\":2,\"max_completion_tokens\":9,\"chat_template_kwargs\":{\"thinking\":false}"
      ","
      "\"response_format\":{\"type\":\"text\"},\"add_generation_prompt\":false}",
      0 },
    { "2{\"content\":\"a b\",\"add_special\":true,\"with_pieces\":true}", 0 },
    { "3{\"tokens\":[1,2,999]}", 0 },
    { "hPOST /v1/completions\nHost: localhost:80\nContent-Length: 5\nAuthorization: Bearer secret",
      0 },
    { "hPOST /tokenize\nHost: [::1]:80\nTransfer-Encoding: chunked\nX-Api-Key: secret\nOrigin: "
      "http://[::1]:80",
      0 },
    { "hGET /v1/models\nHost: 127.0.0.1\nAuthorization: Bearer secret", 0 },
    { "tHm.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": [1, \"b\"]}}\n</tool_call>\n"
      "<tool_call>{\"name\":\"g\",\"arguments\":\"{}\"}",
      0 },
    { "t {\"name\":\"f\",\"parameters\":{}}; {\"name\":\"g\",\"arguments\":{\"x\":1}}", 0 },
};
static const char *const words[] = {
    "null",
    "true",
    "{",
    "}",
    "[",
    "]",
    "[[",
    "\"",
    "\\u0000",
    "\\ud800",
    "1e400",
    "-1",
    "9223372036854775808",
    "0",
    "1.5",
    "999",
    "1000",
    ",",
    ":",
    "\"prompt\":",
    "\"messages\":",
    "\"n\":",
    "\"stop\":",
    "\"logit_bias\":{",
    "\"content\":",
    "\"role\":\"user\"",
    "\"tools\":",
    "\"tool_calls\":[",
    "\"arguments\":",
    "\"stream\":",
    "\"echo\":true",
    "\"model\":",
    "\xff",
    "<tool_call>",
    "</tool_call>",
    "{\"name\":\"f\",\"arguments\":{}}",
    ";",
    "\n",
    "\nContent-Length: ",
    "\nTransfer-Encoding: chunked",
    "\nHost: localhost",
    "\nOrigin: null",
    "\nAuthorization: Bearer ",
    "secret",
    "localhost",
    "@",
    "[::1]",
    "POST ",
    "GET /health",
    "/",
};
static const fuzz_table table = { "fuzz_http",     20000, MOST_BYTES,      seeds,
                                  DT_COUNT(seeds), words, DT_COUNT(words), NULL };

int main(int argc, char **argv)
{
    return fuzz_main(&table, argc, argv);
}

#endif
