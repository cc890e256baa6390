/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzing the short texts: meshes, layouts, single placements, faults, letters of operators, their
 * costs and the placements that they accept. Any text is refused with a message that has no control
 * characters, or means something that can be written and read again.
 *
 * An input is one letter for the kind of text, then the text. */
#include "tests/fuzz/fuzz.h"

#include "dtensor/ops/op_rules.h"
#include "mesh/comm/comm.h"
#include "placements/layout.h"

enum { MOST_BYTES = 600, TEXT_BYTES = 4096 };

static void check_message(void)
{
    for (const char *c = dt_last_error()->message; *c != '\0'; c++)
        if ((unsigned char)*c < ' ' || *c == 0x7f) fuzz_stop("a control character");
}

static bool refused(dt_status st)
{
    if (!fuzz_failed(st)) return false;
    check_message();
    return true;
}

static void try_mesh(const char *text)
{
    char names[DT_MAX_DIMS][DT_DIM_NAME_BYTES], again[TEXT_BYTES] = "";
    int sizes[DT_MAX_DIMS], n_dims, n_ranks, product = 1;
    size_t used = 0;

    if (refused(dt_mesh_parse(text, &n_dims, names, sizes, &n_ranks))) return;
    for (int d = 0; d < n_dims; d++) {
        product *= sizes[d];
        used += (size_t)snprintf(again + used, sizeof again - used, d ? ",%s=%d" : "%s=%d",
                                 names[d], sizes[d]);
    }
    if (product != n_ranks || n_dims < 1 || n_dims > DT_MAX_DIMS) fuzz_stop("other ranks");
    if (strlen(again) > strlen(text)) fuzz_stop("a mesh that says more than its text");
    if (refused(dt_mesh_parse(again, &n_dims, names, sizes, &product)) || product != n_ranks)
        fuzz_stop("a mesh is not read back");
}

/* "tp=2,dp=3|S(0)R" */
static void try_layout(char *text)
{
    char *bar = strchr(text, '|'), printed[TEXT_BYTES];
    const dt_layout *layout, *again;
    dt_layouts *layouts;

    if (bar == NULL) return;
    *bar = '\0';
    if (dt_layouts_create(&layouts) != DT_OK) fuzz_stop("no memory");
    if (!refused(dt_layouts_parse(layouts, text, 2, bar + 1, &layout))) {
        const int64_t shape[] = { 12, 7 };
        int64_t begin[2], end[2];
        int coord[DT_MAX_DIMS] = { 0 };
        const int n = dt_layout_print(layout, printed, sizeof printed);

        if (n < 0 || n >= TEXT_BYTES) fuzz_stop("a layout that is longer than its text");
        if (refused(dt_layouts_parse(layouts, text, 2, printed, &again)) || again != layout)
            fuzz_stop("a layout is not read back");
        if (!refused(dt_layout_range(layout, shape, coord, begin, end)))
            for (int a = 0; a < 2; a++)
                if (begin[a] < 0 || begin[a] > end[a] || end[a] > shape[a])
                    fuzz_stop("a piece lies outside its tensor");
    }
    dt_layouts_release(&layouts);
}

static void try_placement(const char *text)
{
    char printed[TEXT_BYTES], words[DTI_PLACEMENT_BYTES], again[TEXT_BYTES];
    dti_parsed parsed, back;

    if (refused(dti_placements_parse(text, 1, &parsed))) return;
    if (dt_placement_print(&parsed.place[0], printed, sizeof printed) >= TEXT_BYTES)
        fuzz_stop("a placement that is longer than its text");
    if (strlen(dti_placement_words(&parsed.place[0], words)) >= sizeof words)
        fuzz_stop("words without an end");
    if (refused(dti_placements_parse(printed, 1, &back))) fuzz_stop("a placement is not read back");
    (void)dt_placement_print(&back.place[0], again, sizeof again);
    if (strcmp(printed, again) != 0) fuzz_stop("another placement is read back");
}

static void try_fault(const char *text)
{
    dti_fault f;

    if (refused(dti_fault_parse(text, &f))) return;
    if (f.rank < 0 || f.call < 1 || f.seen != 0 || f.op < -1 || f.op >= DTI_COMM_N_OPS)
        fuzz_stop("a fault that nobody asked for");
}

static void try_letters(const char *text)
{
    dti_letters l;

    if (refused(dti_letters_parse(text, &l))) return;
    if (l.n_in < 1 || l.n_in > DT_OP_MAX_IN) fuzz_stop("operands");
    if (l.n_out < 1 || l.n_out > DT_OP_MAX_OUT) fuzz_stop("results");
    for (int i = 0; i < l.n_in + l.n_out; i++) {
        const dti_term *t = i < l.n_in ? &l.in[i] : &l.out[i - l.n_in];
        if (t->n_letters < 0 || t->n_letters > DT_MAX_AXES) fuzz_stop("letters");
        for (int k = 0; k < t->n_letters; k++)
            if (t->letter[k] < 0 || t->letter[k] >= DTI_DOTS) fuzz_stop("a letter");
    }
}

static dt_status no_kernel(const dt_kargs *args)
{
    (void)args;
    return DT_OK;
}

/* "2 ...a|S(0), R -> S(0), R": what a row costs, and a line of placements that it accepts. */
static void try_row(char *text)
{
    char *bar = strchr(text, '|');
    const char *lines[] = { bar != NULL ? bar + 1 : "R, R -> R, R", NULL };
    const dt_op op = { .name = "row",
                       .axes = "...ab, b[c] -> ...a, c",
                       .types = "ff>ff",
                       .accepts = lines,
                       .cpu = no_kernel,
                       .cost = text };
    dt_op_shapes call = { .op = &op,
                          .n_in = 2,
                          .n_out = 2,
                          .in = { { DT_F32, 3, { 2, 3, 4 } }, { DT_F32, 2, { 4, 5 } } },
                          .out = { { DT_F32, 2, { 2, 3 } }, { DT_F32, 1, { 5 } } } };
    dt_op_work work;
    dti_row row;

    if (bar != NULL) *bar = '\0';
    if (refused(dti_row_read(&op, &row))) return;
    dti_row_work(&row, &call, &work);
    if (!(work.flops >= 0) || !(work.bytes >= 0)) fuzz_stop("work");
    if (row.n_accepted != 1) fuzz_stop("lines");
    dti_row_free(&row);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char text[MOST_BYTES + 1];

    if (size < 1 || size > MOST_BYTES) return 0;
    memcpy(text, data + 1, size - 1);
    text[size - 1] = '\0';
    switch (data[0]) {
    case 'm':
        try_mesh(text);
        break;
    case 'l':
        try_layout(text);
        break;
    case 'p':
        try_placement(text);
        break;
    case 'f':
        try_fault(text);
        break;
    case 'c':
        try_row(text);
        break;
    default:
        try_letters(text);
    }
    return 0;
}

#ifndef DT_LIBFUZZER

/* clang-format off */
static const fuzz_seed seeds[] = {
    { "mtp=2", 0 }, { "mdp=2,tp=4", 0 }, { "ma=1,b=2,c=3,d=4,e=5,f=6,g=7,h=8", 0 }, { "m_long_name_of_a_dim_23=16", 0 },
    { "ltp=2|S(0)", 0 }, { "ldp=2,tp=3|S(0)[1]S(0)[0]", 0 }, { "la=2,b=2,c=2|RP(max)S(-1,unit=4,replicas=2)", 0 },
    { "ltp=3|S(0,offsets=0:3:3:12)", 0 },
    { "ltp=2147483647|S(0,offsets=0:3)", 0 }, { "ltp=2|S(0,blocks=6:2:4)", 0 }, { "ldp=2,tp=2|replicatepartial(sum)", 0 },
    { "pS(0)", 0 }, { "pShard(1, unit=4, replicas=2)", 0 }, { "ppartial(avg)", 0 }, { "pS(0,blocks=64:16:16)", 0 },
    { "frank=1,op=all_reduce,call=3", 0 }, { "frank=0", 0 }, { "frank=2,op=any,call=9", 0 }, { "fop=exchange,rank=3", 0 },
    { "x...i, oi -> ...o", 0 }, { "x...[d], [d] -> ...[d]", 0 }, { "xbthe, bskve, bskve, bt -> bthe", 0 }, { "xij -> ", 0 },
    { "c2 ...ab + 1 c : ...ab, - -> ...a, c|S(-1), S(0) -> P(sum), R", 0 }, { "c0|R, P -> R, P(max)", 0 }, { "c1000 b", 0 },
};
static const char *const words[] = {
    ",", "=", "|", "(", ")", "[", "]", ":", " -> ", ", ", "...", "0", "-1", "1", "2147483647", "2147483648", "9223372036854775807",
    "99999999999999999999", "S(", "R", "P", "P(", "sum", "prod", "unit=", "replicas=", "offsets=", "blocks=", "[0]", "[1]", "tp=2",
    "dp=", "rank=", "op=", "call=", "any", "barrier", "shard", "Replicate", "\033[31m", "\n", "\xff", "\xc3\xa9", " ", "a", "z", "[a]",
};
static const fuzz_table table = { "fuzz_texts", 100000, MOST_BYTES, seeds, DT_COUNT(seeds), words, DT_COUNT(words), NULL };
/* clang-format on */

int main(int argc, char **argv)
{
    return fuzz_main(&table, argc, argv);
}

#endif
