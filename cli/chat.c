/* SPDX-License-Identifier: Apache-2.0
 *
 * dtensor chat: a conversation by the checkpoint's template. Rank 0 reads a line, makes a prompt of
 * the whole conversation and hands it to the others, who wait as long as the user thinks. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/prompt.h"
#include "cli/report.h"
#include "cli/session.h"
#include "cli/wishes.h"
#include "models/model.h"

enum { READ_BYTES = 1 << 12, MAX_LINE_BYTES = 1 << 24, POLL_MS = 100 };

/* A signal handler can leave its word nowhere else. */
static volatile sig_atomic_t interrupted;

static void on_interrupt(int number)
{
    (void)number;
    interrupted = 1;
}

/* The conversation; rank 0's. */
typedef struct conversation {
    dt_chat_message *turns; /* texts are owned, roles are not */
    size_t n, room;
    char *input; /* read and not yet used */
    size_t n_input, room_input;
    bool ended; /* there is no more input */
    char *answer;
    size_t n_answer, room_answer;
    dt_tokenizer_stream *stream;
} conversation;

typedef struct chat {
    const cli_session *session;
    const dt_generate_options *options;
    dt_tokenizer *tokenizer;
    dt_chat *template;
    conversation talk;
} chat;

/* --- input ------------------------------------------------------------------------------------ */

static dt_status add_turn(conversation *t, const char *role, const char *text, size_t n)
{
    char *copy;

    DT_TRY(dti_grow((void **)&t->turns, &t->room, t->n + 1, sizeof *t->turns));
    DT_TRY(dti_alloc(n + 1, (void **)&copy));
    if (n > 0) memcpy(copy, text, n);
    t->turns[t->n++] = (dt_chat_message){ role, copy };
    return DT_OK;
}

static void drop_turn(conversation *t)
{
    dti_free((void *)(uintptr_t)t->turns[--t->n].content);
}

/* Waits for more input, its end, or Ctrl-C. */
static dt_status read_more(conversation *t)
{
    struct pollfd in = { .fd = STDIN_FILENO, .events = POLLIN };
    ssize_t got;

    if (poll(&in, 1, POLL_MS) <= 0) return DT_OK; /* looks at Ctrl-C now and then */
    DT_CHECK(t->n_input < MAX_LINE_BYTES, DT_ERR_IO,
             "standard input: a line has more than %d bytes", MAX_LINE_BYTES);
    DT_TRY(dti_grow((void **)&t->input, &t->room_input, t->n_input + READ_BYTES, 1));
    got = read(STDIN_FILENO, t->input + t->n_input, READ_BYTES);
    DT_CHECK(got >= 0 || errno == EINTR, DT_ERR_IO, "standard input: %s", strerror(errno));
    if (got == 0) t->ended = true;
    if (got > 0) t->n_input += (size_t)got;
    return DT_OK;
}

/* The next line becomes a turn of the user; *got is false at the end. Empty lines are no turns. */
static dt_status read_turn(conversation *t, bool *got)
{
    const bool asks = isatty(STDIN_FILENO) && isatty(STDERR_FILENO);

    if (asks) (void)fputs("> ", stderr);
    for (*got = false; !*got;) {
        const char *newline = t->n_input > 0 ? memchr(t->input, '\n', t->n_input) : NULL;
        size_t n = newline != NULL ? (size_t)(newline - t->input) : t->n_input, used;

        if (interrupted && asks) { /* it leaves the line, as in a shell */
            interrupted = 0;
            t->n_input = 0;
            (void)fputs("\n(Ctrl-D ends)\n> ", stderr);
            continue;
        }
        if (interrupted) return DT_OK; /* nobody is asked, so it ends the program */
        if (newline == NULL && !t->ended) {
            DT_TRY(read_more(t));
            continue;
        }
        if (newline == NULL && n == 0) return DT_OK;
        used = n + (newline != NULL);
        if (n > 0 && t->input[n - 1] == '\r') n--;
        DT_CHECK(memchr(t->input, '\0', n) == NULL, DT_ERR_ARG,
                 "standard input: a line holds a zero byte");
        if (n > 0) DT_TRY(add_turn(t, "user", t->input, n));
        *got = n > 0;
        t->n_input -= used;
        memmove(t->input, t->input + used, t->n_input);
    }
    return DT_OK;
}

/* --- a turn, on rank 0 ------------------------------------------------------------------------ */

/* The conversation as ids, at most `most` of them. */
static dt_status make_prompt(const chat *c, int32_t *ids, int64_t most, int64_t *n)
{
    size_t n_bytes, n_ids;
    int32_t *encoded = NULL;
    char *text;
    dt_status st = DT_OK;

    DT_TRY(dt_chat_render(c->template, c->talk.turns, c->talk.n, NULL, &text, &n_bytes));
    if (c->session->args->show_prompt) (void)fprintf(stderr, "%s\n", text);
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

static dt_status put(conversation *t, const char *text, size_t n)
{
    DT_TRY(dti_grow((void **)&t->answer, &t->room_answer, t->n_answer + n + 1, 1));
    if (n > 0) memcpy(t->answer + t->n_answer, text, n);
    t->n_answer += n;
    (void)fwrite(text, 1, n, stdout);
    DT_TRY(cli_flush());
    return DT_OK;
}

static dt_status put_token(conversation *t, int32_t id)
{
    const char *text;
    size_t n;

    DT_TRY(dt_tokenizer_stream_push(t->stream, id, &text, &n));
    DT_TRY(put(t, text, n));
    return DT_OK;
}

static dt_status end_answer(conversation *t)
{
    const char *text;
    size_t n;

    DT_TRY(dt_tokenizer_stream_flush(t->stream, &text, &n));
    DT_TRY(put(t, text, n));
    (void)fputc('\n', stdout);
    DT_TRY(cli_flush());
    DT_TRY(add_turn(t, "assistant", t->answer, t->n_answer));
    t->n_answer = 0;
    return DT_OK;
}

/* --- on the ranks ----------------------------------------------------------------------------- */

typedef struct listener {
    chat *c;
    dt_mesh *mesh;
    bool speaks;
    dt_status st;
} listener;

/* Rank 0 knows of Ctrl-C; that the others stop at the same token it has to tell them. */
static bool on_token(void *arg, int64_t n, int32_t id)
{
    listener *l = arg;
    char stop = 0;
    int64_t bytes = 1;

    (void)n;
    if (l->speaks) {
        l->st = put_token(&l->c->talk, id);
        stop = interrupted != 0;
        if (l->st != DT_OK) return false; /* this rank fails, which ends the others */
    }
    l->st = dt_mesh_broadcast_work(l->mesh, 0, &stop, 1, &bytes);
    return l->st == DT_OK && stop == 0;
}

static dt_status answer(chat *c, dt_model *model, const int32_t *ids, int64_t n, bool speaks)
{
    listener l = { c, dt_model_mesh(model), speaks, DT_OK };
    const int64_t room = c->session->info.max_positions - n;
    dt_generate_options options = *c->options;
    dt_state *state = NULL;
    dt_status st = DT_OK;
    int64_t n_new;

    if (options.max_new_tokens > room) options.max_new_tokens = room;
    options.on_token = on_token;
    options.arg = &l;
    interrupted = 0;
    DT_TRY(dt_state_create(model, 1, n + options.max_new_tokens, &state));
    DT_TRY_TO(done, st, dt_generate(model, state, ids, n, &options, NULL, &n_new));
    DT_TRY_TO(done, st, l.st);
    if (speaks) DT_TRY_TO(done, st, end_answer(&c->talk));
done:
    if (speaks) interrupted = 0;
    dt_state_release(&state);
    return st;
}

/* Rank 0: the next prompt, none at the end. What cannot be asked is said, and costs that turn. */
static dt_status next_prompt(chat *c, int32_t *ids, int64_t *n)
{
    for (;;) {
        dt_status st;
        bool got;

        *n = 0;
        DT_TRY(read_turn(&c->talk, &got));
        if (!got) return DT_OK;
        st = make_prompt(c, ids, c->session->info.max_positions, n);
        if (st == DT_OK) return DT_OK;
        if (!isatty(STDIN_FILENO) || st == DT_ERR_MEMORY) return st;
        (void)cli_report(c->session->console, st);
        drop_turn(&c->talk);
    }
}

static dt_status listen_for_interrupts(void)
{
    struct sigaction action = { .sa_handler = on_interrupt };

    DT_CHECK(sigaction(SIGINT, &action, NULL) == 0, DT_ERR_INTERNAL, "sigaction: %s",
             strerror(errno));
    return DT_OK;
}

static dt_status chat_on_rank(void *arg, dt_model *model, bool speaks)
{
    chat *c = arg;
    const int64_t most = c->session->info.max_positions;
    dt_mesh *mesh = dt_model_mesh(model);
    dt_status st = DT_OK;
    int32_t *ids;

    if (speaks) DT_TRY(listen_for_interrupts()); /* until here Ctrl-C ended the program */
    DT_TRY(dti_alloc_array((size_t)most, sizeof *ids, (void **)&ids));
    for (;;) {
        int64_t n = 0, bytes;

        if (speaks) DT_TRY_TO(done, st, next_prompt(c, ids, &n));
        bytes = n * (int64_t)sizeof *ids;
        DT_TRY_TO(done, st,
                  dt_mesh_broadcast_work(mesh, 0, ids, most * (int64_t)sizeof *ids, &bytes));
        if (bytes == 0) break;
        n = bytes / (int64_t)sizeof *ids;
        DT_TRY_TO(done, st, answer(c, model, ids, n, speaks));
    }
done:
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

    DT_TRY(cli_wishes_read(s, &prompts, wishes));
    if (s->args->max_new_tokens == 0) o->max_new_tokens = s->info.max_positions;
    o->num_beams = o->num_return_sequences = 1; /* one answer, which is shown as it comes */
    c->options = o;
    DT_TRY(dt_tokenizer_stream_create(c->tokenizer, true, &c->talk.stream));
    if (s->args->system != NULL)
        DT_TRY(add_turn(&c->talk, "system", s->args->system, strlen(s->args->system)));
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
    DT_TRY_TO(done, st, dt_model_inspect_generation(args->folder, &s.info));
    DT_TRY_TO(done, st, dt_chat_open(args->folder, &c.template));
    DT_TRY_TO(done, st, dt_tokenizer_open(args->folder, &c.tokenizer));
    DT_TRY_TO(done, st, run_session(&s, &c, &wishes));
done:
    while (c.talk.n > 0) drop_turn(&c.talk);
    dti_free(c.talk.turns);
    dti_free(c.talk.input);
    dti_free(c.talk.answer);
    dt_tokenizer_stream_release(&c.talk.stream);
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
        "process, which is where the conversation is.",
    .run = run,
};
