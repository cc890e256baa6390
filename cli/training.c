/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/training.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/numbers.h"
#include "base/text.h"
#include "cli/option_table.h"
#include "cli/pipelines.h"

enum { DEFAULT_BATCH = 8, DEFAULT_SEQUENCE = 256, DEFAULT_LOG_EVERY = 10, DEFAULT_KEEP = 2 };
static const double DEFAULT_LR = 3e-4;

/* --- values ----------------------------------------------------------------------------------- */

/* Numbers between commas, n of them. */
static dt_status read_list(const char *option, const char *text, double *list, int n)
{
    for (int i = 0; i < n; i++) {
        char item[64];
        const size_t length = strcspn(text, ",");

        DT_CHECK(length > 0 && length < sizeof item && (text[length] == ',') == (i + 1 < n),
                 DT_ERR_ARG, "%s: \"%s\" is not %d number%s with commas between", option, text, n,
                 n == 1 ? "" : "s");
        (void)snprintf(item, sizeof item, "%.*s", (int)length, text);
        DT_TRY(cli_parse_number(option, item, &list[i]));
        text += length + (text[length] == ',');
    }
    return DT_OK;
}

/* A number from `least` up to, but not including, `below`. */
static dt_status read_range(const char *option, const char *text, double least, double below,
                            double *out)
{
    DT_TRY(cli_parse_number(option, text, out));
    DT_CHECK(*out >= least && *out < below, DT_ERR_ARG, "%s %s: must be at least %g%s", option,
             text, least, below < 2 ? " and below 1" : "");
    return DT_OK;
}

/* The place of a word in a list that ends with NULL. */
static dt_status read_word(const char *option, const char *word, const char *const *words, int *out)
{
    char list[160] = "";
    size_t used = 0;

    for (int i = 0; words[i] != NULL; i++) {
        used += (size_t)snprintf(list + used, sizeof list - used, "%s%s",
                                 i == 0                 ? ""
                                 : words[i + 1] != NULL ? ", "
                                                        : " or ",
                                 words[i]);
        *out = i;
        if (strcmp(word, words[i]) == 0) return DT_OK;
    }
    DT_FAIL(DT_ERR_ARG, "%s: \"%s\" is unknown; choose %s", option, word, list);
}

static dt_status read_seed(const char *text, uint64_t *out)
{
    char *end;

    if (text == NULL) return DT_OK;
    errno = 0;
    *out = strtoull(text, &end, 10);
    DT_CHECK(text[0] != '\0' && strspn(text, "0123456789") == strlen(text) && errno == 0,
             DT_ERR_ARG, "--seed: \"%s\" is not a number from 0 to %" PRIu64, text, UINT64_MAX);
    return DT_OK;
}

/* --- the optimizer ---------------------------------------------------------------------------- */

/* What only the other rule looks at. */
static dt_status check_rule(const cli_training_words *w, bool sgd)
{
    const char *of_adamw = w->betas != NULL ? "betas" : w->eps != NULL ? "eps" : NULL;

    DT_CHECK(!sgd || of_adamw == NULL, DT_ERR_ARG, "--%s is of adamw, --optimizer is sgd",
             of_adamw);
    DT_CHECK(sgd || (w->momentum == NULL && !w->nesterov), DT_ERR_ARG,
             "--%s is of sgd; add --optimizer sgd", w->nesterov ? "nesterov" : "momentum");
    DT_CHECK(!w->nesterov || w->momentum != NULL, DT_ERR_ARG,
             "--nesterov needs a momentum above 0; add --momentum 0.9");
    return DT_OK;
}

dt_status cli_optimizer_read(const cli_args *args, dt_optimizer_options *out)
{
    static const char *const rules[] = { "adamw", "sgd", NULL };
    const cli_training_words *w = &args->training;
    double betas[] = { out->beta1, out->beta2 };
    int rule = 0;

    if (w->optimizer != NULL) DT_TRY(read_word("--optimizer", w->optimizer, rules, &rule));
    DT_TRY(check_rule(w, rule == 1));
    out->rule = rule == 1 ? DT_SGD : DT_ADAMW;
    if (w->betas != NULL) DT_TRY(read_list("--betas", w->betas, betas, 2));
    DT_CHECK(betas[0] >= 0 && betas[0] < 1 && betas[1] >= 0 && betas[1] < 1, DT_ERR_ARG,
             "--betas %s: both must be at least 0 and below 1", w->betas);
    out->beta1 = betas[0];
    out->beta2 = betas[1];
    DT_TRY(read_range("--eps", w->eps, 0, INFINITY, &out->eps));
    DT_TRY(read_range("--weight-decay", w->weight_decay, 0, INFINITY, &out->weight_decay));
    DT_TRY(read_range("--momentum", w->momentum, 0, 1, &out->momentum));
    DT_CHECK(!w->nesterov || out->momentum > 0, DT_ERR_ARG,
             "--nesterov needs a momentum above 0, not --momentum %s", w->momentum);
    out->nesterov = w->nesterov;
    DT_TRY(read_range("--clip", w->clip, 0, INFINITY, &out->clip));
    out->zero = (int)dti_max(dti_min(w->zero, 2), 0); /* the third stage is a style of the layers */
    out->masters = !w->no_masters;
    out->stochastic = w->no_masters;
    out->offload = w->offload;
    out->bucket_bytes = w->bucket;
    return DT_OK;
}

static dt_status read_schedule(const cli_training_words *w, dt_schedule *out)
{
    static const char *const kinds[] = { "constant", "linear", "cosine", "wsd", NULL };
    static const dt_schedule_kind values[] = { DT_SCHEDULE_CONSTANT, DT_SCHEDULE_LINEAR,
                                               DT_SCHEDULE_COSINE, DT_SCHEDULE_WSD };
    int kind = 0;

    out->lr = DEFAULT_LR;
    DT_TRY(read_range("--lr", w->lr, 0, INFINITY, &out->lr));
    DT_TRY(read_range("--min-lr", w->min_lr, 0, INFINITY, &out->min_lr));
    if (w->schedule != NULL) DT_TRY(read_word("--lr-schedule", w->schedule, kinds, &kind));
    out->kind = values[kind];
    DT_CHECK(w->min_lr == NULL || kind != 0, DT_ERR_ARG,
             "--min-lr is where a schedule ends; a constant rate has no end: add --lr-schedule");
    DT_CHECK(out->min_lr <= out->lr, DT_ERR_ARG, "--min-lr %s is above --lr %g", w->min_lr,
             out->lr);
    DT_CHECK(w->warmup <= w->steps, DT_ERR_ARG,
             "--warmup %" PRId64 " is more than --steps %" PRId64, w->warmup, w->steps);
    if (out->lr > 0) out->min_lr /= out->lr; /* the library has it as a share */
    out->warmup = dti_max(w->warmup, 0);
    out->steps = w->steps;
    return DT_OK;
}

/* --- the third stage -------------------------------------------------------------------------- */

/* The mesh dim whose copies stages cut; NULL: the mesh has none. */
static const char *zero_dim(const char *mesh)
{
    static const char *const dims[] = { "dp_shard", "dp" };
    char names[DT_MAX_DIMS][DT_DIM_NAME_BYTES];
    int sizes[DT_MAX_DIMS], n_dims = 0, n_ranks;

    if (dt_mesh_parse(mesh, &n_dims, names, sizes, &n_ranks) != DT_OK) return NULL;
    for (size_t i = 0; i < DT_COUNT(dims); i++)
        for (int m = 0; m < n_dims; m++)
            if (strcmp(names[m], dims[i]) == 0) return dims[i];
    return NULL;
}

dt_status cli_load_zero(const cli_args *args, const char *mesh, dt_load_options *load)
{
    if (args->training.zero < 3) return DT_OK;
    if (load->fully_shard == NULL) load->fully_shard = zero_dim(mesh);
    DT_CHECK(load->fully_shard != NULL, DT_ERR_ARG,
             "--zero 3 cuts parameters over dp or dp_shard; --mesh %s has neither", mesh);
    return DT_OK;
}

/* --- data ------------------------------------------------------------------------------------- */

static dt_status read_data(const cli_training_words *w, cli_training *out)
{
    static const char *const orders[] = { "shuffled", "stored", "packed", NULL };
    static const dt_data_order values[] = { DT_ORDER_SHUFFLED, DT_ORDER_STORED, DT_ORDER_PACKED };
    double *weights = NULL;
    dt_status st = DT_OK;
    int order = 0;

    DT_CHECK(w->data.n > 0 || w->dry_run, DT_ERR_ARG,
             "nothing to train on; give --data FILE, a text or a file of tokens");
    out->n_sources = w->data.n;
    DT_TRY(dti_alloc_array((size_t)w->data.n + 1, sizeof *out->sources, (void **)&out->sources));
    DT_TRY(dti_alloc_array((size_t)w->data.n + 1, sizeof *weights, (void **)&weights));
    if (w->data_weights != NULL)
        DT_TRY_TO(done, st, read_list("--data-weights", w->data_weights, weights, w->data.n));
    for (int i = 0; i < w->data.n; i++) {
        DT_CHECK_TO(done, st, w->data_weights == NULL || weights[i] > 0, DT_ERR_ARG,
                    "--data-weights %s: weights are above 0", w->data_weights);
        out->sources[i] = (dt_data_source){ w->data.items[i], weights[i] };
    }
done:
    dti_free(weights);
    DT_TRY(st);
    if (w->order != NULL) DT_TRY(read_word("--order", w->order, orders, &order));
    out->data = (dt_data_options)DT_DATA_OPTIONS_INIT;
    out->data.order = values[order];
    out->data.seed = out->seed;
    out->data.documents = w->documents;
    DT_CHECK(!w->new_data || w->resume, DT_ERR_ARG,
             "--new-data is of a run that goes on; add --resume");
    DT_CHECK(w->validate != NULL || w->validate_every == 0, DT_ERR_ARG,
             "--validate-every without a file; add --validate FILE");
    return DT_OK;
}

/* --- all -------------------------------------------------------------------------------------- */

/* config.json is found by its folder, where its tokenizer may be as well. */
static dt_status find_config(cli_args *own, cli_training *out)
{
    static const char file[] = "config.json";
    const char *config = own->training.config;
    const size_t n = config != NULL ? strlen(config) : 0, tail = sizeof file - 1;
    const bool names_it = n >= tail && strcmp(config + n - tail, file) == 0 &&
                          (n == tail || config[n - tail - 1] == '/');

    DT_CHECK(own->folder != NULL || config != NULL, DT_ERR_ARG,
             "no model; give --model DIR, a Hugging Face folder, or --config config.json for one "
             "that begins at random");
    if (config == NULL) return DT_OK;
    DT_CHECK(own->folder == NULL, DT_ERR_ARG,
             "--model %s and --config %s both say what is trained; give one", own->folder, config);
    out->begins_at_random = true;
    own->random = true;
    if (!names_it) {
        own->folder = config; /* the folder itself */
        return DT_OK;
    }
    if (n == tail) own->folder = ".";
    if (n > tail) DT_TRY(dti_strdup(config, (char **)(uintptr_t)&out->config_folder));
    if (n > tail) out->config_folder[n - tail - (n > tail + 1)] = '\0';
    if (n > tail) own->folder = out->config_folder;
    return DT_OK;
}

/* Rates had the word before pipelines came, and files of options of older runs say it so. */
static void rename_schedule(cli_training_words *w)
{
    static const char *const rates[] = { "constant", "linear", "cosine", "wsd" };

    for (size_t i = 0; i < DT_COUNT(rates) && w->schedule == NULL && w->pipeline != NULL; i++) {
        if (strcmp(w->pipeline, rates[i]) != 0) continue;
        w->schedule = w->pipeline;
        w->pipeline = NULL;
    }
}

dt_status cli_training_read(cli_args *own, cli_training *out)
{
    const cli_training_words *w = &own->training;

    *out = (cli_training){
        .args = own,
        .optimizer = DT_OPTIMIZER_OPTIONS_INIT,
        .loss = DT_LOSS_OPTIONS_INIT,
        .steps = w->steps,
        .batch = own->batch > 0 ? own->batch : DEFAULT_BATCH,
        .save_every = w->save_every,
        .validate_every = w->validate_every,
        .log_every = w->log_every > 0 ? w->log_every : DEFAULT_LOG_EVERY,
        .keep = w->keep > 0 ? w->keep : DEFAULT_KEEP,
    };
    DT_TRY(find_config(own, out));
    (void)snprintf(out->mesh, sizeof out->mesh, "dp=%d", dt_launch_size());
    if (own->mesh == NULL) own->mesh = out->mesh;
    rename_schedule(&own->training);
    DT_TRY(cli_pipeline_read(own, own->mesh, &out->pipeline));
    own->schedule = out->pipeline.schedule;
    DT_CHECK(w->steps > 0 || w->dry_run, DT_ERR_ARG, "how long? give --steps N");
    DT_TRY(read_seed(w->seed, &out->seed));
    DT_TRY(cli_optimizer_read(own, &out->optimizer));
    out->optimizer.seed = out->seed;
    DT_TRY(read_schedule(w, &out->schedule));
    DT_TRY(read_data(w, out));
    DT_TRY(cli_read_recompute(own->recompute, &out->loss.recompute));
    out->loss.chunk = own->chunk;
    return DT_OK;
}

void cli_training_free(cli_training *t)
{
    dt_pipeline_schedule_release(&t->pipeline.schedule);
    dti_free(t->config_folder);
    t->config_folder = NULL;
    dti_free(t->sources);
    t->sources = NULL;
}

/* What ids stand for, so that data of another tokenizer is refused, and what ends documents of
 * files that do not say. Without a tokenizer that is understood tokens are trained on as they are.
 */
static dt_status know_tokens(const cli_session *s, dt_data_options *data)
{
    const int64_t given = s->args->training.end_token;
    dt_tokenizer *tokenizer = NULL;

    if (s->info.n_eos > 0) data->end_token = s->info.eos[0];
    if (given >= 0) data->end_token = (int32_t)given;
    DT_CHECK(given < s->info.vocab_size, DT_ERR_ARG,
             "--end-token %" PRId64 " is outside the vocabulary: ids are 0 to %" PRId64, given,
             s->info.vocab_size - 1);
    if (dt_tokenizer_files(s->args->folder) == NULL) return DT_OK;
    if (dt_tokenizer_open(s->args->folder, &tokenizer) == DT_ERR_MEMORY) return DT_ERR_MEMORY;
    data->tokenizer = dt_tokenizer_hash(tokenizer);
    dt_tokenizer_release(&tokenizer);
    return DT_OK;
}

/* Where no rank holds a copy of what another has, stages cut nothing. */
static void warn_of_stage(const cli_session *s)
{
    char text[DT_ERROR_MESSAGE_BYTES];

    if (s->args->training.zero <= 0 || zero_dim(s->mesh) != NULL) return;
    (void)snprintf(text, sizeof text,
                   "--zero %" PRId64 " changes nothing: it cuts what ranks hold alike over dp or "
                   "dp_shard, and --mesh %s has neither",
                   s->args->training.zero, s->mesh);
    cli_warn(s->console, text);
}

/* What the second and the third stage cut travels for each microbatch. */
static void warn_of_passes(const cli_session *s, const cli_training *t)
{
    const int64_t zero = s->args->training.zero, m = t->pipeline.microbatches;
    char text[DT_ERROR_MESSAGE_BYTES], each[DTI_NUMBER_BYTES], all[DTI_NUMBER_BYTES];
    int64_t bytes;

    if (t->pipeline.schedule == NULL || zero < 2 || m == 1 || zero_dim(s->mesh) == NULL) return;
    bytes = s->n_params * cli_batch_ranks(s) / s->run.n_ranks *
            (int64_t)(zero == 2 ? sizeof(float) : dt_dtype_size(s->dtype));
    (void)snprintf(
        text, sizeof text,
        zero == 2 ? "--zero 2 in a pipeline: a rank reduces the gradients of its stages, %s, "
                    "after each of %" PRId64 " microbatches, %s in a step; --zero 1 does so once"
                  : "--zero 3 in a pipeline: a rank gathers the parameters of its stages, %s, "
                    "for each F and B of %" PRId64
                    " microbatches, %s in a step; --zero 1 does so once",
        dti_bytes_text(bytes, each), m, dti_bytes_text((zero == 2 ? m : 2 * m) * bytes, all));
    cli_warn(s->console, text);
}

/* Masters are what is not f32 has, and what rounds at random is bf16. */
static dt_status check_masters(const cli_session *s)
{
    if (!s->args->training.no_masters || s->dtype == DT_BF16) return DT_OK;
    DT_CHECK(s->dtype == DT_F32, DT_ERR_ARG,
             "--no-masters rounds bf16 at random, and the model is in %s: leave it out, or add "
             "--dtype bf16",
             dt_dtype_name(s->dtype));
    cli_warn(s->console, "--no-masters changes nothing: parameters in f32 have no masters");
    return DT_OK;
}

dt_status cli_training_settle(const cli_session *s, cli_training *t)
{
    const int64_t context = s->info.max_positions, ranks = cli_batch_ranks(s);
    const int64_t parts = ranks * t->pipeline.microbatches;

    t->sequence = t->args->sequence > 0 ? t->args->sequence : dti_min(context, DEFAULT_SEQUENCE);
    DT_CHECK(t->sequence <= context, DT_ERR_ARG,
             "--sequence %" PRId64 " exceeds the model's context of %" PRId64 " (%s/config.json)",
             t->sequence, context, s->args->folder);
    DT_CHECK(t->batch % parts == 0, DT_ERR_ARG,
             "--batch %" PRId64 " cannot be divided by %" PRId64 " microbatch%s of %" PRId64
             " rank%s each that --mesh %s cuts a batch over; take a multiple of %" PRId64,
             t->batch, t->pipeline.microbatches, t->pipeline.microbatches == 1 ? "" : "es", ranks,
             ranks == 1 ? "" : "s", s->mesh, parts);
    DT_CHECK(t->batch <= INT32_MAX / t->sequence, DT_ERR_ARG,
             "--batch %" PRId64 " of --sequence %" PRId64 ": at most %" PRId64
             " sequences are possible",
             t->batch, t->sequence, (int64_t)INT32_MAX / t->sequence);
    warn_of_stage(s);
    warn_of_passes(s, t);
    DT_TRY(dt_checkpoint_training_remarks(s->args->folder, cli_remark, (void *)s->console));
    DT_TRY(check_masters(s));
    DT_TRY(know_tokens(s, &t->data));
    t->data.sequence = t->sequence;
    t->data.vocab_size = s->info.vocab_size;
    return DT_OK;
}
