/* SPDX-License-Identifier: Apache-2.0
 *
 * What a tape counts, by scope, kind and reason. */
#include <dtensor/factories.h>
#include <dtensor/ops.h>

#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "dtensor/comm_log.h"
#include "tests/support/dt_test.h"

/* One gather outside, two blocks of the same name with two layers each, on two ranks of 96 bytes:
 * all-gathers receive 48, all-reduces 96. */
static dt_status forward(dt_mesh *mesh, dt_tape *t)
{
    const dt_placement rows = DT_SHARD(0), terms = DT_PARTIAL(DT_SUM), whole = DT_REPLICATE;
    const int64_t shape[] = { 4, 6 };
    const float zeros[24] = { 0 };
    DT_HELD(tensor) *x = NULL, *p = NULL;

    DT_TRY(dt_ones(mesh, &rows, DT_F32, 2, shape, &x));
    DT_TRY(dt_from_local(mesh, &terms, DT_F32, 2, shape, zeros, &p));
    (void)dt_move(t, x, &whole);
    for (int block = 0; block < 2; block++) {
        dt_scope_begin(t, "block");
        dt_scope_begin(t, "quiet");
        (void)dt_move(t, x, &rows);
        (void)dt_scope_end(t, NULL);
        dt_scope_begin(t, "q");
        (void)dt_move(t, x, &whole);
        (void)dt_scope_end(t, NULL);
        dt_scope_begin(t, "o");
        (void)dt_tape_because(t, "rowwise");
        (void)dt_move(t, p, &whole);
        (void)dt_move(t, p, &whole);
        (void)dt_tape_because(t, NULL);
        (void)dt_scope_end(t, NULL);
        (void)dt_scope_end(t, NULL);
    }
    dt_tape_set_moves(t, DT_MOVES_ALLOW);
    (void)dt_silu(t, p); /* must be reduced first */
    DT_TRY(dt_tape_status(t));
    return DT_OK;
}

static dt_status counted(dt_mesh *mesh, const void *arg)
{
    static const char tree[] = "total: 8 calls, 624 bytes\n"
                               "  - all_gather x1, 48 bytes: move\n"
                               "  - all_reduce x1, 96 bytes: silu\n"
                               "  block: 6 calls, 480 bytes\n"
                               "    q: 2 calls, 96 bytes\n"
                               "      - all_gather x2, 96 bytes: move\n"
                               "    o: 4 calls, 384 bytes\n"
                               "      - all_reduce x4, 384 bytes: rowwise\n";
    static const char json[] =
        "{\"name\":\"total\",\"calls\":8,\"bytes\":624,\"own\":[{\"kind\":\"all_gather\","
        "\"reason\":\"move\","
        "\"calls\":1,\"bytes\":48},{\"kind\":\"all_reduce\",\"reason\":\"silu\",\"calls\":1,"
        "\"bytes\":96}],"
        "\"scopes\":[{\"name\":\"block\",\"calls\":6,\"bytes\":480,\"own\":[],\"scopes\":[{"
        "\"name\":\"q\","
        "\"calls\":2,\"bytes\":96,\"own\":[{\"kind\":\"all_gather\",\"reason\":\"move\",\"calls\":"
        "2,"
        "\"bytes\":96}],\"scopes\":[]},{\"name\":\"o\",\"calls\":4,\"bytes\":384,\"own\":[{"
        "\"kind\":"
        "\"all_reduce\",\"reason\":\"rowwise\",\"calls\":4,\"bytes\":384}],\"scopes\":[]}]}]}";
    static const char *const path[] = { "block", "o" };
    char text[2048];
    DT_HELD(tape) *t = dt_test_tape(mesh);

    (void)arg;
    for (int round = 0; round < 2; round++) { /* the second after a reset: nothing adds up */
        DT_TRY(forward(mesh, t));
        DT_EXPECT(dt_tape_comm_print(t, text, sizeof text) == (int)strlen(tree) &&
                      !strcmp(text, tree),
                  "the tree is\n%s", text);
        DT_EXPECT(dt_tape_comm_json(t, text, sizeof text) == (int)strlen(json) &&
                      !strcmp(text, json),
                  "JSON is\n%s", text);
        DT_EXPECT(dt_tape_comm_in(t, path, 1, DT_COMM_ALL_REDUCE).calls == 4, "block");
        DT_EXPECT(dt_tape_comm_in(t, path, 2, DT_N_COMM_KINDS).bytes == 384, "block, o");
        DT_EXPECT(dt_tape_comm_in(t, NULL, 0, DT_N_COMM_KINDS).bytes == 624, "all");
        DT_EXPECT(dt_tape_comm_in(t, path + 1, 1, DT_N_COMM_KINDS).calls == 0, "no such scope");
        DT_EXPECT(dt_tape_comm(t, DT_COMM_ALL_GATHER).calls == 3, "gathers");
        DT_EXPECT(dt_tape_comm_print(t, text, 8) == (int)strlen(tree) && !strcmp(text, "total: "),
                  "cut to \"%s\"", text);
        dt_tape_reset(t);
        (void)dt_tape_comm_print(t, text, sizeof text);
        DT_EXPECT(!strcmp(text, "total: 0 calls, 0 bytes\n"), "after the reset: %s", text);
        dt_tape_set_moves(t, DT_MOVES_FORBID);
    }
    return DT_OK;
}

DT_TEST(comm_log, communication_is_counted_by_scope_kind_and_reason)
{
    dt_test_on_ranks("tp=2", counted, NULL);
}

/* A scope that has counted before takes no memory again: steps of a loop repeat. */
static dt_status repeats(dt_mesh *mesh, const void *arg)
{
    DT_HELD(tape) *t = dt_test_tape(mesh);
    uint64_t before = 0;

    (void)arg;
    for (int round = 0; round < 4; round++) {
        if (round == 2) before = dti_alloc_count();
        DT_TRY(forward(mesh, t));
        dt_tape_reset(t);
    }
    DT_EXPECT(dti_alloc_count() - before <= 2 * 2, "%d allocations in two rounds",
              (int)(dti_alloc_count() - before)); /* the two tensors of a round */
    return DT_OK;
}

DT_TEST(comm_log, repeated_steps_take_no_memory)
{
    dt_test_on_ranks("tp=2", repeats, NULL);
}

DT_TEST(comm_log, names_that_are_long_or_odd)
{
    const dt_comm_counter one[DT_N_COMM_KINDS] = { { 1, 10 } };
    char name[200];
    DT_ENDS(dti_comm_log_free) dti_comm_log log = { 0 };
    int root, a, b;

    memset(name, 'x', sizeof name);
    name[199] = '\0';
    DT_ASSERT_OK(dti_comm_log_node(&log, -1, "total", &root));
    DT_ASSERT_OK(dti_comm_log_node(&log, root, name, &a));
    DT_ASSERT_OK(dti_comm_log_node(&log, root, name, &b));
    DT_ASSERT_EQ_INT(a, b);
    DT_ASSERT_EQ_INT(strlen(log.nodes[a].name), DTI_LOG_NAME_BYTES - 1);
    for (int i = 0; i < 300; i++) { /* siblings are found in any order */
        (void)snprintf(name, sizeof name, "layers.%d", i * 7 % 100);
        DT_ASSERT_OK(dti_comm_log_node(&log, root, name, &b));
        DT_ASSERT_OK(dti_comm_log_add(&log, b, "move", one));
    }
    DT_ASSERT_EQ_INT(log.n_nodes, 102);
    DT_ASSERT_EQ_INT(log.n_entries, 100);
}
