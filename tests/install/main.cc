// SPDX-License-Identifier: Apache-2.0
//
// A user's program in C++17: the same macros, the same defaults, two ranks that move a tensor.
#include <dtensor.h>

#include <cstdint>
#include <cstdio>

static dt_status rank_main(dt_runtime *rt, void *arg)
{
    const int64_t n = 5;
    const int32_t values[] = { 0, 1, 2, 3, 4 };
    const dt_placement cut[] = { DT_SHARD(0) }, units[] = { DT_SHARD_UNITS(0, 4) };
    dt_tensor *x = nullptr, *y = nullptr;
    dt_mesh *mesh = nullptr;
    dt_status st = dt_mesh_create(rt, "tp=2", &mesh);

    (void)arg;
    if (st == DT_OK)
        st = dt_distribute(mesh, cut, DT_I32, 1, &n, dt_source{ values, DT_EQUAL_COPIES }, &x);
    if (st == DT_OK) st = dt_redistribute(x, units, &y);
    if (st == DT_OK && dt_tensor_local(y)->shape[0] != (dt_runtime_rank(rt) == 0 ? 4 : 1))
        st = dt_fail(DT_ERR_INTERNAL, "a piece of %d rows", int(dt_tensor_local(y)->shape[0]));
    dt_tensor_release(&y);
    dt_tensor_release(&x);
    dt_mesh_release(&mesh);
    return st;
}

int main()
{
    dt_run_options options = DT_RUN_OPTIONS_INIT;
    const dt_load_options load = DT_LOAD_OPTIONS_INIT;
    const dt_generate_options generate = DT_GENERATE_OPTIONS_INIT;
    const dt_placement partial = DT_PARTIAL(DT_MAX), whole = DT_REPLICATE;

    if (options.n_ranks != 1 || !options.bind || options.timeout_ms != 600000) return 2;
    if (!load.keep_dtype || load.dim == nullptr || load.plan != nullptr) return 2;
    if (generate.max_new_tokens != -1 || generate.ignore_eos) return 2;
    if (partial.kind != DT_PLACE_PARTIAL || partial.reduce != DT_MAX) return 2;
    if (whole.kind != DT_PLACE_REPLICATE) return 2;
    options.n_ranks = 2;
    if (dt_run(&options, rank_main, nullptr) != DT_OK) {
        std::fprintf(stderr, "%s\n", dt_last_error()->message);
        return 1;
    }
    return 0;
}
