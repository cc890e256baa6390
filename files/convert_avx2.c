/* SPDX-License-Identifier: Apache-2.0
 *
 * The loops for machines with AVX2; the build gives this file its flags by its name. */
#define LOOPS dti_convert_avx2
#include "files/convert.inc.c"
