/* SPDX-License-Identifier: Apache-2.0 */
#include <dtensor/generation.h>
#include <stdio.h>

#include "base/text.h"
#include "files/input.h"

void dt_generation_key(void *folder, const char *field, char text[DT_OPTION_NAME_BYTES])
{
    char label[DTI_INPUT_LABEL_BYTES];
    const dt_knob *knob = dt_generate_knob(field);

    (void)snprintf(text, DT_OPTION_NAME_BYTES, "%s/generation_config.json: %s",
                   dti_printable(folder, label, sizeof label),
                   knob != NULL && knob->key != NULL ? knob->key : field);
}
