/* SPDX-License-Identifier: Apache-2.0
 *
 * Every operator, one row each: the page to read first.
 *
 * `axes` names axes by letter. "..." is any leading axes; [x] must be whole on every rank. AXES in
 * the rule columns reads the shape rule and the sharding rule from it: a sharded letter that
 * reaches the result leaves Shard, one that vanishes leaves Partial. A row whose shapes or sharding
 * the letters cannot say names its own function instead (rules_*.c).
 *
 * `types`: F one float dtype for all, x any float, f f32, i i32, k i64 keys, b u8 masks, d any; a
 * the dtype that the attributes begin with.
 *
 * Cost: "2 ...oi" is two operations for each combination of those letters; "0 : ..., ...d -> ...d"
 * also says what is touched of operands and results. WORK names a function.
 *
 * GRADIENT, where a row has one, stands behind the cost: the function that builds the backward of
 * other rows (gradients_*.c), and which operands and results it needs until then.
 *
 * Partial operands: LINEAR passes them on if every operand is Partial, BILINEAR if exactly one is;
 * any other row asks for them to be reduced first. So it is with terms that neighbours hold. VIEW
 * rows share their operand's storage. ANY rows take packed operands, whose local rows do not
 * follow each other in the whole. SPREAD rows repeat operands along axes of which they have one
 * element. */
#include "dtensor/kernels/attrs.h"
#include "dtensor/kernels/cpu/cpu.h"
#include "dtensor/ops/op_rules.h"
#include "dtensor/ops/row_gradients.h"

#define AXES              /* what the axes say */
#define EXTENTS(f)        .extents = dti_##f##_extents,
#define SHARD(f)          .shard = dti_##f##_shard,
#define RULES(e, s)       EXTENTS(e) SHARD(s)
#define LINES(f)          .accepts = dti_##f##_lines,
#define ACCEPTS(f)        EXTENTS(f) LINES(f)
#define dti_none_cpu      NULL
#define ATTR(a)           sizeof(dti_##a##_attr)
#define LINEAR            DT_OP_LINEAR
#define BILINEAR          DT_OP_BILINEAR
#define VIEW              DT_OP_VIEW
#define EXACT             DT_OP_EXACT_PARTIAL
#define MAXIMUM           DT_OP_REDUCE_MAX
#define IN_PLACE          DT_OP_INPLACE_LAST
#define ANY               DT_OP_ANY_ROWS
#define VALUE             DT_OP_VALUE_ATTR
#define ONCE              DT_OP_ADDS_ONCE
#define SPREAD            DT_OP_SPREAD
#define UNEVEN            DT_OP_UNEVEN
#define CHEAP             DT_OP_CHEAP
#define LETTERS           NULL /* one for each combination of all letters, two in products */
#define WORK(f)           NULL, .work = dti_##f##_work
#define GRADIENT(f, kept) , .backward = dti_##f##_gradient, .keeps = (kept) /* behind the cost */
#define IN(i)             DT_OP_KEEPS_IN(i)
#define OUT(r)            DT_OP_KEEPS_OUT(r)
#define FORM(i)           DT_OP_KEEPS_FORM(i)
#define NOTHING           0
#define WHOLE             DT_OP_KEEPS_WHOLE
#define OPERANDS          255u /* all that the row has */
#define FACTORS           IN(0) | IN(1) | DT_OP_KEEPS_CROSS
#define ROW(row, letters, type, rules, kernel, flag, bytes, work_of) \
    const dt_op dti_op_##row = { .name = #row,                       \
                                 .axes = letters,                    \
                                 .types = type,                      \
                                 rules.cpu = dti_##kernel##_cpu,     \
                                 .flags = flag,                      \
                                 .attr_bytes = bytes,                \
                                 .cost = work_of };

/* Attributes end with what dropout is keyed by, for the kernel alone. */
#define TRAINED(row, letters, type, rule, kernel, work_of)                               \
    const dt_op dti_op_##row = { .name = #row,                                           \
                                 .axes = letters,                                        \
                                 .types = type,                                          \
                                 RULES(rule, rule).cpu = dti_##kernel##_cpu,             \
                                 .attr_bytes = ATTR(attention_train),                    \
                                 .value_bytes = ATTR(attention_train) - ATTR(attention), \
                                 .cost = work_of };

/* clang-format off */
/*  name         axes                         types  extents, sharding     CPU kernel  flags                  attr         cost, gradient */
/* elementwise */
ROW(add,         "..., ... -> ...",           "FF>F", AXES,                add,        ANY | LINEAR | SPREAD, 0,          LETTERS GRADIENT(add, NOTHING))
ROW(sub,         "..., ... -> ...",           "FF>F", AXES,                sub,        ANY | LINEAR | SPREAD, 0,          LETTERS GRADIENT(sub, NOTHING))
ROW(mul,         "..., ... -> ...",           "FF>F", AXES,                mul,        ANY | BILINEAR | SPREAD, 0,        LETTERS GRADIENT(mul, FACTORS))
ROW(div,         "..., ... -> ...",           "FF>F", SHARD(first),        div,        ANY | BILINEAR | SPREAD, 0,        LETTERS GRADIENT(div, IN(0) | IN(1)))
ROW(where,       "..., ..., ... -> ...",      "bFF>F", AXES,               where,      ANY | LINEAR | SPREAD, 0,          LETTERS GRADIENT(where, IN(0) | WHOLE))
ROW(compare,     "..., ... -> ...",           "FF>b", AXES,                compare,    ANY | SPREAD,          ATTR(compare), LETTERS)
/* functions of one element: kernels/formulas.h */
ROW(neg,         "... -> ...",                "F>F", AXES,                 neg,        ANY | LINEAR,          0,           LETTERS GRADIENT(neg, NOTHING))
ROW(exp,         "... -> ...",                "F>F", AXES,                 exp,        ANY | CHEAP,                 0,           "1 ..." GRADIENT(curve, IN(0)))
ROW(log,         "... -> ...",                "F>F", AXES,                 log,        ANY | CHEAP,                 0,           "1 ..." GRADIENT(curve, IN(0)))
ROW(sqrt,        "... -> ...",                "F>F", AXES,                 sqrt,       ANY | CHEAP,                 0,           "1 ..." GRADIENT(curve, IN(0)))
ROW(rsqrt,       "... -> ...",                "F>F", AXES,                 rsqrt,      ANY | CHEAP,                 0,           "2 ..." GRADIENT(curve, IN(0)))
ROW(tanh,        "... -> ...",                "F>F", AXES,                 tanh,       ANY | CHEAP,                 0,           "1 ..." GRADIENT(curve, IN(0)))
ROW(sigmoid,     "... -> ...",                "F>F", AXES,                 sigmoid,    ANY | CHEAP,                 0,           "4 ..." GRADIENT(curve, IN(0)))
ROW(relu,        "... -> ...",                "F>F", AXES,                 relu,       ANY | CHEAP,                 0,           "1 ..." GRADIENT(curve, IN(0)))
ROW(relu2,       "... -> ...",                "F>F", AXES,                 relu2,      ANY | CHEAP,                 0,           "2 ..." GRADIENT(curve, IN(0)))
ROW(relu6,       "... -> ...",                "F>F", AXES,                 relu6,      ANY | CHEAP,                 0,           "2 ..." GRADIENT(curve, IN(0)))
ROW(leaky_relu,  "... -> ...",                "F>F", AXES,                 leaky_relu, ANY | CHEAP,                 0,           "2 ..." GRADIENT(curve, IN(0)))
ROW(hardswish,   "... -> ...",                "F>F", AXES,                 hardswish,  ANY | CHEAP,                 0,           "5 ..." GRADIENT(curve, IN(0)))
ROW(softplus,    "... -> ...",                "F>F", AXES,                 softplus,   ANY | CHEAP,                 0,           "5 ..." GRADIENT(curve, IN(0)))
ROW(sqrtsoftplus, "... -> ...",                "F>F", AXES,                 sqrtsoftplus, ANY | CHEAP,                 0,           "6 ..." GRADIENT(curve, IN(0)))
ROW(silu,        "... -> ...",                "F>F", AXES,                 silu,       ANY | CHEAP,                 0,           "4 ..." GRADIENT(curve, IN(0)))
ROW(quick_gelu,  "... -> ...",                "F>F", AXES,                 quick_gelu, ANY | CHEAP,                 0,           "6 ..." GRADIENT(curve, IN(0)))
ROW(mish,        "... -> ...",                "F>F", AXES,                 mish,       ANY | CHEAP,                 0,           "8 ..." GRADIENT(curve, IN(0)))
ROW(laplace,     "... -> ...",                "F>F", AXES,                 laplace,    ANY | CHEAP,                 0,           "5 ..." GRADIENT(curve, IN(0)))
ROW(gelu,        "... -> ...",                "F>F", AXES,                 gelu,       ANY | CHEAP,                 0,           "5 ..." GRADIENT(curve, IN(0)))
ROW(gelu_10,     "... -> ...",                "F>F", AXES,                 gelu_10,    ANY | CHEAP,                 0,           "6 ..." GRADIENT(curve, IN(0)))
ROW(gelu_python, "... -> ...",                "F>F", AXES,                 gelu_python, ANY | CHEAP,                 0,           "5 ..." GRADIENT(curve, IN(0)))
ROW(gelu_tanh,   "... -> ...",                "F>F", AXES,                 gelu_tanh,  ANY | CHEAP,                 0,           "9 ..." GRADIENT(curve, IN(0)))
ROW(gelu_new,    "... -> ...",                "F>F", AXES,                 gelu_new,   ANY | CHEAP,                 0,           "9 ..." GRADIENT(curve, IN(0)))
ROW(gelu_fast,   "... -> ...",                "F>F", AXES,                 gelu_fast,  ANY | CHEAP,                 0,           "9 ..." GRADIENT(curve, IN(0)))
/* the rest of what treats elements alone */
ROW(silu_mul,    "..., ... -> ...",           "FF>F", AXES,                silu_mul,   ANY | CHEAP,                 0,           "5 ..." GRADIENT(silu_mul, IN(0) | IN(1)))
ROW(gelu_tanh_mul, "..., ... -> ...",         "FF>F", AXES,                gelu_tanh_mul, ANY | CHEAP,              0,           "10 ..." GRADIENT(gelu_tanh_mul, IN(0) | IN(1)))
ROW(soft_cap,    "... -> ...",                "F>F", AXES,                 soft_cap,   ANY | VALUE,           ATTR(scalar), "3 ..." GRADIENT(soft_cap, OUT(0)))
ROW(cast,        "... -> ...",                "x>a", AXES,                 cast,       ANY,                   ATTR(dtype), "0" GRADIENT(cast, NOTHING))
ROW(add_scalar,  "... -> ...",                "F>F", SHARD(add_scalar),    add_scalar, ANY | VALUE | ONCE,    ATTR(scalar), LETTERS GRADIENT(add_scalar, NOTHING))
ROW(mul_scalar,  "... -> ...",                "F>F", AXES,                 mul_scalar, ANY | VALUE | LINEAR,  ATTR(scalar), LETTERS GRADIENT(mul_scalar, NOTHING))
/* reductions over an axis of the caller's or over all */
ROW(sum,         "... -> ...",                "F>a", RULES(reduce, sum),   sum,        ANY | LINEAR,          ATTR(reduce), LETTERS GRADIENT(sum, NOTHING))
ROW(max,         "... -> ...",                "F>a", RULES(extreme, max),  max,        ANY,                   ATTR(reduce), LETTERS GRADIENT(extreme, IN(0) | OUT(0) | WHOLE))
ROW(min,         "... -> ...",                "F>a", RULES(extreme, min),  min,        ANY,                   ATTR(reduce), LETTERS GRADIENT(extreme, IN(0) | OUT(0) | WHOLE))
/* products */
ROW(linear,      "...i, oi -> ...o",          "FF>a", AXES,                linear,     ANY | BILINEAR,        ATTR(dtype), "2 ...oi" GRADIENT(linear, FACTORS))
ROW(linear_bias, "...[i], o[i], o -> ...o",   "FFF>a", AXES,               linear,     ANY,                   ATTR(dtype), "2 ...oi + 1 ...o" GRADIENT(linear_bias, FACTORS))
ROW(linear_packed, "...i, oj, og -> ...o",    "Fbx>a", RULES(linear_packed, linear_packed), linear_packed, ANY | BILINEAR, ATTR(packed), "2 ...oi")
ROW(linear_packed_zeros, "...i, oj, og, og -> ...o", "Fbxb>a", RULES(linear_packed, linear_packed), linear_packed, ANY | BILINEAR, ATTR(packed), "2 ...oi")
ROW(linear_e4m3, "...i, oj, og -> ...o",      "Fbx>a", RULES(linear_packed, linear_packed), linear_e4m3, ANY | BILINEAR, ATTR(packed), "2 ...oi")
ROW(add_bias,    "...o, o -> ...o",           "xF>a", AXES,                add_bias,   ANY | LINEAR,          ATTR(dtype), "1 ...o" GRADIENT(add_bias, NOTHING))
ROW(matmul,      "...ik, ...kj -> ...ij",     "FF>a", AXES,                matmul,     ANY | BILINEAR,        ATTR(matmul), "2 ...ikj" GRADIENT(matmul, FACTORS))
ROW(matmul_nt,   "...ik, ...jk -> ...ij",     "FF>a", AXES,                matmul,     ANY | BILINEAR,        ATTR(matmul), "2 ...ikj" GRADIENT(matmul, FACTORS))
ROW(matmul_tn,   "...ki, ...kj -> ...ij",     "FF>a", AXES,                matmul,     ANY | BILINEAR,        ATTR(matmul), "2 ...ikj" GRADIENT(matmul, FACTORS))
ROW(matmul_tt,   "...ki, ...jk -> ...ij",     "FF>a", AXES,                matmul,     ANY | BILINEAR,        ATTR(matmul), "2 ...ikj" GRADIENT(matmul, FACTORS))
ROW(linear_backward_x, "...o, oi -> ...i",    "FF>a", AXES,                linear_backward_x, ANY | BILINEAR, ATTR(dtype), "2 ...oi")
ROW(linear_backward_w, "...o, ...i -> oi",    "FF>f", AXES,                linear_backward_w, ANY | BILINEAR, 0,           "2 ...oi")
ROW(add_bias_backward, "...o -> o",           "F>f", AXES,                 add_bias_backward, ANY | LINEAR, 0,             "1 ...o")
/* along an axis of the caller's */
ROW(softmax,     "... -> ...",                "F>F", RULES(line, line),    softmax,    ANY,                   ATTR(axis),  "4 ..." GRADIENT(softmax, OUT(0) | WHOLE))
ROW(log_softmax, "... -> ...",                "F>F", RULES(line, line),    log_softmax, ANY,                  ATTR(axis),  "4 ..." GRADIENT(log_softmax, OUT(0) | WHOLE))
ROW(cumsum,      "... -> ...",                "F>F", RULES(line, line),    cumsum,     ANY | LINEAR,          ATTR(axis),  LETTERS GRADIENT(cumsum, NOTHING))
/* norms */
ROW(rms_norm,    "...[d], [d] -> ...[d]",     "FF>F", AXES,                rms_norm,   CHEAP,                 ATTR(norm),  "4 ...d" GRADIENT(rms_norm, IN(0) | IN(1)))
ROW(rms_norm_once, "...[d], [d] -> ...[d]",   "FF>F", AXES,                rms_norm_once, CHEAP,              ATTR(norm),  "4 ...d" GRADIENT(rms_norm, IN(0) | IN(1)))
ROW(rms_norm_1p, "...[d], [d] -> ...[d]",     "FF>F", AXES,                rms_norm_1p, CHEAP,                ATTR(norm),  "5 ...d" GRADIENT(rms_norm_1p, IN(0) | IN(1)))
ROW(layer_norm,  "...[d], [d], [d] -> ...[d]", "FFF>F", AXES,              layer_norm, 0,                     ATTR(norm),  "8 ...d" GRADIENT(layer_norm, IN(0) | IN(1)))
/* embeddings and positions */
ROW(embedding,   "..., vd -> ...d",
                                              "iF>F", AXES,                embedding,  EXACT | VALUE,    ATTR(embedding), "0 : ..., ...d -> ...d" GRADIENT(embedding, IN(0) | FORM(1)))
ROW(rope_table,  "bt, [r] -> bt[q]",          "if>a", EXTENTS(rope_table), rope_table, 0,                     ATTR(rope_table), "2 btq")
ROW(rope,        "bth[e], bt[r] -> bth[e]",   "FF>F", EXTENTS(rope),       rope,       BILINEAR,              0,           "3 bthe" GRADIENT(rope, IN(1)))
ROW(rope_backward, "bth[e], bt[r] -> bth[e]", "FF>F", EXTENTS(rope),       rope_backward, BILINEAR,           0,           "3 bthe")
/* attention */
ROW(heads,       "bth -> bth[e]",             "F>F", RULES(heads, heads),  none,       VIEW,                  ATTR(heads), "0" GRADIENT(heads, NOTHING))
ROW(unheads,     "bth[e] -> bth",             "F>F", RULES(unheads, unheads), none,    VIEW,                  ATTR(heads), "0" GRADIENT(unheads, NOTHING))
ROW(kv_write,    "b[t]k[e], b[t], b[s]k[e] -> b[s]k[e]",
                                              "FiF>F", AXES,               kv_write,   IN_PLACE,       0,           "0 : btke, bt, - -> btke")
ROW(attention,   "bth[e], b[s]k[e], b[s]k[e], bt -> bth[e]",
                                              "FFFi>F", RULES(attention, attention), attention, 0,            ATTR(attention), WORK(attention))
ROW(attention_bias, "bth[e], b[s]k[e], b[s]k[e], bt, xyz[s] -> bth[e]",
                                              "FFFiF>F", RULES(attention, attention), attention, 0,           ATTR(attention), WORK(attention))
ROW(attention_sinks, "bth[e], b[s]k[e], b[s]k[e], bt, h -> bth[e]",
                                              "FFFiF>F", RULES(attention, attention), attention, 0,           ATTR(attention), WORK(attention))
ROW(attention_bias_sinks, "bth[e], b[s]k[e], b[s]k[e], bt, xyz[s], h -> bth[e]",
                                              "FFFiFF>F", RULES(attention, attention), attention, 0,          ATTR(attention), WORK(attention))
/* the same over blocks of a pool, one token a row: rows say whose they are, a table which blocks that one has */
ROW(kv_write_paged, "b[t]k[e], b[t], b[t], m[c], n[s]k[e] -> n[s]k[e]",
                                              "FiiiF>F", RULES(kv_write_paged, kv_write_paged), kv_write_paged, IN_PLACE, 0, "0 : btke, bt, bt, -, - -> btke")
ROW(attention_paged, "b[t]h[e], n[s]k[e], n[s]k[e], b[t], b[t], m[c] -> bth[e]",
                                              "FFFiii>F", RULES(attention_paged, attention_paged), attention_paged, 0, ATTR(attention), WORK(attention_paged))
ROW(attention_paged_bias, "b[t]h[e], n[s]k[e], n[s]k[e], b[t], b[t], m[c], xyz[r] -> bth[e]",
                                              "FFFiiiF>F", RULES(attention_paged, attention_paged), attention_paged, 0, ATTR(attention), WORK(attention_paged))
ROW(attention_paged_sinks, "b[t]h[e], n[s]k[e], n[s]k[e], b[t], b[t], m[c], h -> bth[e]",
                                              "FFFiiiF>F", RULES(attention_paged, attention_paged), attention_paged, 0, ATTR(attention), WORK(attention_paged))
ROW(attention_paged_bias_sinks, "b[t]h[e], n[s]k[e], n[s]k[e], b[t], b[t], m[c], xyz[r], h -> bth[e]",
                                              "FFFiiiFF>F", RULES(attention_paged, attention_paged), attention_paged, 0, ATTR(attention), WORK(attention_paged))
/* attention that is trained: with the log-sum-exp of each row, and its gradients */
TRAINED(attention_lse, "bth[e], b[s]k[e], b[s]k[e], bt -> bth[e], bth",
                                              "FFFi>Ff", attention, attention_lse, WORK(attention) GRADIENT(attention_lse, OPERANDS | OUT(0) | OUT(1) | WHOLE))
TRAINED(attention_lse_bias, "bth[e], b[s]k[e], b[s]k[e], bt, xyz[s] -> bth[e], bth",
                                              "FFFiF>Ff", attention, attention_lse, WORK(attention) GRADIENT(attention_lse, OPERANDS | OUT(0) | OUT(1) | WHOLE))
TRAINED(attention_lse_sinks, "bth[e], b[s]k[e], b[s]k[e], bt, h -> bth[e], bth",
                                              "FFFiF>Ff", attention, attention_lse, WORK(attention) GRADIENT(attention_lse, OPERANDS | OUT(0) | OUT(1) | WHOLE))
TRAINED(attention_lse_bias_sinks, "bth[e], b[s]k[e], b[s]k[e], bt, xyz[s], h -> bth[e], bth",
                                              "FFFiFF>Ff", attention, attention_lse, WORK(attention) GRADIENT(attention_lse, OPERANDS | OUT(0) | OUT(1) | WHOLE))
TRAINED(attention_lse_segments, "bth[e], b[s]k[e], b[s]k[e], bt, b[s] -> bth[e], bth",
                                              "FFFii>Ff", attention, attention_lse, WORK(attention) GRADIENT(attention_lse, OPERANDS | OUT(0) | OUT(1) | WHOLE))
TRAINED(attention_lse_bias_segments, "bth[e], b[s]k[e], b[s]k[e], bt, xyz[s], b[s] -> bth[e], bth",
                                              "FFFiFi>Ff", attention, attention_lse, WORK(attention) GRADIENT(attention_lse, OPERANDS | OUT(0) | OUT(1) | WHOLE))
TRAINED(attention_lse_sinks_segments, "bth[e], b[s]k[e], b[s]k[e], bt, h, b[s] -> bth[e], bth",
                                              "FFFiFi>Ff", attention, attention_lse, WORK(attention) GRADIENT(attention_lse, OPERANDS | OUT(0) | OUT(1) | WHOLE))
TRAINED(attention_lse_bias_sinks_segments, "bth[e], b[s]k[e], b[s]k[e], bt, xyz[s], h, b[s] -> bth[e], bth",
                                              "FFFiFFi>Ff", attention, attention_lse, WORK(attention) GRADIENT(attention_lse, OPERANDS | OUT(0) | OUT(1) | WHOLE))
ROW(attention_stats, "bth[e], bth[e], bth -> bth[r]",
                                              "FFf>f", EXTENTS(attention_stats), attention_stats, 0, 0, "2 bthe")
TRAINED(attention_backward, "bth[e], bth[e], b[s]k[e], b[s]k[e], bth[r], bt -> bth[e], b[s]k[e], b[s]k[e]",
                                              "FFFFfi>FFF", attention_backward, attention_backward, WORK(attention_backward))
TRAINED(attention_backward_bias, "bth[e], bth[e], b[s]k[e], b[s]k[e], bth[r], bt, xyz[s] -> bth[e], b[s]k[e], b[s]k[e], xyz[s]",
                                              "FFFFfiF>FFFf", attention_backward, attention_backward, WORK(attention_backward))
TRAINED(attention_backward_segments, "bth[e], bth[e], b[s]k[e], b[s]k[e], bth[r], bt, b[s] -> bth[e], b[s]k[e], b[s]k[e]",
                                              "FFFFfii>FFF", attention_backward, attention_backward, WORK(attention_backward))
TRAINED(attention_backward_bias_segments, "bth[e], bth[e], b[s]k[e], b[s]k[e], bth[r], bt, xyz[s], b[s] -> bth[e], b[s]k[e], b[s]k[e], xyz[s]",
                                              "FFFFfiFi>FFFf", attention_backward, attention_backward, WORK(attention_backward))
ROW(attention_backward_sinks, "bth[r], h -> h",
                                              "fF>f", AXES, attention_backward_sinks, 0, 0, "3 bth")
/* linear attention: what is left of earlier tokens goes in, what is left after these comes out */
ROW(causal_conv, "b[t]c, b[w]c, c[k] -> b[t]c, b[w]c",
                                              "FFF>FF", EXTENTS(causal_conv), causal_conv, ANY, 0, "2 btck" GRADIENT(causal_conv, OPERANDS))
ROW(gated_delta, "b[t]h[d], b[t]h[d], b[t]h[r][e], b[t]h[r], b[t]h[r], bh[r][d][e] -> b[t]h[r][e], bh[r][d][e]",
                                              "FFFfFf>Ff", AXES, gated_delta, ANY, 0, "7 bthrde" GRADIENT(gated_delta, OPERANDS))
ROW(causal_conv_slots, "b[t]c, b[t], b[t], c[k], n[w]c -> b[t]c, n[w]c",
                                              "FiiFF>FF", ACCEPTS(causal_conv_slots), causal_conv_slots, IN_PLACE, 0, "2 btck : btc, bt, bt, ck, - -> btc, -")
ROW(gated_delta_slots, "b[t]h[d], b[t]h[d], b[t]h[r][e], b[t]h[r], b[t]h[r], b[t], b[t], nh[r][d][e] -> b[t]h[r][e], nh[r][d][e]",
                                              "FFFfFiif>Ff", ACCEPTS(gated_delta_slots), gated_delta_slots, IN_PLACE, 0, "7 bthrde : bthd, bthd, bthre, bthr, bthr, bt, bt, - -> bthre, -")
/* mixtures of experts: which experts, with which weights, and what they make of a token */
ROW(route_ids,   "...[e] -> ...k",            "F>i", EXTENTS(route_ids),   route_ids,  0,                     ATTR(route), "1 ...e")
ROW(route_ids_bias, "...[e], [e] -> ...k",    "Ff>i", EXTENTS(route_ids),  route_ids,  0,                     ATTR(route), "6 ...e")
ROW(route_weights, "...[e], ...[k] -> ...[k]", "Fi>F", AXES,               route_weights, 0,                  ATTR(route), "4 ...e" GRADIENT(route_weights, IN(0) | IN(1)))
ROW(experts,     "...[d], ...[k], ...[k], eo[d], e[d]f -> ...[d]",
                                              "FiFFF>F", RULES(experts, experts), experts, ANY,               ATTR(experts), WORK(experts) GRADIENT(experts, OPERANDS))
ROW(experts_clamped, "...[d], ...[k], ...[k], eo[d], e[d]f, eo, e[d] -> ...[d]",
                                              "FiFFFFF>F", RULES(experts_clamped, experts_clamped), experts_clamped, ANY, ATTR(experts_clamped),
                                              WORK(experts) GRADIENT(experts_clamped, OPERANDS))
ROW(experts_packed, "...[d], ...[k], ...[k], eo[j], eo[g], e[d]p, e[d]q -> ...[d]",
                                              "FiFbxbx>F", RULES(experts_packed, experts_packed), experts_packed, ANY, ATTR(experts_packed), WORK(experts_packed))
ROW(experts_packed_zeros, "...[d], ...[k], ...[k], eo[j], eo[g], eo[g], e[d]p, e[d]q, e[d]q -> ...[d]",
                                              "FiFbxbbxb>F", RULES(experts_packed, experts_packed), experts_packed, ANY, ATTR(experts_packed), WORK(experts_packed))
ROW(experts_e4m3, "...[d], ...[k], ...[k], eo[j], eo[g], e[d]p, e[d]q -> ...[d]",
                                              "FiFbxbx>F", RULES(experts_packed, experts_packed), experts_e4m3, ANY, ATTR(experts_packed), WORK(experts_packed))
/* axes */
ROW(reshape,     "... -> ...",                "d>d", RULES(view, view),    none,       ANY | VIEW,            ATTR(view),  "0" GRADIENT(reshape, NOTHING))
ROW(permute,     "... -> ...",                "d>d", RULES(permute, permute), permute, ANY | LINEAR,          ATTR(permute), "0" GRADIENT(permute, NOTHING))
ROW(concat_2,    "..., ... -> ...",           "FF>F", RULES(concat, concat), concat,   ANY | LINEAR | UNEVEN, ATTR(concat), WORK(copy) GRADIENT(concat, NOTHING))
ROW(concat_3,    "..., ..., ... -> ...",      "FFF>F", RULES(concat, concat), concat,  ANY | LINEAR | UNEVEN, ATTR(concat), WORK(copy) GRADIENT(concat, NOTHING))
ROW(concat_4,    "..., ..., ..., ... -> ...", "FFFF>F", RULES(concat, concat), concat, ANY | LINEAR | UNEVEN, ATTR(concat), WORK(copy) GRADIENT(concat, NOTHING))
ROW(concat_5,    "..., ..., ..., ..., ... -> ...", "FFFFF>F", RULES(concat, concat), concat, ANY | LINEAR | UNEVEN, ATTR(concat), WORK(copy) GRADIENT(concat, NOTHING))
ROW(concat_6,    "..., ..., ..., ..., ..., ... -> ...",
                                              "FFFFFF>F", RULES(concat, concat), concat, ANY | LINEAR | UNEVEN, ATTR(concat), WORK(copy) GRADIENT(concat, NOTHING))
ROW(pad,         "... -> ...",                "x>x", RULES(pad, pad),      pad,        LINEAR,                ATTR(pad),   WORK(copy) GRADIENT(pad, NOTHING))
ROW(dropout,     "... -> ...",                "F>F", AXES,                 dropout,    VALUE | LINEAR,        ATTR(dropout), "2 ..." GRADIENT(dropout, NOTHING))
/* rows and choices */
ROW(index_select, "..., k -> ...",            "xi>x", RULES(index_select, index_select), index_select, LINEAR | EXACT, ATTR(axis),  WORK(copy) GRADIENT(index_select, IN(1)))
ROW(slice,       "... -> ...",                "d>d", RULES(slice, slice),  slice,      LINEAR | EXACT,        ATTR(slice), WORK(copy) GRADIENT(slice, NOTHING))
ROW(blocks,      "... -> ...",                "x>x", RULES(blocks, blocks), blocks,    ANY | LINEAR,          ATTR(blocks), WORK(copy) GRADIENT(blocks, NOTHING))
ROW(argmax_key,  "...v -> ...",               "F>k", AXES,                 argmax_key, MAXIMUM,               0,           "1 ...v")
ROW(argmax_id,   "... -> ...",                "k>i", AXES,                 argmax_id,  0,                     0,           "0")
ROW(top_k_keys,  "...v -> ...k",              "F>k", RULES(top_k_keys, top_k_keys), top_k_keys, 0,            ATTR(top_k), "1 ...v")
ROW(top_k,       "...[c] -> ...k, ...k",      "k>fi", EXTENTS(top_k),      top_k,      0,                     ATTR(top_k), "1 ...c")
/* losses: the last of a cross entropy's rows takes logits that it does not read, for its gradient */
ROW(cross_entropy_sums, "...v, ..., ... -> ...k",
                                              "Fif>f", EXTENTS(cross_entropy_sums), cross_entropy_sums, 0,    ATTR(cross_entropy), "4 ...v")
ROW(cross_entropy, "...v, ..., ..., ...[k] -> ..., ..., ...",
                                              "Fiff>fff", SHARD(cross_entropy), cross_entropy, 0,             ATTR(cross_entropy),
                                                                                        "8 ... : -, ..., ..., ...k -> ..., ..., ..." GRADIENT(cross_entropy, IN(0) | IN(1) | OUT(1) | WHOLE))
ROW(cross_entropy_backward, "..., ...v, ..., ... -> ...v",
                                              "fFif>F", SHARD(first),      cross_entropy_backward, BILINEAR,  ATTR(cross_entropy), "4 ...v")
ROW(count_targets, "... -> ",                 "i>f", AXES,                 count_targets, ANY,                ATTR(count), LETTERS)
/* gradients: dy, then what is kept of the forward call. Those of parameters are f32 always. */
ROW(rms_norm_backward, "...[d], ...[d], [d] -> ...[d], [d]",
                                              "FFF>Ff", SHARD(first),      rms_norm_backward, BILINEAR,       ATTR(norm_backward), "11 ...d")
ROW(rms_norm_1p_backward, "...[d], ...[d], [d] -> ...[d], [d]",
                                              "FFF>Ff", SHARD(first),      rms_norm_1p_backward, BILINEAR,    ATTR(norm_backward), "12 ...d")
ROW(layer_norm_backward, "...[d], ...[d], [d] -> ...[d], [d], [d]",
                                              "FFF>Fff", SHARD(first),     layer_norm_backward, BILINEAR,     ATTR(norm_backward), "17 ...d")
ROW(accumulate,  "..., ... -> ...",           "xf>f", AXES,                accumulate, ANY | LINEAR | IN_PLACE, 0,          LETTERS)
#define CURVE(name, formula, slope) \
ROW(name##_backward, "..., ... -> ...",       "FF>F", SHARD(first),        name##_backward, ANY | BILINEAR,   0,           "10 ...")
DTI_CURVES(CURVE)
ROW(silu_mul_backward, "..., ..., ... -> ..., ...",
                                              "FFF>FF", SHARD(first),      silu_mul_backward, ANY | BILINEAR, 0,           "12 ...")
ROW(gelu_tanh_mul_backward, "..., ..., ... -> ..., ...",
                                              "FFF>FF", SHARD(first),      gelu_tanh_mul_backward, ANY | BILINEAR, 0,      "24 ...")
ROW(soft_cap_backward, "..., ... -> ...",     "FF>F", SHARD(first),        soft_cap_backward, ANY | BILINEAR | VALUE, ATTR(scalar), "4 ...")
ROW(embedding_backward, "...d, ..., vd -> vd", "xix>f", SHARD(first),      embedding_backward, BILINEAR | VALUE, ATTR(embedding), "1 ...d : ...d, ..., - -> vd")
ROW(softmax_backward, "..., ... -> ...",      "FF>F", RULES(line, line),   softmax_backward, ANY,             ATTR(axis),  "4 ...")
ROW(log_softmax_backward, "..., ... -> ...",  "FF>F", RULES(line, line),   log_softmax_backward, ANY,         ATTR(axis),  "4 ...")
ROW(cumsum_backward, "... -> ...",            "F>F", RULES(line, line),    cumsum_backward, ANY | LINEAR,     ATTR(axis),  LETTERS)
ROW(index_select_backward, "..., k -> ...",   "xi>x", RULES(index_select_backward, index_select_backward), index_select_backward, LINEAR, ATTR(select_backward), LETTERS)
ROW(route_weights_backward, "...[k], ...[e], ...[k] -> ...[e]",
                                              "FFi>F", SHARD(first),       route_weights_backward, BILINEAR,  ATTR(route), "6 ...e")
ROW(experts_backward, "...[d], ...[d], ...[k], ...[k], eo[d], e[d]f -> ...[d], ...[k], eo[d], e[d]f",
                                              "FFiFFF>FFff", RULES(experts, experts), experts_backward, ANY | BILINEAR, ATTR(experts_backward), WORK(experts_backward))
/* the same without gradients of gate_up and down */
ROW(experts_backward_x, "...[d], ...[d], ...[k], ...[k], eo[d], e[d]f -> ...[d], ...[k]",
                                              "FFiFFF>FF", RULES(experts, experts), experts_backward, ANY | BILINEAR, ATTR(experts_backward), WORK(experts_backward))
ROW(experts_clamped_backward, "...[d], ...[d], ...[k], ...[k], eo[d], e[d]f, eo, e[d] -> ...[d], ...[k], eo[d], e[d]f, eo, e[d]",
                                              "FFiFFFFF>FFffff", RULES(experts_clamped, experts_clamped), experts_clamped_backward, ANY | BILINEAR, ATTR(experts_clamped_backward),
                                              WORK(experts_backward))
ROW(experts_clamped_backward_x, "...[d], ...[d], ...[k], ...[k], eo[d], e[d]f, eo, e[d] -> ...[d], ...[k]",
                                              "FFiFFFFF>FF", RULES(experts_clamped, experts_clamped), experts_clamped_backward, ANY | BILINEAR, ATTR(experts_clamped_backward),
                                              WORK(experts_backward))
/* of what is computed and of what is left for later tokens; queries' and keys' in one, and decays' and beta's */
ROW(causal_conv_backward, "b[t]c, b[w]c, b[t]c, b[w]c, c[k] -> b[t]c, b[w]c, c[k]",
                                              "FFFFF>FFf", AXES, causal_conv_backward, ANY, 0, "4 btck")
ROW(gated_delta_backward, "b[t]h[r][e], bh[r][d][e], b[t]h[d], b[t]h[d], b[t]h[r][e], b[t]h[r], b[t]h[r], bh[r][d][e] -> b[t]h[p], b[t]h[r][e], b[t]h[s], bh[r][d][e]",
                                              "FfFFFfFf>FFff", EXTENTS(gated_delta_backward), gated_delta_backward, ANY, 0, "33 bthrde")
/* clang-format on */

const dt_op *const dti_op_table[] = {
    &dti_op_add,
    &dti_op_sub,
    &dti_op_mul,
    &dti_op_div,
    &dti_op_where,
    &dti_op_compare,
    &dti_op_neg,
    &dti_op_exp,
    &dti_op_log,
    &dti_op_sqrt,
    &dti_op_rsqrt,
    &dti_op_tanh,
    &dti_op_sigmoid,
    &dti_op_relu,
    &dti_op_relu2,
    &dti_op_relu6,
    &dti_op_leaky_relu,
    &dti_op_hardswish,
    &dti_op_softplus,
    &dti_op_sqrtsoftplus,
    &dti_op_silu,
    &dti_op_quick_gelu,
    &dti_op_mish,
    &dti_op_laplace,
    &dti_op_gelu,
    &dti_op_gelu_10,
    &dti_op_gelu_python,
    &dti_op_gelu_tanh,
    &dti_op_gelu_new,
    &dti_op_gelu_fast,
    &dti_op_silu_mul,
    &dti_op_gelu_tanh_mul,
    &dti_op_soft_cap,
    &dti_op_cast,
    &dti_op_add_scalar,
    &dti_op_mul_scalar,
    &dti_op_sum,
    &dti_op_max,
    &dti_op_min,
    &dti_op_linear,
    &dti_op_linear_bias,
    &dti_op_linear_packed,
    &dti_op_linear_packed_zeros,
    &dti_op_linear_e4m3,
    &dti_op_add_bias,
    &dti_op_matmul,
    &dti_op_matmul_nt,
    &dti_op_matmul_tn,
    &dti_op_matmul_tt,
    &dti_op_linear_backward_x,
    &dti_op_linear_backward_w,
    &dti_op_add_bias_backward,
    &dti_op_softmax,
    &dti_op_log_softmax,
    &dti_op_cumsum,
    &dti_op_rms_norm,
    &dti_op_rms_norm_once,
    &dti_op_rms_norm_1p,
    &dti_op_layer_norm,
    &dti_op_embedding,
    &dti_op_rope_table,
    &dti_op_rope,
    &dti_op_rope_backward,
    &dti_op_heads,
    &dti_op_unheads,
    &dti_op_kv_write,
    &dti_op_attention,
    &dti_op_attention_bias,
    &dti_op_attention_sinks,
    &dti_op_attention_bias_sinks,
    &dti_op_kv_write_paged,
    &dti_op_attention_paged,
    &dti_op_attention_paged_bias,
    &dti_op_attention_paged_sinks,
    &dti_op_attention_paged_bias_sinks,
    &dti_op_attention_lse,
    &dti_op_attention_lse_bias,
    &dti_op_attention_lse_sinks,
    &dti_op_attention_lse_bias_sinks,
    &dti_op_attention_lse_segments,
    &dti_op_attention_lse_bias_segments,
    &dti_op_attention_lse_sinks_segments,
    &dti_op_attention_lse_bias_sinks_segments,
    &dti_op_attention_stats,
    &dti_op_attention_backward,
    &dti_op_attention_backward_bias,
    &dti_op_attention_backward_segments,
    &dti_op_attention_backward_bias_segments,
    &dti_op_attention_backward_sinks,
    &dti_op_causal_conv,
    &dti_op_gated_delta,
    &dti_op_causal_conv_slots,
    &dti_op_gated_delta_slots,
    &dti_op_route_ids,
    &dti_op_route_ids_bias,
    &dti_op_route_weights,
    &dti_op_experts,
    &dti_op_experts_clamped,
    &dti_op_experts_packed,
    &dti_op_experts_packed_zeros,
    &dti_op_experts_e4m3,
    &dti_op_reshape,
    &dti_op_permute,
    &dti_op_concat_2,
    &dti_op_concat_3,
    &dti_op_concat_4,
    &dti_op_concat_5,
    &dti_op_concat_6,
    &dti_op_pad,
    &dti_op_dropout,
    &dti_op_index_select,
    &dti_op_slice,
    &dti_op_blocks,
    &dti_op_argmax_key,
    &dti_op_argmax_id,
    &dti_op_top_k_keys,
    &dti_op_top_k,
    &dti_op_cross_entropy_sums,
    &dti_op_cross_entropy,
    &dti_op_cross_entropy_backward,
    &dti_op_count_targets,
    &dti_op_embedding_backward,
    &dti_op_accumulate,
    &dti_op_rms_norm_backward,
    &dti_op_rms_norm_1p_backward,
    &dti_op_layer_norm_backward,
#define CURVE_OF(name, formula, slope) &dti_op_##name##_backward,
    DTI_CURVES(CURVE_OF) & dti_op_silu_mul_backward,
    &dti_op_gelu_tanh_mul_backward,
    &dti_op_soft_cap_backward,
    &dti_op_softmax_backward,
    &dti_op_log_softmax_backward,
    &dti_op_cumsum_backward,
    &dti_op_index_select_backward,
    &dti_op_route_weights_backward,
    &dti_op_experts_backward,
    &dti_op_experts_backward_x,
    &dti_op_experts_clamped_backward,
    &dti_op_experts_clamped_backward_x,
    &dti_op_causal_conv_backward,
    &dti_op_gated_delta_backward,
};
const int dti_op_table_size = (int)DT_COUNT(dti_op_table);
