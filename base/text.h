/* SPDX-License-Identifier: Apache-2.0
 *
 * Text in messages: names of files, options, keys that somebody else wrote; shapes. */
#ifndef DTI_TEXT_H
#define DTI_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* How much of a name is shown in a message that says more than the name. */
enum { DTI_SHOWN_BYTES = 80 };

/* How many of the n bytes of `text` are a control character that it begins with: one of ASCII, one
 * of the second block of Unicode, where one byte stands for ESC and another, or a mark that turns
 * the direction of what follows, or ends a line. 0: it begins with none. */
size_t dti_control_bytes(const char *text, size_t n);

/* Writes `text` as valid UTF-8 without control characters: those, and bytes that are not UTF-8,
 * become "\n", "\x1b" and so on. What does not fit loses its middle, between two characters: both
 * ends tell more than either. `out` has room for 16 bytes or more and does not overlap `text`.
 * Doing it twice changes nothing more. Returns `out`. */
const char *dti_printable(const char *text, char *out, size_t out_bytes);

enum { DTI_NUMBER_BYTES = 32 };

/* A number in as few digits as say it: "0.9", "1.0000001". Returns `out`. */
const char *dti_number_text(double x, char out[DTI_NUMBER_BYTES]);

/* The bytes of the next word of *text, which begins there then; 0: there is none. Blanks and commas
 * stand between words. NULL is a text without words. */
size_t dti_next_word(const char **text);

/* Is the word of n bytes one of those of `text`? */
bool dti_has_word(const char *text, const char *word, size_t n);

/* Whether a name of components between dots matches: in a pattern "*" is one component, "**" any
 * number of them. */
bool dti_name_matches(const char *pattern, const char *name);

enum { DTI_SHAPE_BYTES = 200 }; /* of any tensor */

/* "1.8 M", "7 B": a count; "3.4 MiB": bytes. They return `text`. */
const char *dti_count_text(int64_t n, char text[DTI_NUMBER_BYTES]);
const char *dti_bytes_text(int64_t bytes, char text[DTI_NUMBER_BYTES]);

/* "[250, 96]" of n extents; what does not fit is cut off. Returns `out`. */
const char *dti_shape_text(const int64_t *shape, int n, char *out, size_t out_bytes);

#endif
