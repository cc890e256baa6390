/* SPDX-License-Identifier: Apache-2.0
 *
 * Whether the ranks of a run were asked to do the same. */
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/numbers.h"
#include "base/text.h"
#include "mesh/runtime_internal.h"

dt_status dti_gather_bytes(dt_runtime *rt, const void *mine, size_t bytes, void **all)
{
    dti_comm *world = dti_runtime_world(rt);
    int64_t *counts = NULL;
    dt_status st = DT_OK;

    DT_TRY_TO(done, st, dti_alloc_array((size_t)world->size, bytes, all));
    DT_TRY_TO(done, st, dti_alloc_array((size_t)world->size, sizeof *counts, (void **)&counts));
    for (int r = 0; r < world->size; r++) counts[r] = (int64_t)bytes;
    DT_TRY_TO(done, st, dti_all_gather(world, mine, *all, counts, NULL, DT_U8));
done:
    dti_free(counts);
    return st;
}

/* All that a rank was asked, in one number. */
typedef struct sum {
    uint64_t hash;
    int64_t n;
} sum;

static uint64_t hash_text(uint64_t h, const char *text)
{
    return text != NULL ? dti_hash_bytes(h, text, strlen(text)) : dti_hash_word(h, UINT64_MAX);
}

static uint64_t hash_of(const dt_asked *asked)
{
    return hash_text(hash_text(7, asked->what), asked->value);
}

/* The name of a thing asked, and the thing in words: "--prompt \"Romeo\"", "--json"; of none both
 * are empty. */
typedef struct shown {
    char what[64];
    char text[2 * DTI_SHOWN_BYTES];
} shown;

static void show(const dt_asked *asked, shown *out)
{
    char value[DTI_SHOWN_BYTES];

    *out = (shown){ 0 };
    if (asked == NULL) return;
    (void)snprintf(out->what, sizeof out->what, "%.60s", asked->what);
    if (asked->value == NULL)
        (void)snprintf(out->text, sizeof out->text, "%.60s", asked->what);
    else
        (void)snprintf(out->text, sizeof out->text, "%.60s \"%s\"", asked->what,
                       dti_printable(asked->value, value, sizeof value));
}

/* Whether a rank was asked for what `of` names, in a list that begins where lists differ. */
static uint64_t has(const dt_asked *asked, int n, const shown *of)
{
    for (int i = 0; i < n; i++)
        if (of->what[0] != '\0' && strncmp(asked[i].what, of->what, 60) == 0) return 1;
    return 0;
}

/* Which of the two has what the other lacks comes first, so that "none" says of what. */
static dt_status tell(const shown words[2], const int ranks[2], bool lacks)
{
    DT_FAIL(DT_ERR_ARG,
            "rank %d was asked for %s, rank %d for %s; all processes of a job are started with the "
            "same arguments",
            ranks[0], words[0].text, ranks[1], lacks ? "none" : words[1].text);
}

/* The first thing that ranks 0 and `other` were asked differently, of at most `most`. Called by all
 * ranks. */
static dt_status name_first(dt_runtime *rt, const dt_asked *asked, int n, int64_t most, int other)
{
    uint64_t *mine = NULL, *all = NULL, *known = NULL, here;
    shown *words = NULL, word;
    dt_status st = DT_OK;
    int64_t i = 0;

    DT_TRY_TO(done, st, dti_alloc_array((size_t)most, sizeof *mine, (void **)&mine));
    for (int k = 0; k < n; k++) mine[k] = hash_of(&asked[k]);
    DT_TRY_TO(done, st, dti_gather_bytes(rt, mine, (size_t)most * sizeof *mine, (void **)&all));
    while (i + 1 < most && all[i] == all[other * most + i]) i++;
    show(i < n ? &asked[i] : NULL, &word);
    DT_TRY_TO(done, st, dti_gather_bytes(rt, &word, sizeof word, (void **)&words));
    here = has(i < n ? asked + i : NULL, i < n ? n - (int)i : 0, &words[0]);
    DT_TRY_TO(done, st, dti_gather_bytes(rt, &here, sizeof here, (void **)&known));
    if (strcmp(words[0].what, words[other].what) == 0 || (known[0] && !known[other]))
        st = tell((shown[]){ words[0], words[other] }, (int[]){ 0, other }, !known[other]);
    else
        st = tell((shown[]){ words[other], words[0] }, (int[]){ other, 0 }, true);
done:
    dti_free(known);
    dti_free(mine);
    dti_free(all);
    dti_free(words);
    return st;
}

dt_status dt_agree(dt_runtime *rt, const dt_asked *asked, int n)
{
    sum mine = { .hash = 3, .n = n }, *all = NULL;
    dt_status st = DT_OK;
    int64_t most = 0;
    int other = 0;

    DT_CHECK(rt != NULL, DT_ERR_ARG, "rt is NULL");
    DT_CHECK(n >= 0 && (asked != NULL || n == 0), DT_ERR_ARG, "%d things asked, in %s", n,
             asked != NULL ? "a list" : "no list");
    for (int i = 0; i < n; i++)
        DT_CHECK(asked[i].what != NULL, DT_ERR_ARG, "asked[%d].what is NULL", i);
    for (int i = 0; i < n; i++) mine.hash = dti_hash_word(mine.hash, hash_of(&asked[i]));
    DT_TRY_TO(done, st, dti_gather_bytes(rt, &mine, sizeof mine, (void **)&all));
    for (int r = 0; r < dt_runtime_size(rt); r++) most = dti_max(most, all[r].n);
    for (int r = dt_runtime_size(rt) - 1; r > 0; r--)
        if (all[r].hash != all[0].hash || all[r].n != all[0].n) other = r;
    if (other > 0) DT_TRY_TO(done, st, name_first(rt, asked, n, most, other));
done:
    dti_free(all);
    return dti_runtime_alone(rt, st);
}
