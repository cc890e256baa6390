/* SPDX-License-Identifier: Apache-2.0
 *
 * A rank's boxes on their way into its files. Behind the rank a file is written from an image of
 * it, header and data, that was made by one copy of each box; otherwise box after box from where it
 * lies. */
#include "training/saving/snapshot_files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/io_status.h"
#include "base/text.h"
#include "base/writer.h"
#include "dtensor/host.h"
#include "files/checkpoint.h"
#include "files/checksum.h"
#include "files/input.h"
#include "files/output.h"
#include "mesh/comm/comm.h"
#include "placements/layout.h"

enum { CHUNK = 4 << 20 };

/* --- planning --------------------------------------------------------------------------------- */

static int by_place(const void *left, const void *right)
{
    const dti_part_of_file *a = left, *b = right;

    if (a->at != b->at) return a->at < b->at ? -1 : 1;
    return 0;
}

/* As PyTorch's distributed checkpoints say where a piece lies. */
static void put_offsets(dti_writer *w, const dti_rank_file *f)
{
    dti_put(w, "{");
    for (size_t i = 0; i < f->n; i++) {
        dti_put(w, i > 0 ? ", " : "");
        dti_put_json(w, f->parts[i].tensor->name);
        dti_put(w, ": {\"saved_offsets\": [");
        for (int a = 0; a < f->parts[i].tensor->n_axes; a++)
            dti_put(w, "%s%lld", a > 0 ? ", " : "", (long long)f->parts[i].box->begin[a]);
        dti_put(w, "]}");
    }
    dti_put(w, "}");
}

static dt_status plan_file(dti_rank_file *f)
{
    const char *metadata[] = {
        "format", "pt", "DCP_VERSION", "1.0", "DCP_SHARDING_INFO", NULL, NULL
    };
    dti_st_spec *specs = NULL;
    dti_writer w = { 0 };
    dt_status st = DT_OK;

    put_offsets(&w, f);
    DT_TRY_TO(done, st, dti_alloc(w.used + 1, (void **)&w.text));
    w.bytes = w.used + 1;
    w.used = 0;
    put_offsets(&w, f);
    metadata[5] = w.text;
    DT_TRY_TO(done, st, dti_alloc_array(f->n, sizeof *specs, (void **)&specs));
    for (size_t i = 0; i < f->n; i++) {
        const dti_part_of_file *p = &f->parts[i];
        specs[i] = (dti_st_spec){ p->tensor->name, p->tensor->dtype, p->tensor->n_axes, { 0 } };
        for (int a = 0; a < specs[i].n_axes; a++)
            specs[i].shape[a] = p->box->end[a] - p->box->begin[a];
    }
    DT_TRY_TO(done, st, dti_st_plan(specs, f->n, metadata, &f->plan));
    for (size_t i = 0; i < f->n; i++) f->parts[i].at = f->plan.begin[i];
    qsort(f->parts, f->n, sizeof *f->parts, by_place);
done:
    dti_free(specs);
    dti_free(w.text);
    return st;
}

static dt_status add_parts(dti_rank_files *f, const dti_stored_tensor *t, const size_t *number)
{
    for (size_t i = t->first; i < t->first + t->n; i++) {
        const dti_stored_box *box = &f->of->boxes[i];
        dti_rank_file *to = &f->files[number[box->file]];
        if (number[box->file] == SIZE_MAX) continue;
        DT_TRY(dti_grow((void **)&to->parts, &to->room, to->n + 1, sizeof *to->parts));
        to->parts[to->n++] = (dti_part_of_file){
            .tensor = t,
            .box = box,
            .bytes = dti_box_elements(box, t->n_axes) * (int64_t)dt_dtype_size(t->dtype),
        };
    }
    return DT_OK;
}

dt_status dti_rank_files_plan(dti_rank_files *f, dti_snapshot *s, int place, const char *dir)
{
    size_t *number = NULL; /* of each file of the snapshot among mine */
    dt_status st = DT_OK;

    f->of = s;
    DT_TRY(dti_alloc_array(s->n_files, sizeof *number, (void **)&number));
    DT_TRY_TO(done, st, dti_alloc_array(s->n_files, sizeof *f->files, (void **)&f->files));
    for (size_t i = 0; i < s->n_files; i++) {
        number[i] = s->files[i].place == place ? f->n : SIZE_MAX;
        if (number[i] == SIZE_MAX) continue;
        f->files[f->n].number = i;
        DT_TRY_TO(done, st, dti_ckpt_path(dir, s->files[i].name, &f->files[f->n++].path));
    }
    for (size_t i = 0; i < s->n_tensors; i++)
        DT_TRY_TO(done, st, add_parts(f, &s->tensors[i], number));
    for (size_t i = 0; i < f->n; i++) {
        DT_TRY_TO(done, st, plan_file(&f->files[i]));
        f->bytes += f->files[i].plan.bytes;
    }
done:
    dti_free(number);
    return st;
}

void dti_rank_files_clear(dti_rank_files *f)
{
    for (size_t i = 0; i < f->n; i++) {
        dti_free(f->files[i].path);
        dti_free(f->files[i].parts);
        dti_st_plan_free(&f->files[i].plan);
    }
    dti_free(f->files);
    *f = (dti_rank_files){ .image = f->image, .room = f->room };
}

void dti_rank_files_free(dti_rank_files *f)
{
    dti_rank_files_clear(f);
    dti_big_free(f->image, f->room);
    *f = (dti_rank_files){ 0 };
}

/* --- values ----------------------------------------------------------------------------------- */

/* Where a box lies in the piece that holds it. */
static void box_in_piece(const dti_part_of_file *p, const dt_tensor *x, dti_box *from, dti_box *to)
{
    const dti_stored_tensor *t = p->tensor;
    const dt_local *local = dt_tensor_local(x);
    int64_t piece = 1, box = 1;
    int coord[DT_MAX_DIMS];
    dti_runs runs;

    for (int m = 0; m < t->lies->n_dims; m++) coord[m] = dt_mesh_coord(dt_tensor_mesh(x), m);
    *from = *to = (dti_box){ .n_axes = t->n_axes };
    for (int a = t->n_axes - 1; a >= 0; a--) {
        int64_t row = 0;
        dti_layout_axis_runs(t->lies, a, t->shape[a], coord, &runs);
        for (int i = 0; runs.run[i].begin != p->box->begin[a]; i++)
            row += runs.run[i].end - runs.run[i].begin;
        from->extent[a] = to->extent[a] = p->box->end[a] - p->box->begin[a];
        from->stride[a] = piece;
        to->stride[a] = box;
        from->offset += row * piece;
        piece *= local->shape[a];
        box *= to->extent[a];
    }
}

/* One copy, also from a GPU, where the box is the whole piece, as it nearly always is. */
static dt_status copy_value(const dti_part_of_file *p, dt_tensor *x, void *to)
{
    const size_t size = dt_dtype_size(p->tensor->dtype);
    const dt_local *local = dt_tensor_local(x);
    dti_box from_box, to_box;
    int64_t n = 1;
    dti_host host;

    for (int a = 0; a < local->n_axes; a++) n *= local->shape[a];
    if (n * (int64_t)size == p->bytes) return dt_tensor_read(x, to, (size_t)p->bytes);
    box_in_piece(p, x, &from_box, &to_box);
    DT_TRY(dti_host_open(x, DTI_HOST_READS, &host));
    dti_box_copy(to, &to_box, host.local.data, &from_box, size);
    return dti_host_close(&host, DT_OK);
}

static dt_status copy_part(const dti_part_of_file *p, void *to)
{
    dt_status st;
    dt_tensor *x;

    DT_TRY(dti_stored_open(p->tensor, &x));
    st = copy_value(p, x, to);
    if (st == DT_OK)
        st = dti_stored_close(p->tensor, false, &x);
    else
        dt_tensor_release(&x);
    DT_TRY(st);
    return DT_OK;
}

dt_status dti_rank_files_copy(dti_rank_files *f)
{
    char *to;

    if ((size_t)f->bytes > f->room) {
        dti_big_free(f->image, f->room);
        f->image = NULL;
        f->room = 0;
        DT_TRY(dti_big_alloc((size_t)f->bytes, &f->image));
        f->room = (size_t)f->bytes;
    }
    to = f->image;
    for (size_t i = 0; i < f->n; to += f->files[i++].plan.bytes) {
        dti_rank_file *file = &f->files[i];
        memcpy(to, file->plan.header, (size_t)file->plan.header_bytes);
        for (size_t k = 0; k < file->n; k++)
            DT_TRY(copy_part(&file->parts[k], to + file->parts[k].at));
        file->image = to;
    }
    return DT_OK;
}

/* --- writing ---------------------------------------------------------------------------------- */

/* A file that grows. */
typedef struct growing_file {
    int fd;
    const char *path;
    int64_t at;
    dti_checksum sum;
    const atomic_bool *cancelled;
} growing_file;

static dt_status put(growing_file *f, const void *data, int64_t n)
{
    char label[DTI_INPUT_LABEL_BYTES];

    for (int64_t done = 0; done < n; done += CHUNK) {
        const size_t some = (size_t)(n - done < CHUNK ? n - done : CHUNK);
        DT_CHECK(!atomic_load(f->cancelled), DT_ERR_IO, "%s: was not finished: another rank failed",
                 dti_printable(f->path, label, sizeof label));
        dti_checksum_add(&f->sum, (const char *)data + done, some);
        DT_TRY(dti_write_at(f->fd, f->path, (const char *)data + done, some, f->at));
        f->at += (int64_t)some;
    }
    return DT_OK;
}

static dt_status put_parts(growing_file *to, const dti_rank_file *f)
{
    int64_t most = 0;
    dt_status st = DT_OK;
    void *some;

    for (size_t i = 0; i < f->n; i++) most = f->parts[i].bytes > most ? f->parts[i].bytes : most;
    DT_TRY(dti_big_alloc((size_t)most, &some));
    DT_TRY_TO(done, st, put(to, f->plan.header, f->plan.header_bytes));
    for (size_t i = 0; i < f->n; i++) {
        DT_TRY_TO(done, st, copy_part(&f->parts[i], some));
        DT_TRY_TO(done, st, put(to, some, f->parts[i].bytes));
    }
done:
    dti_big_free(some, (size_t)most);
    return st;
}

static dt_status write_file(const dti_rank_file *f, dti_stored_file *out,
                            const atomic_bool *cancelled)
{
    growing_file to = { .path = f->path, .cancelled = cancelled };
    char label[DTI_INPUT_LABEL_BYTES];
    dt_status st = DT_OK;

    (void)dti_printable(f->path, label, sizeof label);
    dti_checksum_begin(&to.sum);
    to.fd = open(f->path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    DT_CHECK(to.fd >= 0, dti_io_status(errno),
             "%s: cannot be created: %s; every rank writes its part, so all hosts need the folder "
             "under the same name",
             label, strerror(errno));
    if (f->image != NULL)
        st = put(&to, f->image, f->plan.bytes);
    else
        st = put_parts(&to, f);
    if (st == DT_OK)
        DT_CHECK_TO(done, st, fsync(to.fd) == 0, dti_io_status(errno),
                    "%s: its bytes cannot be kept: %s", label, strerror(errno));
    out->bytes = to.at;
    out->checksum = dti_checksum_end(&to.sum);
done:
    if (close(to.fd) != 0 && st == DT_OK)
        st = dt_fail(dti_io_status(errno), "%s: cannot be closed: %s", label, strerror(errno));
    return st;
}

dt_status dti_rank_files_write(dti_rank_files *f, const atomic_bool *cancelled)
{
    for (size_t i = 0; i < f->n; i++)
        DT_TRY(write_file(&f->files[i], &f->of->files[f->files[i].number], cancelled));
    return DT_OK;
}
