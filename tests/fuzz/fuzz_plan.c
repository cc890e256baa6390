/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzing plans: any file is refused with a message, or gives rules that lay a small model out, or
 * are refused with a message when they are tried. */
#include "tests/fuzz/fuzz.h"

#include <dtensor/plans.h>

enum { MOST_BYTES = 1 << 11 };

static const dt_layer_spec specs[] = {
    { .name = "embed",
      .kind = &dt_embedding_kind,
      .axis = { { 10, DT_UNIT_ROW }, { 8, DT_UNIT_ROW } },
      .style = "embedding_rowwise" },
    { .name = "layers.0.norm", .kind = &dt_rms_norm_kind, .axis = { { 8, DT_UNIT_ROW } } },
    { .name = "layers.0.q",
      .kind = &dt_linear_kind,
      .axis = { { 8, DT_UNIT_HEADS }, { 8, DT_UNIT_ROW } },
      .with = "bias",
      .heads = { 4, 2, 2 },
      .style = "colwise" },
    { .name = "layers.0.o",
      .kind = &dt_linear_kind,
      .axis = { { 8, DT_UNIT_ROW }, { 8, DT_UNIT_HEADS } },
      .heads = { 4, 2, 2 },
      .style = "rowwise" },
    { .name = "head",
      .kind = &dt_linear_kind,
      .axis = { { 10, DT_UNIT_ROW }, { 8, DT_UNIT_ROW } },
      .style = "colwise",
      .tied_to = "embed" },
};

static void lay_out(dt_mesh *mesh, const dt_plan *plan)
{
    dt_layers *layers = NULL;

    if (fuzz_failed(dt_layers_create(mesh, "tp", specs, (int)DT_COUNT(specs), plan, &layers))) {
        if (layers != NULL) fuzz_stop("layers in spite of an error");
        return;
    }
    for (int i = 0; i < dt_layers_count(layers); i++) {
        const dt_layer *layer = dt_layers_at(layers, i);
        for (int p = 0; p < dt_layer_n_params(layer); p++)
            if (dt_layer_param_layout(layer, p) == NULL) fuzz_stop("a parameter without a layout");
    }
    dt_layers_release(&layers);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char folder[64], path[96];
    dt_runtime *rt = NULL;
    dt_mesh *mesh = NULL;
    dt_plan *plan = NULL;
    dt_run_options o = DT_RUN_OPTIONS_INIT;

    if (size > MOST_BYTES) return 0;
    (void)snprintf(path, sizeof path, "%s/plan.json", fuzz_folder(folder));
    fuzz_write(path, data, size);
    if (!fuzz_failed(dt_plan_read(path, &plan))) {
        o.n_ranks = 4;
        if (dt_runtime_create_dry(&o, 0, NULL, &rt) != DT_OK ||
            dt_mesh_create(rt, "dp=2,tp=2", &mesh) != DT_OK)
            fuzz_stop("no mesh");
        lay_out(mesh, plan);
        dt_mesh_release(&mesh);
        dt_runtime_release_dry(&rt);
    }
    dt_plan_release(&plan);
    (void)unlink(path);
    (void)rmdir(folder);
    return 0;
}

#ifndef DT_LIBFUZZER

/* clang-format off */
static const fuzz_seed seeds[] = {
    { "{}", 0 },
    { "{\"layers.*.q\": \"colwise\", \"layers.*.o\": \"rowwise\", \"embed\": \"embedding_rowwise\"}", 0 },
    { "{\"layers.*.*\": \"replicate\", \"layers.0.q\": {\"tp\": \"colwise\", \"dp\": \"rowwise\"}}", 0 },
    { "{\"layers.0.o\": {\"style\": \"rowwise\", \"output\": \"S(1)\"}, \"version\": \"v4.56\", \"mode\": \"manual\"}", 0 },
    { "{\"head\": \"colwise_gather_output\", \"embed\": {\"tp\": \"colwise\"}, \"layers.0.norm\": \"sequence_parallel\"}", 0 },
};
static const char *const words[] = {
    "[", "]", "{", "}", ",", ":", "\"", "*", ".", "..", "\"*\"", "\"\"", "null", "true", "1", "[]", "{}", "\"colwise\"", "\"rowwise\"",
    "\"replicate\"", "\"embedding_rowwise\"", "\"colwise_rep\"", "\"head\":", "\"embed\":", "\"layers.0.q\":", "{\"dp\":\"colwise\"}",
    "{\"cp\":\"rowwise\"}", "{\"tp\":null}", "\"a\":{\"b\":\"c\"},", "layers.", "\\u0000", "\xff", "\033[1m",
    "\"style\":", "\"input\":", "(output=", "S(1)",
};
static const fuzz_table table = { "fuzz_plan", 1000, MOST_BYTES, seeds, DT_COUNT(seeds), words, DT_COUNT(words), NULL };
/* clang-format on */

int main(int argc, char **argv)
{
    return fuzz_main(&table, argc, argv);
}

#endif
