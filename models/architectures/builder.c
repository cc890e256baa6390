/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "models/architectures/builder.h"

static dt_status join(dti_arena *arena, const char *prefix, const char *name, const char **out)
{
    const size_t bytes = strlen(prefix) + strlen(name) + 2;
    void *text;

    DT_TRY(dti_arena_alloc(arena, bytes, &text));
    (void)snprintf(text, bytes, prefix[0] ? "%s.%s" : "%s%s", prefix, name);
    *out = text;
    return DT_OK;
}

void dt_builder_settings(dt_builder *b, const dt_row_settings *settings)
{
    if (b != NULL && settings != NULL) b->settings = *settings;
}

dt_status dt_builder_add(dt_builder *b, const char *prefix, const dt_layer_row *rows, int n,
                         void *block)
{
    DT_CHECK(b != NULL && prefix != NULL && block != NULL && n >= 0 && (rows != NULL || n == 0),
             DT_ERR_ARG, "builder, prefix, rows or block is NULL, or there are %d rows", n);
    for (int i = 0; i < n; i++)
        DT_CHECK(rows[i].name != NULL, DT_ERR_ARG, "row %d of \"%s\": a layer needs a name", i,
                 prefix);
    DT_TRY(dti_grow((void **)&b->specs, &b->specs_capacity, (size_t)(b->n + n), sizeof *b->specs));
    DT_TRY(dti_grow((void **)&b->slots, &b->slots_capacity, (size_t)(b->n + n), sizeof *b->slots));
    DT_TRY(dti_grow((void **)&b->keys, &b->keys_capacity, (size_t)(b->n + n), sizeof *b->keys));
    for (int i = 0; i < n; i++) {
        dt_layer_spec *spec = &b->specs[b->n];
        *spec = (dt_layer_spec){ .kind = rows[i].kind,
                                 .axis = { { rows[i].out.extent, rows[i].out.unit },
                                           { rows[i].in.extent, rows[i].in.unit } },
                                 .with = rows[i].bias ? "bias" : NULL,
                                 .eps = b->settings.eps,
                                 .heads = b->settings.heads,
                                 .style = rows[i].style,
                                 .tied_to = rows[i].tied_to };
        DT_TRY(join(&b->arena, prefix, rows[i].name, &spec->name));
        b->keys[b->n][0] = rows[i].out.keys;
        b->keys[b->n][1] = rows[i].in.keys;
        b->slots[b->n++] = (dt_layer **)((char *)block + rows[i].field);
    }
    return DT_OK;
}

void dti_builder_cut_tokens(dti_builder *b)
{
    for (int i = 0; i < b->n; i++)
        b->specs[i].style = dt_sequence_style(b->specs[i].kind, b->specs[i].style);
}

dt_layer_spec *dt_builder_spec(dt_builder *b, const char *name)
{
    const size_t n = name != NULL ? strlen(name) : 0;

    for (int i = b != NULL && name != NULL ? b->n - 1 : -1; i >= 0; i--) {
        const size_t all = strlen(b->specs[i].name);
        if (all >= n && strcmp(b->specs[i].name + all - n, name) == 0) return &b->specs[i];
    }
    return NULL;
}

dt_status dti_builder_finish(dti_builder *b, dt_mesh *mesh, const char *dim, const dt_plan *plan,
                             dt_layers **out)
{
    char name[DT_DIM_NAME_BYTES + 1]; /* a mesh without that dim is legitimate here */

    (void)snprintf(name, sizeof name, "%s?", dim);
    DT_TRY(dt_layers_create(mesh, name, b->specs, b->n, plan, out));
    for (int i = 0; i < b->n; i++) *b->slots[i] = dt_layers_at(*out, i);
    return DT_OK;
}

void dti_builder_free(dti_builder *b)
{
    dti_free(b->specs);
    dti_free(b->slots);
    dti_free((void *)b->keys);
    dti_arena_free(&b->arena);
    *b = (dti_builder){ 0 };
}
