/* SPDX-License-Identifier: Apache-2.0
 *
 * What messages call a field of dt_generate_options: who has not filled in the struct knows it as
 * an option of a command, or as a key of generation_config.json. */
#ifndef DTI_OPTION_NAMES_H
#define DTI_OPTION_NAMES_H

#include <dtensor/generation.h>

enum { DTI_OPTION_NAME_BYTES = 512 };

/* `field` is the name in the struct: "pad". */
typedef struct dti_option_names {
    void (*name)(void *arg, const char *field, char text[DTI_OPTION_NAME_BYTES]);
    void *arg;
} dti_option_names;

/* As dti_option_names.name, its argument being a folder:
 * "DIR/generation_config.json: pad_token_id". */
void dti_generation_key(void *folder, const char *field, char text[DTI_OPTION_NAME_BYTES]);

#endif
