/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads the grammar of print.c, and words in place of its letters. */
#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "placements/layout.h"

/* `text` is kept for messages, `at` moves. */
typedef struct reader {
    const char *text;
    const char *at;
} reader;

static void skip_space(reader *r)
{
    while (isspace((unsigned char)*r->at)) r->at++;
}

static bool take(reader *r, char c)
{
    skip_space(r);
    if (*r->at != c) return false;
    r->at++;
    return true;
}

static dt_status expect(reader *r, char c)
{
    DT_CHECK(take(r, c), DT_ERR_ARG, "placement \"%s\": '%c' expected at \"%s\"", r->text, c,
             r->at);
    return DT_OK;
}

static dt_status read_integer(reader *r, int64_t low, int64_t high, int64_t *out)
{
    char *end;

    skip_space(r);
    errno = 0;
    const long long value = strtoll(r->at, &end, 10);
    DT_CHECK(end == r->at || (errno == 0 && value <= high), DT_ERR_ARG,
             "placement \"%s\": the number at \"%s\" is too large, at most %lld is possible",
             r->text, r->at, (long long)high);
    DT_CHECK(end != r->at && value >= low, DT_ERR_ARG,
             "placement \"%s\": a number of at least %lld expected at \"%s\"", r->text,
             (long long)low, r->at);
    r->at = end;
    *out = value;
    return DT_OK;
}

/* The letters at r->at, lower case; longer words than any we know are cut and so match none. */
static void read_word(reader *r, char word[16])
{
    size_t n = 0;

    skip_space(r);
    for (; isalpha((unsigned char)*r->at); r->at++)
        if (n < 15) word[n++] = (char)tolower((unsigned char)*r->at);
    word[n] = '\0';
}

/* "0:3:3:10" into out->numbers. */
static dt_status read_numbers(reader *r, dti_parsed *out, int *n, const int64_t **numbers)
{
    *numbers = &out->numbers[out->n_numbers];
    *n = 0;
    do {
        DT_CHECK(out->n_numbers < DTI_MAX_NUMBERS, DT_ERR_ARG,
                 "placement \"%s\": more than %d offsets and blocks", r->text, DTI_MAX_NUMBERS);
        DT_TRY(read_integer(r, 0, INT64_MAX, &out->numbers[out->n_numbers]));
        out->n_numbers++;
        (*n)++;
    } while (take(r, ':'));
    return DT_OK;
}

static dt_status read_detail(reader *r, dti_parsed *out, dt_placement *p)
{
    char word[16];
    int64_t value;
    int n;

    read_word(r, word);
    if (strcmp(word, "sum") == 0) {
        p->terms = true;
        return DT_OK;
    }
    const bool unit = strcmp(word, "unit") == 0, offsets = strcmp(word, "offsets") == 0;
    const bool blocks = strcmp(word, "blocks") == 0, units = strcmp(word, "units") == 0;
    DT_CHECK(unit || offsets || blocks || units || strcmp(word, "replicas") == 0, DT_ERR_ARG,
             "placement \"%s\": \"%s\" is neither \"unit\" nor \"replicas\", \"sum\", "
             "\"offsets\", \"blocks\" or \"units\"",
             r->text, word);
    DT_TRY(expect(r, '='));
    if (offsets) return read_numbers(r, out, &p->n_offsets, &p->offsets);
    if (blocks) return read_numbers(r, out, &p->n_blocks, &p->blocks);
    if (units) {
        DT_TRY(read_numbers(r, out, &n, &p->units));
        DT_CHECK(n == p->n_blocks, DT_ERR_ARG,
                 "placement \"%s\": %d units of %d blocks: write blocks first, then as many units",
                 r->text, n, p->n_blocks);
        return DT_OK;
    }
    DT_TRY(read_integer(r, 1, unit ? INT64_MAX : INT_MAX, &value));
    if (unit)
        p->unit = value;
    else
        p->replicas = (int)value;
    return DT_OK;
}

static dt_status read_shard(reader *r, dti_parsed *out, dt_placement *p)
{
    int64_t value;

    DT_TRY(expect(r, '('));
    DT_TRY(read_integer(r, INT_MIN, INT_MAX, &value));
    *p = DT_SHARD((int)value);
    while (take(r, ',')) DT_TRY(read_detail(r, out, p));
    DT_TRY(expect(r, ')'));
    if (!take(r, '[')) return DT_OK;
    DT_TRY(read_integer(r, 0, DT_MAX_DIMS - 1, &value));
    p->order = (int)value + 1;
    return expect(r, ']');
}

static dt_status read_partial(reader *r, dt_placement *out)
{
    char word[16];

    *out = DT_PARTIAL(DT_SUM);
    if (!take(r, '(')) return DT_OK;
    read_word(r, word);
    if (strcmp(word, "product") == 0) word[4] = '\0'; /* PyTorch's name of "prod" */
    for (int op = 0; op < DT_N_REDUCES; op++) {
        if (strcmp(word, dti_reduce_name((dt_reduce)op)) != 0) continue;
        out->reduce = (dt_reduce)op;
        return expect(r, ')');
    }
    DT_FAIL(DT_ERR_ARG,
            "placement \"%s\": \"%s\" is no reduction; there are sum, avg, min, max, prod", r->text,
            word);
}

static dt_status read_placement(reader *r, dti_parsed *parsed, dt_placement *out)
{
    char word[16];

    skip_space(r);
    const char *start = r->at;
    /* The short names stand directly before the next placement ("RS(0)"), so one letter at a time.
     */
    read_word(r, word);
    if (strcmp(word, "replicate") == 0) {
        *out = DT_REPLICATE;
        return take(r, '(') ? expect(r, ')') : DT_OK;
    }
    if (strcmp(word, "shard") == 0) return read_shard(r, parsed, out);
    if (strcmp(word, "partial") == 0) return read_partial(r, out);
    r->at = start + (*start != '\0');
    switch (toupper((unsigned char)*start)) {
    case 'R':
        *out = DT_REPLICATE;
        return DT_OK;
    case 'S':
        return read_shard(r, parsed, out);
    case 'P':
        return read_partial(r, out);
    default:
        DT_FAIL(DT_ERR_ARG,
                "placement \"%s\": \"%s\" is no placement; write replicate, shard(axis) or "
                "partial(sum), or short R, S(axis), P(sum)",
                r->text, start);
    }
}

dt_status dti_placements_parse(const char *text, int n_dims, dti_parsed *out)
{
    reader r = { text, text };

    out->n_numbers = 0;
    DT_CHECK(text != NULL, DT_ERR_ARG, "the placements' text is NULL");
    DT_CHECK(n_dims >= 1 && n_dims <= DT_MAX_DIMS, DT_ERR_ARG, "%d mesh dims: 1 to %d are possible",
             n_dims, DT_MAX_DIMS);
    for (int m = 0; m < n_dims; m++) {
        skip_space(&r);
        DT_CHECK(*r.at != '\0', DT_ERR_ARG, "placements \"%s\": %d given, the mesh has %d dim%s",
                 text, m, n_dims, n_dims == 1 ? "" : "s");
        DT_TRY(read_placement(&r, out, &out->place[m]));
    }
    skip_space(&r);
    DT_CHECK(*r.at == '\0', DT_ERR_ARG, "placements \"%s\": \"%s\" follows, the mesh has %d dim%s",
             text, r.at, n_dims, n_dims == 1 ? "" : "s");
    return DT_OK;
}

static void name_text(const char *text)
{
    dti_error_prefix("placements \"%s\"", text);
}

dt_status dt_layouts_parse(dt_layouts *layouts, const char *mesh, int n_axes, const char *text,
                           const dt_layout **out)
{
    char names[DT_MAX_DIMS][DT_DIM_NAME_BYTES];
    int sizes[DT_MAX_DIMS], n_dims, n_ranks;
    dti_parsed parsed;
    dt_status st;

    DT_CHECK(out != NULL, DT_ERR_ARG, "out is NULL");
    *out = NULL;
    DT_CHECK(layouts != NULL && mesh != NULL, DT_ERR_ARG, "layouts or mesh is NULL");
    DT_TRY(dt_mesh_parse(mesh, &n_dims, names, sizes, &n_ranks));
    DT_TRY(dti_placements_parse(text, n_dims, &parsed));
    st = dti_layout_intern(layouts, n_dims, sizes, n_axes, parsed.place, NULL, out);
    if (st == DT_OK) return DT_OK;
    name_text(text);
    return dti_error_frame(st, __func__, __FILE__, __LINE__);
}

dt_status dt_layout_parse(dt_mesh *mesh, int n_axes, const char *text, const dt_layout **out)
{
    dti_parsed parsed;
    dt_status st;

    DT_CHECK(out != NULL, DT_ERR_ARG, "out is NULL");
    *out = NULL;
    DT_CHECK(mesh != NULL, DT_ERR_ARG, "mesh is NULL");
    DT_TRY(dti_placements_parse(text, dt_mesh_n_dims(mesh), &parsed));
    st = dt_layout_get(mesh, n_axes, parsed.place, NULL, out);
    if (st == DT_OK) return DT_OK;
    name_text(text);
    return dti_error_frame(st, __func__, __FILE__, __LINE__);
}
