/* SPDX-License-Identifier: Apache-2.0
 *
 * What a request says, as bytes: copied from its caller once, sent to every rank, read in place. */
#ifndef DTI_PACKET_H
#define DTI_PACKET_H

#include <dtensor/service.h>

#include "base/memory.h"

typedef struct dti_packet {
    char *bytes;
    size_t n, room;
} dti_packet;

dt_status dti_packet_put(dti_packet *p, const void *data, size_t n) DT_MUST_USE;
dt_status dti_packet_put_text(dti_packet *p, const char *text) DT_MUST_USE; /* may be NULL */
dt_status dti_packet_put_lists(dti_packet *p, const dt_ids *lists, int64_t n) DT_MUST_USE;
dt_status dti_packet_put_pieces(dti_packet *p, const dt_piece *pieces, int64_t n) DT_MUST_USE;

/* Callbacks stay behind, but that there is somebody who looks at scores. */
dt_status dti_packet_put_options(dti_packet *p, const dt_generate_options *o) DT_MUST_USE;

/* Where a reader is. What it takes lies in the packet, tables of it in the arena. */
typedef struct dti_unpacking {
    const char *at, *end;
    dti_arena arena;
} dti_unpacking;

/* Errors: DT_ERR_INTERNAL the packet ends before. */
dt_status dti_unpack(dti_unpacking *u, size_t n, const void **out) DT_MUST_USE;
dt_status dti_unpack_copy(dti_unpacking *u, void *to, size_t n) DT_MUST_USE;
dt_status dti_unpack_text(dti_unpacking *u, const char **out) DT_MUST_USE;
dt_status dti_unpack_lists(dti_unpacking *u, const dt_ids **out, int64_t *n) DT_MUST_USE;
dt_status dti_unpack_pieces(dti_unpacking *u, const dt_piece **out, int64_t *n) DT_MUST_USE;
dt_status dti_unpack_options(dti_unpacking *u, dt_generate_options *o) DT_MUST_USE;

/* How a model is loaded and how ranks run, for processes that do not share the caller's memory
 * (how.c). Callbacks stay behind. Errors: DT_ERR_UNSUPPORTED what only the caller's process has. */
dt_status dti_packet_put_how(dti_packet *p, const dt_parallelize_options *how) DT_MUST_USE;
dt_status dti_packet_put_run(dti_packet *p, const dt_run_options *run) DT_MUST_USE;
dt_status dti_unpack_how(dti_unpacking *u, dt_parallelize_options *how) DT_MUST_USE;
dt_status dti_unpack_run(dti_unpacking *u, dt_run_options *run) DT_MUST_USE;

/* DT_ERR_ARG for a piece without data, or an array whose shape and dtype come to another size. */
dt_status dti_piece_check(const dt_piece *piece) DT_MUST_USE;

#endif
