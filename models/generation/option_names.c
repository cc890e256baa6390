/* SPDX-License-Identifier: Apache-2.0 */
#include "models/generation/option_names.h"

#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "files/input.h"

/* Most fields are called as their keys. */
static const struct {
    const char *field, *key;
} keys[] = {
    { "bad_words", "bad_words_ids" },
    { "eos", "eos_token_id" },
    { "forced_bos", "forced_bos_token_id" },
    { "forced_eos", "forced_eos_token_id" },
    { "pad", "pad_token_id" },
};

void dti_generation_key(void *folder, const char *field, char text[DTI_OPTION_NAME_BYTES])
{
    char label[DTI_INPUT_LABEL_BYTES];
    const char *key = field;

    for (size_t i = 0; i < DT_COUNT(keys); i++)
        if (strcmp(keys[i].field, field) == 0) key = keys[i].key;
    (void)snprintf(text, DTI_OPTION_NAME_BYTES, "%s/generation_config.json: %s",
                   dti_printable(folder, label, sizeof label), key);
}
