/* SPDX-License-Identifier: Apache-2.0 */
#include "dtensor/device/lease.h"

#include <pthread.h>
#include <stdatomic.h>

#include "base/memory.h"

struct dti_lease {
    _Atomic int refs; /* holders, the storage among them */
    void *data;
    size_t bytes;
    bool lent;
    dti_lender lender;
    dti_lease_post *post;
    dti_lease *next; /* in the post */
};

/* Its refs: the memory, and leases. */
struct dti_lease_post {
    pthread_mutex_t lock; /* what follows */
    int refs;
    bool closed;
    dti_lease *returned;
    _Atomic bool any;
};

dt_status dti_lease_post_create(dti_lease_post **out)
{
    dti_lease_post *p;

    *out = NULL;
    DT_TRY(dti_new(sizeof *p, &p));
    (void)pthread_mutex_init(&p->lock, NULL);
    p->refs = 1;
    *out = p;
    return DT_OK;
}

static void count_post(dti_lease_post *p, int change)
{
    int left;

    (void)pthread_mutex_lock(&p->lock);
    left = p->refs += change;
    (void)pthread_mutex_unlock(&p->lock);
    if (left > 0) return;
    (void)pthread_mutex_destroy(&p->lock);
    dti_free(p);
}

/* The end of a lease whose bytes are nobody's any more. */
static void free_lease(dti_lease *l)
{
    if (l->lent && l->lender.release != NULL) l->lender.release(l->lender.arg, l->data);
    if (!l->lent) dti_big_free(l->data, l->bytes);
    count_post(l->post, -1);
    dti_free(l);
}

static void free_all(dti_lease *l)
{
    for (dti_lease *next; l != NULL; l = next) {
        next = l->next;
        free_lease(l);
    }
}

void dti_lease_collect(dti_lease_post *p)
{
    dti_lease *all;

    if (!atomic_load_explicit(&p->any, memory_order_relaxed)) return;
    (void)pthread_mutex_lock(&p->lock);
    all = p->returned;
    p->returned = NULL;
    atomic_store(&p->any, false);
    (void)pthread_mutex_unlock(&p->lock);
    free_all(all);
}

void dti_lease_post_close(dti_lease_post **post)
{
    dti_lease_post *p = *post;
    dti_lease *all;

    if (p == NULL) return;
    *post = NULL;
    (void)pthread_mutex_lock(&p->lock);
    p->closed = true;
    all = p->returned;
    p->returned = NULL;
    (void)pthread_mutex_unlock(&p->lock);
    free_all(all);
    count_post(p, -1);
}

dt_status dti_storage_lease(dti_storage *s, dti_lease **out)
{
    dti_lease *l = s->lease;

    *out = NULL;
    if (l == NULL) {
        DT_TRY(dti_new(sizeof *l, &l));
        atomic_init(&l->refs, 1);
        l->data = s->data;
        l->bytes = s->bytes;
        l->lent = s->lent;
        l->lender = s->lender;
        l->post = dti_memory_post(s->memory);
        count_post(l->post, 1);
        s->lease = l;
    }
    (void)atomic_fetch_add(&l->refs, 1);
    *out = l;
    return DT_OK;
}

bool dti_lease_end(dti_lease *l)
{
    if (atomic_fetch_sub(&l->refs, 1) != 1) return false;
    count_post(l->post, -1);
    dti_free(l);
    return true;
}

/* The storage is gone where this is the last holder. */
void dti_lease_return(dti_lease *l)
{
    dti_lease_post *p = l->post;
    bool waits = false;

    if (atomic_fetch_sub(&l->refs, 1) != 1) return;
    (void)pthread_mutex_lock(&p->lock);
    if (l->lent && !p->closed) {
        l->next = p->returned;
        p->returned = l;
        atomic_store(&p->any, true);
        waits = true;
    }
    (void)pthread_mutex_unlock(&p->lock);
    if (!waits) free_lease(l);
}
