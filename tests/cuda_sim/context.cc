/* SPDX-License-Identifier: Apache-2.0
 *
 * Switching stacks: a dozen instructions where we know the machine, ucontext elsewhere. */
#include "fibres.h"

#ifdef DTI_SIM_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace dti_sim
{

#ifdef __x86_64__

extern "C" void dti_sim_swap(void **from, void *to);

/* Saves what a function must keep, changes the stack, and returns on the other one. */
asm(R"(
    .text
    .type dti_sim_swap, @function
dti_sim_swap:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .size dti_sim_swap, .-dti_sim_swap
)");

static void swap_registers(context *from, context *to)
{
    dti_sim_swap(&from->sp, to->sp);
}

static void begin_at(context *c, char *stack, size_t bytes, void (*main)())
{
    void **top = reinterpret_cast<void **>(stack + bytes);

    *--top = nullptr; /* main() has no caller; with it the stack is aligned as after a call */
    *--top = reinterpret_cast<void *>(main);
    for (int i = 0; i < 6; i++) *--top = nullptr;
    c->sp = top;
}

#else

static void swap_registers(context *from, context *to)
{
    (void)swapcontext(&from->registers, &to->registers);
}

static void begin_at(context *c, char *stack, size_t bytes, void (*main)())
{
    (void)getcontext(&c->registers);
    c->registers.uc_stack.ss_sp = stack;
    c->registers.uc_stack.ss_size = bytes;
    c->registers.uc_link = nullptr;
    makecontext(&c->registers, main, 0);
}

#endif

void prepare_context(context *c, char *stack, size_t bytes, void (*main)())
{
    c->fake = nullptr;
    c->bottom = stack;
    c->bytes = bytes;
    begin_at(c, stack, bytes, main);
}

void abandon_context(const context *c)
{
#ifdef DTI_SIM_ASAN
    __asan_unpoison_memory_region(c->bottom, c->bytes);
#else
    (void)c;
#endif
}

void arrived(context *from)
{
#ifdef DTI_SIM_ASAN
    __sanitizer_finish_switch_fiber(nullptr, &from->bottom, &from->bytes);
#else
    (void)from;
#endif
}

void switch_context(context *from, context *to, bool for_good)
{
#ifdef DTI_SIM_ASAN
    __sanitizer_start_switch_fiber(for_good ? nullptr : &from->fake, to->bottom, to->bytes);
#else
    (void)for_good;
#endif
    swap_registers(from, to);
#ifdef DTI_SIM_ASAN
    __sanitizer_finish_switch_fiber(from->fake, nullptr, nullptr);
#endif
}

} // namespace dti_sim
