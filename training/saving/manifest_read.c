/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "files/checkpoint.h"
#include "files/checksum.h"
#include "files/input.h"
#include "training/saving/manifest.h"
#include "training/saving/manifest_tail.h"

/* --- the head --------------------------------------------------------------------------------- */

static dt_status parse_seed(const dti_json *root, uint64_t *out)
{
    const dti_json v = dti_json_get(root, "seed");
    const char *text;
    char *end;

    DT_TRY(dti_json_as_string(&v, &text));
    *out = strtoull(text, &end, 10);
    if (text[0] == '\0' || *end != '\0')
        return dti_json_refuse(&v, DT_ERR_FORMAT, "a number in decimal digits");
    return DT_OK;
}

static dt_status parse_facts(const dti_json *object, dti_facts *facts)
{
    const char *key = NULL, *text;
    dti_json value;

    while (dti_json_next(object, &key, &value)) {
        DT_TRY(dti_json_as_string(&value, &text));
        DT_TRY(dti_facts_say(facts, key, text));
    }
    return DT_OK;
}

static dt_status parse_head(const dti_json *root, dti_manifest *m)
{
    dti_manifest_head *h = &m->head;
    const char *format, *checksum;
    dti_json state, facts, model, caller;
    int64_t version;

    DT_TRY(dti_json_string(root, "format", &format));
    DT_TRY(dti_json_int(root, "version", 0, INT64_MAX, &version));
    DT_CHECK(strcmp(format, "dtensor-training") == 0 && version == DTI_MANIFEST_VERSION,
             DT_ERR_FORMAT,
             "%s: is of format \"%.40s\", version %lld; this library reads "
             "\"dtensor-training\", version %d",
             root->file, format, (long long)version, DTI_MANIFEST_VERSION);
    DT_TRY(dti_json_string(root, "checksum", &checksum));
    DT_CHECK(strcmp(checksum, "xxh64") == 0, DT_ERR_FORMAT,
             "%s: checksums are of kind \"%.40s\", must be xxh64", root->file, checksum);
    DT_TRY(dti_json_int(root, "step", 0, INT64_MAX, &h->progress.step));
    DT_TRY(dti_json_int(root, "samples", 0, INT64_MAX, &h->progress.samples));
    DT_TRY(dti_json_int(root, "tokens", 0, INT64_MAX, &h->progress.tokens));
    DT_TRY(parse_seed(root, &h->progress.seed));
    DT_TRY(dti_json_string(root, "mesh", &h->mesh));
    DT_TRY(dti_json_object_or_none(root, "optimizer", &state));
    h->has_state = dti_json_is_set(&state);
    if (h->has_state) {
        DT_TRY(dti_json_int(&state, "steps", 0, INT64_MAX, &h->steps));
        DT_TRY(dti_json_int(&state, "good_steps", 0, INT64_MAX, &h->good_steps));
        DT_TRY(dti_json_number(&state, "loss_scale", 0, 1e300, &h->loss_scale));
    }
    DT_TRY(dti_json_object(root, "facts", &facts));
    DT_TRY(parse_facts(&facts, &h->facts));
    DT_TRY(dti_json_object_or_none(root, "model", &model)); /* once there was none */
    if (dti_json_is_set(&model)) DT_TRY(parse_facts(&model, &h->model));
    DT_TRY(dti_json_object(root, "caller", &caller));
    DT_TRY(dti_json_text(&caller, &m->json));
    h->json = m->json;
    return DT_OK;
}

/* --- files and tensors ------------------------------------------------------------------------ */

static dt_status parse_file(const dti_json *v, dti_snapshot *s)
{
    dti_stored_file file = { 0 };
    const char *checksum;
    char *end;

    DT_TRY(dti_json_string(v, "name", &file.name));
    DT_TRY(dti_json_int(v, "bytes", 0, INT64_MAX, &file.bytes));
    DT_TRY(dti_json_string(v, "checksum", &checksum));
    file.checksum = strtoull(checksum, &end, 16);
    DT_CHECK(strlen(checksum) == 16 && *end == '\0', DT_ERR_FORMAT,
             "%s: checksum \"%.40s\" of %.80s: must be 16 hexadecimal digits", v->file, checksum,
             file.name);
    DT_CHECK(file.name[0] != '.' && strchr(file.name, '/') == NULL, DT_ERR_FORMAT,
             "%s: \"%.80s\" is no name of a file in the folder", v->file, file.name);
    DT_TRY(dti_snapshot_add_file(s, &file));
    return DT_OK;
}

static dt_status parse_numbers(const dti_json *v, int want, int64_t *out, int *n)
{
    DT_TRY(dti_json_as_array(v));
    *n = (int)dti_json_count(v);
    DT_CHECK(want >= 0 ? *n == want : *n <= DT_MAX_AXES, DT_ERR_FORMAT,
             "%s: %s has %d numbers, must have %d%s", v->file, v->path, *n,
             want >= 0 ? want : DT_MAX_AXES, want >= 0 ? "" : " at most");
    for (int a = 0; a < *n; a++) {
        const dti_json item = dti_json_at(v, (size_t)a);
        DT_TRY(dti_json_as_int(&item, 0, INT64_MAX, &out[a]));
    }
    return DT_OK;
}

static dt_status parse_box(const dti_json *v, dti_snapshot *s)
{
    const int n_axes = s->tensors[s->n_tensors - 1].n_axes;
    const dti_json file = dti_json_at(v, 0), begin = dti_json_at(v, 1), extent = dti_json_at(v, 2);
    int64_t number, extents[DT_MAX_AXES];
    dti_stored_box box = { 0 };
    int n;

    DT_TRY(dti_json_as_int(&file, 0, (int64_t)s->n_files - 1, &number));
    box.file = (size_t)number;
    DT_TRY(parse_numbers(&begin, n_axes, box.begin, &n));
    DT_TRY(parse_numbers(&extent, n_axes, extents, &n));
    for (int a = 0; a < n_axes; a++) {
        DT_CHECK(extents[a] <= INT64_MAX - box.begin[a], DT_ERR_FORMAT, "%s: %s: numbers overflow",
                 v->file, v->path);
        box.end[a] = box.begin[a] + extents[a];
    }
    DT_TRY(dti_snapshot_add_box(s, &box));
    return DT_OK;
}

static dt_status parse_dtype(const dti_json *v, dt_dtype *out)
{
    const dti_json dtype = dti_json_get(v, "dtype");
    const char *name;

    DT_TRY(dti_json_as_string(&dtype, &name));
    for (int d = 0; d < DT_N_DTYPES; d++)
        if (strcmp(dt_dtype_name((dt_dtype)d), name) == 0) {
            *out = (dt_dtype)d;
            return DT_OK;
        }
    return dti_json_refuse(&dtype, DT_ERR_FORMAT, "a dtype such as f32 or bf16");
}

static dt_status parse_tensor(const dti_json *v, dti_snapshot *s)
{
    const dti_json shape = dti_json_get(v, "shape");
    dti_stored_tensor t = { 0 };
    int64_t n = 1;
    const char *of;
    dti_json boxes;

    DT_TRY(dti_json_string(v, "name", &t.name));
    DT_TRY(dti_json_string(v, "of", &of));
    t.state = strcmp(of, "optimizer") == 0;
    DT_TRY(parse_dtype(v, &t.dtype));
    DT_TRY(parse_numbers(&shape, -1, t.shape, &t.n_axes));
    for (int a = 0; a < t.n_axes; a++)
        DT_CHECK(dti_mul_i64(n, t.shape[a], &n), DT_ERR_FORMAT, "%s: %s: too many elements",
                 v->file, v->path);
    DT_TRY(dti_json_string(v, "layout", &t.layout));
    DT_TRY(dti_snapshot_add(s, &t));
    DT_TRY(dti_json_array(v, "boxes", &boxes));
    for (size_t i = 0; i < dti_json_count(&boxes); i++) {
        const dti_json box = dti_json_at(&boxes, i);
        DT_TRY(parse_box(&box, s));
    }
    return DT_OK;
}

static dt_status parse(const dti_json *root, dti_manifest *m)
{
    dti_json files, tensors;

    DT_TRY(parse_head(root, m));
    DT_TRY(dti_json_array(root, "files", &files));
    DT_TRY(dti_json_array(root, "tensors", &tensors));
    for (size_t i = 0; i < dti_json_count(&files); i++) {
        const dti_json file = dti_json_at(&files, i);
        DT_TRY(parse_file(&file, &m->snapshot));
    }
    for (size_t i = 0; i < dti_json_count(&tensors); i++) {
        const dti_json tensor = dti_json_at(&tensors, i);
        DT_TRY(parse_tensor(&tensor, &m->snapshot));
    }
    return DT_OK;
}

/* --- all -------------------------------------------------------------------------------------- */

/* The end of the file is what its other bytes make it. */
static dt_status check_end(const char *path, const char *text, size_t n)
{
    char label[DTI_INPUT_LABEL_BYTES], end[DTI_MANIFEST_TAIL_BYTES + 1];
    const size_t above = n >= DTI_MANIFEST_TAIL_BYTES ? n - DTI_MANIFEST_TAIL_BYTES : 0;

    (void)dti_printable(path, label, sizeof label);
    DT_CHECK(n >= DTI_MANIFEST_TAIL_BYTES && memcmp(text + n - 4, "\"\n}\n", 4) == 0, DT_ERR_FORMAT,
             "%s: has %zu bytes and no end: it is cut off; take another step", label, n);
    (void)snprintf(end, sizeof end, DTI_MANIFEST_TAIL, dti_checksum_of(text, above));
    DT_CHECK(memcmp(text + above, end, DTI_MANIFEST_TAIL_BYTES) == 0, DT_ERR_FORMAT,
             "%s: its checksum is another: the file has changed since it was written; take another "
             "step",
             label);
    return DT_OK;
}

dt_status dti_manifest_read(const char *dir, dti_manifest *out)
{
    dt_status st = DT_OK;
    void *text = NULL;
    int64_t n = 0;

    *out = (dti_manifest){ .snapshot = DTI_SNAPSHOT_INIT };
    DT_TRY_TO(fail, st, dti_ckpt_path(dir, DTI_MANIFEST_NAME, &out->path));
    DT_TRY_TO(fail, st, dti_input_read_file(out->path, DTI_JSON_INDEX_BYTES, &text, &n));
    DT_TRY_TO(fail, st, check_end(out->path, text, (size_t)n));
    DT_TRY_TO(fail, st, dti_json_parse(out->path, text, (size_t)n, &out->doc));
    DT_TRY_TO(fail, st, parse(&out->doc.root, out));
    st = dti_snapshot_check_cover(&out->snapshot);
    if (st != DT_OK) dti_error_prefix("%s", out->doc.file);
    DT_TRY_TO(fail, st, st);
    dti_free(text);
    return DT_OK;

fail:
    dti_free(text);
    dti_manifest_free(out);
    return st;
}

void dti_manifest_free(dti_manifest *m)
{
    dti_snapshot_free(&m->snapshot);
    dti_json_free(&m->doc);
    dti_facts_free(&m->head.facts);
    dti_facts_free(&m->head.model);
    dti_free(m->json);
    dti_free(m->path);
    *m = (dti_manifest){ .snapshot = DTI_SNAPSHOT_INIT };
}
