/* SPDX-License-Identifier: Apache-2.0
 *
 * XXH64, the hash that `xxhsum -H1` prints: as fast as memory is read, in plain C. It finds bytes
 * that changed by accident. */
#ifndef DTI_CHECKSUM_H
#define DTI_CHECKSUM_H

#include <stddef.h>
#include <stdint.h>

typedef struct dti_checksum {
    uint64_t lane[4];
    uint64_t bytes; /* so far; what does not fill a block waits in `rest` */
    unsigned char rest[32];
} dti_checksum;

void dti_checksum_begin(dti_checksum *sum);
void dti_checksum_add(dti_checksum *sum, const void *data, size_t n);
uint64_t dti_checksum_end(const dti_checksum *sum); /* of all that was added; more may follow */

uint64_t dti_checksum_of(const void *data, size_t n);

#endif
