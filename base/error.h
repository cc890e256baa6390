/* SPDX-License-Identifier: Apache-2.0
 *
 * How code inside the library fails: DT_CHECK of <dtensor/base.h> for the user's mistakes,
 * DT_ASSERT for ours. */
#ifndef DTI_ERROR_H
#define DTI_ERROR_H

#include <dtensor/base.h>

#define DT_COUNT(a) (sizeof(a) / sizeof((a)[0]))

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

#ifdef NDEBUG
#define DT_ASSERT(cond) ((void)0)
#else
#include <assert.h>
#define DT_ASSERT(cond) assert(cond)
#endif

#endif
