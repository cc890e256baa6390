/* SPDX-License-Identifier: Apache-2.0 */
#include "mesh/share.h"

#include <pthread.h>
#include <string.h>

#include "base/memory.h"
#include "mesh/runtime_internal.h"

struct dti_shares {
    pthread_mutex_t mutex; /* held while an object is made: its other users wait for it anyway */
    dti_share *first;
};

dt_status dti_shares_create(dti_shares **out)
{
    DT_TRY(dti_new(sizeof **out, out));
    if (pthread_mutex_init(&(*out)->mutex, NULL) == 0) return DT_OK;
    dti_free(*out);
    *out = NULL;
    DT_FAIL(DT_ERR_MEMORY, "no lock for what ranks share");
}

void dti_shares_free(dti_shares **shares)
{
    if (*shares == NULL) return;
    DT_ASSERT((*shares)->first == NULL);
    (void)pthread_mutex_destroy(&(*shares)->mutex);
    dti_free(*shares);
    *shares = NULL;
}

static void free_share(dti_share *s)
{
    if (s->object != NULL) s->destroy(s->object);
    dti_free(s->key);
    dti_free(s);
}

static dt_status make(dti_shares *among, const char *key, dti_share_create create, void *arg,
                      dti_slot_destroy destroy, dti_share **out)
{
    dt_status st = DT_OK;
    dti_share *s;

    DT_TRY(dti_new(sizeof *s, &s));
    s->among = among;
    s->destroy = destroy;
    s->refs = 1;
    DT_TRY_TO(fail, st, dti_strdup(key, &s->key));
    DT_TRY_TO(fail, st, create(arg, &s->object));
    *out = s;
    return DT_OK;

fail:
    free_share(s);
    return st;
}

dt_status dti_share_get(dt_runtime *rt, const char *key, dti_share_create create, void *arg,
                        dti_slot_destroy destroy, dti_share **out)
{
    dti_shares *among = rt->shares;
    dt_status st = DT_OK;
    dti_share *s;

    *out = NULL;
    if (among == NULL) return make(NULL, key, create, arg, destroy, out);
    (void)pthread_mutex_lock(&among->mutex);
    for (s = among->first; s != NULL && strcmp(s->key, key) != 0;) s = s->next;
    if (s != NULL) {
        s->refs++;
    } else {
        st = make(among, key, create, arg, destroy, &s);
        if (st == DT_OK) {
            s->next = among->first;
            among->first = s;
        }
    }
    (void)pthread_mutex_unlock(&among->mutex);
    DT_TRY(st);
    *out = s;
    return DT_OK;
}

/* True if nobody needs it any more; then it is off the list. */
static bool drop(dti_share *s)
{
    dti_shares *among = s->among;
    dti_share **at;
    bool last;

    if (among == NULL) return true;
    (void)pthread_mutex_lock(&among->mutex);
    last = --s->refs == 0;
    for (at = &among->first; last && *at != s;) at = &(*at)->next;
    if (last) *at = s->next;
    (void)pthread_mutex_unlock(&among->mutex);
    return last;
}

void dti_share_put(dti_share **share)
{
    dti_share *s = *share;

    if (s == NULL) return;
    *share = NULL;
    if (drop(s)) free_share(s);
}
