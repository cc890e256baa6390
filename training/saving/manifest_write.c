/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "base/writer.h"
#include "files/checkpoint.h"
#include "files/checksum.h"
#include "files/output.h"
#include "training/saving/manifest.h"
#include "training/saving/manifest_tail.h"

dt_status dti_manifest_check_json(const char *json)
{
    dti_json_doc doc;

    DT_TRY(dti_json_parse("the caller's json", json, strlen(json), &doc));
    dti_json_free(&doc);
    return DT_OK;
}

static void put_facts(dti_writer *w, const char *name, const dti_facts *facts)
{
    dti_put(w, ",\n  \"%s\": {", name);
    for (int i = 0; i < facts->n; i++) {
        dti_put(w, i > 0 ? ",\n    " : "\n    ");
        dti_put_json(w, facts->list[i].what);
        dti_put(w, ": ");
        dti_put_json(w, facts->list[i].value);
    }
    dti_put(w, "%s}", facts->n > 0 ? "\n  " : "");
}

static void put_head(dti_writer *w, const dti_manifest_head *h)
{
    char number[DTI_NUMBER_BYTES];

    dti_put(w, "{\n  \"format\": \"dtensor-training\",\n  \"version\": %d,\n",
            DTI_MANIFEST_VERSION);
    dti_put(w, "  \"step\": %lld,\n  \"samples\": %lld,\n  \"tokens\": %lld,\n",
            (long long)h->progress.step, (long long)h->progress.samples,
            (long long)h->progress.tokens);
    dti_put(w, "  \"seed\": \"%" PRIu64 "\",\n  \"mesh\": ", h->progress.seed);
    dti_put_json(w, h->mesh);
    if (h->has_state)
        dti_put(
            w, ",\n  \"optimizer\": { \"steps\": %lld, \"loss_scale\": %s, \"good_steps\": %lld }",
            (long long)h->steps, dti_number_text(h->loss_scale, number), (long long)h->good_steps);
    put_facts(w, "facts", &h->facts);
    put_facts(w, "model", &h->model);
    dti_put(w, ",\n  \"caller\": %s", h->json);
}

static void put_numbers(dti_writer *w, const int64_t *numbers, int n)
{
    dti_put(w, "[");
    for (int a = 0; a < n; a++) dti_put(w, "%s%lld", a > 0 ? ", " : "", (long long)numbers[a]);
    dti_put(w, "]");
}

static void put_tensor(dti_writer *w, const dti_snapshot *s, const dti_stored_tensor *t)
{
    dti_put(w, "    { \"name\": ");
    dti_put_json(w, t->name);
    dti_put(w, ", \"of\": \"%s\", \"dtype\": \"%s\", \"shape\": ", t->state ? "optimizer" : "model",
            dt_dtype_name(t->dtype));
    put_numbers(w, t->shape, t->n_axes);
    dti_put(w, ", \"layout\": ");
    dti_put_json(w, t->layout);
    dti_put(w, ", \"boxes\": [");
    for (size_t i = t->first; i < t->first + t->n; i++) {
        int64_t extent[DT_MAX_AXES];
        for (int a = 0; a < t->n_axes; a++) extent[a] = s->boxes[i].end[a] - s->boxes[i].begin[a];
        dti_put(w, "%s[%zu, ", i > t->first ? ", " : "", s->boxes[i].file);
        put_numbers(w, s->boxes[i].begin, t->n_axes);
        dti_put(w, ", ");
        put_numbers(w, extent, t->n_axes);
        dti_put(w, "]");
    }
    dti_put(w, "] }");
}

static void put_manifest(dti_writer *w, const dti_manifest_head *h, const dti_snapshot *s)
{
    put_head(w, h);
    dti_put(w, ",\n  \"checksum\": \"xxh64\",\n  \"files\": [");
    for (size_t i = 0; i < s->n_files; i++) {
        dti_put(w, "%s    { \"name\": ", i > 0 ? ",\n" : "\n");
        dti_put_json(w, s->files[i].name);
        dti_put(w, ", \"bytes\": %lld, \"checksum\": \"%016" PRIx64 "\" }",
                (long long)s->files[i].bytes, s->files[i].checksum);
    }
    dti_put(w, "\n  ],\n  \"tensors\": [");
    for (size_t i = 0; i < s->n_tensors; i++) {
        dti_put(w, i > 0 ? ",\n" : "\n");
        put_tensor(w, s, &s->tensors[i]);
    }
    dti_put(w, "\n  ]");
}

dt_status dti_manifest_write(const char *dir, const dti_manifest_head *head, const dti_snapshot *s)
{
    dti_writer w = { 0 };
    dt_status st = DT_OK;
    char *path = NULL;
    dti_output out;

    put_manifest(&w, head, s);
    w.bytes = w.used + DTI_MANIFEST_TAIL_BYTES + 1;
    w.used = 0;
    DT_TRY_TO(done, st, dti_alloc(w.bytes, (void **)&w.text));
    put_manifest(&w, head, s);
    dti_put(&w, DTI_MANIFEST_TAIL, dti_checksum_of(w.text, w.used));
    DT_TRY_TO(done, st, dti_ckpt_path(dir, DTI_MANIFEST_NAME, &path));
    DT_TRY_TO(done, st, dti_output_open(&out, path, NULL));
    st = dti_output_close(&out, dti_output_write(&out, w.text, w.used));
done:
    dti_free(path);
    dti_free(w.text);
    return st;
}
