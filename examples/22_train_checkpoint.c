/* SPDX-License-Identifier: Apache-2.0
 *
 * A training run from C: a Hugging Face folder, a text, a folder of checkpoints. Ten steps on two
 * ranks, a save; a second trainer that loads it makes the eleventh step with the same loss, bit by
 * bit. `dtensor train` is this loop with more options. */
#define _XOPEN_SOURCE 700 /* mkdtemp, nftw */

#include <dtensor.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>

enum { STEPS = 10, BATCH = 4, TOKENS = 64, PATH_BYTES = 512 };

typedef struct trainer {
    dt_model *model;
    dt_optimizer *optimizer;
    dt_data *data;
    dt_tape *tape;
    dt_run_folder *run;
    dt_run_progress at;
} trainer;

static dt_status open_trainer(dt_mesh *mesh, const char *folder, const char *work, trainer *t)
{
    dt_optimizer_options how = DT_OPTIMIZER_OPTIONS_INIT;
    dt_run_folder_options run = DT_RUN_FOLDER_OPTIONS_INIT;
    dt_data_options data = DT_DATA_OPTIONS_INIT;
    char path[PATH_BYTES];

    how.zero = 1; /* the state is cut over "dp" */
    data.sequence = TOKENS;
    run.mode = DT_RUN_FOLDER_CONTINUE;
    (void)snprintf(path, sizeof path, "%s/text.bin", work);
    DT_TRY(dt_model_load(mesh, folder, NULL, &t->model));
    DT_TRY(dt_optimizer_create(dt_model_layers(t->model), &how, &t->optimizer));
    DT_TRY(dt_data_open(&(dt_data_source){ path, 0 }, 1, &data, &t->data));
    DT_TRY(dt_tape_create(dt_mesh_runtime(mesh), &t->tape));
    (void)snprintf(path, sizeof path, "%s/run", work);
    return dt_run_folder_open(mesh, path, &run, &t->run);
}

static void close_trainer(trainer *t)
{
    dt_run_folder_release(&t->run);
    dt_tape_release(&t->tape);
    dt_data_release(&t->data);
    dt_optimizer_release(&t->optimizer);
    dt_model_release(&t->model);
}

/* One step on the next BATCH samples of the run, of which each rank has its part. */
static dt_status step(trainer *t, float *loss)
{
    const dt_schedule rate = { .kind = DT_SCHEDULE_CONSTANT, .lr = 1e-4, .warmup = 5 };
    dt_loss_options how = DT_LOSS_OPTIONS_INIT;
    dt_tensor *ids, *targets, *mean;
    dt_batch b;

    DT_TRY(dt_data_rows(t->data, t->at.samples, BATCH, &b));
    how.n_valid = (double)b.n_valid; /* the sum is divided once, by what the whole step has */
    dt_tape_record(t->tape, dt_optimizer_gradients(t->optimizer));
    ids = dt_model_ids(t->tape, t->model, b.ids, b.rows, b.tokens);
    targets = dt_model_ids(t->tape, t->model, b.targets, b.rows, b.tokens);
    mean = dt_model_loss(t->tape, t->model, ids, targets, &how);
    dt_optimizer_backward(t->optimizer, t->tape, mean, true, NULL);
    DT_TRY(dt_tape_status(t->tape));
    DT_TRY(dt_tensor_read(mean, loss, sizeof *loss));
    dt_tape_reset(t->tape);
    DT_TRY(dt_optimizer_step(t->optimizer, dt_schedule_at(&rate, t->at.step), NULL));
    t->at.step++;
    t->at.samples += BATCH;
    t->at.tokens += BATCH * TOKENS;
    return DT_OK;
}

typedef struct job {
    const char *folder, *work;
} job;

static dt_status rank_main(dt_runtime *rt, void *arg)
{
    const job *j = arg;
    trainer first = { 0 }, second = { 0 };
    dt_mesh *mesh = NULL;
    dt_status st = DT_OK;
    float loss = 0, again = 0;

    DT_TRY(dt_mesh_create(rt, "dp=2", &mesh));
    DT_TRY_TO(done, st, open_trainer(mesh, j->folder, j->work, &first));
    for (int k = 0; k < STEPS; k++) DT_TRY_TO(done, st, step(&first, &loss));
    DT_TRY_TO(done, st,
              dt_run_folder_save(first.run, dt_model_layers(first.model), first.optimizer,
                                 &first.at, NULL));
    DT_TRY_TO(done, st, step(&first, &loss)); /* while the checkpoint is written */
    DT_TRY_TO(done, st, dt_run_folder_wait(first.run));
    close_trainer(&first);

    DT_TRY_TO(done, st, open_trainer(mesh, j->folder, j->work, &second));
    DT_TRY_TO(done, st,
              dt_run_folder_load(second.run, NULL, dt_model_layers(second.model), second.optimizer,
                                 &second.at, NULL));
    DT_TRY_TO(done, st, step(&second, &again));
    if (dt_runtime_rank(rt) == 0)
        printf("step %lld: loss %.9g, and %.9g after a load\n", (long long)second.at.step,
               (double)loss, (double)again);
    DT_CHECK_TO(done, st, loss == again, DT_ERR_INTERNAL, "the losses differ");
done:
    close_trainer(&second);
    close_trainer(&first);
    dt_mesh_release(&mesh);
    return st;
}

static dt_status make_tokens(const job *j, const char *text)
{
    dt_tokenizer *tokenizer = NULL;
    char path[PATH_BYTES];
    dt_status st;

    (void)snprintf(path, sizeof path, "%s/text.bin", j->work);
    DT_TRY(dt_tokenizer_open(j->folder, &tokenizer));
    st = dt_tokenize_files(&text, 1, tokenizer, NULL, path, NULL);
    dt_tokenizer_release(&tokenizer);
    return st;
}

static int remove_one(const char *path, const struct stat *info, int type, struct FTW *at)
{
    (void)info;
    (void)type;
    (void)at;
    return remove(path);
}

int main(int argc, char **argv)
{
    char work[] = "/tmp/dtensor-train-XXXXXX";
    job j = { argc > 1 ? argv[1] : "examples/checkpoint", work };
    dt_run_options options = DT_RUN_OPTIONS_INIT;
    dt_status st;

    options.n_ranks = 2;
    if (mkdtemp(work) == NULL) return 1;
    st = make_tokens(&j, argc > 2 ? argv[2] : "examples/data/tinyshakespeare.txt");
    if (st == DT_OK) st = dt_run(&options, rank_main, &j);
    if (st != DT_OK) (void)fprintf(stderr, "%s\n", dt_last_error()->message);
    (void)nftw(work, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    return st == DT_OK ? 0 : 1;
}
