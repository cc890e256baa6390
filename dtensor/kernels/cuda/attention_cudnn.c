/* SPDX-License-Identifier: Apache-2.0
 *
 * A call is cut into spans (attention_spans.h), each of which is one execution for each sequence. A
 * kernel of ours finds on the device which spans can be described by two lengths, as cuDNN wants
 * it, and says for each sequence from which query on that is so; what comes before is computed by
 * attention_prefill.cu afterwards, over whatever cuDNN left there.
 *
 * A plan is kept by shape. It is made once the calls that it would have served have lost, by
 * estimate, the time that it takes to make: so a program that ends soon makes none, and one that
 * goes on pays at most twice what it would have if it had known. */
#include "dtensor/kernels/cuda/attention_cudnn.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dtensor/kernels/cuda/attention_done.h"
#include "dtensor/kernels/cuda/attention_graph.h"
#include "dtensor/kernels/cuda/plan_table.h"

enum { MOST_PLANS = 64, MOST_WORKSPACE = 256 << 20, MOST_SEQUENCES = 1024, ALIGNMENT = 256 };

/* Neither result is further than some units of its type from the true one; a mask or a stride that
 * is wrong is far beyond this. Of a row, relative to its size. */
#define MOST_APART_BF16 (4.0f / 256.0f)
#define MOST_APART_F16  (4.0f / 2048.0f)

typedef enum cudnn_mode { WHEN_IT_PAYS, AT_ONCE, CHECKED } cudnn_mode;

typedef enum plan_stage { WAITS, READY, REFUSED } plan_stage;

typedef struct span_plan {
    plan_stage stage;
    bool checked;
    double lost_ns; /* while it waits */
    dti_attention_graph graph;
    struct span_plan *next; /* of those that nobody uses any more */
} span_plan;

/* A call under way. */
typedef struct span_call {
    dti_cudnn_attention a;
    dti_span_job job;
    span_plan *plans[DTI_MOST_SPANS];
    unsigned char *workspace;
    float *worst; /* [n_spans], of a check */
} span_call;

struct dti_cudnn_state {
    cudnn_mode mode;
    bool tried, usable; /* the library was looked for; it is there */
    dti_cudnn_calls calls;
    cudnnHandle_t handle;
    cudaStream_t stream;
    dti_plan_table *plans; /* dti_attention_key -> span_plan */
    span_plan *unused;     /* freed in the end */
    span_call call;        /* the last one */
    dti_cuda_cudnn_use use;
};

/* --- state ------------------------------------------------------------------------------------ */

/* Its kernels may be running, behind others that wait for ranks which have failed. A wait for the
 * stream has no deadline, so it is put off to the end. */
static void drop_plan(void *arg, void *plan)
{
    struct dti_cudnn_state *s = arg;
    span_plan *p = plan;

    p->next = s->unused;
    s->unused = p;
}

static void free_plans(struct dti_cudnn_state *s)
{
    dti_plan_table_destroy(s->plans);
    if (s->unused != NULL) (void)cudaStreamSynchronize(s->stream);
    while (s->unused != NULL) {
        span_plan *p = s->unused;
        s->unused = p->next;
        dti_attention_graph_free(&s->calls, &p->graph);
        free(p);
    }
}

int dti_cudnn_ask(dti_cuda *c, const char *how)
{
    static const char *const words[] = { "1", "now", "check" };
    struct dti_cudnn_state *s;
    int mode = 0;

    dti_cudnn_close(c);
    if (strcmp(how, "0") == 0) return 0;
    while (mode <= (int)CHECKED && strcmp(how, words[mode]) != 0) mode++;
    if (mode > (int)CHECKED)
        return dti_cuda_fail("DTENSOR_CUDNN is \"%s\"; choose 0, 1, now or check", how);
    s = calloc(1, sizeof *s);
    if (s == NULL) return dti_cuda_fail("no memory of the host for cuDNN");
    s->mode = (cudnn_mode)mode;
    s->stream = c->stream;
    c->cudnn = s;
    return 0;
}

void dti_cudnn_close(dti_cuda *c)
{
    struct dti_cudnn_state *s = c->cudnn;

    if (s == NULL) return;
    free_plans(s);
    if (s->handle != NULL) (void)s->calls.close(s->handle);
    free(s);
    c->cudnn = NULL;
}

bool dti_cudnn_use_read(const dti_cuda *c, dti_cuda_cudnn_use *out)
{
    if (c->cudnn == NULL) return false;
    *out = c->cudnn->use;
    return true;
}

static int refuse_library(struct dti_cudnn_state *s, const char *why)
{
    (void)snprintf(s->use.why, sizeof s->use.why, "%s", why);
    return -1;
}

static int start_library(struct dti_cudnn_state *s)
{
    char why[DTI_CUDNN_TEXT_BYTES];
    cudnnStatus_t st;

    if (dti_cudnn_load(&s->calls, why) != 0) return refuse_library(s, why);
    s->plans = dti_plan_table_create(MOST_PLANS, sizeof(dti_attention_key), drop_plan, s);
    if (s->plans == NULL) return refuse_library(s, "no memory for plans of attention");
    st = s->calls.open(&s->handle);
    if (st == CUDNN_STATUS_SUCCESS) st = s->calls.set_stream(s->handle, s->stream);
    return st == CUDNN_STATUS_SUCCESS ? 0 : refuse_library(s, s->calls.text(st));
}

/* The library is looked for once. */
static bool has_library(struct dti_cudnn_state *s)
{
    if (s->tried) return s->usable;
    s->tried = true;
    s->usable = start_library(s) == 0;
    (void)cudaGetLastError();
    return s->usable;
}

/* --- plans ------------------------------------------------------------------------------------ */

static dti_attention_key key_of(const dti_cudnn_attention *a, const dti_attention_span *span,
                                int64_t n_keys)
{
    dti_attention_key key;

    memset(&key, 0, sizeof key);
    key.n_rows = span->n_rows;
    key.n_keys = n_keys;
    key.q_stride = a->n_heads * a->width;
    key.k_stride = a->k_stride;
    key.window = a->window < n_keys ? a->window : 0;
    key.n_heads = (int32_t)a->n_heads;
    key.n_kv = (int32_t)a->n_kv;
    key.width = a->width;
    key.is_bf16 = a->dtype == DT_BF16;
    return key;
}

/* It stays, so that it is not made again; as does its graph (drop_plan()). */
static void drop(struct dti_cudnn_state *s, span_plan *p, const dti_attention_key *key,
                 const char *why)
{
    p->stage = REFUSED;
    s->use.n_dropped++;
    (void)snprintf(s->use.why, sizeof s->use.why,
                   "%lld queries of %d heads of %d columns over %lld rows of %d, window %lld: %s",
                   (long long)key->n_rows, key->n_heads, key->width, (long long)key->n_keys,
                   key->n_kv, (long long)key->window, why);
}

static void make_plan(dti_cuda *c, span_plan *p, const dti_attention_key *key)
{
    struct dti_cudnn_state *s = c->cudnn;
    char why[DTI_CUDNN_TEXT_BYTES] = "it wants more than 256 MiB of workspace";

    if (dti_attention_graph_make(&s->calls, key, c->device, NULL, &p->graph, why) != 0 ||
        p->graph.workspace_bytes > MOST_WORKSPACE) {
        drop(s, p, key, why);
    } else {
        p->stage = READY;
        s->use.n_plans++;
    }
    (void)cudaGetLastError();
}

/* The plan of a span, which may wait or be refused; NULL: no memory. */
static span_plan *find_plan(struct dti_cudnn_state *s, const dti_attention_key *key)
{
    span_plan *p = dti_plan_table_find(s->plans, key);

    if (p != NULL) return p;
    p = calloc(1, sizeof *p);
    if (p != NULL) dti_plan_table_put(s->plans, key, p);
    return p;
}

static bool is_ready(dti_cuda *c, const dti_cudnn_attention *a, const dti_attention_span *span,
                     span_plan *p, const dti_attention_key *key)
{
    const struct dti_cudnn_state *s = c->cudnn;

    if (p->stage == WAITS) {
        p->lost_ns +=
            (double)a->batch * dti_attention_gain_ns(span, key->window, a->n_heads, a->width);
        if (s->mode != WHEN_IT_PAYS || p->lost_ns >= DTI_CUDNN_PLAN_NS) make_plan(c, p, key);
    }
    return p->stage == READY;
}

/* Fills the call's spans, as far from the last one as plans are there. A full table gives up none
 * of them, because it holds more than a call has. */
static void find_plans(dti_cuda *c, span_call *call)
{
    const dti_cudnn_attention *a = &call->a;
    dti_span_job *job = &call->job;
    const int n = dti_attention_spans(a->n_tokens, job->spans);

    job->positions = a->positions;
    job->k = a->k;
    job->v = a->v;
    job->k_columns = a->n_kv * a->width;
    job->k_stride = a->k_stride;
    job->cache_rows = a->n_keys;
    job->dtype = a->dtype;
    job->batch = a->batch;
    job->n_tokens = a->n_tokens;
    job->n_keys = dti_attention_plan_keys(a->n_keys, a->n_tokens);
    for (job->n_spans = 0; job->n_spans < n; job->n_spans++) {
        const dti_attention_span *span = &job->spans[job->n_spans];
        const dti_attention_key key = key_of(a, span, job->n_keys);
        span_plan *p = find_plan(c->cudnn, &key);
        if (p == NULL || !is_ready(c, a, span, p, &key)) return;
        call->plans[job->n_spans] = p;
    }
}

/* --- a call ----------------------------------------------------------------------------------- */

static size_t rounded(size_t bytes)
{
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static size_t y_bytes(const dti_cudnn_attention *a)
{
    return (size_t)(a->batch * a->n_tokens * a->n_heads * a->width) *
           dti_cuda_dtype_bytes(a->dtype);
}

/* Scratch: done, junk, worst, lengths, our y if one is checked, the workspace of all executions in
 * turn. */
static int lay_out(dti_cuda *c, span_call *call, dti_cudnn_start *out)
{
    dti_span_job *job = &call->job;
    const size_t n = (size_t)(job->batch * job->n_spans);
    const size_t junk = rounded((size_t)job->batch * sizeof *job->done), worst = 2 * junk;
    const size_t lengths = worst + rounded((size_t)job->n_spans * sizeof *call->worst);
    const size_t y = lengths + rounded(n * 2 * DTI_LENGTH_STRIDE * sizeof *job->lengths);
    bool check = false;
    int64_t workspace = 0;
    void *scratch;

    for (int k = 0; k < job->n_spans; k++) {
        const span_plan *p = call->plans[k];
        if (p->graph.workspace_bytes > workspace) workspace = p->graph.workspace_bytes;
        if (c->cudnn->mode == CHECKED && !p->checked) check = true;
    }
    out->kept = y + (check ? rounded(y_bytes(&call->a)) : 0);
    if (dti_cuda_scratch(c, out->kept + (size_t)workspace, &scratch) != 0) return -1;
    job->done = scratch;
    job->junk = (int32_t *)((unsigned char *)scratch + junk);
    call->worst = (float *)((unsigned char *)scratch + worst);
    job->lengths = (int32_t *)((unsigned char *)scratch + lengths);
    call->workspace = (unsigned char *)scratch + out->kept;
    if (check) out->check = (unsigned char *)scratch + y;
    return 0;
}

static cudnnStatus_t run_pack(const struct dti_cudnn_state *s, int64_t sequence, int k,
                              cudnnBackendDescriptor_t pack)
{
    const dti_cudnn_calls *d = &s->calls;
    const span_call *call = &s->call;
    const dti_cudnn_attention *a = &call->a;
    const dti_span_job *job = &call->job;
    const size_t element = dti_cuda_dtype_bytes(a->dtype);
    const int64_t ids[] = { DTI_GRAPH_Q,     DTI_GRAPH_K,     DTI_GRAPH_V,
                            DTI_GRAPH_Y,     DTI_GRAPH_LEN_Q, DTI_GRAPH_LEN_KV,
                            DTI_GRAPH_SCALE, DTI_GRAPH_MINUS, DTI_GRAPH_WINDOW };
    const size_t rows = (size_t)(sequence * a->n_tokens + job->spans[k].begin);
    const size_t at = rows * (size_t)(a->n_heads * a->width) * element;
    const size_t keys = (size_t)(sequence * a->n_keys * a->k_stride) * element;
    int32_t *const lengths = job->lengths + 2 * (sequence * job->n_spans + k) * DTI_LENGTH_STRIDE;
    float scale = a->scale, minus = -INFINITY;
    int32_t window = (int32_t)a->window;
    void *const data[] = { (unsigned char *)a->q + at,
                           (unsigned char *)a->k + keys,
                           (unsigned char *)a->v + keys,
                           (unsigned char *)a->y + at,
                           lengths,
                           lengths + DTI_LENGTH_STRIDE,
                           &scale,
                           &minus,
                           &window };
    const int64_t n = call->plans[k]->graph.has_window ? 9 : 8;
    void *const workspace = call->workspace;
    cudnnStatus_t st = d->set(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, n, ids);

    if (st == CUDNN_STATUS_SUCCESS)
        st = d->set(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, n, data);
    if (st == CUDNN_STATUS_SUCCESS)
        st = d->set(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
    if (st == CUDNN_STATUS_SUCCESS) st = d->finalize(pack);
    if (st == CUDNN_STATUS_SUCCESS) st = d->execute(s->handle, call->plans[k]->graph.plan, pack);
    return st;
}

static cudnnStatus_t execute(const struct dti_cudnn_state *s, int64_t sequence, int k)
{
    const dti_cudnn_calls *d = &s->calls;
    cudnnBackendDescriptor_t pack;
    cudnnStatus_t st = d->create(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &pack);

    if (st != CUDNN_STATUS_SUCCESS) return st;
    st = run_pack(s, sequence, k, pack);
    (void)d->destroy(pack);
    return st;
}

/* 1; 0: a plan was refused, and what was started is nobody's; -1. */
static int start(dti_cuda *c)
{
    struct dti_cudnn_state *s = c->cudnn;
    const span_call *call = &s->call;

    if (dti_attention_find_done(c, &call->job) != 0) return -1;
    for (int k = 0; k < call->job.n_spans; k++)
        for (int64_t b = 0; b < call->job.batch; b++) {
            const dti_attention_key key = key_of(&call->a, &call->job.spans[k], call->job.n_keys);
            const cudnnStatus_t st = execute(s, b, k);
            if (st == CUDNN_STATUS_SUCCESS) continue;
            if (st >= CUDNN_STATUS_EXECUTION_FAILED)
                return dti_cuda_fail("attention by cuDNN: %s", s->calls.text(st));
            drop(s, call->plans[k], &key, s->calls.text(st));
            return 0;
        }
    return 1;
}

/* What cuDNN has no way for, or too little to win. */
static bool fits(const dti_cudnn_attention *a)
{
    return a->n_tokens >= DTI_SPAN_LEAST && a->n_heads % a->n_kv == 0 &&
           a->n_heads * a->width <= INT32_MAX && a->batch <= MOST_SEQUENCES;
}

int dti_attention_cudnn(dti_cuda *c, const dti_cudnn_attention *a, dti_cudnn_start *out)
{
    struct dti_cudnn_state *s = c->cudnn;
    int started;

    memset(out, 0, sizeof *out);
    if (s == NULL || c->capturing || !fits(a)) return 0;
    s->use.n_calls++;
    if (!has_library(s)) return 0;
    s->call.a = *a;
    find_plans(c, &s->call);
    if (s->call.job.n_spans == 0) return 0;
    if (lay_out(c, &s->call, out) != 0) return -1;
    started = start(c);
    if (started <= 0) {
        memset(out, 0, sizeof *out);
        return started;
    }
    out->done = s->call.job.done;
    s->use.n_taken++;
    return 0;
}

/* --- a check ---------------------------------------------------------------------------------- */

static int compare(dti_cuda *c, const void *want, float *worst)
{
    const span_call *call = &c->cudnn->call;
    const size_t bytes = (size_t)call->job.n_spans * sizeof *worst;
    const dti_span_check check = { .job = &call->job,
                                   .got = call->a.y,
                                   .want = want,
                                   .n_heads = call->a.n_heads,
                                   .width = call->a.width,
                                   .dtype = call->a.dtype,
                                   .worst = call->worst };

    if (dti_cuda_check(cudaMemsetAsync(call->worst, 0, bytes, c->stream), "checking cuDNN") != 0 ||
        dti_attention_compare(c, &check) != 0)
        return -1;
    if (dti_cuda_check(
            cudaMemcpyAsync(worst, call->worst, bytes, cudaMemcpyDeviceToHost, c->stream),
            "checking cuDNN") != 0)
        return -1;
    return dti_cuda_check(cudaStreamSynchronize(c->stream), "checking cuDNN");
}

int dti_attention_cudnn_check(dti_cuda *c, const dti_cudnn_start *start, bool *same)
{
    struct dti_cudnn_state *s = c->cudnn;
    const span_call *call = &s->call;
    const float most = call->a.dtype == DT_BF16 ? MOST_APART_BF16 : MOST_APART_F16;
    float worst[DTI_MOST_SPANS];

    *same = true;
    if (compare(c, start->check, worst) != 0) return -1;
    for (int k = 0; k < call->job.n_spans; k++) {
        const dti_attention_key key = key_of(&call->a, &call->job.spans[k], call->job.n_keys);
        const float apart = sqrtf(worst[k]);
        char why[DTI_CUDNN_TEXT_BYTES];
        call->plans[k]->checked = true;
        if (apart <= most) continue;
        (void)snprintf(why, sizeof why,
                       "a row lies %.3g of its size from our kernel's, %.3g is allowed",
                       (double)apart, (double)most);
        drop(s, call->plans[k], &key, why);
        *same = false;
    }
    if (!*same) s->use.n_taken--;
    return 0;
}
