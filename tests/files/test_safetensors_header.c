/* SPDX-License-Identifier: Apache-2.0
 *
 * Files that are not as they should be: each is refused with a message that names file and tensor.
 */
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "files/header_members.h"
#include "files/safetensors.h"
#include "tests/support/dt_test.h"

/* A file from its parts: the header's length as given (or as it is, if -1), the header, and
 * n_data bytes. */
static void write_parts(const char *folder, int64_t length, const char *header, size_t n_data)
{
    const size_t n = strlen(header);
    unsigned char file[8 + 8192] = { 0 };
    const uint64_t said = length == -1 ? n : (uint64_t)length;

    DT_ASSERT(8 + n + n_data <= sizeof file);
    for (int i = 0; i < 8; i++) file[i] = (unsigned char)(said >> (8 * i));
    memcpy(file + 8, header, n);
    dt_test_write_file(folder, "model.safetensors", file, 8 + n + n_data);
}

static void refuse(const char *folder, const char *message)
{
    char path[DT_TEST_PATH_BYTES + 32];
    dti_st_file *file;

    (void)snprintf(path, sizeof path, "%s/model.safetensors", folder);
    DT_ASSERT_STATUS(dti_st_open(path, &file), DT_ERR_FORMAT, message);
    DT_ASSERT(file == NULL);
    DT_ASSERT(strstr(dt_last_error()->message, "model.safetensors: ") != NULL);
}

#define T(name, dtype, shape, offsets) \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"
#define ONE(dtype, shape, offsets) "{" T("w", dtype, shape, offsets) "}"

DT_TEST(safetensors_header, wrong_lengths_are_refused)
{
    static const struct {
        int64_t length;
        const char *message;
    } cases[] = {
        { 0, "model.safetensors: header: is empty (0 bytes)" },
        { 1, "model.safetensors: header: line 1 column 1" },
        { 7, "model.safetensors: header: line 1 column" },
        { 53, "model.safetensors: header: line 1 column" }, /* one short of the '}' */
        { 59, "the header has 59 bytes, but the file only 66 in all" },
        { 100000000, "the header has 100000000 bytes, but the file only 66 in all" },
        { 100000001, "at most 100000000 are allowed: this is no safetensors file" },
        { INT64_MAX, "the header would have 9223372036854775807 bytes" },
        { INT64_MIN, "the header would have 9223372036854775808 bytes" }, /* 2^63 */
        { -8, "the header would have 18446744073709551608 bytes" },       /* 8 + N wraps to 0 */
    };
    char folder[DT_TEST_PATH_BYTES];

    dt_test_temp_dir(folder);
    for (size_t i = 0; i < DT_COUNT(cases); i++) {
        write_parts(folder, cases[i].length, ONE("F32", "[1]", "[0,4]"), 4);
        refuse(folder, cases[i].message);
    }
}

DT_TEST(safetensors_header, files_cut_off_anywhere_are_refused)
{
    static const char header[] =
        "{" T("a", "F32", "[2]", "[0,8]") "," T("b", "U8", "[3]", "[8,11]") "}  ";
    char folder[DT_TEST_PATH_BYTES], path[DT_TEST_PATH_BYTES + 32];
    const size_t whole = 8 + sizeof header - 1 + 11;
    unsigned char bytes[256] = { sizeof header - 1 };
    dti_st_file *file;

    dt_test_temp_dir(folder);
    (void)snprintf(path, sizeof path, "%s/model.safetensors", folder);
    memcpy(bytes + 8, header, sizeof header - 1);
    for (size_t n = 0; n < whole; n++) {
        dt_test_write_file(folder, "model.safetensors", bytes, n);
        refuse(folder, n < 8                       ? "too short for a safetensors file"
                       : n < 8 + sizeof header - 1 ? "it is cut off"
                       : n < 8 + sizeof header - 1 + 8
                           ? "tensor \"a\" ends at byte 8 of the data"
                           : "tensor \"b\" ends at byte 11 of the data");
    }
    dt_test_write_file(folder, "model.safetensors", bytes, whole);
    DT_ASSERT_OK(dti_st_open(path, &file));
    dti_st_close(&file);
    dt_test_write_file(folder, "model.safetensors", bytes, whole + 1);
    refuse(folder, "1 bytes follow the last tensor");
}

/* clang-format off */
static const struct {
    const char *header;
    size_t n_data;
    const char *message;
} malformed[] = {
    /* JSON */
    { "[]",                                          0, "header: holds an array, must hold an object" },
    { "{} x",                                        0, "nothing may follow" },
    { "{\"w\xff\":1}",                               0, "line 1 column" },
    { "{\"w\":1,}",                                  0, "line 1 column 8" },
    { "{" T("w", "U8", "[1]", "[0,1]") "," T("w", "U8", "[1]", "[1,2]") "}",
                                                     2, "key \"w\" occurs twice" },
    /* entries */
    { "{\"w\":3}",                                   0, "tensor \"w\": it is 3, must be an object" },
    { "{\"w\":{}}",                                  0, "tensor \"w\": dtype is missing" },
    { "{\"w\":{\"dtype\":\"F32\"}}",                 0, "tensor \"w\": shape is missing" },
    { "{\"w\":{\"dtype\":\"F32\",\"shape\":[]}}",    0, "tensor \"w\": data_offsets is missing" },
    { "{\"__metadata__\":3}",                        0, "header: __metadata__ is 3, must be an object" },
    { "{\"__metadata__\":{\"a\":1}}",                0, "__metadata__.a is 1, must be a string" },
    /* dtypes */
    { ONE("f32", "[1]", "[0,4]"),                    4, "tensor \"w\": dtype is the string \"f32\", must be" },
    { ONE("F7", "[1]", "[0,4]"),                     4, "tensor \"w\": dtype is the string \"F7\", must be" },
    { "{\"w\":{\"dtype\":1,\"shape\":[],\"data_offsets\":[0,4]}}", 4, "tensor \"w\": dtype is 1" },
    { ONE("F4", "[3]", "[0,1]"),                     1, "tensor \"w\": its shape does not give a whole number" },
    { ONE("F6_E2M3", "[3]", "[0,2]"),                2, "tensor \"w\": its shape does not give a whole number" },
    /* shapes */
    { ONE("F32", "3", "[0,4]"),                      4, "tensor \"w\": shape is 3, must be an array" },
    { ONE("F32", "[-1]", "[0,4]"),                   4, "tensor \"w\": shape[0] is -1, must be" },
    { ONE("F32", "[1.0]", "[0,4]"),                  4, "tensor \"w\": shape[0] is 1.0, must be" },
    { ONE("F32", "[1e0]", "[0,4]"),                  4, "tensor \"w\": shape[0] is 1.0, must be" },
    { ONE("F32", "[0.5]", "[0,4]"),                  4, "tensor \"w\": shape[0] is 0.5, must be" },
    { ONE("F32", "[\"1\"]", "[0,4]"),                4, "tensor \"w\": shape[0] is the string" },
    { ONE("F32", "[9223372036854775808]", "[0,4]"),  4, "does not fit into 64 bits" },
    { ONE("F32", "[1,1,1,1,1,1,1,1,1]", "[0,4]"),    4, "tensor \"w\": shape has 9 axes, at most 8" },
    { ONE("F32", "[4294967296,4294967296]", "[0,4]"), 4, "tensor \"w\": its shape does not give" },
    { ONE("F32", "[4611686018427387904]", "[0,4]"),  4, "tensor \"w\": its shape does not give" },
    { ONE("F32", "[4294967296,4294967296,0]", "[0,0]"), 0, "tensor \"w\": its shape does not give" },
    /* offsets */
    { ONE("F32", "[1]", "{}"),                       4, "tensor \"w\": data_offsets is an object" },
    { ONE("F32", "[1]", "[0]"),                      4, "tensor \"w\": data_offsets has 1 numbers" },
    { ONE("F32", "[1]", "[0,4,8]"),                  4, "tensor \"w\": data_offsets has 3 numbers" },
    { ONE("F32", "[1]", "[0,4.5]"),                  4, "tensor \"w\": data_offsets[1] is 4.5" },
    { ONE("F32", "[1]", "[-4,0]"),                   4, "tensor \"w\": data_offsets[0] is -4" },
    { ONE("F32", "[1]", "[4,0]"),                    4, "tensor \"w\": data_offsets [4, 0] end before" },
    { ONE("F32", "[1]", "[0,3]"),                    3, "tensor \"w\": data_offsets span 3 bytes, but 1 elements of F32 are 4" },
    { ONE("F32", "[2]", "[0,4]"),                    4, "tensor \"w\": data_offsets span 4 bytes, but 2 elements of F32 are 8" },
    { ONE("F32", "[0]", "[0,4]"),                    4, "tensor \"w\": data_offsets span 4 bytes, but 0 elements" },
    /* the data as a whole */
    { ONE("F32", "[1]", "[4,8]"),                    8, "bytes 0 to 4 of the data, before tensor \"w\", belong to no tensor" },
    { "{" T("a", "U8", "[2]", "[0,2]") "," T("b", "U8", "[2]", "[3,5]") "}",
                                                     5, "bytes 2 to 3 of the data, before tensor \"b\"" },
    { "{" T("a", "U8", "[2]", "[0,2]") "," T("b", "U8", "[2]", "[1,3]") "}",
                                                     3, "tensor \"b\" begins at byte 1 of the data, inside tensor \"a\" that ends at byte 2" },
    { "{" T("b", "U8", "[2]", "[0,2]") "," T("a", "U8", "[2]", "[0,2]") "}",
                                                     2, "tensor \"b\" begins at byte 0 of the data, inside tensor \"a\"" },
    { ONE("F32", "[1]", "[0,4]"),                    0, "tensor \"w\" ends at byte 4 of the data, but only 0 are there" },
    { ONE("F32", "[1]", "[0,4]"),                    9, "5 bytes follow the last tensor" },
    { "{}",                                          1, "1 bytes follow the last tensor" },
};
/* clang-format on */

DT_TEST(safetensors_header, malformed_headers_are_refused)
{
    char folder[DT_TEST_PATH_BYTES];

    dt_test_temp_dir(folder);
    for (size_t i = 0; i < DT_COUNT(malformed); i++) {
        write_parts(folder, -1, malformed[i].header, malformed[i].n_data);
        refuse(folder, malformed[i].message);
    }
}

DT_TEST(safetensors_header, nesting_and_long_names_are_refused)
{
    char folder[DT_TEST_PATH_BYTES], text[8192];
    size_t n;

    dt_test_temp_dir(folder);
    n = (size_t)snprintf(text, sizeof text, "{\"w\":");
    memset(text + n, '[', 4000);
    text[n + 4000] = '\0';
    write_parts(folder, -1, text, 0);
    refuse(folder, "model.safetensors: header: line 1 column 261: arrays and objects are nested");

    memset(text, 'n', sizeof text);
    memcpy(text, "{\"", 2);
    (void)snprintf(text + 602, 200, "\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1]}}");
    write_parts(folder, -1, text, 1);
    refuse(folder, "nnn\": the name has 600 bytes, at most 511 are supported");
}

DT_TEST(safetensors_header, odd_but_valid_files_open)
{
    static const struct {
        const char *header;
        size_t n_data, n_tensors;
    } cases[] = {
        { "{}", 0, 0 },
        { " \n\t{ }   ", 0, 0 },
        { "{\"__metadata__\":{\"format\":\"pt\"}}", 0, 0 },
        { "{\"__metadata__\":null}", 0, 0 },
        { ONE("F32", "[]", "[0,4]"), 4, 1 },
        { ONE("F32", "[0,4294967296]", "[0,0]"), 0, 1 },
        { "{" T("b", "U8", "[0]", "[0,0]") "," T("a", "U8", "[0]", "[0,0]") "}", 0, 2 },
        { "{" T("a", "U8", "[2]", "[1,3]") "," T("b", "U8", "[1]", "[0,1]") "}", 3, 2 },
        { "{" T("a", "U8", "[2]", "[0,2]") "," T("b", "U8", "[0]", "[2,2]") "}", 2, 2 },
        { ONE("U8", "[1,1,1,1,1,1,1,1]", "[0,1]"), 1, 1 },
        { "{\"w\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1],\"more\":3}}", 1, 1 },
        { "{" T("", "U8", "[1]", "[0,1]") "}", 1, 1 },
    };
    char folder[DT_TEST_PATH_BYTES], path[DT_TEST_PATH_BYTES + 32];
    dti_st_file *file;

    dt_test_temp_dir(folder);
    (void)snprintf(path, sizeof path, "%s/model.safetensors", folder);
    for (size_t i = 0; i < DT_COUNT(cases); i++) {
        write_parts(folder, -1, cases[i].header, cases[i].n_data);
        DT_ASSERT_OK(dti_st_open(path, &file));
        DT_ASSERT_EQ_INT(dti_st_count(file), cases[i].n_tensors);
        dti_st_close(&file);
    }
}

/* Packed weights are bytes with a meaning that their readers know: not floats. */
DT_TEST(safetensors_header, codes_of_eight_bits_are_read_as_bytes_alone)
{
    static const char *const dtypes[] = { "I8", "F8_E4M3", "U8" };

    for (size_t i = 0; i < DT_COUNT(dtypes); i++) {
        char folder[DT_TEST_PATH_BYTES], path[DT_TEST_PATH_BYTES + 32], header[256];
        dti_st_stage stage;
        dti_st_file *file;
        uint8_t bytes[3];
        float floats[3];

        dt_test_temp_dir(folder);
        (void)snprintf(path, sizeof path, "%s/model.safetensors", folder);
        (void)snprintf(header, sizeof header, ONE("%s", "%s", "%s"), dtypes[i], "[3]", "[0,3]");
        write_parts(folder, -1, header, 3);
        DT_ASSERT_OK(dti_st_stage_create(0, NULL, &stage));
        DT_ASSERT_OK(dti_st_open(path, &file));
        DT_ASSERT_EQ_STR(dti_st_at(file, 0)->dtype_name, dtypes[i]);
        DT_ASSERT_OK(dti_st_read_slice(file, dti_st_at(file, 0), NULL, NULL, DT_U8, &stage, bytes));
        DT_ASSERT_STATUS(
            dti_st_read_slice(file, dti_st_at(file, 0), NULL, NULL, DT_F32, &stage, floats),
            DT_ERR_UNSUPPORTED, dtypes[i]);
        dti_st_close(&file);
        dti_st_stage_destroy(&stage);
        dt_test_remove_dir(folder);
    }
}

/* A dtype that we cannot compute with is no reason to refuse a file; asking for the tensor is. */
DT_TEST(safetensors_header, unsupported_dtypes_are_listed_and_refused_when_loaded)
{
    static const struct {
        const char *dtype, *shape, *offsets;
    } cases[] = {
        { "BOOL", "[3]", "[0,3]" },        { "I16", "[2]", "[0,4]" },
        { "U16", "[2]", "[0,4]" },         { "U32", "[1]", "[0,4]" },
        { "U64", "[1]", "[0,8]" },         { "C64", "[1]", "[0,8]" },
        { "F4", "[4]", "[0,2]" },          { "F6_E2M3", "[4]", "[0,3]" },
        { "F6_E3M2", "[4]", "[0,3]" },     { "F8_E5M2", "[2]", "[0,2]" },
        { "F8_E8M0", "[2]", "[0,2]" },     { "F8_E4M3FNUZ", "[2]", "[0,2]" },
        { "F8_E5M2FNUZ", "[2]", "[0,2]" },
    };
    char folder[DT_TEST_PATH_BYTES], path[DT_TEST_PATH_BYTES + 32], header[256], message[128];
    DT_ENDS(dti_st_stage_destroy) dti_st_stage stage;
    dti_st_file *file;
    float got[8];

    dt_test_temp_dir(folder);
    (void)snprintf(path, sizeof path, "%s/model.safetensors", folder);
    DT_ASSERT_OK(dti_st_stage_create(0, NULL, &stage));
    for (size_t i = 0; i < DT_COUNT(cases); i++) {
        (void)snprintf(header, sizeof header, ONE("%s", "%s", "%s"), cases[i].dtype, cases[i].shape,
                       cases[i].offsets);
        write_parts(folder, -1, header, (size_t)(cases[i].offsets[3] - '0'));
        DT_ASSERT_OK(dti_st_open(path, &file));
        DT_ASSERT_EQ_STR(dti_st_at(file, 0)->dtype_name, cases[i].dtype);
        DT_ASSERT(!dti_st_at(file, 0)->supported);
        (void)snprintf(message, sizeof message,
                       "model.safetensors: tensor \"w\" is %s, which cannot be loaded; F32, BF16",
                       cases[i].dtype);
        DT_ASSERT_STATUS(
            dti_st_read_slice(file, dti_st_at(file, 0), NULL, NULL, DT_F32, &stage, got),
            DT_ERR_UNSUPPORTED, message);
        dti_st_close(&file);
    }
}

DT_TEST(safetensors_header, control_characters_of_names_do_not_reach_the_terminal)
{
    char folder[DT_TEST_PATH_BYTES];

    dt_test_temp_dir(folder);
    write_parts(folder, -1, "{" T("\\u001b[31mred\\n", "F32", "[1]", "[0,5]") "}", 5);
    refuse(folder, "model.safetensors: tensor \"\\x1b[31mred\\n\": data_offsets span 5 bytes");
}

DT_TEST(safetensors_header, what_is_no_safetensors_file_is_said)
{
    static const char lfs[] =
        "version https://git-lfs.github.com/spec/v1\noid sha256:1234\nsize 5\n";
    char folder[DT_TEST_PATH_BYTES], path[DT_TEST_PATH_BYTES + 32];
    dti_st_file *file;

    dt_test_temp_dir(folder);
    (void)snprintf(path, sizeof path, "%s/model.safetensors", folder);
    DT_ASSERT_STATUS(dti_st_open(path, &file), DT_ERR_IO,
                     "model.safetensors: cannot be opened: No such file or directory");
    DT_ASSERT_STATUS(dti_st_open(folder, &file), DT_ERR_IO, "is a folder, not a file");
    dt_test_write_file(folder, "model.safetensors", lfs, sizeof lfs - 1);
    refuse(folder, "is a pointer of Git LFS, not the file itself: run \"git lfs pull\"");
    dt_test_write_file(folder, "model.safetensors", "<!DOCTYPE html>", 15);
    refuse(folder, "this is no safetensors file");
}

/* --- members one by one ----------------------------------------------------------------------- */

/* "a:..;b:..;" of the members, and whether the end was one. */
static void list_members(const char *text, char *out, size_t bytes, bool *over)
{
    dti_members m = dti_members_in(text, strlen(text));
    const char *one;
    size_t n, at = 0;

    out[0] = '\0';
    while (dti_members_next(&m, &one, &n) && at + n + 2 < bytes)
        at += (size_t)snprintf(out + at, bytes - at, "%.*s;", (int)n, one);
    *over = m.over;
}

DT_TEST(safetensors_header, members_come_one_by_one)
{
    static const struct {
        const char *text, *members;
        bool over;
    } cases[] = {
        { "{}", "", true },
        { " {\"a\" : {} }  ", "\"a\" : {};", true },
        { "{\"a\":{\"x\":[1,{}]},\n\"b\":{}}", "\"a\":{\"x\":[1,{}]};\"b\":{};", true },
        { "{\"a}\\\"{\":{\"}\":\"\\\\\"}}", "\"a}\\\"{\":{\"}\":\"\\\\\"};", true },
        { "{\"a\":{\"x\":{\"y\":{}}},\"b\":{}}", "\"a\":{\"x\":{\"y\":{}}};\"b\":{};", true },
        { "", "", false },
        { "[]", "", false },
        { "{\"a\":1}", "", false },
        { "{\"a\":{}", "\"a\":{};", false },
        { "{\"a\":{},}", "\"a\":{};", false },
        { "{\"a\":{} \"b\":{}}", "\"a\":{};", false },
        { "{,\"a\":{}}", "", false },
        { "{\"a\":{}} x", "\"a\":{};", false },
        { "{\"a\":{\"}", "", false },
        { "{\"a\\", "", false },
        { "{\"a\":{{}", "", false },
    };
    char got[256];
    bool over;

    for (size_t i = 0; i < DT_COUNT(cases); i++) {
        list_members(cases[i].text, got, sizeof got, &over);
        DT_ASSERT_EQ_STR(got, cases[i].members);
        if (over != cases[i].over)
            dt_test_fail(__FILE__, __LINE__, "%s: over is %d", cases[i].text, (int)over);
    }
    dti_members m = dti_members_in("{\"a\\?\":{}}", 4); /* it ends with the backslash */
    const char *one;
    size_t n;
    DT_ASSERT(!dti_members_next(&m, &one, &n) && !m.over);
}

/* A header as long as is allowed, of names that nobody wants: less than ten times its bytes. */
DT_TEST(safetensors_header, many_tensors_take_little_beside_their_header)
{
    enum { N = 100000 };
    char folder[DT_TEST_PATH_BYTES], path[DT_TEST_PATH_BYTES + 16];
    char *text = malloc((size_t)N * 80 + 16);
    const size_t least = sizeof(dti_st_entry) + sizeof(void *);
    struct rusage before, after;
    dti_st_file *file;
    uint64_t n = 8;

    DT_ASSERT(text != NULL);
    n += (uint64_t)sprintf(text + n, "{");
    for (int i = 0; i < N; i++)
        n += (uint64_t)sprintf(text + n,
                               "%s\"t%d\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}",
                               i > 0 ? "," : "", i);
    n += (uint64_t)sprintf(text + n, "}");
    for (int i = 0; i < 8; i++) text[i] = (char)((n - 8) >> (8 * i));
    (void)dt_test_temp_dir(folder);
    dt_test_write_file(folder, "many", text, n);
    (void)snprintf(path, sizeof path, "%s/many", folder);
    DT_ASSERT(getrusage(RUSAGE_SELF, &before) == 0);
    DT_ASSERT_OK(dti_st_open(path, &file));
    DT_ASSERT(getrusage(RUSAGE_SELF, &after) == 0);
    DT_ASSERT_EQ_INT(dti_st_count(file), N);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* they keep what is freed */
    DT_ASSERT((size_t)(after.ru_maxrss - before.ru_maxrss) * 1024 < 3 * n + 2 * N * least);
#endif
    dti_st_close(&file);
    free(text);
}
