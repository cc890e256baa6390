/* SPDX-License-Identifier: Apache-2.0 */
#include "files/mapped.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/io_status.h"
#include "base/memory.h"
#include "base/numbers.h"

enum { WINDOW_BYTES = 1 << 16, PAGE_BYTES = 1 << 12 };

dt_status dti_mapped_open(const char *path, dti_mapped *out)
{
    void *map;

    *out = (dti_mapped){ .in.fd = -1 };
    DT_TRY(dti_input_open(path, &out->in));
    map = out->in.bytes > 0
              ? mmap(NULL, (size_t)out->in.bytes, PROT_READ, MAP_SHARED, out->in.fd, 0)
              : MAP_FAILED;
    out->map = map != MAP_FAILED ? map : NULL;
    return DT_OK;
}

void dti_mapped_unmap(dti_mapped *m)
{
    if (m->map != NULL) (void)munmap((void *)(uintptr_t)m->map, (size_t)m->in.bytes);
    m->map = NULL;
}

void dti_mapped_close(dti_mapped *m)
{
    dti_mapped_unmap(m);
    dti_free(m->window);
    if (m->in.pread != NULL) dti_input_close(&m->in);
    *m = (dti_mapped){ .in.fd = -1 };
}

dt_status dti_mapped_at(dti_mapped *m, int64_t at, int64_t n, const unsigned char **out)
{
    int64_t want;

    DT_ASSERT(at >= 0 && n >= 0 && at <= m->in.bytes && n <= m->in.bytes - at);
    *out = m->map != NULL ? m->map + at : NULL;
    if (m->map != NULL) return DT_OK;
    if (m->window == NULL || at < m->window_at || at + n > m->window_at + m->window_bytes) {
        want = dti_min(dti_max(n, WINDOW_BYTES), m->in.bytes - at);
        m->window_bytes = 0;
        DT_TRY(dti_grow(&m->window, &m->window_room, (size_t)want + 1, 1));
        DT_TRY(dti_input_read(&m->in, m->window, want, at));
        m->window_at = at;
        m->window_bytes = want;
    }
    *out = (const unsigned char *)m->window + (at - m->window_at);
    return DT_OK;
}

dt_status dti_mapped_check(const dti_mapped *m)
{
    struct stat info;

    DT_CHECK(fstat(m->in.fd, &info) == 0, dti_io_status(errno), "%s: %s", m->in.label,
             strerror(errno));
    DT_CHECK((int64_t)info.st_size >= m->in.bytes, DT_ERR_IO,
             "%s: has %lld bytes but had %lld when it was opened: something shortened it while it "
             "was used",
             m->in.label, (long long)info.st_size, (long long)m->in.bytes);
    return DT_OK;
}

void dti_mapped_soon(const dti_mapped *m, int64_t at, int64_t n)
{
    const int64_t begin = dti_max(at, 0) & -(int64_t)PAGE_BYTES;
    const int64_t end = dti_min(at + n, m->in.bytes);

    if (m->map != NULL && begin < end)
        (void)madvise((void *)(uintptr_t)(m->map + begin), (size_t)(end - begin), MADV_WILLNEED);
}
