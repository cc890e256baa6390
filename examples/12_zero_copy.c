/* SPDX-License-Identifier: Apache-2.0
 *
 * Without a copy: a tensor over memory of the program's, its piece handed out by DLPack, somebody
 * else's array taken in, and what happens to the memory in the end.
 * Build: cc 12_zero_copy.c $(pkg-config --cflags --libs dtensor) */
#include <dtensor.h>
#include <stdio.h>
#include <stdlib.h>

enum { ROWS = 6, COLUMNS = 4 };

static void free_values(void *arg, void *data)
{
    *(int *)arg += 1;
    free(data);
}

/* Another library: doubles every element of an array that it is given, and lets it go. */
static void double_elements(dt_dlpack *array)
{
    const int64_t *shape = array->dl_tensor.shape, *stride = array->dl_tensor.strides;
    float *values = array->dl_tensor.data;

    for (int64_t r = 0; r < shape[0]; r++)
        for (int64_t c = 0; c < shape[1]; c++) values[r * stride[0] + c * stride[1]] *= 2;
    array->deleter(array);
}

/* What a rank that fails leaves behind goes with the run. */
static dt_status rank_main(dt_runtime *rt, void *arg)
{
    const dt_placement rows[] = { DT_SHARD(0) };
    const int64_t shape[] = { ROWS, COLUMNS };
    const int n_rows = ROWS / dt_runtime_size(rt), first = dt_runtime_rank(rt) * n_rows;
    const size_t bytes = (size_t)n_rows * COLUMNS * sizeof(float);
    float *values = malloc(bytes), sum = 0;
    dt_tensor *x = NULL, *y = NULL, *whole = NULL;
    dt_dlpack *out = NULL;
    dt_mesh *mesh = NULL;
    int freed = 0;

    (void)arg;
    if (values == NULL) return dt_fail(DT_ERR_MEMORY, "no memory");
    for (int i = 0; i < n_rows * COLUMNS; i++) values[i] = (float)(first * COLUMNS + i);
    DT_TRY(dt_mesh_create(rt, "tp=2", &mesh));

    /* Ours in: x lies in `values`, which is handed over with the call. */
    const dt_memory memory = { values, bytes, free_values, &freed };
    DT_TRY(dt_wrap_local(mesh, rows, DT_F32, 2, shape, memory, &x));

    /* Out: another library writes to the same bytes, and lets them go. */
    DT_TRY(dt_to_dlpack(x, &out));
    double_elements(out);

    /* In: an array of another library becomes y; here it is x's piece once more. */
    DT_TRY(dt_to_dlpack(x, &out));
    DT_TRY(dt_from_dlpack(mesh, rows, 2, shape, out, DT_DL_COPY_NEVER, &y));
    dt_tensor_release(&x);
    if (dt_tensor_local(y)->data != (void *)values)
        return dt_fail(DT_ERR_INTERNAL, "somebody has copied");

    DT_TRY(dt_full_tensor(y, &whole));
    for (int i = 0; i < ROWS * COLUMNS; i++)
        sum += ((const float *)dt_tensor_local(whole)->data)[i];
    if (sum != 2 * 276) return dt_fail(DT_ERR_INTERNAL, "the sum is %g", (double)sum);
    dt_tensor_release(&whole);
    dt_tensor_release(
        &y); /* and so the memory is free when this rank next makes a tensor, or ends */
    DT_TRY(dt_empty(mesh, rows, DT_F32, 2, shape, &x));
    if (freed != 1) return dt_fail(DT_ERR_INTERNAL, "freed %d times", freed);
    dt_tensor_release(&x);
    dt_mesh_release(&mesh);
    if (dt_runtime_rank(rt) == 0)
        printf("one memory throughout: the sum of %d elements is %g, freed once\n", ROWS * COLUMNS,
               (double)sum);
    return DT_OK;
}

int main(void)
{
    dt_run_options options = DT_RUN_OPTIONS_INIT;

    options.n_ranks = 2;
    if (dt_run(&options, rank_main, NULL) == DT_OK) return 0;
    fprintf(stderr, "%s\n", dt_last_error()->message);
    return 1;
}
