/* SPDX-License-Identifier: Apache-2.0
 *
 * dtensor chat: a conversation by the checkpoint's template. Rank 0 reads a line, makes a prompt of
 * the whole conversation and hands it to the others, who wait as long as the user thinks. The model
 * reads what it has not read before. */
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/conversation.h"
#include "cli/interrupts.h"
#include "cli/print_report.h"
#include "cli/prompt.h"
#include "cli/session.h"
#include "cli/texts.h"
#include "cli/wishes.h"

/* Tokens: what caches begin with beside the first prompt, and of a prompt that are read at once. */
enum { FEW_TURNS = 512, CHUNK = 512 };

/* The answer that is being given; rank 0's. */
typedef struct cli_answer {
    dt_tokenizer_stream *stream;
    char *text;
    size_t n_text, room;
    int32_t *tokens; /* [options.max_new_tokens] */
    int64_t n_tokens, n_prompt;
    int64_t most;   /* that the context had room for, or that were asked for */
    int64_t n_kept; /* of the prompt's tokens, that had been read before */
    bool stopped;   /* by Ctrl-C */
    cli_progress progress;
    int64_t begin_ns, first_ns, end_ns;
} cli_answer;

typedef struct chat {
    const cli_session *session;
    const dt_generate_options *options;
    dt_tokenizer *tokenizer;
    dt_chat *template;
    cli_conversation talk;
    cli_answer answer;
} chat;

/* --- a turn, on rank 0 ------------------------------------------------------------------------ */

/* The conversation as ids, at most `most` of them. */
static dt_status make_prompt(const chat *c, int32_t *ids, int64_t most, int64_t *n)
{
    size_t n_bytes, n_ids;
    int32_t *encoded = NULL;
    char *text;
    dt_status st = DT_OK;

    DT_TRY(dt_chat_render(c->template, c->talk.turns, c->talk.n, NULL, &text, &n_bytes));
    if (c->session->args->show_prompt) {
        cli_print_text(stderr, text, n_bytes);
        (void)fputc('\n', stderr);
    }
    DT_TRY_TO(done, st,
              dt_tokenizer_encode(c->tokenizer, text, n_bytes, DT_ENCODE_PARSE_SPECIAL, &encoded,
                                  &n_ids));
    DT_CHECK_TO(done, st, n_ids > 0, DT_ERR_ARG, "the template makes an empty prompt");
    DT_CHECK_TO(done, st, (int64_t)n_ids < most, DT_ERR_ARG,
                "the conversation has %zu tokens and fills the model's context of %lld; begin "
                "another one",
                n_ids, (long long)most);
    for (size_t i = 0; i < n_ids; i++)
        DT_CHECK_TO(done, st, encoded[i] < c->session->info.vocab_size, DT_ERR_FORMAT,
                    "the tokenizer made token id %d, but the model's vocabulary is 0..%lld",
                    (int)encoded[i], (long long)c->session->info.vocab_size - 1);
    memcpy(ids, encoded, n_ids * sizeof *ids);
    *n = (int64_t)n_ids;
done:
    dt_tokenizer_free(encoded);
    dt_chat_free(text);
    return st;
}

/* With --json the answer is printed when it is whole. */
static dt_status put(chat *c, const char *text, size_t n)
{
    cli_answer *a = &c->answer;

    DT_TRY(dti_grow((void **)&a->text, &a->room, a->n_text + n + 1, 1));
    if (n > 0) memcpy(a->text + a->n_text, text, n);
    a->n_text += n;
    if (c->session->args->json) return DT_OK;
    cli_print_text(stdout, text, n);
    DT_TRY(cli_flush());
    return DT_OK;
}

static dt_status put_token(chat *c, int32_t id)
{
    const char *text;
    size_t n;

    DT_TRY(dt_tokenizer_stream_push(c->answer.stream, id, &text, &n));
    DT_TRY(put(c, text, n));
    return DT_OK;
}

static dt_status print_json(const chat *c)
{
    const cli_answer *a = &c->answer;
    dt_generate_options o = *c->options;
    json_t *object;
    dt_end end;

    o.max_new_tokens = a->most;
    end = cli_end_of(&o, &c->session->info, a->tokens, a->n_tokens);
    object = json_pack(
        "{s:s, s:o, s:o, s:s, s:I, s:I, s:{s:f, s:f}}", "user",
        c->talk.turns[c->talk.n - 1].content, "text", json_stringn(a->text, a->n_text), "tokens",
        cli_json_ids(a->tokens, a->n_tokens), "stop", a->stopped ? "interrupt" : cli_end_name(end),
        "prompt_tokens", (json_int_t)a->n_prompt, "kept_tokens", (json_int_t)a->n_kept, "timing",
        "prompt_s", (double)(a->first_ns - a->begin_ns) * 1e-9, "generation_s",
        (double)(a->end_ns - a->first_ns) * 1e-9);
    DT_CHECK(object != NULL, DT_ERR_MEMORY, "the JSON result does not fit into memory");
    (void)json_dumpf(object, stdout, JSON_COMPACT | JSON_REAL_PRECISION(6));
    json_decref(object);
    return DT_OK;
}

static dt_status end_answer(chat *c)
{
    const char *text;
    size_t n;

    DT_TRY(dt_tokenizer_stream_flush(c->answer.stream, &text, &n));
    DT_TRY(put(c, text, n));
    if (c->session->args->json) DT_TRY(print_json(c));
    (void)fputc('\n', stdout);
    DT_TRY(cli_flush());
    if (c->answer.n_tokens == 0 && c->answer.stopped) { /* templates want turns to alternate */
        cli_turn_drop(&c->talk);
        if (!c->session->console->quiet)
            (void)fputs("(stopped before an answer: the question is forgotten)\n", stderr);
    } else {
        DT_TRY(cli_turn_add(&c->talk, "assistant", c->answer.text, c->answer.n_text));
    }
    c->answer.n_text = 0;
    return DT_OK;
}

/* --- on the ranks ----------------------------------------------------------------------------- */

typedef struct listener {
    chat *c;
    dt_mesh *mesh;
    bool speaks;
    bool stopped;          /* on every rank alike */
    int64_t n_done, n_all; /* layers of the prompt's chunks */
    dt_status st;
} listener;

/* Rank 0 knows of Ctrl-C; that the others stop at the same place it has to tell them. */
static bool goes_on(listener *l)
{
    char stop = l->speaks && cli_interrupted() != 0;
    int64_t bytes = 1;

    l->st = dt_mesh_broadcast_work(l->mesh, 0, &stop, 1, &bytes);
    l->stopped = stop != 0;
    if (l->speaks) l->c->answer.stopped = l->stopped;
    return l->st == DT_OK && !l->stopped;
}

/* Before each layer: reading a prompt may take minutes. */
static bool on_layer(void *arg)
{
    listener *l = arg;

    if (l->speaks) cli_progress_prompt(&l->c->answer.progress, l->n_done++, l->n_all);
    return goes_on(l);
}

static bool on_token(void *arg, int64_t n, int32_t id)
{
    listener *l = arg;

    if (l->speaks) {
        cli_answer *a = &l->c->answer;

        a->end_ns = cli_now_ns();
        if (n == 0) {
            a->first_ns = a->end_ns;
            cli_progress_end(&a->progress);
        }
        l->st = put_token(l->c, id);
        if (l->st != DT_OK) return false; /* this rank fails, which ends the others */
    }
    return goes_on(l);
}

/* One state for the whole conversation, whose caches grow with it. */
static dt_status make_state(dt_model *model, int64_t n, dt_state **state)
{
    if (*state != NULL) return DT_OK;
    DT_TRY(dt_state_create(model, 1, dt_model_info_of(model)->max_positions, state));
    dt_state_grow_from(*state, n + FEW_TURNS);
    return DT_OK;
}

/* Reads a prompt but for its last chunk, which is left to who wants the token behind it. What
 * a chunk that was broken off has left in the caches is behind the state's end, where nobody looks.
 */
static dt_status read_chunks(dt_model *model, dt_state *state, const int32_t **ids, int64_t *n)
{
    dt_status st = DT_OK;
    dt_tape *tape = NULL;

    if (*n <= CHUNK) return DT_OK;
    DT_TRY(dt_tape_create(dt_mesh_runtime(dt_model_mesh(model)), &tape));
    for (; *n > CHUNK; *ids += CHUNK, *n -= CHUNK) {
        dt_tape_reset(tape);
        (void)dt_model_forward(tape, model, state, *ids, CHUNK, DT_LOGITS_LAST);
        DT_TRY_TO(done, st, dt_tape_status(tape));
    }
done:
    dt_tape_release(&tape);
    return st;
}

static dt_status answer(chat *c, dt_model *model, dt_state **state, const int32_t *ids, int64_t n,
                        bool speaks)
{
    listener l = { .c = c, .mesh = dt_model_mesh(model), .speaks = speaks };
    const int64_t room = c->session->info.max_positions - n;
    dt_generate_options options = *c->options;
    int64_t n_new = 0, kept;
    dt_status st;

    if (options.max_new_tokens > room) options.max_new_tokens = room;
    options.on_token = on_token;
    options.arg = &l;
    DT_TRY(make_state(model, n, state));
    kept = dt_state_keep(*state, ids, n);
    l.n_all = (n - kept + CHUNK - 1) / CHUNK; /* a model in stages is asked before each pass */
    if (dt_model_n_stages(model) == 1) l.n_all *= c->session->info.n_layers;
    dt_state_set_go_on(*state, on_layer, &l);
    if (speaks) {
        c->answer.n_prompt = n;
        c->answer.most = options.max_new_tokens;
        c->answer.n_kept = kept;
        c->answer.begin_ns = c->answer.first_ns = c->answer.end_ns = cli_now_ns();
        c->answer.stopped = false;
    }
    ids += kept;
    n -= kept;
    st = read_chunks(model, *state, &ids, &n);
    if (st == DT_OK)
        st = dt_generate(model, *state, ids, n, &options, speaks ? c->answer.tokens : NULL, &n_new);
    dt_state_set_go_on(*state, NULL, NULL);
    DT_TRY(l.st);
    if (!l.stopped) DT_TRY(st); /* a prompt that was broken off is no mistake */
    if (!speaks) return DT_OK;
    cli_progress_end(&c->answer.progress);
    c->answer.n_tokens = n_new;
    DT_TRY(end_answer(c));
    cli_interrupt_forget();
    return DT_OK;
}

/* Rank 0: the next prompt, none at the end. What cannot be asked is said, and costs that turn. */
static dt_status next_prompt(chat *c, int32_t *ids, int64_t *n)
{
    const size_t n_turns = c->talk.n;

    for (;;) {
        bool got;
        dt_status st = cli_turn_read(&c->talk, &got);

        *n = 0;
        if (st == DT_OK && got) st = make_prompt(c, ids, c->session->info.max_positions, n);
        if (st == DT_OK) return DT_OK;
        if (!isatty(STDIN_FILENO) || st == DT_ERR_MEMORY || st == DT_ERR_IO) return st;
        (void)cli_report(c->session->console, st);
        while (c->talk.n > n_turns) cli_turn_drop(&c->talk);
    }
}

static dt_status chat_on_rank(void *arg, dt_model *model, bool speaks)
{
    chat *c = arg;
    const int64_t most = c->session->info.max_positions;
    dt_mesh *mesh = dt_model_mesh(model);
    dt_state *state = NULL;
    dt_status st = DT_OK;
    int32_t *ids;

    if (speaks) DT_TRY(cli_interrupts_catch(false)); /* until here Ctrl-C ended the program */
    DT_TRY(dti_alloc_array((size_t)most, sizeof *ids, (void **)&ids));
    for (;;) {
        int64_t n = 0, bytes;

        if (speaks) DT_TRY_TO(done, st, next_prompt(c, ids, &n));
        bytes = n * (int64_t)sizeof *ids;
        DT_TRY_TO(done, st,
                  dt_mesh_broadcast_work(mesh, 0, ids, most * (int64_t)sizeof *ids, &bytes));
        if (bytes == 0) break;
        n = bytes / (int64_t)sizeof *ids;
        DT_TRY_TO(done, st, answer(c, model, &state, ids, n, speaks));
    }
done:
    dt_state_release(&state);
    dti_free(ids);
    return st;
}

/* --- before ----------------------------------------------------------------------------------- */

static dt_status run_session(cli_session *s, chat *c, cli_wishes *wishes)
{
    static const int32_t one = 0;
    static const dt_ids least = { &one, 1 };
    const cli_prompts prompts = { c->tokenizer, (dt_ids *)(uintptr_t)&least, 1 };
    dt_generate_options *o = &wishes->options;

    wishes->talks = true;
    DT_TRY(cli_wishes_read(s, &prompts, wishes));
    c->options = o;
    DT_TRY(dt_tokenizer_stream_create(c->tokenizer, true, &c->answer.stream));
    DT_TRY(dti_alloc_array((size_t)o->max_new_tokens, sizeof *c->answer.tokens,
                           (void **)&c->answer.tokens));
    if (s->args->system != NULL)
        DT_TRY(cli_turn_add(&c->talk, "system", s->args->system, strlen(s->args->system)));
    DT_TRY(cli_session_run(s, chat_on_rank, c));
    return DT_OK;
}

static dt_status run(const cli_args *args, const cli_env *env, const cli_console *console)
{
    cli_wishes wishes = { 0 };
    chat c = { 0 };
    dt_status st = DT_OK;
    cli_session s;

    DT_TRY_TO(done, st, cli_session_open(args, env, console, &s));
    c.session = &s;
    c.answer.progress.console = console;
    DT_TRY_TO(done, st, dt_model_inspect_generation(args->folder, &s.info));
    DT_TRY_TO(done, st, dt_chat_open(args->folder, &c.template));
    DT_TRY_TO(done, st, dt_tokenizer_open(args->folder, &c.tokenizer));
    DT_TRY_TO(done, st, run_session(&s, &c, &wishes));
done:
    cli_conversation_free(&c.talk);
    dti_free(c.answer.text);
    dti_free(c.answer.tokens);
    dt_tokenizer_stream_release(&c.answer.stream);
    dt_tokenizer_release(&c.tokenizer);
    dt_chat_release(&c.template);
    cli_wishes_free(&wishes);
    cli_session_close(&s);
    return st;
}

const cli_command cli_chat = {
    .name = "chat",
    .bit = CLI_CHAT,
    .usage = "--model DIR [OPTION]...",
    .runs = true,
    .summary = "talks with a model, by its chat template",
    .details =
        "Each line of standard input is a turn of the user; the answer streams to standard "
        "output.\n"
        "The conversation is put into the form that the checkpoint's chat template gives it. "
        "Ctrl-C\n"
        "stops an answer, Ctrl-D ends the program. Launchers hand standard input to the first\n"
        "process, which is where the conversation is. With --json each answer is one line, an "
        "object.",
    .run = run,
};
