/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/stage_net.h"

#include <dtensor/ops.h>
#include <dtensor/weights.h>
#include <stdio.h>

enum { VALUES = DT_NET_WIDTH * DT_NET_INNER };

static dt_status make_layers(dt_stage_net *net)
{
    const int n = dt_pipeline_schedule_stages(net->schedule);
    dt_layer_spec specs[DT_NET_MOST] = { { 0 } };
    char names[DT_NET_MOST][16];
    dt_status st = DT_OK;

    DT_EXPECT(2 * n <= DT_NET_MOST, "%d stages", n);
    for (int k = 0; k < 2 * n && st == DT_OK; k++) {
        const bool up = k % 2 == 0;
        (void)snprintf(names[k], sizeof names[k], "%d.%s", k / 2, up ? "up" : "down");
        specs[k] = (dt_layer_spec){ .name = names[k],
                                    .kind = &dt_linear_kind,
                                    .style = up ? "colwise" : "rowwise",
                                    .axis = { { up ? DT_NET_INNER : DT_NET_WIDTH, DT_UNIT_ROW },
                                              { up ? DT_NET_WIDTH : DT_NET_INNER, DT_UNIT_ROW } },
                                    .stage = k / 2 };
        st = dt_mesh_stage(net->mesh, "pp", dt_pipeline_schedule_rank_of(net->schedule, k / 2),
                           &specs[k].mesh);
    }
    if (st == DT_OK) st = dt_layers_create(net->mesh, "tp?", specs, 2 * n, NULL, &net->layers);
    if (st == DT_OK) st = dt_layers_init(net->layers, DT_F32, 2026, NULL, 0);
    for (int k = 0; k < 2 * n; k++) dt_mesh_release(&specs[k].mesh);
    return st;
}

static dt_status make(dt_stage_net *net, const dt_optimizer_options *optimizer)
{
    const dt_placement whole[DT_MAX_DIMS] = { { 0 } };
    const int64_t shape[] = { DT_NET_ROWS, DT_NET_WIDTH };
    const int n = dt_pipeline_schedule_microbatches(net->schedule);

    DT_EXPECT(n <= DT_NET_MOST, "%d microbatches", n);
    DT_TRY(dt_mesh_stage(net->mesh, "pp",
                         dt_mesh_coord(net->mesh, dt_mesh_find_dim(net->mesh, "pp")), &net->here));
    DT_TRY(make_layers(net));
    for (int m = 0; m < n; m++)
        DT_TRY(dt_randn(net->here, whole, DT_F32, 2, shape, (dt_random){ 7, (uint64_t)m },
                        &net->x[m]));
    DT_TRY(dt_optimizer_create(net->layers, optimizer, &net->optimizer));
    return DT_OK;
}

dt_status dt_stage_net_open(dt_mesh *mesh, dt_pipeline_schedule *schedule,
                            const dt_optimizer_options *optimizer, dt_stage_net *out)
{
    dt_status st;

    *out = (dt_stage_net){ .mesh = mesh, .schedule = schedule };
    st = make(out, optimizer);
    if (st != DT_OK) dt_stage_net_close(out);
    return st;
}

void dt_stage_net_close(dt_stage_net *net)
{
    dt_pipeline_release(&net->pipeline);
    dt_optimizer_release(&net->optimizer);
    for (int m = 0; m < DT_NET_MOST; m++) dt_tensor_release(&net->x[m]);
    dt_layers_release(&net->layers);
    dt_mesh_release(&net->here);
}

dt_tensor *dt_stage_net_forward(const dt_stage_net *net, dt_tape *t, int stage, int microbatch,
                                dt_tensor *x)
{
    dt_tensor *h, *y;

    if (x == NULL) x = net->x[microbatch];
    h = dt_tanh(t, dt_layer_forward(t, dt_layers_at(net->layers, 2 * stage), x));
    y = dt_add(t, x, dt_layer_forward(t, dt_layers_at(net->layers, 2 * stage + 1), h));
    if (stage < dt_pipeline_schedule_stages(net->schedule) - 1) return y;
    return dt_mul_scalar(t, dt_sum(t, dt_mul(t, y, y), DT_ALL_AXES), 1e-3);
}

dt_status dt_stage_net_pipeline(dt_stage_net *net, const dt_pipeline_options *how)
{
    DT_TRY(dt_pipeline_create(net->mesh, "pp", net->schedule, net->optimizer, how, &net->pipeline));
    return DT_OK;
}

dt_status dt_stage_net_read(const dt_stage_net *net, float *values)
{
    const dt_placement whole[DT_MAX_DIMS] = { { 0 } };

    for (int k = 0; k < dt_layers_count(net->layers); k++) {
        dt_tensor *full;
        dt_status st;
        DT_TRY(
            dt_copy_to(dt_layer_param(dt_layers_at(net->layers, k), 0), net->mesh, whole, &full));
        st = dt_tensor_read(full, values + (size_t)k * VALUES, VALUES * sizeof *values);
        dt_tensor_release(&full);
        DT_TRY(st);
    }
    return DT_OK;
}
