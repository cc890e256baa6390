/* SPDX-License-Identifier: Apache-2.0
 *
 * A sum over the ranks travels while each of them multiplies: begin, compute, wait. The numbers are
 * those of one after the other; the times are this machine's, of links that are made slow
 * (dt_run_options.simulated_link), as between hosts.
 * Build: cc 13_overlap.c $(pkg-config --cflags --libs dtensor) */
#include <dtensor.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { TOKENS = 96, WIDTH = 384, GRADIENTS = 1 << 18 };

#define TRY(call)                    \
    do {                             \
        const dt_status st = (call); \
        if (st != DT_OK) return st;  \
    } while (0)

static double now_ms(void)
{
    struct timespec t;

    (void)timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

typedef struct work {
    dt_tape *tape;
    dt_tensor *x, *w;     /* what is computed: x w^T, a few times */
    dt_tensor *gradients; /* what travels: terms of a sum over "dp", wanted in shards */
} work;

static dt_tensor *multiply(const work *k)
{
    dt_tensor *y = k->x;

    for (int i = 0; i < 6; i++) y = dt_linear(k->tape, y, k->w, NULL);
    return y;
}

/* Copies what this rank computed and received, and says how long it took. */
static dt_status step(const work *k, bool overlap, float *out, double *ms)
{
    const dt_placement shards[] = { DT_SHARD(0) };
    const double begin = now_ms();
    dt_tensor *product, *reduced;

    if (overlap) {
        dt_pending *sum = dt_move_begin(k->tape, k->gradients, shards);
        product = multiply(k);
        reduced = dt_move_wait(k->tape, sum);
    } else {
        reduced = dt_move(k->tape, k->gradients, shards);
        product = multiply(k);
    }
    *ms = now_ms() - begin;
    TRY(dt_tape_status(k->tape));
    memcpy(out, dt_tensor_local(product)->data, TOKENS * WIDTH * sizeof *out);
    memcpy(out + TOKENS * WIDTH, dt_tensor_local(reduced)->data, GRADIENTS / 2 * sizeof *out);
    dt_tape_reset(k->tape);
    return DT_OK;
}

static dt_status compare(const work *k)
{
    static float results[2][2][TOKENS * WIDTH + GRADIENTS / 2];
    const int rank = dt_runtime_rank(dt_tape_runtime(k->tape));
    double one_after_the_other, together;

    TRY(step(k, false, results[rank][0], &one_after_the_other)); /* warm */
    TRY(step(k, false, results[rank][0], &one_after_the_other));
    TRY(step(k, true, results[rank][1], &together));
    TRY(step(k, true, results[rank][1], &together));
    if (memcmp(results[rank][0], results[rank][1], sizeof results[rank][0]) != 0)
        return dt_fail(DT_ERR_INTERNAL, "the numbers differ");
    if (results[rank][0][TOKENS * WIDTH] != 3.0f)
        return dt_fail(DT_ERR_INTERNAL, "the sum of 1 and 2 is not 3");
    if (rank == 0)
        printf("one after the other %.2f ms, overlapped %.2f ms, the same bits\n",
               one_after_the_other, together);
    return DT_OK;
}

static dt_status rank_main(dt_runtime *rt, void *arg)
{
    const dt_placement whole[] = { DT_REPLICATE }, term[] = { DT_PARTIAL(DT_SUM) };
    const int64_t x_shape[] = { TOKENS, WIDTH }, w_shape[] = { WIDTH, WIDTH };
    const int64_t g_shape[] = { GRADIENTS };
    dt_mesh *mesh;
    work k;

    (void)arg;
    TRY(dt_mesh_create(rt, "dp=2", &mesh));
    TRY(dt_tape_create(rt, &k.tape));
    TRY(dt_rand(mesh, whole, DT_F32, 2, x_shape, (dt_random){ 1, 0 }, &k.x));
    TRY(dt_rand(mesh, whole, DT_F32, 2, w_shape, (dt_random){ 1, 1 }, &k.w));
    TRY(dt_fill_rand(k.w, (dt_random){ 1, 2 }, -0.05, 0.05));
    TRY(dt_full(mesh, whole, DT_F32, 1, g_shape, dt_runtime_rank(rt) + 1, &k.gradients));
    {
        dt_tensor *terms; /* each rank's own, not yet summed */
        const void *own = dt_tensor_local(k.gradients)->data;
        TRY(dt_from_local(mesh, term, DT_F32, 1, g_shape, own, &terms));
        dt_tensor_release(&k.gradients);
        k.gradients = terms;
    }
    TRY(compare(&k));
    dt_tensor_release(&k.gradients);
    dt_tensor_release(&k.w);
    dt_tensor_release(&k.x);
    dt_tape_release(&k.tape);
    dt_mesh_release(&mesh);
    return DT_OK;
}

int main(void)
{
    const dt_link between_hosts = { 100e3, 0.05 }; /* half a MB takes 10 ms, and no core */
    dt_run_options options = DT_RUN_OPTIONS_INIT;

    options.n_ranks = 2;
    options.simulated_link = &between_hosts;
    if (dt_run(&options, rank_main, NULL) == DT_OK) return 0;
    fprintf(stderr, "%s\n", dt_last_error()->message);
    return 1;
}
