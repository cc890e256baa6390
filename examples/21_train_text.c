/* SPDX-License-Identifier: Apache-2.0
 *
 * A training loop: a Llama learns a text, on two ranks that have half of each batch.
 *
 *     21_train_text [FOLDER TEXT STEPS [OUTPUT]]
 *
 * FOLDER has a config.json and a tokenizer; weights begin anew, and OUTPUT becomes a Hugging Face
 * folder. The last 4 % of the text are held out. What the model writes is printed before and after.
 * examples/checkpoint is made by this program; `make train` runs it for a minute. Without arguments
 * it makes three steps of examples/checkpoint. */
#include <dtensor.h>
#include <dtensor/optimizers.h>
#include <dtensor/tokenizer.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 16, LENGTH = 256, HELD_OUT_ROWS = 8 };

typedef struct text {
    int32_t *ids;
    size_t n;
} text;

typedef struct job {
    const char *folder, *output; /* output NULL: none */
    int64_t steps;
    dt_tokenizer *tokenizer;
    text learned, held_out;
    int32_t begin;             /* the token that a text begins with */
    int32_t joined, parts[2];  /* ":\n" as one token, and as two */
    int64_t *starts, n_starts; /* of speeches, in `learned` */
} job;

/* --- rows ------------------------------------------------------------------------------------- */

/* Number `i` of a sequence that every rank has alike (splitmix64). */
static uint64_t draw(uint64_t i)
{
    uint64_t x = i * 0x9E3779B97F4A7C15u + 0x632BE59BD9B4E019u;

    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

/* LENGTH + 1 tokens: the beginning, then the text from `start` on. `splits` of 8 times a ":\n" is
 * written as two tokens, since a prompt "ROMEO:" ends in the first of them. */
static void take_row(const job *j, const text *from, int64_t start, uint64_t key, int splits,
                     int32_t *row)
{
    int n = 0;

    row[n++] = j->begin;
    for (size_t i = (size_t)start; n <= LENGTH; i++) {
        const int32_t id = i < from->n ? from->ids[i] : j->begin;
        const bool split = id == j->joined && (int)(draw(key + i) % 8) < splits;
        if (!split) row[n++] = id;
        for (int k = 0; split && k < 2 && n <= LENGTH; k++) row[n++] = j->parts[k];
    }
}

/* Ids and targets of `rows` rows of a step; or of the text's windows one after the other. */
static void take_rows(const job *j, const text *from, int64_t first, int rows, int32_t *ids,
                      int32_t *targets)
{
    for (int r = 0; r < rows; r++) {
        const uint64_t key = draw((uint64_t)(first + r));
        int32_t row[LENGTH + 1];
        if (from == &j->learned)
            take_row(j, from, j->starts[key % (uint64_t)j->n_starts], key, 2, row);
        else
            take_row(j, from, (first + r) * (LENGTH - 1), 0, 0, row);
        memcpy(ids + (size_t)r * LENGTH, row, LENGTH * sizeof *ids);
        memcpy(targets + (size_t)r * LENGTH, row + 1, LENGTH * sizeof *ids);
        if (from != &j->learned) targets[(size_t)r * LENGTH + LENGTH - 1] = -100;
    }
}

/* --- training --------------------------------------------------------------------------------- */

typedef struct trainer {
    const job *j;
    dt_model *model;
    dt_optimizer *optimizer;
    dt_tape *tape;
} trainer;

static dt_tensor *mean_loss(const trainer *r, const text *from, int64_t first, int rows)
{
    int32_t ids[ROWS * LENGTH], targets[ROWS * LENGTH];
    dt_tensor *x, *y;

    take_rows(r->j, from, first, rows, ids, targets);
    x = dt_model_ids(r->tape, r->model, ids, rows, LENGTH);
    y = dt_model_ids(r->tape, r->model, targets, rows, LENGTH);
    return dt_model_loss(r->tape, r->model, x, y, NULL);
}

static dt_status step(const trainer *r, int64_t number, float *loss, dt_step_report *report)
{
    const dt_schedule schedule = {
        .kind = DT_SCHEDULE_COSINE, .lr = 3e-3, .min_lr = 0.05, .warmup = 30, .steps = r->j->steps
    };
    dt_tensor *mean;

    dt_tape_record(r->tape, dt_optimizer_gradients(r->optimizer));
    mean = mean_loss(r, &r->j->learned, number * ROWS, ROWS);
    dt_optimizer_backward(r->optimizer, r->tape, mean, true, NULL);
    DT_TRY(dt_tape_status(r->tape));
    DT_TRY(dt_tensor_read(mean, loss, sizeof *loss));
    dt_tape_reset(r->tape);
    return dt_optimizer_step(r->optimizer, dt_schedule_at(&schedule, number), report);
}

/* The mean over whole batches of what was held out, LENGTH - 1 tokens of each row. */
static dt_status validate(const trainer *r, int64_t most, double *mean)
{
    int64_t n = (int64_t)r->j->held_out.n / (LENGTH - 1) / HELD_OUT_ROWS;
    float loss;

    if (n > most) n = most;
    *mean = 0.0;
    for (int64_t i = 0; i < n; i++) {
        dt_tensor *x = mean_loss(r, &r->j->held_out, i * HELD_OUT_ROWS, HELD_OUT_ROWS);
        DT_TRY(dt_tape_status(r->tape));
        DT_TRY(dt_tensor_read(x, &loss, sizeof loss));
        dt_tape_reset(r->tape);
        *mean += (double)loss / (double)n;
    }
    return DT_OK;
}

enum { WRITTEN = 60 };

static bool note_token(void *arg, int64_t n, int32_t id)
{
    ((int32_t *)arg)[n] = id;
    return true;
}

/* Prints what the model makes of a prompt: the best token each time. */
static dt_status write_text(const trainer *r, bool speaks)
{
    static const char prompt[] = "ROMEO:";
    int32_t written[WRITTEN] = { 0 }, *ids = NULL;
    dt_generate_options options = DT_GENERATE_OPTIONS_INIT;
    dt_state *state = NULL;
    char *said = NULL;
    size_t n, bytes;
    dt_status st;

    options.max_new_tokens = WRITTEN;
    options.do_sample = false;
    options.ignore_eos = true;
    options.on_token = note_token;
    options.arg = written;
    DT_TRY_TO(done, st,
              dt_tokenizer_encode(r->j->tokenizer, prompt, strlen(prompt), DT_ENCODE_ADD_SPECIAL,
                                  &ids, &n));
    DT_TRY_TO(done, st, dt_state_create(r->model, 1, (int64_t)n + WRITTEN, &state));
    DT_TRY_TO(done, st, dt_generate(r->model, state, ids, (int64_t)n, &options, NULL, NULL));
    DT_TRY_TO(done, st,
              dt_tokenizer_decode(r->j->tokenizer, written, WRITTEN, true, &said, &bytes));
    if (speaks) printf("--- %s%.*s\n---\n", prompt, (int)bytes, said);
done:
    dt_tokenizer_free(said);
    dt_state_release(&state);
    dt_tokenizer_free(ids);
    return st;
}

/* A line of the curve. */
static void print_step(int64_t number, float loss, double norm)
{
    printf("step %4lld  loss %.4f  norm %.3f  |", (long long)number, (double)loss, norm);
    for (float at = 0.0f; at < loss; at += 0.2f) printf("#");
    printf("\n");
    fflush(stdout);
}

static dt_status train(const trainer *r, bool speaks)
{
    dt_step_report report;
    double held_out;
    float loss;

    DT_TRY(write_text(r, speaks));
    for (int64_t k = 0; k < r->j->steps; k++) {
        DT_TRY(step(r, k, &loss, &report));
        if (speaks && (k % 10 == 0 || k + 1 == r->j->steps)) print_step(k + 1, loss, report.norm);
        if (k % 100 != 99 && k + 1 != r->j->steps) continue;
        DT_TRY(validate(r, r->j->steps > 3 ? 100 : 1, &held_out));
        if (speaks) printf("step %4lld  held out %.4f\n", (long long)k + 1, held_out);
    }
    return write_text(r, speaks);
}

static dt_status rank_main(dt_runtime *rt, void *arg)
{
    trainer r = { .j = arg };
    dt_load_options load = DT_LOAD_OPTIONS_INIT;
    dt_optimizer_options how = DT_OPTIMIZER_OPTIONS_INIT;
    dt_mesh *mesh = NULL;
    dt_status st;

    load.keep_dtype = false;
    load.dtype = DT_BF16; /* the optimizer has f32 of them */
    how.zero = 1;
    DT_TRY_TO(done, st, dt_mesh_create(rt, "dp=2", &mesh));
    DT_TRY_TO(done, st, dt_model_create_random(mesh, r.j->folder, &load, 1, &r.model));
    DT_TRY_TO(done, st, dt_tape_create(rt, &r.tape));
    DT_TRY_TO(done, st, dt_optimizer_create(dt_model_layers(r.model), &how, &r.optimizer));
    DT_TRY_TO(done, st, train(&r, dt_runtime_rank(rt) == 0));
    if (r.j->output != NULL) st = dt_model_save(r.model, r.j->output, NULL);
done:
    dt_tape_release(&r.tape);
    dt_optimizer_release(&r.optimizer);
    dt_model_release(&r.model);
    dt_mesh_release(&mesh);
    return st;
}

/* --- the text --------------------------------------------------------------------------------- */

static char *read_file(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    char *bytes = NULL;
    long end = -1;

    if (f != NULL && fseek(f, 0, SEEK_END) == 0) end = ftell(f);
    if (end > 0 && fseek(f, 0, SEEK_SET) == 0) bytes = malloc((size_t)end + 1);
    *n = bytes != NULL ? fread(bytes, 1, (size_t)end, f) : 0;
    if (bytes != NULL) bytes[*n] = '\0';
    if (f != NULL) (void)fclose(f);
    return bytes;
}

static dt_status encode(const dt_tokenizer *tok, const char *bytes, size_t n, text *out)
{
    return dt_tokenizer_encode(tok, bytes, n, 0, &out->ids, &out->n);
}

/* Where speeches begin: behind tokens that end in an empty line. */
static dt_status find_starts(job *j, const dt_tokenizer *tok)
{
    j->starts = malloc((j->learned.n + 1) * sizeof *j->starts);
    if (j->starts == NULL) return DT_ERR_MEMORY;
    for (size_t i = 0; i + LENGTH + 1 < j->learned.n; i++) {
        char *piece = NULL;
        size_t n = 0;
        if (i > 0) DT_TRY(dt_tokenizer_decode(tok, &j->learned.ids[i - 1], 1, false, &piece, &n));
        if (i == 0 || (n >= 2 && memcmp(piece + n - 2, "\n\n", 2) == 0))
            j->starts[j->n_starts++] = (int64_t)i;
        dt_tokenizer_free(piece);
    }
    return DT_OK;
}

static dt_status prepare(job *j, const char *path)
{
    text some = { 0 };
    dt_status st;
    size_t n, cut;
    char *bytes = read_file(path, &n);

    if (bytes == NULL) return dt_fail(DT_ERR_IO, "%s: cannot be read", path);
    for (cut = n / 100 * 96; cut > 0 && memcmp(bytes + cut, "\n\n", 2) != 0;) cut--;
    DT_TRY_TO(done, st, dt_tokenizer_open(j->folder, &j->tokenizer));
    DT_TRY_TO(done, st, encode(j->tokenizer, bytes, cut + 2, &j->learned));
    DT_TRY_TO(done, st, encode(j->tokenizer, bytes + cut + 2, n - cut - 2, &j->held_out));
    DT_TRY_TO(done, st, encode(j->tokenizer, "a:\n", 3, &some));
    j->joined = some.ids[some.n - 1];
    dt_tokenizer_free(some.ids);
    DT_TRY_TO(done, st, encode(j->tokenizer, ":", 1, &some));
    j->parts[0] = some.ids[0];
    dt_tokenizer_free(some.ids);
    DT_TRY_TO(done, st, encode(j->tokenizer, "\n", 1, &some));
    j->parts[1] = some.ids[0];
    j->begin = dt_tokenizer_id(j->tokenizer, "<|begin_of_text|>", 17);
    st = find_starts(j, j->tokenizer);
done:
    dt_tokenizer_free(some.ids);
    free(bytes);
    return st;
}

int main(int argc, char **argv)
{
    job j = { .folder = argc > 1 ? argv[1] : "examples/checkpoint",
              .steps = argc > 3 ? strtoll(argv[3], NULL, 10) : 3,
              .output = argc > 4 ? argv[4] : NULL };
    dt_run_options options = DT_RUN_OPTIONS_INIT;
    dt_status st = prepare(&j, argc > 2 ? argv[2] : "examples/data/tinyshakespeare.txt");

    options.n_ranks = 2;
    if (st == DT_OK) st = dt_run(&options, rank_main, &j);
    if (st != DT_OK) (void)fprintf(stderr, "%s\n", dt_last_error()->message);
    dt_tokenizer_release(&j.tokenizer);
    dt_tokenizer_free(j.learned.ids);
    dt_tokenizer_free(j.held_out.ids);
    free(j.starts);
    return st == DT_OK ? 0 : 1;
}
