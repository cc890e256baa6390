/* SPDX-License-Identifier: Apache-2.0
 *
 * What lies beside a file of tokens. FILE.json says what it is made of and by which tokenizer;
 * FILE.mask has the runs of tokens that no model is taught to say, the prompts of chats: "DTMASK1"
 * and a zero byte, how many tokens the file has and how many runs follow (u64 each), then first
 * token and the one behind the last of each run (u64 each), rising. docs/data.md has both. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/memory.h"
#include "base/numbers.h"
#include "files/folder.h"
#include "training/data/side_files.h"

typedef struct run {
    int64_t begin, end;
} run;

static dt_status run_at(dti_token_file *f, int64_t i, run *out)
{
    const unsigned char *p;

    DT_TRY(
        dti_mapped_at(&f->mask, DTI_MASK_HEADER_BYTES + (int64_t)sizeof *out * i, sizeof *out, &p));
    memcpy(out, p, sizeof *out);
    return DT_OK;
}

static dt_status check_mask(dti_token_file *f)
{
    const char *label = f->mask.in.label;
    const int64_t bytes = f->mask.in.bytes;
    int64_t n_tokens, before = 0;
    const unsigned char *p;
    run r;

    DT_CHECK(bytes >= DTI_MASK_HEADER_BYTES, DT_ERR_FORMAT,
             "%s: has %lld bytes, the header of a mask alone has %d", label, (long long)bytes,
             DTI_MASK_HEADER_BYTES);
    DT_TRY(dti_mapped_at(&f->mask, 0, DTI_MASK_HEADER_BYTES, &p));
    DT_CHECK(memcmp(p, DTI_MASK_MAGIC, sizeof DTI_MASK_MAGIC) == 0, DT_ERR_FORMAT,
             "%s: does not begin with DTMASK1: is no mask of tokens", label);
    memcpy(&n_tokens, p + 8, sizeof n_tokens);
    memcpy(&f->n_runs, p + 16, sizeof f->n_runs);
    DT_CHECK(n_tokens == f->n, DT_ERR_FORMAT, "%s: is of %lld tokens, %s has %lld", label,
             (long long)n_tokens, f->tokens.in.label, (long long)f->n);
    DT_CHECK(f->n_runs >= 0 && f->n_runs <= bytes / 16 &&
                 bytes == DTI_MASK_HEADER_BYTES + 16 * f->n_runs,
             DT_ERR_FORMAT, "%s: says %lld runs of 16 bytes behind %d, the file has %lld bytes",
             label, (long long)f->n_runs, DTI_MASK_HEADER_BYTES, (long long)bytes);
    for (int64_t i = 0; i < f->n_runs; i++, before = r.end) {
        DT_TRY(run_at(f, i, &r));
        DT_CHECK(r.begin >= before && r.end > r.begin && r.end <= f->n, DT_ERR_FORMAT,
                 "%s: run %lld is of tokens %lld to %lld, behind %lld and of %lld", label,
                 (long long)i, (long long)r.begin, (long long)r.end, (long long)before,
                 (long long)f->n);
    }
    return DT_OK;
}

dt_status dti_token_file_mark_masked(dti_token_file *f, int64_t first, int64_t n,
                                     unsigned char flag, unsigned char *flags)
{
    int64_t low = 0, high = f->n_runs;
    run r;

    while (low < high) { /* the first that ends behind `first` */
        const int64_t middle = low + (high - low) / 2;
        DT_TRY(run_at(f, middle, &r));
        if (r.end <= first)
            low = middle + 1;
        else
            high = middle;
    }
    for (; low < f->n_runs; low++) {
        DT_TRY(run_at(f, low, &r));
        if (r.begin >= first + n) break;
        for (int64_t i = dti_max(r.begin, first); i < dti_min(r.end, first + n); i++)
            flags[i - first] |= flag;
    }
    return DT_OK;
}

/* --- FILE.json -------------------------------------------------------------------------------- */

static dt_status check_facts(dti_token_file *f, const dti_json_doc *doc, const dti_token_wish *wish,
                             bool has_mask)
{
    const char *tokenizer, *checksum;
    int64_t n, documents, masked, begin, end;
    char hash[20];

    DT_TRY(dti_json_int(&doc->root, "tokens", 0, INT64_MAX, &n));
    DT_TRY(dti_json_int_or(&doc->root, "documents", -1, 0, INT64_MAX, &documents));
    DT_TRY(dti_json_int_or(&doc->root, "masked", 0, 0, INT64_MAX, &masked));
    DT_TRY(dti_json_int_or(&doc->root, "begin_token", -1, 0, INT32_MAX, &begin));
    DT_TRY(dti_json_int_or(&doc->root, "end_token", -1, 0, INT32_MAX, &end));
    DT_TRY(dti_json_string_or(&doc->root, "tokenizer", "", &tokenizer));
    DT_TRY(dti_json_string_or(&doc->root, "xxh64", "", &checksum));
    (void)snprintf(f->checksum, sizeof f->checksum, "%s", checksum);
    DT_CHECK(n == f->n, DT_ERR_FORMAT, "%s: has %lld tokens, %s says %lld", f->tokens.in.label,
             (long long)f->n, doc->file, (long long)n);
    DT_CHECK(documents < 0 || f->n_documents < 0 || documents == f->n_documents, DT_ERR_FORMAT,
             "%s: has %lld documents, %s says %lld", f->index.in.label, (long long)f->n_documents,
             doc->file, (long long)documents);
    DT_CHECK(
        masked == 0 || has_mask, DT_ERR_FORMAT,
        "%s: %lld of its tokens are masked, as %s says, and there is no %s.mask: prompts would "
        "be learned",
        f->tokens.in.label, (long long)masked, doc->file, f->tokens.in.label);
    (void)snprintf(hash, sizeof hash, "%016llx", (unsigned long long)wish->tokenizer);
    DT_CHECK(wish->tokenizer == 0 || tokenizer[0] == '\0' || strcmp(hash, tokenizer) == 0,
             DT_ERR_FORMAT,
             "%s: is of another tokenizer than the model's: %s names %.20s, the model's is %s; "
             "tokenize the text by the model's own",
             f->tokens.in.label, doc->file, tokenizer, hash);
    DT_CHECK(wish->vocab_size <= 0 || dti_max(begin, end) < wish->vocab_size, DT_ERR_FORMAT,
             "%s: %s says that documents begin with token %lld and end with %lld (-1: none); the "
             "model's ids are 0 to %lld",
             f->tokens.in.label, doc->file, (long long)begin, (long long)end,
             (long long)wish->vocab_size - 1);
    if (begin >= 0 || end >= 0) { /* it knows better than who reads it */
        f->begin_token = (int32_t)begin;
        f->end_token = (int32_t)end;
    }
    return DT_OK;
}

static dt_status beside(const char *path, const char *ending, char out[DTI_PATH_BYTES], bool *has)
{
    struct stat info;
    const int n = snprintf(out, DTI_PATH_BYTES, "%s%s", path, ending);

    DT_CHECK(n > 0 && n < DTI_PATH_BYTES, DT_ERR_ARG, "the path %.100s... is too long", path);
    *has = lstat(out, &info) == 0 || (errno != ENOENT && errno != ENOTDIR);
    return DT_OK;
}

dt_status dti_side_files_read(dti_token_file *f, const char *path, const dti_token_wish *wish)
{
    char facts[DTI_PATH_BYTES], mask[DTI_PATH_BYTES];
    bool has_facts, has_mask;
    dti_json_doc doc = { 0 };
    dt_status st;

    f->begin_token = wish->begin_token;
    f->end_token = wish->end_token;
    DT_TRY(beside(path, DTI_FACTS_ENDING, facts, &has_facts));
    DT_TRY(beside(path, DTI_MASK_ENDING, mask, &has_mask));
    if (has_mask) {
        DT_TRY(dti_mapped_open(mask, &f->mask));
        DT_TRY(check_mask(f));
    }
    if (!has_facts) return DT_OK;
    DT_TRY(dti_json_read(facts, DTI_JSON_CONFIG_BYTES, &doc));
    st = check_facts(f, &doc, wish, has_mask);
    dti_json_free(&doc);
    return st;
}
