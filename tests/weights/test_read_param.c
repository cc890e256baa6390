/* SPDX-License-Identifier: Apache-2.0
 *
 * Parameters read piece by piece: packed axes, transposed weights and both, on 1 to 4 ranks; the
 * gathered parameter is what the file holds. */
#include <stdio.h>
#include <unistd.h>

#include "dtensor/create.h"
#include "dtensor/host.h"
#include "files/checkpoint_internal.h"
#include "files/safetensors_internal.h"
#include "tests/support/dt_test.h"
#include "weights/param_tensors.h"

enum { OUT = 14, IN = 9 };

static dt_status fill(void *arg, size_t t, int64_t first, int64_t count, void *to)
{
    (void)arg, (void)t;
    for (int64_t i = 0; i < count; i++) ((float *)to)[i] = (float)(first + i);
    return DT_OK;
}

typedef struct param_case {
    char folder[DT_TEST_PATH_BYTES];
    bool reversed;
    dt_axis_blocks blocks[2];
    const char *style;
    bool exact; /* a rank reads its bytes and no other: rows are cut */
} param_case;

/* What a rank, which is a thread, asks of its file. */
static _Thread_local int64_t n_read;

static ssize_t counting_pread(int fd, void *to, size_t n, off_t at)
{
    n_read += (int64_t)n;
    return pread(fd, to, n, at);
}

/* A quarter of the piece at a time: it is what the whole has there, and nothing beside it. */
static dt_status reads_in_quarters(const dti_ckpt *ckpt, const dti_param_tensor *tensor,
                                   bool reversed, const dti_host *whole, const dti_st_stage *stage)
{
    const dti_part all = dti_whole_part(whole->x, reversed);
    const float *want = whole->local.data;

    for (int k = 0; k < 4; k++) {
        dti_part part = all;
        float got[OUT * IN];
        for (int i = 0; i < OUT * IN; i++) got[i] = -1.0f;
        for (int a = 0; a < 2; a++) *(k >> a & 1 ? &part.begin[a] : &part.end[a]) = all.end[a] / 2;
        DT_TRY(dti_read_part(ckpt, tensor, &part, stage,
                             got + part.begin[0] * all.end[1] + part.begin[1]));
        for (int64_t r = 0; r < all.end[0]; r++)
            for (int64_t c = 0; c < all.end[1]; c++) {
                const int64_t at = r * all.end[1] + c;
                const bool inside =
                    r >= part.begin[0] && r < part.end[0] && c >= part.begin[1] && c < part.end[1];
                DT_EXPECT(got[at] == (inside ? want[at] : -1.0f), "quarter %d: [%d, %d] is %g", k,
                          (int)r, (int)c, (double)got[at]);
            }
    }
    return DT_OK;
}

static dt_status reads_what_the_file_holds(dt_mesh *mesh, const void *arg)
{
    const param_case *c = arg;
    const int64_t shape[] = { OUT, IN };
    dt_layer_spec spec = { .name = "x",
                           .kind = &dt_linear_kind,
                           .axis = { { OUT, DT_UNIT_ROW }, { IN, DT_UNIT_ROW } },
                           .blocks = { c->blocks[0], c->blocks[1] },
                           .reversed = c->reversed,
                           .style = c->style };
    DT_HELD(layers) *layers = NULL;
    DT_ENDS(dti_ckpt_close) dti_ckpt *ckpt = NULL;
    DT_ENDS(dti_st_stage_destroy) dti_st_stage stage = { 0 };
    DT_HELD(tensor) *x = NULL, *full = NULL;
    dt_param_info info;
    dti_param_tensor tensor = { .whole = true };
    dti_host host;

    DT_TRY(dt_layers_create(mesh, "tp", &spec, 1, NULL, &layers));
    info = dt_layer_param_info(dt_layers_at(layers, 0), 0);
    DT_TRY(dti_ckpt_open(c->folder, &ckpt));
    ckpt->files[0]->in.pread = counting_pread;
    n_read = 0;
    DT_TRY(dti_st_stage_create(0, NULL, &stage));
    DT_TRY(dti_tensor_create_exact(mesh, dt_layer_param_layout(dt_layers_at(layers, 0), 0), DT_F32,
                                   shape, &x));
    DT_TRY(dti_host_open(x, DTI_HOST_WRITES, &host));
    tensor.entry = dti_ckpt_find(ckpt, c->reversed ? "reversed" : "plain");
    DT_TRY(dti_read_param(ckpt, &tensor, info.reversed, &host, &stage));
    if (c->exact)
        DT_EXPECT(n_read == dt_tensor_local(x)->shape[0] * IN * (int64_t)sizeof(float),
                  "%lld bytes are read for %lld rows", (long long)n_read,
                  (long long)dt_tensor_local(x)->shape[0]);
    DT_TRY(reads_in_quarters(ckpt, &tensor, info.reversed, &host, &stage));
    DT_TRY(dti_host_close(&host, DT_OK));
    DT_TRY(dt_full_tensor(x, &full));
    for (int64_t o = 0; o < OUT; o++)
        for (int64_t i = 0; i < IN; i++) {
            const float got = ((const float *)dt_tensor_local(full)->data)[o * IN + i];
            const float want = (float)(c->reversed ? i * OUT + o : o * IN + i);
            DT_EXPECT(got == want, "[%d, %d] is %g, not %g", (int)o, (int)i, (double)got,
                      (double)want);
        }
    return DT_OK;
}

DT_TEST(read_param, packed_and_transposed_weights_are_what_the_file_holds)
{
    static const char *const meshes[] = { "tp=1", "tp=2", "tp=3", "tp=4" };
    const dt_axis_blocks none = { 0 };
    const dt_axis_blocks gate_up = { 2, { { 7, DT_UNIT_ROW }, { 7, DT_UNIT_ROW } } };
    const dt_axis_blocks parts = { 3,
                                   { { 1, DT_UNIT_ROW }, { 6, DT_UNIT_ROW }, { 2, DT_UNIT_ROW } } };
    const dti_st_spec specs[] = { { "plain", DT_F32, 2, { OUT, IN } },
                                  { "reversed", DT_F32, 2, { IN, OUT } } };
    param_case cases[] = {
        { "", false, { gate_up, none }, "packed_colwise", true },
        { "", false, { none, parts }, "packed_rowwise", false },
        { "", true, { gate_up, none }, "packed_colwise", false },
        { "", true, { none, parts }, "packed_rowwise", false },
        { "", true, { none, none }, "colwise", false },
        { "", true, { none, none }, "rowwise", false },
        { "", true, { none, none }, "replicate", false },
    };
    char folder[DT_TEST_PATH_BYTES], path[DT_TEST_PATH_BYTES + 32];

    (void)dt_test_temp_dir(folder);
    (void)snprintf(path, sizeof path, "%s/model.safetensors", folder);
    dt_test_write_file(folder, "config.json", "{}", 2);
    DT_ASSERT_OK(dti_st_write(path, specs, 2, NULL, fill, NULL));
    for (size_t i = 0; i < DT_COUNT(cases); i++)
        for (size_t m = 0; m < DT_COUNT(meshes); m++) {
            (void)snprintf(cases[i].folder, sizeof cases[i].folder, "%s", folder);
            dt_test_on_ranks(meshes[m], reads_what_the_file_holds, &cases[i]);
        }
}
