/* SPDX-License-Identifier: Apache-2.0 */
#include <dlfcn.h>
#include <dtensor/modules.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/io_status.h"
#include "base/memory.h"
#include "base/text.h"

typedef int (*version_fn)(void);
typedef dt_status (*setup_fn)(dt_runtime *rt);

struct dt_module {
    char *path;
    setup_fn setup;
};

/* A function's address is no object pointer in ISO C; POSIX says that it fits. */
static void *symbol(void *handle, const char *name)
{
    return dlsym(handle, name);
}

/* Bytes that the file needs to have: a loader that maps more than there are touches memory without
 * a file behind it, which ends the process. 0: no such file, as the loader will say. */
static uint64_t bytes_needed(int fd)
{
    ElfW(Ehdr) head;
    ElfW(Phdr) part;
    uint64_t most = 0;

    if (pread(fd, &head, sizeof head, 0) != (ssize_t)sizeof head ||
        memcmp(head.e_ident, ELFMAG, SELFMAG) != 0 || head.e_phentsize != sizeof part)
        return 0;
    for (int i = 0; i < head.e_phnum; i++) {
        const uint64_t at = head.e_phoff + (uint64_t)i * sizeof part;
        uint64_t end = at + sizeof part;
        if (pread(fd, &part, sizeof part, (off_t)at) == (ssize_t)sizeof part)
            end = part.p_type == PT_LOAD ? part.p_offset + part.p_filesz : 0;
        if (end > most) most = end;
    }
    return most;
}

static dt_status check_whole(const char *path, const char *label, int64_t bytes)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    uint64_t needed;

    DT_CHECK(fd >= 0, dti_io_status(errno), "%s: %s", label, strerror(errno));
    needed = bytes_needed(fd);
    (void)close(fd);
    DT_CHECK(needed <= (uint64_t)bytes, DT_ERR_IO,
             "%s: has %lld bytes, but its parts end at byte %llu: it is cut off; compile or copy "
             "it again",
             label, (long long)bytes, (unsigned long long)needed);
    return DT_OK;
}

static dt_status find_functions(void *handle, const char *label, setup_fn *setup)
{
    const int want = DT_VERSION_MAJOR * 1000000 + DT_VERSION_MINOR * 1000;
    void *at = symbol(handle, "dt_module_version");
    version_fn version = NULL;
    int is;

    if (at != NULL) memcpy((void *)&version, (const void *)&at, sizeof at);
    at = symbol(handle, "dt_module_setup");
    if (at != NULL) memcpy((void *)setup, (const void *)&at, sizeof at);
    DT_CHECK(version != NULL && *setup != NULL, DT_ERR_UNSUPPORTED,
             "%s: is no module: its source needs DT_MODULE() of <dtensor/modules.h>", label);
    is = version();
    DT_CHECK(is == want, DT_ERR_UNSUPPORTED,
             "%s: was compiled for dtensor %d.%d, this is %d.%d: compile it again", label,
             is / 1000000, is / 1000 % 1000, DT_VERSION_MAJOR, DT_VERSION_MINOR);
    return DT_OK;
}

dt_status dt_module_open(const char *path, dt_module **out)
{
    char label[DTI_SHOWN_BYTES];
    dt_status st = DT_OK;
    struct stat info;
    void *handle;
    dt_module *m;

    DT_CHECK(out != NULL, DT_ERR_ARG, "out is NULL");
    *out = NULL;
    DT_CHECK(path != NULL, DT_ERR_ARG, "path is NULL");
    (void)dti_printable(path, label, sizeof label);
    DT_CHECK(strchr(path, '/') != NULL, DT_ERR_ARG,
             "%s: a module is named by its path; write \"./%s\"", label, label);
    DT_CHECK(stat(path, &info) == 0, DT_ERR_IO, "%s: %s", label, strerror(errno));
    DT_CHECK(S_ISREG(info.st_mode), DT_ERR_IO, "%s: is no regular file", label);
    DT_TRY(check_whole(path, label, (int64_t)info.st_size));
    handle = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    DT_CHECK(handle != NULL, DT_ERR_IO, "%s: cannot be opened: %s", label, dlerror());
    DT_TRY(dti_new(sizeof *m, &m));
    DT_TRY_TO(fail, st, find_functions(handle, label, &m->setup));
    DT_TRY_TO(fail, st, dti_strdup(path, &m->path));
    *out = m;
    return DT_OK;

fail:
    dt_module_release(&m);
    return st;
}

void dt_module_release(dt_module **module)
{
    dt_module *m = module != NULL ? *module : NULL;

    if (m == NULL) return;
    *module = NULL;
    dti_free(m->path);
    dti_free(m);
}

dt_status dt_module_add(dt_runtime *rt, const dt_module *module)
{
    char label[DTI_SHOWN_BYTES];
    dt_status st;

    DT_CHECK(rt != NULL && module != NULL, DT_ERR_ARG, "rt or module is NULL");
    dti_error_clear();
    st = module->setup(rt);
    if (st == DT_OK) return DT_OK;
    (void)dti_printable(module->path, label, sizeof label);
    if (dt_last_error()->code != st)
        DT_FAIL(st, "module %s: its setup failed without a message", label);
    dti_error_prefix("module %s", label);
    return dti_error_frame(st, __func__, __FILE__, __LINE__);
}
