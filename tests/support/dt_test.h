/* SPDX-License-Identifier: Apache-2.0
 *
 * Tests. DT_TEST is Criterion's Test, or a registration with the plain runner where DT_TEST_PLAIN
 * is set (ThreadSanitizer, valgrind and mpirun need that).
 *
 * DT_ASSERT... fail the test at once and belong on the test's own thread. Bodies of ranks run on
 * threads: they use DT_EXPECT..., which return a status from the body. */
#ifndef DT_TEST_H
#define DT_TEST_H

#include <dtensor/base.h>
#include <dtensor/mesh.h>

#include "base/error.h"

#include <stdlib.h>

/* --- tests ------------------------------------------------------------------------------------ */

#ifdef DT_TEST_PLAIN

typedef struct dt_test_entry {
    const char *suite, *name;
    void (*run)(void);
    struct dt_test_entry *next;
} dt_test_entry;

void dt_test_register(dt_test_entry *entry);

#define DT_TEST(suite_, name_)                                                           \
    static void suite_##_##name_##_test(void);                                           \
    __attribute__((constructor)) static void suite_##_##name_##_register(void)           \
    {                                                                                    \
        static dt_test_entry entry = { #suite_, #name_, suite_##_##name_##_test, NULL }; \
        dt_test_register(&entry);                                                        \
    }                                                                                    \
    static void suite_##_##name_##_test(void)

#else

#include <criterion/criterion.h>
#define DT_TEST(suite_, name_) Test(suite_, name_)

#endif

/* Ends the running test: as failed with this message, or as skipped for this reason. */
void dt_test_fail(const char *file, int line, const char *fmt, ...) DT_PRINTF(3, 4);
void dt_test_skip(const char *fmt, ...) DT_PRINTF(1, 2);

/* Skips the running test but where `make test-long` runs it: DTENSOR_LONG is set. */
void dt_test_long(void);

/* Whether the `which`-th of n ways to look at the `item`-th thing is due: all are where
 * `make test-long` runs the test; else `few`, by turns, so that every way is due for some thing. */
bool dt_test_is_due(size_t item, size_t which, size_t n, size_t few);

/* Writes the thread's error record with its frames to stderr. */
void dt_test_print_error(void);

/* --- on the test's thread --------------------------------------------------------------------- */

#undef DT_ASSERT /* base/error.h has the one that aborts */
#define DT_ASSERT(cond)                                                       \
    do {                                                                      \
        if (!(cond)) dt_test_fail(__FILE__, __LINE__, "not true: %s", #cond); \
    } while (0)

#define DT_ASSERT_EQ_INT(a, b) \
    dt_test_equal_int(__FILE__, __LINE__, #a, #b, (int64_t)(a), (int64_t)(b))
#define DT_ASSERT_EQ_STR(a, b) dt_test_equal_text(__FILE__, __LINE__, #a, (a), (b))
#define DT_ASSERT_CLOSE(a, b, tolerance) \
    dt_test_close(__FILE__, __LINE__, #a, (double)(a), (double)(b), (double)(tolerance))
#define DT_ASSERT_OK(call) dt_test_ok(__FILE__, __LINE__, #call, (call))

/* The call fails with `code`, and the message contains `substring` (NULL: any message). */
#define DT_ASSERT_STATUS(call, code, substring) \
    dt_test_status(__FILE__, __LINE__, #call, (call), (code), (substring))

void dt_test_equal_int(const char *file, int line, const char *a_text, const char *b_text,
                       int64_t a, int64_t b);
void dt_test_equal_text(const char *file, int line, const char *a_text, const char *a,
                        const char *b);
void dt_test_close(const char *file, int line, const char *a_text, double a, double b,
                   double tolerance);
void dt_test_ok(const char *file, int line, const char *call, dt_status st);
void dt_test_status(const char *file, int line, const char *call, dt_status st, dt_status want,
                    const char *substring);

/* --- in the body of a rank, or any function that returns dt_status ---------------------------- */

/* DT_EXPECT(n == 3, "after %d steps", step): returns a failure if the condition does not hold. */
#define DT_EXPECT(cond, ...)                                                                      \
    do {                                                                                          \
        if (!(cond)) return dt_test_unexpected(__func__, __FILE__, __LINE__, #cond, __VA_ARGS__); \
    } while (0)

#define DT_EXPECT_EQ_INT(a, b) \
    DT_TRY(dt_test_expect_int(__func__, __FILE__, __LINE__, #a, (int64_t)(a), (int64_t)(b)))
#define DT_EXPECT_EQ_STR(a, b) \
    DT_TRY(dt_test_expect_text(__func__, __FILE__, __LINE__, #a, (a), (b)))
#define DT_EXPECT_CLOSE(a, b, tolerance)                                                    \
    DT_TRY(dt_test_expect_close(__func__, __FILE__, __LINE__, #a, (double)(a), (double)(b), \
                                (double)(tolerance)))
#define DT_EXPECT_STATUS(call, code, substring) \
    DT_TRY(dt_test_expect_status(__func__, __FILE__, __LINE__, (call), (code), (substring)))

/* DT_HELD(tensor) *x = NULL, *y = NULL; DT_FREED float *values = NULL: what such a variable has is
 * released when its scope is left, by DT_TRY() too; what was declared last first. DT_FREED is
 * memory for dti_free(), and DT_ENDS(dti_st_close) dti_st_file *file = NULL has an end of its own.
 */
#define DT_ENDS(function) __attribute__((cleanup(function)))
#define DT_HELD(what)     DT_ENDS(dt_##what##_release) dt_##what
#define DT_FREED          DT_ENDS(dt_test_free)
void dt_test_free(void *pointer);

/* For bodies that hold something else: records the failure and goes to the label. */
#define DT_EXPECT_TO(label, st, cond, ...)                                               \
    do {                                                                                 \
        if (!(cond)) {                                                                   \
            (st) = dt_test_unexpected(__func__, __FILE__, __LINE__, #cond, __VA_ARGS__); \
            goto label;                                                                  \
        }                                                                                \
    } while (0)

dt_status dt_test_unexpected(const char *func, const char *file, int line, const char *cond,
                             const char *fmt, ...) DT_PRINTF(5, 6);
dt_status dt_test_expect_int(const char *func, const char *file, int line, const char *a_text,
                             int64_t a, int64_t b);
dt_status dt_test_expect_text(const char *func, const char *file, int line, const char *a_text,
                              const char *a, const char *b);
dt_status dt_test_expect_close(const char *func, const char *file, int line, const char *a_text,
                               double a, double b, double tolerance);
dt_status dt_test_expect_status(const char *func, const char *file, int line, dt_status st,
                                dt_status want, const char *substring);

/* DT_HELD(tape) *t = dt_test_tape(mesh): NULL, which dt_tape_status() refuses, without memory. */
struct dt_tape *dt_test_tape(dt_mesh *mesh);

/* --- ranks ------------------------------------------------------------------------------------ */

typedef dt_status (*dt_test_body)(dt_mesh *mesh, const void *arg);

/* Runs `body` on every rank of the mesh "dp=2,tp=2", each a thread. Fails the test once, with the
 * record of the rank that failed first; a rank that leaves objects alive fails it too.
 *
 * Under mpirun the ranks are divided among the processes, all of which run the same tests; a mesh
 * with fewer ranks than processes is left out. */
void dt_test_on_ranks(const char *spec, dt_test_body body, const void *arg);

/* As above, but the run has to fail with `code` and a message that contains `substring`. */
void dt_test_on_ranks_fail(const char *spec, dt_test_body body, const void *arg, dt_status code,
                           const char *substring);

/* Both forms with options of one's own (n_ranks is taken from the mesh), as a status. Defaults of
 * tests: one thread per rank, not bound, 20 seconds for a collective. */
#define DT_TEST_RUN_OPTIONS                                                                      \
    (dt_run_options)                                                                             \
    {                                                                                            \
        .size = sizeof(dt_run_options), .n_ranks = 1, .threads_per_rank = 1, .timeout_ms = 20000 \
    }
dt_status dt_test_run(const dt_run_options *options, const char *spec, dt_test_body body,
                      const void *arg);

/* Processes that a launcher started to run this program together. */
int dt_test_processes(void);

/* Whether a mesh "dp=2,tp=2" gives each process one rank, or there is one process. Tests that take
 * long leave the other meshes out. */
bool dt_test_fits_launch(const char *spec);

/* Whether a rank of a run of n_ranks is a thread of this process. */
bool dt_test_is_here(int rank, int n_ranks);

/* --- files ------------------------------------------------------------------------------------ */

enum { DT_TEST_PATH_BYTES = 1024 };

/* ("tests/golden/%s", "llama/x") -> its full path, wherever the test was started from. Returns
 * `path`. */
const char *dt_test_source_path(char path[DT_TEST_PATH_BYTES], const char *relative, ...)
    DT_PRINTF(2, 3);

/* "bin/dtensor" -> its full path in the build folder (only under ctest). Returns `path`. */
const char *dt_test_binary_path(char path[DT_TEST_PATH_BYTES], const char *relative);

/* A fresh folder; returns `path`. With the process it goes, and all that is in it; large ones are
 * removed before. */
const char *dt_test_temp_dir(char path[DT_TEST_PATH_BYTES]);
void dt_test_remove_dir(const char *path);

/* The same for all processes of a launch. */
const char *dt_test_shared_dir(char path[DT_TEST_PATH_BYTES]);

/* Files of a folder with `part` in their names, for "" all that are not hidden; -1 if there is no
 * folder. */
int dt_test_count_files(const char *folder, const char *part);

/* Writes a file "folder/name"; fails the test if it cannot. */
void dt_test_write_file(const char *folder, const char *name, const void *data, size_t bytes);

#endif
