/* SPDX-License-Identifier: Apache-2.0
 *
 * Every plan between every two layouts of small meshes, executed on plain arrays: all ranks live in
 * one thread and a step is a loop over pairs of ranks. The result must be the target's content, and
 * every element of a piece must come from exactly one rank. */
#include <string.h>

#include "placements/plan.h"
#include "tests/placements/grid.h"

enum { N_AXES = 2, MAX_ELEMENTS = 64, MAX_LAYOUTS = 256 };

/* The pieces of all ranks, row-major. */
typedef struct world {
    const grid *g;
    const int64_t *shape;
    double data[GRID_MAX_RANKS][MAX_ELEMENTS];
} world;

/* Calls of one rank pair. */
typedef struct pair {
    int me, peer;
    int my_coord[DT_MAX_DIMS], peer_coord[DT_MAX_DIMS];
} pair;

static pair pair_of(const grid *g, int me, int peer)
{
    pair p = { .me = me, .peer = peer };

    grid_coord(g, me, p.my_coord);
    grid_coord(g, peer, p.peer_coord);
    return p;
}

/* The rows of a rank's piece. */
typedef struct rows {
    dti_runs axis[N_AXES];
} rows;

static int64_t piece(const dt_layout *l, const int64_t *shape, const int *coord, rows *out)
{
    int64_t n = 1;

    for (int a = 0; a < N_AXES; a++) {
        dti_layout_axis_runs(l, a, shape[a], coord, &out->axis[a]);
        n *= out->axis[a].total;
    }
    return n;
}

/* How many ranks of a mesh dim that is Partial, or a Shard with terms, hold terms of a sum. */
static int terms_along(const dt_layout *l, int m)
{
    return l->place[m].terms ? l->place[m].replicas : l->dim_size[m];
}

/* The term that the rank at `coord` has of global element `index` when `dims` are Partial. */
static double term(int64_t index, const dt_layout *l, const int *coord)
{
    uint32_t h = (uint32_t)index * 2654435761u;

    for (int m = 0; m < l->n_dims; m++)
        if (l->partial_dims >> m & 1u)
            h = (h ^ (uint32_t)(coord[m] % terms_along(l, m) + 1 + 7 * m)) * 2246822519u;
    return 1.0 + (h >> 28);
}

/* Row i of a piece's axis in the whole. */
static int64_t global_row(const dti_runs *runs, int64_t i)
{
    int k = 0;

    for (; i >= runs->run[k].end - runs->run[k].begin; k++)
        i -= runs->run[k].end - runs->run[k].begin;
    return runs->run[k].begin + i;
}

/* Global row-major index of element i of a piece. */
static int64_t global_index(const int64_t *shape, const rows *r, int64_t i)
{
    int64_t index = 0, stride = 1;

    for (int a = N_AXES - 1; a >= 0; a--) {
        index += global_row(&r->axis[a], i % r->axis[a].total) * stride;
        i /= r->axis[a].total;
        stride *= shape[a];
    }
    return index;
}

/* The value of an element at `coord` under `to`: the terms over all coordinates that it lost, those
 * of a Shard in any case. */
static double expected(int64_t index, const dt_layout *from, const dt_layout *to, const int *coord)
{
    const uint32_t lost = from->partial_dims & ~(to->partial_dims & ~to->shard_dims);
    double value = 0, divisor = 1;
    int at[DT_MAX_DIMS], n = 1;

    for (int m = 0; m < from->n_dims; m++) {
        at[m] = coord[m];
        if (lost >> m & 1u) n *= terms_along(from, m);
    }
    for (int i = 0; i < n; i++) {
        dt_reduce op = DT_SUM;
        for (int m = 0, rest = i; m < from->n_dims; m++) {
            if (!(lost >> m & 1u)) continue;
            at[m] = rest % terms_along(from, m);
            rest /= terms_along(from, m);
            op = from->place[m].reduce;
            if (i == 0 && op == DT_AVG) divisor *= from->dim_size[m];
        }
        const double t = term(index, from, at);
        if (i == 0)
            value = t;
        else if (op == DT_MIN || op == DT_MAX)
            value = (op == DT_MIN) == (t < value) ? t : value;
        else
            value = op == DT_PROD ? value * t : value + t;
    }
    return value / divisor;
}

static void fill(world *w, const dt_layout *from)
{
    for (int r = 0; r < grid_ranks(w->g); r++) {
        rows mine;
        int coord[DT_MAX_DIMS] = { 0 };
        grid_coord(w->g, r, coord);
        const int64_t n = piece(from, w->shape, coord, &mine);
        DT_ASSERT(n <= MAX_ELEMENTS);
        for (int64_t i = 0; i < n; i++)
            w->data[r][i] = term(global_index(w->shape, &mine, i), from, coord);
    }
}

/* Element i of what a rank holds; the sum of the terms of all that hold it with the rank. */
static double held(const world *w, const dt_layout *l, const int *coord, int64_t i)
{
    double sum = 0;

    for (int q = 0; q < grid_ranks(w->g); q++) {
        int other[DT_MAX_DIMS] = { 0 };
        bool with = true;
        grid_coord(w->g, q, other);
        for (int m = 0; m < l->n_dims; m++)
            with = with && (dti_has(dti_layout_terms(l), m)
                                ? other[m] / l->place[m].replicas == coord[m] / l->place[m].replicas
                                : other[m] == coord[m]);
        if (with) sum += w->data[q][i];
    }
    return sum;
}

static bool holds(const world *w, const dt_layout *from, const dt_layout *to)
{
    for (int r = 0; r < grid_ranks(w->g); r++) {
        rows mine;
        int coord[DT_MAX_DIMS] = { 0 };
        grid_coord(w->g, r, coord);
        const int64_t n = piece(to, w->shape, coord, &mine);
        for (int64_t i = 0; i < n; i++) {
            const double want = expected(global_index(w->shape, &mine, i), from, to, coord);
            const double off = held(w, to, coord, i) - want;
            if (!(off < 1e-9 * want && off > -1e-9 * want)) return false;
        }
    }
    return true;
}

/* Element i of a box as a place in its buffer. */
static int64_t box_at(const dti_box *box, int64_t i)
{
    int64_t at = box->offset;

    for (int a = box->n_axes - 1; a >= 0; a--) {
        at += i % box->extent[a] * box->stride[a];
        i /= box->extent[a];
    }
    return at;
}

static double combine(dt_reduce op, double a, double b)
{
    switch (op) {
    case DT_MIN:
        return a < b ? a : b;
    case DT_MAX:
        return a > b ? a : b;
    case DT_PROD:
        return a * b;
    default:
        return a + b;
    }
}

/* Takes what p->peer sends into `out`, counting arrivals per element. Returns how many. */
static int64_t receive(const world *w, const dti_move_step *s, const pair *p, double *out,
                       int *seen)
{
    static dti_overlap o;
    const bool any = dti_move_overlap(s, w->shape, p->my_coord, p->peer_coord, &o);
    int64_t n = 0;

    DT_ASSERT(any == (o.n_boxes > 0));
    for (int b = 0; b < o.n_boxes; b++) {
        dti_box sent, received;
        dti_overlap_box(&o, b, &sent, &received);
        DT_ASSERT(sent.n_axes == received.n_axes && dti_box_count(&sent) > 0);
        for (int a = 0; a < sent.n_axes; a++) DT_ASSERT(sent.extent[a] == received.extent[a]);
        for (int64_t i = 0; i < dti_box_count(&sent); i++, n++) {
            const int64_t from = box_at(&sent, i), to = box_at(&received, i);
            DT_ASSERT(from >= 0 && from < MAX_ELEMENTS && to >= 0 && to < MAX_ELEMENTS);
            const double x = w->data[p->peer][from];
            out[to] = seen[to] > 0 ? combine(s->reduce, out[to], x) : x;
            seen[to]++;
        }
    }
    DT_ASSERT(n == (any ? o.count : 0));
    return n;
}

/* One step on all ranks. Whoever is not in my group sends nothing; bytes are those predicted. */
static void run_step(world *w, const dti_move_step *s)
{
    const bool reduces = s->kind == DTI_MOVE_ALL_REDUCE || s->kind == DTI_MOVE_REDUCE_SCATTER;
    const int ranks = grid_ranks(w->g), p = dti_move_group_size(s);
    static world next;

    next = *w;
    for (int me = 0; me < ranks; me++) {
        int64_t foreign = 0, all = 0;
        rows piece_rows;
        int seen[MAX_ELEMENTS] = { 0 };
        pair mine = pair_of(w->g, me, me);
        for (int peer = 0; peer < ranks; peer++) {
            const pair both = pair_of(w->g, me, peer);
            const int64_t n = receive(w, s, &both, next.data[me], seen);
            all += n;
            if (peer != me) foreign += n;
        }
        const int64_t n = piece(s->to, w->shape, mine.my_coord, &piece_rows);
        if (s->kind == DTI_MOVE_KEEP_ONE && !dti_move_keeps(s, mine.my_coord)) {
            DT_ASSERT(all == 0);
            memset(next.data[me], 0, sizeof next.data[me]);
            continue;
        }
        for (int64_t i = 0; i < n; i++) {
            DT_ASSERT(seen[i] == (reduces ? p : 1));
            if (s->reduce == DT_AVG) next.data[me][i] /= p;
            next.data[me][i] /= (double)s->divisor;
        }
        DT_ASSERT(all == (reduces ? n * p : n));
        const int64_t bytes = dti_move_bytes(s, w->shape, 4, mine.my_coord);
        if (s->kind == DTI_MOVE_ALL_REDUCE)
            DT_ASSERT(bytes == 4 * n * 2 * (p - 1) / p);
        else
            DT_ASSERT(bytes == 4 * foreign);
    }
    *w = next;
}

static void run_plan(world *w, const dti_move *plan, const dt_layout *from, const dt_layout *to)
{
    const dt_layout *at = from;

    DT_ASSERT((plan->n_steps == 0) == (from == to));
    fill(w, from);
    for (int i = 0; i < plan->n_steps; i++) {
        const dti_move_step *s = &plan->step[i];
        DT_ASSERT(s->from == at);
        DT_ASSERT(!s->same_piece || s->kind == DTI_MOVE_LOCAL_SLICE);
        DT_ASSERT((s->dims == 0) ==
                  (s->kind == DTI_MOVE_LOCAL_SLICE || s->kind == DTI_MOVE_KEEP_ONE));
        run_step(w, s);
        at = s->to;
    }
    DT_ASSERT(at == to);
    if (!holds(w, from, to)) {
        char text[512];
        dti_put_move(&(dti_writer){ text, sizeof text, 0 }, plan);
        dt_test_fail(__FILE__, __LINE__, "wrong content after %s", text);
    }
}

static uint32_t move_dims(const dti_move *plan)
{
    uint32_t dims = 0;

    for (int i = 0; i < plan->n_steps; i++) dims |= plan->step[i].dims;
    return dims;
}

/* By the rules, and where terms of a Shard give a choice, as a search over its ways finds it. */
static void check_move(dti_layouts *t, world *w, const dt_layout *from, const dt_layout *to)
{
    dti_cost_model model = { .shape = w->shape, .element_bytes = 4 };
    dti_move plan;
    bool any;

    DT_ASSERT_OK(dti_move_plan(t, from, to, &plan));
    run_plan(w, &plan, from, to);
    DT_ASSERT(from == to || dti_move_is_local(from, to) == (move_dims(&plan) == 0));
    if (dti_layout_terms(from) == 0) return;
    for (int near = 0; near < 2; near++) {
        for (int m = 0; m < from->n_dims; m++)
            model.link[m] = (dt_link){ 100, near == 0 || m > 0 ? 1 : 0.1 };
        DT_ASSERT_OK(dti_plan(from, to, &model, &plan, &any));
        run_plan(w, &plan, from, to);
    }
}

/* All layouts of the grid with placements from `places`, in all orders. */
static int all_layouts(dti_layouts *t, const grid *g, const char *const *places, int n_places,
                       const dt_layout **out)
{
    static const int orders[6][3] = { { 0, 1, 2 }, { 0, 2, 1 }, { 1, 0, 2 },
                                      { 1, 2, 0 }, { 2, 0, 1 }, { 2, 1, 0 } };
    int n = 0, total = 1;

    for (int m = 0; m < g->n_dims; m++) total *= n_places;
    for (int i = 0; i < total * 6; i++) {
        dt_placement place[DT_MAX_DIMS];
        dti_parsed parsed[DT_MAX_DIMS];
        int order[3], n_order = 0, rest = i / 6, seen = 0;
        for (int m = 0; m < g->n_dims; m++, rest /= n_places) {
            DT_ASSERT_OK(dti_placements_parse(places[rest % n_places], 1, &parsed[m]));
            place[m] = parsed[m].place[0];
        }
        for (int k = 0; k < 3; k++)
            if (orders[i % 6][k] < g->n_dims) order[n_order++] = orders[i % 6][k];
        DT_ASSERT(n < MAX_LAYOUTS);
        DT_ASSERT_OK(dti_layout_intern(t, g->n_dims, g->size, N_AXES, place, order, &out[n]));
        while (seen < n && out[seen] != out[n]) seen++;
        n += seen == n;
    }
    return n;
}

static bool is_legal(const dt_layout *from, const dt_layout *to)
{
    for (int m = 0; m < to->n_dims; m++)
        if (((to->partial_dims & ~to->shard_dims) >> m & 1u) &&
            (!((from->partial_dims & ~from->shard_dims) >> m & 1u) ||
             from->place[m].reduce != to->place[m].reduce))
            return false;
    return true;
}

static int check_all(const grid *g, const char *const *places, int n_places,
                     const int64_t (*shapes)[N_AXES], int n_shapes)
{
    static const dt_layout *layouts[MAX_LAYOUTS];
    static world w;
    dti_layouts *t = new_table();
    const int n = all_layouts(t, g, places, n_places, layouts);
    int moves = 0;

    for (int i = 0; i < n * n; i++) {
        const dt_layout *from = layouts[i / n], *to = layouts[i % n];
        if (!is_legal(from, to)) {
            dti_move plan;
            DT_ASSERT_STATUS(dti_move_plan(t, from, to, &plan), DT_ERR_LAYOUT, "Partial(");
            continue;
        }
        for (int s = 0; s < n_shapes; s++, moves++) {
            w.g = g;
            w.shape = shapes[s];
            check_move(t, &w, from, to);
        }
    }
    dti_layouts_destroy(t);
    return moves;
}

DT_TEST(move_values, all_pairs_of_layouts_on_small_meshes)
{
    static const char *const places[] = { "R", "S(0)", "S(1)", "P" };
    static const int64_t shapes[][N_AXES] = { { 5, 3 }, { 4, 6 }, { 7, 2 }, { 1, 3 }, { 0, 4 } };
    static const grid grids[] = { { 1, { 2 } },    { 1, { 3 } },       { 2, { 2, 2 } },
                                  { 2, { 2, 3 } }, { 3, { 2, 2, 2 } }, { 2, { 4, 1 } } };

    for (size_t i = 0; i < DT_COUNT(grids); i++)
        DT_ASSERT(check_all(&grids[i], places, DT_COUNT(places), shapes, DT_COUNT(shapes)) > 0);
}

/* Heads: units of 4 rows, and two ranks that share a kv head. */
DT_TEST(move_values, units_and_replicas)
{
    static const char *const places[] = { "R",           "P",
                                          "S(0)",        "S(1)",
                                          "S(0,unit=4)", "S(0,unit=4,replicas=2)",
                                          "S(1,unit=2)", "S(0,replicas=2)" };
    static const int64_t shapes[][N_AXES] = { { 8, 3 }, { 16, 4 }, { 10, 2 }, { 3, 5 } };
    static const grid grids[] = { { 1, { 4 } }, { 2, { 2, 4 } } };

    for (size_t i = 0; i < DT_COUNT(grids); i++)
        DT_ASSERT(check_all(&grids[i], places, DT_COUNT(places), shapes, DT_COUNT(shapes)) > 0);
}

/* What neighbours hold are terms: those of kv heads, of packed q|k|v, beside other terms, along the
 * axis that another mesh dim cuts before or after; as many holders as ranks are Partial. */
DT_TEST(move_values, terms_of_neighbours)
{
    static const char *const p4[] = {
        "R",
        "P",
        "S(0)",
        "S(1)",
        "S(0,unit=2,replicas=2)",
        "S(0,unit=2,replicas=2,sum)",
        "S(0,replicas=2,sum)",
        "S(1,replicas=2,sum)",
        "S(0,replicas=4,sum)",
    };
    static const char *const blocks[] = { "R",
                                          "P",
                                          "S(0)",
                                          "S(0,blocks=6:2:2)",
                                          "S(0,blocks=6:2:2,replicas=2)",
                                          "S(0,blocks=6:2:2,replicas=2,sum)",
                                          "S(0,offsets=0:3:10,replicas=2,sum)",
                                          "S(0,offsets=0:2:3:3:10)",
                                          "S(0,blocks=6:4,units=3:1,replicas=2,sum)" };
    static const char *const p24[] = {
        "R", "P", "S(0)", "S(0,replicas=2)", "S(0,replicas=2,sum)", "S(1,replicas=2,sum)"
    };
    static const char *const mixed[] = { "R", "P(avg)", "S(1)", "S(0,replicas=2,sum)" };
    static const int64_t shapes[][N_AXES] = { { 8, 3 }, { 10, 2 }, { 3, 5 }, { 1, 2 }, { 0, 4 } };
    static const int64_t shapes10[][N_AXES] = { { 10, 3 }, { 10, 5 } };
    static const grid g4 = { 1, { 4 } }, g6 = { 1, { 6 } }, g24 = { 2, { 2, 4 } };
    static const grid g42 = { 2, { 4, 2 } };
    static const char *const p6[] = {
        "R", "P", "S(0)", "S(0,replicas=2,sum)", "S(0,replicas=3,sum)", "S(0,unit=2,replicas=3)"
    };

    DT_ASSERT(check_all(&g4, p4, DT_COUNT(p4), shapes, DT_COUNT(shapes)) > 0);
    DT_ASSERT(check_all(&g6, p6, DT_COUNT(p6), shapes, DT_COUNT(shapes)) > 0);
    DT_ASSERT(check_all(&g4, blocks, DT_COUNT(blocks), shapes10, DT_COUNT(shapes10)) > 0);
    DT_ASSERT(check_all(&g24, p24, DT_COUNT(p24), shapes, 3) > 0);
    DT_ASSERT(check_all(&g42, mixed, DT_COUNT(mixed), shapes, 3) > 0);
}

/* gate|up and q|k|v, and splits that no chunk rule makes, one with a rank that has nothing. */
DT_TEST(move_values, packed_and_offset_cuts)
{
    static const char *const p4[] = { "R",
                                      "P",
                                      "S(0)",
                                      "S(1)",
                                      "S(0,blocks=6:2:2)",
                                      "S(0,blocks=5:5)",
                                      "S(0,blocks=6:4,units=3:1)",
                                      "S(0,offsets=0:1:1:9:10)",
                                      "S(0,blocks=4:6,unit=2)" };
    static const char *const p22[] = { "R", "P", "S(1)", "S(0,blocks=6:2:2)",
                                       "S(1,offsets=0:3:3)" };
    static const int64_t shapes4[][N_AXES] = { { 10, 3 }, { 10, 5 } };
    static const int64_t shapes22[][N_AXES] = { { 10, 3 } };
    static const grid g4 = { 1, { 4 } }, g22 = { 2, { 2, 2 } };

    DT_ASSERT(check_all(&g4, p4, DT_COUNT(p4), shapes4, DT_COUNT(shapes4)) > 0);
    DT_ASSERT(check_all(&g22, p22, DT_COUNT(p22), shapes22, DT_COUNT(shapes22)) > 0);
}

DT_TEST(move_values, every_reduction)
{
    static const char *const places[][4] = { { "R", "S(0)", "P(avg)", "P(sum)" },
                                             { "R", "S(0)", "P(min)", "S(1)" },
                                             { "R", "S(0)", "P(max)", "S(1)" },
                                             { "R", "S(0)", "P(prod)", "S(1)" } };
    static const int64_t shapes[][N_AXES] = { { 5, 3 } };
    static const grid grids[] = { { 2, { 2, 3 } }, { 3, { 2, 2, 2 } } };

    for (size_t k = 0; k < DT_COUNT(places); k++)
        for (size_t i = 0; i < DT_COUNT(grids); i++)
            DT_ASSERT(check_all(&grids[i], places[k], 4, shapes, 1) > 0);
}
