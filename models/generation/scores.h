/* SPDX-License-Identifier: Apache-2.0
 *
 * Scores of the next token, one row per sequence, cut over the sequences and over the vocabulary as
 * the logits were: what processors change, and what choices are made from. Ranks that hold the same
 * columns compute the same; messages go among the ranks that hold the others. Or the best columns
 * of each row alone, on every rank that has the row, where nothing else can be chosen. Facts of
 * rows stay with those who have them; choices are told to all.
 *
 * Sums over the vocabulary are sums of integers: weights exp(score - best) in units of 2^-40. So
 * they do not depend on how the vocabulary is cut. */
#ifndef DTI_SCORES_H
#define DTI_SCORES_H

#include "mesh/comm/comm.h"
#include "models/model.h"

typedef struct dti_scores {
    dt_mesh *mesh;       /* borrowed */
    uint32_t batch_dims; /* mesh dims (bits) whose cut of rows stays; other cuts are undone */
    uint32_t dims;       /* those that cut the vocabulary */
    uint32_t row_dims;   /* those that cut the rows */
    int64_t n_rows;      /* on this rank, ... */
    int64_t first_row;   /* ... from this one on ... */
    int64_t all_rows;    /* ... of so many */
    int64_t above;       /* rows that other groups of the batch have before them: for noise */
    int64_t n;           /* columns on this rank, ... */
    int64_t first;       /* ... from this one on */
    int64_t vocab;
    bool few;                   /* n columns of the vocabulary, tokens[] says which */
    uint32_t copies;            /* mesh dims whose ranks have the same few: they draw together */
    float *data;                /* [n_rows, n] */
    int32_t *tokens;            /* [n_rows, n] by rising token, then any of score -inf */
    int64_t *keys;              /* that the few were read from */
    bool *invalid;              /* [n_rows] a NaN was among this rank's logits */
    struct dti_column *columns; /* of a search for a mass */
    size_t room, tokens_room, keys_room, invalid_room, columns_room;
} dti_scores;

/* Copies logits [B, 1, V], which may be moved so that nothing but the vocabulary is cut. A zeroed
 * struct is fine, and one that was used before saves the malloc. Collective if they are moved. */
dt_status dti_scores_take(dti_scores *s, dt_tape *t, dt_tensor *logits) DT_MUST_USE;
void dti_scores_free(dti_scores *s); /* accepts a zeroed one */

/* What is drawn from where top_k bounds the choice: the k best, and all that equal the k-th after
 * the division by the temperature. */
typedef struct dti_top {
    int64_t n; /* that are looked at, k at least: room for those that equal the k-th */
    int64_t k; /* 1 to the vocabulary */
    float temperature;
} dti_top;

/* The same of these columns alone, undivided: the n best of each rank are gathered, and n are
 * read. *enough: they are all; otherwise a row may have more that equal the k-th, and all columns
 * have to be taken. top: one for all rows, or (n_tops) one for each of all ranks' rows, of which
 * the largest n is read; n 1 wants the best alone, whatever equals it, n 0 nothing. Collective. */
dt_status dti_scores_take_best(dti_scores *s, dt_tape *t, dt_tensor *logits, const dti_top *top,
                               int64_t n_tops, bool *enough) DT_MUST_USE;

/* --- facts of rows; all are collective over the ranks that cut the vocabulary ------------- */

/* best[all_rows]: the key of each row's largest score (dtensor/argmax.h), on every rank. */
dt_status dti_scores_best(const dti_scores *s, int64_t *best) DT_MUST_USE;

/* The same of score + Gumbel noise keyed by (seed, row of all, step, token). */
dt_status dti_scores_draw(const dti_scores *s, uint64_t seed, int64_t step,
                          int64_t *best) DT_MUST_USE;

/* Their parts, for rows that have nothing in common: the best of this rank's columns, best[n_rows]
 * (INT64_MIN: it has none); a draw from those of row r; and of keys of this rank's rows among those
 * of all, best[all_rows], the largest of all ranks. Only the last is collective. */
void dti_scores_find_best(const dti_scores *s, int64_t *best);
int64_t dti_scores_draw_row(const dti_scores *s, int64_t r, uint64_t seed, int64_t row,
                            int64_t step);
dt_status dti_scores_share(const dti_scores *s, int64_t *best) DT_MUST_USE;

/* A row's softmax. */
typedef struct dti_norm {
    double largest; /* score */
    double log_sum; /* log of the sum of exp(score - largest) */
    double entropy;
} dti_norm;
dt_status dti_scores_norms(const dti_scores *s, dti_norm *norm) DT_MUST_USE;

/* Scores become log-probabilities. */
dt_status dti_scores_normalise(dti_scores *s) DT_MUST_USE;

/* Every row `times` times, side by side. */
dt_status dti_scores_expand(dti_scores *s, int64_t times) DT_MUST_USE;

/* limit[r]: the k-th largest of the row's values [n_rows, n] (NULL: its scores), -inf if it has
 * fewer. 1 <= k. */
dt_status dti_scores_kth(dti_scores *s, const float *values, int64_t k, float *limit) DT_MUST_USE;

/* limit[r]: the least of the row's values (NULL: its scores) such that the columns up to it have
 * more than `mass` of the row's probability, or at least `mass` with `reach`. */
dt_status dti_scores_mass(dti_scores *s, const dti_norm *norm, const float *values, double mass,
                          bool reach, float *limit) DT_MUST_USE;

/* One candidate: the score of a column of a row. */
typedef struct dti_candidate {
    float score;
    int32_t row;
    int64_t token;
} dti_candidate;

/* The k best of each group of `rows_per_group` rows, after add[r] is added to row r (NULL: zeros),
 * best first, at equal scores the lower row and token first: out[group][k], of all groups on every
 * rank. A group is whole on one rank. Where it has fewer columns, candidates of row -1 are last.
 * With `noise`, best by score + Gumbel noise. Rows, also those of add, count among all. */
typedef struct dti_ranking {
    int64_t rows_per_group;
    int64_t k;
    const float *add;
    bool noise;
    uint64_t seed;
    int64_t step;
} dti_ranking;
dt_status dti_scores_rank(dti_scores *s, const dti_ranking *by, dti_candidate *out) DT_MUST_USE;

/* All rows and columns on every rank, [all_rows, vocab]: for those who ask, nothing here needs it.
 */
dt_status dti_scores_whole(const dti_scores *s, float *out) DT_MUST_USE;

/* out[r]: the score of one column of each row, tokens[all_rows], on every rank. Collective. */
dt_status dti_scores_at(const dti_scores *s, const int32_t *tokens, float *out) DT_MUST_USE;

/* The communicator of the ranks that hold the other columns; NULL: there are none. */
dt_status dti_scores_comm(const dti_scores *s, dti_comm **out) DT_MUST_USE;

/* Gumbel noise of a token. */
double dti_gumbel(uint64_t seed, int64_t row, int64_t step, int64_t token);

#endif
