/* SPDX-License-Identifier: Apache-2.0
 *
 * Third step: layers are laid over a mesh and get their values. */
#ifndef DTI_LOAD_H
#define DTI_LOAD_H

#include "models/describe/describe.h"
#include "models/model.h"
#include "weights/read_layers.h"

/* The model without values of its parameters: takes the description's own struct over. */
dt_status dti_model_make(dti_described *d, dt_mesh *mesh, const dt_load_options *o,
                         dt_model **out) DT_MUST_USE;

/* A model from its configuration alone: parameters are what `fill` makes of them, NULL: zeros. On a
 * mesh of a dry runtime they are dry. */
dt_status dti_model_make_whole(dti_described *d, dt_mesh *mesh, const dt_load_options *o,
                               const dti_filler *fill, dt_model **out) DT_MUST_USE;

/* Whether all ranks read the same model: config.json, generation_config.json, and of the weights
 * names, shapes and a sample of the numbers. `st` is how it went until now; `m` NULL after an
 * error. Collective over the mesh, unless `st` is an error that frees the other ranks; they hear of
 * others. Errors: `st`; DT_ERR_ARG; that of another rank (same_files.c). */
dt_status dti_check_same_files(dt_mesh *mesh, dt_status st, const dt_model *m, uint64_t config_hash,
                               const struct dti_ckpt *ckpt) DT_MUST_USE;

/* Takes a model that ends off the list of dt_parallelize(). */
void dti_parallelized_forget(const dt_model *model);

/* Says through the log what the ranks of a model hold. Collective over its mesh, whatever `verbose`
 * is: ranks may be asked to say different things. */
dt_status dti_memory_report(dt_model *m, const char *backend, int verbose) DT_MUST_USE;

/* What the ranks of a process share the open checkpoint of `dir` by, for loads with these options;
 * freed with dti_free(). */
dt_status dti_checkpoint_key(const char *dir, const dt_load_options *o, char **out) DT_MUST_USE;

#endif
