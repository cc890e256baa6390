/* SPDX-License-Identifier: Apache-2.0
 *
 * The border between the library and an MPI implementation.
 *
 * The library knows no MPI. mpi_module.c is compiled once against each implementation that the
 * build finds and opened with dlopen when a run has several processes; this table is all that
 * crosses over. It moves bytes between processes without blocking; what a collective is, how it
 * waits and how it fails stands in mpi*.c.
 *
 * Functions that can fail return 0, or -1 with the reason in the text that why() gives. A queue
 * belongs to one thread; queue_destroy is called by the thread that called open(). */
#ifndef DTI_MPI_API_H
#define DTI_MPI_API_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { DTI_MPI_API_VERSION = 6, DTI_MPI_TEXT_BYTES = 512, DTI_MPI_ANY_PROCESS = -1 };

/* Communicators of all processes for sums by MPI. */
enum { DTI_MPI_SUM_LANES = 8 };

/* Processes join in rounds in each of which they hear from so many less one. */
enum { DTI_MPI_RADIX = 8 };

#define DTI_MPI_MODULE_SYMBOL "dti_mpi_module_table"

/* What MPI says about this job. */
typedef struct dti_mpi_job {
    int process;
    int n_processes;
    int tag_max;
    bool threads; /* several threads may call at once (MPI_THREAD_MULTIPLE) */
} dti_mpi_job;

/* One message to or from a process. The bytes belong to MPI until poll() has returned its cookie;
 * they lie in memory of the queue. */
typedef struct dti_mpi_message {
    void *data;
    int bytes; /* of a receive: the most that may come */
    int process;
    int tag;
    bool matched; /* of a send: done no sooner than its receive was posted */
    void *cookie;
} dti_mpi_message;

typedef enum dti_mpi_number { DTI_MPI_F32, DTI_MPI_F64, DTI_MPI_I32, DTI_MPI_I64 } dti_mpi_number;

/* One sum over all processes, in the order that MPI likes. All of them start the sums of a lane in
 * the same order. Memory is as in a message. */
typedef struct dti_mpi_sum {
    const void *terms;
    void *sums;
    const int *counts; /* [n_processes] sums that each process gets; NULL: all get all */
    int n;             /* terms */
    dti_mpi_number number;
    int lane;
    void *cookie;
} dti_mpi_sum;

typedef struct dti_mpi_done {
    void *cookie;
    int bytes; /* of a receive: how many came */
} dti_mpi_done;

/* Outstanding messages of one thread, and the memory that MPI reads and writes for them. */
typedef struct dti_mpi_queue dti_mpi_queue;

typedef enum dti_mpi_state { DTI_MPI_IDLE, DTI_MPI_RUNNING, DTI_MPI_FAILED } dti_mpi_state;

typedef struct dti_mpi_module {
    int version;
    const char *name; /* "openmpi", "mpich" */

    /* The library's own words about its version; needs no open(). */
    void (*describe)(char text[DTI_MPI_TEXT_BYTES]);

    /* Before open(): this process is there, and whoever waits for it hears when it ends; and why it
     * does not come, if it does not. Where MPI has started a job, its launcher ends what cannot
     * begin: nothing, but where it listens at the descriptor `pmi` and has to be told, by the exit
     * of this process. -1: it does not. */
    void (*arrive)(void);
    void (*stay_away)(int pmi, const char *why);

    /* Initialises MPI, once per process, unless somebody did so before. Blocks until all processes
     * of the job have called it, without MPI for `within_ms` at most. */
    int (*open)(int64_t within_ms, dti_mpi_job *out, char why[DTI_MPI_TEXT_BYTES]);

    /* A run begins, ends well, or fails. Refused (-1) if one is under way. Whoever initialised MPI
     * finalizes it: this module when the process exits, and only if no run is under way or was the
     * last to fail, since MPI_Finalize waits for processes that may not exist any more. */
    int (*enter)(uint64_t *session);
    void (*leave)(bool failed);

    /* While processes join: whether one that was there has gone, with the reason; and telling the
     * others why this one cannot join, after which it is gone itself. Where MPI has started a job
     * its launcher ends what cannot begin: never, and nothing. */
    bool (*lost)(char why[DTI_MPI_TEXT_BYTES]);
    void (*give_up)(const char *why);

    dti_mpi_queue *(*queue_create)(int n_messages);
    int (*queue_reserve)(dti_mpi_queue *q, int n_more);
    void *(*queue_memory)(dti_mpi_queue *q, size_t bytes); /* zeroed; NULL without memory */

    /* With messages outstanding (after a failure) their memory stays for good: MPI may still write
     * to it. */
    void (*queue_destroy)(dti_mpi_queue *q);

    int (*send)(dti_mpi_queue *q, const dti_mpi_message *m);
    int (*recv)(dti_mpi_queue *q, const dti_mpi_message *m);

    /* The messages that are done: how many, or -1. *done holds until the next call. */
    int (*poll)(dti_mpi_queue *q, const dti_mpi_done **done);

    /* Starts making the lanes of this run: each is done as a message without a cookie is. leave()
     * ends them. Refused where there is no MPI. */
    int (*sums_open)(dti_mpi_queue *q);
    int (*sum)(dti_mpi_queue *q, const dti_mpi_sum *s);

    const char *(*why)(const dti_mpi_queue *q);
} dti_mpi_module;

#endif
