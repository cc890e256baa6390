/* SPDX-License-Identifier: Apache-2.0 */
#include "training/counts.h"

#include "dtensor/leaves.h"

void dti_count_since(const dt_tape *t, dt_training_part *before, dt_training_part *sum)
{
    const dt_op_work work = dt_tape_work(t);

    for (int k = 0; k < DT_N_COMM_KINDS; k++) {
        const dt_comm_counter now = dt_tape_comm(t, (dt_comm_kind)k);
        sum->comm[k].calls += now.calls - before->comm[k].calls;
        sum->comm[k].bytes += now.bytes - before->comm[k].bytes;
        before->comm[k] = now;
    }
    sum->work.flops += work.flops - before->work.flops;
    sum->work.bytes += work.bytes - before->work.bytes;
    sum->seconds += dti_tape_seconds(t) - before->seconds;
    before->work = work;
    before->seconds = dti_tape_seconds(t);
}
