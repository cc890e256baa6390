/* SPDX-License-Identifier: Apache-2.0 */
#include "placements/cross.h"

#include "placements/move.h"

bool dti_cross_serves(const dt_layout *from, const int *sender, const dti_receiver *receiver)
{
    int number = receiver->number;

    for (int m = 0; m < from->n_dims; m++) {
        const bool cuts = from->shard_dims >> m & 1u;
        const int copies = cuts ? from->place[m].replicas : from->dim_size[m];
        if (receiver->member) {
            if (cuts ? !dti_move_is_nearest(&from->place[m], receiver->coord[m], sender[m])
                     : sender[m] != receiver->coord[m])
                return false;
        } else if (sender[m] % copies != number % copies) {
            return false;
        }
        number /= copies; /* receivers that follow each other ask different holders */
    }
    return true;
}

int64_t dti_cross_bytes(const dt_layout *from, const dti_receiver *receiver, const dt_layout *to,
                        const int *coord, const int64_t *shape, size_t element_bytes)
{
    int64_t n = dti_piece_count(to, coord, shape);

    if (receiver->member) n -= dti_overlap_count(from, receiver->coord, to, coord, shape);
    return n * (int64_t)element_bytes;
}
