/* SPDX-License-Identifier: Apache-2.0
 *
 * Stacks to switch between, the shared memory of a block, copies under way. */
#ifndef DTI_SIM_FIBRES_H
#define DTI_SIM_FIBRES_H

#include "sim.h"

#if defined(__SANITIZE_ADDRESS__)
#define DTI_SIM_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define DTI_SIM_ASAN 1
#endif
#endif

#ifndef __x86_64__
#include <ucontext.h>
#endif

namespace dti_sim
{

struct context {
#ifdef __x86_64__
    void *sp;
#else
    ucontext_t registers;
#endif
    void *fake; /* AddressSanitizer's, and the stack for it */
    const void *bottom;
    size_t bytes;
};

/* A fibre that will begin with main(), which calls arrived() first and never returns. */
void prepare_context(context *c, char *stack, size_t bytes, void (*main)());
void arrived(context *from);
void abandon_context(const context *c); /* its functions do not return: the stack is free */
void switch_context(context *from, context *to, bool for_good);

/* Copies from global to shared memory that a thread has begun: they arrive when it waits for them,
 * as late as the hardware may let them. */
struct async_copy {
    void *to;
    const void *from;
    int bytes, group;
};
struct async_copies {
    std::vector<async_copy> pending;
    int group = 0;
    void clear()
    {
        pending.clear();
        group = 0;
    }
};
async_copies &copies_of_thread();

/* Dynamic shared memory. It ends where a page ends that nobody may touch. */
class shared_memory
{
  public:
    explicit shared_memory(size_t bytes);
    unsigned char *data() const
    {
        return data_;
    }
    void spoil(); /* contents of no meaning: NaNs, large numbers */

  private:
    unsigned char *data_;
    size_t bytes_;
};

} // namespace dti_sim

#endif
