/* SPDX-License-Identifier: Apache-2.0
 *
 * How code inside the library fails: DT_CHECK for the user's mistakes, DT_ASSERT for ours. */
#ifndef DTI_ERROR_H
#define DTI_ERROR_H

#include <dtensor/base.h>

#define DT_COUNT(a) (sizeof(a) / sizeof((a)[0]))

/* Starts this thread's error record: code, message, rank, first frame. Returns `code`. */
dt_status dti_error_set(dt_status code, const char *func, const char *file, int line,
                        const char *fmt, ...) DT_PRINTF(5, 6);

/* Adds a frame on the way up. Returns `code`. */
dt_status dti_error_frame(dt_status code, const char *func, const char *file, int line);

/* Puts "prefix: " before the message of the current record: a parser names its file this way. */
void dti_error_prefix(const char *fmt, ...) DT_PRINTF(1, 2);

/* Which rank, and where on its mesh, records of this thread speak of. */
void dti_error_set_rank(int rank);
void dti_error_set_where(const char *where);

/* Copies a record between threads (dt_run hands the culprit's to its caller). */
void dti_error_restore(const dt_error *from);
void dti_error_clear(void);

/* The macros return the code itself, so that compilers and analyzers see that it is no DT_OK. */
#define DT_FAIL(code, ...)                                                      \
    do {                                                                        \
        (void)dti_error_set((code), __func__, __FILE__, __LINE__, __VA_ARGS__); \
        return (code);                                                          \
    } while (0)

#define DT_CHECK(cond, code, ...)                  \
    do {                                           \
        if (!(cond)) DT_FAIL((code), __VA_ARGS__); \
    } while (0)

#define DT_TRY(call)                                                     \
    do {                                                                 \
        dt_status dti_st = (call);                                       \
        if (dti_st != DT_OK) {                                           \
            (void)dti_error_frame(dti_st, __func__, __FILE__, __LINE__); \
            return dti_st;                                               \
        }                                                                \
    } while (0)

/* For functions that hold something: records the frame and goes to the one clean-up label. */
#define DT_TRY_TO(label, st, call)                                     \
    do {                                                               \
        (st) = (call);                                                 \
        if ((st) != DT_OK) {                                           \
            (void)dti_error_frame((st), __func__, __FILE__, __LINE__); \
            goto label;                                                \
        }                                                              \
    } while (0)

/* DT_CHECK for functions that hold something. */
#define DT_CHECK_TO(label, st, cond, code, ...)                                     \
    do {                                                                            \
        if (!(cond)) {                                                              \
            (void)dti_error_set((code), __func__, __FILE__, __LINE__, __VA_ARGS__); \
            (st) = (code);                                                          \
            goto label;                                                             \
        }                                                                           \
    } while (0)

#ifdef NDEBUG
#define DT_ASSERT(cond) ((void)0)
#else
#include <assert.h>
#define DT_ASSERT(cond) assert(cond)
#endif

#endif
