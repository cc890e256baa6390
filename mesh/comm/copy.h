/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies of a collective's results. */
#ifndef DTI_COPY_H
#define DTI_COPY_H

#include <stdbool.h>
#include <stddef.h>

/* From this many bytes per rank on, results go past the caches: a store that misses would first
 * read the line it overwrites, and nothing of the result would stay in the cache anyway. */
enum { DTI_STREAM_BYTES = 8 << 20 };

/* memcpy; with `stream` by non-temporal stores where the processor has them, otherwise, if it is
 * large, by a loop that asks for lines ahead of time. */
void dti_copy(void *to, const void *from, size_t bytes, bool stream);

/* Orders streamed stores before a flag that is raised next. */
void dti_copy_finish(bool stream);

#endif
