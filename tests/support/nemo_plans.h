/* SPDX-License-Identifier: Apache-2.0
 *
 * NeMo Automodel's tensor parallel plans (tests/golden/plans/nemo.json), as a user would paste them
 * into a file, on the checkpoints that Transformers made. */
#ifndef DT_TEST_NEMO_PLANS_H
#define DT_TEST_NEMO_PLANS_H

#include "tests/support/golden.h"

typedef struct dt_nemo_case {
    const char *fixture; /* "llama/uneven" */
    const char *class;   /* of the plans: "LlamaForCausalLM" */
} dt_nemo_case;

extern const dt_nemo_case dt_nemo_cases[];
extern const int dt_n_nemo_cases;

/* The plan of a class, with tokens cut or whole, in the mode "auto" or "manual". A manual one is
 * not strict: what NeMo leaves alone is whole there, too. */
dt_status dt_nemo_plan(const char *class, bool tokens_cut, const char *mode, dt_plan **out);

/* Logits and tokens of a fixture, with its plan from the file in both modes and by name. */
void dt_nemo_check(const dt_nemo_case *c, const char *mesh, bool tokens_cut);

#endif
