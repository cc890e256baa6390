/* SPDX-License-Identifier: Apache-2.0
 *
 * Where the members of a communicator are, and the tree over their hosts. It depends on the layout
 * of the world alone: hosts are numbered as members come, and of h hosts the first so many are
 * pairs that a power of two is left of nodes; nodes whose numbers differ in bit 0 are added first,
 * then those that differ in bit 1, the lower one first. So each node of the tree is a row of
 * neighbouring hosts. */
#include "base/memory.h"
#include "mesh/comm/mpi_internal.h"

enum { OF_A_NODE = 2 };

int dti_mpi_host_of_node(const dti_mpi_layout *y, int node)
{
    return node < y->n_pairs ? OF_A_NODE * node : node + y->n_pairs;
}

int dti_mpi_reversed(const dti_mpi_layout *y, int node)
{
    int to = 0;

    for (int k = 0; k < y->n_rounds; k++) to |= (node >> k & 1) << (y->n_rounds - 1 - k);
    return to;
}

static int n_on(const dti_mpi_layout *y, int host)
{
    return y->begin[host + 1] - y->begin[host];
}

int dti_mpi_n_of_rail(const dti_mpi_layout *y, int host, int rail)
{
    return (n_on(y, host) - rail + y->least - 1) / y->least;
}

void dti_mpi_number_hosts(dti_mpi_world *w, const dti_mpi_card *cards)
{
    int n = 0;

    for (int p = 0; p < w->n_processes; p++) {
        int same = p > 0 && cards[p - 1].machine == cards[p].machine ? p - 1 : 0;
        while (cards[same].machine != cards[p].machine) same++;
        w->hosts[p] = same < p ? w->hosts[same] : n++;
    }
}

/* Numbers of the members' hosts, as they come, and how many each has behind its own number. */
static dt_status number_hosts(const dti_mpi_comm *c, dti_mpi_layout *y, int *host_of)
{
    const dti_mpi_world *w = c->port->world;
    const int most = w->n_hosts > 0 ? w->n_hosts : w->n_processes;
    int *seen; /* [most] number + 1 of a host of the world */

    DT_TRY(dti_alloc_array((size_t)most, sizeof *seen, (void **)&seen));
    for (int m = 0; m < c->head.size; m++) {
        int *number = &seen[dti_mpi_host_of(w, c->head.world_ranks[m])];
        if (*number == 0) *number = ++y->n_hosts;
        host_of[m] = *number - 1;
        y->begin[*number]++;
    }
    dti_free(seen);
    return DT_OK;
}

static void order_members(const dti_mpi_comm *c, dti_mpi_layout *y, const int *host_of)
{
    for (int h = 0; h < y->n_hosts; h++) y->begin[h + 1] += y->begin[h];
    for (int m = 0; m < c->head.size; m++) {
        if (m == c->head.rank) {
            y->host = host_of[m];
            y->place = y->begin[y->host];
        }
        y->order[y->begin[host_of[m]]++] = m;
    }
    for (int h = y->n_hosts; h > 0; h--) y->begin[h] = y->begin[h - 1];
    y->begin[0] = 0;
    y->place -= y->begin[y->host];
    y->least = n_on(y, 0);
    for (int h = 1; h < y->n_hosts; h++)
        if (n_on(y, h) < y->least) y->least = n_on(y, h);
}

/* Blocks of a rail in the order in which halves of it are parted. */
static void order_rails(dti_mpi_layout *y)
{
    int n = 0;

    for (int rail = 0; rail < y->least; rail++) {
        y->rails[rail] = n;
        for (int at = 0; at < 1 << y->n_rounds; at++) {
            const int node = dti_mpi_reversed(y, at), first = dti_mpi_host_of_node(y, node);
            for (int h = first; h < first + 1 + (node < y->n_pairs); h++)
                for (int place = rail; place < n_on(y, h); place += y->least)
                    y->blocks[n++] = y->order[y->begin[h] + place];
        }
    }
    y->rails[y->least] = n;
}

dt_status dti_mpi_layout_create(dti_mpi_comm *c)
{
    const size_t n = (size_t)c->head.size;
    dt_status st = DT_OK;
    dti_mpi_layout *y;
    int *host_of = NULL;

    DT_TRY(dti_new(sizeof *y, &y));
    c->layout = y; /* freed with it, however this ends */
    DT_TRY(dti_alloc_array(n, sizeof *y->order, (void **)&y->order));
    DT_TRY(dti_alloc_array(n, sizeof *y->blocks, (void **)&y->blocks));
    DT_TRY(dti_alloc_array(n + 1, sizeof *y->begin, (void **)&y->begin));
    DT_TRY(dti_alloc_array(n + 1, sizeof *y->rails, (void **)&y->rails));
    DT_TRY(dti_alloc_array(n, sizeof *host_of, (void **)&host_of));
    DT_TRY_TO(done, st, number_hosts(c, y, host_of));
    order_members(c, y, host_of);
    while (OF_A_NODE << y->n_rounds <= y->n_hosts) y->n_rounds++;
    y->n_pairs = y->n_hosts - (1 << y->n_rounds);
    y->node = y->host < 2 * y->n_pairs ? y->host / 2 : y->host - y->n_pairs;
    y->is_second = y->host < 2 * y->n_pairs && y->host % 2 == 1;
    order_rails(y);
done:
    dti_free(host_of);
    return st;
}

void dti_mpi_layout_free(dti_mpi_layout *y)
{
    if (y == NULL) return;
    dti_free(y->order);
    dti_free(y->begin);
    dti_free(y->blocks);
    dti_free(y->rails);
    dti_free(y);
}
