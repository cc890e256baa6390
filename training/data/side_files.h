/* SPDX-License-Identifier: Apache-2.0
 *
 * What lies beside a file of tokens, for those who write it. */
#ifndef DTI_SIDE_FILES_H
#define DTI_SIDE_FILES_H

#include "training/data/token_file.h"

enum { DTI_MASK_HEADER_BYTES = 24 };

#define DTI_FACTS_ENDING ".json"
#define DTI_MASK_ENDING  ".mask"
#define DTI_MASK_MAGIC   "DTMASK1"

#endif
