/* SPDX-License-Identifier: Apache-2.0 */
#include <dtensor/model_training.h>

#include "files/checkpoint.h"
#include "models/model.h"
#include "weights/saving/save.h"

dt_status dt_model_save(dt_model *m, const char *dir, const dt_save_options *options)
{
    DT_CHECK(m != NULL && dir != NULL && dir[0] != '\0', DT_ERR_ARG, "model or dir is NULL");
    DT_CHECK(m->arch->text_config == NULL, DT_ERR_UNSUPPORTED,
             "a %s model is only the text part of its checkpoint: saving it would lose the rest",
             m->arch->model_type);
    DT_TRY(dti_layers_write(m->layers, dir, m->folder, m->beside, m->info.dtype, m->arch->spellings,
                            options));
    return DT_OK;
}

dt_status dt_save_check(const char *from, const char *dir, dt_dtype dtype)
{
    if (dir != NULL) DT_TRY(dti_save_check_folder(dir));
    if (from != NULL) DT_TRY(dti_save_check_small(from, dir, dtype));
    return DT_OK;
}

dt_status dt_model_write_gradients(dt_model *m, const dt_gradients *gradients, const char *path,
                                   dt_gradient_fn told, void *told_arg)
{
    dt_gradient_file_options o = DT_GRADIENT_FILE_OPTIONS_INIT;

    DT_CHECK(m != NULL, DT_ERR_ARG, "model is NULL");
    if (m->folder != NULL && dti_ckpt_exists(m->folder)) o.like = m->folder;
    o.spellings = m->arch->spellings;
    o.told = told;
    o.told_arg = told_arg;
    DT_TRY(dt_layers_write_gradients(m->layers, gradients, path, &o));
    return DT_OK;
}
