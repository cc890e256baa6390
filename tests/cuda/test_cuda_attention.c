/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention by our kernels: by shape, while a graph is recorded, and what is refused. */
#include "tests/cuda/attention_cases.h"

static void run_all(const attention_shape *shapes, size_t n)
{
    CR_DEVICE d = cr_open();

    for (size_t i = 0; i < n; i++)
        for (size_t t = 0; t < DT_COUNT(kt_floats); t++)
            run_attention(&d, &shapes[i], kt_floats[t], true);
}

/* clang-format off */
/*    B  T   H   Kv S    e    q0 k0 nH nKv window position layout skew */
static const attention_shape few[] = {
    { 1, 1,  1,  1, 1,   8,   0, 0, 1,  1, 0,   0,   IN_TURN, 0 },
    { 1, 1,  8,  2, 300, 64,  0, 0, 8,  2, 0,   290, IN_TURN, 0 },
    { 3, 1,  6,  2, 140, 20,  0, 0, 6,  2, 0,   128, IN_TURN, 0 }, /* rows of 40 bytes */
    { 2, 1,  3,  3, 40,  80,  0, 0, 3,  3, 16,  39,  IN_TURN, 0 },
    { 1, 1,  5,  1, 70,  96,  0, 0, 5,  1, 1,   69,  IN_TURN, 0 },
    { 2, 1,  4,  1, 200, 128, 0, 0, 4,  1, 0,   180, IN_TURN, 0 },
    { 2, 1,  8,  2, 200, 256, 0, 0, 8,  2, 100, 199, IN_TURN, 0 },
    { 1, 1,  20, 1, 130, 128, 0, 0, 20, 1, 0,   127, IN_TURN, 0 }, /* two blocks of rows */
    { 1, 1,  2,  1, 300, 3,   0, 0, 2,  1, 0,   299, IN_TURN, 0 },
    { 1, 1,  4,  2, 90,  64,  0, 0, 4,  2, 0,   80,  IN_TURN, 1 },
    { 1, 2,  2,  1, 3,   8,   0, 0, 2,  1, 0,   0,   IN_TURN, 0 },
    { 1, 8,  4,  2, 90,  64,  0, 0, 4,  2, 0,   70,  IN_TURN, 0 },
    { 3, 5,  7,  1, 60,  128, 0, 0, 7,  1, 0,   0,   PADDED,  0 },
    { 2, 7,  4,  2, 70,  256, 0, 0, 4,  2, 9,   40,  PADDED,  0 },
    { 1, 1,  17, 1, 90,  576, 0, 0, 17, 1, 0,   80,  IN_TURN, 0 }, /* latents */
    { 2, 2,  3,  1, 40,  301, 0, 0, 3,  1, 9,   20,  PADDED,  1 },
    { 2, 5,  3,  2, 30,  16,  3, 0, 8,  2, 0,   9,   IN_TURN, 0 }, /* heads 3 4 5: parts of two groups */
    { 2, 1,  3,  2, 30,  16,  3, 0, 8,  2, 0,   9,   IN_TURN, 0 },
    { 1, 4,  2,  1, 30,  16,  6, 3, 8,  4, 0,   3,   IN_TURN, 0 }, /* kv head 3 alone */
    { 1, 1,  2,  4, 30,  16,  4, 0, 8,  4, 0,   20,  IN_TURN, 0 }, /* all kv heads, one of them read */
    { 1, 4,  0,  0, 30,  16,  8, 4, 8,  4, 0,   3,   IN_TURN, 0 }, /* a rank without heads */
    { 0, 4,  2,  2, 30,  16,  0, 0, 2,  2, 0,   3,   IN_TURN, 0 },
};
static const attention_shape many[] = {
    { 1, 9,  1,  1, 9,   8,   0, 0, 1,  1, 0,   0,   IN_TURN, 0 },
    { 1, 70, 4,  2, 300, 64,  0, 0, 4,  2, 0,   230, IN_TURN, 0 },
    { 1, 65, 2,  1, 65,  128, 0, 0, 2,  1, 0,   0,   IN_TURN, 0 },
    { 2, 33, 6,  2, 120, 20,  0, 0, 6,  2, 0,   80,  IN_TURN, 0 },
    { 1, 70, 2,  2, 200, 80,  0, 0, 2,  2, 31,  40,  IN_TURN, 0 },
    { 1, 70, 2,  2, 200, 96,  0, 0, 2,  2, 0,   130, IN_TURN, 0 },
    { 1, 20, 4,  2, 290, 128, 0, 0, 4,  2, 0,   260, IN_TURN, 0 }, /* keys in parts */
    { 1, 9,  3,  1, 70,  130, 0, 0, 3,  1, 1,   60,  IN_TURN, 0 },
    { 1, 40, 3,  1, 70,  256, 0, 0, 3,  1, 17,  30,  IN_TURN, 0 },
    { 1, 12, 2,  1, 80,  96,  0, 0, 2,  1, 0,   60,  IN_TURN, 1 },
    { 3, 20, 4,  2, 60,  64,  0, 0, 4,  2, 0,   0,   PADDED,  0 },
    { 2, 40, 4,  4, 140, 128, 0, 0, 4,  4, 70,  90,  PADDED,  0 },
    { 1, 12, 12, 1, 40,  256, 0, 0, 12, 1, 0,   20,  IN_TURN, 0 }, /* three blocks of rows */
    { 1, 9,  2,  1, 70,  576, 0, 0, 2,  1, 0,   60,  IN_TURN, 0 },
    { 1, 9,  2,  2, 50,  260, 0, 0, 2,  2, 33,  40,  IN_TURN, 0 },
    { 2, 10, 3,  2, 30,  16,  3, 0, 8,  2, 0,   9,   IN_TURN, 0 },
    { 1, 10, 2,  1, 30,  16,  6, 3, 8,  4, 0,   3,   IN_TURN, 0 },
    { 1, 10, 0,  0, 30,  16,  8, 4, 8,  4, 0,   3,   IN_TURN, 0 },
};
/* clang-format on */

DT_TEST(cuda_attention, few_tokens_match_the_cpu)
{
    run_all(few, DT_COUNT(few));
}

DT_TEST(cuda_attention, many_tokens_match_the_cpu)
{
    run_all(many, DT_COUNT(many));
}

/* A recorded call follows positions that change on the device, as decoding does. */
DT_TEST(cuda_attention, a_graph_follows_the_positions)
{
    const attention_shape s = { 2, 1, 4, 2, 300, 64, 0, 0, 4, 2, 0, 290, IN_TURN, 0 };
    const dti_attention_attr attr = { 4, 2, 0, 0.25f, 0, 0, 0 };
    cr_case c = { .row = "attention", .n_in = N_IN, .attr = &attr };
    DT_ENDS(kt_release) dt_local want;
    dt_local device[N_IN], out;
    const dt_kargs args = { .in = device, .out = &out, .attr = &attr, .n_in = N_IN, .n_out = 1 };
    dti_cuda_graph *graph;
    CR_DEVICE d = cr_open();

    make_operands(&s, DT_BF16, c.in);
    memcpy(device, c.in, sizeof device);
    for (int i = 0; i < N_IN; i++) device[i].data = cr_up(&d, &c.in[i], 0);
    out = c.out = (dt_local){ .dtype = DT_BF16, .n_axes = 4, .shape = { 2, 1, 4, 64 } };
    out.data = cr_up(&d, &out, 0);
    want = kt_local(DT_BF16, 4, out.shape);
    DT_ASSERT_CUDA(d.m, dt_test_cuda_row(d.m, "attention")(d.c, &args)); /* scratch grows */
    DT_ASSERT_CUDA(d.m, d.m->capture_begin(d.c));
    DT_ASSERT_CUDA(d.m, dt_test_cuda_row(d.m, "attention")(d.c, &args));
    DT_ASSERT_CUDA(d.m, d.m->capture_end(d.c, &graph));
    for (int32_t p = 0; p < 300; p += 71) {
        int32_t *positions = c.in[POSITIONS].data;
        unsigned char got[2 * 4 * 64 * 2];
        positions[0] = p;
        positions[1] = 299 - p;
        DT_ASSERT_CUDA(d.m, d.m->copy(d.c, device[POSITIONS].data, positions, 2 * sizeof *positions,
                                      DTI_CUDA_UP));
        DT_ASSERT_CUDA(d.m, d.m->graph_launch(d.c, graph));
        cr_down(&c, &d, out.data, got);
        cr_run_cuda(&c, &d, want.data);
        DT_ASSERT(memcmp(got, want.data, sizeof got) == 0);
    }
    d.m->graph_destroy(graph);
    for (int i = 0; i < N_IN; i++) {
        cr_release(&d, &c.in[i], device[i].data, 0);
        kt_release(&c.in[i]);
    }
    cr_release(&d, &out, out.data, 0);
}

/* Scores of +-1e30 pick one key and give its v exactly; a weight of 1 loses nothing. */
DT_TEST(cuda_attention, a_softmax_of_one_key_is_exact)
{
    enum { E = 8, S = 200 };
    const attention_shape s = { 1, 1, 1, 1, S, E, 0, 0, 1, 1, 0, S - 20, IN_TURN, 0 };
    const dti_attention_attr attr = { 1, 1, 0, 1.0f, 0, 0, 0 };
    CR_DEVICE d = cr_open();

    for (size_t t = 0; t < DT_COUNT(kt_floats) - 1; t++) /* f16 ends at 65504 */
        for (int64_t tokens = 1; tokens <= 19; tokens += 9) {
            attention_shape of = s;
            cr_case c = { .row = "attention", .n_in = N_IN, .attr = &attr };
            dt_local got;
            of.tokens = tokens;
            make_operands(&of, kt_floats[t], c.in);
            for (int64_t i = 0; i < tokens * E; i++)
                dti_store_f32(c.in[Q].data, kt_floats[t], i, 1e15f);
            for (int64_t i = 0; i < S * E; i++) {
                dti_store_f32(c.in[K].data, kt_floats[t], i, i / E == 77 ? 1e15f : -1e15f);
                dti_store_f32(c.in[V].data, kt_floats[t], i, (float)(i / E + i % E));
            }
            got = kt_local(kt_floats[t], 4, c.in[Q].shape);
            c.out = got;
            c.out.data = NULL;
            cr_run_cuda(&c, &d, got.data);
            for (int64_t i = 0; i < tokens * E; i++)
                DT_ASSERT(kt_get(&got, i) == (double)(77 + i % E));
            for (int i = 0; i < N_IN; i++) kt_release(&c.in[i]);
            kt_release(&got);
        }
}

/* The kernel finds what the host cannot know, and sync() tells. */
DT_TEST(cuda_attention, positions_outside_the_cache_are_reported)
{
    static const int32_t wrong[] = { -1, 30, INT32_MAX, INT32_MIN };
    const dti_attention_attr attr = { 2, 1, 0, 1.0f, 0, 0, 0 };
    CR_DEVICE d = cr_open();

    for (size_t i = 0; i < 3 * DT_COUNT(wrong); i++) {
        const attention_shape s = { 1, i % 3 == 2 ? 20 : 2, 2, 1, 30, 16, 0, 0, 2, 1, 0, 3, IN_TURN,
                                    0 };
        dt_local in[N_IN], device[N_IN], out;
        const dt_kargs args = {
            .in = device, .out = &out, .attr = &attr, .n_in = N_IN, .n_out = 1
        };
        char text[32];
        make_operands(&s, i % 3 == 0 ? DT_F32 : DT_BF16, in);
        ((int32_t *)in[POSITIONS].data)[1] = wrong[i / 3];
        memcpy(device, in, sizeof device);
        for (int x = 0; x < N_IN; x++) device[x].data = cr_up(&d, &in[x], 0);
        out = in[Q];
        out.data = cr_up(&d, &in[Q], 0);
        (void)snprintf(text, sizeof text, "position %d", wrong[i / 3]);
        DT_ASSERT_CUDA(d.m, dt_test_cuda_row(d.m, "attention")(d.c, &args));
        DT_ASSERT_CUDA_FAILS(d.m, d.m->sync(d.c), text);
        DT_ASSERT_CUDA(d.m, d.m->sync(d.c)); /* told once */
        for (int x = 0; x < N_IN; x++) {
            cr_release(&d, &in[x], device[x].data, 0);
            kt_release(&in[x]);
        }
        cr_release(&d, &out, out.data, 0);
    }
}

DT_TEST(cuda_attention, what_does_not_fit_is_refused)
{
    const dti_attention_attr attr = { 8, 4, 0, 1.0f, 0, 0, 0 };
    dt_local in[N_IN] = { { .dtype = DT_F32, .n_axes = 4, .shape = { 1, 1, 2, 2 } },
                          { .dtype = DT_F32, .n_axes = 4, .shape = { 1, 1, 2, 2 } },
                          { .dtype = DT_F32, .n_axes = 4, .shape = { 1, 1, 2, 2 } },
                          { .dtype = DT_I32, .n_axes = 2, .shape = { 1, 1 } } };
    dt_local out = in[Q], lse = in[Q];
    const dt_kargs args = { .in = in, .out = &out, .attr = &attr, .n_in = N_IN, .n_out = 1 };
    dti_attention_train_attr trained = { 0 };
    CR_DEVICE d = cr_open();

    in[Q].offset[2] = 4;
    DT_ASSERT_CUDA_FAILS(d.m, dt_test_cuda_row(d.m, "attention")(d.c, &args),
                         "query heads 4 to 5 read kv heads 2 to 2, but this rank holds 0 to 1");
    in[Q].offset[2] = 0;
    for (int i = 0; i < POSITIONS; i++) in[i].shape[3] = 577;
    DT_ASSERT_CUDA_FAILS(d.m, dt_test_cuda_row(d.m, "attention")(d.c, &args),
                         "heads of 577 columns, but the CUDA kernels take at most 576");
    for (int i = 0; i < POSITIONS; i++) in[i].shape[3] = 257;
    trained.of = attr;
    lse.shape[3] = 1;
    DT_ASSERT_CUDA_FAILS(
        d.m,
        dt_test_cuda_row(d.m, "attention_lse")(d.c, &(dt_kargs){ .in = in,
                                                                 .out = (dt_local[]){ out, lse },
                                                                 .attr = &trained,
                                                                 .n_in = N_IN,
                                                                 .n_out = 2 }),
        "heads of 257 columns, but the CUDA kernels that train take at most 256");
}

/* Latents: keys are values, in memory too. */
DT_TEST(cuda_attention, keys_may_be_values)
{
    static const int64_t widths[] = { 576, 64 };
    CR_DEVICE d = cr_open();

    for (size_t i = 0; i < 2 * DT_COUNT(widths); i++) {
        const attention_shape s = {
            2, 1 + 9 * (int64_t)(i % 2), 5, 1, 50, widths[i / 2], 0, 0, 5, 1, 0, 30, IN_TURN, 0
        };
        const dti_attention_attr attr = { 5, 1, 0, 0.1f, 0, 0, 0 };
        cr_case c = { .row = "attention", .n_in = N_IN, .attr = &attr };
        DT_ENDS(kt_release) dt_local apart, same;
        dt_local in[N_IN], out;
        make_operands(&s, DT_BF16, c.in);
        memcpy(c.in[V].data, c.in[K].data, cr_bytes(&c.in[K]));
        c.out = (dt_local){ .dtype = DT_BF16, .n_axes = 4 };
        memcpy(c.out.shape, c.in[Q].shape, sizeof c.out.shape);
        apart = kt_local(DT_BF16, 4, c.out.shape);
        same = kt_local(DT_BF16, 4, c.out.shape);
        cr_run_cuda(&c, &d, apart.data);
        for (int x = 0; x < N_IN; x++) {
            in[x] = c.in[x];
            in[x].data = x == V ? in[K].data : cr_up(&d, &c.in[x], 0);
        }
        out = c.out;
        out.data = cr_up(&d, &out, 0);
        DT_ASSERT_CUDA(
            d.m, dt_test_cuda_row(d.m, "attention")(
                     d.c, &(dt_kargs){
                              .in = in, .out = &out, .attr = &attr, .n_in = N_IN, .n_out = 1 }));
        cr_down(&c, &d, out.data, same.data);
        DT_ASSERT(memcmp(apart.data, same.data, cr_bytes(&same)) == 0);
        for (int x = 0; x < N_IN; x++) {
            if (x != V) cr_release(&d, &c.in[x], in[x].data, 0);
            kt_release(&c.in[x]);
        }
        cr_release(&d, &out, out.data, 0);
    }
}
