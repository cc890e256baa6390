/* SPDX-License-Identifier: Apache-2.0
 *
 * What tests of the service share: a service, requests that differ, and what a model makes of them
 * alone. */
#ifndef DT_TEST_SERVED_H
#define DT_TEST_SERVED_H

#include <dtensor/service.h>

#include "tests/support/dt_test.h"

enum { LONGEST = 24, MOST_PROMPTS = 3, MOST_TEXTS = 12 };

/* A request, and what came of it. */
typedef struct served_request {
    int32_t ids[MOST_PROMPTS][LONGEST];
    dt_ids prompts[MOST_PROMPTS];
    int64_t n_prompts;
    dt_generate_options o;
    dt_generated *alone; /* on ranks that nobody else uses */
} served_request;

/* Request i of many: greedy, sampled, beams, several prompts and texts by turns. */
void served_ask(served_request *a, int i);

/* Fills in `alone` of n of them. The ranks' number and the rest are those of the service. */
void served_alone(const char *folder, int n_ranks, served_request *a, int n);
void served_free(served_request *a, int n);

/* NULL, or what differs. */
const char *served_differs(const dt_generated *a, const dt_generated *b);

/* Where DTENSOR_TEST_PROCESSES is set each rank of a service becomes a process, which is this
 * program once more; `run` is what o->run points to. False: ranks are threads. */
bool served_place(dt_service_options *o, const dt_run_options *run);

/* The same, wherever it is not set. */
void served_as_processes(dt_service_options *o, const dt_run_options *run, int processes);

/* n ranks of one thread, not bound; collectives wait for timeout_ms. */
dt_service *served_start(int n_ranks, int64_t timeout_ms,
                         dt_status (*setup)(dt_runtime *rt, void *arg));
dt_served *served_load(dt_service *service, const char *fixture);

/* Bytes of the heap in use, mapped blocks included; threads of the process. */
int64_t served_heap_bytes(void);
int served_threads(void);

#endif
