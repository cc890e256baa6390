/* SPDX-License-Identifier: Apache-2.0
 *
 * Generation: which token comes next, and what ends a text, with the semantics of Transformers'
 * generate(). Logits stay cut over the vocabulary: ranks exchange maxima, best candidates and sums,
 * never a row of the vocabulary, and every rank takes the same decision.
 *
 * Sampling draws by Gumbel's maximum: the random number of a token is a function of (seed, row,
 * step, token), so a seed gives the same text on every mesh, as far as the logits are the same. */
#ifndef DT_GENERATION_H
#define DT_GENERATION_H

#include <dtensor/models.h>
#include <dtensor/tokenizer.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Called on every rank after each new token, n = 0, 1, ...; false stops the generation and must be
 * the same on every rank. */
typedef bool (*dt_token_fn)(void *arg, int64_t n, int32_t id);

/* Called on every rank before each choice with the scores it is made from, [n_rows, vocab] after
 * all processors. Asking for them gathers the vocabulary. */
typedef void (*dt_scores_fn)(void *arg, int64_t n, const float *scores, int64_t n_rows,
                             int64_t vocab);

/* Why a text has no more tokens. */
typedef enum dt_end {
    DT_END_NONE,     /* no token was asked for, or beam search found no such text */
    DT_END_EOS,      /* an end-of-sequence token, which is its last */
    DT_END_STRING,   /* the last token completed one of stop_strings, or JSON */
    DT_END_LENGTH,   /* as many as max_new_tokens or max_length allow */
    DT_END_CANCELLED /* somebody asked a service to stop (<dtensor/service.h>) */
} dt_end;

/* A list of token ids, borrowed. */
typedef struct dt_ids {
    const int32_t *ids;
    int64_t n;
} dt_ids;

/* A number that is added to the score of the last token of `ids` where the others came before. */
typedef struct dt_bias {
    dt_ids ids;
    double bias;
} dt_bias;

/* A token and its log-probability among all tokens, by the model's own logits: before processors
 * and temperature. */
typedef struct dt_logprob {
    int32_t id; /* -1: none, where the vocabulary has no more */
    float logprob;
} dt_logprob;

/* When beam search ends: false, true and "never" of early_stopping. */
typedef enum dt_early_stopping {
    DT_EARLY_STOPPING_FALSE, /* when no running beam is likely to beat the finished ones */
    DT_EARLY_STOPPING_TRUE,  /* when there are num_beams finished ones */
    DT_EARLY_STOPPING_NEVER  /* when no running beam can beat the finished ones */
} dt_early_stopping;

/* Names, order and defaults are those of Transformers' GenerationConfig. Processors that change
 * scores are applied in the order in which they stand here from repetition_penalty on. */
typedef struct dt_generate_options {
    size_t size;            /* sizeof(dt_generate_options) */
    int64_t max_new_tokens; /* -1: as max_length says, or else 20 */
    bool ignore_eos;        /* go on after an end-of-sequence token */
    dt_token_fn on_token;   /* of dt_generate(); may be NULL */
    void *arg;              /* of on_token */

    int64_t max_length; /* of prompt and new tokens; 0: not set. max_new_tokens counts before it */
    dt_ids eos;         /* tokens that end a text; ids NULL: the model's */
    int32_t pad;        /* fills rows of dt_generate_batch() that have ended; -1: the first eos */

    double repetition_penalty;    /* 1: off */
    int64_t no_repeat_ngram_size; /* 0: off */
    const dt_ids *bad_words;      /* [n_bad_words] sequences that are not generated */
    int64_t n_bad_words;
    int64_t min_length;           /* of prompt and new tokens, before a text may end */
    int64_t min_new_tokens;       /* counts before min_length */
    int32_t forced_bos;           /* the second token of a text; -1: none */
    dt_ids forced_eos;            /* the last token that max_length allows */
    bool remove_invalid_values;   /* NaN becomes 0, infinities the largest numbers */
    dt_ids suppress_tokens;       /* never */
    dt_ids begin_suppress_tokens; /* not as the first new token */

    bool do_sample; /* false: the best token, and the following are ignored */
    uint64_t seed;
    double temperature;    /* 1: off; 1e-30 at least */
    int64_t top_k;         /* 50; 0: off */
    double top_p;          /* 1: off */
    double min_p;          /* 0: off */
    double typical_p;      /* 1: off */
    double epsilon_cutoff; /* 0: off */
    double eta_cutoff;     /* 0: off */
    bool renormalize_logits;

    dt_scores_fn on_scores; /* may be NULL */
    void *scores_arg;

    const char *const *stop_strings; /* [n_stop_strings] UTF-8; any of them ends a text */
    int64_t n_stop_strings;
    dt_tokenizer *tokenizer; /* to find them by, and what json_object and json_schema allow */

    /* of dt_generate_batch() */
    int64_t num_return_sequences; /* texts for each prompt: 1 */
    int64_t num_beams;            /* 1: no beam search */
    double length_penalty;        /* 1; finished beams: sum of log-probabilities / length^it */
    dt_early_stopping early_stopping;

    const dt_bias *sequence_bias; /* [n_sequence_bias] before all other processors */
    int64_t n_sequence_bias;
    /* as OpenAI has them, after repetition_penalty, by new tokens alone: taken from the score of a
     * token that occurred, once, and for each time that it did */
    double presence_penalty, frequency_penalty; /* 0: off */
    int64_t n_logprobs; /* dt_generated_logprobs(): of each new token and so many best; -1: none */
    bool json_object;   /* new tokens are one object of JSON, whose end ends the text (as a string
                         * does), by `tokenizer`; cut off where the length ends it before */
    const char *json_schema; /* the same, of a value that a schema of JSON describes; NULL: none.
                              * docs/generation.md: which keywords */
} dt_generate_options;

/* What a setting is. */
typedef enum dt_knob_kind {
    DT_KNOB_FLAG,     /* bool */
    DT_KNOB_COUNT,    /* int64_t */
    DT_KNOB_NUMBER,   /* double */
    DT_KNOB_SEED,     /* uint64_t */
    DT_KNOB_TOKEN,    /* int32_t */
    DT_KNOB_TOKENS,   /* dt_ids */
    DT_KNOB_WORDS,    /* a list of dt_ids, and how many */
    DT_KNOB_TEXT,     /* a string, or NULL */
    DT_KNOB_TEXTS,    /* a list of strings, and how many */
    DT_KNOB_STOPPING, /* dt_early_stopping */
    DT_KNOB_BIASES    /* a list of dt_bias, and how many */
} dt_knob_kind;

/* One setting of dt_generate_options: its names, and where it lies. */
typedef struct dt_knob {
    const char *field;  /* "eos" */
    const char *key;    /* in generation_config.json: "eos_token_id"; NULL: it has none */
    const char *option; /* of the command, "eos-ids"; NULL: it has none of that kind */
    dt_knob_kind kind;
    size_t at;       /* offsetof(dt_generate_options, eos) */
    double min, max; /* what generation_config.json may say */
} dt_knob;

/** All settings, *n of them; one by its field, NULL if there is no such. Not collective. Errors:
 * none. */
DT_API const dt_knob *dt_generate_knobs(int *n);
DT_API const dt_knob *dt_generate_knob(const char *field);

#define DT_IDS_NONE \
    {               \
        NULL, 0     \
    }
#define DT_GENERATE_OPTIONS_INIT                                                                 \
    {                                                                                            \
        sizeof(dt_generate_options), -1, false, NULL, NULL, 0, DT_IDS_NONE, -1, 1.0, 0, NULL, 0, \
            0, 0, -1, DT_IDS_NONE, false, DT_IDS_NONE, DT_IDS_NONE, false, 0, 1.0, 50, 1.0, 0.0, \
            1.0, 0.0, 0.0, false, NULL, NULL, NULL, 0, NULL, 1, 1, 1.0, DT_EARLY_STOPPING_FALSE, \
            NULL, 0, 0.0, 0.0, -1, false, NULL                                                   \
    }

/* What messages call a setting: who has not filled in the struct knows it as an option of a
 * command, or as a key of a file. `field` is its name in the struct: "pad". */
enum { DT_OPTION_NAME_BYTES = 512 };
typedef struct dt_option_names {
    void (*name)(void *arg, const char *field, char text[DT_OPTION_NAME_BYTES]);
    void *arg;
} dt_option_names;

/** A dt_option_names.name whose argument is a folder's name:
 * "DIR/generation_config.json: pad_token_id". Not collective. Errors: none. */
DT_API void dt_generation_key(void *folder, const char *field, char text[DT_OPTION_NAME_BYTES]);

/* Sequences that the command makes together; memory mostly ends sooner. */
enum { DT_MAX_SEQUENCES = 65536 };

/**
 * Judges settings of texts before a model is loaded.
 *
 *   info      the model that they are for (dt_checkpoint_info()); of what ends texts only what is
 *             known: n_eos may be -1
 *   n_prompt  tokens of the longest prompt
 *   names     for messages; NULL: those of the fields
 *
 * The second says what dt_generate_batch() asks of them beside.
 *
 * Not collective.
 * Errors      as dt_generate() and dt_generate_batch() for options; DT_ERR_ARG also for NULL
 */
DT_API DT_MUST_USE dt_status dt_generate_check(const dt_generate_options *options,
                                               const dt_model_info *info, int64_t n_prompt,
                                               const dt_option_names *names);
DT_API DT_MUST_USE dt_status dt_generate_batch_check(const dt_generate_options *options,
                                                     const dt_model_info *info,
                                                     const dt_option_names *names);

/** Whether dt_generate_options.json_schema may be so. Not collective. Errors: DT_ERR_ARG NULL;
 * DT_ERR_FORMAT no schema; DT_ERR_UNSUPPORTED what is not kept to, by its name and its place;
 * DT_ERR_MEMORY. */
DT_API DT_MUST_USE dt_status dt_json_schema_check(const char *schema);

/**
 * The best next token of every sequence, for a loop of one's own: what dt_generate() chooses
 * without a processor of scores. Logits stay cut; a maximum of one key per sequence is the only
 * message.
 *
 *   logits  [batch, 1, vocab] of dt_model_forward() with DT_LOGITS_LAST
 *   out     [batch] ids, the same on every rank
 *
 * Collective  over the tape's mesh.
 * Errors      the tape's latched one; DT_ERR_ARG NULL; DT_ERR_FORMAT logits that are infinite or no
 *             numbers; DT_ERR_MEMORY
 */
DT_API DT_MUST_USE dt_status dt_choose_best(dt_tape *tape, dt_tensor *logits, int32_t *out);

/**
 * The options that a checkpoint asks for: defaults, with generation_config.json over them. What the
 * caller sets afterwards counts more. Tokens that end a text are the model's in any case.
 *
 *   out  its lists are borrowed from the model
 *
 * Not collective.
 * Errors      DT_ERR_ARG     NULL
 *             DT_ERR_FORMAT  the file could not be read when the model was loaded
 */
DT_API DT_MUST_USE dt_status dt_model_generate_options(const dt_model *model,
                                                       dt_generate_options *out);

/**
 * Generation of one sequence: the prompt runs once, then token by token. An end-of-sequence token
 * is generated and then ends the run. The state may have seen tokens before: a conversation goes
 * on.
 *
 *   prompt   n_prompt ids >= 1
 *   out      room for the new ids, or NULL
 *   n_out    ids generated
 *
 * Collective  over the model's mesh.
 *             Ranks outside the mesh stand by: no callback, *n_out is 0.
 * Errors      DT_ERR_ARG  an empty prompt, an id outside the vocabulary, more tokens than the state
 *                         has room for, an option out of its range (the message names it and says
 *                         what is possible); processors that leave no token; those of the forward
 *             DT_ERR_FORMAT  it is unknown what ends a text (n_eos is -1) and ignore_eos is not
 *                         set; logits that are infinite or no numbers
 */
DT_API DT_MUST_USE dt_status dt_generate(dt_model *model, dt_state *state, const int32_t *prompt,
                                         int64_t n_prompt, const dt_generate_options *options,
                                         int32_t *out, int64_t *n_out);

/* Texts that were made. */
typedef struct dt_generated dt_generated;

/**
 * Generation of several texts at once: prompts of any lengths are read together, as if each were
 * alone. With num_beams above 1 by beam search, with num_return_sequences several texts of each
 * prompt (their prompt is read once).
 *
 *   prompts  n_prompts lists of at least one id. Lengths (max_length, min_length) count from the
 *            longest of them, as padded batches of Transformers do
 *   *out     n_prompts * num_return_sequences texts, those of a prompt side by side; beams best
 *            first
 *
 * Collective  over the model's mesh, with the same arguments. Ranks outside the mesh stand by and
 *             get texts without tokens.
 * Ownership   *out is released with dt_generated_release().
 * Errors      as dt_generate(); on error *out is NULL
 */
DT_API DT_MUST_USE dt_status dt_generate_batch(dt_model *model, const dt_ids *prompts,
                                               int64_t n_prompts,
                                               const dt_generate_options *options,
                                               dt_generated **out);
DT_API void dt_generated_release(dt_generated **generated); /* accepts NULL */

/* Queries of text i: its new tokens, borrowed; why it ended; the score of a beam; how many tokens
 * of its prompt a service found in what it had read for others. Nothing for an i out of range. Not
 * collective, no errors. */
DT_API int64_t dt_generated_count(const dt_generated *generated);
DT_API dt_ids dt_generated_ids(const dt_generated *generated, int64_t i);
DT_API dt_end dt_generated_end(const dt_generated *generated, int64_t i);
DT_API double dt_generated_score(const dt_generated *generated, int64_t i);
DT_API int64_t dt_generated_found(const dt_generated *generated, int64_t i);

/** Log-probabilities of new token n of text i: that of the token first, then those of the best, the
 * largest first; *n_list of them, 0 if they were not asked for (dt_generate_options.n_logprobs).
 * Borrowed. Not collective, no errors. */
DT_API const dt_logprob *dt_generated_logprobs(const dt_generated *generated, int64_t i, int64_t n,
                                               int64_t *n_list);

#ifdef __cplusplus
}
#endif
#endif
