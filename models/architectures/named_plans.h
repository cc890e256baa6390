/* SPDX-License-Identifier: Apache-2.0
 *
 * Plans that built-in architectures have by name. */
#ifndef DTI_NAMED_PLANS_H
#define DTI_NAMED_PLANS_H

#include <dtensor/architectures.h>

#include "base/error.h"

extern const dt_named_plan dti_nemo_llama[], dti_nemo_qwen[], dti_nemo_gemma3_text[],
    dti_nemo_gemma3[];

#endif
