/* SPDX-License-Identifier: Apache-2.0
 *
 * Plans of a library, kept by what they depend on. A plan costs the library's search; a call that
 * comes again finds it. Nothing here knows a library or a device. A table belongs to one rank, so
 * it has no lock.
 *
 * A key is a struct of the table's choice, compared byte by byte: zero it before filling it in. */
#ifndef DTI_PLAN_TABLE_H
#define DTI_PLAN_TABLE_H

#include <stddef.h>

typedef struct dti_plan_table dti_plan_table;

/* A table for `capacity` >= 1 plans; NULL without memory. `drop` frees a plan. */
dti_plan_table *dti_plan_table_create(int capacity, size_t key_bytes,
                                      void (*drop)(void *arg, void *plan), void *arg);
void dti_plan_table_destroy(dti_plan_table *table); /* drops all plans; accepts NULL */

/* The plan of `key`, which becomes the one used last; NULL: there is none. */
void *dti_plan_table_find(dti_plan_table *table, const void *key);

/* Keeps `plan` under a key that the table has not. A full table drops the plan that was not used
 * for longest, first. A plan found before may be gone after this. */
void dti_plan_table_put(dti_plan_table *table, const void *key, void *plan);

int dti_plan_table_count(const dti_plan_table *table);

#endif
