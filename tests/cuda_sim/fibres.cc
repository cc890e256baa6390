/* SPDX-License-Identifier: Apache-2.0
 *
 * The threads of a block, as fibres on one thread of the operating system. A fibre runs until it
 * waits for others or ends. Warp by warp each fibre gets its turn; when nobody in a warp can go on,
 * those that have met go on together; when nobody in the block can, the barrier opens. If then
 * still nobody can, the kernel would hang, and the launch fails instead with the place of each. */
#include "fibres.h"

#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

namespace dti_sim
{

__thread place *current;

namespace
{

enum { LANES = 32, STACK_BYTES = 256 * 1024, PAGE = 4096 };

enum state { FRESH, READY, MEETING, AT_BARRIER, ENDED };

struct fibre : place {
    state is = FRESH;
    context at = {};
    char *stack = nullptr;
    /* what it waits for */
    const char *what = "";
    unsigned mask = 0;
    void *mine = nullptr;
    void (*then)(void *const of[LANES], unsigned met) = nullptr;
    async_copies copies;
};

/* Stacks and shared memory of this thread, kept for the next launch. */
struct kept {
    std::vector<char *> stacks;
    std::vector<fibre> fibres;
    ~kept()
    {
        for (char *s : stacks) (void)munmap(s, STACK_BYTES + PAGE);
    }
};
thread_local kept store;

struct block_run {
    const launch_order *order;
    unsigned n;
    fibre *fibres;
    context scheduler;
    std::string error;
    int barrier_sum, barrier_result;
    unsigned n_spins;
};
thread_local block_run *running;

fibre *self()
{
    return static_cast<fibre *>(current);
}

char *take_stack()
{
    if (!store.stacks.empty()) {
        char *s = store.stacks.back();
        store.stacks.pop_back();
        return s;
    }
    void *s = mmap(nullptr, STACK_BYTES + PAGE, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (s == MAP_FAILED) {
        perror("simulated device: no memory for a stack");
        abort();
    }
    (void)mprotect(s, PAGE, PROT_NONE);
    return static_cast<char *>(s);
}

void give_stack(fibre *f)
{
    store.stacks.push_back(f->stack);
    f->stack = nullptr;
}

/* Back to the scheduler, which comes back here or never. */
void pause(state is)
{
    fibre *f = self();

    f->is = is;
    switch_context(&f->at, &running->scheduler, is == ENDED);
}

void fibre_main()
{
    arrived(&running->scheduler);
    running->order->body();
    pause(ENDED);
}

/* Runs one fibre until it waits or ends. */
void resume(fibre *f)
{
    current = f;
    if (f->is == FRESH) {
        f->stack = take_stack();
        prepare_context(&f->at, f->stack + PAGE, STACK_BYTES, fibre_main);
    }
    f->is = READY;
    switch_context(&running->scheduler, &f->at, false);
    current = nullptr;
    if (f->is == ENDED && running->error.empty()) give_stack(f);
}

/* Lets every fibre of the warp run that can; true if one did. */
bool run_warp(fibre *warp, unsigned n)
{
    bool ran = false;

    for (unsigned k = 0; k < n && running->error.empty(); k++) {
        fibre *f = &warp[chosen().down ? n - 1 - k : k];
        if (f->is != FRESH && f->is != READY) continue;
        resume(f);
        ran = true;
    }
    return ran;
}

/* Lanes that wait for each other and are all there go on. */
bool let_meet(fibre *warp, unsigned n)
{
    bool met_any = false;

    for (unsigned lane = 0; lane < n && running->error.empty(); lane++) {
        const fibre *leader = &warp[lane];
        void *of[LANES] = {};
        unsigned met = 0, missing = 0;

        if (leader->is != MEETING) continue;
        for (unsigned l = 0; l < n; l++) {
            const fibre *f = &warp[l];
            if (!(leader->mask >> l & 1u) || f->is == ENDED) continue;
            if (f->is == MEETING && f->mask == leader->mask && !strcmp(f->what, leader->what)) {
                met |= 1u << l;
                of[l] = f->mine;
            } else {
                missing |= 1u << l;
            }
        }
        if (missing) continue;
        leader->then(of, met);
        for (unsigned l = 0; l < n; l++)
            if (met >> l & 1u) warp[l].is = READY;
        met_any = true;
    }
    return met_any;
}

/* Where each state of the block's threads was first seen. */
std::string where_they_wait()
{
    std::string text;
    const char *seen[4] = {};
    unsigned n_seen = 0;

    for (unsigned t = 0; t < running->n && n_seen < 4; t++) {
        const fibre *f = &running->fibres[t];
        const char *what = f->is == ENDED ? "has ended" : f->what;
        bool is_new = true;
        char line[160];

        for (unsigned s = 0; s < n_seen; s++) is_new = is_new && strcmp(seen[s], what) != 0;
        if (!is_new) continue;
        seen[n_seen++] = what;
        (void)snprintf(line, sizeof line, "%sthread %u %s%s", text.empty() ? "" : ", ", t,
                       f->is == ENDED ? "" : "waits in ", what);
        text += line;
        if (f->is != MEETING) continue;
        (void)snprintf(line, sizeof line, " (lanes %08x)", f->mask);
        text += line;
    }
    return text;
}

void open_barrier()
{
    unsigned n_there = 0;

    for (unsigned t = 0; t < running->n; t++) n_there += running->fibres[t].is == AT_BARRIER;
    if (n_there < running->n) {
        running->error = "its threads would wait for ever: " + where_they_wait();
        return;
    }
    for (unsigned t = 0; t < running->n; t++) running->fibres[t].is = READY;
    running->barrier_result = running->barrier_sum;
    running->barrier_sum = 0;
}

bool all_ended()
{
    for (unsigned t = 0; t < running->n; t++)
        if (running->fibres[t].is != ENDED) return false;
    return true;
}

void run_block()
{
    const unsigned n = running->n, n_warps = (n + LANES - 1) / LANES;

    do {
        bool moved = false;
        for (unsigned w = 0; w < n_warps && running->error.empty(); w++) {
            const unsigned at = (chosen().down ? n_warps - 1 - w : w) * LANES;
            const unsigned lanes = n - at < 32 ? n - at : 32;
            do moved |= run_warp(&running->fibres[at], lanes);
            while (running->error.empty() && let_meet(&running->fibres[at], lanes));
        }
        if (!moved && running->error.empty() && !all_ended()) open_barrier();
    } while (running->error.empty() && !all_ended());
}

void place_fibres(const launch_order &order, uint3 block, unsigned char *shared)
{
    unsigned t = 0;

    for (unsigned z = 0; z < order.extent.z; z++)
        for (unsigned y = 0; y < order.extent.y; y++)
            for (unsigned x = 0; x < order.extent.x; x++, t++) {
                fibre *f = &running->fibres[t];
                f->is = FRESH;
                f->what = "its first line";
                f->thread_index = uint3{ x, y, z };
                f->block_index = block;
                f->block_extent = order.extent;
                f->grid_extent = order.grid;
                f->shared = shared;
                f->lane = t % LANES;
                f->copies.clear();
            }
}

} // namespace

void fault(const char *format, ...)
{
    const fibre *f = self();
    const uint3 b = f->block_index, t = f->thread_index;
    char text[256], where[160];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    (void)snprintf(where, sizeof where, " (block %u,%u,%u, thread %u,%u,%u)", b.x, b.y, b.z, t.x,
                   t.y, t.z);
    running->error = text;
    running->error += where;
    pause(ENDED);
    abort(); /* nobody comes back to a fibre that has ended */
}

void meet(const char *what, unsigned mask, void *mine, void (*fn)(void *const of[32], unsigned met))
{
    fibre *f = self();

    if (!(mask >> f->lane & 1u)) fault("%s: the mask %08x lacks the calling lane", what, mask);
    f->what = what;
    f->mask = mask;
    f->mine = mine;
    f->then = fn;
    pause(MEETING);
}

int sync_block_sum(int value)
{
    self()->what = "__syncthreads";
    running->barrier_sum += value;
    pause(AT_BARRIER);
    return running->barrier_result;
}

void sync_block(void)
{
    (void)sync_block_sum(0);
}

void spin_step()
{
    enum { STEPS_PER_LOOK = 64, PAUSE_US = 50 };

    if (!running->order->spins)
        fault("it asks for what another kernel writes, but was not started by "
              "DTI_LAUNCH_SPINNING");
    if (++running->n_spins % STEPS_PER_LOOK != 0) {
        (void)sched_yield();
        return;
    }
    hurry();
    (void)usleep(PAUSE_US);
}

async_copies &copies_of_thread()
{
    return self()->copies;
}

bool run_grid(const launch_order &order)
{
    const uint64_t n_blocks = (uint64_t)order.grid.x * order.grid.y * order.grid.z;
    shared_memory shared(order.shared);
    block_run run = {};
    std::vector<fibre> fibres;

    run.order = &order;
    run.n = order.extent.x * order.extent.y * order.extent.z;
    fibres.swap(store.fibres);
    if (fibres.size() < run.n) fibres.resize(run.n);
    run.fibres = fibres.data();
    running = &run;
    for (uint64_t k = 0; k < n_blocks && run.error.empty(); k++) {
        const uint64_t b = chosen().down ? n_blocks - 1 - k : k;
        const uint3 at = { (unsigned)(b % order.grid.x),
                           (unsigned)(b / order.grid.x % order.grid.y),
                           (unsigned)(b / order.grid.x / order.grid.y) };
        shared.spoil();
        place_fibres(order, at, shared.data());
        run_block();
    }
    for (unsigned t = 0; t < run.n; t++)
        if (fibres[t].stack != nullptr) {
            abandon_context(&fibres[t].at);
            give_stack(&fibres[t]);
        }
    running = nullptr;
    store.fibres.swap(fibres);
    if (run.error.empty()) return true;
    fail_for_good(std::string("kernel ") + order.name + ": " + run.error);
    return false;
}

} // namespace dti_sim
