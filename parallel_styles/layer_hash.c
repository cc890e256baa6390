/* SPDX-License-Identifier: Apache-2.0 */
#include "parallel_styles/layer_hash.h"

#include <string.h>

#include "base/numbers.h"
#include "parallel_styles/layers_internal.h"
#include "placements/layout.h"

static uint64_t number(uint64_t hash, int64_t n)
{
    return dti_hash_word(hash, (uint64_t)n);
}

static uint64_t passes(uint64_t hash, const dt_passes *p)
{
    hash = number(hash, p->n);
    for (int i = 0; i < (p->n > 0 ? p->n : 1); i++) {
        const dt_lay both[] = { p->of[i].to, p->of[i].comes };
        for (int k = 0; k < 2; k++) {
            hash = number(hash, both[k].kind);
            hash = number(hash, both[k].kind == DT_LAY_SHARD ? both[k].axis : 0);
        }
    }
    return hash;
}

static uint64_t of_style(uint64_t hash, const dt_style *s)
{
    if (s == NULL) return number(hash, 0);
    hash = dti_hash_text(dti_hash_text(dti_hash_text(hash, s->name), s->kinds), s->twin);
    hash = passes(passes(number(hash, s->cut), &s->in), &s->out);
    return number(hash, (s->partition_param != NULL) | (s->prepare_input != NULL) << 1 |
                            (s->prepare_output != NULL) << 2 | (s->prepare_param != NULL) << 3 |
                            (s->validate != NULL) << 4 | (s->user != NULL) << 5);
}

static uint64_t of_kind(uint64_t hash, const dt_layer_kind *k)
{
    for (; k != NULL; k = k->like) {
        hash = dti_hash_text(
            dti_hash_text(dti_hash_text(dti_hash_text(hash, k->name), k->axes), k->values),
            k->run_by);
        hash = number(number(number(hash, k->columns), k->rows), k->picks);
        hash = number(hash, k->ids | (k->forward != NULL) << 1 | (k->check != NULL) << 2 |
                                (k->merged != NULL) << 3);
        for (int p = 0; p < DT_LAYER_MAX_PARAMS && k->params[p].name != NULL; p++)
            hash = number(dti_hash_text(dti_hash_text(hash, k->params[p].name), k->params[p].axes),
                          k->params[p].optional | k->params[p].frozen << 1 |
                              k->params[p].added << 2 | k->params[p].bare << 3 |
                              k->params[p].adapter << 4 | k->params[p].wide << 5);
        for (int s = 0; s < dti_kind_n_states(k); s++)
            hash = number(dti_hash_text(dti_hash_text(hash, k->states[s].name), k->states[s].axes),
                          k->states[s].slots);
    }
    return hash;
}

static uint64_t of_axis(uint64_t hash, const dt_axis *axis)
{
    return number(number(hash, axis->extent), axis->unit);
}

static uint64_t of_spec(uint64_t hash, const dt_layer_spec *spec)
{
    uint32_t eps;

    memcpy(&eps, &spec->eps, sizeof eps);
    hash = number(dti_hash_text(hash, spec->with), eps);
    hash = number(number(hash, spec->reversed), spec->own != NULL);
    hash = number(number(number(hash, spec->step[0]), spec->step[1]), spec->packing.group);
    hash = number(number(hash, spec->packing.bits), spec->packing.form);
    hash = number(number(hash, spec->packing.floats), spec->packing.wide);
    hash = number(number(number(hash, spec->heads.n_heads), spec->heads.n_kv_heads),
                  spec->heads.head_dim);
    for (int a = 0; a < DT_LAYER_MAX_AXES; a++) hash = of_axis(hash, &spec->axis[a]);
    for (int a = 0; a < 2; a++) {
        hash = number(dti_hash_text(hash, spec->parts[a]), spec->blocks[a].n);
        for (int b = 0; b < spec->blocks[a].n; b++) hash = of_axis(hash, &spec->blocks[a].block[b]);
    }
    return hash;
}

uint64_t dti_layer_hash(const dt_layer *layer)
{
    uint64_t hash =
        of_spec(of_kind(dti_hash_text(11, layer->name), layer->spec.kind), &layer->spec);

    hash = dti_hash_text(hash, layer->tied_to != NULL ? layer->tied_to->name : NULL);
    hash = number(hash, layer->forward != NULL);
    for (int d = 0; d < dt_mesh_n_dims(layer->mesh); d++)
        hash = of_style(of_style(hash, layer->style[d]), layer->step[d]);
    for (int p = 0; p < layer->n_params; p++)
        hash = number(hash, layer->layout[p] != NULL ? (int64_t)layer->layout[p]->hash : 0);
    return hash;
}
