/* SPDX-License-Identifier: Apache-2.0
 *
 * Models whose linear layers are packed when they are loaded: logits are those of a plain model
 * with the weights that codes and scales stand for, on every mesh. */
#include <dtensor/factories.h>
#include <dtensor/models.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/dtype.h"
#include "base/memory.h"
#include "dtensor/kernels/kernel.h"
#include "tests/support/dt_test.h"

enum { TOKENS = 9 };

typedef struct packed_case {
    const char *fixture, *weights;
    int n_packed; /* layers of a block */
    dt_dtype dtype;
    bool sequence_parallel;
    const char *fully_shard;
    const char *block; /* which; NULL: ".0." */
} packed_case;

static dt_status load(dt_mesh *mesh, const packed_case *c, const char *weights, dt_dtype dtype,
                      dt_model **out)
{
    dt_load_options o = DT_LOAD_OPTIONS_INIT;
    char folder[DT_TEST_PATH_BYTES], name[128];

    (void)snprintf(name, sizeof name, "tests/golden/%s", c->fixture);
    o.keep_dtype = false;
    o.dtype = dtype;
    o.weights = weights;
    o.sequence_parallel = c->sequence_parallel;
    o.fully_shard = c->fully_shard;
    return dt_model_load(mesh, dt_test_source_path(folder, name), &o, out);
}

static double code_of(const uint8_t *codes, int64_t i, int bits)
{
    return bits == 8 ? codes[i] : codes[i / 2] >> (i % 2 * 4) & 15;
}

/* What the parts of a packed layer stand for, [o, i]; how far it is from `plain`, in scales. */
static double unpack(const dt_packing *p, dt_tensor *const part[3], const float *plain, float *w)
{
    const dt_local *codes = dt_tensor_local(part[0]), *scales = dt_tensor_local(part[1]);
    const uint8_t *zeros = part[2] != NULL ? dt_tensor_local(part[2])->data : NULL;
    const int64_t groups = scales->shape[scales->n_axes - 1], n = groups * p->group;
    double farthest = 0.0;

    for (int64_t k = 0; k < dti_local_count(scales) * p->group; k++) {
        const int64_t g = k / n * groups + k % n / p->group;
        const double scale = (double)dti_load_f32(scales->data, scales->dtype, g);
        const double zero = zeros != NULL ? zeros[g] : p->bits == 8 ? 128 : 8;
        w[k] = (float)((code_of(codes->data, k, p->bits) - zero) * scale);
        farthest = fmax(farthest, fabs((double)w[k] - (double)plain[k]) / scale);
    }
    return farthest;
}

/* The plain layer gets the weights that the packed one has. */
static dt_status follow(const packed_case *c, const dt_layer *packed, dt_layer *plain)
{
    const dt_packing packing = dt_layer_spec_of(packed)->packing;
    dt_tensor *part[3] = { NULL }, *whole = NULL, *x = NULL, *old = dt_layer_param(plain, 0);
    const int n_axes = dt_tensor_n_axes(old);
    dt_placement place[DT_MAX_DIMS];
    int64_t shape[3], n = 1;
    dt_status st = DT_OK;
    float *w = NULL;
    double off;

    for (int a = 0; a < n_axes; a++) n *= shape[a] = dt_tensor_extent(old, a);
    for (int p = 0; p < dt_layer_n_params(packed); p++) {
        const dt_packed is = dt_layer_param_info(packed, p).packed;
        if (is != DT_PACKED_NOT)
            DT_TRY_TO(done, st,
                      dt_full_tensor(dt_layer_param(packed, p), &part[is - DT_PACKED_CODES]));
    }
    DT_TRY_TO(done, st, dt_full_tensor(old, &whole));
    DT_TRY_TO(done, st, dti_alloc_array((size_t)n, sizeof *w, (void **)&w));
    off = unpack(&packing, part, dt_tensor_local(whole)->data, w);
    /* half a step; the first and the last code of 4 bits are as far from what they were made of
     * as the rounding of a scale in 16 bits makes them */
    DT_EXPECT_TO(done, st, off <= (c->dtype == DT_F32 ? 0.501 : 1.0), "%s is off by %.3f scales",
                 dt_layer_name(packed), off);
    (void)dt_layout_placements(dt_layer_param_layout(plain, 0), place);
    DT_TRY_TO(done, st,
              dt_distribute(dt_tensor_mesh(old), place, DT_F32, n_axes, shape,
                            (dt_source){ w, DT_EQUAL_COPIES }, &x));
    DT_TRY_TO(done, st, dt_layer_set_param(plain, 0, x));
done:
    for (int i = 0; i < 3; i++) dt_tensor_release(&part[i]);
    dt_tensor_release(&whole);
    dt_tensor_release(&x);
    dti_free(w);
    return st;
}

static dt_status follow_all(const packed_case *c, dt_layers *packed, dt_layers *plain)
{
    const char *block = c->block != NULL ? c->block : ".0.";
    int n = 0;

    for (int i = 0; i < dt_layers_count(packed); i++) {
        const dt_layer *layer = dt_layers_at(packed, i);
        if (dt_layer_kind_of(layer) != &dt_linear_packed_kind &&
            dt_layer_kind_of(layer) != &dt_experts_packed_kind)
            continue;
        n += strstr(dt_layer_name(layer), block) != NULL;
        DT_TRY(follow(c, layer, dt_layers_find(plain, dt_layer_name(layer))));
    }
    DT_EXPECT(n == c->n_packed, "%d layers of block %s are packed, not %d", n, block, c->n_packed);
    return DT_OK;
}

static dt_status logits(dt_model *model, float **out, int64_t *n)
{
    static const int32_t ids[TOKENS] = { 3, 1, 4, 1, 5, 9, 2, 6, 5 };
    dt_state *state = NULL;
    dt_tape *tape = NULL;
    dt_tensor *y, *full = NULL;
    dt_status st = DT_OK;

    DT_TRY(dt_tape_create(dt_mesh_runtime(dt_model_mesh(model)), &tape));
    DT_TRY_TO(done, st, dt_state_create(model, 1, TOKENS, &state));
    (void)dt_model_forward(tape, model, state, ids, TOKENS - 1, DT_LOGITS_LAST);
    y = dt_model_forward(tape, model, state, ids + TOKENS - 1, 1, DT_LOGITS_LAST);
    DT_TRY_TO(done, st, dt_tape_status(tape));
    DT_TRY_TO(done, st, dt_full_tensor(y, &full));
    *n = dt_model_info_of(model)->vocab_size;
    DT_TRY_TO(done, st, dti_alloc_array((size_t)*n, sizeof **out, (void **)out));
    dti_convert(*out, DT_F32, dt_tensor_local(full)->data, dt_tensor_dtype(full), *n);
done:
    dt_tensor_release(&full);
    dt_state_release(&state);
    dt_tape_release(&tape);
    return st;
}

static dt_status compare(dt_mesh *mesh, const void *arg)
{
    const packed_case *c = arg;
    dt_model *packed = NULL, *plain = NULL;
    float *got = NULL, *want = NULL;
    double largest = 0.0, farthest = 0.0;
    dt_status st = DT_OK;
    int64_t n = 0;

    DT_TRY_TO(done, st, load(mesh, c, c->weights, c->dtype, &packed));
    DT_TRY_TO(done, st, load(mesh, c, NULL, DT_F32, &plain));
    DT_EXPECT_TO(done, st,
                 dt_mesh_n_ranks(mesh) > 1 ||
                     dt_model_local_bytes(packed) < dt_model_local_bytes(plain),
                 "packed weights take less");
    DT_TRY_TO(done, st, follow_all(c, dt_model_layers(packed), dt_model_layers(plain)));
    DT_TRY_TO(done, st, logits(packed, &got, &n));
    DT_TRY_TO(done, st, logits(plain, &want, &n));
    for (int64_t i = 0; i < n; i++) {
        largest = fmax(largest, fabs((double)want[i]));
        farthest = fmax(farthest, fabs((double)got[i] - (double)want[i]));
    }
    DT_EXPECT_TO(done, st, farthest <= (c->dtype == DT_F32 ? 1e-5 : 0.03) * largest,
                 "%s, %s: logits are off by %g of %g", c->fixture, c->weights, farthest, largest);
done:
    dti_free(got);
    dti_free(want);
    dt_model_release(&packed);
    dt_model_release(&plain);
    return st;
}

static void check(packed_case c)
{
    static const char *const meshes[] = { "tp=1",      "tp=2", "tp=3",     "tp=4",
                                          "dp=2,tp=2", "dp=7", "dp=3,tp=2" };

    for (size_t m = 0; m < DT_COUNT(meshes); m++) {
        if (c.fully_shard != NULL && strstr(meshes[m], "dp") == NULL) continue;
        dt_test_on_ranks(meshes[m], compare, &c);
    }
}

DT_TEST(packed_weights, logits_are_those_of_the_weights_that_codes_stand_for)
{
    static const packed_case cases[] = {
        { .fixture = "llama/tied", .weights = "int8", .n_packed = 7 },
        { .fixture = "llama/tied", .weights = "int4,group=32,asymmetric", .n_packed = 7 },
        { .fixture = "llama/uneven", .weights = "int4 head", .n_packed = 6 }, /* F is 250 */
        { .fixture = "qwen2/dynamic", .weights = "int8 asymmetric", .n_packed = 7 },
        { .fixture = "qwen3/base", .weights = "int4 group=16", .n_packed = 7 },
        { .fixture = "qwen3_moe/base", .weights = "int8", .n_packed = 6 },
        { .fixture = "qwen3_moe/base", .weights = "int4 asymmetric", .n_packed = 6 },
        { .fixture = "mixtral/base", .weights = "int8", .n_packed = 3 }, /* F is 24 */
        { .fixture = "glm4_moe/base", .weights = "int8", .n_packed = 5, .block = ".2." },
        { .fixture = "phi3/base", .weights = "int4 asymmetric", .n_packed = 4 },
        { .fixture = "gpt_neo/base", .weights = "int8", .n_packed = 5 } /* heads of 8 */,
    };

    for (size_t i = 0; i < DT_COUNT(cases); i++) check(cases[i]);
}

DT_TEST(packed_weights, bf16_cut_tokens_and_full_sharding)
{
    check((packed_case){ "phi3/base", "int8 head", 4, DT_BF16, false, NULL, NULL });
    check((packed_case){ "llama/tied", "int4 group=16", 7, DT_BF16, true, NULL, NULL });
    check((packed_case){ "qwen3_moe/base", "int4 group=16", 6, DT_BF16, true, NULL, NULL });
    check((packed_case){ "llama/tied", "int4 group=16 asymmetric", 7, DT_F32, false, "dp", NULL });
    check((packed_case){ "llama/uneven", "int4", 6, DT_F32, false, "dp", NULL });
    check((packed_case){ "qwen3_moe/base", "int8", 6, DT_F32, false, "dp", NULL });
}

/* --- what is refused -------------------------------------------------------------------------- */

static dt_status refused(dt_mesh *mesh, const void *arg)
{
    static const struct {
        const char *weights, *words;
    } cases[] = {
        { "", "does not say int8 or int4" },
        { "int5", "unknown word \"int5\"" },
        { "int4 int8", "one of them" },
        { "int4 group=32 group=64", "group=N is said twice" },
        { "int4 group=48", "a power of two" },
        { "int4 group=", "unknown word" },
        { "int4 group=64x", "a power of two" },
        { "int8 keep=model.layers.9.**", "matches no layer" },
        { "int8 keep=model.layers.**", "leaves no linear layer" },
    };
    const packed_case c = { .fixture = "llama/tied" };
    dt_model *model = NULL;

    (void)arg;
    for (size_t i = 0; i < DT_COUNT(cases); i++)
        DT_EXPECT_STATUS(load(mesh, &c, cases[i].weights, DT_F32, &model), DT_ERR_ARG,
                         cases[i].words);
    return DT_OK;
}

DT_TEST(packed_weights, wishes_that_make_no_sense_are_refused)
{
    dt_test_on_ranks("tp=1", refused, NULL);
}
