/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzing schemas of JSON: any text is refused with a message, or is a schema whose values can be
 * written: wherever a text by chance is, something may follow until it is whole. */
#include "tests/fuzz/fuzz.h"

#include "base/numbers.h"
#include "models/generation/json_text.h"

enum { MOST_BYTES = 1 << 12, MOST_STEPS = 300, LIKELY = 30 };

/* A byte that leads on: of the likely ones by chance, or else any; false: there is none. */
static bool go_on(const dti_json_schema *schema, dti_json_state *s, uint64_t *chance)
{
    static const char likely[] = "{}[]\",:0123456789-.eE\\utrfnax ";
    dti_json_state next;

    for (int i = 0; i < LIKELY + 256; i++) {
        const unsigned char c =
            (unsigned char)(i < LIKELY ? likely[fuzz_next(chance) % (sizeof likely - 1)]
                                       : i - LIKELY);
        dti_json_copy(&next, s);
        if (!dti_json_step(schema, &next, c)) continue;
        dti_json_copy(s, &next);
        return true;
    }
    return false;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char text[MOST_BYTES + 1];
    uint64_t chance = dti_hash_bytes(0, data, size);
    dti_json_schema schema;
    dti_json_state s;

    if (size > MOST_BYTES) return 0;
    memcpy(text, data, size);
    text[size] = '\0';
    if (fuzz_failed(dti_json_schema_make(&schema, text))) return 0;
    dti_json_begin(&schema, &s);
    for (int n = 0; n < MOST_STEPS && !dti_json_is_whole(&s); n++)
        if (!go_on(&schema, &s, &chance)) fuzz_stop("nothing may follow");
    dti_json_schema_free(&schema);
    return 0;
}

#define OBJECT                                                                               \
    "{\"properties\":{\"a\":{\"type\":\"integer\",\"minimum\":-12,\"maximum\":105},\"ab\":{" \
    "\"type\":[\"boolean\",\"null\",\"string\"]},\"c\":{}},\"required\":[\"ab\"]}"
#define LIST                                                                                      \
    "{\"$defs\":{\"node\":{\"properties\":{\"value\":{\"type\":\"integer\"},\"next\":{\"anyOf\":" \
    "[{\"$ref\":\"#/$defs/node\"},{\"type\":\"null\"}]}},\"required\":[\"value\",\"next\"]}},"    \
    "\"$ref\":\"#/$defs/node\"}"
#define ITEMS                                                                                  \
    "{\"type\":\"array\",\"items\":{\"anyOf\":[{\"type\":\"integer\"},{\"type\":\"number\"},{" \
    "\"enum\":[1,12,1.5,\"x\",{\"a\":[1]}]},{\"type\":\"string\",\"minLength\":2,"             \
    "\"maxLength\":4}]},\"minItems\":1,\"maxItems\":5}"
#define MAP                                                                                        \
    "{\"type\":\"object\",\"additionalProperties\":{\"type\":\"array\",\"items\":{\"$ref\":\"#\"}" \
    "}}"

#ifndef DT_LIBFUZZER
int main(int argc, char **argv)
{
    static const fuzz_seed seeds[] = { { OBJECT, 0 }, { LIST, 0 }, { ITEMS, 0 }, { MAP, 0 } };
    static const char *const words[] = {
        "\"type\"",
        "\"object\"",
        "\"$ref\"",
        "\"#\"",
        "\"anyOf\"",
        "[",
        "]",
        "{",
        "}",
        ":",
        ",",
        "\"enum\"",
        "\"required\"",
        "\"items\"",
        "\"properties\"",
        "\"const\"",
        "true",
        "null",
        "\"integer\"",
        "\"minimum\"",
        "\"maximum\"",
        "\"minItems\"",
        "65536",
        "-1",
        "\"pattern\"",
        "1e5",
        "0.5",
        "9007199254740993",
    };
    const fuzz_table table = { .name = "json_schema",
                               .n = 4000,
                               .most_bytes = MOST_BYTES,
                               .seeds = seeds,
                               .n_seeds = DT_COUNT(seeds),
                               .words = words,
                               .n_words = DT_COUNT(words) };

    return fuzz_main(&table, argc, argv);
}
#endif
