/* SPDX-License-Identifier: Apache-2.0 */
#include "files/checksum.h"

#include <string.h>

#include "tests/support/dt_test.h"

static uint64_t of(const char *text)
{
    return dti_checksum_of(text, strlen(text));
}

/* As xxhsum prints them. */
DT_TEST(checksum, is_that_of_xxhash)
{
    DT_ASSERT(of("") == 0xef46db3751d8e999u);
    DT_ASSERT(of("abc") == 0x44bc2cf5ad770999u);
    DT_ASSERT(of("Nobody inspects the spammish repetition") == 0xfbcea83c8a378bf1u);
}

DT_TEST(checksum, is_the_same_in_any_portions_and_not_of_other_bytes)
{
    unsigned char bytes[150];

    for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (unsigned char)(i * 7 + 3);
    for (size_t n = 0; n <= sizeof bytes; n++) {
        const uint64_t whole = dti_checksum_of(bytes, n);
        for (size_t first = 0; first <= n; first++) {
            dti_checksum sum;
            dti_checksum_begin(&sum);
            dti_checksum_add(&sum, bytes, first);
            dti_checksum_add(&sum, bytes + first, n - first);
            DT_ASSERT(dti_checksum_end(&sum) == whole);
        }
        for (size_t i = 0; i < n; i++) {
            bytes[i] ^= 16;
            DT_ASSERT(dti_checksum_of(bytes, n) != whole);
            bytes[i] ^= 16;
        }
    }
}
