/* SPDX-License-Identifier: Apache-2.0
 *
 * Models that Hugging Face's tools have fetched: the cache in which they keep them,
 * CACHE/models--ORG--NAME with refs/REVISION, a file that holds a commit, and snapshots/COMMIT, the
 * model's folder, whose files are links into blobs. It is looked at, never changed, and nothing is
 * fetched. */
#ifndef DT_HUB_H
#define DT_HUB_H

#include <dtensor/base.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { DT_HUB_PATH_BYTES = 4096 };

/** Whether `name` is one that a model of the Hub may have: "NAME" or "ORG/NAME", and "@REVISION"
 * behind it or not. Many paths are, too. Not collective. Errors: none. */
DT_API bool dt_hub_is_name(const char *name);

/**
 * The folder of a model of that name, for dt_model_load(); without a revision that of "main". A
 * revision is a branch, a tag or a commit.
 *
 *   cache  the folder: HF_HUB_CACHE, or hub in HF_HOME, or ~/.cache/huggingface/hub
 *
 * Not collective.
 * Errors      DT_ERR_ARG  NULL, no name of a model
 *             DT_ERR_IO   no such model, revision or snapshot, saying what there is
 */
DT_API DT_MUST_USE dt_status dt_hub_find(const char *cache, const char *name,
                                         char folder[DT_HUB_PATH_BYTES]);

/* One that is there. Texts live as long as the call that shows it. */
typedef struct dt_hub_model {
    const char *name;       /* "ORG/NAME", and "@REVISION" where that is not main */
    const char *folder;     /* its snapshot */
    const char *model_type; /* as config.json has it; "": there is none */
} dt_hub_model;

typedef dt_status (*dt_hub_fn)(void *arg, const dt_hub_model *model);

/**
 * Shows all that are there, by name; a snapshot that no revision leads to by its commit. Without a
 * cache there are none. An error of `fn` ends it.
 *
 * Not collective.
 * Errors      DT_ERR_ARG NULL; DT_ERR_IO, DT_ERR_MEMORY; those of `fn`
 */
DT_API DT_MUST_USE dt_status dt_hub_each(const char *cache, dt_hub_fn fn, void *arg);

#ifdef __cplusplus
}
#endif
#endif
