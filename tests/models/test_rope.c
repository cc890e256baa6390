/* SPDX-License-Identifier: Apache-2.0
 *
 * Rotary positions: the frequencies of each variant in each spelling are those of Transformers
 * (tools/make_rope_golden.py), and a model takes those for its length. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "models/architectures/rotary.h"
#include "tests/support/dt_test.h"

enum { MOST = 64 };

static const dti_rope_keys phi3_keys = {
    .theta_key = "rope_theta", .theta = 1e4, .partial = true, .original = 4096
};

static void check_case(const dti_json *c)
{
    const dti_json wanted = dti_json_get(c, "inv_freq");
    const char *name = "";
    int64_t length = 0, hidden = 0, heads = 0;
    double factor = 0.0;
    dt_model_info info = { 0 };
    dti_json config;
    float inv_freq[MOST];
    dti_rope rope;
    bool phi3 = false;

    DT_ASSERT_OK(dti_json_string(c, "name", &name));
    DT_ASSERT_OK(dti_json_bool(c, "phi3", &phi3));
    DT_ASSERT_OK(dti_json_object(c, "config", &config));
    DT_ASSERT_OK(dti_json_int(c, "length", 1, 1 << 20, &length));
    DT_ASSERT_OK(dti_json_number(c, "attention_factor", 0, 100, &factor));
    DT_ASSERT_OK(dti_json_int(&config, "hidden_size", 1, 4096, &hidden));
    DT_ASSERT_OK(dti_json_int(&config, "num_attention_heads", 1, 4096, &heads));
    DT_ASSERT_OK(dti_json_int(&config, "max_position_embeddings", 1, 1 << 20, &info.max_positions));
    info.head_dim = hidden / heads;
    DT_ASSERT_OK(dti_rope_read(&config, phi3 ? &phi3_keys : NULL, &info, &rope));
    DT_ASSERT_EQ_INT((rope.dim + 1) / 2, (int64_t)dti_json_count(&wanted));
    dti_rope_frequencies(&rope, length, inv_freq);
    for (size_t i = 0; i < dti_json_count(&wanted); i++) {
        const dti_json one = dti_json_at(&wanted, i);
        double want = 0.0;
        DT_ASSERT_OK(dti_json_as_number(&one, 0, 1e6, &want));
        if (fabs((double)inv_freq[i] / want - 1.0) > 5e-7)
            dt_test_fail(__FILE__, __LINE__, "%s: frequency %zu is %.9g, theirs is %.9g", name, i,
                         (double)inv_freq[i], want);
    }
    if (fabs(rope.attention_factor - factor) > 1e-12)
        dt_test_fail(__FILE__, __LINE__, "%s: attention factor %.17g, theirs is %.17g", name,
                     rope.attention_factor, factor);
    dti_rope_release(&rope);
}

DT_TEST(rope, every_variant_and_spelling_is_that_of_transformers)
{
    char path[DT_TEST_PATH_BYTES];
    DT_ENDS(dti_json_free) dti_json_doc doc;
    dti_json cases;

    (void)dt_test_source_path(path, "tests/golden/rope.json");
    DT_ASSERT_OK(dti_json_read(path, 1 << 20, &doc));
    DT_ASSERT_OK(dti_json_array(&doc.root, "cases", &cases));
    DT_ASSERT(dti_json_count(&cases) >= 30);
    for (size_t i = 0; i < dti_json_count(&cases); i++) {
        const dti_json one = dti_json_at(&cases, i);
        check_case(&one);
    }
}

typedef struct spelling {
    const char *text;
    const char *refused; /* part of the message, or NULL */
    bool phi3;
    dti_rope_type type;
    double theta;
    double original; /* 0: not looked at */
} spelling;

#define LLAMA3 \
    "\"rope_type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 1, \"high_freq_factor\": 4"
#define LONG "\"short_factor\": [1, 1, 1, 1], \"long_factor\": [2, 2, 2, 2]"

/* clang-format off */
static const spelling spellings[] = {
    { "{}",                                                                                      NULL, 0, DTI_ROPE_DEFAULT, 10000, 0 },
    { "{\"rope_theta\": 5e5, \"rope_scaling\": null}",                                           NULL, 0, DTI_ROPE_DEFAULT, 5e5, 0 },
    { "{\"rope_theta\": 5e5, \"rope_parameters\": {\"rope_type\": \"default\"}}",                NULL, 0, DTI_ROPE_DEFAULT, 5e5, 0 },
    { "{\"rope_parameters\": {\"rope_theta\": 7, \"rope_type\": \"linear\", \"factor\": 2}}",    NULL, 0, DTI_ROPE_LINEAR, 7, 0 },
    { "{\"rope_scaling\": {\"rope_theta\": 9, \"type\": \"linear\", \"factor\": 2}}",            NULL, 0, DTI_ROPE_LINEAR, 9, 0 },
    { "{\"original_max_position_embeddings\": 64, \"rope_scaling\": {" LLAMA3 "}}",              NULL, 0, DTI_ROPE_LLAMA3, 10000, 64 },
    { "{\"rope_scaling\": {" LLAMA3 "}}",                                                        NULL, 0, DTI_ROPE_LLAMA3, 10000, 128 },
    { "{\"rope_scaling\": {" LLAMA3 ", \"original_max_position_embeddings\": 32}}",              NULL, 0, DTI_ROPE_LLAMA3, 10000, 32 },
    { "{\"rope_scaling\": {\"type\": \"su\", " LONG "}}",                                        NULL, 1, DTI_ROPE_LONGROPE, 10000, 4096 },
    { "{\"rope_scaling\": {\"type\": \"yarn\", " LONG "}}",                                      NULL, 1, DTI_ROPE_LONGROPE, 10000, 4096 },
    { "{\"partial_rotary_factor\": null}",                                                       NULL, 0, DTI_ROPE_DEFAULT, 10000, 0 },
    { "{\"partial_rotary_factor\": 0.5}",                                                        NULL, 1, DTI_ROPE_DEFAULT, 10000, 0 },
    { "{\"rope_theta\": 5, \"rope_parameters\": {\"rope_theta\": 7}}",                           "rope_parameters.rope_theta", 0, 0, 0, 0 },
    { "{\"rope_parameters\": {\"rope_theta\": 7}, \"rope_scaling\": {\"type\": \"linear\"}}",    "both say the same thing", 0, 0, 0, 0 },
    { "{\"rope_parameters\": {\"full_attention\": {\"rope_theta\": 7}}}",                        "rotate alike", 0, 0, 0, 0 },
    { "{\"rope_scaling\": {\"type\": \"proportional\"}}",                                        "rope_scaling.type", 0, 0, 0, 0 },
    { "{\"rope_scaling\": {\"type\": \"linear\"}}",                                              "factor", 0, 0, 0, 0 },
    { "{\"rope_scaling\": {\"type\": \"dynamic\", \"factor\": 0.5}}",                            "factor", 0, 0, 0, 0 },
    { "{\"rope_scaling\": {\"type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 4, \"high_freq_factor\": 4}}",
                                                                                                 "larger than low_freq_factor", 0, 0, 0, 0 },
    { "{\"rope_scaling\": {\"type\": \"longrope\", \"short_factor\": [1, 1, 1, 1]}}",            "long_factor is missing", 0, 0, 0, 0 },
    { "{\"rope_scaling\": {\"type\": \"longrope\", \"short_factor\": [1, 1], \"long_factor\": [1]}}", "short_factor", 0, 0, 0, 0 },
    { "{\"rope_scaling\": {\"type\": \"longrope\", \"short_factor\": [1, 1, 0, 1], \"long_factor\": [1]}}", "short_factor[2]", 0, 0, 0, 0 },
    { "{\"rope_theta\": 1, \"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4}}",         "nothing turns", 0, 0, 0, 0 },
    { "{\"partial_rotary_factor\": 0.5}",                                                        "partial_rotary_factor", 0, 0, 0, 0 },
    { "{\"partial_rotary_factor\": 0.05}",                                                       "none of a head's 8 columns", 1, 0, 0, 0 },
};
/* clang-format on */

DT_TEST(rope, contradictions_are_refused_by_key)
{
    const dt_model_info info = { .head_dim = 8, .max_positions = 128 };

    for (size_t i = 0; i < DT_COUNT(spellings); i++) {
        const spelling *c = &spellings[i];
        dti_json_doc doc;
        dti_rope rope;
        dt_status st;
        DT_ASSERT_OK(dti_json_parse("config.json", c->text, strlen(c->text), &doc));
        st = dti_rope_read(&doc.root, c->phi3 ? &phi3_keys : NULL, &info, &rope);
        if (c->refused != NULL) {
            DT_ASSERT_STATUS(st, st == DT_ERR_UNSUPPORTED ? st : DT_ERR_FORMAT, c->refused);
        } else {
            DT_ASSERT_OK(st);
            DT_ASSERT_CLOSE(rope.theta, c->theta, 0);
            DT_ASSERT_EQ_INT(rope.type, c->type);
            if (c->original > 0) DT_ASSERT_CLOSE(rope.original_positions, c->original, 0);
            dti_rope_release(&rope);
        }
        dti_json_free(&doc);
    }
}

/* Constants of the Llama 3.1 and YaRN papers' models, in double precision. */
DT_TEST(rope, published_constants)
{
    static const struct {
        int i;
        double llama3, yarn; /* 0: not looked at */
    } golden[] = { { 0, 1.0, 1.0 },
                   { 1, 8.146172339e-1, 0 },
                   { 20, 1.656044008e-2, 0 },
                   { 23, 0, 6.978305849e-3 },
                   { 28, 3.211445995e-3, 0 },
                   { 30, 1.371893568e-3, 0 },
                   { 32, 5.248461610e-4, 6.029411765e-4 },
                   { 34, 1.785078128e-4, 0 },
                   { 39, 0, 6.490394321e-5 },
                   { 40, 3.428102196e-5, 4.445698525e-5 },
                   { 63, 3.068925989e-7, 3.102344402e-7 } };
    const dti_rope llama3 = { .type = DTI_ROPE_LLAMA3,
                              .dim = 128,
                              .theta = 5e5,
                              .factor = 8,
                              .low_freq_factor = 1,
                              .high_freq_factor = 4,
                              .original_positions = 8192 };
    const dti_rope yarn = { .type = DTI_ROPE_YARN,
                            .dim = 128,
                            .theta = 1e6,
                            .factor = 4,
                            .beta_fast = 32,
                            .beta_slow = 1,
                            .truncate = true,
                            .original_positions = 32768 };
    float of_llama3[64], of_yarn[64];

    dti_rope_frequencies(&llama3, 1, of_llama3);
    dti_rope_frequencies(&yarn, 1, of_yarn);
    for (size_t k = 0; k < DT_COUNT(golden); k++) {
        const int i = golden[k].i;
        if (golden[k].llama3 > 0) DT_ASSERT_CLOSE(of_llama3[i] / golden[k].llama3, 1.0, 1e-5);
        if (golden[k].yarn > 0) DT_ASSERT_CLOSE(of_yarn[i] / golden[k].yarn, 1.0, 1e-5);
    }
}
