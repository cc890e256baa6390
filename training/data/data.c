/* SPDX-License-Identifier: Apache-2.0
 *
 * Which tokens sample i of a run is made of.
 *
 * Files without weights are one pool, each file with a weight is one. A sample belongs to a pool
 * and an epoch of it, and is a window of T + 1 tokens there: T that predict, and the one behind. */
#include <dtensor/training_data.h>
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "base/numbers.h"
#include "base/options.h"
#include "training/data/packing.h"

/* Samples in which sources have exactly their shares, and the step from one to the next among them:
 * odd, and the golden ratio's, so any few samples in a row are shared out nearly as exactly. */
enum { QUOTA_BLOCK = 1 << 16, QUOTA_STEP = 40503 };

/* Of so many places in all files so many tokens say whose they are. */
enum { HASHED_PLACES = 256, HASHED_TOKENS = 64 };

/* Rows of which the system is told that they come next. */
enum { MOST_AHEAD = 1024 };

enum { MASKED = 1, BEGINS = 2, IGNORED_TARGET = -100 };

typedef struct pool {
    dti_token_file **files;
    int n_files;
    int64_t *first_window; /* [n_files + 1]: of the windows of all files */
    int64_t n;             /* samples of an epoch */
    int64_t left_over;     /* tokens in none of them */
    dti_packing packing;   /* of DT_ORDER_PACKED */
    int64_t first_slot;    /* of QUOTA_BLOCK */
} pool;

struct dt_data {
    dt_data_options o;
    dti_token_file *files;
    dti_token_file **by_pool; /* all of them */
    int n_files;
    pool *pools;
    int n_pools;
    int64_t n_samples; /* of an epoch */
    uint64_t hash;     /* of the files */

    int32_t *row;         /* [T + 1] tokens of a window */
    unsigned char *flags; /* [T + 1] of them */
    int32_t *ids, *targets, *starts;
    size_t room[3];
};

/* --- opening ---------------------------------------------------------------------------------- */

static dt_status check_options(const dt_data_options *o)
{
    DT_CHECK(o->sequence >= 1 && o->sequence < INT32_MAX, DT_ERR_ARG,
             "dt_data_options.sequence is %lld, must be 1 to 2147483646", (long long)o->sequence);
    DT_CHECK((int)o->order >= DT_ORDER_SHUFFLED && o->order <= DT_ORDER_PACKED, DT_ERR_ARG,
             "dt_data_options.order is %d: no dt_data_order", (int)o->order);
    DT_CHECK(o->vocab_size >= 0 && o->vocab_size <= INT32_MAX, DT_ERR_ARG,
             "dt_data_options.vocab_size is %lld", (long long)o->vocab_size);
    DT_CHECK(o->begin_token >= -1 && o->end_token >= -1, DT_ERR_ARG,
             "dt_data_options: begin_token is %d, end_token %d; -1 is none", (int)o->begin_token,
             (int)o->end_token);
    return DT_OK;
}

static dt_status check_weights(const dt_data_source *sources, int n, bool *weighted)
{
    int n_set = 0;

    for (int i = 0; i < n; i++) {
        DT_CHECK(sources[i].path != NULL, DT_ERR_ARG, "source %d has no path", i);
        DT_CHECK(isfinite(sources[i].weight) && sources[i].weight >= 0.0, DT_ERR_ARG,
                 "%s: its weight is %g", sources[i].path, sources[i].weight);
        n_set += sources[i].weight > 0.0;
    }
    DT_CHECK(n_set == 0 || n_set == n, DT_ERR_ARG,
             "%d of %d sources have a weight: give all of them one, or none", n_set, n);
    *weighted = n_set > 0;
    return DT_OK;
}

/* Each source gets whole slots: those of its share, and of what is left over one more where the
 * largest part of a slot is missing. */
static dt_status share_out(dt_data *d, const dt_data_source *sources)
{
    int64_t left = QUOTA_BLOCK, *n = NULL, first = 0;
    double sum = 0.0, *rest = NULL;
    dt_status st = DT_OK;

    for (int i = 0; i < d->n_pools; i++) sum += sources[i].weight;
    DT_TRY_TO(done, st, dti_alloc_array((size_t)d->n_pools, sizeof *n, (void **)&n));
    DT_TRY_TO(done, st, dti_alloc_array((size_t)d->n_pools, sizeof *rest, (void **)&rest));
    for (int i = 0; i < d->n_pools; i++) {
        const double share = QUOTA_BLOCK * (sources[i].weight / sum);
        n[i] = (int64_t)share;
        rest[i] = share - (double)n[i];
        left -= n[i];
    }
    for (; left > 0; left--) {
        int most = 0;
        for (int i = 1; i < d->n_pools; i++)
            if (rest[i] > rest[most]) most = i;
        n[most]++;
        rest[most] = -1.0;
    }
    for (int i = 0; i < d->n_pools; i++) {
        DT_CHECK_TO(done, st, n[i] > 0, DT_ERR_ARG,
                    "%s: of weight %g of %g not one sample in %d follows", sources[i].path,
                    sources[i].weight, sum, QUOTA_BLOCK);
        d->pools[i].first_slot = first;
        first += n[i];
    }
done:
    dti_free(n);
    dti_free(rest);
    return st;
}

/* At least one of so many tokens, which begin in a file. */
static dt_status need_samples(const dt_data *d, int64_t n, const dti_token_file *f,
                              int64_t n_tokens)
{
    DT_CHECK(n > 0, DT_ERR_ARG, "%s: has %lld tokens, a sample of %lld needs %lld",
             f->tokens.in.label, (long long)n_tokens, (long long)d->o.sequence,
             (long long)d->o.sequence + 1);
    return DT_OK;
}

/* Windows of files as they lie. */
static dt_status lay_windows(const dt_data *d, pool *p)
{
    DT_TRY(dti_alloc_array((size_t)p->n_files + 1, sizeof *p->first_window,
                           (void **)&p->first_window));
    for (int i = 0; i < p->n_files; i++) {
        const dti_token_file *f = p->files[i];
        const int64_t n = dti_max(f->n - 1, 0) / d->o.sequence;
        DT_TRY(need_samples(d, n, f, f->n));
        p->first_window[i] = p->n;
        p->n += n;
        p->left_over += f->n - n * d->o.sequence - 1;
    }
    p->first_window[p->n_files] = p->n;
    return DT_OK;
}

static dt_status need_documents(const dti_token_file *f)
{
    DT_CHECK(dti_token_file_has_documents(f), DT_ERR_ARG,
             "%s: nothing says where its documents end: name the token that ends or begins one",
             f->tokens.in.label);
    return DT_OK;
}

static dt_status lay_documents(const dt_data *d, pool *p)
{
    const uint32_t use = (uint32_t)(2 * (p - d->pools) + 1);

    for (int i = 0; i < p->n_files; i++) {
        DT_TRY(need_documents(p->files[i]));
        DT_TRY(dti_token_file_find_documents(p->files[i], d->o.vocab_size));
    }
    DT_TRY(dti_packing_create(p->files, p->n_files, d->o.seed, use, &p->packing));
    p->n = dti_max(p->packing.n_tokens - 1, 0) / d->o.sequence;
    DT_TRY(need_samples(d, p->n, p->files[0], p->packing.n_tokens));
    p->left_over = p->packing.n_tokens - p->n * d->o.sequence - 1;
    return DT_OK;
}

static dt_status make_pools(dt_data *d, const dt_data_source *sources, bool weighted)
{
    d->n_pools = weighted ? d->n_files : 1;
    DT_TRY(dti_alloc_array((size_t)d->n_pools, sizeof *d->pools, (void **)&d->pools));
    for (int i = 0; i < d->n_pools; i++) {
        pool *p = &d->pools[i];
        p->files = d->by_pool + i;
        p->n_files = weighted ? 1 : d->n_files;
        DT_TRY(d->o.order == DT_ORDER_PACKED ? lay_documents(d, p) : lay_windows(d, p));
        d->n_samples += p->n;
    }
    if (weighted) DT_TRY(share_out(d, sources));
    return DT_OK;
}

static dt_status open_files(dt_data *d, const dt_data_source *sources, int n)
{
    const dti_token_wish wish = { d->o.begin_token, d->o.end_token, d->o.tokenizer,
                                  d->o.vocab_size };

    DT_TRY(dti_alloc_array((size_t)n, sizeof *d->files, (void **)&d->files));
    DT_TRY(dti_alloc_array((size_t)n, sizeof(void *), (void **)&d->by_pool));
    for (; d->n_files < n; d->n_files++) {
        DT_TRY(dti_token_file_open(sources[d->n_files].path, &wish, &d->files[d->n_files]));
        d->by_pool[d->n_files] = &d->files[d->n_files];
    }
    for (int i = 0; i < n && d->o.documents; i++) DT_TRY(need_documents(&d->files[i]));
    DT_TRY(dti_alloc_array((size_t)d->o.sequence + 1, sizeof *d->row, (void **)&d->row));
    return dti_alloc((size_t)d->o.sequence + 1, (void **)&d->flags);
}

static dt_status hash_files(dt_data *d)
{
    int64_t n = 0, step;

    for (int i = 0; i < d->n_files; i++) n += d->files[i].n;
    step = dti_max(n / HASHED_PLACES, HASHED_TOKENS);
    for (int i = 0; i < d->n_files; i++) {
        dti_token_file *f = &d->files[i];
        d->hash = dti_hash_word(d->hash, (uint64_t)f->n);
        d->hash = dti_hash_word(d->hash, (uint64_t)(f->n_runs + f->n_sequences));
        for (int64_t at = 0; at < f->n; at += step) {
            const int64_t bytes = dti_min(HASHED_TOKENS, f->n - at) * f->bytes;
            const unsigned char *p;
            DT_TRY(dti_mapped_at(&f->tokens, f->begin + at * f->bytes, bytes, &p));
            d->hash = dti_hash_bytes(d->hash, p, (size_t)bytes);
        }
    }
    return DT_OK;
}

dt_status dt_data_open(const dt_data_source *sources, int n, const dt_data_options *options,
                       dt_data **out)
{
    dt_data_options o = DT_DATA_OPTIONS_INIT;
    dt_data *d = NULL;
    bool weighted;
    dt_status st = DT_OK;

    DT_CHECK(out != NULL && sources != NULL && options != NULL && n >= 1, DT_ERR_ARG,
             "sources, options or out is NULL, or there are %d sources", n);
    *out = NULL;
    DT_TRY(dti_options_read("dt_data_options", "start from DT_DATA_OPTIONS_INIT", options, &o,
                            sizeof o));
    DT_TRY(check_options(&o));
    DT_TRY(check_weights(sources, n, &weighted));
    DT_TRY(dti_new(sizeof *d, &d));
    d->o = o;
    DT_TRY_TO(fail, st, open_files(d, sources, n));
    DT_TRY_TO(fail, st, make_pools(d, sources, weighted));
    DT_TRY_TO(fail, st, hash_files(d));
    *out = d;
    return DT_OK;
fail:
    dt_data_release(&d);
    return st;
}

void dt_data_release(dt_data **data)
{
    dt_data *d = data != NULL ? *data : NULL;

    if (d == NULL) return;
    for (int i = 0; i < d->n_pools; i++) {
        dti_packing_free(&d->pools[i].packing);
        dti_free(d->pools[i].first_window);
    }
    for (int i = 0; i < d->n_files; i++) dti_token_file_close(&d->files[i]);
    dti_free(d->pools);
    dti_free(d->by_pool);
    dti_free(d->files);
    dti_free(d->row);
    dti_free(d->flags);
    dti_free(d->ids);
    dti_free(d->targets);
    dti_free(d->starts);
    dti_free(d);
    *data = NULL;
}

/* --- where a sample lies ---------------------------------------------------------------------- */

/* A window of a pool. */
typedef struct place {
    pool *pool;
    int64_t epoch, window;
} place;

/* floor(b / m) + floor((a + b) / m) + ..., n terms; all below 2^17, as Euclid would have it. */
static int64_t floor_sum(int64_t n, int64_t m, int64_t a, int64_t b)
{
    int64_t sum = 0;

    while (n > 0) {
        const int64_t top = a % m * n + b % m;
        const int64_t before = m;
        sum += n * (n - 1) / 2 * (a / m) + n * (b / m);
        n = top / m;
        b = top % m;
        m = a % m;
        a = before;
        if (m == 0) break;
    }
    return sum;
}

/* How many of the first n samples of a block have a slot below `end`. */
static int64_t slots_below(int64_t n, int64_t end)
{
    return n + floor_sum(n, QUOTA_BLOCK, QUOTA_STEP, 0) -
           floor_sum(n, QUOTA_BLOCK, QUOTA_STEP, QUOTA_BLOCK - end);
}

static place find(dt_data *d, int64_t sample)
{
    place at = { d->pools, 0, sample };

    if (d->n_pools > 1) {
        const int64_t i = sample % QUOTA_BLOCK, slot = i * QUOTA_STEP % QUOTA_BLOCK;
        int64_t begin, end = QUOTA_BLOCK;
        at.pool = &d->pools[d->n_pools - 1];
        for (; at.pool->first_slot > slot; at.pool--) end = at.pool->first_slot;
        begin = at.pool->first_slot;
        at.window =
            sample / QUOTA_BLOCK * (end - begin) + slots_below(i, end) - slots_below(i, begin);
    }
    at.epoch = at.window / at.pool->n;
    at.window %= at.pool->n;
    if (d->o.order == DT_ORDER_SHUFFLED)
        at.window = dti_permute(at.window, at.pool->n,
                                &(dti_permute_key){ d->o.seed, (uint64_t)at.epoch,
                                                    (uint32_t)(2 * (at.pool - d->pools)) });
    return at;
}

/* --- reading ---------------------------------------------------------------------------------- */

/* Tokens of one file to place `to` of the row. */
static dt_status read_stretch(dt_data *d, dti_token_file *f, int64_t first, int64_t n, int64_t to)
{
    DT_TRY(dti_token_file_read(f, first, n, d->o.vocab_size, d->row + to));
    if (f->n_runs > 0) DT_TRY(dti_token_file_mark_masked(f, first, n, MASKED, d->flags + to));
    if (d->o.documents && d->o.order != DT_ORDER_PACKED)
        DT_TRY(dti_token_file_mark(f, first, n, d->row + to, BEGINS, d->flags + to));
    return DT_OK;
}

static dt_status read_packed(dt_data *d, const place *at)
{
    const int64_t n = d->o.sequence + 1;
    dti_stretch s;

    for (int64_t to = 0; to < n; to += s.n) {
        DT_TRY(dti_packing_find(&at->pool->packing, at->epoch, at->window * d->o.sequence + to,
                                n - to, &s));
        DT_TRY(read_stretch(d, s.file, s.first, s.n, to));
        if (s.begins) d->flags[to] |= BEGINS;
    }
    return DT_OK;
}

static dt_status read_window(dt_data *d, const place *at)
{
    const pool *p = at->pool;
    int i = 0;

    while (at->window >= p->first_window[i + 1]) i++;
    return read_stretch(d, p->files[i], (at->window - p->first_window[i]) * d->o.sequence,
                        d->o.sequence + 1, 0);
}

/* The window in d->row as row r of a batch. Returns how many of its targets count. */
static int64_t lay_row(dt_data *d, int64_t r)
{
    const int64_t T = d->o.sequence;
    const unsigned stops = MASKED | (d->o.documents ? BEGINS : 0u);
    int32_t *ids = d->ids + r * T, *targets = d->targets + r * T, start = 0;
    int64_t n_valid = 0;

    memcpy(ids, d->row, (size_t)T * sizeof *ids);
    for (int64_t j = 0; j < T; j++) {
        const bool counts = (d->flags[j + 1] & stops) == 0;
        targets[j] = counts ? d->row[j + 1] : IGNORED_TARGET;
        n_valid += counts;
        if ((d->flags[j] & BEGINS) != 0) start = (int32_t)j;
        if (d->o.documents) d->starts[r * T + j] = start;
    }
    return n_valid;
}

static dt_status grow(dt_data *d, int64_t rows)
{
    int64_t n;

    DT_CHECK(dti_mul_i64(rows, d->o.sequence, &n) && n <= INT64_MAX / 8, DT_ERR_ARG,
             "%lld rows of %lld tokens", (long long)rows, (long long)d->o.sequence);
    DT_TRY(dti_grow((void **)&d->ids, &d->room[0], (size_t)n, sizeof *d->ids));
    DT_TRY(dti_grow((void **)&d->targets, &d->room[1], (size_t)n, sizeof *d->targets));
    if (d->o.documents)
        DT_TRY(dti_grow((void **)&d->starts, &d->room[2], (size_t)n, sizeof *d->starts));
    return DT_OK;
}

/* The next rows are likely to be asked for next: a disk may bring them meanwhile. */
static void fetch_ahead(dt_data *d, int64_t first, int64_t rows)
{
    for (int64_t r = 0; r < dti_min(rows, MOST_AHEAD) && d->o.order != DT_ORDER_PACKED; r++) {
        const place at = find(d, first + r);
        int i = 0;
        while (at.window >= at.pool->first_window[i + 1]) i++;
        dti_mapped_soon(&at.pool->files[i]->tokens,
                        at.pool->files[i]->begin + (at.window - at.pool->first_window[i]) *
                                                       d->o.sequence * at.pool->files[i]->bytes,
                        (d->o.sequence + 1) * at.pool->files[i]->bytes);
    }
}

dt_status dt_data_rows(dt_data *d, int64_t first, int64_t rows, dt_batch *out)
{
    dt_batch batch;

    DT_CHECK(d != NULL && out != NULL, DT_ERR_ARG, "data or out is NULL");
    DT_CHECK(first >= 0 && rows >= 1 && first <= INT64_MAX / 2 - rows, DT_ERR_ARG,
             "%lld samples from number %lld on", (long long)rows, (long long)first);
    DT_TRY(grow(d, rows));
    for (int i = 0; i < d->n_files; i++) DT_TRY(dti_token_file_check(&d->files[i]));
    batch =
        (dt_batch){ rows, d->o.sequence, d->ids, d->targets, d->o.documents ? d->starts : NULL, 0 };
    for (int64_t r = 0; r < rows; r++) {
        const place at = find(d, first + r);
        memset(d->flags, 0, (size_t)d->o.sequence + 1);
        DT_TRY(d->o.order == DT_ORDER_PACKED ? read_packed(d, &at) : read_window(d, &at));
        batch.n_valid += lay_row(d, r);
    }
    fetch_ahead(d, first + rows, rows);
    *out = batch;
    return DT_OK;
}

/* --- what there is ---------------------------------------------------------------------------- */

dt_data_facts dt_data_look(const dt_data *d)
{
    dt_data_facts facts = { 0 };
    bool known = true;

    if (d == NULL) return facts;
    for (int i = 0; i < d->n_files; i++) {
        facts.tokens += d->files[i].n;
        facts.documents += dti_max(d->files[i].n_documents, 0);
        known = known && d->files[i].n_documents >= 0;
    }
    if (!known) facts.documents = 0;
    for (int i = 0; i < d->n_pools; i++) facts.left_over += d->pools[i].left_over;
    facts.samples = d->n_samples;
    facts.hash = d->hash;
    return facts;
}

int64_t dt_data_samples_per_epoch(const dt_data *d)
{
    return d != NULL ? d->n_samples : 0;
}

dt_status dt_data_check(dt_data *d)
{
    DT_CHECK(d != NULL, DT_ERR_ARG, "data is NULL");
    for (int i = 0; i < d->n_files; i++)
        DT_TRY(dti_token_file_check_all(&d->files[i], d->o.vocab_size));
    return DT_OK;
}
