/* SPDX-License-Identifier: Apache-2.0 */
#include "dtensor/claims.h"

#include <string.h>

#include "base/numbers.h"
#include "base/writer.h"
#include "mesh/runtime.h"

enum { LAYOUT_BYTES = 64 };

/* "redistribute f32[8, 4] S(0) -> R" */
static void describe(const dt_tensor *x, const dt_layout *to, dti_comm_note *note)
{
    char from_text[LAYOUT_BYTES], to_text[LAYOUT_BYTES] = "";
    dti_writer w = { note->text, sizeof note->text, 0 };

    dti_put(&w, "%s %s[", to != NULL ? "redistribute" : "distribute",
            dt_dtype_name(x->local.dtype));
    for (int a = 0; a < x->n_axes; a++)
        dti_put(&w, "%s%lld", a > 0 ? ", " : "", (long long)x->shape[a]);
    (void)dt_layout_print(x->layout, from_text, sizeof from_text);
    if (to != NULL) (void)dt_layout_print(to, to_text, sizeof to_text);
    dti_put(&w, "] %s%s%s", from_text, to != NULL ? " -> " : "", to_text);
    if (x->device->claim.name != NULL) dti_put(&w, " of %s", x->device->claim.name);
    note->hash = dti_hash_bytes(1, note->text, strlen(note->text));
    note->hash = dti_hash_bytes(note->hash, &x->layout->hash, sizeof x->layout->hash);
    if (to != NULL) note->hash = dti_hash_bytes(note->hash, &to->hash, sizeof to->hash);
}

void dti_agree_also(const dt_tensor *x, const dt_layout *to, dti_comm_note *note)
{
    dti_comm_note one;

    describe(x, to, &one);
    note->hash = dti_hash_bytes(note->hash, &one.hash, sizeof one.hash);
}

const dti_comm_note *dti_agree_about(const dt_tensor *x, const dt_layout *to, const dti_comm *comm,
                                     dti_comm_note *room)
{
    if (!comm->agree) return NULL;
    describe(x, to, room);
    return room;
}
