/* SPDX-License-Identifier: Apache-2.0
 *
 * Frequencies of rotary positions in all variants of Transformers (modeling_rope_utils.py), each
 * step in f32 or f64 as there, and the table of a pass. */
#include "models/architectures/rotary.h"

#include <math.h>

#include "base/memory.h"
#include "dtensor/create.h"
#include "dtensor/host.h"

static const double two_pi = 6.283185307179586476925;

/* longrope: whether a sequence takes its long factors. */
static bool is_long(const dti_rope *rope, int64_t length)
{
    return (double)length > rope->original_positions;
}

static int64_t n_frequencies(const dti_rope *rope)
{
    return (rope->dim + 1) / 2;
}

/* Llama 3.1: long wavelengths are stretched by `factor`, short ones stay, those between are
 * blended. */
static float llama3(const dti_rope *rope, float inv)
{
    const double wavelength = two_pi / (double)inv;
    const double low = rope->original_positions / rope->low_freq_factor;
    const double high = rope->original_positions / rope->high_freq_factor;
    double s;

    if (wavelength > low) return (float)((double)inv / rope->factor);
    if (wavelength < high) return inv;
    s = (rope->original_positions / wavelength - rope->low_freq_factor) /
        (rope->high_freq_factor - rope->low_freq_factor);
    return (float)((1.0 - s) * (double)inv / rope->factor + s * (double)inv);
}

/* YaRN (arXiv 2309.00071): the column that turns n times over the length of training. */
static double yarn_column(const dti_rope *rope, double n)
{
    return (double)rope->dim * log(rope->original_positions / (n * two_pi)) /
           (2.0 * log(rope->theta));
}

/* Columns before *low keep their frequency, those after *high are stretched. */
static void yarn_range(const dti_rope *rope, float *low, float *high)
{
    double first = yarn_column(rope, rope->beta_fast), last = yarn_column(rope, rope->beta_slow);

    if (rope->truncate) {
        first = floor(first);
        last = ceil(last);
    }
    first = fmax(first, 0.0);
    last = fmin(last, (double)(rope->dim - 1));
    if (first == last) last += 0.001;
    *low = (float)first;
    *high = (float)(last - first);
}

static float yarn(const dti_rope *rope, int64_t i, float power)
{
    float low, span, stretched;

    yarn_range(rope, &low, &span);
    stretched = fminf(fmaxf(((float)i - low) / span, 0.0f), 1.0f);
    return 1.0f / ((float)rope->factor * power) * stretched + 1.0f / power * (1.0f - stretched);
}

/* Dynamic NTK: the longer the sequence, the larger the base. */
static double base_for(const dti_rope *rope, int64_t length)
{
    const double dim = (double)rope->dim, s = fmax((double)length, rope->max_positions);

    if (rope->type != DTI_ROPE_DYNAMIC) return rope->theta;
    return rope->theta *
           pow(rope->factor * s / rope->max_positions - (rope->factor - 1.0), dim / (dim - 2.0));
}

void dti_rope_frequencies(const dti_rope *rope, int64_t length, float *inv_freq)
{
    const float base = (float)base_for(rope, length);

    for (int64_t i = 0; i < n_frequencies(rope); i++) {
        const float power = powf(base, (float)(2 * i) / (float)rope->dim), inv = 1.0f / power;
        switch (rope->type) {
        case DTI_ROPE_LINEAR:
            inv_freq[i] = inv / (float)rope->factor;
            break;
        case DTI_ROPE_LLAMA3:
            inv_freq[i] = llama3(rope, inv);
            break;
        case DTI_ROPE_YARN:
            inv_freq[i] = yarn(rope, i, power);
            break;
        case DTI_ROPE_LONGROPE:
            inv_freq[i] =
                1.0f /
                ((is_long(rope, length) ? rope->long_factor : rope->short_factor)[i] * power);
            break;
        default:
            inv_freq[i] = inv;
        }
    }
}

int64_t dti_rope_longest(const dti_rope *rope, int64_t max_positions)
{
    const double longest = rope->factor * (double)max_positions;

    return rope->type == DTI_ROPE_DYNAMIC ? (int64_t)fmin(longest, 1 << 30) : max_positions;
}

int64_t dti_rope_turn(const dti_rope *rope)
{
    if (rope->type == DTI_ROPE_DYNAMIC) return -(int64_t)rope->max_positions;
    return rope->type == DTI_ROPE_LONGROPE ? (int64_t)rope->original_positions : 0;
}

/* --- on a mesh -------------------------------------------------------------------------------- */

static dt_status make_frequencies(const dti_rope *rope, int64_t length, dt_mesh *mesh,
                                  dt_tensor **out)
{
    const dt_placement whole[DT_MAX_DIMS] = { { 0 } };
    const int64_t n = n_frequencies(rope);
    float *inv_freq;
    dt_status st;

    DT_TRY(dti_alloc_array((size_t)n, sizeof *inv_freq, (void **)&inv_freq));
    dti_rope_frequencies(rope, length, inv_freq);
    st = dt_from_local(mesh, whole, DT_F32, 1, &n, inv_freq, out);
    dti_free(inv_freq);
    return st;
}

/* In f32, as Transformers does. */
static dt_status make_query_factors(dti_rope *rope, dt_mesh *mesh)
{
    const dt_placement whole[DT_MAX_DIMS] = { { 0 } };
    const int64_t shape[] = { rope->n_query_factors, 1 };
    float *factors;
    dt_status st;

    DT_TRY(dti_alloc_array((size_t)shape[0], sizeof *factors, (void **)&factors));
    for (int64_t p = 0; p < shape[0]; p++)
        factors[p] = 1.0f + (float)rope->query_growth *
                                logf(1.0f + floorf((float)p / (float)rope->original_positions));
    st = dt_from_local(mesh, whole, DT_F32, 2, shape, factors, &rope->query_factors);
    dti_free(factors);
    return st;
}

dt_status dti_rope_prepare(dti_rope *rope, dt_mesh *mesh)
{
    DT_TRY(make_frequencies(rope, 0, mesh, &rope->inv_freq));
    if (rope->n_query_factors > 0) DT_TRY(make_query_factors(rope, mesh));
    if (rope->type == DTI_ROPE_LONGROPE)
        DT_TRY(make_frequencies(rope, INT64_MAX, mesh, &rope->long_inv_freq));
    return DT_OK;
}

void dti_rope_release(dti_rope *rope)
{
    dt_tensor_release(&rope->inv_freq);
    dt_tensor_release(&rope->long_inv_freq);
    dt_tensor_release(&rope->query_factors);
    dti_free(rope->short_factor);
    dti_free(rope->long_factor);
    rope->short_factor = rope->long_factor = NULL;
}

dt_tensor *dti_rope_query_factors(dt_tape *t, const dti_rope *rope, const dt_model_pass *pass,
                                  dt_dtype dtype)
{
    dt_tensor *x;

    if (rope->query_factors == NULL) return NULL;
    x = dt_cast(t, dt_embedding(t, pass->positions, rope->query_factors), dtype);
    if (x == NULL) return NULL;
    return dt_reshape(t, x, 4, (int64_t[]){ dt_tensor_extent(x, 0), dt_tensor_extent(x, 1), 1, 1 });
}

/* Frequencies for a length that only this pass has. */
static dt_tensor *frequencies_of_pass(dt_tape *t, const dti_rope *rope, const dt_model_pass *pass)
{
    dt_tensor *x;
    dt_status st =
        dti_tensor_create(dt_tensor_mesh(rope->inv_freq), dt_tensor_layout(rope->inv_freq), DT_F32,
                          &(int64_t){ n_frequencies(rope) }, &x);
    dti_host host;

    if (st != DT_OK) return dti_tape_latch(t, st);
    st = dti_host_open(x, DTI_HOST_WRITES, &host);
    if (st == DT_OK) {
        if (host.local.data != NULL) dti_rope_frequencies(rope, pass->length, host.local.data);
        st = dti_host_close(&host, DT_OK);
    }
    if (st != DT_OK) {
        dt_tensor_release(&x);
        return dti_tape_latch(t, st);
    }
    return dti_tape_push(t, x);
}

dt_tensor *dti_rope_table(dt_tape *t, const dti_rope *rope, const dt_model_pass *pass,
                          dt_dtype dtype)
{
    dt_tensor *inv_freq = rope->inv_freq;

    if (dt_tape_status(t) != DT_OK) return NULL;
    if (rope->type == DTI_ROPE_LONGROPE && is_long(rope, pass->length))
        inv_freq = rope->long_inv_freq;
    if (rope->type == DTI_ROPE_DYNAMIC && (double)pass->length > rope->max_positions)
        inv_freq = frequencies_of_pass(t, rope, pass);
    return dt_rope_table(t, pass->positions, inv_freq, (float)rope->attention_factor, dtype);
}

bool dti_rope_repeats(const dti_rope *rope)
{
    return rope->type != DTI_ROPE_LONGROPE && rope->type != DTI_ROPE_DYNAMIC;
}

/* --- for architectures of users --------------------------------------------------------------- */

dt_status dt_rotary_prepare(dt_rotary *rotary, dt_mesh *mesh)
{
    DT_CHECK(rotary != NULL && mesh != NULL, DT_ERR_ARG, "rotary or mesh is NULL");
    return dti_rope_prepare(rotary, mesh);
}

dt_tensor *dt_rotary_table(dt_tape *t, const dt_rotary *rotary, const dt_model_pass *pass,
                           dt_dtype dtype)
{
    if (rotary == NULL || rotary->inv_freq == NULL)
        return dt_tape_fail(t, DT_ERR_ARG, "dt_rotary_table: rotary is NULL or was not prepared");
    return dti_rope_table(t, rotary, pass, dtype);
}

int64_t dt_rotary_turn(const dt_rotary *rotary)
{
    return rotary != NULL ? dti_rope_turn(rotary) : 0;
}

void dt_rotary_release(dt_rotary **rotary)
{
    if (rotary == NULL || *rotary == NULL) return;
    dti_rope_release(*rotary);
    dti_free(*rotary);
    *rotary = NULL;
}
