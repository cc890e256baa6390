/* SPDX-License-Identifier: Apache-2.0
 *
 * Gradients as one safetensors file: whole tensors are gathered one after the other, in the order
 * in which the file holds them, and the mesh's first rank writes. */
#include <stdlib.h>
#include <string.h>

#include "dtensor/host.h"
#include "mesh/runtime.h"
#include "weights/saving/save.h"

typedef struct gradient_file {
    dti_saver saver;
    const dt_gradients *gradients;
    size_t *order;   /* [n] tensors as the file holds them: all f32, so by name */
    size_t gathered; /* of them so far */
    dt_tensor *whole;
    dti_host host; /* of `whole` */
    bool is_open;
} gradient_file;

static dt_status let_go(gradient_file *f)
{
    const dt_status st = f->is_open ? dti_host_close(&f->host, DT_OK) : DT_OK;

    f->is_open = false;
    dt_tensor_release(&f->whole);
    return st;
}

/* The next one, on every rank; NULL where no backward pass has reached the parameter. */
static dt_status gather_next(gradient_file *f)
{
    dt_tensor *x = dt_gradient(f->gradients, f->saver.values[f->order[f->gathered]].x);

    DT_TRY(let_go(f));
    f->gathered++;
    if (x == NULL) return DT_OK;
    DT_TRY(dt_full_tensor(x, &f->whole));
    DT_TRY(dti_host_open(f->whole, DTI_HOST_READS, &f->host));
    f->is_open = true;
    return DT_OK;
}

/* The writer asks in the file's order. */
static dt_status fill(void *arg, size_t i, int64_t first, int64_t count, void *to)
{
    gradient_file *f = arg;
    const dti_st_spec *spec = &f->saver.specs[i];
    const float *from;
    float *out = to;

    while (f->gathered == 0 || f->order[f->gathered - 1] != i) DT_TRY(gather_next(f));
    if (!f->is_open) {
        memset(to, 0, (size_t)count * sizeof *out);
        return DT_OK;
    }
    from = f->host.local.data;
    if (!f->saver.values[i].reversed)
        memcpy(to, from + first, (size_t)count * sizeof *out);
    else /* the file's rows are columns here */
        for (int64_t k = 0; k < count; k++)
            out[k] =
                from[(first + k) % spec->shape[1] * spec->shape[0] + (first + k) / spec->shape[1]];
    return DT_OK;
}

static void sort_by_name(gradient_file *f)
{
    for (size_t i = 0; i < f->saver.n; i++) {
        size_t at = i;
        for (; at > 0 && strcmp(f->saver.specs[f->order[at - 1]].name, f->saver.specs[i].name) > 0;
             at--)
            f->order[at] = f->order[at - 1];
        f->order[at] = i;
    }
}

/* Ranks that do not write gather alike, the writer too after an error of its disk. */
static dt_status write_file(gradient_file *f, const char *path)
{
    const bool first = dti_mesh_place(dt_layers_mesh(f->saver.layers)) == 0;
    dt_status st = DT_OK, written = DT_OK;

    if (first) written = dti_st_write(path, f->saver.specs, f->saver.n, NULL, fill, f);
    const dt_error why = *dt_last_error();
    while (f->gathered < f->saver.n && st == DT_OK) st = gather_next(f);
    st = st == DT_OK ? let_go(f) : st;
    if (written != DT_OK) dti_error_restore(&why);
    DT_TRY(st);
    DT_TRY(dti_first_says(dt_layers_mesh(f->saver.layers), written));
    return DT_OK;
}

dt_status dt_layers_write_gradients(dt_layers *layers, const dt_gradients *gradients,
                                    const char *path)
{
    gradient_file f = { .saver = { .layers = layers, .dtype = DT_F32, .names = DTI_ARENA_INIT },
                        .gradients = gradients };
    dt_status st = DT_OK;

    DT_CHECK(layers != NULL && gradients != NULL && path != NULL && path[0] != '\0', DT_ERR_ARG,
             "layers, gradients or path is NULL");
    DT_CHECK(!dt_runtime_is_dry(dt_mesh_runtime(dt_layers_mesh(layers))), DT_ERR_ARG,
             "gradients on a dry mesh have no values");
    if (!dt_mesh_is_member(dt_layers_mesh(layers))) return DT_OK;
    DT_TRY_TO(done, st, dti_save_list(&f.saver));
    DT_TRY_TO(done, st, dti_alloc_array(f.saver.n, sizeof *f.order, (void **)&f.order));
    sort_by_name(&f);
    st = write_file(&f, path);
done:
    dti_free(f.order);
    dti_free(f.saver.specs);
    dti_free(f.saver.values);
    dti_arena_free(&f.saver.names);
    return st;
}
