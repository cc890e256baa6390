/* SPDX-License-Identifier: Apache-2.0
 *
 * A row as it is read, once: as strictly as it is used, because a user's own may be malformed. */
#include <string.h>

#include "base/memory.h"
#include "dtensor/ops/op_rules.h"

const dt_op *dt_op_at(int i)
{
    return i >= 0 && i < dti_op_table_size ? dti_op_table[i] : NULL;
}

const dt_op *dt_op_find(const char *name)
{
    for (int i = 0; i < dti_op_table_size && name != NULL; i++)
        if (strcmp(dti_op_table[i]->name, name) == 0) return dti_op_table[i];
    return NULL;
}

const char *dt_op_flag_name(uint32_t flag)
{
    static const char *const names[] = { "LINEAR",    "BILINEAR", "VIEW",     "INPLACE_LAST",
                                         "EXACT",     "MAXIMUM",  "ANY_ROWS", "VALUE_ATTR",
                                         "ADDS_ONCE", "SPREAD",   "UNEVEN",   "CHEAP" };

    for (size_t i = 0; i < DT_COUNT(names); i++)
        if (flag == 1u << i) return names[i];
    return NULL;
}

static bool is_of_library(const dt_op *op)
{
    for (int i = 0; i < dti_op_table_size; i++)
        if (dti_op_table[i] == op) return true;
    return false;
}

/* Views and results in place need rules that look at storage, which the library's rows alone have.
 */
static dt_status check_fields(const dt_op *op)
{
    const uint32_t open = DT_OP_LINEAR | DT_OP_BILINEAR | DT_OP_EXACT_PARTIAL | DT_OP_REDUCE_MAX |
                          DT_OP_ANY_ROWS | DT_OP_VALUE_ATTR | DT_OP_ADDS_ONCE | DT_OP_SPREAD |
                          DT_OP_CHEAP;
    const uint32_t lettered = DT_OP_LINEAR | DT_OP_BILINEAR | DT_OP_REDUCE_MAX;

    DT_CHECK((op->flags & ~open) == 0 || is_of_library(op), DT_ERR_ARG,
             "operator %s has the flags 0x%x, of which 0x%x are not for rows of one's own: views "
             "and results in place are the library's",
             op->name, op->flags, op->flags & ~open);
    DT_CHECK(op->shard == NULL || is_of_library(op), DT_ERR_ARG,
             "operator %s sets .shard, which is for rows of the library; .accepts lists the "
             "placements of a row of one's own",
             op->name);
    DT_CHECK(op->accepts == NULL || (op->flags & lettered) == 0, DT_ERR_ARG,
             "operator %s sets .accepts and the flags 0x%x, which say how placements follow from "
             "letters: write lines with P instead",
             op->name, op->flags & lettered);
    return DT_OK;
}

static dt_status check_types(const dt_op *op, int n_in, int n_out)
{
    const char *end = strchr(op->types, '>');

    DT_CHECK(end != NULL && end - op->types == n_in && strlen(end) == (size_t)n_out + 1 &&
                 strspn(op->types, "Fxfikbd") == (size_t)n_in &&
                 strspn(end + 1, "Fxfikabd") == (size_t)n_out,
             DT_ERR_ARG, "operator %s: types \"%s\" do not fit axes \"%s\"", op->name, op->types,
             op->axes);
    DT_CHECK(
        strchr(end, 'a') == NULL || op->attr_bytes >= sizeof(dt_dtype), DT_ERR_ARG,
        "operator %s: type a of \"%s\" is the dtype that the attributes begin with, which have "
        "%zu bytes",
        op->name, op->types, op->attr_bytes);
    DT_CHECK(strchr(end, 'a') == NULL || (op->flags & DT_OP_VALUE_ATTR) == 0, DT_ERR_ARG,
             "operator %s: type a of \"%s\" is read from the attributes, but DT_OP_VALUE_ATTR says "
             "that no rule looks at them",
             op->name, op->types);
    DT_CHECK((op->flags & DT_OP_VIEW) != 0 || op->cpu != NULL, DT_ERR_ARG,
             "operator %s has no CPU kernel", op->name);
    DT_CHECK(op->backward == NULL || n_in <= 8, DT_ERR_ARG,
             "operator %s has %d operands and a gradient, of which at most 8 can be kept", op->name,
             n_in);
    DT_CHECK(strchr(end, 'F') == NULL || memchr(op->types, 'F', (size_t)n_in) != NULL, DT_ERR_ARG,
             "operator %s: a result of types \"%s\" is F, but no operand is", op->name, op->types);
    return DT_OK;
}

/* The dtypes of results, after checking the operands against the row's type letters. */
dt_status dti_row_dtypes(dt_op_shapes *call)
{
    const char *types = call->op->types, *results = strchr(types, '>') + 1;
    dt_dtype model = DT_N_DTYPES;

    for (int i = 0; i < call->n_in; i++) {
        const dt_dtype t = call->in[i].dtype;
        const bool fits = types[i] == 'F'   ? t == DT_F32 || t == DT_BF16 || t == DT_F16
                          : types[i] == 'x' ? dt_dtype_is_float(t)
                          : types[i] == 'f' ? t == DT_F32
                          : types[i] == 'i' ? t == DT_I32
                          : types[i] == 'b' ? t == DT_U8
                          : types[i] == 'k' ? t == DT_I64
                                            : true;
        DT_CHECK(fits, DT_ERR_SHAPE,
                 "%s \"%s\": operand %d is %s, which type %c of \"%s\" excludes", call->op->name,
                 call->op->axes, i, dt_dtype_name(t), types[i], types);
        if (types[i] != 'F') continue;
        DT_CHECK(model == DT_N_DTYPES || model == t, DT_ERR_SHAPE,
                 "%s \"%s\": operand %d is %s but operands before it are %s: cast one of them",
                 call->op->name, call->op->axes, i, dt_dtype_name(t), dt_dtype_name(model));
        model = t;
    }
    for (int r = 0; r < call->n_out; r++) {
        dt_dtype *y = &call->out[r].dtype;
        *y = results[r] == 'F'                        ? model
             : results[r] == 'f'                      ? DT_F32
             : results[r] == 'i'                      ? DT_I32
             : results[r] == 'k'                      ? DT_I64
             : results[r] == 'b'                      ? DT_U8
             : results[r] == 'x' || results[r] == 'd' ? call->in[0].dtype
                                                      : *(const dt_dtype *)call->attr;
        DT_CHECK(dt_dtype_size(*y) > 0, DT_ERR_ARG, "%s: %d is no dtype", call->op->name, (int)*y);
    }
    return DT_OK;
}

dt_status dti_row_check_attr(const dt_op *op)
{
    const bool values = (op->flags & DT_OP_VALUE_ATTR) != 0 || op->value_bytes > 0;
    const int most = values ? DT_OP_MAX_VALUE_BYTES : DT_OP_MAX_ATTR_BYTES;

    DT_CHECK(op->attr_bytes <= (size_t)most, DT_ERR_ARG,
             "operator %s: %zu bytes of attributes, at most %d are possible", op->name,
             op->attr_bytes, most);
    DT_CHECK(op->value_bytes <= op->attr_bytes && dti_op_key_bytes(op) <= DT_OP_MAX_ATTR_BYTES,
             DT_ERR_ARG,
             "operator %s: %zu of %zu bytes of attributes are values; at most %d others are "
             "possible",
             op->name, op->value_bytes, op->attr_bytes, DT_OP_MAX_ATTR_BYTES);
    return DT_OK;
}

void dti_row_free(dti_row *row)
{
    dti_free(row->accepted);
    row->accepted = NULL;
}

dt_status dti_row_read(const dt_op *op, dti_row *out)
{
    DT_CHECK(op != NULL && op->name != NULL && op->axes != NULL && op->types != NULL, DT_ERR_ARG,
             "an operator needs a name, axes and types");
    *out = (dti_row){ .op = op };
    DT_TRY(dti_row_check_attr(op));
    DT_TRY(dti_letters_parse(op->axes, &out->letters));
    DT_TRY(check_fields(op));
    DT_TRY(check_types(op, out->letters.n_in, out->letters.n_out));
    DT_TRY(dti_cost_read(op, &out->letters, &out->cost));
    DT_TRY(dti_accepts_read(op, &out->letters, out));
    return DT_OK;
}
