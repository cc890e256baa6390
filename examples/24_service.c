/* SPDX-License-Identifier: Apache-2.0
 *
 * The program of Parallelformers' page, line by line: GPT-Neo over four ranks, five beams, memory
 * before and after:  24_service [folder [worker processes]]
 *
 *   model = AutoModelForCausalLM.from_pretrained("EleutherAI/gpt-neo-2.7B")
 *   parallelize(model, num_gpus=4, fp16=False, verbose="simple")   # daemon=True
 *   model.memory_allocated()
 *   outputs = model.generate(**inputs, num_beams=5, no_repeat_ngram_size=4, max_length=15)
 *   model.memory_allocated()
 *   del model
 */
#include <dtensor.h>
#include <stdio.h>
#include <stdlib.h>

enum { N_RANKS = 4 };

static dt_status print_memory(dt_service *service, const char *when)
{
    dt_rank_memory ranks[N_RANKS];

    DT_TRY(dt_service_memory(service, NULL, ranks, NULL));
    for (int r = 0; r < N_RANKS; r++)
        printf("%s: rank %d: %lld bytes allocated, %lld reserved\n", when, ranks[r].rank,
               (long long)ranks[r].allocated_bytes, (long long)ranks[r].reserved_bytes);
    return DT_OK;
}

/* A folder without a tokenizer, as the tests have, gets ids. */
static dt_status generate(dt_served *model, const char *folder)
{
    static const int32_t some[] = { 5, 17, 3, 88, 42 };
    const char text[] = "Parallelformers is";
    dt_generate_options options = DT_GENERATE_OPTIONS_INIT;
    dt_tokenizer *tokenizer = NULL;
    dt_generated *texts = NULL;
    int32_t *ids = NULL;
    char *answer = NULL;
    size_t n = 0, n_bytes;
    dt_ids prompt = { some, 5 };
    dt_status st = DT_OK;

    if (dt_tokenizer_files(folder) != NULL) {
        DT_TRY(dt_tokenizer_open(folder, &tokenizer));
        DT_TRY_TO(
            done, st,
            dt_tokenizer_encode(tokenizer, text, sizeof text - 1, DT_ENCODE_ADD_SPECIAL, &ids, &n));
        prompt = (dt_ids){ ids, (int64_t)n };
    }
    options.num_beams = 5;
    options.no_repeat_ngram_size = 4;
    options.max_length = 15;
    DT_TRY_TO(done, st, dt_service_generate(model, &prompt, 1, &options, NULL, &texts));
    prompt = dt_generated_ids(texts, 0);
    for (int64_t i = 0; i < prompt.n; i++)
        printf("%d%c", prompt.ids[i], i + 1 < prompt.n ? ' ' : '\n');
    if (tokenizer == NULL) goto done;
    DT_TRY_TO(
        done, st,
        dt_tokenizer_decode(tokenizer, prompt.ids, (size_t)prompt.n, true, &answer, &n_bytes));
    printf("%s%s\n", text, answer);
done:
    dt_tokenizer_free(answer);
    dt_tokenizer_free(ids);
    dt_generated_release(&texts);
    dt_tokenizer_release(&tokenizer);
    return st;
}

int main(int argc, char **argv)
{
    const char *folder = argc > 1 ? argv[1] : "examples/checkpoint";
    dt_service_options options = DT_SERVICE_OPTIONS_INIT;
    dt_run_options run = DT_RUN_OPTIONS_INIT;
    dt_service *service = NULL;
    dt_served *model = NULL;
    dt_status st;

    run.n_ranks = N_RANKS; /* num_gpus */
    options.run = &run;
    options.processes = argc > 2 ? atoi(argv[2]) : 0; /* ranks as threads, or in daemons */
    st = dt_service_start(&options, &service);
    if (st == DT_OK) st = dt_service_load(service, folder, NULL, &model);
    if (st == DT_OK) st = print_memory(service, "loaded");
    if (st == DT_OK) st = generate(model, folder);
    if (st == DT_OK) st = print_memory(service, "generated");
    if (st == DT_OK) st = dt_service_unload(&model); /* deparallelize() */
    if (st == DT_OK) st = print_memory(service, "unloaded");
    if (st == DT_OK) st = dt_service_stop(&service);
    if (st != DT_OK) fprintf(stderr, "%s\n", dt_last_error()->message);
    return st == DT_OK ? 0 : 1;
}
