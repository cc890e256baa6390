/* SPDX-License-Identifier: Apache-2.0
 *
 * What layers carry from pass to pass: for each state of each layer what the last pass left, and
 * what the pass that runs has left so far. */
#include <string.h>

#include "base/memory.h"
#include "base/text.h"
#include "dtensor/create.h"
#include "mesh/runtime.h"
#include "parallel_styles/changes.h"
#include "parallel_styles/layers_internal.h"
#include "placements/layout.h"

static const dti_live carried_states = { "carried state", "carried states" };

typedef struct kept {
    dt_tensor *now;  /* NULL: zeros, of which the first pass says the dtype */
    dt_tensor *next; /* NULL: as it is */
} kept;

struct dt_carry {
    dt_layers *list;
    kept *states; /* [list->n_states] */
    bool slots;   /* states are those of slots, whatever the sequences of a pass */
};

dt_status dt_carry_create(dt_layers *layers, dt_carry **out)
{
    dt_status st = DT_OK;
    dt_carry *c;

    DT_CHECK(out != NULL, DT_ERR_ARG, "out is NULL");
    *out = NULL;
    DT_CHECK(layers != NULL, DT_ERR_ARG, "layers is NULL");
    DT_TRY(dti_new(sizeof *c, &c));
    c->list = layers;
    DT_TRY_TO(fail, st,
              dti_alloc_array((size_t)layers->n_states, sizeof *c->states, (void **)&c->states));
    dti_runtime_count(dt_mesh_runtime(layers->mesh), &carried_states, 1);
    *out = c;
    return DT_OK;

fail:
    dti_free(c);
    return st;
}

static void forget_next(dt_carry *c)
{
    for (int i = 0; i < c->list->n_states; i++) dt_tensor_release(&c->states[i].next);
}

void dt_carry_clear(dt_carry *c)
{
    if (c == NULL) return;
    forget_next(c);
    for (int i = 0; i < c->list->n_states; i++) dt_tensor_release(&c->states[i].now);
}

void dt_carry_release(dt_carry **carry)
{
    dt_carry *c = carry != NULL ? *carry : NULL;

    if (c == NULL) return;
    *carry = NULL;
    dt_carry_clear(c);
    if (c->list->carry == c) c->list->carry = NULL;
    dti_runtime_count(dt_mesh_runtime(c->list->mesh), &carried_states, -1);
    dti_free(c->states);
    dti_free(c);
}

dt_carry *dt_layers_carry(dt_layers *layers, dt_carry *carry)
{
    dt_carry *before;

    if (layers == NULL) return NULL;
    before = layers->carry;
    layers->misled = carry != NULL && carry->list != layers;
    if (layers->misled) carry = NULL;
    layers->carry = carry;
    if (carry != NULL) forget_next(carry); /* of a pass that failed */
    return before;
}

bool dt_layers_carry_states(const dt_layers *layers)
{
    return layers != NULL && layers->n_states > 0;
}

void dt_carry_commit(dt_carry *c)
{
    for (int i = 0; c != NULL && i < c->list->n_states; i++) {
        kept *k = &c->states[i];
        if (k->next == NULL) continue;
        dt_tensor_release(&k->now);
        k->now = k->next;
        k->next = NULL;
        dti_tensor_set_kind(k->now, DTI_KIND_CACHES);
    }
}

/* --- sequences, copied and moved ---------------------------------------------------------- */

/* The same layout for n sequences. Those that are repeated side by side stay on their rank. */
static dt_status layout_of(const dt_tensor *x, int64_t n, const dt_layout **out)
{
    const int64_t batch = dt_tensor_extent(x, 0);

    *out = dt_tensor_layout(x);
    for (int m = 0; m < dt_mesh_n_dims(dt_tensor_mesh(x)); m++) {
        dt_placement cut = dt_layout_placement(*out, m), plain = DT_SHARD(0);
        if (cut.kind != DT_PLACE_SHARD || cut.axis != 0) continue;
        plain.unit = batch > 0 && n % batch == 0 ? cut.unit * (n / batch) : cut.unit;
        DT_TRY(dti_layout_with(*out, m, &plain, out));
    }
    return DT_OK;
}

static dt_status whole_rows(dt_tensor *x, dt_tensor **out)
{
    dt_placement place[DT_MAX_DIMS];

    dt_layout_placements(dt_tensor_layout(x), place);
    for (int m = 0; m < dt_mesh_n_dims(dt_tensor_mesh(x)); m++)
        if (place[m].kind == DT_PLACE_SHARD && place[m].axis == 0) place[m] = DT_REPLICATE;
    DT_TRY(dt_redistribute(x, place, out));
    return DT_OK;
}

/* Has every rank what its sequences become? All ranks find the same, for at most one dim cuts. */
static bool rows_stay(const dt_tensor *x, const dt_layout *to, int n, const int64_t *from)
{
    const dt_layout *layout = dt_tensor_layout(x);
    int dims[DT_MAX_DIMS], coord[DT_MAX_DIMS] = { 0 };
    const int n_cuts = dti_layout_cuts(layout, 0, dims);

    if (n_cuts != 1) return n_cuts == 0;
    for (int *at = &coord[dims[0]]; *at < layout->dim_size[dims[0]]; ++*at) {
        int64_t first, count, begin, rows;
        dti_layout_axis_extent(layout, 0, dt_tensor_extent(x, 0), coord, &first, &count);
        dti_layout_axis_extent(to, 0, n, coord, &begin, &rows);
        for (int64_t i = begin; i < begin + rows; i++)
            if (from[i] < first || from[i] >= first + count) return false;
    }
    return true;
}

/* Of one sequence, on this rank. */
static int64_t row_bytes(const dt_tensor *x)
{
    const dt_local *local = dt_tensor_local(x);
    int64_t n = (int64_t)dt_dtype_size(local->dtype);

    for (int a = 1; a < local->n_axes; a++) n *= local->shape[a];
    return dt_mesh_is_member(dt_tensor_mesh(x)) ? n : 0;
}

/* Of sequences that this rank has, in x; those that go elsewhere are sent behind that. */
static dt_status copy_rows(const dt_tensor *x, const dt_layout *layout, int n, const int64_t *from,
                           dt_tensor **out)
{
    const dt_local *local = dt_tensor_local(x);
    int64_t shape[DT_MAX_AXES] = { n };
    const int64_t row = row_bytes(x);
    const dt_local *mine;
    dt_tensor *y;

    for (int a = 1; a < dt_tensor_n_axes(x); a++) shape[a] = dt_tensor_extent(x, a);
    DT_TRY(dti_tensor_create_exact(dt_tensor_mesh(x), layout, local->dtype, shape, &y));
    mine = dt_tensor_local(y);
    for (int64_t i = 0; i < mine->shape[0] && row > 0; i++) {
        const int64_t at = from[mine->offset[0] + i] - local->offset[0];
        const dt_status st = dti_tensor_copy_bytes(y, i * row, x, at * row, row);
        if (st != DT_OK) dt_tensor_release(&y);
        DT_TRY(st);
    }
    *out = y;
    return DT_OK;
}

static dt_status select_rows(kept *k, int n, const int64_t *from)
{
    dt_tensor *whole = NULL, *rows = NULL, *chosen = NULL;
    dt_placement place[DT_MAX_DIMS];
    const dt_layout *to;
    dt_status st = DT_OK;

    for (int i = 0; i < n; i++)
        DT_CHECK(from[i] >= 0 && from[i] < dt_tensor_extent(k->now, 0), DT_ERR_ARG,
                 "sequence %lld of a batch of %lld", (long long)from[i],
                 (long long)dt_tensor_extent(k->now, 0));
    DT_TRY(layout_of(k->now, n, &to));
    if (rows_stay(k->now, to, n, from)) {
        DT_TRY(copy_rows(k->now, to, n, from, &chosen));
    } else {
        dt_layout_placements(to, place);
        DT_TRY_TO(done, st, whole_rows(k->now, &whole));
        DT_TRY_TO(done, st, copy_rows(whole, dt_tensor_layout(whole), n, from, &rows));
        DT_TRY_TO(done, st, dt_redistribute(rows, place, &chosen));
    }
    dti_tensor_set_kind(chosen, DTI_KIND_CACHES);
    dt_tensor_release(&k->now);
    k->now = chosen;
done:
    dt_tensor_release(&rows);
    dt_tensor_release(&whole);
    return st;
}

dt_status dt_carry_select(dt_carry *c, int n, const int64_t *from)
{
    DT_CHECK(c != NULL && from != NULL && n >= 1, DT_ERR_ARG, "carry or from is NULL, or n is %d",
             n);
    forget_next(c);
    for (int i = 0; i < c->list->n_states; i++)
        if (c->states[i].now != NULL) DT_TRY(select_rows(&c->states[i], n, from));
    return DT_OK;
}

int64_t dti_carry_bytes(const dt_carry *c)
{
    int64_t bytes = 0;

    for (int i = 0; c != NULL && i < c->list->n_states; i++) {
        const dt_tensor *now = c->states[i].now;
        if (now != NULL) bytes += dt_tensor_local(now)->shape[0] * row_bytes(now);
    }
    return bytes;
}

/* --- slots ------------------------------------------------------------------------------------ */

const char *dti_layers_without_slots(const dt_layers *layers, const char **name)
{
    for (int i = 0; layers != NULL && i < layers->n; i++) {
        const dt_layer *layer = &layers->layers[i];
        for (int s = 0; s < layer->n_states; s++) {
            *name = layer->name;
            if (!layer->spec.kind->states[s].slots) return layer->spec.kind->states[s].name;
        }
    }
    return NULL;
}

static dt_status set_slots(dt_tensor **x, int64_t n)
{
    dt_mesh *mesh = dt_tensor_mesh(*x);
    const dt_layout *layout = dt_tensor_layout(*x);
    const dt_dtype dtype = dt_tensor_dtype(*x);
    int64_t shape[DT_MAX_AXES] = { n };

    for (int a = 1; a < dt_tensor_n_axes(*x); a++) shape[a] = dt_tensor_extent(*x, a);
    dt_tensor_release(x); /* before: there is no room for both */
    DT_TRY(dti_tensor_create_exact(mesh, layout, dtype, shape, x));
    dti_tensor_set_kind(*x, DTI_KIND_CACHES);
    return DT_OK;
}

dt_status dti_carry_set_slots(dt_carry *c, int64_t n)
{
    c->slots = true;
    forget_next(c);
    for (int i = 0; i < c->list->n_states; i++)
        if (c->states[i].now != NULL) DT_TRY(set_slots(&c->states[i].now, n));
    return DT_OK;
}

dt_status dti_carry_copy_slot(dt_carry *c, int64_t from, int64_t to)
{
    for (int i = 0; i < c->list->n_states; i++) {
        dt_tensor *x = c->states[i].now;
        const dt_local *local = x != NULL ? dt_tensor_local(x) : NULL;
        const int64_t bytes = x != NULL ? row_bytes(x) : 0;
        if (bytes == 0 || from < local->offset[0] || from >= local->offset[0] + local->shape[0])
            continue;
        DT_TRY(dti_tensor_copy_bytes(x, (to - local->offset[0]) * bytes, x,
                                     (from - local->offset[0]) * bytes, bytes));
    }
    return DT_OK;
}

/* --- what a layer gets and leaves --------------------------------------------------------- */

/* How axis `letter` of the layer's parameters lies on mesh dim m; whole where a style has the
 * parameter prepared for the computation. */
static dt_placement place_of(const dt_layer *layer, char letter, int m)
{
    const dt_style *style = layer->style[m];

    if (style != NULL && style->prepare_param != NULL) return DT_REPLICATE;
    for (int p = 0; p < layer->n_params; p++) {
        const char *axes = layer->spec.kind->params[p].axes;
        const char *at = dt_layer_has_param(layer, p) ? strchr(axes, letter) : NULL;
        dt_placement place;
        if (at == NULL) continue;
        place = dt_layout_placement(layer->whole[p], m);
        if (place.kind == DT_PLACE_SHARD && place.axis == (int)(at - axes)) return place;
    }
    return DT_REPLICATE;
}

/* [sequences of x, axes of the kind's letters]; the sequences lie as those of x do. */
static dt_status make_zeros(const dt_layer *layer, int state, const dt_tensor *x, dt_tensor **out)
{
    char letters[DT_PARAM_MAX_AXES];
    int64_t plus[DT_PARAM_MAX_AXES], shape[DT_PARAM_MAX_AXES + 1] = { dt_tensor_extent(x, 0) };
    const int n = dti_kind_state(layer->spec.kind, state, letters, plus);
    dt_mesh *mesh = layer->mesh;
    dt_placement place[DT_MAX_DIMS] = { { 0 } };
    const dt_layout *layout;

    for (int a = 0; a < n; a++) shape[a + 1] = dt_layer_extent(layer, letters[a]) + plus[a];
    for (int a = 0; a < n; a++)
        DT_CHECK(shape[a + 1] >= 0, DT_ERR_ARG, "state \"%s\" has axis %d of %lld",
                 layer->spec.kind->states[state].name, a, (long long)shape[a + 1]);
    for (int m = 0; m < dt_mesh_n_dims(mesh); m++) {
        const dt_placement of_x = dt_layout_placement(dt_tensor_layout(x), m);
        if (of_x.kind == DT_PLACE_SHARD && of_x.axis == 0) place[m] = of_x;
        for (int a = 0; a < n && place[m].kind == DT_PLACE_REPLICATE; a++) {
            place[m] = place_of(layer, letters[a], m);
            if (place[m].kind == DT_PLACE_SHARD) place[m].axis = a + 1;
        }
    }
    DT_TRY(dt_layout_get(mesh, n + 1, place, NULL, &layout));
    DT_TRY(dti_tensor_create_exact(mesh, layout, dt_tensor_dtype(x), shape, out));
    return DT_OK;
}

static bool has_state(dt_tape *t, const dt_layer *layer, int state, const dt_tensor *x)
{
    if (dt_tape_status(t) != DT_OK) return false;
    if (layer == NULL || x == NULL || state < 0 || state >= layer->n_states ||
        dt_tensor_n_axes(x) < 1)
        return dt_tape_fail(t, DT_ERR_ARG, "layer or tensor is NULL, or there is no state %d",
                            state) != NULL;
    if (layer->list->misled)
        return dt_tape_fail(t, DT_ERR_ARG,
                            "%s: dt_layers_carry() has got the carry of other layers",
                            layer->name) != NULL;
    return true;
}

static kept *kept_of(const dt_layer *layer, int state)
{
    dt_carry *c = layer->list->carry;

    return c != NULL ? &c->states[layer->first_state + state] : NULL;
}

/* Sequences lie as those of x do, whatever the last pass left. */
static dt_tensor *with_rows_of(dt_tape *t, dt_tensor *state, const dt_tensor *x)
{
    for (int m = 0; m < dt_mesh_n_dims(dt_tensor_mesh(state)); m++) {
        const dt_placement of_x = dt_layout_placement(dt_tensor_layout(x), m);
        const dt_placement now = dt_layout_placement(dt_tensor_layout(state), m);
        const bool cut = of_x.kind == DT_PLACE_SHARD && of_x.axis == 0;
        if (!cut && (now.kind != DT_PLACE_SHARD || now.axis != 0)) continue;
        if (!dti_placement_equal(&of_x, &now))
            state = dt_move_dim(t, state, m, cut ? of_x : DT_REPLICATE);
    }
    return state;
}

dt_tensor *dt_layer_state(dt_tape *t, const dt_layer *layer, int state, dt_tensor *x)
{
    dt_tensor *zeros;
    dt_status st;
    kept *k;

    if (!has_state(t, layer, state, x)) return NULL;
    k = kept_of(layer, state);
    if (k != NULL && k->now != NULL) {
        if (layer->list->carry->slots)
            return dt_tape_fail(t, DT_ERR_ARG,
                                "%s: state \"%s\" lies in slots: dt_carried_conv() or "
                                "dt_carried_delta() read it",
                                layer->name, layer->spec.kind->states[state].name);
        if (dt_tensor_extent(k->now, 0) == dt_tensor_extent(x, 0))
            return with_rows_of(t, k->now, x);
        return dt_tape_fail(
            t, DT_ERR_ARG, "%s carries state \"%s\" of %lld sequences, but is given %lld",
            layer->name, layer->spec.kind->states[state].name,
            (long long)dt_tensor_extent(k->now, 0), (long long)dt_tensor_extent(x, 0));
    }
    st = make_zeros(layer, state, x, &zeros);
    return st == DT_OK ? dti_tape_push(t, zeros) : dti_tape_latch(t, st);
}

dt_tensor *dti_layer_slots(dt_tape *t, const dt_layer *layer, int state)
{
    const dt_carry *c = layer != NULL ? layer->list->carry : NULL;
    const bool has = c != NULL && c->slots && state >= 0 && state < layer->n_states;
    dt_tensor *x = has ? c->states[layer->first_state + state].now : NULL;

    if (x != NULL || dt_tape_status(t) != DT_OK) return x;
    return dt_tape_fail(t, DT_ERR_ARG, "%s has no state %d in slots",
                        layer != NULL ? layer->name : "a layer that is NULL", state);
}

static bool has_shape(const dt_layer *layer, int state, const dt_tensor *value)
{
    char letters[DT_PARAM_MAX_AXES];
    int64_t plus[DT_PARAM_MAX_AXES];
    const int n = dti_kind_state(layer->spec.kind, state, letters, plus);
    bool same = dt_tensor_n_axes(value) == n + 1;

    for (int a = 0; a < n && same; a++)
        same = dt_tensor_extent(value, a + 1) == dt_layer_extent(layer, letters[a]) + plus[a];
    return same;
}

void dt_layer_set_state(dt_tape *t, const dt_layer *layer, int state, dt_tensor *value)
{
    kept *k;

    if (!has_state(t, layer, state, value)) return;
    if (!has_shape(layer, state, value)) {
        int64_t shape[DT_MAX_AXES];
        char text[DTI_SHAPE_BYTES];
        for (int a = 0; a < dt_tensor_n_axes(value); a++) shape[a] = dt_tensor_extent(value, a);
        (void)dt_tape_fail(t, DT_ERR_SHAPE, "%s: state \"%s\", [batch, %s], cannot be %s",
                           layer->name, layer->spec.kind->states[state].name,
                           layer->spec.kind->states[state].axes,
                           dti_shape_text(shape, dt_tensor_n_axes(value), text, sizeof text));
        return;
    }
    k = kept_of(layer, state);
    if (k == NULL) return;
    dt_tensor_release(&k->next);
    k->next = dt_tensor_retain(value);
}
