/* SPDX-License-Identifier: Apache-2.0
 *
 * Boxes of a tensor read to where their elements do not follow each other: equal to reading all of
 * it, for every dtype, whether parts are long or short and however small the stage is. */
#include <stdio.h>
#include <string.h>

#include "base/dtype.h"
#include "base/memory.h"
#include "files/safetensors.h"
#include "tests/support/dt_test.h"

static dt_status fill(void *arg, size_t t, int64_t first, int64_t count, void *to)
{
    (void)arg, (void)t;
    for (int64_t i = 0; i < count; i++) ((float *)to)[i] = (float)((first + i) % 251);
    return DT_OK;
}

typedef struct strided_case {
    int n_axes;
    int64_t shape[3];
    dti_st_box box;
} strided_case;

/* What the box's elements are, and that nothing else was written. */
static void check(const dti_st_file *file, const strided_case *c, dt_dtype want, size_t stage_bytes)
{
    int64_t last = 0, n = 1, index[3] = { 0 };
    const size_t size = dt_dtype_size(want);
    DT_ENDS(dti_st_stage_destroy) dti_st_stage stage;
    DT_FREED char *got = NULL;
    DT_FREED bool *written = NULL;

    for (int a = 0; a < c->n_axes; a++) {
        last += (c->box.end[a] - c->box.begin[a] - 1) * c->box.stride[a];
        n *= c->box.end[a] - c->box.begin[a];
    }
    DT_ASSERT_OK(dti_alloc_array((size_t)last + 1, size, (void **)&got));
    DT_ASSERT_OK(dti_alloc_array((size_t)last + 1, sizeof *written, (void **)&written));
    memset(got, 0x7f, ((size_t)last + 1) * size);
    DT_ASSERT_OK(dti_st_stage_create(stage_bytes, NULL, &stage));
    DT_ASSERT_OK(dti_st_read_strided(file, dti_st_at(file, 0), &c->box, want, &stage, got));
    for (int64_t i = 0; i < n; i++) {
        int64_t at = 0, from = 0;
        for (int a = 0; a < c->n_axes; a++) {
            at += index[a] * c->box.stride[a];
            from = from * c->shape[a] + c->box.begin[a] + index[a];
        }
        written[at] = true;
        DT_ASSERT_CLOSE(dti_load_f32(got, want, at), (float)(from % 251), 0);
        for (int a = c->n_axes - 1; a >= 0; a--) {
            if (++index[a] < c->box.end[a] - c->box.begin[a]) break;
            index[a] = 0;
        }
    }
    for (int64_t i = 0; i <= last; i++)
        for (size_t b = 0; b < size && !written[i]; b++)
            DT_ASSERT(got[(size_t)i * size + b] == 0x7f);
}

DT_TEST(read_strided, boxes_go_where_strides_say)
{
    /* clang-format off */
    static const strided_case cases[] = {
        { 2, { 40, 90 },     { { 0, 0 },       { 40, 90 },      { 90, 1 } } },      /* all of it, as it lies */
        { 2, { 40, 90 },     { { 3, 7 },       { 31, 50 },      { 43, 1 } } },      /* a box, as it lies */
        { 2, { 40, 90 },     { { 3, 7 },       { 31, 50 },      { 100, 1 } } },     /* a block of packed columns */
        { 2, { 40, 90 },     { { 3, 7 },       { 31, 50 },      { 1, 28 } } },      /* transposed */
        { 2, { 40, 90 },     { { 3, 7 },       { 31, 50 },      { 2, 77 } } },      /* and strided */
        { 3, { 5, 12, 33 },  { { 1, 4, 0 },    { 4, 9, 33 },    { 660, 33, 1 } } }, /* a block of every expert */
        { 3, { 5, 12, 33 },  { { 0, 0, 2 },    { 5, 12, 30 },   { 336, 1, 12 } } }, /* experts transposed */
        { 1, { 77 },         { { 5 },          { 70 },          { 3 } } },
        { 2, { 3, 70000 },   { { 0, 100 },     { 3, 60100 },    { 60007, 1 } } },   /* long parts, straight */
        { 2, { 3, 70000 },   { { 0, 100 },     { 3, 60100 },    { 1, 3 } } },       /* a row longer than the stage */
    };
    /* clang-format on */
    static const dt_dtype wanted[] = { DT_F32, DT_BF16, DT_F64 };
    char folder[DT_TEST_PATH_BYTES], path[DT_TEST_PATH_BYTES + 32];

    (void)dt_test_temp_dir(folder);
    (void)snprintf(path, sizeof path, "%s/x.safetensors", folder);
    for (size_t i = 0; i < DT_COUNT(cases); i++) {
        dti_st_spec spec = { "x", DT_F32, cases[i].n_axes, { 0 } };
        dti_st_file *file;
        for (int a = 0; a < spec.n_axes; a++) spec.shape[a] = cases[i].shape[a];
        DT_ASSERT_OK(dti_st_write(path, &spec, 1, NULL, fill, NULL));
        DT_ASSERT_OK(dti_st_open(path, &file));
        for (size_t w = 0; w < DT_COUNT(wanted); w++) {
            check(file, &cases[i], wanted[w], 8 << 10);
            check(file, &cases[i], wanted[w], 1 << 20);
        }
        dti_st_close(&file);
    }
}

DT_TEST(read_strided, a_box_outside_the_tensor_is_refused_and_an_empty_one_writes_nothing)
{
    const dti_st_spec spec = { "x", DT_F32, 2, { 4, 5 } };
    dti_st_box box = { { 0, 0 }, { 4, 6 }, { 1, 4 } };
    char folder[DT_TEST_PATH_BYTES], path[DT_TEST_PATH_BYTES + 32];
    DT_ENDS(dti_st_close) dti_st_file *file = NULL;
    DT_ENDS(dti_st_stage_destroy) dti_st_stage stage;
    float to[24] = { 0 };

    (void)dt_test_temp_dir(folder);
    (void)snprintf(path, sizeof path, "%s/x.safetensors", folder);
    DT_ASSERT_OK(dti_st_write(path, &spec, 1, NULL, fill, NULL));
    DT_ASSERT_OK(dti_st_open(path, &file));
    DT_ASSERT_OK(dti_st_stage_create(0, NULL, &stage));
    DT_ASSERT_STATUS(dti_st_read_strided(file, dti_st_at(file, 0), &box, DT_F32, &stage, to),
                     DT_ERR_ARG, "[0, 6) asked of axis 1, which has 5");
    box.end[1] = -1;
    DT_ASSERT_STATUS(dti_st_read_strided(file, dti_st_at(file, 0), &box, DT_F32, &stage, to),
                     DT_ERR_ARG, "asked of axis 1");
    box.end[1] = 0;
    DT_ASSERT_OK(dti_st_read_strided(file, dti_st_at(file, 0), &box, DT_F32, &stage, to));
    for (int i = 0; i < 24; i++) DT_ASSERT(to[i] == 0);
}
