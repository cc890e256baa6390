/* SPDX-License-Identifier: Apache-2.0 */
#include "dtensor/channel_route.h"

#include "placements/cross.h"

/* As `place` of a dim of `before` ranks cuts, on one of `n`: offsets are of the one, and copies of
 * a part remain if the parts do. */
static dt_placement on_dim(const dt_placement *place, int before, int n)
{
    dt_placement p = *place;
    const int parts = p.kind == DT_PLACE_SHARD ? before / p.replicas : 1;

    if (p.kind == DT_PLACE_PARTIAL) return DT_REPLICATE; /* of one rank: the value */
    if (before == n || p.kind != DT_PLACE_SHARD) return p;
    p.n_offsets = 0;
    p.offsets = NULL;
    p.replicas = p.replicas > 1 && n % parts == 0 ? n / parts : 1;
    return p;
}

dt_status dti_route_layout(const dti_route *r, const dt_layout *layout, const dt_layout **out)
{
    dt_placement have[DT_MAX_DIMS], want[DT_MAX_DIMS];
    const int n = dt_mesh_n_dims(r->to);

    (void)dt_layout_placements(layout, have);
    for (int m = 0; m < n; m++) {
        const int d = r->paired ? m : dt_mesh_find_dim(r->from, dt_mesh_dim_name(r->to, m));
        const int size = dt_mesh_dim_size(r->to, m);
        want[m] = d >= 0 ? on_dim(&have[d], layout->dim_size[d], size) : DT_REPLICATE;
        if (!r->paired) want[m].order = 0; /* some cuts may be missing */
    }
    DT_TRY(dt_layout_get(r->to, layout->n_axes, want, NULL, out));
    return DT_OK;
}

int dti_route_teller(const dti_route *r, int to_place)
{
    return r->paired ? to_place : to_place % dt_mesh_n_ranks(r->from);
}

static void coord_of(const dt_layout *l, int place, int *coord)
{
    for (int m = l->n_dims - 1; m >= 0; m--) {
        coord[m] = place % l->dim_size[m];
        place /= l->dim_size[m];
    }
}

bool dti_route_between(const dti_route *r, const dt_layout *from, int from_place,
                       const dt_layout *to, int to_place, const int64_t *shape, dti_overlap *out)
{
    int sender[DT_MAX_DIMS], coord[DT_MAX_DIMS];
    dti_receiver receiver = { .number = to_place };

    if (r->paired && from_place != to_place) return false;
    coord_of(from, from_place, sender);
    coord_of(to, to_place, coord);
    receiver.member = dt_mesh_find_rank(r->from, dt_mesh_rank_at(r->to, to_place), receiver.coord);
    return (r->paired || dti_cross_serves(from, sender, &receiver)) &&
           dti_overlap_of(from, sender, to, coord, shape, out);
}
