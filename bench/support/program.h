/* SPDX-License-Identifier: Apache-2.0
 *
 * What the benches have in common: their command line, samples of which medians are taken, and
 * ranks that wait asleep while the machine's limit is measured. */
#ifndef DT_BENCH_PROGRAM_H
#define DT_BENCH_PROGRAM_H

#include <dtensor/mesh.h>

#include "bench/support/machine.h"

/* --- command line ----------------------------------------------------------------------------- */

/* Options of every bench. */
typedef struct bench_common {
    const char *mesh; /* NULL: the program's own list */
    const char *isa;
    int64_t threads; /* of all ranks together, at least 1 */
    bool quick;      /* tiny sizes: figures mean nothing, but everything runs */
    bool json;
} bench_common;

typedef enum bench_kind { BENCH_FLAG, BENCH_COUNT, BENCH_TEXT } bench_kind;

/* One more option. `to` is a bool, an int64_t >= 1 or a const char *, by kind. */
typedef struct bench_option {
    const char *name;  /* "--tokens" */
    const char *value; /* "N"; NULL for a flag */
    const char *help;
    bench_kind kind;
    void *to;
} bench_option;

/* True: go on. False: *exit_code is 0 after --help and 2 after an argument that is wrong. */
bool bench_parse(int argc, char **argv, const char *summary, const bench_option *own, size_t n_own,
                 bench_common *common, int *exit_code);

int bench_cores(void); /* that this process may use */

/* --- ranks ------------------------------------------------------------------------------------ */

/* Ranks and threads of one row of figures. */
typedef struct bench_case {
    const char *mesh;
    int n_ranks;
    int threads; /* per rank */
} bench_case;

/* Divides the common threads among the ranks of `mesh`. */
dt_status bench_case_of(const bench_common *common, const char *mesh, bench_case *out) DT_MUST_USE;

/* Threads that can run at once: never more than there are cores. */
int bench_case_width(const bench_case *c);

/* dt_run() for a case. */
dt_status bench_run(const bench_common *common, const bench_case *c, dt_rank_main rank_main,
                    void *arg) DT_MUST_USE;

/* bench_machine_open() that leaves the calling thread free to run on all cores, so that dt_run()
 * finds them. */
dt_status bench_limits_open(int n_threads, size_t bytes, bench_machine *out) DT_MUST_USE;

/* Rank 0 measures while the others sleep; *out is set on rank 0 alone. Collective. */
dt_status bench_alone(dt_runtime *rt, double (*measure)(const bench_machine *m),
                      const bench_machine *m, double *out) DT_MUST_USE;

dt_status bench_barrier(dt_runtime *rt) DT_MUST_USE;

/* --- rounds ----------------------------------------------------------------------------------- */

/* Rounds of a measurement. One during which other programs (or other virtual machines) took more
 * than a twentieth of the processor time does not count and is made up for, up to four times as
 * many rounds as were asked for. If none was quiet, all count. */
typedef struct bench_rounds {
    int64_t wanted;
    int64_t tried;
    int64_t quiet;
    bool more;               /* another round is needed; ranks read it after a barrier */
    double busy, own, total; /* clocks at the beginning of the round, in seconds */
} bench_rounds;

void bench_rounds_open(bench_rounds *r, int64_t wanted);

/* Around each round, on one thread. The second returns what to do with the round's samples; *others
 * is the share of the machine that others took. */
typedef enum bench_verdict { BENCH_COUNT_IT, BENCH_DROP_IT, BENCH_DROP_EARLIER } bench_verdict;
void bench_round_begin(bench_rounds *r);
bench_verdict bench_round_end(bench_rounds *r, double *others);

/* --- samples ---------------------------------------------------------------------------------- */

enum { BENCH_MAX_SAMPLES = 256 };

typedef struct bench_samples {
    int n;
    double value[BENCH_MAX_SAMPLES];
} bench_samples;

/* Calls pass(arg) until `ns` are over, once at least and with --quick. *seconds: of one call. */
dt_status bench_repeat(const bench_common *o, int64_t ns, dt_status (*pass)(void *arg), void *arg,
                       double *seconds) DT_MUST_USE;

void bench_add(bench_samples *s, double value);          /* drops what exceeds the room */
double bench_quantile(const bench_samples *s, double q); /* q from 0 to 1; NAN if there are none */
double bench_median(const bench_samples *s);

#endif
