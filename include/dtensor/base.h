/* SPDX-License-Identifier: Apache-2.0
 *
 * The floor of the house: status codes, the error record of a thread, element types, log.
 *
 * Infrastructure functions return a dt_status. The function that decides on an error writes one
 * message into the record of its thread; the ones above it only add a frame. Nobody prints.
 *
 * Configuration structs (dt_run_options, ...) begin with their size, which DT_..._INIT sets
 * together with the defaults. New versions add fields at the end: a program may run with an older
 * or newer library than it was compiled against, as long as it sets no field that the library does
 * not know.
 *
 * Other structs have no size: rows of tables (dt_op, dt_layer_spec, dt_plan_rule), links of chains
 * (dt_plan), and what the library fills (dt_model_info, dt_route, dt_rank_memory). They are part of
 * the ABI that the library's SONAME stands for: a version that adds a field to one has another
 * name, so a program and a library whose structs differ never meet. Fill them by name or from
 * zeros; zero in a field that a later version adds means what there was before.
 *
 * Headers are C11 and C++ from C++14 on. */
#ifndef DT_BASE_H
#define DT_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DT_VERSION_MAJOR 0
#define DT_VERSION_MINOR 1
#define DT_VERSION_PATCH 0

#if defined(__GNUC__)
#define DT_API          __attribute__((visibility("default")))
#define DT_MUST_USE     __attribute__((warn_unused_result))
#define DT_PRINTF(f, a) __attribute__((format(printf, f, a)))
#else
#define DT_API
#define DT_MUST_USE
#define DT_PRINTF(f, a)
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Codes say what the caller can do: fix the call (ARG, SHAPE, LAYOUT), free something (MEMORY),
 * rebuild the mesh (COMM), choose another build (UNSUPPORTED), look at a file (IO, FORMAT). */
/* clang-format off */
#define DT_STATUS_MAP(X)                                                                  \
    X(OK,              0, "success")                                                      \
    X(ERR_ARG,         1, "an argument is NULL or out of range")                          \
    X(ERR_SHAPE,       2, "shapes or dtypes do not agree")                                \
    X(ERR_LAYOUT,      3, "placements do not allow this operation")                       \
    X(ERR_MEMORY,      4, "memory could not be allocated")                                \
    X(ERR_COMM,        5, "a rank failed, left or timed out")                             \
    X(ERR_DEVICE,      6, "the device runtime reported an error")                         \
    X(ERR_UNSUPPORTED, 7, "not available in this build or on this device")                \
    X(ERR_IO,          8, "a file could not be read or written")                          \
    X(ERR_FORMAT,      9, "a file's contents are malformed or contradict each other")     \
    X(ERR_INTERNAL,   10, "a bug in dtensor: please report it")
/* clang-format on */

typedef enum dt_status {
#define X(name, code, text) DT_##name = (code),
    DT_STATUS_MAP(X)
#undef X
} dt_status;

/* Element types. Order is part of no file format. */
typedef enum dt_dtype {
    DT_F32 = 0,
    DT_BF16 = 1,
    DT_F16 = 2,
    DT_F64 = 3,
    DT_I32 = 4,
    DT_I64 = 5,
    DT_U8 = 6,
    DT_N_DTYPES
} dt_dtype;

/* Elementwise reductions, of collectives and of Partial placements. */
typedef enum dt_reduce { DT_SUM = 0, DT_AVG, DT_MIN, DT_MAX, DT_PROD, DT_N_REDUCES } dt_reduce;

enum { DT_ERROR_MAX_FRAMES = 16, DT_ERROR_MESSAGE_BYTES = 768, DT_ERROR_WHERE_BYTES = 64 };

typedef struct dt_error_frame {
    const char *func;
    const char *file;
    int line;
} dt_error_frame;

/* What went wrong last on this thread. `rank` is the rank that reports it, -1 outside dt_run();
 * `where` its mesh coordinates ("dp=0,tp=1") or empty. Where another rank is to blame, since it
 * failed, left, died or never came, the message names that one. */
typedef struct dt_error {
    dt_status code;
    int rank;
    int n_frames;
    dt_error_frame frames[DT_ERROR_MAX_FRAMES];
    char where[DT_ERROR_WHERE_BYTES];
    char message[DT_ERROR_MESSAGE_BYTES];
} dt_error;

/**
 * The error record of the calling thread; code DT_OK if nothing failed yet. After dt_run() it is
 * the record of the rank that failed first, or that first noticed that another had left.
 *
 * Collective  no.
 * Ownership   borrowed; valid until the next error on this thread.
 * Errors      none.
 */
DT_API const dt_error *dt_last_error(void);

/**
 * Records an error in the calling thread's record and returns `code`: how the functions of a user's
 * own style, operator or rank say why they refuse.
 *
 * Collective  no.
 * Errors      `code` itself, always
 */
DT_API dt_status dt_fail(dt_status code, const char *fmt, ...) DT_PRINTF(2, 3);

/** dt_fail() with the place that decided, the first of the record's frames: what DT_FAIL calls. Not
 * collective. Errors: `code` itself. */
DT_API dt_status dt_fail_at(dt_status code, const char *func, const char *file, int line,
                            const char *fmt, ...) DT_PRINTF(5, 6);

/** Adds a place that an error passed on its way up to the record, and returns `code`: what DT_TRY
 * calls. Not collective. Errors: `code` itself. */
DT_API dt_status dt_fail_through(dt_status code, const char *func, const char *file, int line);

/* For functions that return a dt_status. They use these as the library does: the function that
 * decides on an error says it with DT_FAIL or DT_CHECK, the ones above pass it on with DT_TRY, and
 * the record has the way that it came. Those that end in _TO are for functions that hold something:
 * they set `st` and go to the one label that cleans up. */
#define DT_FAIL(code, ...)                                                   \
    do {                                                                     \
        (void)dt_fail_at((code), __func__, __FILE__, __LINE__, __VA_ARGS__); \
        return (code);                                                       \
    } while (0)

#define DT_CHECK(cond, code, ...)                  \
    do {                                           \
        if (!(cond)) DT_FAIL((code), __VA_ARGS__); \
    } while (0)

#define DT_TRY(call)                                                        \
    do {                                                                    \
        dt_status dt_try_st = (call);                                       \
        if (dt_try_st != DT_OK) {                                           \
            (void)dt_fail_through(dt_try_st, __func__, __FILE__, __LINE__); \
            return dt_try_st;                                               \
        }                                                                   \
    } while (0)

#define DT_TRY_TO(label, st, call)                                     \
    do {                                                               \
        (st) = (call);                                                 \
        if ((st) != DT_OK) {                                           \
            (void)dt_fail_through((st), __func__, __FILE__, __LINE__); \
            goto label;                                                \
        }                                                              \
    } while (0)

#define DT_CHECK_TO(label, st, cond, code, ...)                                  \
    do {                                                                         \
        if (!(cond)) {                                                           \
            (void)dt_fail_at((code), __func__, __FILE__, __LINE__, __VA_ARGS__); \
            (st) = (code);                                                       \
            goto label;                                                          \
        }                                                                        \
    } while (0)

/** The sentence that belongs to a status code. Never NULL. Not collective. Errors: none. */
DT_API const char *dt_status_text(dt_status code);

/** The name of a status code, "DT_ERR_SHAPE". Never NULL. Not collective. Errors: none. */
DT_API const char *dt_status_name(dt_status code);

/** Library version, "0.1.0". Not collective. Errors: none. */
DT_API const char *dt_version(void);

enum { DT_MAX_AXES = 8 }; /* of a tensor */

/** Bytes of one element; 0 for a value that is no dtype. Not collective. Errors: none. */
DT_API size_t dt_dtype_size(dt_dtype dtype);

/** "f32", "bf16", ...; "?" for a value that is no dtype. Not collective. Errors: none. */
DT_API const char *dt_dtype_name(dt_dtype dtype);

/** True for f32, bf16, f16 and f64. Not collective. Errors: none. */
DT_API bool dt_dtype_is_float(dt_dtype dtype);

/* What was chosen as usual, what a user may want to know, what he should look at. */
typedef enum dt_log_level { DT_LOG_DETAIL, DT_LOG_INFO, DT_LOG_WARNING } dt_log_level;

/* Called with one line without a newline; from any rank, one call at a time per rank. */
typedef void (*dt_log_fn)(void *arg, dt_log_level level, int rank, const char *line);

#ifdef __cplusplus
}
#endif
#endif
