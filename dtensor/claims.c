/* SPDX-License-Identifier: Apache-2.0 */
#include "dtensor/claims.h"

#include <stdio.h>
#include <string.h>

#include "base/numbers.h"
#include "mesh/runtime.h"

enum { LAYOUT_BYTES = 64 };

/* "redistribute f32[8, 4] S(0) -> R" */
static void describe(const dt_tensor *x, const dt_layout *to, dti_comm_note *note)
{
    char from_text[LAYOUT_BYTES], to_text[LAYOUT_BYTES] = "";
    size_t used = 0;
    int n;

    n = snprintf(note->text, sizeof note->text, "%s %s[",
                 to != NULL ? "redistribute" : "distribute", dt_dtype_name(x->local.dtype));
    for (int a = 0; n >= 0 && used + (size_t)n < sizeof note->text; a++) {
        used += (size_t)n;
        if (a == x->n_axes) break;
        n = snprintf(note->text + used, sizeof note->text - used, "%s%lld", a ? ", " : "",
                     (long long)x->shape[a]);
    }
    (void)dt_layout_print(x->layout, from_text, sizeof from_text);
    if (to != NULL) (void)dt_layout_print(to, to_text, sizeof to_text);
    (void)snprintf(note->text + used, sizeof note->text - used, "] %s%s%s", from_text,
                   to != NULL ? " -> " : "", to_text);
    note->hash = dti_hash_bytes(1, note->text, strlen(note->text));
    note->hash = dti_hash_bytes(note->hash, &x->layout->hash, sizeof x->layout->hash);
    if (to != NULL) note->hash = dti_hash_bytes(note->hash, &to->hash, sizeof to->hash);
}

const dti_comm_note *dti_agree_about(const dt_tensor *x, const dt_layout *to, const dti_comm *comm,
                                     dti_comm_note *room)
{
    if (!comm->agree) return NULL;
    describe(x, to, room);
    return room;
}
