/* SPDX-License-Identifier: Apache-2.0
 *
 * Sums over more ranks than tell each other everything: in rank order on each host, then in a tree
 * over the hosts (mpi_layout.c). The order of additions is the same for every size and for both
 * operations; what differs is who makes them.
 *
 *   small   the first rank of a host, its rail, adds its host's terms; rails of nodes exchange
 *           whole sums in each round; each hands the result out on its host
 *   large   as many rails as the host with the fewest ranks has; each adds its share of the terms,
 *           and in each round two rails exchange halves of what they still have in common. Of an
 *           all_reduce they then exchange back what they have.
 *
 * A large sum is made in pieces, so that sums on their way take a bounded memory. The steps of a
 * piece: gather (on the host), fold (pairs), a round per bit, spread (the rounds backwards),
 * unfold, hand out (on the host). A rank takes no part in some of them. Each stream is used once in
 * a piece.
 */
#include <string.h>

#include "base/memory.h"
#include "base/pool.h"
#include "mesh/comm/call.h"
#include "mesh/comm/mpi_internal.h"
#include "mesh/comm/reduce.h"

enum { SUMS_BYTES = 512 << 10, GRAIN_BYTES = 64, RECEIVES = false, SENDS = true };

typedef dti_mpi_span span;

static bool scatters(const dti_mpi_comm *c)
{
    return dti_mpi_call_of(c)->op == DTI_COMM_REDUCE_SCATTER;
}

static size_t wide_bytes(const dti_mpi_comm *c)
{
    return dt_dtype_size(dti_reduce_dtype(dti_mpi_call_of(c)->dtype));
}

static bool is_rail(const dti_mpi_comm *c)
{
    return c->layout->place < c->tree.n_rails;
}

static int on_host(const dti_mpi_comm *c, int host, int place)
{
    return c->layout->order[c->layout->begin[host] + place];
}

/* Of a rail of another host, as this one. */
static int rail_of(const dti_mpi_comm *c, int host)
{
    return on_host(c, host, c->layout->place);
}

static int n_here(const dti_mpi_comm *c)
{
    return c->layout->begin[c->layout->host + 1] - c->layout->begin[c->layout->host];
}

/* --- which elements -----------------------------------------------------------------------------
 */

/* Of an all_reduce: the share of a rail in the piece. */
static span share_of(const dti_mpi_comm *c, int rail)
{
    const int64_t grain = GRAIN_BYTES / (int64_t)dt_dtype_size(dti_mpi_call_of(c)->dtype);
    int64_t begin, end;

    dti_pool_share(c->tree.n, grain, rail, c->tree.n_rails, &begin, &end);
    return (span){ c->tree.at + begin, end - begin };
}

/* Of a reduce_scatter: blocks [first, first + n) of a list. */
static int64_t count_blocks(const dti_mpi_comm *c, int first, int n)
{
    int64_t sum = 0;

    for (int i = 0; i < n; i++)
        sum += dti_mpi_part(&c->blocks, c->blocks.counts[c->layout->blocks[first + i]]);
    return sum;
}

/* Blocks of a rail at places [0, at) of its halves. */
static int n_blocks(const dti_mpi_layout *y, int rail, int at)
{
    int n = 0;

    for (int i = 0; i < at; i++) {
        const int node = dti_mpi_reversed(y, i), host = dti_mpi_host_of_node(y, node);
        n += dti_mpi_n_of_rail(y, host, rail);
        if (node < y->n_pairs) n += dti_mpi_n_of_rail(y, host + 1, rail);
    }
    return n;
}

/* Elements of this rail at places [from, to) of its halves. */
static span at_places(const dti_mpi_comm *c, int from, int to)
{
    const dti_mpi_layout *y = c->layout;
    const int64_t grain = GRAIN_BYTES / (int64_t)dt_dtype_size(dti_mpi_call_of(c)->dtype);
    int64_t begin = 0, end, ignored;

    if (!scatters(c)) {
        const int64_t n = share_of(c, y->place).n;
        dti_pool_share(n, grain, from, 1 << y->n_rounds, &begin, &ignored);
        dti_pool_share(n, grain, to - 1, 1 << y->n_rounds, &ignored, &end);
        return (span){ begin, end - begin };
    }
    begin = count_blocks(c, y->rails[y->place], n_blocks(y, y->place, from));
    end = count_blocks(c, y->rails[y->place], n_blocks(y, y->place, to));
    return (span){ begin, end - begin };
}

static span all_places(const dti_mpi_comm *c)
{
    return at_places(c, 0, 1 << c->layout->n_rounds);
}

/* What an unfolded host gets. */
static span of_second(const dti_mpi_comm *c)
{
    const dti_mpi_layout *y = c->layout;
    const int at = dti_mpi_reversed(y, y->node), first = n_blocks(y, y->place, at);
    const int mine = dti_mpi_n_of_rail(y, dti_mpi_host_of_node(y, y->node), y->place);
    const int theirs = dti_mpi_n_of_rail(y, dti_mpi_host_of_node(y, y->node) + 1, y->place);
    const int list = y->rails[y->place];

    if (!scatters(c)) return all_places(c);
    return (span){ count_blocks(c, list, first + mine),
                   count_blocks(c, list + first + mine, theirs) };
}

/* --- where they are -----------------------------------------------------------------------------
 */

static char *sum_at(const dti_mpi_comm *c, int64_t i)
{
    return c->tree.sums + i * (int64_t)wide_bytes(c);
}

/* Finished sums lie where they belong, or, of others' blocks too, close together. */
static void *result_at(const dti_mpi_comm *c, int64_t i)
{
    const dti_comm_call *call = dti_mpi_call_of(c);
    const size_t bytes = dt_dtype_size(call->dtype);

    if (scatters(c)) return dti_element(c->tree.sums, i, bytes);
    return dti_element(call->recv, share_of(c, c->layout->place).begin + i, bytes);
}

static dti_mpi_transfer terms_for(const dti_mpi_comm *c, int rail)
{
    const dti_comm_call *call = dti_mpi_call_of(c);
    const dti_mpi_layout *y = c->layout;
    const span share = scatters(c) ? (span){ 0 } : share_of(c, rail);
    dti_mpi_transfer t = dti_mpi_flat(
        c, DTI_MPI_COPY, dti_element(call->send, share.begin, dt_dtype_size(call->dtype)), share.n);

    if (!scatters(c)) return t;
    t.how = DTI_MPI_LIST;
    t.data = (void *)call->send;
    t.blocks = &c->blocks;
    t.members = &y->blocks[y->rails[rail]];
    t.n = count_blocks(c, y->rails[rail], y->rails[rail + 1] - y->rails[rail]);
    return t;
}

/* Sums that are not finished. */
static dti_mpi_transfer wide(const dti_mpi_comm *c, dti_mpi_how how, span part)
{
    dti_mpi_transfer t = dti_mpi_flat(c, how, sum_at(c, part.begin), part.n);

    t.element_bytes = wide_bytes(c);
    return t;
}

static dti_mpi_transfer results(const dti_mpi_comm *c, span part)
{
    return dti_mpi_flat(c, DTI_MPI_COPY, result_at(c, part.begin), part.n);
}

/* --- the steps ----------------------------------------------------------------------------------
 */

static void begin_gather(dti_mpi_comm *c)
{
    const dti_mpi_layout *y = c->layout;
    dti_mpi_transfer t;

    for (int rail = 0; rail < c->tree.n_rails; rail++) {
        t = terms_for(c, rail);
        if (rail == y->place)
            c->tree.own = t;
        else
            dti_mpi_begin(c, DTI_MPI_LANE_FIRST, SENDS, on_host(c, y->host, rail), &t);
    }
    if (!is_rail(c)) return;
    t = dti_mpi_flat(c, DTI_MPI_HOLD, NULL, c->tree.own.n);
    for (int place = 0; place < n_here(c); place++)
        if (place != y->place)
            dti_mpi_begin(c, DTI_MPI_LANE_FIRST, RECEIVES, on_host(c, y->host, place), &t);
}

static void begin_fold(dti_mpi_comm *c)
{
    const dti_mpi_layout *y = c->layout;
    dti_mpi_transfer t = wide(c, DTI_MPI_COPY, all_places(c));

    c->tree.keeps = all_places(c);
    c->tree.is_lower = true;
    if (y->is_second) {
        dti_mpi_begin(c, DTI_MPI_LANE_FIRST, SENDS, rail_of(c, y->host - 1), &t);
    } else if (y->node < y->n_pairs) {
        t.how = DTI_MPI_HOLD;
        dti_mpi_begin(c, DTI_MPI_LANE_FIRST, RECEIVES, rail_of(c, y->host + 1), &t);
    }
}

static void begin_round(dti_mpi_comm *c, int round)
{
    dti_mpi_tree *t = &c->tree;
    const dti_mpi_layout *y = c->layout;
    const int other = rail_of(c, dti_mpi_host_of_node(y, y->node ^ 1 << round));
    const int middle = (t->from + t->to) / 2;
    span gives = all_places(c);
    dti_mpi_transfer transfer;

    t->keeps = gives;
    t->is_lower = (y->node >> round & 1) == 0;
    if (t->halves) {
        const span low = at_places(c, t->from, middle), high = at_places(c, middle, t->to);
        t->keeps = t->is_lower ? low : high;
        gives = t->is_lower ? high : low;
        *(t->is_lower ? &t->to : &t->from) = middle;
    }
    transfer = wide(c, DTI_MPI_COPY, gives);
    dti_mpi_begin(c, DTI_MPI_LANE_FIRST, SENDS, other, &transfer);
    transfer = wide(c, DTI_MPI_HOLD, t->keeps);
    dti_mpi_begin(c, DTI_MPI_LANE_FIRST, RECEIVES, other, &transfer);
}

static void begin_spread(dti_mpi_comm *c, int round)
{
    dti_mpi_tree *t = &c->tree;
    const dti_mpi_layout *y = c->layout;
    const int other = rail_of(c, dti_mpi_host_of_node(y, y->node ^ 1 << round));
    const int n = t->to - t->from, there = y->node >> round & 1 ? t->from - n : t->to;
    dti_mpi_transfer transfer = results(c, at_places(c, t->from, t->to));

    if (!t->halves || scatters(c)) return;
    dti_mpi_begin(c, DTI_MPI_LANE_SECOND, SENDS, other, &transfer);
    transfer = results(c, at_places(c, there, there + n));
    dti_mpi_begin(c, DTI_MPI_LANE_SECOND, RECEIVES, other, &transfer);
    *(there < t->from ? &t->from : &t->to) = there < t->from ? there : there + n;
}

static void begin_unfold(dti_mpi_comm *c)
{
    const dti_mpi_layout *y = c->layout;
    dti_mpi_transfer t;

    if (y->node >= y->n_pairs) return;
    t = results(c, of_second(c));
    dti_mpi_begin(c, DTI_MPI_LANE_SECOND, !y->is_second,
                  rail_of(c, y->host + (y->is_second ? -1 : 1)), &t);
}

/* A rail has the blocks of ranks that are none, and its own. */
static void hand_out_blocks(dti_mpi_comm *c)
{
    const dti_comm_call *call = dti_mpi_call_of(c);
    const dti_mpi_layout *y = c->layout;
    const size_t bytes = dt_dtype_size(call->dtype);
    void *to = dti_element(call->recv, c->blocks.at, bytes);
    const int64_t mine = dti_mpi_part(&c->blocks, call->counts[c->head.rank]);
    int64_t at;
    dti_mpi_transfer t = dti_mpi_flat(c, DTI_MPI_COPY, to, mine);

    if (!is_rail(c)) {
        dti_mpi_begin(c, DTI_MPI_LANE_SECOND, RECEIVES, on_host(c, y->host, y->place % y->least),
                      &t);
        return;
    }
    at = y->is_second ? of_second(c).begin : at_places(c, 0, dti_mpi_reversed(y, y->node)).n;
    for (int place = y->place; place < n_here(c); place += y->least) {
        const int member = on_host(c, y->host, place);
        const span block = { at, dti_mpi_part(&c->blocks, call->counts[member]) };
        t = results(c, block);
        if (member == c->head.rank)
            dti_mpi_copy(to, t.data, block.n, bytes);
        else
            dti_mpi_begin(c, DTI_MPI_LANE_SECOND, SENDS, member, &t);
        at += block.n;
    }
}

static void begin_hand_out(dti_mpi_comm *c)
{
    const dti_comm_call *call = dti_mpi_call_of(c);
    const dti_mpi_layout *y = c->layout;
    dti_mpi_transfer t;

    if (scatters(c)) {
        hand_out_blocks(c);
        return;
    }
    for (int place = 0; place < n_here(c); place++) {
        const int member = on_host(c, y->host, place);
        if (place == y->place) continue;
        if (is_rail(c)) {
            t = results(c, all_places(c));
            dti_mpi_begin(c, DTI_MPI_LANE_SECOND, SENDS, member, &t);
        }
        if (place < c->tree.n_rails) {
            const span share = share_of(c, place);
            t = dti_mpi_flat(c, DTI_MPI_COPY,
                             dti_element(call->recv, share.begin, dt_dtype_size(call->dtype)),
                             share.n);
            dti_mpi_begin(c, DTI_MPI_LANE_SECOND, RECEIVES, member, &t);
        }
    }
}

/* --- additions ----------------------------------------------------------------------------------
 */

/* Terms [first, first + n) of this rank's own share. */
static const void *own_terms(dti_mpi_comm *c, int64_t first, int64_t n, void *block)
{
    if (c->tree.own.how != DTI_MPI_LIST)
        return dti_element(c->tree.own.data, first, c->tree.own.element_bytes);
    dti_mpi_list_move(&c->tree.own, block, n, true);
    return block;
}

/* Elements [first, first + n) of the share of all ranks of this host, in rank order. */
static void add_terms(dti_mpi_comm *c, int64_t first, int64_t n, int64_t segment)
{
    const dti_comm_call *call = dti_mpi_call_of(c);
    const dti_mpi_layout *y = c->layout;
    const size_t bytes = dt_dtype_size(call->dtype);
    _Alignas(64) char block[DTI_REDUCE_BLOCK * 8];
    dti_reducer r;

    r.dtype = call->dtype;
    r.op = call->reduce;
    for (int64_t i = 0; i < n; i += DTI_REDUCE_BLOCK) {
        const int64_t now = n - i < DTI_REDUCE_BLOCK ? n - i : DTI_REDUCE_BLOCK;
        for (int place = 0; place < n_here(c); place++) {
            const dti_mpi_peer *peer = c->peers[on_host(c, y->host, place)];
            const void *x =
                place == y->place
                    ? own_terms(c, first + i, now, block)
                    : dti_element(
                          dti_mpi_stream_held(peer->streams[DTI_MPI_LANE_FIRST][RECEIVES], segment),
                          i, bytes);
            if (place == 0)
                dti_reducer_first(&r, x, now);
            else
                dti_reducer_add(&r, x, now);
        }
        dti_mpi_copy(sum_at(c, first + i), r.sum, now, wide_bytes(c));
    }
}

static bool has_come(const dti_mpi_comm *c, int64_t segment)
{
    for (int i = 0; i < c->n_streams; i++)
        if (!c->streams[i]->sends && c->streams[i]->arrived <= segment) return false;
    return true;
}

static void gather(dti_mpi_comm *c, bool *moved)
{
    const int64_t bytes = (int64_t)dt_dtype_size(dti_mpi_call_of(c)->dtype);
    const int64_t each = c->segment_bytes / bytes, n = c->tree.own.n;

    if (!is_rail(c)) return;
    while ((c->tree.taken * each < n || c->tree.taken == 0) && has_come(c, c->tree.taken)) {
        const int64_t first = c->tree.taken * each;
        add_terms(c, first, n - first < each ? n - first : each, c->tree.taken);
        c->tree.taken++;
        for (int i = 0; i < c->n_streams; i++)
            if (!c->streams[i]->sends) dti_mpi_stream_release(c->streams[i]);
        *moved = true;
    }
}

/* n sums of another node into those of this one, the lower node's first. */
static void add_sums(dti_mpi_comm *c, char *mine, const char *theirs, int64_t n)
{
    const dti_comm_call *call = dti_mpi_call_of(c);
    const dt_dtype dtype = dti_reduce_dtype(call->dtype);
    const int64_t bytes = (int64_t)wide_bytes(c);
    _Alignas(64) char block[DTI_REDUCE_BLOCK * 8];

    for (int64_t i = 0; i < n; i += DTI_REDUCE_BLOCK) {
        const int64_t now = n - i < DTI_REDUCE_BLOCK ? n - i : DTI_REDUCE_BLOCK;
        char *to = mine + i * bytes;
        if (c->tree.is_lower) {
            dti_reduce_into(to, theirs + i * bytes, now, dtype, call->reduce);
            continue;
        }
        memcpy(block, theirs + i * bytes, (size_t)(now * bytes));
        dti_reduce_into(block, to, now, dtype, call->reduce);
        memcpy(to, block, (size_t)(now * bytes));
    }
}

/* Sums that overwrite what this rank sends wait until it is sent. */
static void add_what_came(dti_mpi_comm *c, bool *moved)
{
    const int64_t bytes = (int64_t)wide_bytes(c);
    const int64_t each = c->segment_bytes / bytes;
    dti_mpi_stream *s = NULL;

    for (int i = 0; i < c->n_streams; i++) {
        if (c->streams[i]->sends && !c->tree.halves && !dti_mpi_stream_is_done(c->streams[i]))
            return;
        if (c->streams[i]->transfer.how == DTI_MPI_HOLD) s = c->streams[i];
    }
    while (s != NULL && s->finished < s->arrived) {
        const int64_t first = s->finished * each, left = c->tree.keeps.n - first;
        add_sums(c, sum_at(c, c->tree.keeps.begin + first), dti_mpi_stream_held(s, s->finished),
                 left < each ? left : each);
        dti_mpi_stream_release(s);
        *moved = true;
    }
}

static void finish_sums(dti_mpi_comm *c)
{
    const dti_comm_call *call = dti_mpi_call_of(c);
    const span part = at_places(c, c->tree.from, c->tree.to);
    dti_reducer r;

    r.dtype = call->dtype;
    r.op = call->reduce;
    for (int64_t i = part.begin; i < part.begin + part.n; i += DTI_REDUCE_BLOCK) {
        const int64_t left = part.begin + part.n - i;
        const int64_t now = left < DTI_REDUCE_BLOCK ? left : DTI_REDUCE_BLOCK;
        r.sum = sum_at(c, i);
        r.n_sources = c->head.size;
        memmove(result_at(c, i), dti_reducer_finish(&r, now),
                (size_t)now * dt_dtype_size(call->dtype));
    }
}

/* --- from step to step --------------------------------------------------------------------------
 */

enum { GATHER = 0, FOLD = 1, FIRST_ROUND = 2 };

static int last_step(const dti_mpi_comm *c)
{
    return FIRST_ROUND + 2 * c->layout->n_rounds + 1;
}

static void begin_step(dti_mpi_comm *c)
{
    const int rounds = c->layout->n_rounds, step = c->tree.step;

    c->n_streams = 0;
    c->tree.taken = 0;
    if (step == GATHER)
        begin_gather(c);
    else if (step == last_step(c))
        begin_hand_out(c);
    else if (!is_rail(c))
        return;
    else if (step == FOLD)
        begin_fold(c);
    else if (step == last_step(c) - 1)
        begin_unfold(c);
    else if (c->layout->is_second)
        return;
    else if (step < FIRST_ROUND + rounds)
        begin_round(c, step - FIRST_ROUND);
    else
        begin_spread(c, FIRST_ROUND + 2 * rounds - 1 - step);
}

/* False: there is none. */
static bool begin_piece(dti_mpi_comm *c, int64_t at)
{
    dti_mpi_tree *t = &c->tree;

    if (at >= t->all && at > 0) return false;
    t->at = c->blocks.at = at;
    t->n = t->all - at < t->each ? t->all - at : t->each;
    t->step = GATHER;
    t->from = 0;
    t->to = 1 << c->layout->n_rounds;
    begin_step(c);
    return true;
}

static bool step_is_done(const dti_mpi_comm *c)
{
    if (c->tree.step == GATHER && is_rail(c) && c->tree.taken == 0) return false;
    return c->begun == DT_OK && dti_mpi_streams_are_done(c);
}

void dti_mpi_tree_advance(dti_mpi_comm *c, bool *moved)
{
    dti_mpi_tree *t = &c->tree;

    if (t->step == GATHER)
        gather(c, moved);
    else
        add_what_came(c, moved);
    if (!step_is_done(c)) return;
    *moved = true;
    if (t->step == FOLD + c->layout->n_rounds && is_rail(c) && !c->layout->is_second)
        finish_sums(c);
    if (t->step < last_step(c)) {
        t->step++;
        begin_step(c);
    } else {
        t->active = begin_piece(c, t->at + t->each);
    }
}

/* --- the beginning ------------------------------------------------------------------------------
 */

static int64_t largest_block(const dti_mpi_comm *c, const dti_comm_call *call)
{
    int64_t most = 0;

    for (int m = 0; m < c->head.size; m++)
        if (call->counts[m] > most) most = call->counts[m];
    return most;
}

static dt_status begin(dti_mpi_comm *c, const dti_comm_call *call)
{
    dti_mpi_tree *t = &c->tree;
    const dti_mpi_layout *y = c->layout;
    const int64_t bytes = (int64_t)wide_bytes(c);
    int64_t most;

    t->halves = scatters(c) || call->counts[0] * bytes > DTI_MPI_SEGMENT;
    t->n_rails = t->halves ? y->least : 1;
    if (scatters(c)) {
        const int blocks = y->rails[1]; /* the first rail has no fewer than another */
        DT_TRY(dti_mpi_blocks_begin(c, call));
        t->all = largest_block(c, call);
        t->each = SUMS_BYTES / bytes / blocks;
        if (t->each < 1) t->each = 1;
        c->blocks.each = t->each;
        most = blocks * (t->all < t->each ? t->all : t->each);
    } else {
        t->all = call->counts[0];
        t->each = SUMS_BYTES / bytes * t->n_rails;
        most = (t->all < t->each ? t->all : t->each) / t->n_rails + GRAIN_BYTES;
    }
    DT_TRY(dti_grow((void **)&t->sums, &t->sums_bytes, (size_t)((most + 1) * bytes), 1));
    t->active = begin_piece(c, 0);
    return DT_OK;
}

bool dti_mpi_tree_takes(dti_mpi_comm *c, const dti_comm_call *call)
{
    const bool all = call->op == DTI_COMM_ALL_REDUCE;

    if ((!all && call->op != DTI_COMM_REDUCE_SCATTER) || c->head.size <= DTI_MPI_DIRECT)
        return false;
    if (c->layout == NULL) c->begun = dti_mpi_layout_create(c);
    if (c->begun != DT_OK || c->layout->n_hosts > 1) return true;
    return all && call->counts[0] * (int64_t)wide_bytes(c) <= DTI_MPI_SEGMENT;
}

void dti_mpi_tree_begin(dti_mpi_comm *c)
{
    if (c->begun == DT_OK) c->begun = begin(c, dti_mpi_call_of(c));
}
