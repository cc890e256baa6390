/* SPDX-License-Identifier: Apache-2.0
 *
 * Into tensors and between dtypes: pieces of any sizes, compared copies, casts during a move. */
#include <dtensor/factories.h>
#include <dtensor/inspect.h>
#include <dtensor/ops.h>

#include "base/dtype.h"
#include "tests/support/dt_test.h"
#include "tests/support/tensors.h"

/* --- casts during a move ---------------------------------------------------------------------- */

static int64_t bytes_moved(dt_tape *t)
{
    return dt_tape_comm_in(t, NULL, 0, DT_N_COMM_KINDS).bytes;
}

/* Case 7: every pair of float dtypes along every move: the cast of what the move gives. */
static dt_status casts(dt_mesh *mesh, const void *arg)
{
    static const char *const layouts[][2] = { { "R", "R" },          { "S(0)", "R" },
                                              { "R", "S(1)" },       { "S(0)", "S(1)" },
                                              { "P(sum)", "R" },     { "P(sum)", "S(0)" },
                                              { "P(max)", "P(max)" } };
    const int64_t shape[] = { 5, 3 };

    (void)arg;
    for (size_t i = 0; i < DT_COUNT(layouts) * 16; i++) {
        const dt_dtype from = (dt_dtype)(i % 4), to = (dt_dtype)(i / 4 % 4);
        const dt_layout *a, *b;
        dt_placement p, q;
        dt_status st = DT_OK;
        dt_tape *t = NULL;
        dt_tensor *x = NULL, *y = NULL, *moved, *want;
        bool same = false;
        DT_TRY(dt_layout_parse(mesh, 2, layouts[i / 16][0], &a));
        DT_TRY(dt_layout_parse(mesh, 2, layouts[i / 16][1], &b));
        p = dt_layout_placement(a, 0);
        q = dt_layout_placement(b, 0);
        DT_TRY_TO(done, st, dt_tape_create(dt_mesh_runtime(mesh), &t));
        DT_TRY_TO(done, st, dt_test_arange(mesh, &p, from, 2, shape, &x));
        DT_TRY_TO(done, st, dt_redistribute_cast(x, &q, to, &y));
        moved = dt_move(t, x, &q);
        want = q.kind == DT_PLACE_PARTIAL ? moved : dt_cast(t, moved, to);
        DT_TRY_TO(done, st, dt_tape_status(t));
        DT_EXPECT_TO(done, st, dt_tensor_dtype(y) == to, "dtype");
        if (q.kind != DT_PLACE_PARTIAL) { /* small whole numbers: every sum is exact */
            DT_TRY_TO(done, st, dt_equal(y, want, &same));
            DT_EXPECT_TO(done, st, same, "%s to %s, %s to %s", layouts[i / 16][0],
                         layouts[i / 16][1], dt_dtype_name(from), dt_dtype_name(to));
        }
    done:
        dt_tensor_release(&y);
        dt_tensor_release(&x);
        dt_tape_release(&t);
        DT_TRY(st);
    }
    return DT_OK;
}

DT_TEST(transfer, casts_commute_with_moves)
{
    dt_test_on_ranks("tp=1", casts, NULL);
    dt_test_on_ranks("tp=2", casts, NULL);
    dt_test_on_ranks("tp=3", casts, NULL);
}

/* Bytes travel in the narrower dtype, sums are taken in the wider. */
static dt_status where_it_casts(dt_mesh *mesh, const void *arg)
{
    const dt_placement rows = DT_SHARD(0), whole = DT_REPLICATE, terms = DT_PARTIAL(DT_SUM);
    const int64_t n = 8;
    /* 1 + 2^-9 twice is 2 + 2^-8, which bf16 rounds to 2; each term alone would round to 1 */
    const float term[8] = { 1.001953125f, 256.0f, 0.5f };
    DT_HELD(tape) *t = dt_test_tape(mesh);
    DT_HELD(tensor) *x = NULL, *h = NULL, *p = NULL;
    dt_tensor *y;

    (void)arg;
    DT_TRY(dt_arange(mesh, &rows, DT_F32, 1, &n, (dt_steps){ 0, 1 }, &x));
    DT_TRY(dt_arange(mesh, &rows, DT_BF16, 1, &n, (dt_steps){ 0, 1 }, &h));
    DT_TRY(dt_from_local(mesh, &terms, DT_F32, 1, &n, term, &p));
    (void)dt_move_cast(t, x, &whole, DT_BF16);
    DT_EXPECT(bytes_moved(t) == 4 * 2, "narrowed first: %d bytes", (int)bytes_moved(t));
    dt_tape_reset(t);
    (void)dt_move_cast(t, h, &whole, DT_F32);
    DT_EXPECT(bytes_moved(t) == 4 * 2, "widened last: %d bytes", (int)bytes_moved(t));
    dt_tape_reset(t);
    y = dt_move_cast(t, p, &whole, DT_BF16);
    DT_TRY(dt_tape_status(t));
    DT_EXPECT(dti_load_f32(dt_tensor_local(y)->data, DT_BF16, 0) == 2.0f, "the sum, rounded once");
    DT_EXPECT(dti_load_f32(dt_tensor_local(y)->data, DT_BF16, 1) == 512.0f, "the sum");
    DT_EXPECT(bytes_moved(t) == 8 * 4, "reduced in f32: %d bytes", (int)bytes_moved(t));
    (void)dt_move_cast(t, p, &terms, DT_BF16);
    DT_EXPECT_STATUS(dt_tape_status(t), DT_ERR_LAYOUT, "would each be rounded from f32 to bf16");
    dt_tape_reset(t);
    (void)dt_move_cast(t, x, &whole, DT_I32);
    DT_EXPECT_STATUS(dt_tape_status(t), DT_ERR_UNSUPPORTED, "from f32 to i32: both must be floats");
    return DT_OK;
}

DT_TEST(transfer, casts_stand_where_fewer_bytes_move)
{
    dt_test_on_ranks("tp=2", where_it_casts, NULL);
}

/* --- pieces ----------------------------------------------------------------------------------- */

/* Case 37: rank r has r rows; PyTorch takes such pieces for equal ones (issue 144109). */
static dt_status uneven_pieces(dt_mesh *mesh, const void *arg)
{
    const dt_placement rows = DT_SHARD(0);
    const int rank = dt_runtime_rank(dt_mesh_runtime(mesh)), n = dt_mesh_n_ranks(mesh);
    const int64_t mine[] = { rank, 2 };
    DT_HELD(tensor) *x = NULL, *full = NULL;
    float data[16];

    (void)arg;
    for (int i = 0; i < 2 * rank; i++) data[i] = (float)(rank * (rank - 1) + i);
    DT_TRY(dt_from_pieces(mesh, &rows, DT_F32, 2, mine, rank > 0 ? data : NULL, &x));
    DT_EXPECT(dt_tensor_extent(x, 0) == n * (n - 1) / 2, "%d rows", (int)dt_tensor_extent(x, 0));
    DT_TRY(dt_full_tensor(x, &full));
    DT_TRY(dt_test_expect_arange(full));
    return DT_OK;
}

DT_TEST(transfer, pieces_of_any_sizes_make_a_tensor)
{
    static const char *const meshes[] = { "tp=1", "tp=2", "tp=3", "tp=4", "tp=8" };

    for (size_t m = 0; m < DT_COUNT(meshes); m++) dt_test_on_ranks(meshes[m], uneven_pieces, NULL);
}

/* Chunks stay plain cuts, so that the tensor fits others; two axes on two dims, case 38. */
static dt_status even_pieces(dt_mesh *mesh, const void *arg)
{
    const dt_placement tiles[] = { DT_SHARD(0), DT_SHARD(-1) };
    const int64_t mine[] = { 3, dt_mesh_coord(mesh, 1) == 0 ? 3 : 2 };
    const float data[9] = { 0 };
    const dt_layout *plain;
    DT_HELD(tensor) *x = NULL;

    (void)arg;
    DT_TRY(dt_layout_get(mesh, 2, tiles, NULL, &plain));
    DT_TRY(dt_from_pieces(mesh, tiles, DT_F32, 2, mine, data, &x));
    DT_EXPECT(dt_tensor_layout(x) == plain, "chunks became offsets");
    DT_EXPECT(dt_tensor_extent(x, 0) == 6 && dt_tensor_extent(x, 1) == 5, "[%d, %d]",
              (int)dt_tensor_extent(x, 0), (int)dt_tensor_extent(x, 1));
    return DT_OK;
}

DT_TEST(transfer, chunks_stay_chunks)
{
    dt_test_on_ranks("dp=2,tp=2", even_pieces, NULL);
}

/* One rank's mistake is heard by all, and nobody waits for it; the mesh lives on. */
static dt_status wrong_piece(dt_mesh *mesh, const void *arg)
{
    const dt_placement rows = DT_SHARD(0);
    const int rank = dt_runtime_rank(dt_mesh_runtime(mesh));
    const int64_t negative = rank == 1 ? -1 : 2, huge = INT64_MAX, fine = 2;
    const float data[2] = { 0 };
    dt_tensor *x = NULL;

    (void)arg;
    DT_EXPECT_STATUS(dt_from_pieces(mesh, &rows, DT_F32, 1, &negative, data, &x),
                     rank == 1 ? DT_ERR_SHAPE : DT_ERR_ARG,
                     rank == 1 ? "axis 0 has extent -1"
                               : "what rank 1 passes is invalid: axis 0 has extent -1");
    DT_EXPECT_STATUS(dt_from_pieces(mesh, &rows, DT_F32, 1, &fine, rank == 1 ? NULL : data, &x),
                     DT_ERR_ARG,
                     rank == 1 ? "data is NULL" : "what rank 1 passes is invalid: data is NULL");
    DT_EXPECT_STATUS(dt_from_pieces(mesh, &rows, DT_F32, 1, &huge, data, &x), DT_ERR_SHAPE,
                     "more rows together");
    DT_EXPECT_STATUS(dt_from_pieces(mesh, &rows, rank == 1 ? DT_I32 : DT_F32, 1, &fine, data, &x),
                     DT_ERR_SHAPE, "rank 0 passes f32 and rank 1 i32");
    DT_TRY(dt_from_pieces(mesh, &rows, DT_F32, 1, &fine, data, &x));
    dt_tensor_release(&x);
    return DT_OK;
}

DT_TEST(transfer, one_ranks_wrong_piece_is_heard_by_all)
{
    dt_test_on_ranks("a=2", wrong_piece, NULL);
    dt_test_on_ranks("a=3", wrong_piece, NULL);
}

/* Pieces of 3 rows and 1 on ranks 0 and 1 go to ranks 1 and 2: rank 2 knows what it receives. */
static dt_status pieces_of_others(dt_mesh *world, const void *arg)
{
    static const int later[] = { 1, 2 };
    const dt_placement rows = DT_SHARD(0);
    dt_runtime *rt = dt_mesh_runtime(world);
    const int64_t mine = dt_runtime_rank(rt) == 0 ? 3 : 1;
    const float data[] = { mine == 3 ? 0 : 3, 1, 2 };
    DT_HELD(mesh) *first = NULL, *second = NULL;
    DT_HELD(tensor) *x = NULL, *y = NULL, *z = NULL;

    (void)arg;
    DT_TRY(dt_mesh_create(rt, "a=2", &first));
    DT_TRY(dt_mesh_create_ranks(rt, "b=2", later, &second));
    DT_TRY(
        dt_from_pieces(first, &rows, DT_F32, 1, dt_mesh_is_member(first) ? &mine : NULL, data, &x));
    DT_EXPECT(dt_tensor_extent(x, 0) == 4, "%d rows", (int)dt_tensor_extent(x, 0));
    DT_TRY(dt_copy_to(x, second, &rows, &y));
    DT_TRY(dt_full_tensor(y, &z));
    if (dt_mesh_is_member(second)) DT_TRY(dt_test_expect_arange(z));
    return DT_OK;
}

DT_TEST(transfer, outsiders_know_a_tensor_of_pieces)
{
    dt_test_on_ranks("w=3", pieces_of_others, NULL);
    dt_test_on_ranks("w=4", pieces_of_others, NULL);
}

static dt_status odd_pieces(dt_mesh *mesh, const void *arg)
{
    const dt_placement rows[] = { DT_SHARD(0), DT_REPLICATE },
                       both[] = { DT_SHARD(0), DT_SHARD(0) };
    const int rank = dt_runtime_rank(dt_mesh_runtime(mesh));
    const int64_t wide[] = { 2, rank == 3 ? 4 : 3 }, copies[] = { rank == 1 ? 5 : 2, 3 };
    const float data[16] = { 0 };
    dt_tensor *x;

    (void)arg;
    DT_EXPECT_STATUS(dt_from_pieces(mesh, rows, DT_F32, 2, wide, data, &x), DT_ERR_SHAPE,
                     "rank 0 has 3 elements of axis 1 and rank 3 has 4, but they are not cut");
    DT_EXPECT_STATUS(dt_from_pieces(mesh, rows, DT_F32, 2, copies, data, &x), DT_ERR_SHAPE,
                     "rank 0 has 2 elements of axis 0 and rank 1 has 5");
    DT_EXPECT_STATUS(dt_from_pieces(mesh, rows, DT_F32, rank == 2 ? 1 : 2, wide, data, &x),
                     DT_ERR_SHAPE, "rank 0 passes a piece of 2 axes and rank 2 one of 1");
    DT_EXPECT_STATUS(dt_from_pieces(mesh, both, DT_F32, 2, wide, data, &x), DT_ERR_UNSUPPORTED,
                     "mesh dims \"dp\" and \"tp\" both cut axis 0");
    return DT_OK;
}

DT_TEST(transfer, pieces_that_do_not_fit_are_refused)
{
    dt_test_on_ranks("dp=2,tp=2", odd_pieces, NULL);
}
