/* SPDX-License-Identifier: Apache-2.0
 *
 * PyTorch's styles with their layout arguments, as values. */
#include <dtensor/parallel_styles.h>

static dt_style linear_style(dt_cut cut, dt_lay to, dt_lay left, dt_parallel_args args)
{
    dt_style style = { .size = sizeof(dt_style), .kinds = "linear embedding", .cut = cut };

    style.in.of[0] = (dt_pass){ .to = to, .comes = args.input_layouts };
    style.out.of[0].to = args.output_layouts.kind != DT_LAY_KEEP ? args.output_layouts : left;
    return style;
}

dt_style dt_colwise_parallel(dt_parallel_args args)
{
    dt_style style = linear_style(DT_CUT_COLUMNS, (dt_lay){ DT_LAY_REPLICATE, 0 },
                                  (dt_lay){ DT_LAY_KEEP, 0 }, args);

    style.summary = "outputs cut; x is made whole";
    return style;
}

dt_style dt_rowwise_parallel(dt_parallel_args args)
{
    dt_style style = linear_style(DT_CUT_ROWS, (dt_lay){ DT_LAY_LAST, 0 },
                                  (dt_lay){ DT_LAY_REPLICATE, 0 }, args);

    style.summary = "inputs cut; y is summed";
    return style;
}

dt_style dt_sequence_parallel(int axis)
{
    return (dt_style){ .size = sizeof(dt_style),
                       .summary = "parameters whole; x is cut along an axis and stays so",
                       .in = DT_LAID(DT_LAY_SHARD, axis) };
}

dt_style dt_prepare_input_output(dt_prepare_args args)
{
    return (dt_style){ .size = sizeof(dt_style),
                       .summary = "parameters whole; inputs and outputs are laid out anew",
                       .in = args.inputs,
                       .out = args.outputs };
}

dt_style dt_prepare_input(dt_prepare_args args)
{
    args.outputs = (dt_passes){ 0 };
    return dt_prepare_input_output(args);
}

dt_style dt_prepare_output(dt_prepare_args args)
{
    args.inputs = (dt_passes){ 0 };
    return dt_prepare_input_output(args);
}
