/* SPDX-License-Identifier: Apache-2.0
 *
 * An architecture that nobody knows: which of those that are known it is most like, by the keys of
 * its config.json that they read. */
#include <dtensor/architectures.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/text.h"
#include "files/json.h"
#include "models/architectures/builder.h"
#include "models/describe/describe.h"

enum { MAX_KEYS = 256, LIST_BYTES = 200 };

/* Keys that say nothing of what is computed: no architecture reads them, or each does. */
static const char *const telling_nothing[] = {
    "model_type",     "architectures",        "dtype",          "torch_dtype",
    "use_cache",      "transformers_version", "auto_map",       "_name_or_path",
    "bos_token_id",   "eos_token_id",         "pad_token_id",   "initializer_range",
    "hidden_dropout", "attention_dropout",    "pretraining_tp", "quantization_config",
};

static bool tells(const char *key)
{
    for (size_t i = 0; i < DT_COUNT(telling_nothing); i++)
        if (strcmp(key, telling_nothing[i]) == 0) return false;
    return true;
}

/* Has `arch` read a configuration, for which keys it looks at: false if it refuses. */
static bool reads(const dt_arch *arch, dti_json config, dti_json_watch *watch)
{
    dt_model_info info = { 0 };
    void *self = NULL;
    dt_status st;

    for (size_t i = 0; i < watch->n; i++) watch->seen[i] = false;
    if (arch->text_config != NULL || dti_new(arch->self_bytes, &self) != DT_OK) return false;
    config.watch = watch;
    st = arch->read_config(self, &config, &info);
    if (arch->release != NULL) arch->release(self);
    dti_free(self);
    return st == DT_OK;
}

/* Keys that were not looked at, as a list; how many there are. */
static int list_unread(const dti_json_watch *watch, char text[LIST_BYTES])
{
    size_t used = 0;
    int n = 0;

    text[0] = '\0';
    for (size_t i = 0; i < watch->n; i++) {
        if (watch->seen[i]) continue;
        if (used < LIST_BYTES)
            used += (size_t)snprintf(text + used, LIST_BYTES - used, "%s%s", n > 0 ? ", " : "",
                                     watch->paths[i]);
        n++;
    }
    if (used >= LIST_BYTES) (void)snprintf(text + LIST_BYTES - 4, 4, "...");
    return n;
}

/* NULL: none can read it. */
static const dt_arch *nearest(const dti_json *config, char unread[LIST_BYTES])
{
    const char *paths[MAX_KEYS], *key = NULL;
    bool seen[MAX_KEYS];
    dti_json_watch watch = { paths, seen, 0 };
    const dt_arch *best = NULL, *arch;
    int fewest = MAX_KEYS + 1;
    dti_json member;

    while (dti_json_next(config, &key, &member) && watch.n < MAX_KEYS)
        if (tells(key)) paths[watch.n++] = key;
    for (int i = 0; (arch = dt_arch_at(NULL, i)) != NULL; i++) {
        char text[LIST_BYTES];
        const bool can = reads(arch, *config, &watch);
        const int n = list_unread(&watch, text);
        if (!can || n >= fewest) continue;
        fewest = n;
        best = arch;
        (void)snprintf(unread, LIST_BYTES, "%s", text);
    }
    return best;
}

dt_status dti_refuse_architecture(const dti_json *config, const char *names)
{
    const dti_json type = dti_json_get(config, "model_type");
    dti_json text = dti_json_get(config, "text_config"); /* of what sees images, too */
    char unread[LIST_BYTES] = "", shown[DTI_SHOWN_BYTES];
    const dt_arch *like;
    const char *name;

    text.path[0] = '\0'; /* keys are watched by their own names */
    like = nearest(dti_json_is_set(&text) ? &text : config, unread);
    DT_TRY(dti_json_as_string(&type, &name));
    (void)dti_printable(name, shown, sizeof shown);
    DT_CHECK(like != NULL, DT_ERR_UNSUPPORTED,
             "%s: model_type is \"%s\", which is not supported; docs/adding_a_model.md says how to "
             "add one to %s",
             config->file, shown, names);
    DT_FAIL(
        DT_ERR_UNSUPPORTED,
        "%s: model_type is \"%s\", which is not supported: by its keys it is nearest to \"%s\", "
        "which %s%s; docs/adding_a_model.md says how to add one to %s",
        config->file, shown, like->model_type,
        unread[0] != '\0' ? "does not know " : "knows them all", unread, names);
}
