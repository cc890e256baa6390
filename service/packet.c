/* SPDX-License-Identifier: Apache-2.0
 *
 * Values stand as they are in memory, each at a multiple of eight bytes; lists have their lengths
 * before them. Writer and reader are the same program. */
#include "service/packet.h"

#include <string.h>

#include "base/numbers.h"

enum { UNIT = 8 };

/* --- writing ---------------------------------------------------------------------------------- */

dt_status dti_packet_put(dti_packet *p, const void *data, size_t n)
{
    const size_t whole = (n + UNIT - 1) / UNIT * UNIT;

    DT_TRY(dti_grow((void **)&p->bytes, &p->room, p->n + whole, 1));
    if (n > 0) memcpy(p->bytes + p->n, data, n);
    memset(p->bytes + p->n + n, 0, whole - n);
    p->n += whole;
    return DT_OK;
}

static dt_status put_number(dti_packet *p, int64_t n)
{
    return dti_packet_put(p, &n, sizeof n);
}

dt_status dti_packet_put_text(dti_packet *p, const char *text)
{
    DT_TRY(put_number(p, text != NULL ? (int64_t)strlen(text) + 1 : 0));
    return text != NULL ? dti_packet_put(p, text, strlen(text) + 1) : DT_OK;
}

dt_status dti_packet_put_lists(dti_packet *p, const dt_ids *lists, int64_t n)
{
    DT_CHECK(n == 0 || (lists != NULL && n > 0), DT_ERR_ARG, "%lld lists of tokens at %p",
             (long long)n, (const void *)lists);
    DT_TRY(put_number(p, n));
    for (int64_t i = 0; i < n; i++) {
        DT_CHECK(lists[i].n >= 0, DT_ERR_ARG, "a list of %lld tokens", (long long)lists[i].n);
        DT_TRY(put_number(p, lists[i].ids != NULL ? lists[i].n : -1));
        if (lists[i].ids == NULL) continue;
        DT_TRY(dti_packet_put(p, lists[i].ids, (size_t)lists[i].n * sizeof(int32_t)));
    }
    return DT_OK;
}

dt_status dti_piece_check(const dt_piece *piece)
{
    int64_t n = 1;

    DT_CHECK(piece != NULL && (piece->data != NULL || piece->n_bytes == 0), DT_ERR_ARG,
             "a piece is NULL");
    if (piece->n_axes == 0) return DT_OK;
    DT_CHECK(piece->n_axes > 0 && piece->n_axes <= DT_MAX_AXES, DT_ERR_ARG,
             "a piece has %d axes, not 0..%d", piece->n_axes, (int)DT_MAX_AXES);
    for (int a = 0; a < piece->n_axes; a++)
        DT_CHECK(piece->shape[a] >= 0 && dti_mul_i64(n, piece->shape[a], &n), DT_ERR_ARG,
                 "axis %d of a piece is %lld long", a, (long long)piece->shape[a]);
    DT_CHECK(dti_mul_i64(n, (int64_t)dt_dtype_size(piece->dtype), &n) &&
                 n == (int64_t)piece->n_bytes,
             DT_ERR_ARG, "a piece has %zu bytes, its shape in %s comes to %lld", piece->n_bytes,
             dt_dtype_name(piece->dtype), (long long)n);
    return DT_OK;
}

dt_status dti_packet_put_pieces(dti_packet *p, const dt_piece *pieces, int64_t n)
{
    DT_CHECK(n == 0 || (pieces != NULL && n > 0), DT_ERR_ARG, "%lld pieces at %p", (long long)n,
             (const void *)pieces);
    DT_TRY(put_number(p, n));
    for (int64_t i = 0; i < n; i++) {
        DT_TRY(dti_piece_check(&pieces[i]));
        DT_TRY(dti_packet_put(p, &pieces[i], sizeof pieces[i]));
        DT_TRY(dti_packet_put(p, pieces[i].data, pieces[i].n_bytes));
    }
    return DT_OK;
}

/* Lists of a struct: where they are is said by the table of settings, how many by the field behind.
 */
static const void *pointer_at(const dt_generate_options *o, const dt_knob *k)
{
    const void *pointer;

    memcpy(&pointer, (const char *)o + k->at, sizeof pointer);
    return pointer;
}

static int64_t count_at(const dt_generate_options *o, const dt_knob *k)
{
    int64_t n;

    memcpy(&n, (const char *)o + k->at + sizeof(void *), sizeof n);
    return n;
}

static void set_list(dt_generate_options *o, const dt_knob *k, const void *pointer, int64_t n)
{
    memcpy((char *)o + k->at, &pointer, sizeof pointer);
    memcpy((char *)o + k->at + sizeof(void *), &n, sizeof n);
}

_Static_assert(offsetof(dt_ids, n) == sizeof(void *), "a list's length is behind it");
_Static_assert(offsetof(dt_generate_options, n_bad_words) ==
                       offsetof(dt_generate_options, bad_words) + sizeof(void *) &&
                   offsetof(dt_generate_options, n_stop_strings) ==
                       offsetof(dt_generate_options, stop_strings) + sizeof(void *) &&
                   offsetof(dt_generate_options, n_sequence_bias) ==
                       offsetof(dt_generate_options, sequence_bias) + sizeof(void *),
               "so is that of a list of lists");

static bool is_pointer(const dt_knob *k)
{
    return k->kind == DT_KNOB_TEXT || k->kind == DT_KNOB_TOKENS || k->kind == DT_KNOB_WORDS ||
           k->kind == DT_KNOB_TEXTS || k->kind == DT_KNOB_BIASES;
}

static dt_status put_biases(dti_packet *p, const dt_bias *biases, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        DT_TRY(dti_packet_put_lists(p, &biases[i].ids, 1));
        DT_TRY(dti_packet_put(p, &biases[i].bias, sizeof biases[i].bias));
    }
    return DT_OK;
}

dt_status dti_packet_put_options(dti_packet *p, const dt_generate_options *options)
{
    dt_generate_options o = *options;
    int n;
    const dt_knob *knobs = dt_generate_knobs(&n);

    o.on_token = NULL;
    o.arg = o.scores_arg = NULL;
    DT_TRY(dti_packet_put(p, &o, sizeof o));
    for (int i = 0; i < n; i++) {
        const dt_knob *k = &knobs[i];
        const void *list = NULL;
        if (is_pointer(k)) list = pointer_at(&o, k);
        if (list == NULL) continue;
        if (k->kind == DT_KNOB_TEXT)
            DT_TRY(dti_packet_put_text(p, list));
        else if (k->kind == DT_KNOB_BIASES)
            DT_TRY(put_biases(p, list, count_at(&o, k)));
        else if (k->kind == DT_KNOB_TOKENS)
            DT_TRY(dti_packet_put_lists(p, &(dt_ids){ list, count_at(&o, k) }, 1));
        else if (k->kind == DT_KNOB_WORDS)
            DT_TRY(dti_packet_put_lists(p, list, count_at(&o, k)));
        else
            for (int64_t j = 0; j < count_at(&o, k); j++)
                DT_TRY(dti_packet_put_text(p, ((const char *const *)list)[j]));
    }
    return DT_OK;
}

/* --- reading ---------------------------------------------------------------------------------- */

dt_status dti_unpack(dti_unpacking *u, size_t n, const void **out)
{
    const size_t whole = (n + UNIT - 1) / UNIT * UNIT;

    DT_CHECK(whole >= n && whole <= (size_t)(u->end - u->at), DT_ERR_INTERNAL,
             "a request's bytes end before %zu more", n);
    *out = u->at;
    u->at += whole;
    return DT_OK;
}

dt_status dti_unpack_copy(dti_unpacking *u, void *to, size_t n)
{
    const void *from;

    DT_TRY(dti_unpack(u, n, &from));
    memcpy(to, from, n);
    return DT_OK;
}

dt_status dti_unpack_text(dti_unpacking *u, const char **out)
{
    const void *text = NULL;
    int64_t n;

    DT_TRY(dti_unpack_copy(u, &n, sizeof n));
    if (n > 0) DT_TRY(dti_unpack(u, (size_t)n, &text));
    *out = text;
    return DT_OK;
}

dt_status dti_unpack_lists(dti_unpacking *u, const dt_ids **out, int64_t *n)
{
    dt_ids *lists;

    DT_TRY(dti_unpack_copy(u, n, sizeof *n));
    DT_TRY(dti_arena_alloc(&u->arena, (size_t)*n * sizeof *lists, (void **)&lists));
    for (int64_t i = 0; i < *n; i++) {
        const void *ids = NULL;
        int64_t length;
        DT_TRY(dti_unpack_copy(u, &length, sizeof length));
        if (length >= 0) DT_TRY(dti_unpack(u, (size_t)length * sizeof(int32_t), &ids));
        lists[i] = (dt_ids){ ids, dti_max(length, 0) };
    }
    *out = lists;
    return DT_OK;
}

dt_status dti_unpack_pieces(dti_unpacking *u, const dt_piece **out, int64_t *n)
{
    dt_piece *pieces;

    DT_TRY(dti_unpack_copy(u, n, sizeof *n));
    DT_TRY(dti_arena_alloc(&u->arena, (size_t)*n * sizeof *pieces, (void **)&pieces));
    for (int64_t i = 0; i < *n; i++) {
        DT_TRY(dti_unpack_copy(u, &pieces[i], sizeof pieces[i]));
        DT_TRY(dti_unpack(u, pieces[i].n_bytes, &pieces[i].data));
    }
    *out = pieces;
    return DT_OK;
}

static dt_status unpack_text(dti_unpacking *u, dt_generate_options *o, const dt_knob *k)
{
    const char *text;

    DT_TRY(dti_unpack_text(u, &text));
    memcpy((char *)o + k->at, &text, sizeof text);
    return DT_OK;
}

static dt_status unpack_texts(dti_unpacking *u, dt_generate_options *o, const dt_knob *k)
{
    const int64_t n = count_at(o, k);
    const char **texts;

    DT_TRY(dti_arena_alloc(&u->arena, (size_t)n * sizeof *texts, (void **)&texts));
    for (int64_t j = 0; j < n; j++) DT_TRY(dti_unpack_text(u, &texts[j]));
    set_list(o, k, texts, n);
    return DT_OK;
}

static dt_status unpack_biases(dti_unpacking *u, dt_generate_options *o, const dt_knob *k)
{
    const int64_t n = count_at(o, k);
    dt_bias *biases;

    DT_TRY(dti_arena_alloc(&u->arena, (size_t)n * sizeof *biases, (void **)&biases));
    for (int64_t j = 0; j < n; j++) {
        const dt_ids *ids;
        int64_t one;
        DT_TRY(dti_unpack_lists(u, &ids, &one));
        biases[j].ids = ids[0];
        DT_TRY(dti_unpack_copy(u, &biases[j].bias, sizeof biases[j].bias));
    }
    set_list(o, k, biases, n);
    return DT_OK;
}

dt_status dti_unpack_options(dti_unpacking *u, dt_generate_options *o)
{
    int n;
    const dt_knob *knobs = dt_generate_knobs(&n);

    DT_TRY(dti_unpack_copy(u, o, sizeof *o));
    for (int i = 0; i < n; i++) {
        const dt_knob *k = &knobs[i];
        const dt_ids *lists;
        int64_t m;
        if (!is_pointer(k) || pointer_at(o, k) == NULL) continue;
        if (k->kind == DT_KNOB_TEXT) {
            DT_TRY(unpack_text(u, o, k));
            continue;
        }
        if (k->kind == DT_KNOB_BIASES) {
            DT_TRY(unpack_biases(u, o, k));
            continue;
        }
        if (k->kind == DT_KNOB_TEXTS) {
            DT_TRY(unpack_texts(u, o, k));
            continue;
        }
        DT_TRY(dti_unpack_lists(u, &lists, &m));
        if (k->kind == DT_KNOB_TOKENS)
            set_list(o, k, lists[0].ids, lists[0].n);
        else
            set_list(o, k, lists, m);
    }
    return DT_OK;
}
