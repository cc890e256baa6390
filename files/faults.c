/* SPDX-License-Identifier: Apache-2.0
 *
 * Faults of a checkpoint that is opened to find all of them: they are said, and the names of such
 * tensors kept, because nothing more can be said of them. */
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "files/checkpoint_internal.h"
#include "files/safetensors_internal.h"

void dti_ckpt_note_name(dti_ckpt *ckpt, const char *tensor)
{
    if (dti_grow((void **)&ckpt->bad, &ckpt->n_bad_room, ckpt->n_bad + 1, sizeof *ckpt->bad) !=
            DT_OK ||
        dti_strdup(tensor, &ckpt->bad[ckpt->n_bad]) != DT_OK)
        ckpt->forgot = true;
    else
        ckpt->n_bad++;
}

void dti_ckpt_note(void *arg, const char *tensor, const char *text)
{
    dti_ckpt *ckpt = arg;

    if (tensor != NULL) dti_ckpt_note_name(ckpt, tensor);
    ckpt->faults->fn(ckpt->faults->arg, tensor, text);
}

static int by_name(const void *left, const void *right)
{
    return strcmp(*(const char *const *)left, *(const char *const *)right);
}

void dti_ckpt_sort_names(dti_ckpt *ckpt)
{
    if (ckpt->n_bad > 0) qsort(ckpt->bad, ckpt->n_bad, sizeof *ckpt->bad, by_name);
    ckpt->n_sorted = ckpt->n_bad;
}

bool dti_ckpt_is_faulty(const dti_ckpt *ckpt, const char *name)
{
    return ckpt->n_sorted > 0 &&
           bsearch(&name, ckpt->bad, ckpt->n_sorted, sizeof *ckpt->bad, by_name) != NULL;
}

bool dti_ckpt_has_faults(const dti_ckpt *ckpt)
{
    return ckpt->n_bad > 0;
}

dt_status dti_ckpt_open_file(dti_ckpt *ckpt, const char *path, dti_st_file **out)
{
    const dti_faults noted = { dti_ckpt_note, ckpt };

    DT_TRY(dti_st_open_faulty(path, ckpt->faults != NULL ? &noted : NULL, out));
    DT_TRY(dti_st_share(*out, path, ckpt->open));
    return DT_OK;
}
