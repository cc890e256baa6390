/* SPDX-License-Identifier: Apache-2.0
 *
 * Reading a box of a tensor from a safetensors file.
 *
 * A box consists of pieces that are contiguous in the file, all of one length: the whole box if
 * only axis 0 is cut, one row's columns if axis 1 is. Elements of the box are numbered in row-major
 * order, so any range of numbers can be read on its own, which is how worker threads share it. */
#include <stdatomic.h>

#include "files/convert.h"
#include "files/safetensors_internal.h"

enum {
    STAGE_BYTES = 4 << 20,
    STAGE_TOTAL_BYTES = 32 << 20, /* of all rank threads of a process */
    STAGE_LEAST_BYTES = 256 << 10,
    DIRECT_BYTES = 64 << 10, /* pieces from this size on are read one by one */
    GAP_BYTES = 256 << 10,   /* a longer way to the next piece is skipped, not read over */
    SHARE_BYTES = 1 << 20    /* less than this is not worth waking workers */
};

typedef struct box {
    const dti_st_file *file;
    const dti_st_entry *entry;
    dt_dtype want;
    int n_axes;                  /* axes outside the pieces */
    int64_t extent[DT_MAX_AXES]; /* of the box along them */
    int64_t stride[DT_MAX_AXES]; /* elements of the tensor from one index to the next */
    int64_t origin;              /* the box's first element in the tensor */
    int64_t piece;               /* elements of a piece */
    int64_t count;               /* elements of the box */
} box;

static const char *shown(const dti_st_entry *e, char name[DTI_ST_SHOWN_BYTES])
{
    return dti_printable(e->name, name, DTI_ST_SHOWN_BYTES);
}

static dt_status check_dtype(const dti_st_file *file, const dti_st_entry *e, dt_dtype want)
{
    char name[DTI_ST_SHOWN_BYTES];

    DT_CHECK(
        e->supported, DT_ERR_UNSUPPORTED,
        "%s: tensor \"%s\" is %s, which cannot be loaded; F32, BF16, F16, F64, I64, I32 and U8 "
        "can",
        file->in.label, shown(e, name), e->dtype_name);
    DT_CHECK(want == e->dtype || (dt_dtype_is_float(want) && dt_dtype_is_float(e->dtype)),
             DT_ERR_UNSUPPORTED, "%s: tensor \"%s\" is %s, which does not convert to %s",
             file->in.label, shown(e, name), e->dtype_name, dt_dtype_name(want));
    return DT_OK;
}

static dt_status check_range(const box *b, const int64_t *begin, const int64_t *end, bool *empty)
{
    const dti_st_entry *e = b->entry;
    char name[DTI_ST_SHOWN_BYTES];

    *empty = false;
    for (int a = 0; a < e->n_axes; a++) {
        const int64_t first = begin ? begin[a] : 0, last = end ? end[a] : e->shape[a];
        DT_CHECK(0 <= first && first <= last && last <= e->shape[a], DT_ERR_ARG,
                 "%s: tensor \"%s\": [%lld, %lld) asked of axis %d, which has %lld",
                 b->file->in.label, shown(e, name), (long long)first, (long long)last, a,
                 (long long)e->shape[a]);
        if (first == last) *empty = true;
    }
    return DT_OK;
}

/* Sorts the axes of a box that is not empty into those outside the pieces and those inside. */
static void box_init(box *b, const int64_t *begin, const int64_t *end)
{
    const dti_st_entry *e = b->entry;
    int64_t inner = 1;
    bool whole = true; /* no axis so far, from the last one on, is cut */

    b->piece = b->count = 1;
    for (int a = e->n_axes - 1; a >= 0; a--) {
        const int64_t first = begin ? begin[a] : 0;
        const int64_t n = (end ? end[a] : e->shape[a]) - first;

        b->count *= n;
        b->origin += first * inner;
        if (whole) {
            b->piece *= n;
        } else if (n > 1) {
            b->extent[b->n_axes] = n;
            b->stride[b->n_axes] = inner;
            b->n_axes++;
        }
        whole = whole && n == e->shape[a];
        inner *= e->shape[a];
    }
}

/* The tensor's element at which piece i begins. Outer axes are stored innermost first. */
static int64_t piece_begin(const box *b, int64_t i)
{
    int64_t at = b->origin;

    for (int a = 0; a < b->n_axes - 1; a++) {
        at += i % b->extent[a] * b->stride[a];
        i /= b->extent[a];
    }
    return b->n_axes > 0 ? at + i * b->stride[b->n_axes - 1] : at;
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static dt_status read_bytes(const box *b, void *to, int64_t elements, int64_t at)
{
    const int64_t size = (int64_t)dt_dtype_size(b->entry->dtype);
    dti_input in = b->file->in;
    char name[DTI_ST_SHOWN_BYTES];
    dt_status st;

    if (b->file->open != NULL) DT_TRY(dti_open_file_take(b->file->open, &in.fd));
    st = dti_input_read(&in, to, elements * size, b->entry->begin + at * size);
    if (b->file->open != NULL) dti_open_file_give(b->file->open);
    if (st != DT_OK) dti_error_prefix("tensor \"%s\"", shown(b->entry, name));
    return st;
}

/* f16 holds less than bf16 does, and that less than f32; infinite weights give nonsense without a
 * word. */
static dt_status check_fits(const box *b, const void *halves, const void *from, int64_t n)
{
    const dt_dtype dtype = b->entry->dtype;
    char name[DTI_ST_SHOWN_BYTES];
    int64_t lost;

    if ((b->want != DT_F16 && b->want != DT_BF16) || dtype == b->want) return DT_OK;
    lost = dti_count_overflows(halves, b->want, from, dtype, n);
    DT_CHECK(lost == 0, DT_ERR_FORMAT,
             "%s: tensor \"%s\": %lld of its numbers at least are beyond %s, the largest of %s; "
             "%s",
             b->file->in.label, shown(b->entry, name), (long long)lost, dti_largest_text(b->want),
             dt_dtype_name(b->want),
             b->want == DT_F16 ? "bf16 and f32 hold them" : "f32 holds them");
    return DT_OK;
}

/* n elements that are contiguous in the file. */
static dt_status read_run(const box *b, int64_t at, int64_t n, const dti_st_stage *stage, char *dst)
{
    const dt_dtype from = b->entry->dtype;
    const int64_t room = (int64_t)(stage->bytes / dt_dtype_size(from));

    if (b->want == from) return read_bytes(b, dst, n, at);
    for (int64_t done = 0; done < n;) {
        const int64_t m = least(room, n - done);
        DT_TRY(read_bytes(b, stage->data, m, at + done));
        dti_convert_many(dst, b->want, stage->data, from, m);
        DT_TRY(check_fits(b, dst, stage->data, m));
        dst += m * (int64_t)dt_dtype_size(b->want);
        done += m;
    }
    return DT_OK;
}

/* Reads the block of the file that holds the elements *first, ..., as many pieces as fit into the
 * stage, and picks them out of it. Moves *first past them. */
static dt_status read_block(const box *b, int64_t *first, int64_t last, const dti_st_stage *stage,
                            char *dst)
{
    const dt_dtype from = b->entry->dtype;
    const int64_t size = (int64_t)dt_dtype_size(from), out = (int64_t)dt_dtype_size(b->want);
    const int64_t room = (int64_t)stage->bytes / size, gap = GAP_BYTES / size;
    const int64_t start = piece_begin(b, *first / b->piece) + *first % b->piece;
    int64_t end = start, until = *first;

    while (until < last) {
        const int64_t at = piece_begin(b, until / b->piece) + until % b->piece;
        const int64_t n = least(b->piece - until % b->piece, last - until);
        if (until > *first && (at + n - start > room || at - end > gap)) break;
        end = at + n;
        until += n;
    }
    DT_TRY(read_bytes(b, stage->data, end - start, start));
    while (*first < until) {
        const int64_t at = piece_begin(b, *first / b->piece) + *first % b->piece;
        const int64_t n = least(b->piece - *first % b->piece, until - *first);
        dti_convert_many(dst, b->want, (const char *)stage->data + (at - start) * size, from, n);
        DT_TRY(check_fits(b, dst, (const char *)stage->data + (at - start) * size, n));
        dst += n * out;
        *first += n;
    }
    return DT_OK;
}

/* Reads the elements *first, ..., at least one, the way that suits them. Moves *first past them. */
static dt_status read_some(const box *b, int64_t *first, int64_t last, const dti_st_stage *stage,
                           char *dst)
{
    const int64_t bytes = b->piece * (int64_t)dt_dtype_size(b->entry->dtype);
    const int64_t within = *first % b->piece;
    const int64_t n = least(b->piece - within, last - *first);

    if (bytes < least(DIRECT_BYTES, (int64_t)stage->bytes) && n < last - *first)
        return read_block(b, first, last, stage, dst);
    DT_TRY(read_run(b, piece_begin(b, *first / b->piece) + within, n, stage, dst));
    *first += n;
    return DT_OK;
}

/* Elements [first, last) of the box into dst, which is where element `first` goes. */
static dt_status read_range(const box *b, int64_t first, int64_t last, const dti_st_stage *stage,
                            char *dst)
{
    const int64_t begin = first, out = (int64_t)dt_dtype_size(b->want);

    while (first < last) DT_TRY(read_some(b, &first, last, stage, dst + (first - begin) * out));
    return DT_OK;
}

typedef struct shared_read {
    const box *b;
    const dti_st_stage *stage;
    char *dst;
    atomic_flag failed;
    dt_error error; /* of the worker that set the flag */
    dt_status st;
} shared_read;

/* A worker's errors are in its own thread's record, where nobody would look. */
static void read_share(void *arg, int worker, int n_workers)
{
    shared_read *r = arg;
    const int64_t grain = least(r->b->piece, DIRECT_BYTES);
    const size_t room = r->stage->bytes / (size_t)n_workers / 64 * 64;
    const dti_st_stage part = { (char *)r->stage->data + room * (size_t)worker, room, NULL };
    int64_t first, last;
    dt_status st;

    dti_pool_share(r->b->count, grain, worker, n_workers, &first, &last);
    st = read_range(r->b, first, last, &part, r->dst + first * (int64_t)dt_dtype_size(r->b->want));
    if (st != DT_OK && !atomic_flag_test_and_set(&r->failed)) {
        r->error = *dt_last_error();
        r->st = st;
    }
}

dt_status dti_st_read_slice(const dti_st_file *file, const dti_st_entry *entry,
                            const int64_t *begin, const int64_t *end, dt_dtype want,
                            const dti_st_stage *stage, void *dst)
{
    box b = { .file = file, .entry = entry, .want = want };
    shared_read r = { .b = &b, .stage = stage, .dst = dst, .failed = ATOMIC_FLAG_INIT };
    bool empty;

    DT_CHECK(file != NULL && entry != NULL && stage != NULL, DT_ERR_ARG,
             "file, entry or stage is NULL");
    DT_TRY(check_dtype(file, entry, want));
    DT_TRY(check_range(&b, begin, end, &empty));
    if (empty) return DT_OK;
    DT_CHECK(dst != NULL, DT_ERR_ARG, "dst is NULL");
    box_init(&b, begin, end);
    if (dti_pool_size(stage->pool) == 1 ||
        b.count * (int64_t)dt_dtype_size(entry->dtype) < SHARE_BYTES) {
        DT_TRY(read_range(&b, 0, b.count, stage, dst));
        return DT_OK;
    }
    dti_pool_run(stage->pool, read_share, &r);
    if (r.st != DT_OK) DT_FAIL(r.st, "%s", r.error.message);
    return DT_OK;
}

size_t dti_st_stage_bytes(int n_ranks)
{
    const int64_t each = STAGE_TOTAL_BYTES / (n_ranks < 1 ? 1 : n_ranks);

    return (size_t)(each < STAGE_LEAST_BYTES ? STAGE_LEAST_BYTES : least(each, STAGE_BYTES));
}

dt_status dti_st_stage_create(size_t bytes, dti_pool *pool, dti_st_stage *out)
{
    const size_t least_bytes = (size_t)dti_pool_size(pool) * (4 << 10);

    if (bytes == 0) bytes = STAGE_BYTES;
    if (bytes < least_bytes) bytes = least_bytes;
    *out = (dti_st_stage){ .bytes = bytes, .pool = pool };
    DT_TRY(dti_big_alloc(bytes, &out->data));
    return DT_OK;
}

void dti_st_stage_destroy(dti_st_stage *stage)
{
    dti_big_free(stage->data, stage->bytes);
    *stage = (dti_st_stage){ 0 };
}
