/* SPDX-License-Identifier: Apache-2.0
 *
 * Logits and hidden states of whole sequences: a function like those of users. */
#include <string.h>

#include "base/numbers.h"
#include "mesh/runtime.h"
#include "service/ranks.h"

const char dti_forward_name[] = "dt_service_forward";

typedef struct pass {
    dt_call *call;
    dt_state *state;
    dt_tape *tape;
    int32_t *ids;  /* [n, longest] */
    int64_t *pads; /* [n] */
    int64_t n, longest;
    dt_status st;
} pass;

/* Inputs: the options, then a list of ids for each sequence. */
static dt_status read_sequences(pass *p)
{
    for (int64_t i = 0; i < p->n; i++)
        p->longest = dti_max(p->longest, dt_call_input(p->call, i + 1)->shape[0]);
    DT_TRY(dti_alloc_array((size_t)(p->n * p->longest), sizeof *p->ids, (void **)&p->ids));
    DT_TRY(dti_alloc_array((size_t)p->n, sizeof *p->pads, (void **)&p->pads));
    for (int64_t i = 0; i < p->n; i++) {
        const dt_piece *x = dt_call_input(p->call, i + 1);
        p->pads[i] = p->longest - x->shape[0];
        memcpy(p->ids + i * p->longest + p->pads[i], x->data, x->n_bytes);
    }
    return DT_OK;
}

static void reply_hidden(void *arg, dt_tape *tape, int64_t i, dt_tensor *x)
{
    pass *p = arg;

    (void)tape;
    (void)i;
    if (p->st == DT_OK) p->st = dt_call_reply_tensor(p->call, x);
}

static bool goes_on(void *arg)
{
    return dt_call_goes_on(((pass *)arg)->call);
}

static dt_status run(pass *p, const dt_forward_options *o)
{
    dt_model *m = dt_call_model(p->call);
    dt_tensor *logits;

    DT_CHECK(!o->hidden || dt_model_n_stages(m) == 1, DT_ERR_UNSUPPORTED,
             "hidden states of a model in %d stages", dt_model_n_stages(m));
    DT_TRY(read_sequences(p));
    DT_TRY(dt_state_create(m, p->n, p->longest, &p->state));
    DT_TRY(dt_state_pad(p->state, p->pads));
    dt_state_set_go_on(p->state, goes_on, p);
    if (o->hidden) dt_state_set_hidden(p->state, reply_hidden, p);
    DT_TRY(dt_tape_create(dt_mesh_runtime(dt_model_mesh(m)), &p->tape));
    logits = dt_model_forward(p->tape, m, p->state, p->ids, p->longest, o->rows);
    DT_TRY(p->st);
    DT_TRY(dt_tape_status(p->tape));
    DT_TRY(dt_call_reply_tensor(p->call, logits));
    return DT_OK;
}

dt_status dti_forward(dt_call *call, void *arg)
{
    pass p = { .call = call, .n = dt_call_n_inputs(call) - 1 };
    dt_forward_options o;
    dt_status st;

    (void)arg;
    DT_CHECK(p.n >= 1, DT_ERR_ARG, "%lld sequences", (long long)p.n);
    memcpy(&o, dt_call_input(call, 0)->data, sizeof o);
    st = run(&p, &o);
    dt_state_release(&p.state);
    dt_tape_release(&p.tape);
    dti_free(p.ids);
    dti_free(p.pads);
    return st;
}
