/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of options, and how a command line is read by it. */
#include "cli/option_table.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/text.h"
#include "cli/option_rows.h"

#define AT(field) offsetof(cli_args, field)
#define READS     (CLI_GENERATE | CLI_LOGITS | CLI_COMPARE | CLI_GRADIENTS)
#define ONE_LIST  (CLI_GENERATE | CLI_LOGITS | CLI_COMPARE | CLI_DETOKENIZE)
#define SPLITS    (CLI_TOKENIZE | CLI_DETOKENIZE)
#define TALKS     (CLI_GENERATE | CLI_CHAT)
#define RUNS      (READS | CLI_SAVE | CLI_CHAT | CLI_BENCH | CLI_TRAIN | CLI_SERVE)
#define PLACED    (RUNS | CLI_TOPO)
#define LAID_OUT  (RUNS | CLI_PLAN)
#define PACKS     (TALKS | CLI_SERVE | CLI_LOGITS | CLI_COMPARE | CLI_SAVE | CLI_BENCH | CLI_PLAN)
#define ON_A_MESH \
    (TALKS | CLI_SERVE | CLI_LOGITS | CLI_GRADIENTS | CLI_SAVE | CLI_BENCH | CLI_PLAN | CLI_TOPO)
#define STEPS  (CLI_GRADIENTS | CLI_PLAN | CLI_TRAIN)
#define TRAINS (CLI_TRAIN | CLI_PLAN)
#define CHECKS (CLI_INSPECT | CLI_VERIFY)
#define ALL \
    (SPLITS | RUNS | CHECKS | CLI_LIST | CLI_PLAN | CLI_TOPO | CLI_ENV | CLI_REPORT | CLI_CALIBRATE)

enum { MAX_THREADS = 1024, MAX_NEW = 1000000000, MAX_FILES = 65536 };

/* clang-format off */
static const cli_option options[] = {
    { "model",          'm', TEXT,   "DIR",  AT(folder),         (LAID_OUT & ~CLI_SERVE) | SPLITS, 0, "Hugging Face folder of the model, or ORG/NAME[@REVISION] in the local cache" },
    { "model", 'm', MANY, "DIR", AT(serving.models), CLI_SERVE, 0, "folder of a model, or NAME=DIR; may be repeated" },
    { "host", 0, TEXT, "ADDRESS", AT(serving.host), CLI_SERVE, 0, "to listen at (default 127.0.0.1)" },
    { "port", 0, COUNT, "N", AT(serving.port), CLI_SERVE, 65535, "to listen at (default 8080; 0: any that is free)" },
    { "api-key-file", 0, TEXT, "FILE", AT(serving.key_file), CLI_SERVE, 0, "keys, one a line, of which requests name one (or DTENSOR_API_KEY)" },
    { "open", 0, FLAG, NULL, AT(serving.open), CLI_SERVE, 0, "listen beyond this machine without a key" },
    { "allow-host", 0, MANY, "NAME", AT(serving.hosts), CLI_SERVE, 0, "a name that requests may call this server by" },
    { "metrics", 0, FLAG, NULL, AT(serving.metrics), CLI_SERVE, 0, "/metrics for other machines too" },
    { "context", 0, NUMBER, "N", AT(serving.context), CLI_SERVE, MAX_NEW, "longest text, prompt included (default: the model's, if there is room)" },
    { "max-running", 0, NUMBER, "N", AT(serving.max_running), CLI_SERVE, 64, "requests of a model that run at once (default: as the service has it)" },
    { "pool-tokens", 0, NUMBER, "N", AT(serving.pool_tokens), CLI_SERVE, MAX_NEW, "of all texts of a model whose keys and values there is room for (default: a quarter of the memory)" },
    { "processes", 0, COUNT, "N", AT(serving.processes), CLI_SERVE, 4096, "worker processes of each model: one that dies ends its model alone (default 0: threads)" },
    { "max-requests", 0, NUMBER, "N", AT(serving.max_requests), CLI_SERVE, 100000, "that run or wait; one more is told to come back (default 64)" },
    { "max-connections", 0, NUMBER, "N", AT(serving.max_connections), CLI_SERVE, 4096, "at a time (default 256)" },
    { "request-timeout", 0, COUNT, "S", AT(serving.request_timeout), CLI_SERVE, 1000000, "seconds for an answer as a whole (default 0: any)" },
    { "drain", 0, COUNT, "S", AT(serving.drain), CLI_SERVE, 1000000, "seconds that answers have to end when the server is ended (default 30)" },
    { "chat-template", 0, TEXT, "FILE", AT(serving.chat_template), CLI_SERVE, 0, "Jinja in the place of the first model's template" },
    { "access-log", 0, TEXT, "FILE", AT(serving.access_log), CLI_SERVE, 0, "JSON lines go there (default: standard error)" },
    { "demo", 0, FLAG, NULL, AT(serving.demo), CLI_SERVE, 0, "print a line of curl to try it with" },
    { "serve", 0, TEXT, "URL", AT(serving.url), CLI_BENCH, 0, "measure a server in the place of a model" },
    { "clients", 0, TEXT, "LIST", AT(serving.clients), CLI_BENCH, 0, "of --serve: so many ask at once, one number after the other: 1,2,4 (default 1)" },
    { "rate", 0, TEXT, "X", AT(serving.rate), CLI_BENCH, 0, "of --serve: requests per second, at random times, in the place of clients" },
    { "requests", 0, NUMBER, "N", AT(serving.requests), CLI_BENCH, 1000000, "of --serve, for each number of clients (default 8 for each client)" },
    { "prompt",         'p', TEXT,   "TEXT", AT(prompt),         READS | CLI_TOKENIZE,        0, "what the model reads first" },
    { "prompt-file",    'f', TEXT,   "FILE", AT(prompt_file), READS | CLI_TOKENIZE, 0, "text, less one final newline; CRLF is LF; - is stdin" },
    { "tokens",         't', TEXT,   "IDS",  AT(tokens),         ONE_LIST,     0, "the same as token ids: 1,2,3" },
    { "tokens",         't', TEXT,   "ROWS", AT(tokens),         CLI_GRADIENTS, 0, "the same as rows of token ids: 1,2,3;4,5,6" },
    { "labels",          0,  TEXT,   "ROWS", AT(labels),         CLI_GRADIENTS, 0, "what each token is to predict, -100: nothing (default: the next)" },
    { "recompute",       0,  TEXT,   "WHAT", AT(recompute),      STEPS, 0, "what runs again: none (default), selective or cheap, full or blocks" },
    { "chunk",           0,  NUMBER, "N",    AT(chunk),          STEPS, MAX_NEW, "tokens of a row whose logits exist at a time (default: all)" },
    { "prompts-file", 0, TEXT, "FILE", AT(prompts_file), CLI_GENERATE, 0, "one prompt per line (LF or CRLF; empty: none), together" },
    { "system", 's', TEXT, "TEXT", AT(system), CLI_CHAT, 0, "what the model is told before the conversation" },
    { "show-prompt", 0, FLAG, NULL, AT(show_prompt), CLI_CHAT, 0, "print to stderr what the template makes of each turn" },
    { "max-new-tokens", 'n', NUMBER, "N",    AT(max_new_tokens), TALKS, MAX_NEW, "stop after N tokens (default 100; chat: the context)" },
    { "ignore-eos",      0,  SWITCH,   NULL,   0,     CLI_GENERATE, 0, "go on after an end-of-sequence token" },
    { "min-new-tokens", 0, SET, "N", 0, TALKS, 0, "no end of sequence before N tokens" },
    { "max-length", 0, SET, "N", 0, CLI_GENERATE, 0, "stop after N tokens, those of the prompt included" },
    { "min-length", 0, SET, "N", 0, CLI_GENERATE, 0, "no end of sequence before N tokens, prompt included" },
    { "stop", 0, MANY, "TEXT", AT(stop), TALKS, 0, "end with the token that completes TEXT; may be repeated" },
    { "eos-ids", 0, SET, "IDS", 0, CLI_GENERATE, 0, "tokens that end a text, instead of the model's: 1,2" },
    { "sample", 0, SWITCH, NULL, 0, TALKS, 0, "draw tokens (default: as generation_config.json says)" },
    { "greedy", 0, FLAG, NULL, AT(greedy), TALKS, 0, "take the best token always" },
    { "seed", 0, SET, "N", 0, TALKS, 0, "of the draws (default 0): in f32 the same text on every mesh" },
    { "temperature", 0, SET, "X", 0, TALKS, 0, "divides the logits (default 1)" },
    { "top-k", 0, SET, "K", 0, TALKS, 0, "draw among the K best tokens (default 50; 0: all)" },
    { "top-p", 0, SET, "P", 0, TALKS, 0, "draw among the best with probability P together" },
    { "min-p", 0, SET, "P", 0, TALKS, 0, "drop tokens below P times the best one's probability" },
    { "typical-p", 0, SET, "P", 0, TALKS, 0, "draw among the typical with probability P together" },
    { "epsilon-cutoff", 0, SET, "P", 0, TALKS, 0, "drop tokens of probability below P" },
    { "eta-cutoff", 0, SET, "P", 0, TALKS, 0, "the same, less strict where many are likely" },
    { "renormalize-logits", 0, SWITCH, NULL, 0, CLI_GENERATE, 0, "log-probabilities again after all rules" },
    { "remove-invalid-values", 0, SWITCH, NULL, 0, CLI_GENERATE, 0, "NaN counts as 0, infinity as the largest number" },
    { "repetition-penalty", 0, SET, "X", 0, TALKS, 0, "of tokens that occurred (default 1: none)" },
    { "presence-penalty", 0, SET, "X", 0, TALKS, 0, "of new tokens that occurred, once: taken from logits" },
    { "frequency-penalty", 0, SET, "X", 0, TALKS, 0, "the same, for each time that they occurred" },
    { "no-repeat-ngram-size", 0, SET, "N", 0, TALKS, 0, "no N tokens twice in the same order" },
    { "bad-words-ids", 0, SET, "IDS", 0, CLI_GENERATE, 0, "sequences that are not generated: 5,6;7" },
    { "suppress-ids", 0, SET, "IDS", 0, CLI_GENERATE, 0, "tokens that are not generated: 5,6" },
    { "begin-suppress-ids", 0, SET, "IDS", 0, CLI_GENERATE, 0, "the same, of the first new token" },
    { "forced-bos-id", 0, SET, "ID", 0, CLI_GENERATE, 0, "the second token of a text, after a prompt of one" },
    { "forced-eos-ids", 0, SET, "IDS", 0, CLI_GENERATE, 0, "the last token, where the length ends a text" },
    { "num-beams", 0, SET, "N", 0, CLI_GENERATE, 0, "beam search with N beams" },
    { "num-return-sequences", 0, SET, "N", 0, CLI_GENERATE, 0, "texts of each prompt (default 1)" },
    { "length-penalty", 0, SET, "X", 0, CLI_GENERATE, 0, "of beams: above 0 favours long ones (default 1)" },
    { "early-stopping", 0, SET, "WORD", 0, CLI_GENERATE, 0, "of beams: false (default), true or never" },
    { "mesh",            0,  TEXT,   "MESH", AT(mesh),           ON_A_MESH, 0, "ranks by named dims (default tp=1, or processes)" },
    { "mesh", 0, TEXT, "MESH", AT(mesh), CLI_TRAIN, 0, "ranks by named dims (default dp=1, or processes)" },
    { "mesh",            0,  MANY,   "MESH", AT(meshes),         CLI_COMPARE, 0, "ranks by named dims; two or more, the first one counts" },
    { "tolerance",       0,  TEXT,   "X",    AT(tolerance),      CLI_COMPARE, 0, "what counts as equal (f32: 1e-4, f16: 0.02, bf16: 0.1)" },
    { "dtype",           0,  TEXT,   "TYPE", AT(dtype),          LAID_OUT,     0, "auto (the checkpoint's, default), f32, bf16, f16" },
    { "weights",         0,  TEXT,   "HOW",  AT(weights),        PACKS,        0, "of linear layers: int8 or int4, with group=N asymmetric head keep=PATTERN" },
    { "plan",            0,  TEXT,   "FILE", AT(plan),           LAID_OUT,     0, "JSON file of styles or from plan --auto; auto, built-in, nemo, nemo+sp" },
    { "fully-shard", 0, TEXT, "DIMS", AT(fully_shard), LAID_OUT, 0, "cut parameters over these mesh dims too, gather them to use" },
    { "offload-parameters", 0, TEXT, "WHERE", AT(offload), LAID_OUT, 0, "of --fully-shard, --zero 3: host (of a GPU), or a folder" },
    { "stages", 0, TEXT, "LIST", AT(stages), LAID_OUT, 0, "blocks of each stage over pp: 4,4,3 (default: by operations)" },
    { "sequence-parallel", 0, FLAG,  NULL,   AT(sequence_parallel), LAID_OUT,  0, "cut tokens over tp between blocks (built-in plan)" },
    { "nodes", 0, NUMBER, "N", AT(nodes), CLI_CALIBRATE, 1024, "that ranks are divided among, as --link may have it (default 1)" },
    { "ranks", 0, NUMBER, "N", AT(ranks), CLI_CALIBRATE, 1024, "of a node (default: one for each core)" },
    { "seconds", 0, NUMBER, "N", AT(seconds), CLI_CALIBRATE, 3600, "to measure for (default 20)" },
    { "threads",         0,  NUMBER, "N",    AT(threads),        PLACED | CLI_CALIBRATE, MAX_THREADS, "of each rank (default: cores / ranks)" },
    { "isa",             0,  TEXT,   "NAME", AT(isa),            RUNS | CLI_CALIBRATE,         0, "kernels: auto (default) or one that --version lists" },
    { "products",        0,  TEXT,   "HOW",  AT(products),       RUNS | CLI_CALIBRATE,         0, "one-order (default): a row's bits are the same among any rows; or fastest" },
    { "device",          0,  TEXT,   "NAME", AT(device),         RUNS,         0, "auto (default: GPUs if there are any), cpu, cuda, cuda:N" },
    { "bind",            0,  TEXT,   "HOW",  AT(bind),           PLACED,       0, "threads to cores: compact (default), spread or none" },
    { "machine",         0,  TEXT,   "TEXT", AT(machine),        CLI_TOPO,     0, "another one, in hwloc's words or an .xml of lstopo" },
    { "no-bind",         0,  FLAG,   NULL,   AT(no_bind),        PLACED,       0, "the same as --bind none" },
    { "auto",            0,  FLAG,   NULL,   AT(automatic),      CLI_PLAN,     0, "find the mesh and all else that makes tokens, or steps of --train, fastest" },
    { "machine", 0, TEXT, "NAME", AT(machine), CLI_PLAN, 0, "of --auto: here (default), a100, h100, pcie, ethernet, h100:16x8, or a .json file" },
    { "explain", 0, TEXT, "MESH", AT(explain), CLI_PLAN, 0, "of --auto: this mesh alone; with zero=1,... one way: what it costs, what rejects it" },
    { "goal", 0, TEXT, "WORD", AT(goal), CLI_PLAN, 0, "of --auto without --train: token (default) or prompt" },
    { "measure", 0, NUMBER, "K", AT(measure), CLI_PLAN, 1000, "of --auto --train: run the K best for some steps here, the fastest leads" },
    { "seconds", 0, NUMBER, "N", AT(seconds), CLI_PLAN, 86400, "of --auto: to look for at most (default: until nothing can be faster)" },
    { "top", 0, NUMBER, "K", AT(top), CLI_PLAN, 1000, "of --auto: ways to rank (default 1)" },
    { "train",           0,  FLAG,   NULL,   AT(train),          CLI_PLAN,     0, "of a training step: what it sends, computes and holds" },
    { "picture",         0,  TEXT,   "FILE", AT(picture),        CLI_PLAN,     0, "SVG of --train on a pipeline: its schedule in time; of --auto: memory too" },
    { "batch",           0,  NUMBER, "N",    AT(batch),          CLI_PLAN,     MAX_NEW, "sequences at once (default 1)" },
    { "sequence",        0,  NUMBER, "N",    AT(sequence),       CLI_PLAN,     MAX_NEW, "tokens of each (default 2048, or the context)" },
    { "sequence", 0, NUMBER, "N", AT(sequence), CLI_BENCH, MAX_NEW, "tokens of the prompt (default 512, or the context)" },
    { "max-new-tokens", 'n', NUMBER, "N", AT(max_new_tokens), CLI_BENCH, MAX_NEW, "tokens generated in a round (default 32)" },
    { "batch", 0, TEXT, "LIST", AT(batches), CLI_BENCH, 0, "sequences to decode at once, one number after the other: 1,2,4" },
    { "behind", 0, NUMBER, "N", AT(behind), CLI_BENCH, MAX_NEW, "tokens that decoding begins behind (default 8)" },
    { "rounds", 0, NUMBER, "N", AT(rounds), CLI_BENCH, 1000, "of which medians are taken (default 5)" },
    { "random", 0, FLAG, NULL, AT(random), CLI_BENCH, 0, "random weights, by config.json alone" },
    { "config", 0, TEXT, "FILE", AT(training.config), CLI_TRAIN, 0, "config.json alone: a model that begins at random" },
    { "data", 0, MANY, "FILE", AT(training.data), CLI_TRAIN, MAX_FILES, "text, .jsonl or token file (.bin, .idx); may be repeated" },
    { "data-weights", 0, TEXT, "LIST", AT(training.data_weights), CLI_TRAIN, 0, "of the data files: 0.7,0.3 (default: by their tokens)" },
    { "output", 'o', TEXT, "RUN", AT(output), CLI_TRAIN, 0, "folder of the run: metrics, checkpoints, the model" },
    { "options", 0, TEXT, "FILE", AT(training.options), CLI_TRAIN, 0, "JSON object of these options; the command line counts first" },
    { "steps", 0, NUMBER, "N", AT(training.steps), CLI_TRAIN, MAX_NEW, "of the whole run, those before --resume included" },
    { "batch", 0, NUMBER, "N", AT(batch), CLI_TRAIN, MAX_NEW, "sequences of a step, of all ranks together (default 8)" },
    { "sequence", 0, NUMBER, "N", AT(sequence), CLI_TRAIN, MAX_NEW, "tokens of each (default 256, or the context)" },
    { "microbatches", 0, NUMBER, "M", AT(training.microbatches), TRAINS, MAX_NEW, "passes that a step is made in (default 1)" },
    { "optimizer", 0, TEXT, "NAME", AT(training.optimizer), TRAINS, 0, "adamw (train: default) or sgd" },
    { "lr", 0, TEXT, "X", AT(training.lr), CLI_TRAIN, 0, "learning rate (default 3e-4)" },
    { "lr-schedule", 0, TEXT, "NAME", AT(training.schedule), CLI_TRAIN, 0, "of the rate: constant (default), linear, cosine, wsd" },
    { "schedule", 0, TEXT, "NAME", AT(training.pipeline), TRAINS, 0, "of the pipeline over pp: 1f1b (default), gpipe, zb-h1, ..., or a .csv file" },
    { "stages-per-rank", 0, NUMBER, "N", AT(training.stages_per_rank), TRAINS, 1024, "of the pipeline (default: as usual for the schedule)" },
    { "warmup", 0, COUNT, "N", AT(training.warmup), CLI_TRAIN, MAX_NEW, "steps in which the rate rises (default 0)" },
    { "min-lr", 0, TEXT, "X", AT(training.min_lr), CLI_TRAIN, 0, "the rate at the end of a schedule (default 0)" },
    { "betas", 0, TEXT, "A,B", AT(training.betas), CLI_TRAIN, 0, "of AdamW (default 0.9,0.95)" },
    { "eps", 0, TEXT, "X", AT(training.eps), CLI_TRAIN, 0, "of AdamW (default 1e-8)" },
    { "weight-decay", 0, TEXT, "X", AT(training.weight_decay), CLI_TRAIN, 0, "of matrices (default 0.1)" },
    { "momentum", 0, TEXT, "X", AT(training.momentum), TRAINS, 0, "of SGD (default 0)" },
    { "nesterov", 0, FLAG, NULL, AT(training.nesterov), TRAINS, 0, "SGD with Nesterov's momentum" },
    { "clip", 0, TEXT, "X", AT(training.clip), CLI_TRAIN, 0, "largest norm of all gradients (default 1; 0: any)" },
    { "zero", 0, COUNT, "STAGE", AT(training.zero), TRAINS, 3, "what copies cut: 0 nothing, 1 state, 2 gradients, 3 parameters" },
    { "no-masters", 0, FLAG, NULL, AT(training.no_masters), TRAINS, 0, "bf16 alone, rounded at random, instead of f32 beside it" },
    { "bucket", 0, NUMBER, "BYTES", AT(training.bucket), TRAINS, (int64_t)1 << 40, "of gradients that travel together before all are there" },
    { "offload", 0, TEXT, "WHERE", AT(training.offload), TRAINS, 0, "the optimizer's state: host (of a GPU), or a folder" },
    { "seed", 0, TEXT, "N", AT(training.seed), CLI_TRAIN, 0, "of the order, a model of --config, --no-masters (default 0)" },
    { "order", 0, TEXT, "HOW", AT(training.order), CLI_TRAIN, 0, "of the data: shuffled (default), stored, or packed documents" },
    { "documents", 0, FLAG, NULL, AT(training.documents), CLI_TRAIN, 0, "attention and positions stay within a document" },
    { "end-token", 0, COUNT, "ID", AT(training.end_token), CLI_TRAIN, INT32_MAX, "that ends documents where files do not say (default: the model's)" },
    { "validate", 0, TEXT, "FILE", AT(training.validate), CLI_TRAIN, 0, "text or token file whose loss is printed, too" },
    { "validate-every", 0, NUMBER, "N", AT(training.validate_every), CLI_TRAIN, MAX_NEW, "steps between (default: at the end alone)" },
    { "save-every", 0, NUMBER, "N", AT(training.save_every), CLI_TRAIN, MAX_NEW, "steps between checkpoints (default: at the end alone)" },
    { "keep", 0, NUMBER, "N", AT(training.keep), CLI_TRAIN, MAX_NEW, "newest checkpoints that stay (default 2)" },
    { "export", 0, FLAG, NULL, AT(training.exports), CLI_TRAIN, 0, "a Hugging Face folder at every save, not at the end alone" },
    { "resume", 0, FLAG, NULL, AT(training.resume), CLI_TRAIN, 0, "go on from the newest checkpoint of RUN" },
    { "forget", 0, MANY, "NAME", AT(training.forget), CLI_TRAIN, MAX_FILES, "with --resume: an option of the run that no longer holds" },
    { "new-data", 0, FLAG, NULL, AT(training.new_data), CLI_TRAIN, 0, "with --resume: other data than before, from their beginning" },
    { "dry-run", 0, FLAG, NULL, AT(training.dry_run), CLI_TRAIN, 0, "print memory, bytes and operations of each rank, and stop" },
    { "trace", 0, TEXT, "FILE", AT(training.trace), CLI_TRAIN, 0, "Chrome trace of the third step to write" },
    { "log-every", 0, NUMBER, "N", AT(training.log_every), CLI_TRAIN, MAX_NEW, "steps between lines on stderr (default 10)" },
    { "output", 'o', TEXT, "FILE", AT(output), CLI_REPORT, 0, "HTML file to write (default RUN/report.html)" },
    { "output", 'o', TEXT, "FILE", AT(output), CLI_CALIBRATE, 0, "JSON file to write (default: standard output)" },
    { "output",         'o', TEXT,   "DIR",  AT(output),         CLI_SAVE,     0, "folder to write; must hold no weights" },
    { "output",         'o', TEXT,   "FILE", AT(output),         CLI_GRADIENTS, 0, "safetensors file to write; one that is there is replaced" },
    { "output",         'o', TEXT,   "FILE", AT(output),         CLI_TOKENIZE, 0, "a file of tokens to write, NAME.bin, of the texts FILE..." },
    { "format",          0,  TEXT,   "NAME", AT(format),         CLI_TOKENIZE, 0, "of it: llmc (default), nanogpt, megatron (has documents)" },
    { "append-eos",      0,  FLAG,   NULL,   AT(append_eos),     CLI_TOKENIZE, 0, "end each document with the tokenizer's eos_token" },
    { "separator",       0,  TEXT,   "TEXT", AT(separator),      CLI_TOKENIZE, 0, "what stands between documents of a text (default: none)" },
    { "key",             0,  TEXT,   "KEY",  AT(key),            CLI_TOKENIZE, 0, "of the text in JSON lines (default: text)" },
    { "json-lines",      0,  FLAG,   NULL,   AT(json_lines),     CLI_TOKENIZE, 0, "FILEs are JSON lines, also where not called .jsonl" },
    { "max-shard-size",  0,  TEXT,   "SIZE", AT(max_shard_size), CLI_SAVE,     0, "most tensors of one file: 5GB (default), 500MB, 2GiB" },
    { "values", 0, FLAG, NULL, AT(values), CLI_VERIFY, 0, "read every number: NaN, infinity, tensors of zeros" },
    { "no-special", 0, FLAG, NULL, AT(no_special), CLI_TOKENIZE, 0, "neither add special tokens nor find them in the text" },
    { "keep-special", 0, FLAG, NULL, AT(keep_special), CLI_DETOKENIZE, 0, "write special tokens too" },
    { "load", 0, MANY, "FILE", AT(load), LAID_OUT | CHECKS | CLI_LIST, 0, "a module: architectures, styles of yours" },
    { "link",            0,  TEXT,   "LINKS", AT(link),          RUNS | CLI_CALIBRATE,         0, "simulate slow links: microseconds,GB/s or dp=50,1;tp=2,20" },
    { "oversubscribe",   0,  FLAG,   NULL,   AT(oversubscribe),  RUNS,         0, "allow more than 16 ranks per core" },
    { "json",            0,  FLAG,   NULL,   AT(json),           ALL,          0, "print the result as JSON" },
    { "quiet",          'q', FLAG,   NULL,   AT(quiet),          ALL,          0, "only warnings and errors on stderr" },
    { "verbose",        'v', FLAG,   NULL,   AT(verbose),        ALL,          0, "show the path of an error through the code" },
    { "help",           'h', FLAG,   NULL,   AT(help),           ALL,          0, "this text" },
};
/* clang-format on */

/* Options whose value is a choice among words, for completion. */
static const struct {
    const char *option, *words;
} choices[] = {
    { "early-stopping", "false true never" },
    { "recompute", "none selective full cheap blocks" },
    { "optimizer", "adamw sgd" },
    { "lr-schedule", "constant linear cosine wsd" },
    { "schedule", "naive gpipe 1f1b interleaved zb-h1 zb-h2 zbv dualpipev" },
    { "order", "shuffled stored packed" },
    { "zero", "0 1 2 3" },
    { "format", "llmc nanogpt megatron" },
    { "dtype", "auto f32 bf16 f16" },
    { "plan", "auto built-in nemo nemo+sp" },
    { "isa", "auto portable avx2 avx512 avx512_bf16 amx" },
    { "products", "one-order fastest" },
    { "device", "auto cpu cuda" },
    { "bind", "compact spread none" },
};

/* What is to be done in the place of an option that other commands have. */
static const struct {
    const char *option;
    unsigned commands;
    const char *instead;
} others[] = {
    { "weights", CLI_TRAIN | CLI_GRADIENTS,
      "weights of 8 and 4 bits have no gradients: train them as they are, and pack what comes of "
      "it with \"dtensor save --weights\"" },
};

const cli_option *cli_option_row(size_t i)
{
    return i < DT_COUNT(options) ? &options[i] : NULL;
}

const cli_option *cli_option_find(const cli_command *command, const char *name, size_t n)
{
    for (size_t i = 0; i < DT_COUNT(options); i++)
        if ((options[i].commands & command->bit) && strlen(options[i].name) == n &&
            memcmp(options[i].name, name, n) == 0)
            return &options[i];
    return NULL;
}

static const cli_option *find_letter(const cli_command *command, char letter)
{
    for (size_t i = 0; i < DT_COUNT(options); i++)
        if ((options[i].commands & command->bit) && options[i].letter == letter) return &options[i];
    return NULL;
}

dt_status cli_option_unknown(const cli_command *command, const char *name, size_t n)
{
    const char *names[DT_COUNT(options)], *near;
    char word[64];
    size_t n_names = 0;

    for (size_t i = 0; i < DT_COUNT(options); i++)
        if (options[i].commands & command->bit) names[n_names++] = options[i].name;
    (void)snprintf(word, sizeof word, "%.*s", (int)n, name);
    for (size_t i = 0; i < DT_COUNT(others); i++)
        DT_CHECK(!(others[i].commands & command->bit) || strcmp(others[i].option, word) != 0,
                 DT_ERR_ARG, "%s: there is no --%s: %s", command->name, word, others[i].instead);
    near = cli_nearest(word, names, n_names);
    DT_CHECK(near != NULL, DT_ERR_ARG,
             "%s: unknown option --%s; \"dtensor %s --help\" lists the options", command->name,
             word, command->name);
    DT_FAIL(DT_ERR_ARG, "%s: unknown option --%s; did you mean --%s?", command->name, word, near);
}

void cli_option_name_error(const cli_command *command, const cli_args *args)
{
    static const char *const words[][2] = { { "weights", "weights" },
                                            { "links", "link" },
                                            { "offload", "offload-parameters" },
                                            { "stages", "stages" } };
    dt_error e = *dt_last_error();
    const size_t n = strcspn(e.message, " :");

    for (size_t i = 0; i < DT_COUNT(words); i++) {
        const char *name = words[i][1];
        const cli_option *o = cli_option_find(command, name, strlen(name));
        char text[2 * DT_ERROR_MESSAGE_BYTES];
        if (strlen(words[i][0]) != n || strncmp(e.message, words[i][0], n) != 0 || o == NULL ||
            !cli_option_given(o, args))
            continue;
        (void)snprintf(text, sizeof text, "--%s%s", name, e.message + n);
        (void)dti_printable(text, e.message, sizeof e.message);
        dti_error_restore(&e);
        return;
    }
}

dt_status cli_parse_int(const char *what, const char *text, int64_t min, int64_t max, int64_t *out)
{
    char *end = NULL;
    long long value;

    errno = 0;
    value = strtoll(text, &end, 10);
    DT_CHECK(text[0] != '\0' && strspn(text, "-0123456789") == strlen(text) && *end == '\0' &&
                 errno == 0 && value >= min && value <= max,
             DT_ERR_ARG, "%s: \"%s\" is not a number from %lld to %lld", what, text, (long long)min,
             (long long)max);
    *out = value;
    return DT_OK;
}

dt_status cli_parse_number(const char *what, const char *text, double *out)
{
    char *end;

    if (text == NULL) return DT_OK;
    *out = strtod(text, &end);
    DT_CHECK(strspn(text, "0123456789.eE+-") == strlen(text) && end != text && *end == '\0' &&
                 isfinite(*out),
             DT_ERR_ARG, "%s: \"%s\" is not a number", what, text);
    return DT_OK;
}

bool cli_option_is_flag(const cli_option *o)
{
    return o->kind == FLAG || o->kind == SWITCH;
}

int cli_option_knob(const char *name)
{
    const dt_knob *knobs = dt_generate_knobs(NULL);
    int i = 0;

    while (knobs[i].option == NULL || strcmp(knobs[i].option, name) != 0) i++;
    return i;
}

const char *cli_knob(const cli_args *args, const char *field)
{
    const dt_knob *all = dt_generate_knobs(NULL), *k = dt_generate_knob(field);

    if (k != NULL && k->kind == DT_KNOB_TEXTS) return args->stop.n > 0 ? args->stop.items[0] : NULL;
    return k != NULL ? args->knob[k - all] : NULL;
}

dt_status cli_option_store(const cli_option *o, const char *value, cli_args *args)
{
    void *field = (char *)args + o->field;
    char what[64];

    (void)snprintf(what, sizeof what, "--%s", o->name);
    if (o->kind == FLAG) *(bool *)field = true;
    if (o->kind == SWITCH) args->knob[cli_option_knob(o->name)] = "true";
    DT_CHECK(cli_option_is_flag(o) || value[0] != '\0', DT_ERR_ARG,
             "%s: its value is empty; write %s %s", what, what, o->value);
    if (o->kind == TEXT) *(const char **)field = value;
    if (o->kind == SET) args->knob[cli_option_knob(o->name)] = value;
    if (o->kind == MANY) {
        const int64_t most = o->max > 0 ? o->max : CLI_MAX_MANY;
        cli_many *many = field;
        DT_CHECK(many->n < most, DT_ERR_ARG, "%s is given more than %" PRId64 " times", what, most);
        DT_TRY(
            dti_grow((void **)&many->items, &many->room, (size_t)many->n + 1, sizeof *many->items));
        many->items[many->n++] = value;
    }
    if (o->kind == NUMBER || o->kind == COUNT)
        DT_TRY(cli_parse_int(what, value, o->kind == NUMBER, o->max, field));
    return DT_OK;
}

bool cli_option_given(const cli_option *o, const cli_args *args)
{
    const void *field = (const char *)args + o->field;

    switch (o->kind) {
    case FLAG:
        return *(const bool *)field;
    case TEXT:
        return *(const char *const *)field != NULL;
    case MANY:
        return ((const cli_many *)field)->n > 0;
    case SET:
    case SWITCH:
        return args->knob[cli_option_knob(o->name)] != NULL;
    case COUNT:
        return *(const int64_t *)field >= 0;
    default:
        return *(const int64_t *)field != 0;
    }
}

/* A second value would silently replace the first. */
static dt_status refuse_repeated(const cli_command *command, const cli_option *o, bool *given)
{
    DT_CHECK(cli_option_is_flag(o) || o->kind == MANY || !given[o - options], DT_ERR_ARG,
             "%s: --%s is given twice; give it once", command->name, o->name);
    given[o - options] = true;
    return DT_OK;
}

/* Where in the command line we are. */
typedef struct reader {
    const cli_command *command;
    char **words;
    int n_words, next;
    bool given[DT_COUNT(options)];
    cli_args *args;
} reader;

/* The value of an option that is not in the option's own word. */
static dt_status next_value(reader *r, const cli_option *o, const char **value)
{
    DT_CHECK(r->next < r->n_words, DT_ERR_ARG, "%s: --%s needs a value: --%s %s", r->command->name,
             o->name, o->name, o->value);
    *value = r->words[r->next++];
    return DT_OK;
}

static dt_status read_long(reader *r, const char *word)
{
    const size_t n = strcspn(word, "=");
    const cli_option *o = cli_option_find(r->command, word, n);
    const char *value = word[n] == '=' ? word + n + 1 : NULL;

    if (o == NULL) return cli_option_unknown(r->command, word, n);
    DT_TRY(refuse_repeated(r->command, o, r->given));
    DT_CHECK(!cli_option_is_flag(o) || value == NULL, DT_ERR_ARG,
             "%s: --%s takes no value, not \"%s\"", r->command->name, o->name, value);
    if (!cli_option_is_flag(o) && value == NULL) DT_TRY(next_value(r, o, &value));
    DT_TRY(cli_option_store(o, value, r->args));
    return DT_OK;
}

/* The letter at *at, which moves behind it and what it takes of the word "-qn8". */
static dt_status read_letter(reader *r, const char *word, const char **at)
{
    const cli_option *o = find_letter(r->command, **at);
    const char *value = NULL;

    DT_CHECK(o != NULL, DT_ERR_ARG,
             "%s: unknown option -%c in \"-%s\"; \"dtensor %s --help\" lists the options",
             r->command->name, **at, word, r->command->name);
    (*at)++;
    DT_TRY(refuse_repeated(r->command, o, r->given));
    if (!cli_option_is_flag(o)) {
        if (**at == '\0') DT_TRY(next_value(r, o, &value));
        if (value == NULL) value = *at;
        *at = "";
    }
    DT_TRY(cli_option_store(o, value, r->args));
    return DT_OK;
}

static dt_status read_argument(reader *r, char *word)
{
    const char *name = r->command->name;

    if (r->command->many) { /* in the place of words that were read before */
        r->args->files = r->words;
        r->words[r->args->n_files++] = word;
        return DT_OK;
    }
    DT_CHECK(r->command->argument != NULL || cli_option_find(r->command, "prompt", 6) == NULL,
             DT_ERR_ARG,
             "%s: unexpected argument \"%s\"; write --prompt \"%s\" if that is the prompt; usage: "
             "dtensor %s %s",
             name, word, word, name, r->command->usage);
    DT_CHECK(r->command->argument != NULL, DT_ERR_ARG,
             "%s: unexpected argument \"%s\"; usage: dtensor %s %s", name, word, name,
             r->command->usage);
    DT_CHECK(word[0] != '\0', DT_ERR_ARG, "%s: %s is empty; usage: dtensor %s %s", name,
             r->command->argument, name, r->command->usage);
    DT_CHECK(r->args->folder == NULL, DT_ERR_ARG,
             "%s: a second %s, \"%s\" after \"%s\"; one at a time", name, r->command->argument,
             word, r->args->folder);
    r->args->folder = word;
    return DT_OK;
}

dt_status cli_parse(const cli_command *command, int n_words, char **words, cli_args *out)
{
    reader r = { .command = command, .words = words, .n_words = n_words, .args = out };
    bool dashes = true; /* mean options */

    *out = (cli_args){ .command = command->name,
                       .training = { .warmup = -1, .zero = -1, .end_token = -1 },
                       .serving = { .port = -1, .request_timeout = -1, .drain = -1 } };
    while (r.next < n_words && !out->help) {
        char *word = words[r.next++];

        if (dashes && strcmp(word, "--") == 0)
            dashes = false;
        else if (dashes && strncmp(word, "--", 2) == 0)
            DT_TRY(read_long(&r, word + 2));
        else if (dashes && word[0] == '-' && word[1] != '\0')
            for (const char *at = word + 1; *at != '\0';) DT_TRY(read_letter(&r, word + 1, &at));
        else
            DT_TRY(read_argument(&r, word));
    }
    return DT_OK;
}

void cli_args_free(cli_args *args)
{
    for (size_t i = 0; i < DT_COUNT(options); i++) {
        cli_many *many = (cli_many *)(void *)((char *)args + options[i].field);
        if (options[i].kind != MANY) continue;
        dti_free(many->items);
        *many = (cli_many){ NULL, 0, 0 };
    }
    json_decref(args->texts);
    json_decref(args->stored);
    args->texts = args->stored = NULL;
}

bool cli_option_info_at(const cli_command *command, int i, cli_option_info *out)
{
    for (size_t k = 0; k < DT_COUNT(options); k++) {
        const cli_option *o = &options[k];
        if (!(o->commands & command->bit) || i-- > 0) continue;
        *out = (cli_option_info){ o->name, o->letter, o->value, NULL, o->help };
        for (size_t c = 0; c < DT_COUNT(choices); c++)
            if (strcmp(choices[c].option, o->name) == 0) out->words = choices[c].words;
        return true;
    }
    return false;
}

bool cli_option_at(const cli_command *command, int i, char name[CLI_OPTION_BYTES],
                   const char **help)
{
    cli_option_info o;

    if (!cli_option_info_at(command, i, &o)) return false;
    (void)snprintf(name, CLI_OPTION_BYTES, "%c%c%s --%s%s%s", o.letter ? '-' : ' ',
                   o.letter ? o.letter : ' ', o.letter ? "," : " ", o.name, o.value ? " " : "",
                   o.value ? o.value : "");
    *help = o.help;
    return true;
}

void cli_print_options(const cli_command *command)
{
    char name[CLI_OPTION_BYTES];
    const char *help;

    for (int i = 0; cli_option_at(command, i, name, &help); i++)
        (void)printf("  %-31s %s\n", name, help);
}
