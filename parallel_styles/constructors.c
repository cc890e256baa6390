/* SPDX-License-Identifier: Apache-2.0
 *
 * PyTorch's styles with their layout arguments, as values. */
#include <dtensor/styles.h>

static dt_passes one(dt_pass pass)
{
    dt_passes passes = { pass != DT_PASS_KEEP, { pass } };

    return passes;
}

dt_style dt_colwise_parallel(dt_parallel_args args)
{
    return (dt_style){ .size = sizeof(dt_style),
                       .summary = "outputs cut; x is made whole",
                       .cut = DT_CUT_COLUMNS,
                       .input = DT_PASS_REPLICATE,
                       .output = args.output_layouts,
                       .comes = one(args.input_layouts),
                       .kinds = DT_KIND_BIT(DT_LAYER_LINEAR) | DT_KIND_BIT(DT_LAYER_EMBEDDING) };
}

dt_style dt_rowwise_parallel(dt_parallel_args args)
{
    const bool said = args.output_layouts != DT_PASS_KEEP;

    return (dt_style){ .size = sizeof(dt_style),
                       .summary = "inputs cut; y is summed",
                       .cut = DT_CUT_ROWS,
                       .input = DT_PASS_SHARD_LAST,
                       .output = said ? args.output_layouts : DT_PASS_REPLICATE,
                       .comes = one(args.input_layouts),
                       .kinds = DT_KIND_BIT(DT_LAYER_LINEAR) | DT_KIND_BIT(DT_LAYER_EMBEDDING) };
}

dt_style dt_sequence_parallel(int axis)
{
    return (dt_style){ .size = sizeof(dt_style),
                       .summary = "parameters whole; x is cut along an axis and stays so",
                       .input = axis >= -8 && axis <= 7 ? DT_PASS_SHARD(axis)
                                                        : (dt_pass)(DT_PASS_AXIS_LAST + 1) };
}

dt_style dt_prepare_input_output(dt_prepare_args args)
{
    return (dt_style){ .size = sizeof(dt_style),
                       .summary = "parameters whole; inputs and outputs are laid out anew",
                       .inputs = args.desired_input_layouts,
                       .outputs = args.desired_output_layouts,
                       .comes = args.input_layouts,
                       .gives = args.output_layouts };
}

dt_style dt_prepare_input(dt_prepare_args args)
{
    args.output_layouts.n = args.desired_output_layouts.n = 0;
    return dt_prepare_input_output(args);
}

dt_style dt_prepare_output(dt_prepare_args args)
{
    args.input_layouts.n = args.desired_input_layouts.n = 0;
    return dt_prepare_input_output(args);
}
