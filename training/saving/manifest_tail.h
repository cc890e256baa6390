/* SPDX-License-Identifier: Apache-2.0
 *
 * How a manifest begins and ends: with the checksum of all bytes before the end. */
#ifndef DTI_MANIFEST_TAIL_H
#define DTI_MANIFEST_TAIL_H

#include <inttypes.h>

enum { DTI_MANIFEST_VERSION = 1, DTI_MANIFEST_TAIL_BYTES = 43 };

#define DTI_MANIFEST_TAIL ",\n  \"checksum_above\": \"%016" PRIx64 "\"\n}\n"

#endif
