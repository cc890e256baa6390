/* SPDX-License-Identifier: Apache-2.0
 *
 * The text of dt_run_options.fault: "rank=1,op=all_reduce,call=3". */
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "base/writer.h"
#include "mesh/comm/comm.h"

static bool parse_number(const char *text, size_t n, int64_t *out)
{
    char digits[16];
    char *end;

    if (n == 0 || n >= sizeof digits || text[0] < '0' || text[0] > '9') return false;
    memcpy(digits, text, n);
    digits[n] = '\0';
    *out = strtoll(digits, &end, 10);
    return *end == '\0';
}

static bool parse_op(const char *text, size_t n, int *out)
{
    if (n == 3 && memcmp(text, "any", 3) == 0) {
        *out = -1;
        return true;
    }
    for (int op = 0; op < DTI_COMM_N_OPS; op++) {
        const char *name = dti_comm_op_name((dti_comm_op)op);
        if (strlen(name) == n && memcmp(name, text, n) == 0) {
            *out = op;
            return true;
        }
    }
    return false;
}

/* Which of the keys an item gives; -1: none. */
static int key_of(const char *item, size_t n)
{
    static const char *const keys[] = { "rank", "op", "call" };

    for (int i = 0; i < (int)DT_COUNT(keys); i++) {
        const size_t k = strlen(keys[i]);
        if (n > k && memcmp(item, keys[i], k) == 0 && item[k] == '=') return i;
    }
    return -1;
}

/* One "key=value". */
static bool parse_item(const char *item, size_t n, dti_fault *f)
{
    const char *equals = memchr(item, '=', n);
    const char *value;
    size_t key_n, value_n;
    int64_t rank;

    if (equals == NULL) return false;
    key_n = (size_t)(equals - item);
    value = equals + 1;
    value_n = n - key_n - 1;
    if (key_n == 2 && memcmp(item, "op", 2) == 0) return parse_op(value, value_n, &f->op);
    if (key_n == 4 && memcmp(item, "call", 4) == 0)
        return parse_number(value, value_n, &f->call) && f->call >= 1;
    if (key_n != 4 || memcmp(item, "rank", 4) != 0) return false;
    if (!parse_number(value, value_n, &rank) || rank > INT32_MAX) return false;
    f->rank = (int)rank;
    return true;
}

/* "barrier, broadcast, ..., any": what op= takes. */
static const char *list_ops(char *text, size_t bytes)
{
    dti_writer w = { text, bytes, 0 };

    for (int op = 0; op < DTI_COMM_N_OPS; op++)
        dti_put(&w, "%s, ", dti_comm_op_name((dti_comm_op)op));
    dti_put(&w, "any");
    return text;
}

dt_status dti_fault_parse(const char *text, dti_fault *out)
{
    dti_fault f = { .rank = -1, .op = -1, .call = 1 };
    char whole[DTI_SHOWN_BYTES], ops[160];
    unsigned given = 0; /* a bit per key */

    (void)dti_printable(text, whole, sizeof whole);
    for (const char *p = text;;) {
        const size_t n = strcspn(p, ",");
        const int key = key_of(p, n);
        DT_CHECK(parse_item(p, n, &f), DT_ERR_ARG,
                 "fault \"%s\": \"%.*s\" is not understood; write rank=R,op=NAME,call=N with R "
                 "from 0, N from 1 and one of the operations %s",
                 whole, (int)(n < 60 ? n : 60), p, list_ops(ops, sizeof ops));
        DT_CHECK(key < 0 || (given >> key & 1u) == 0, DT_ERR_ARG,
                 "fault \"%s\": \"%.*s\" gives its key a second time; a fault has one rank, one "
                 "operation and one call",
                 whole, (int)(n < 60 ? n : 60), p);
        if (key >= 0) given |= 1u << key;
        if (p[n] == '\0') break;
        p += n + 1;
    }
    DT_CHECK(f.rank >= 0, DT_ERR_ARG, "fault \"%s\" names no rank; write rank=R,op=NAME,call=N",
             whole);
    *out = f;
    return DT_OK;
}
