/* SPDX-License-Identifier: Apache-2.0
 *
 * Which cores a rank gets, on machines that need not exist. */
#include "mesh/topology.h"

#include "tests/support/dt_test.h"

typedef struct machine {
    const char *synthetic;
    int n_cores;
    int n_ranks, want_threads; /* of 0 asked */
    const char *cores[4];      /* of the first ranks */
} machine;

DT_TEST(topology, cores_are_divided_side_by_side_within_numa_nodes)
{
    static const machine machines[] = {
        { "pack:1 core:4 pu:1", 4, 1, 4, { "0-3" } },
        { "pack:1 core:4 pu:1", 4, 2, 2, { "0-1", "2-3" } },
        { "pack:1 core:4 pu:1", 4, 3, 1, { "0", "1", "2" } },
        { "pack:2 [numa] core:8 pu:2", 16, 4, 4, { "0-7", "8-15", "16-23", "24-31" } },
        { "pack:2 [numa] core:3 pu:1", 6, 3, 2, { "0-1", "2-3", "4-5" } },
        { "pack:3 [numa] core:5 pu:1", 15, 7, 2, { "0-1", "2-3", "5-6", "7-8" } },
    };

    for (size_t i = 0; i < DT_COUNT(machines); i++) {
        const machine *m = &machines[i];
        dti_topology *t = NULL;
        DT_ASSERT_OK(dti_topology_load(m->synthetic, &t));
        DT_ASSERT_EQ_INT(dti_topology_n_cores(t), m->n_cores);
        DT_ASSERT(!dti_topology_can_bind(t));
        DT_ASSERT_OK(dti_topology_divide(t, m->n_ranks, 0));
        DT_ASSERT_EQ_INT(dti_topology_threads(t), m->want_threads);
        DT_ASSERT(dti_topology_fits(t));
        for (int r = 0; r < 4 && m->cores[r] != NULL; r++) {
            char text[DTI_CORES_TEXT_BYTES];
            dti_topology_cores_text(t, r, text);
            DT_ASSERT_EQ_STR(text, m->cores[r]);
            DT_ASSERT(!dti_topology_bind(t, r, 0));
        }
        dti_topology_free(&t);
    }
}

DT_TEST(topology, more_threads_than_cores_do_not_fit)
{
    dti_topology *t = NULL;
    char text[DTI_CORES_TEXT_BYTES];

    DT_ASSERT_OK(dti_topology_load("pack:1 core:4 pu:2", &t));
    DT_ASSERT_OK(dti_topology_divide(t, 5, 0));
    DT_ASSERT(!dti_topology_fits(t));
    DT_ASSERT_EQ_INT(dti_topology_threads(t), 1);
    dti_topology_cores_text(t, 4, text);
    DT_ASSERT_EQ_STR(text, "");
    DT_ASSERT_OK(dti_topology_divide(t, 2, 3));
    DT_ASSERT(!dti_topology_fits(t));
    DT_ASSERT_OK(dti_topology_divide(t, 2, 1));
    DT_ASSERT(dti_topology_fits(t));
    dti_topology_cores_text(t, 1, text);
    DT_ASSERT_EQ_STR(text, "4-5"); /* the rank's share begins there, it uses one core of it */
    dti_topology_free(&t);
}

DT_TEST(topology, this_machine_has_a_core)
{
    dti_topology *t = NULL;
    dti_binding *before;

    DT_ASSERT_OK(dti_topology_load(NULL, &t));
    DT_ASSERT(dti_topology_n_cores(t) >= 1);
    DT_ASSERT_OK(dti_topology_divide(t, 1, 0));
    before = dti_binding_save(t);
    if (dti_topology_can_bind(t)) {
        dti_topology *narrow = NULL;
        DT_ASSERT(dti_topology_bind(t, 0, 0));
        DT_ASSERT_OK(dti_topology_load(NULL, &narrow)); /* what is bound stays within its cores */
        DT_ASSERT_EQ_INT(dti_topology_n_cores(narrow), 1);
        dti_topology_free(&narrow);
    }
    dti_binding_restore(t, before);
    dti_topology_free(&t);
}

DT_TEST(topology, users_learn_how_many_cores_there_are)
{
    dti_topology *t;

    DT_ASSERT_OK(dti_topology_load(NULL, &t));
    DT_ASSERT_EQ_INT(dt_machine_cores(), dti_topology_n_cores(t));
    DT_ASSERT(dt_machine_cores() >= 1);
    dti_topology_free(&t);
}
