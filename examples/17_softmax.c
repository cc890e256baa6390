/* SPDX-License-Identifier: Apache-2.0
 *
 * A softmax along an axis that is cut over ranks, twice: by the library's row, and by functions on
 * local pieces, for which dt_local_map() moves what they ask for. Both send what is reduced of a
 * row, never the row, and give what plain C gives, on 1 to 3 ranks.
 * R rows, C columns (which neither 2 nor 3 divides). */
#include <dtensor.h>
#include <math.h>
#include <stdio.h>

enum { R = 3, C = 7 };

/* --- by functions on pieces: n columns of each row, of which a rank may have none ------------- */

/* x [r, n] -> the largest of each row [r] */
static dt_status largest(const dt_kargs *a)
{
    const float *x = a->in[0].data;
    const int64_t n = a->in[0].shape[1];
    float *most = a->out[0].data;

    for (int64_t r = 0; r < a->in[0].shape[0]; r++) {
        most[r] = -INFINITY;
        for (int64_t c = 0; c < n; c++) most[r] = fmaxf(most[r], x[r * n + c]);
    }
    return DT_OK;
}

/* x [r, n], most [r] -> e^(x - most) [r, n], its sums [r] */
static dt_status exponents(const dt_kargs *a)
{
    const float *x = a->in[0].data, *most = a->in[1].data;
    const int64_t n = a->in[0].shape[1];
    float *e = a->out[0].data, *sum = a->out[1].data;

    for (int64_t r = 0; r < a->in[0].shape[0]; r++) {
        sum[r] = 0;
        for (int64_t c = 0; c < n; c++) sum[r] += e[r * n + c] = expf(x[r * n + c] - most[r]);
    }
    return DT_OK;
}

/* e [r, n], sum [r] -> e / sum [r, n] */
static dt_status divide(const dt_kargs *a)
{
    const float *e = a->in[0].data, *sum = a->in[1].data;
    const int64_t n = a->in[0].shape[1];
    float *y = a->out[0].data;

    for (int64_t i = 0; i < a->in[0].shape[0] * n; i++) y[i] = e[i] / sum[i / n];
    return DT_OK;
}

/* What each rank finds is a term of a maximum, or of a sum; the next call asks for it whole, and
 * that is the move. */
static dt_tensor *softmax_by_pieces(dt_tape *t, dt_tensor *x)
{
    static const int64_t shape[] = { R, C };
    const dt_placement cut = DT_SHARD(1), whole = DT_REPLICATE;
    const dt_placement most = DT_PARTIAL(DT_MAX), terms = DT_PARTIAL(DT_SUM);
    const dt_local_call calls[] = {
        { .name = "largest",
          .run = largest,
          .n_in = 1,
          .n_out = 1,
          .in_place = { &cut },
          .out = { { &most, DT_F32, 1, shape } } },
        { .name = "exponents",
          .run = exponents,
          .n_in = 2,
          .n_out = 2,
          .in_place = { &cut, &whole },
          .out = { { &cut, DT_F32, 2, shape }, { &terms, DT_F32, 1, shape } } },
        { .name = "divide",
          .run = divide,
          .n_in = 2,
          .n_out = 1,
          .in_place = { &cut, &whole },
          .out = { { &cut, DT_F32, 2, shape } } },
    };
    dt_tensor *in[2] = { x, NULL }, *e[2], *y;

    dt_local_map(t, &calls[0], in, &in[1]);
    dt_local_map(t, &calls[1], in, e);
    dt_local_map(t, &calls[2], e, &y);
    return y;
}

/* --- both, beside plain C --------------------------------------------------------------------- */

static void plain(const float *x, float *y)
{
    for (int r = 0; r < R; r++) {
        float most = -INFINITY;
        double sum = 0;
        for (int c = 0; c < C; c++) most = fmaxf(most, x[r * C + c]);
        for (int c = 0; c < C; c++) sum += exp((double)(x[r * C + c] - most));
        for (int c = 0; c < C; c++)
            y[r * C + c] = (float)(exp((double)(x[r * C + c] - most)) / sum);
    }
}

/* The result lies as x does, and no more was sent than a number or two of each row. */
static dt_status compare(dt_tape *t, dt_tensor *x, dt_tensor *y, const float *want,
                         const char *what)
{
    const dt_comm_counter sums = dt_tape_comm(t, DT_COMM_ALL_REDUCE);
    dt_tensor *full = NULL;
    dt_status st = DT_OK;

    DT_TRY(dt_tape_status(t));
    DT_CHECK(dt_tensor_local(y)->shape[1] == dt_tensor_local(x)->shape[1] &&
                 dt_tape_comm(t, DT_COMM_ALL_GATHER).calls == 0,
             DT_ERR_INTERNAL, "%s: rows were gathered", what);
    DT_TRY_TO(done, st, dt_full_tensor(y, &full));
    for (int i = 0; i < R * C; i++) {
        const float got = ((const float *)dt_tensor_local(full)->data)[i];
        DT_CHECK_TO(done, st, fabsf(got - want[i]) <= 1e-6f, DT_ERR_INTERNAL,
                    "%s: element %d is %g, not %g", what, i, (double)got, (double)want[i]);
    }
    if (dt_mesh_coord(dt_tensor_mesh(y), 0) == 0)
        printf("tp=%d, %-9s as plain C: %d all-reduces, %d bytes\n",
               dt_mesh_n_ranks(dt_tensor_mesh(y)), what, (int)sums.calls, (int)sums.bytes);
done:
    dt_tensor_release(&full);
    return st;
}

static dt_status rank_main(dt_runtime *rt, void *arg)
{
    const dt_placement columns = DT_SHARD(1);
    const int64_t shape[] = { R, C };
    float values[R * C], want[R * C];
    dt_mesh *mesh = NULL;
    dt_tensor *x = NULL;
    dt_tape *t = NULL;
    dt_status st = DT_OK;

    for (int i = 0; i < R * C; i++) values[i] = (float)(i * 11 % 17) / 3.0f + 90.0f; /* e^95: inf */
    plain(values, want);
    DT_TRY(dt_mesh_create(rt, arg, &mesh));
    DT_TRY_TO(done, st, dt_tape_create(rt, &t));
    DT_TRY_TO(done, st,
              dt_distribute(mesh, &columns, DT_F32, 2, shape,
                            (dt_source){ values, DT_EQUAL_COPIES }, &x));
    DT_TRY_TO(done, st, compare(t, x, dt_softmax(t, x, 1), want, "by a row"));
    dt_tape_reset(t);
    DT_TRY_TO(done, st, compare(t, x, softmax_by_pieces(t, x), want, "by pieces"));
done:
    dt_tensor_release(&x);
    dt_tape_release(&t);
    dt_mesh_release(&mesh);
    return st;
}

int main(void)
{
    static const char *const meshes[] = { "tp=1", "tp=2", "tp=3" };

    for (int n = 1; n <= 3; n++) {
        dt_run_options options = DT_RUN_OPTIONS_INIT;
        options.n_ranks = n;
        if (dt_run(&options, rank_main, (void *)(uintptr_t)meshes[n - 1]) == DT_OK) continue;
        (void)fprintf(stderr, "%s\n", dt_last_error()->message);
        return 1;
    }
    return 0;
}
