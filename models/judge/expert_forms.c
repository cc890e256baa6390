/* SPDX-License-Identifier: Apache-2.0
 *
 * What mixtures of experts send in either form: passes of a dry model whose points all send tokens,
 * once as they do it, and once with all tokens gathered and all terms reduced. */
#include "base/memory.h"
#include "dtensor/device/device.h"
#include "models/judge/prediction.h"
#include "parallel_styles/changes.h"

typedef struct points {
    dt_layer **point; /* [n] */
    uint32_t *dims;   /* [n] */
    int n;
    bool sends;
} points;

static dt_status find(dt_layers *layers, points *p)
{
    const size_t room = (size_t)dt_layers_count(layers);

    *p = (points){ .n = 0 };
    DT_TRY(dti_alloc_array(room, sizeof(dt_layer *), (void **)&p->point));
    DT_TRY(dti_alloc_array(room, sizeof *p->dims, (void **)&p->dims));
    p->n = dti_points_of_experts(layers, p->point, p->dims, &p->sends);
    return DT_OK;
}

static void forget(points *p)
{
    dti_free((void *)p->point);
    dti_free(p->dims);
}

/* Of what one pass sent, that of points. */
static void add_up(const dt_pass_cost *cost, dt_layers *layers, const points *p,
                   dt_expert_bytes *out)
{
    for (size_t i = 0; i < cost->n; i++) {
        const dt_traffic *item = &cost->items[i];
        const dt_layer *layer = item->layer != NULL ? dt_layers_find(layers, item->layer) : NULL;
        for (int k = 0; k < p->n && layer != NULL; k++)
            if (layer == p->point[k] && (item->dims & p->dims[k]) != 0) {
                out->bytes += item->count.bytes;
                out->most_bytes += item->most_bytes;
            }
    }
}

static dt_status pass(const dti_prediction *run, dt_tape *t, dt_state *s, int64_t n,
                      const points *p, dt_expert_bytes *out)
{
    dt_pass_cost cost = { .n = 0 };
    const dt_status st = dti_measure_pass(t, s, n, &cost);

    if (st == DT_OK) add_up(&cost, dt_model_layers(run->model), p, out);
    dti_free(cost.items);
    DT_TRY(st);
    return DT_OK;
}

static dt_status run_form(const dti_prediction *run, const dti_predict_options *o, dt_tape *t,
                          const points *p, dt_expert_form form, dt_expert_forms *out)
{
    dt_state *s = NULL;
    dti_device *device;
    dt_status st = DT_OK;

    DT_TRY(dti_device_of(run->rt, &device));
    device->gathers_tokens = form == DT_EXPERTS_SUMMED;
    DT_TRY(dt_state_create(run->model, o->batch, o->sequence, &s));
    DT_TRY_TO(done, st, pass(run, t, s, o->sequence, p, &out->prompt[form]));
    dt_state_rewind(s, o->sequence - 1);
    st = pass(run, t, s, 1, p, &out->step[form]);
done:
    dt_state_release(&s);
    return st;
}

static dt_status run_forms(const dti_prediction *run, const dti_predict_options *o, points *p,
                           dt_expert_forms *out)
{
    dt_tape *t = NULL;
    dt_status st = DT_OK;

    DT_TRY(find(dt_model_layers(run->model), p));
    for (int k = 0; k < p->n; k++) {
        DT_TRY(dti_point_send(p->point[k], p->dims[k]));
        out->dims |= p->dims[k];
    }
    out->form = p->sends ? DT_EXPERTS_SENT : DT_EXPERTS_SUMMED;
    DT_TRY(dt_tape_create(run->rt, &t));
    for (int form = 0; form < DT_N_EXPERT_FORMS; form++)
        DT_TRY_TO(done, st, run_form(run, o, t, p, (dt_expert_form)form, out));
done:
    dt_tape_release(&t);
    return st;
}

dt_status dti_predict_experts(const char *dir, const dti_predict_options *options,
                              const dt_model *model, dt_expert_forms *out)
{
    dti_predict_options o = *options;
    dti_prediction run = { NULL };
    points p;
    dt_status st;

    *out = (dt_expert_forms){ .dims = 0 };
    st = find(model->layers, &p);
    forget(&p);
    DT_TRY(st);
    if (p.n == 0) return DT_OK;
    p = (points){ .n = 0 };
    o.log = NULL; /* said before */
    st = dti_predict_open(dir, &o, &run);
    if (st == DT_OK) st = run_forms(&run, &o, &p, out);
    forget(&p);
    dti_prediction_free(&run);
    DT_TRY(st);
    return DT_OK;
}
