/* SPDX-License-Identifier: Apache-2.0
 *
 * The bytes of parameters, from the ranks that hold them into the files. A rank's rows of a
 * parameter that is cut along its first axis lie together in the file: it writes them. What is cut
 * otherwise (columns, packed blocks, kv heads that neighbours share) is moved into rows first, so
 * that a disk gets few large writes and every byte once. Of replicas the first writes. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/dtype.h"
#include "base/io_status.h"
#include "dtensor/host.h"
#include "files/checkpoint.h"
#include "files/convert.h"
#include "files/input.h"
#include "files/output.h"
#include "mesh/runtime.h"
#include "parallel_styles/kind.h"
#include "weights/saving/save.h"

enum { CHUNK_ELEMENTS = 1 << 18 };

static bool same_shape(const dt_tensor *a, const dt_tensor *b)
{
    bool same = dt_tensor_n_axes(a) == dt_tensor_n_axes(b);

    for (int i = 0; same && i < dt_tensor_n_axes(a); i++)
        same = dt_tensor_extent(a, i) == dt_tensor_extent(b, i);
    return same;
}

/* Cuts of rows that have a place among others keep their order, those without come behind. */
static void number_cuts(dt_placement *want, int n_dims)
{
    int dims[DT_MAX_DIMS], n = 0;
    bool any = false;

    for (int m = 0; m < n_dims; m++) {
        int at = n;
        if (want[m].kind != DT_PLACE_SHARD) continue;
        any = any || want[m].order > 0;
        while (at > 0 && want[m].order > 0 &&
               (want[dims[at - 1]].order == 0 || want[dims[at - 1]].order > want[m].order)) {
            dims[at] = dims[at - 1];
            at--;
        }
        dims[at] = m;
        n++;
    }
    for (int i = 0; i < n && any; i++) want[dims[i]].order = i + 1;
}

void dti_save_rows(const dt_tensor *x, int axis, dt_placement want[DT_MAX_DIMS], bool *writes)
{
    const dt_mesh *mesh = dt_tensor_mesh(x);
    bool cuts[DT_MAX_DIMS]; /* rows, as they are wanted */

    *writes = true;
    for (int m = 0; m < dt_mesh_n_dims(mesh); m++) {
        const dt_placement p = dt_layout_placement(dt_tensor_layout(x), m);
        cuts[m] = p.kind == DT_PLACE_SHARD && p.axis == axis && p.replicas <= 1 && p.n_blocks == 0;
        want[m] = p;
        if (p.kind == DT_PLACE_REPLICATE && dt_mesh_coord(mesh, m) > 0) *writes = false;
        if (p.kind != DT_PLACE_REPLICATE && !cuts[m]) want[m] = DT_SHARD(axis);
    }
    number_cuts(want, dt_mesh_n_dims(mesh));
}

dt_status dti_save_open(dti_save_file *f)
{
    char label[DTI_INPUT_LABEL_BYTES];

    if (f->fd >= 0) return DT_OK;
    f->fd = open(f->temporary, O_WRONLY | O_CLOEXEC);
    DT_CHECK(f->fd >= 0, dti_io_status(errno),
             "%s: cannot be opened: %s; every rank writes its part, so all hosts need the folder "
             "under the same name",
             dti_printable(f->temporary, label, sizeof label), strerror(errno));
    return DT_OK;
}

/* n elements from `data` on, as the file's dtype. */
dt_status dti_save_elements(dti_save_file *f, const dt_local *from, dt_dtype dtype, int64_t n,
                            int64_t at)
{
    const int64_t size = (int64_t)dt_dtype_size(dtype);
    const int64_t from_size = (int64_t)dt_dtype_size(from->dtype);
    dt_status st = DT_OK;
    void *buffer;

    if (from->dtype == dtype)
        return dti_write_at(f->fd, f->temporary, from->data, (size_t)(n * size), at);
    DT_TRY(dti_alloc(CHUNK_ELEMENTS * sizeof(double), &buffer));
    for (int64_t first = 0; first < n && st == DT_OK; first += CHUNK_ELEMENTS) {
        const int64_t count = n - first < CHUNK_ELEMENTS ? n - first : CHUNK_ELEMENTS;
        dti_convert(buffer, dtype, (const char *)from->data + first * from_size, from->dtype,
                    count);
        if (dtype == DT_F16 || dtype == DT_BF16)
            DT_CHECK_TO(
                done, st,
                dti_count_overflows(buffer, dtype, (const char *)from->data + first * from_size,
                                    from->dtype, count) == 0,
                DT_ERR_ARG, "numbers beyond %s do not fit %s; save it as %sf32",
                dti_largest_text(dtype), dt_dtype_name(dtype), dtype == DT_F16 ? "bf16 or " : "");
        st = dti_write_at(f->fd, f->temporary, buffer, (size_t)(count * size), at + first * size);
    }
done:
    dti_free(buffer);
    return st;
}

/* Rows [first, first + n) of the transposed of `from`, a matrix [out, in]. */
static void transpose(const dt_local *from, int64_t first, int64_t n, void *to)
{
    const size_t size = dt_dtype_size(from->dtype);
    const int64_t out = from->shape[0], in = from->shape[1];

    for (int64_t o = 0; o < out; o++)
        for (int64_t r = 0; r < n; r++)
            memcpy((char *)to + (size_t)(r * out + o) * size,
                   (const char *)from->data + (size_t)(o * in + first + r) * size, size);
}

/* dti_save_elements() of the transposed of `from`, some rows of the file at a time. */
static dt_status write_transposed(dti_save_file *f, const dt_local *from, dt_dtype dtype,
                                  int64_t at)
{
    const int64_t out = from->shape[0], in = from->shape[1];
    const int64_t most = out < CHUNK_ELEMENTS ? CHUNK_ELEMENTS / out : 1;
    dt_local some = *from;
    dt_status st = DT_OK;

    DT_TRY(dti_alloc_array((size_t)(most * out), dt_dtype_size(from->dtype), &some.data));
    for (int64_t first = 0; first < in && st == DT_OK; first += most) {
        const int64_t n = in - first < most ? in - first : most;
        transpose(from, first, n, some.data);
        st = dti_save_elements(f, &some, dtype, n * out,
                               at + first * out * (int64_t)dt_dtype_size(dtype));
    }
    dti_free(some.data);
    return st;
}

/* The same of experts [e, out, in], matrix by matrix. */
static dt_status write_reversed(dti_save_file *f, const dt_local *from, dt_dtype dtype, int64_t at)
{
    const int64_t elements = from->shape[1] * from->shape[2];
    dt_local one = *from;

    if (from->n_axes < 3) return write_transposed(f, from, dtype, at);
    one.n_axes = 2;
    memcpy(one.shape, from->shape + 1, 2 * sizeof *one.shape);
    for (int64_t e = 0; e < from->shape[0]; e++) {
        one.data = (char *)from->data + (size_t)(e * elements) * dt_dtype_size(from->dtype);
        DT_TRY(write_transposed(f, &one, dtype, at + e * elements * (int64_t)dt_dtype_size(dtype)));
    }
    return DT_OK;
}

/* Numbers of this rank's that cannot be saved are told when all have come to the end: others may
 * wait for it in a move. */
static dt_status refuse(dti_saver *s, size_t i, dt_status st)
{
    if (st != DT_ERR_ARG) return st;
    dti_error_prefix("tensor \"%s\"", s->specs[i].name);
    if (s->refused.code == DT_OK) s->refused = *dt_last_error();
    return DT_OK;
}

static dt_status check_finite(const dt_local *from, int64_t n)
{
    dti_ckpt_scan seen = { .first = -1 };

    dti_ckpt_scan_block(from->dtype, from->data, n, &seen);
    DT_CHECK(seen.first < 0, DT_ERR_ARG, "%lld of %lld numbers are not finite (%lld NaN)",
             (long long)(seen.n_nan + seen.n_infinite), (long long)n, (long long)seen.n_nan);
    return DT_OK;
}

static dt_status write_tensor(dti_saver *s, dti_save_file *f, size_t i, dt_tensor *x)
{
    const bool reversed = s->values[i].reversed;
    const dt_dtype dtype = s->values[i].words ? dt_tensor_dtype(x) : s->specs[i].dtype;
    const int axis = reversed && dt_tensor_n_axes(x) == 2 ? 1 : 0; /* of the file's rows */
    dt_placement want[DT_MAX_DIMS];
    dt_tensor *rows = NULL;
    const dt_local *local;
    int64_t n = 1, row = 1;
    dt_status st = DT_OK;
    dti_host host;
    bool writes;

    dti_save_rows(x, axis, want, &writes);
    DT_TRY(dt_redistribute(x, want, &rows));
    local = dt_tensor_local(rows);
    for (int a = 0; a < local->n_axes; a++) {
        n *= local->shape[a];
        if (a != axis) row *= local->shape[a];
    }
    if (n > 0 && writes) {
        const int64_t first = local->n_axes > 0 ? local->offset[axis] * row : 0;
        const int64_t at = f->plan.begin[i - f->first] + first * (int64_t)dt_dtype_size(dtype);
        DT_TRY_TO(done, st, dti_save_open(f));
        DT_TRY_TO(done, st, dti_host_open(rows, DTI_HOST_READS, &host));
        if (s->finite) st = check_finite(&host.local, n);
        if (st == DT_OK)
            st = reversed ? write_reversed(f, &host.local, dtype, at)
                          : dti_save_elements(f, &host.local, dtype, n, at);
        DT_TRY_TO(done, st, dti_host_close(&host, refuse(s, i, st)));
    }
done:
    dt_tensor_release(&rows);
    return st;
}

/* What the kind makes of it and its adapters is there while it is written. */
static dt_status write_merged(dti_saver *s, dti_save_file *f, size_t i)
{
    const dti_saved *v = &s->values[i];
    dt_status st = DT_OK;
    dt_tape *t = NULL;
    dt_tensor *x;

    DT_TRY(dt_tape_create(dt_mesh_runtime(dt_layers_mesh(s->layers)), &t));
    x = dti_kind_merged(dt_layer_kind_of(v->merge))(t, v->merge, v->param);
    DT_TRY_TO(done, st, dt_tape_status(t));
    DT_CHECK_TO(done, st, x != NULL && same_shape(x, v->x), DT_ERR_ARG,
                "tensor \"%s\": what \"%s\" merges has another shape than the parameter",
                s->specs[i].name, dt_layer_kind_of(v->merge)->name);
    DT_TRY_TO(done, st, write_tensor(s, f, i, x));
done:
    dt_tape_release(&t);
    return st;
}

static dt_status write_value(dti_saver *s, dti_save_file *f, size_t i)
{
    if (!dt_mesh_is_member(dt_tensor_mesh(s->values[i].x))) return DT_OK; /* of another stage */
    if (s->values[i].merge != NULL) return write_merged(s, f, i);
    if (s->values[i].rows > 0) return dti_save_expert(s, f, i);
    return write_tensor(s, f, i, s->values[i].x);
}

/* Hosts keep what they wrote in memory of their own: each brings its part to the disk. */
static dt_status sync_file(dti_save_file *f)
{
    char label[DTI_INPUT_LABEL_BYTES];

    if (f->fd < 0) return DT_OK;
    DT_CHECK(fsync(f->fd) == 0, dti_io_status(errno), "%s: its bytes cannot be kept: %s",
             dti_printable(f->temporary, label, sizeof label), strerror(errno));
    (void)close(f->fd);
    f->fd = -1;
    return DT_OK;
}

dt_status dti_save_values(dti_saver *s, const dt_save_options *o)
{
    const bool speaks = dt_runtime_rank(dt_mesh_runtime(dt_layers_mesh(s->layers))) == 0;
    int64_t done = 0;

    for (size_t k = 0; k < s->n_files; k++) {
        dti_save_file *f = &s->files[k];
        for (size_t i = f->first; i < f->first + f->n; i++) {
            int64_t bytes = (int64_t)dt_dtype_size(s->specs[i].dtype);
            DT_TRY(write_value(s, f, i));
            for (int a = 0; a < s->specs[i].n_axes; a++) bytes *= s->specs[i].shape[a];
            done += bytes;
            if (o->progress != NULL && speaks) o->progress(o->progress_arg, done, s->bytes);
        }
        DT_TRY(sync_file(f));
    }
    return DT_OK;
}
