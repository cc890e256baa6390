/* SPDX-License-Identifier: Apache-2.0 */
#define LOOPS dti_reduce_portable
#include "mesh/comm/reduce_loops.inc.c"
