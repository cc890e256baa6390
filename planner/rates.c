/* SPDX-License-Identifier: Apache-2.0
 *
 * What kernels and links were measured to take: as files have it, and what follows from it for
 * calls that were not measured. */
#include <math.h>
#include <string.h>

#include "base/text.h"
#include "planner/machine.h"

/* --- files ------------------------------------------------------------------------------------ */

/* One of the names that `name_of` has for 0, 1, ..., n - 1. */
static dt_status read_word(const dti_json *object, const char *key, const char *(*name_of)(int),
                           int n, int *out)
{
    const dti_json v = dti_json_get(object, key);
    char known[160] = "";
    dti_writer w = { known, sizeof known, 0 };
    const char *word;

    DT_TRY(dti_json_as_string(&v, &word));
    for (*out = 0; *out < n; (*out)++) {
        if (strcmp(name_of(*out), word) == 0) return DT_OK;
        dti_put(&w, "%s%s", *out > 0 ? ", " : "", name_of(*out));
    }
    return dti_json_refuse(&v, DT_ERR_FORMAT, "one of %s", known);
}

static const char *dtype_name(int dtype)
{
    return dt_dtype_name((dt_dtype)dtype);
}

static const char *collective_name(int kind)
{
    return dt_comm_kind_name((dt_comm_kind)kind);
}

static dt_status refuse_others(const dti_json *object, const char *const *keys, size_t n)
{
    const char *key = NULL;
    dti_json v;

    while (dti_json_next(object, &key, &v)) {
        size_t i = 0;
        while (i < n && strcmp(keys[i], key) != 0) i++;
        if (i == n) return dti_json_refuse(&v, DT_ERR_FORMAT, "left out");
    }
    return DT_OK;
}

/* Of operations or bytes. Less than one of them would make a call slower than any number says. */
static dt_status read_count(const dti_json *object, const char *key, double most, double *out)
{
    const dti_json v = dti_json_get(object, key);

    DT_TRY(dti_json_as_number(&v, 0, most, out));
    if (*out > 0 && *out < 1)
        return dti_json_refuse(&v, DT_ERR_FORMAT, "0, or a number from 1 to %g", most);
    return DT_OK;
}

static dt_status read_rate(const dti_json *object, dt_rate *r)
{
    static const char *const keys[] = { "kernel", "dtype", "flops", "bytes", "seconds" };
    const dti_json kernel = dti_json_get(object, "kernel");
    const char *name;
    int dtype;

    DT_TRY(dti_json_as_object(object));
    DT_TRY(dti_json_as_string(&kernel, &name));
    if (name[0] == '\0' || strlen(name) >= sizeof r->kernel)
        return dti_json_refuse(&kernel, DT_ERR_FORMAT, "a name of 1 to %d bytes",
                               DT_KERNEL_BYTES - 1);
    (void)dti_printable(name, r->kernel, sizeof r->kernel);
    DT_TRY(read_word(object, "dtype", dtype_name, DT_N_DTYPES, &dtype));
    r->dtype = (dt_dtype)dtype;
    DT_TRY(read_count(object, "flops", 1e21, &r->flops));
    DT_TRY(read_count(object, "bytes", 1e18, &r->bytes));
    DT_TRY(dti_json_number(object, "seconds", 1e-12, 1e6, &r->seconds));
    DT_TRY(refuse_others(object, keys, DT_COUNT(keys)));
    return DT_OK;
}

static dt_status read_link(const dti_json *object, dt_link_rate *l)
{
    static const char *const keys[] = { "collective", "ranks", "between", "latency", "bandwidth" };
    int64_t ranks;
    int kind;

    DT_TRY(dti_json_as_object(object));
    DT_TRY(read_word(object, "collective", collective_name, DT_N_COMM_KINDS, &kind));
    l->kind = (dt_comm_kind)kind;
    DT_TRY(dti_json_int(object, "ranks", 2, 1 << 20, &ranks));
    l->ranks = (int)ranks;
    DT_TRY(dti_json_bool_or(object, "between", false, &l->between));
    DT_TRY(dti_json_number(object, "latency", 0, 60, &l->latency));
    DT_TRY(dti_json_number(object, "bandwidth", 1, 1e18, &l->bandwidth));
    DT_TRY(refuse_others(object, keys, DT_COUNT(keys)));
    return DT_OK;
}

/* An array that may be missing, of at most so many. */
static dt_status open_array(const dti_json *root, const char *key, size_t most, dti_json *out)
{
    *out = dti_json_get(root, key);
    if (!dti_json_is_set(out)) return DT_OK;
    DT_TRY(dti_json_as_array(out));
    if (dti_json_count(out) > most)
        return dti_json_refuse(out, DT_ERR_FORMAT, "an array of at most %zu", most);
    return DT_OK;
}

dt_status dti_rates_read(const dti_json *root, dt_machine *m)
{
    dti_json kernels, links;

    DT_TRY(open_array(root, "kernels", DT_MAX_RATES, &kernels));
    DT_TRY(open_array(root, "links", DT_MAX_LINKS, &links));
    for (size_t i = 0; i < dti_json_count(&kernels); i++) {
        const dti_json v = dti_json_at(&kernels, i);
        DT_TRY(read_rate(&v, &m->rate[m->n_rates++]));
    }
    for (size_t i = 0; i < dti_json_count(&links); i++) {
        const dti_json v = dti_json_at(&links, i);
        DT_TRY(read_link(&v, &m->link[m->n_links++]));
    }
    return DT_OK;
}

static void put_number(dti_writer *w, const char *key, double x)
{
    char number[DTI_NUMBER_BYTES];

    dti_put(w, ", \"%s\": %s", key, dti_number_text(x, number));
}

void dti_rates_put(dti_writer *w, const dt_machine *m)
{
    for (int i = 0; i < m->n_rates; i++) {
        const dt_rate *r = &m->rate[i];
        dti_put(w, i == 0 ? ",\n \"kernels\": [\n  { \"kernel\": " : ",\n  { \"kernel\": ");
        dti_put_json(w, r->kernel);
        dti_put(w, ", \"dtype\": \"%s\"", dt_dtype_name(r->dtype));
        put_number(w, "flops", r->flops);
        put_number(w, "bytes", r->bytes);
        put_number(w, "seconds", r->seconds);
        dti_put(w, i + 1 < m->n_rates ? " }" : " } ]");
    }
    for (int i = 0; i < m->n_links; i++) {
        const dt_link_rate *l = &m->link[i];
        dti_put(w, "%s  { \"collective\": \"%s\", \"ranks\": %d, \"between\": %s",
                i == 0 ? ",\n \"links\": [\n" : ",\n", dt_comm_kind_name(l->kind), l->ranks,
                l->between ? "true" : "false");
        put_number(w, "latency", l->latency);
        put_number(w, "bandwidth", l->bandwidth);
        dti_put(w, i + 1 < m->n_links ? " }" : " } ]");
    }
}

/* --- what follows ----------------------------------------------------------------------------- */

double dti_machine_crowd(const dt_machine *m)
{
    return m->cores > 0 ? fmax(1, (double)m->devices_per_node / m->cores) : 1;
}

static double flops_of(const dt_machine *m, dt_dtype dtype)
{
    const dt_figure_kind kind = dtype == DT_BF16  ? DT_FIGURE_FLOPS_BF16
                                : dtype == DT_F16 ? DT_FIGURE_FLOPS_F16
                                                  : DT_FIGURE_FLOPS_F32;

    return fmax(m->figure[kind].value, m->figure[DT_FIGURE_FLOPS_F32].value);
}

/* What the machine's figures would have it take. */
static double at_best(const dt_machine *m, dt_dtype dtype, double flops, double bytes)
{
    return fmax(flops / flops_of(m, dtype), bytes / m->figure[DT_FIGURE_MEMORY_BANDWIDTH].value);
}

/* How alike a measured call is to one, from its operations and bytes; less than 0: not at all. The
 * same kernel in the same dtype is like it, then the same dtype, then any. */
static double likeness(const dt_rate *r, int level, const char *kernel, dt_dtype dtype,
                       double flops, double bytes)
{
    double f, b;

    if ((level < 2 && r->dtype != dtype) || (level < 1 && strcmp(r->kernel, kernel) != 0))
        return -1;
    f = flops - log2(1 + r->flops);
    b = bytes - log2(1 + r->bytes);
    return 1 / pow(f * f + b * b + 1e-3, 2);
}

bool dti_kernel_is_known(const dt_machine *m, const char *kernel, dt_dtype dtype)
{
    for (int i = 0; i < m->n_rates; i++)
        if (m->rate[i].dtype == dtype && strcmp(m->rate[i].kernel, kernel) == 0) return true;
    return false;
}

/* By how much calls that are like it are slower than figures say, the more like the more: so what
 * was measured comes out as it was measured. */
double dti_kernel_seconds(const dt_machine *m, const char *kernel, dt_dtype dtype,
                          const dt_op_work *work)
{
    const double f = log2(1 + work->flops), b = log2(1 + work->bytes);
    const double best = at_best(m, dtype, work->flops, work->bytes);
    double sum = 0, weights = 0;

    if (best > 0)
        for (int level = 0; level < 3 && weights == 0; level++)
            for (int i = 0; i < m->n_rates; i++) {
                const dt_rate *r = &m->rate[i];
                const double alike = likeness(r, level, kernel, dtype, f, b);
                const double theirs = at_best(m, r->dtype, r->flops, r->bytes);
                if (alike < 0 || theirs <= 0) continue;
                sum += alike * log(r->seconds / theirs);
                weights += alike;
            }
    return m->figure[DT_FIGURE_CALL_SECONDS].value +
           fmax(best * exp(weights > 0 ? sum / weights : 0), work->flops / flops_of(m, dtype));
}

void dti_link_seconds(const dt_machine *m, dt_comm_kind kind, int ranks, bool between,
                      double *latency, double *bandwidth)
{
    const dt_link_rate *nearest = NULL;
    double best = 0;

    for (int i = 0; i < m->n_links; i++) {
        const dt_link_rate *l = &m->link[i];
        if (l->between != between) continue;
        best = fmax(best, l->bandwidth);
        if (l->kind == kind && (nearest == NULL || fabs(log2((double)l->ranks / ranks)) <
                                                       fabs(log2((double)nearest->ranks / ranks))))
            nearest = l;
    }
    *latency = m->figure[between ? DT_FIGURE_BETWEEN_LATENCY : DT_FIGURE_INSIDE_LATENCY].value *
               ceil(log2(ranks));
    *bandwidth = between ? m->figure[DT_FIGURE_BETWEEN_BANDWIDTH].value / m->devices_per_node
                         : m->figure[DT_FIGURE_INSIDE_BANDWIDTH].value;
    if (nearest != NULL) {
        *latency = nearest->latency;
        *bandwidth = nearest->bandwidth;
    } else if (kind == DT_N_COMM_KINDS && best > 0) {
        *latency = 0;
        *bandwidth = best;
    }
}
