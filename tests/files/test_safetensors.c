/* SPDX-License-Identifier: Apache-2.0
 *
 * Files that are as they should be: written, found, read in boxes of any kind. */
#include "files/safetensors.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/dtype.h"
#include "base/memory.h"
#include "files/convert.h"
#include "files/input.h"
#include "tests/support/dt_test.h"

/* --- a folder with one file ------------------------------------------------------------------- */

typedef struct fixture {
    char folder[DT_TEST_PATH_BYTES], path[DT_TEST_PATH_BYTES + 32];
} fixture;

static void begin(fixture *f)
{
    dt_test_temp_dir(f->folder);
    (void)snprintf(f->path, sizeof f->path, "%s/model.safetensors", f->folder);
}

/* Element i of any tensor of these tests: exact in bf16 and f16, different from its neighbours. */
static float value_of(int64_t i)
{
    return (float)((i * 37) % 251 - 125) * 0.5f;
}

static dt_status fill_values(void *arg, size_t t, int64_t first, int64_t count, void *to)
{
    const dt_dtype dtype = ((const dti_st_spec *)arg)[t].dtype;

    for (int64_t i = 0; i < count; i++) {
        const float value = value_of(first + i);
        if (dtype == DT_I32) ((int32_t *)to)[i] = (int32_t)value;
        if (dtype == DT_I64) ((int64_t *)to)[i] = (int64_t)value;
        if (dtype == DT_U8) ((uint8_t *)to)[i] = (uint8_t)(int)value;
        if (dt_dtype_is_float(dtype)) dti_store_f32(to, dtype, i, value);
    }
    return DT_OK;
}

static dti_st_file *write_and_open(fixture *f, const dti_st_spec *specs, size_t n)
{
    dti_st_file *file;

    begin(f);
    DT_ASSERT_OK(dti_st_write(f->path, specs, n, NULL, fill_values, (void *)(uintptr_t)specs));
    DT_ASSERT_OK(dti_st_open(f->path, &file));
    return file;
}

/* --- what is in a file ------------------------------------------------------------------------ */

DT_TEST(safetensors, what_is_written_is_found_again)
{
    static const dti_st_spec specs[] = {
        { "b.weight", DT_BF16, 2, { 3, 5 } },
        { "a.weight", DT_BF16, 1, { 7 } },
        { "scalar", DT_F32, 0, { 0 } },
        { "empty", DT_F32, 3, { 4, 0, 6 } },
        { "double \"quoted\" \xc3\xa9", DT_F64, 1, { 2 } },
        { "ids", DT_I64, 1, { 3 } },
        { "short", DT_I32, 1, { 3 } },
        { "bytes", DT_U8, 1, { 5 } },
        { "half", DT_F16, 1, { 1 } },
    };
    static const char *const order[] = { "double \"quoted\" \xc3\xa9",
                                         "ids",
                                         "empty",
                                         "scalar",
                                         "short",
                                         "a.weight",
                                         "b.weight",
                                         "half",
                                         "bytes" };
    fixture f;
    DT_ENDS(dti_st_close) dti_st_file *file = write_and_open(&f, specs, DT_COUNT(specs));
    int64_t bytes = 0;

    DT_ASSERT_EQ_INT(dti_st_count(file), DT_COUNT(specs));
    for (size_t i = 0; i < DT_COUNT(specs); i++) {
        const dti_st_entry *e = dti_st_find(file, specs[i].name);

        DT_ASSERT(e != NULL && e->supported);
        DT_ASSERT_EQ_INT(e->dtype, specs[i].dtype);
        DT_ASSERT_EQ_INT(e->n_axes, specs[i].n_axes);
        DT_ASSERT(memcmp(e->shape, specs[i].shape, sizeof e->shape) == 0);
        bytes += e->end - e->begin;
        DT_ASSERT_EQ_STR(dti_st_at(file, i)->name, order[i]);
    }
    DT_ASSERT_EQ_INT(dti_st_at(file, DT_COUNT(specs) - 1)->end - dti_st_at(file, 0)->begin, bytes);
    DT_ASSERT_EQ_INT(dti_st_at(file, 0)->begin % 8, 0);
    DT_ASSERT(dti_st_find(file, "nothing") == NULL && dti_st_find(file, "") == NULL);
    DT_ASSERT(dti_st_at(file, DT_COUNT(specs)) == NULL);
    DT_ASSERT_EQ_STR(dti_st_label(file), f.path);
}

DT_TEST(safetensors, files_without_tensors_and_with_metadata_open)
{
    static const char *const metadata[] = { "format", "pt", "note", "\xc3\xa9", NULL };
    static const char spaced[] = "\x10\0\0\0\0\0\0\0 \n{            }";
    fixture f;
    DT_ENDS(dti_st_close) dti_st_file *file = NULL;

    begin(&f);
    DT_ASSERT_OK(dti_st_write(f.path, NULL, 0, metadata, NULL, NULL));
    DT_ASSERT_OK(dti_st_open(f.path, &file));
    DT_ASSERT_EQ_INT(dti_st_count(file), 0);
    dti_st_close(&file);
    dt_test_write_file(f.folder, "model.safetensors", spaced, sizeof spaced - 1);
    DT_ASSERT_OK(dti_st_open(f.path, &file));
    DT_ASSERT_EQ_INT(dti_st_count(file), 0);
}

/* --- boxes ------------------------------------------------------------------------------------ */

/* Compares a box with what fill_values() wrote, rounded to the wanted dtype; the bytes after it
 * must stay as they were. */
static void check_box(const dti_st_file *file, const dti_st_entry *e, const int64_t *first,
                      const int64_t *last, dt_dtype want, const dti_st_stage *stage)
{
    const size_t size = dt_dtype_size(want);
    int64_t count = 1, at[DT_MAX_AXES] = { 0 };
    char *got;

    for (int a = 0; a < e->n_axes; a++) count *= last[a] - first[a];
    got = malloc((size_t)count * size + 1);
    DT_ASSERT(got != NULL);
    memset(got, 0x5a, (size_t)count * size + 1);
    DT_ASSERT_OK(dti_st_read_slice(file, e, first, last, want, stage, got));
    DT_ASSERT(got[(size_t)count * size] == 0x5a);

    for (int64_t i = 0; i < count; i++) {
        int64_t element = 0;
        char expected[8];

        for (int a = 0; a < e->n_axes; a++) element = element * e->shape[a] + first[a] + at[a];
        dti_store_f32(expected, want, 0, value_of(element));
        if (memcmp(expected, got + (size_t)i * size, size) != 0)
            dt_test_fail(__FILE__, __LINE__, "%s as %s: element %lld of the box is wrong", e->name,
                         dt_dtype_name(want), (long long)i);
        for (int a = e->n_axes - 1; a >= 0 && ++at[a] == last[a] - first[a]; a--) at[a] = 0;
    }
    free(got);
}

/* Every box of a small tensor, empty ones too. */
static void check_all_boxes(const dti_st_file *file, const dti_st_entry *e, dt_dtype want,
                            const dti_st_stage *stage)
{
    int64_t first[DT_MAX_AXES] = { 0 }, last[DT_MAX_AXES] = { 0 };

    for (;;) {
        int a = e->n_axes - 1;

        check_box(file, e, first, last, want, stage);
        for (; a >= 0; a--) { /* an odometer of pairs first <= last */
            if (++last[a] <= e->shape[a]) break;
            last[a] = ++first[a];
            if (first[a] <= e->shape[a]) break;
            first[a] = last[a] = 0;
        }
        if (a < 0) return;
    }
}

DT_TEST(safetensors, every_box_of_every_float_dtype_reads_as_every_other)
{
    static const dt_dtype floats[] = { DT_F32, DT_BF16, DT_F16, DT_F64 };
    static const dti_st_spec shapes[] = {
        { "s0", DT_F32, 0, { 0 } },          { "s1", DT_F32, 1, { 6 } },
        { "s2", DT_F32, 2, { 4, 5 } },       { "s3", DT_F32, 3, { 3, 2, 4 } },
        { "s4", DT_F32, 4, { 2, 1, 3, 2 } }, { "zero", DT_F32, 3, { 2, 0, 3 } },
    };
    dti_st_spec specs[DT_COUNT(floats)][DT_COUNT(shapes)];
    char names[DT_COUNT(floats)][DT_COUNT(shapes)][16];
    DT_ENDS(dti_st_close) dti_st_file *file = NULL;
    DT_ENDS(dti_st_stage_destroy) dti_st_stage stage;
    fixture f;

    for (size_t d = 0; d < DT_COUNT(floats); d++)
        for (size_t s = 0; s < DT_COUNT(shapes); s++) {
            specs[d][s] = shapes[s];
            specs[d][s].dtype = floats[d];
            specs[d][s].name = names[d][s];
            (void)snprintf(names[d][s], sizeof names[d][s], "%s.%s", shapes[s].name,
                           dt_dtype_name(floats[d]));
        }
    file = write_and_open(&f, specs[0], DT_COUNT(floats) * DT_COUNT(shapes));
    DT_ASSERT_OK(dti_st_stage_create(0, NULL, &stage));
    for (size_t i = 0; i < dti_st_count(file); i++)
        for (size_t d = 0; d < DT_COUNT(floats); d++)
            check_all_boxes(file, dti_st_at(file, i), floats[d], &stage);
}

/* Boxes that take each way through the reader: pieces read one by one, blocks with gaps in them,
 * gaps too long to read over, runs longer than the stage. */
DT_TEST(safetensors, large_boxes_read_alike_on_any_stage_and_any_number_of_workers)
{
    static const dti_st_spec specs[] = {
        { "tall", DT_BF16, 2, { 70000, 16 } },
        { "wide", DT_F32, 2, { 6, 80000 } },
        { "deep", DT_F16, 3, { 9, 40, 1200 } },
    };
    static const struct {
        int tensor;
        int64_t first[3], last[3];
    } boxes[] = {
        { 0, { 0, 0 }, { 70000, 16 } },          { 0, { 3, 0 }, { 69999, 16 } },
        { 0, { 0, 8 }, { 70000, 16 } },          { 0, { 1, 15 }, { 70000, 16 } },
        { 1, { 0, 20000 }, { 6, 40000 } },       { 1, { 1, 0 }, { 6, 5 } },
        { 1, { 0, 79999 }, { 6, 80000 } },       { 1, { 2, 3 }, { 3, 79000 } },
        { 2, { 0, 0, 600 }, { 9, 40, 1200 } },   { 2, { 0, 10, 0 }, { 9, 20, 1200 } },
        { 2, { 1, 39, 1199 }, { 9, 40, 1200 } }, { 2, { 4, 0, 7 }, { 5, 40, 9 } },
    };
    static const size_t stage_bytes[] = { 1, 20000, 0 };
    fixture f;
    DT_ENDS(dti_st_close) dti_st_file *file = write_and_open(&f, specs, DT_COUNT(specs));

    for (int threads = 1; threads <= 3; threads += 2)
        for (size_t s = 0; s < DT_COUNT(stage_bytes); s++) {
            dti_pool *pool = NULL;
            dti_st_stage stage;

            DT_ASSERT_OK(dti_pool_create(threads, false, NULL, NULL, &pool));
            DT_ASSERT_OK(dti_st_stage_create(stage_bytes[s], pool, &stage));
            for (size_t i = 0; i < DT_COUNT(boxes); i++) {
                const dti_st_entry *e = dti_st_find(file, specs[boxes[i].tensor].name);
                check_box(file, e, boxes[i].first, boxes[i].last, DT_BF16, &stage);
                check_box(file, e, boxes[i].first, boxes[i].last, DT_F32, &stage);
            }
            dti_st_stage_destroy(&stage);
            dti_pool_destroy(&pool);
        }
}

/* Blocks of short pieces fill a stage of any size and go no byte beyond it. */
DT_TEST(safetensors, a_stage_is_never_left)
{
    static const dti_st_spec spec = { "w", DT_F32, 2, { 40, 5 } };
    fixture f;
    DT_ENDS(dti_st_close) dti_st_file *file = write_and_open(&f, &spec, 1);

    for (size_t bytes = 32; bytes <= 256; bytes += 4) {
        _Alignas(64) char room[320];
        const dti_st_stage stage = { room, bytes, NULL };
        memset(room, 0x5a, sizeof room);
        check_box(file, dti_st_at(file, 0), (int64_t[]){ 1, 1 }, (int64_t[]){ 39, 4 }, DT_BF16,
                  &stage);
        for (size_t i = bytes; i < sizeof room; i++) DT_ASSERT(room[i] == 0x5a);
    }
}

typedef struct sharing {
    const dti_st_file *file;
    dti_st_stage stages[4];
    float got[4][3 * 64];
    dt_status st[4];
} sharing;

static void read_own_columns(void *arg, int worker, int n_workers)
{
    sharing *s = arg;
    const int64_t first[] = { 0, 64 * worker }, last[] = { 3, 64 * (worker + 1) };

    (void)n_workers;
    s->st[worker] = dti_st_read_slice(s->file, dti_st_at(s->file, 0), first, last, DT_F32,
                                      &s->stages[worker], s->got[worker]);
}

DT_TEST(safetensors, threads_share_an_open_file)
{
    static const dti_st_spec spec = { "w", DT_BF16, 2, { 3, 256 } };
    fixture f;
    DT_ENDS(dti_st_close) dti_st_file *file = write_and_open(&f, &spec, 1);
    sharing s = { .file = file };
    DT_ENDS(dti_pool_destroy) dti_pool *pool = NULL;

    DT_ASSERT_OK(dti_pool_create(4, false, NULL, NULL, &pool));
    for (int i = 0; i < 4; i++) DT_ASSERT_OK(dti_st_stage_create(0, NULL, &s.stages[i]));
    for (int round = 0; round < 20; round++) dti_pool_run(pool, read_own_columns, &s);
    for (int i = 0; i < 4; i++) {
        DT_ASSERT_OK(s.st[i]);
        for (int r = 0; r < 3; r++)
            for (int c = 0; c < 64; c++)
                DT_ASSERT_CLOSE(s.got[i][r * 64 + c], value_of(r * 256 + 64 * i + c), 0);
        dti_st_stage_destroy(&s.stages[i]);
    }
}

DT_TEST(safetensors, integers_read_as_they_are)
{
    static const dti_st_spec specs[] = { { "ids", DT_I64, 2, { 4, 3 } } };
    fixture f;
    DT_ENDS(dti_st_close) dti_st_file *file = write_and_open(&f, specs, 1);
    DT_ENDS(dti_st_stage_destroy) dti_st_stage stage;
    int64_t got[4];

    DT_ASSERT_OK(dti_st_stage_create(0, NULL, &stage));
    DT_ASSERT_OK(dti_st_read_slice(file, dti_st_at(file, 0), (int64_t[]){ 0, 1 },
                                   (int64_t[]){ 4, 2 }, DT_I64, &stage, got));
    for (int i = 0; i < 4; i++) DT_ASSERT_EQ_INT(got[i], (int64_t)value_of(3 * i + 1));
    DT_ASSERT_STATUS(dti_st_read_slice(file, dti_st_at(file, 0), NULL, NULL, DT_F32, &stage, got),
                     DT_ERR_UNSUPPORTED,
                     "model.safetensors: tensor \"ids\" is I64, which does not convert to f32");
}

/* Element 4 of 6, which is 70000. */
static dt_status fill_with_a_large_one(void *arg, size_t t, int64_t first, int64_t count, void *to)
{
    (void)t;
    for (int64_t i = 0; i < count; i++)
        dti_store_f32(to, *(const dt_dtype *)arg, i, first + i == 4 ? 70000.0f : 1.0f);
    return DT_OK;
}

/* In one run, and as one of several short pieces. */
DT_TEST(safetensors, numbers_that_f16_does_not_hold_are_refused_whatever_they_come_from)
{
    dt_dtype wide[] = { DT_F32, DT_BF16, DT_F64 };

    for (size_t d = 0; d < DT_COUNT(wide); d++) {
        const dti_st_spec spec = { "w", wide[d], 2, { 2, 3 } };
        fixture f;
        dti_st_file *file;
        dti_st_stage stage;
        uint16_t got[6];

        begin(&f);
        DT_ASSERT_OK(dti_st_write(f.path, &spec, 1, NULL, fill_with_a_large_one, &wide[d]));
        DT_ASSERT_OK(dti_st_open(f.path, &file));
        DT_ASSERT_OK(dti_st_stage_create(0, NULL, &stage));
        for (int64_t first = 0; first < 3; first++) { /* columns 0 to 2, 1 to 2, and 2 alone */
            const int64_t from[] = { 0, first }, to[] = { 2, 3 };
            const dt_status st =
                dti_st_read_slice(file, dti_st_at(file, 0), from, to, DT_F16, &stage, got);
            if (first < 2)
                DT_ASSERT_STATUS(st, DT_ERR_FORMAT, "1 of its numbers at least are beyond");
            else
                DT_ASSERT_OK(st);
        }
        dti_st_stage_destroy(&stage);
        dti_st_close(&file);
    }
}

DT_TEST(safetensors, boxes_outside_a_tensor_are_refused)
{
    static const dti_st_spec spec = { "w", DT_F32, 2, { 4, 3 } };
    static const int64_t bad[][4] = {
        { -1, 0, 4, 3 }, { 0, 0, 5, 3 }, { 0, 2, 4, 1 }, { 0, 0, 4, INT64_MAX }, { 4, 4, 4, 4 },
    };
    fixture f;
    DT_ENDS(dti_st_close) dti_st_file *file = write_and_open(&f, &spec, 1);
    DT_ENDS(dti_st_stage_destroy) dti_st_stage stage;
    float got[12];

    DT_ASSERT_OK(dti_st_stage_create(0, NULL, &stage));
    for (size_t i = 0; i < DT_COUNT(bad); i++)
        DT_ASSERT_STATUS(
            dti_st_read_slice(file, dti_st_at(file, 0), bad[i], bad[i] + 2, DT_F32, &stage, got),
            DT_ERR_ARG, "model.safetensors: tensor \"w\": [");
    DT_ASSERT_STATUS(
        dti_st_read_slice(file, dti_st_at(file, 0), bad[1], bad[1] + 2, DT_F32, &stage, got),
        DT_ERR_ARG, "[0, 5) asked of axis 0, which has 4");
    DT_ASSERT_OK(dti_st_read_slice(file, dti_st_at(file, 0), (int64_t[]){ 4, 3 },
                                   (int64_t[]){ 4, 3 }, DT_F32, &stage, NULL));
}

/* --- disks that fail -------------------------------------------------------------------------- */

DT_TEST(safetensors, a_file_shortened_after_opening_is_reported_by_every_worker_count)
{
    static const dti_st_spec spec = { "w", DT_F32, 2, { 1000, 1000 } };

    for (int threads = 1; threads <= 2; threads++) {
        fixture f;
        dti_st_file *file = write_and_open(&f, &spec, 1);
        float *got = malloc(4000000);
        dti_pool *pool;
        dti_st_stage stage;

        DT_ASSERT_OK(dti_pool_create(threads, false, NULL, NULL, &pool));
        DT_ASSERT_OK(dti_st_stage_create(0, pool, &stage));
        DT_ASSERT_EQ_INT(truncate(f.path, 1000), 0);
        DT_ASSERT_STATUS(
            dti_st_read_slice(file, dti_st_at(file, 0), NULL, NULL, DT_F32, &stage, got), DT_ERR_IO,
            "tensor \"w\": ");
        DT_ASSERT(strstr(dt_last_error()->message, "model.safetensors: ends at byte") != NULL);
        free(got);
        dti_st_stage_destroy(&stage);
        dti_pool_destroy(&pool);
        dti_st_close(&file);
    }
}

/* Every third call is interrupted, the others give at most 5 bytes; from byte 100 on it fails. */
static ssize_t weak_pread(int fd, void *to, size_t n, off_t at)
{
    static _Thread_local int calls;

    if (at >= 100) {
        errno = EIO;
        return -1;
    }
    if (calls++ % 3 == 1) {
        errno = EINTR;
        return -1;
    }
    return pread(fd, to, n < 5 ? n : 5, at);
}

DT_TEST(safetensors, interrupted_and_short_reads_go_on_and_a_bad_sector_is_named)
{
    fixture f;
    DT_ENDS(dti_input_close) dti_input in;
    char data[120], got[120];

    begin(&f);
    for (int i = 0; i < 120; i++) data[i] = (char)i;
    dt_test_write_file(f.folder, "model.safetensors", data, sizeof data);
    DT_ASSERT_OK(dti_input_open(f.path, &in));
    in.pread = weak_pread;
    DT_ASSERT_OK(dti_input_read(&in, got, 90, 3));
    DT_ASSERT(memcmp(got, data + 3, 90) == 0);
    DT_ASSERT_STATUS(
        dti_input_read(&in, got, 20, 90), DT_ERR_IO,
        "model.safetensors: reading 10 bytes at offset 100 failed: Input/output error");
}

/* --- conversion ------------------------------------------------------------------------------- */

static void check_loops(const dti_convert_loops *loops)
{
    static const uint32_t edges[] = { 0x00000000, 0x33000000, 0x33000001, 0x387fe000, 0x387fffff,
                                      0x38800000, 0x477fefff, 0x477ff000, 0x477fffff, 0x7f7fffff,
                                      0x7f800000, 0x7f800001, 0x7fc00000, 0x7fffffff, 0x3f808000,
                                      0x3f818000, 0x00000001, 0x007fffff };
    enum { N = 65536 };
    uint16_t *h = malloc(N * sizeof *h), *h2 = malloc(N * sizeof *h2);
    float *x = malloc(N * sizeof *x), *x2 = malloc(N * sizeof *x2);

    DT_ASSERT(h != NULL && h2 != NULL && x != NULL && x2 != NULL);
    for (int i = 0; i < N; i++) h[i] = (uint16_t)i;
    loops->f32_from_bf16(x, h, N);
    dti_convert(x2, DT_F32, h, DT_BF16, N);
    DT_ASSERT(memcmp(x, x2, N * sizeof *x) == 0);
    loops->f32_from_f16(x, h, N);
    dti_convert(x2, DT_F32, h, DT_F16, N);
    DT_ASSERT(memcmp(x, x2, N * sizeof *x) == 0);

    for (uint32_t i = 0; i < N; i++) { /* every exponent and sign, assorted mantissas */
        uint32_t bits = (i << 16) | ((i * 40503u) & 0xffffu);
        if (i < 2 * DT_COUNT(edges)) bits = edges[i / 2] | (i & 1) << 31;
        x[i] = dti_float_of_bits(bits);
    }
    loops->bf16_from_f32(h, x, N);
    dti_convert(h2, DT_BF16, x, DT_F32, N);
    DT_ASSERT(memcmp(h, h2, N * sizeof *h) == 0);
    loops->f16_from_f32(h, x, N);
    dti_convert(h2, DT_F16, x, DT_F32, N);
    DT_ASSERT(memcmp(h, h2, N * sizeof *h) == 0);
    free(h);
    free(h2);
    free(x);
    free(x2);
}

DT_TEST(safetensors, fast_conversions_give_the_bits_of_the_plain_ones)
{
    uint16_t bf16[3] = { 0x3f80, 0xc2f7, 0x7f80 }, f16[3], back[3];

    check_loops(&dti_convert_portable);
#ifdef DT_HAVE_X86_KERNELS
    if (__builtin_cpu_supports("avx2")) check_loops(&dti_convert_avx2);
#endif
    dti_convert_many(f16, DT_F16, bf16, DT_BF16, 3);
    DT_ASSERT_EQ_INT(f16[0], 0x3c00);
    DT_ASSERT_EQ_INT(f16[1], 0xd7b8);
    DT_ASSERT_EQ_INT(f16[2], 0x7c00);
    dti_convert_many(back, DT_BF16, f16, DT_F16, 3);
    DT_ASSERT(memcmp(back, bf16, sizeof bf16) == 0);
}

/* --- writing ---------------------------------------------------------------------------------- */

static dt_status fill_fails(void *arg, size_t i, int64_t first, int64_t count, void *to)
{
    (void)arg, (void)i, (void)first, (void)count, (void)to;
    DT_FAIL(DT_ERR_DEVICE, "no more numbers");
}

DT_TEST(safetensors, a_failed_write_leaves_the_old_file_and_nothing_else)
{
    static const dti_st_spec spec = { "w", DT_F32, 2, { 4, 3 } };
    static const dti_st_spec twice[] = { { "w", DT_F32, 1, { 4 } }, { "w", DT_F32, 1, { 3 } } };
    static const dti_st_spec bad[] = {
        { "\xff", DT_F32, 1, { 4 } }, { "__metadata__", DT_F32, 1, { 4 } },
        { "n", DT_F32, 1, { -4 } },   { "n", DT_F32, 2, { INT64_MAX, 2 } },
        { "n", DT_F32, 9, { 1 } },    { "n", DT_N_DTYPES, 1, { 1 } },
        { NULL, DT_F32, 1, { 1 } },
    };
    static const char *const no_text[] = { "key", "\xff", NULL };
    fixture f;
    DT_ENDS(dti_st_close) dti_st_file *file = write_and_open(&f, &spec, 1);
    void *arg = (void *)(uintptr_t)&spec;

    DT_ASSERT_STATUS(dti_st_write(f.path, &spec, 1, NULL, fill_fails, NULL), DT_ERR_DEVICE, "no");
    DT_ASSERT_STATUS(dti_st_write(f.path, twice, 2, NULL, fill_values, arg), DT_ERR_ARG,
                     "tensor \"w\" occurs twice");
    for (size_t i = 0; i < DT_COUNT(bad); i++)
        DT_ASSERT_STATUS(dti_st_write(f.path, &bad[i], 1, NULL, fill_values, arg), DT_ERR_ARG,
                         "tensor");
    DT_ASSERT_STATUS(dti_st_write(f.path, &spec, 1, no_text, fill_values, arg), DT_ERR_ARG,
                     "metadata");
    DT_ASSERT_STATUS(dti_st_write("/dev/null/model.safetensors", &spec, 1, NULL, fill_values, arg),
                     DT_ERR_IO, "/dev/null/model.safetensors");
    dti_st_close(&file);
    DT_ASSERT_OK(dti_st_open(f.path, &file));
    DT_ASSERT_EQ_INT(unlink(f.path), 0);
    DT_ASSERT_EQ_INT(rmdir(f.folder), 0); /* no temporary file is left */
}

/* Tensors that are in memory. */
typedef struct memory_source {
    const dti_st_spec *specs;
    const void *const *data;
} memory_source;

static dt_status fill_from_memory(void *arg, size_t i, int64_t first, int64_t count, void *to)
{
    const memory_source *m = arg;
    const size_t size = dt_dtype_size(m->specs[i].dtype);

    memcpy(to, (const char *)m->data[i] + (size_t)first * size, (size_t)count * size);
    return DT_OK;
}

DT_TEST(safetensors, tensors_in_memory_are_written_as_they_are)
{
    static const dti_st_spec specs[] = { { "a", DT_F32, 1, { 3 } }, { "b", DT_U8, 1, { 2 } } };
    const float a[] = { 1.0f, 2.0f, 3.0f };
    const uint8_t b[] = { 4, 5 };
    const void *const data[] = { a, b };
    memory_source memory = { specs, data };
    DT_ENDS(dti_st_close) dti_st_file *file = NULL;
    DT_ENDS(dti_st_stage_destroy) dti_st_stage stage;
    uint8_t got_b[2];
    float got_a[3];
    fixture f;

    begin(&f);
    DT_ASSERT_OK(dti_st_write(f.path, specs, 2, NULL, fill_from_memory, &memory));
    DT_ASSERT_OK(dti_st_open(f.path, &file));
    DT_ASSERT_OK(dti_st_stage_create(0, NULL, &stage));
    DT_ASSERT_OK(
        dti_st_read_slice(file, dti_st_find(file, "a"), NULL, NULL, DT_F32, &stage, got_a));
    DT_ASSERT_OK(dti_st_read_slice(file, dti_st_find(file, "b"), NULL, NULL, DT_U8, &stage, got_b));
    DT_ASSERT(memcmp(a, got_a, sizeof a) == 0 && memcmp(b, got_b, sizeof b) == 0);
}

DT_TEST(safetensors, stages_divide_what_a_process_may_spend)
{
    DT_ASSERT_EQ_INT(dti_st_stage_bytes(1), 4 << 20);
    DT_ASSERT_EQ_INT(dti_st_stage_bytes(8), 4 << 20);
    DT_ASSERT_EQ_INT(dti_st_stage_bytes(16), 2 << 20);
    DT_ASSERT_EQ_INT(dti_st_stage_bytes(1000), 256 << 10);
    DT_ASSERT_EQ_INT(dti_st_stage_bytes(0), 4 << 20);
}
