/* SPDX-License-Identifier: Apache-2.0 */
#include "training/behind.h"

#include <pthread.h>
#include <string.h>
#include <time.h>

#include "base/memory.h"
#include "mesh/runtime.h"

struct dti_behind {
    dt_runtime *rt;
    pthread_t thread;
    bool started;
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    bool closing; /* these under the lock */
    dti_behind_state state;
    dti_behind_fn fn;
    void *arg;
    dt_status status;
    dt_error error;
    atomic_bool cancelled;
};

dt_status dti_behind_create(dt_runtime *rt, dti_behind **out)
{
    pthread_condattr_t attr;

    DT_TRY(dti_new(sizeof **out, out));
    (*out)->rt = rt;
    (void)pthread_mutex_init(&(*out)->lock, NULL);
    (void)pthread_condattr_init(&attr);
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&(*out)->work, NULL);
    (void)pthread_cond_init(&(*out)->done, &attr);
    (void)pthread_condattr_destroy(&attr);
    return DT_OK;
}

static void *behind_main(void *arg)
{
    dti_behind *b = arg;

    dti_runtime_free_core(b->rt);
    dti_error_set_rank(dt_runtime_rank(b->rt));
    (void)pthread_mutex_lock(&b->lock);
    while (!b->closing) {
        dt_status st;
        if (b->state != DTI_BEHIND_BUSY) {
            (void)pthread_cond_wait(&b->work, &b->lock);
            continue;
        }
        (void)pthread_mutex_unlock(&b->lock);
        st = b->fn(b->arg, &b->cancelled);
        (void)pthread_mutex_lock(&b->lock);
        b->status = st;
        if (st != DT_OK) b->error = *dt_last_error();
        b->state = DTI_BEHIND_DONE;
        (void)pthread_cond_signal(&b->done);
    }
    (void)pthread_mutex_unlock(&b->lock);
    return NULL;
}

dt_status dti_behind_do(dti_behind *b, dti_behind_fn fn, void *arg)
{
    DT_ASSERT(dti_behind_look(b) == DTI_BEHIND_IDLE);
    if (!b->started) {
        const int error = pthread_create(&b->thread, NULL, behind_main, b);
        DT_CHECK(error == 0, DT_ERR_MEMORY, "the thread that writes for rank %d did not start (%s)",
                 dt_runtime_rank(b->rt), strerror(error));
        b->started = true;
    }
    (void)pthread_mutex_lock(&b->lock);
    b->fn = fn;
    b->arg = arg;
    b->state = DTI_BEHIND_BUSY;
    atomic_store(&b->cancelled, false);
    (void)pthread_cond_signal(&b->work);
    (void)pthread_mutex_unlock(&b->lock);
    return DT_OK;
}

dti_behind_state dti_behind_look(dti_behind *b)
{
    dti_behind_state state;

    (void)pthread_mutex_lock(&b->lock);
    state = b->state;
    (void)pthread_mutex_unlock(&b->lock);
    return state;
}

void dti_behind_wait(dti_behind *b, int64_t timeout_ns)
{
    struct timespec until;
    int error = 0;

    (void)clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += timeout_ns % 1000000000;
    until.tv_sec += timeout_ns / 1000000000 + until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    (void)pthread_mutex_lock(&b->lock);
    while (b->state == DTI_BEHIND_BUSY && error == 0)
        error = timeout_ns < 0 ? pthread_cond_wait(&b->done, &b->lock)
                               : pthread_cond_timedwait(&b->done, &b->lock, &until);
    (void)pthread_mutex_unlock(&b->lock);
}

dt_status dti_behind_take(dti_behind *b)
{
    DT_ASSERT(dti_behind_look(b) == DTI_BEHIND_DONE);
    (void)pthread_mutex_lock(&b->lock);
    b->state = DTI_BEHIND_IDLE;
    (void)pthread_mutex_unlock(&b->lock);
    if (b->status == DT_OK) return DT_OK;
    dti_error_restore(&b->error);
    return dti_error_frame(b->status, __func__, __FILE__, __LINE__);
}

void dti_behind_cancel(dti_behind *b)
{
    atomic_store(&b->cancelled, true);
    dti_behind_wait(b, -1);
    (void)pthread_mutex_lock(&b->lock);
    b->state = DTI_BEHIND_IDLE;
    (void)pthread_mutex_unlock(&b->lock);
}

void dti_behind_close(dti_behind **behind)
{
    dti_behind *b = *behind;

    if (b == NULL) return;
    *behind = NULL;
    dti_behind_cancel(b);
    (void)pthread_mutex_lock(&b->lock);
    b->closing = true;
    (void)pthread_cond_signal(&b->work);
    (void)pthread_mutex_unlock(&b->lock);
    if (b->started) (void)pthread_join(b->thread, NULL);
    (void)pthread_mutex_destroy(&b->lock);
    (void)pthread_cond_destroy(&b->work);
    (void)pthread_cond_destroy(&b->done);
    dti_free(b);
}
