/* SPDX-License-Identifier: Apache-2.0 */
#include "base/options.h"

#include <string.h>

/* No version will have more: a larger number is memory that nobody set. */
enum { MOST_BYTES = 4096 };

dt_status dti_options_read(const char *name, const char *init, const void *from, void *to,
                           size_t to_bytes)
{
    const unsigned char *bytes = from;
    size_t size;

    if (from == NULL) return DT_OK;
    memcpy(&size, from, sizeof size);
    DT_CHECK(size >= sizeof size && size <= MOST_BYTES, DT_ERR_ARG,
             "%s.size is %zu, the struct has %zu bytes; %s", name, size, to_bytes, init);
    for (size_t i = to_bytes; i < size; i++)
        DT_CHECK(bytes[i] == 0, DT_ERR_ARG,
                 "%s has %zu bytes, of which version %s knows %zu, and a field behind them is set: "
                 "the program was compiled against a newer version; leave that field zero",
                 name, size, dt_version(), to_bytes);
    memcpy(to, from, size < to_bytes ? size : to_bytes);
    memcpy(to, &to_bytes, sizeof to_bytes);
    return DT_OK;
}
