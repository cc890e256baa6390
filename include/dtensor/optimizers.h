/* SPDX-License-Identifier: Apache-2.0
 *
 * Optimizers: AdamW and gradient descent over layers, on any mesh.
 *
 *   dt_optimizer_create(layers, &options, &opt);
 *   for each step:
 *       for each microbatch:
 *           dt_tape_record(t, dt_optimizer_gradients(opt));
 *           loss = ...;                                  scaled once, by what the step has in all
 *           dt_optimizer_backward(opt, t, loss, last, NULL);
 *           dt_tape_reset(t);
 *       dt_optimizer_step(opt, dt_schedule_at(&schedule, step), &report);
 *
 * Where a parameter, its gradient and its state lie are three layouts of one value. zero = 0: all
 * alike. 1: the state is cut over the mesh dims `over` on which ranks hold copies of the parameter;
 * gradients stay terms of sums to the end of the step, are reduced to where the state lies, and the
 * parameter is gathered anew. 2: gradients are reduced so after each pass. A parameter that is cut
 * itself ("fully_shard", stage 3) has gradient and state cut alike. Nothing is padded. The axis is
 * one that no other mesh dim cuts and that divides, axis 0 first; a parameter of one element
 * stays whole.
 *
 * Order of operations, all in f32, scalars computed in f64 and rounded once (PyTorch's, which does
 * so too; k is the number of the step from 1, g the gradient times the clip factor):
 *
 *   DT_ADAMW  p = p * (1 - lr wd)
 *             m = m + (1 - beta1) (g - m)           where beta1 <= 0.5: g - (g - m) beta1
 *             v = v * beta2 + ((1 - beta2) * g) * g
 *             p = p + ((-lr / (1 - beta1^k)) * m) / (sqrt(v) / sqrt(1 - beta2^k) + eps)
 *   DT_SGD    g = g + wd p                          where wd is not 0
 *             b = momentum * b + (1 - dampening) g  where momentum is not 0; step 1: b = g
 *             g = b, nesterov: g + momentum * b
 *             p = p + (-lr) * g
 *
 * A parameter that no pass of a step has reached stays as it is, and so does its state. */
#ifndef DT_OPTIMIZERS_H
#define DT_OPTIMIZERS_H

#include <dtensor/gradients.h>
#include <dtensor/layers.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dt_optimizer dt_optimizer;

typedef enum dt_optimizer_rule { DT_ADAMW, DT_SGD } dt_optimizer_rule;

/* Parameters whose full name ("model.layers.0.mlp.up_proj.weight") matches the pattern, as those of
 * dt_init_rule are: "*" is one component, "**" any number of them. The last group that matches a
 * parameter counts for it. */
typedef struct dt_parameter_group {
    const char *pattern;
    double lr_factor;    /* of the step's learning rate; 0: 1 */
    double weight_decay; /* negative: that of the options, by the rule of axes */
    bool frozen;         /* stays as it is */
} dt_parameter_group;

typedef struct dt_optimizer_options {
    size_t size;                            /* sizeof(dt_optimizer_options) */
    dt_optimizer_rule rule;                 /* default DT_ADAMW */
    double beta1, beta2, eps, weight_decay; /* 0.9, 0.95, 1e-8, 0.1. Parameters of one axis do not
                                             * decay unless a group says so */
    double momentum, dampening;             /* of DT_SGD: 0, 0 */
    bool nesterov;
    double clip; /* the most that the norm of all gradients may be; 0: any. Default 1 */
    const dt_parameter_group *groups;
    int n_groups;
    int zero;         /* 0, 1, 2; default 0 */
    const char *over; /* mesh dims to cut over, with commas; NULL: those of "dp,dp_shard" that there
                       * are */
    bool masters;     /* parameters in bf16 and f16 have an f32 copy that is stepped, and are it
                       * rounded; default */
    bool stochastic;  /* bf16 without masters is rounded at random: up as often as the value lies
                       * nearer above. By seed, name, step and global element: the same on every
                       * mesh */
    uint64_t seed;
    double loss_scale;    /* of f16: begins so, a power of 2; a step whose gradients overflow is
                           * skipped and halves it, 2000 good ones double it. 0: none. Negative, the
                           * default: 65536 if a parameter is f16, else none */
    int64_t bucket_bytes; /* gradients that travel together while backward goes on; 0: none travel
                           * before the step */
    const char *offload;  /* where the state lies. NULL: with the parameters. "host": in its memory,
                           * where those are on a GPU. Else a folder, in a file without a name that
                           * goes with the process; a checkpoint is what outlives it */
    int64_t window_bytes; /* of memory for the part of such state that is computed on, at least
                           * 48 KiB; of a file the next part is read and the last one written
                           * meanwhile */
} dt_optimizer_options;

#define DT_OPTIMIZER_OPTIONS_INIT                                                                 \
    {                                                                                             \
        sizeof(dt_optimizer_options), DT_ADAMW, 0.9, 0.95, 1e-8, 0.1, 0.0, 0.0, false, 1.0, NULL, \
            0, 0, NULL, true, false, 0, -1.0, 0, NULL, 64 << 20                                   \
    }

/**
 * An optimizer of all parameters of a list that are not frozen, by their kind or a group. A tied
 * weight is one parameter.
 *
 *   options  NULL for defaults; groups are read while the call lasts
 *
 * Collective  no communication; every rank of the mesh passes the same.
 * Ownership   *out is released with dt_optimizer_release(), before the layers. It keeps references
 *             of the parameters: values that are put in their place later are not stepped, and
 *             dt_optimizer_step() says so.
 * Errors      DT_ERR_ARG          NULL; an option that makes no sense; a group that matches no
 *                                 parameter; nothing to train; a parameter without a value, or
 *                                 that another collection of gradients watches
 *             DT_ERR_IO           no file for the state can be made in the folder, or the disk has
 *                                 no room for it
 *             DT_ERR_MEMORY
 */
DT_API DT_MUST_USE dt_status dt_optimizer_create(dt_layers *layers,
                                                 const dt_optimizer_options *options,
                                                 dt_optimizer **out);
DT_API void dt_optimizer_release(dt_optimizer **optimizer); /* accepts NULL; sets it to NULL */

/** The collection to record for. Borrowed. Not collective. Errors: none; NULL for NULL. */
DT_API dt_gradients *dt_optimizer_gradients(dt_optimizer *optimizer);

/** What losses are multiplied by on the way back: 1 unless parameters are f16. Not collective.
 * Errors: none. */
DT_API double dt_optimizer_loss_scale(const dt_optimizer *optimizer);

/**
 * dt_backward() from a loss, times the loss scale. Gradients add up over the passes of a step, in
 * their order, in f32.
 *
 *   from     the loss: one element; of the step's passes together: what is to be averaged over a
 *            step is divided by the step's count, not by the pass's. With a seed any value: the
 *            seed comes from a pass that began with the loss, so it is scaled already
 *   last     of the step's passes that read the parameters which this one reads: what waits for all
 *            of them may travel now
 *   options  as of dt_backward(); `ready` is called behind what the optimizer does. May be NULL.
 *            Gradients, and so what they send, are the second half's
 *
 * With bucket_bytes gradients set out while the pass goes on, as soon as nothing is added to them
 * any more: those that are cut (zero 2) in each pass, others in the last. dt_gradient() does not
 * have what is under way; dt_optimizer_step() waits for it. Bits, bytes and work are those without.
 * The tape counts what gradients send and need of the norm where they travel in the pass.
 *
 * Collective  as dt_backward(), and over the layers' mesh.
 * Errors      latched: those of dt_backward(); DT_ERR_ARG for NULL, or a tape that records for
 *                      another collection
 */
DT_API void dt_optimizer_backward(dt_optimizer *optimizer, dt_tape *tape, dt_tensor *from,
                                  bool last, const dt_backward_options *options);

typedef struct dt_step_report {
    double norm;        /* of all gradients, before clipping: the same bits on every mesh. NaN of a
                         * step that is skipped */
    double clip_factor; /* min(1, clip / (norm + 1e-6)) */
    bool skipped; /* gradients overflowed and the loss scale was halved: nothing was written */
    int64_t step; /* number of this one, from 1 on */
} dt_step_report;

/**
 * Steps: reduces gradients, looks whether all are finite, clips, updates, gathers what is whole,
 * and forgets the gradients.
 *
 * The norm is taken of the exact sum of all squares, each element counted by the first rank that
 * holds it: it depends on the values alone, not on mesh or layout.
 *
 *   lr      learning rate of this step, the same on every rank
 *   report  may be NULL
 *
 * Collective  over the layers' mesh.
 * Errors      DT_ERR_ARG   NULL, lr is negative or no number; no backward pass has reached any
 *                          parameter; a parameter was replaced; a gradient is not finite, on any
 *                          rank: names rank, parameter and step; ranks differ in lr, in a number of
 *                          their options or in where dt_optimizer_restore() began: names it, two
 *                          ranks and their numbers. Nothing was written then, and the gradients are
 *                          still there
 *             DT_ERR_IO    a disk failed under the state, which is lost then: every step fails so
 *                          until a checkpoint is loaded
 *             as dt_redistribute()
 *             All but DT_ERR_ARG may come between two parameters: some are stepped then, others are
 *             not, and no call completes or undoes the step. Go on from a checkpoint
 *             (dt_run_folder_load()); where there are other ranks, in a run that is begun anew
 */
DT_API DT_MUST_USE dt_status dt_optimizer_step(dt_optimizer *optimizer, double lr,
                                               dt_step_report *report);

/** Steps that were done, without those skipped. Good steps in a row since the loss scale changed.
 * Bytes of this rank's state; counters that norms are made of take 168 bytes for each parameter
 * besides. Not collective. Errors: none; 0 for NULL. */
DT_API int64_t dt_optimizer_steps(const dt_optimizer *optimizer);
DT_API int64_t dt_optimizer_good_steps(const dt_optimizer *optimizer);
DT_API int64_t dt_optimizer_state_bytes(const dt_optimizer *optimizer);

/** What the last dt_optimizer_step() has sent (dt_tape_comm(): under the reasons "gradients",
 * "norm" and "parameters") and computed (dt_tape_work()). Borrowed. Not collective. Errors: none;
 * NULL for NULL. */
DT_API const dt_tape *dt_optimizer_tape(const dt_optimizer *optimizer);

/* A tensor of the state, named after its parameter: "exp_avg.model.norm.weight", "exp_avg_sq.",
 * "momentum.", "master.". f32, with the parameter's global shape. */
typedef struct dt_optimizer_state {
    const char *name; /* lives as long as the optimizer */
    dt_tensor
        *value; /* borrowed; of state that lies elsewhere until the next call on the optimizer,
                       * and NULL if it cannot be fetched: dt_last_error() says why */
} dt_optimizer_state;

/** Tensor number i of the state, in an order that depends on layers and rule alone; false past the
 * last. What is written to them counts. Not collective. Errors: none. */
DT_API bool dt_optimizer_state_at(dt_optimizer *optimizer, int64_t i, dt_optimizer_state *out);

/**
 * Goes on from where another run was, once the tensors of the state have been written.
 *
 *   steps, loss_scale, good_steps  as its queries said
 *
 * Not collective; every rank passes the same.
 * Errors      DT_ERR_ARG  NULL, counts that are negative or beyond 2^53, a loss scale that is no
 *                         power of 2
 */
DT_API DT_MUST_USE dt_status dt_optimizer_restore(dt_optimizer *optimizer, int64_t steps,
                                                  double loss_scale, int64_t good_steps);

/* --- Learning rates --------------------------------------------------------------------------- */

typedef enum dt_schedule_kind {
    DT_SCHEDULE_CONSTANT,
    DT_SCHEDULE_LINEAR, /* down to lr * min_lr */
    DT_SCHEDULE_COSINE, /* half a turn, down to lr * min_lr */
    DT_SCHEDULE_WSD     /* as it is, then by 1 - sqrt in the last `decay` of all steps */
} dt_schedule_kind;

typedef struct dt_schedule {
    dt_schedule_kind kind;
    double lr;
    double min_lr;  /* at the end, as a share of lr */
    int64_t warmup; /* steps in which it rises in a line: step 0 has lr / warmup */
    int64_t steps;  /* of the whole run; not needed for DT_SCHEDULE_CONSTANT */
    double decay;   /* share of the steps; 0: 0.2 */
} dt_schedule;

/** The learning rate of a step, counted from 0. After the last step it is what it was to end with.
 * Not collective. Errors: none; NULL gives 0. */
DT_API double dt_schedule_at(const dt_schedule *schedule, int64_t step);

#ifdef __cplusplus
}
#endif
#endif
