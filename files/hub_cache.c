/* SPDX-License-Identifier: Apache-2.0
 *
 * The cache of the Hugging Face Hub: names, revisions, what is there. */
#include <ctype.h>
#include <dirent.h>
#include <dtensor/hub.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/io_status.h"
#include "base/memory.h"
#include "files/folder.h"
#include "files/input.h"

_Static_assert((int)DT_HUB_PATH_BYTES == (int)DTI_PATH_BYTES, "a folder is a path");

enum { COMMIT_BYTES = 65, MAX_DEPTH = 4, SOME = 300 };
static const char prefix[] = "models--", main_branch[] = "main";

/* Of n bytes: letters, digits and "._-", no "." and no ".." alone. */
static bool is_word(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!isalnum((unsigned char)s[i]) && strchr("._-", s[i]) == NULL) return false;
    return n > 0 && !(n <= 2 && strspn(s, ".") >= n);
}

/* Words with slashes between, `most` at most. */
static bool are_words(const char *s, size_t n, int most)
{
    for (size_t at = 0, word; at <= n; at += word + 1) {
        const char *slash = memchr(s + at, '/', n - at);
        word = slash != NULL ? (size_t)(slash - s) - at : n - at;
        if (!is_word(s + at, word) || --most < 0) return false;
    }
    return true;
}

bool dt_hub_is_name(const char *name)
{
    const size_t n = name != NULL ? strcspn(name, "@") : 0;

    return name != NULL && are_words(name, n, 2) &&
           (name[n] == '\0' || are_words(name + n + 1, strlen(name + n + 1), MAX_DEPTH));
}

/* --- a folder's names, sorted ----------------------------------------------------------------- */

typedef struct names {
    char (*name)[256];
    size_t n, room;
} names;

static int by_name(const void *a, const void *b)
{
    return strcmp(a, b);
}

static dt_status read_names(const char *folder, names *out)
{
    DIR *dir = opendir(folder);
    dt_status st = DT_OK;

    *out = (names){ 0 };
    if (dir == NULL) {
        DT_CHECK(errno == ENOENT || errno == ENOTDIR, dti_io_status(errno), "%s: %s", folder,
                 strerror(errno));
        return DT_OK;
    }
    for (const struct dirent *e; st == DT_OK && (e = readdir(dir)) != NULL;) {
        if (!is_word(e->d_name, strlen(e->d_name)) || strlen(e->d_name) > 255) continue;
        st = dti_grow((void **)&out->name, &out->room, out->n + 1, sizeof *out->name);
        if (st == DT_OK) (void)snprintf(out->name[out->n++], sizeof *out->name, "%s", e->d_name);
    }
    (void)closedir(dir);
    if (st != DT_OK) dti_free(out->name);
    DT_TRY(st);
    if (out->n > 0) qsort(out->name, out->n, sizeof *out->name, by_name);
    return DT_OK;
}

static bool is_folder(const char *path)
{
    struct stat about;

    return stat(path, &about) == 0 && S_ISDIR(about.st_mode);
}

/* --- a revision ------------------------------------------------------------------------------- */

/* The commit that REPO/refs/`revision` holds; "": there is none. */
static dt_status read_ref(const char *repo, const char *revision, char commit[COMMIT_BYTES])
{
    char path[DTI_PATH_BYTES], refs[DTI_PATH_BYTES];
    struct stat about;
    void *bytes;
    int64_t n;

    commit[0] = '\0';
    DT_TRY(dti_folder_path(refs, repo, "refs"));
    DT_TRY(dti_folder_path(path, refs, revision));
    if (stat(path, &about) != 0 || !S_ISREG(about.st_mode)) return DT_OK;
    DT_TRY(dti_input_read_file(path, COMMIT_BYTES + 8, &bytes, &n));
    while (n > 0 && isspace(((unsigned char *)bytes)[n - 1])) n--;
    if (n < COMMIT_BYTES && is_word(bytes, (size_t)n))
        (void)snprintf(commit, COMMIT_BYTES, "%.*s", (int)n, (char *)bytes);
    dti_free(bytes);
    DT_CHECK(commit[0] != '\0', DT_ERR_IO, "%s: it does not hold the name of a commit", path);
    return DT_OK;
}

typedef dt_status (*ref_fn)(void *arg, const char *revision, const char *commit);

/* Each revision of a repository, those in folders ("refs/pr/1") by their paths. */
static dt_status each_ref(const char *repo, const char *inside, int depth, ref_fn fn, void *arg)
{
    char path[DTI_PATH_BYTES], commit[COMMIT_BYTES];
    dt_status st = DT_OK;
    names all;

    if ((size_t)snprintf(path, sizeof path, "%s/refs/%s", repo, inside) >= sizeof path)
        return DT_OK;
    DT_TRY(read_names(path, &all));
    for (size_t i = 0; st == DT_OK && i < all.n; i++) {
        char one[256], more[256];
        if ((size_t)snprintf(one, sizeof one, "%s%s", inside, all.name[i]) >= sizeof one - 1)
            continue;
        if (read_ref(repo, one, commit) != DT_OK) continue; /* of another tool */
        (void)snprintf(more, sizeof more, "%.254s/", one);
        if (st == DT_OK && commit[0] != '\0')
            st = fn(arg, one, commit);
        else if (st == DT_OK && depth < MAX_DEPTH)
            st = each_ref(repo, more, depth + 1, fn, arg);
    }
    dti_free(all.name);
    return st;
}

static dt_status snapshot_path(const char *repo, const char *commit, char folder[DTI_PATH_BYTES])
{
    char snapshots[DTI_PATH_BYTES];

    DT_TRY(dti_folder_path(snapshots, repo, "snapshots"));
    DT_TRY(dti_folder_path(folder, snapshots, commit));
    return DT_OK;
}

/* "main, v1.0": what there is in the place of a revision. */
static dt_status add_ref(void *arg, const char *revision, const char *commit)
{
    char *text = arg;
    const size_t used = strlen(text);

    (void)commit;
    if (used + strlen(revision) + 3 < SOME)
        (void)snprintf(text + used, SOME - used, "%s%s", used > 0 ? ", " : "", revision);
    return DT_OK;
}

static dt_status find_revision(const char *repo, const char *name, const char *revision,
                               char folder[DTI_PATH_BYTES])
{
    char commit[COMMIT_BYTES], there[SOME] = "";

    DT_TRY(read_ref(repo, revision, commit));
    if (commit[0] != '\0') {
        DT_TRY(snapshot_path(repo, commit, folder));
        DT_CHECK(is_folder(folder), DT_ERR_IO,
                 "%s: revision \"%s\" is commit %s, of which %s/snapshots has nothing", name,
                 revision, commit, repo);
        return DT_OK;
    }
    if (strchr(revision, '/') == NULL) {
        DT_TRY(snapshot_path(repo, revision, folder));
        if (is_folder(folder)) return DT_OK;
    }
    DT_TRY(each_ref(repo, "", 0, add_ref, there));
    DT_FAIL(DT_ERR_IO, "%s: %s has no revision \"%s\"; it has %s", name, repo, revision,
            there[0] != '\0' ? there : "none; a commit in snapshots may be named");
}

dt_status dt_hub_find(const char *cache, const char *name, char folder[DT_HUB_PATH_BYTES])
{
    const size_t n = name != NULL ? strcspn(name, "@") : 0;
    char repo[DTI_PATH_BYTES], words[256];
    size_t used = 0;

    DT_CHECK(cache != NULL && name != NULL && folder != NULL, DT_ERR_ARG,
             "cache, name or folder is NULL");
    DT_CHECK(dt_hub_is_name(name) && 2 * n + sizeof prefix < sizeof words, DT_ERR_ARG,
             "\"%.100s\" is no name of a model: ORG/NAME, and @REVISION behind it or not", name);
    DT_CHECK(cache[0] != '\0', DT_ERR_IO,
             "%s: there is no such folder, and no cache of the Hub to look into: none of "
             "HF_HUB_CACHE, HF_HOME, XDG_CACHE_HOME and HOME is set",
             name);
    for (size_t i = 0; i < n; i++)
        used += (size_t)snprintf(words + used, sizeof words - used, name[i] == '/' ? "--" : "%c",
                                 name[i]);
    DT_CHECK((size_t)snprintf(repo, sizeof repo, "%s/%s%s", cache, prefix, words) < sizeof repo,
             DT_ERR_IO, "the path %.100s... is too long", cache);
    DT_CHECK(
        is_folder(repo), DT_ERR_IO,
        "%s: there is no such folder, and no model of that name in %s; nothing is fetched from "
        "the Hub: \"hf download %.*s\" does that",
        name, cache, (int)n, name);
    return find_revision(repo, name, name[n] == '@' ? name + n + 1 : main_branch, folder);
}

/* --- all of them ------------------------------------------------------------------------------ */

typedef struct listing {
    const char *repo, *name;
    names snapshots; /* what no revision has led to yet; "": it has */
    dt_hub_fn fn;
    void *arg;
} listing;

/* The model_type of a folder's config.json; "" where there is none that can be read. */
static void read_type(const char *folder, char type[64])
{
    dti_json_doc doc = { 0 };
    const char *word;

    type[0] = '\0';
    if (dti_folder_has(folder, "config.json") &&
        dti_folder_json(folder, "config.json", &doc) == DT_OK &&
        dti_json_string_or(&doc.root, "model_type", "", &word) == DT_OK)
        (void)dti_printable(word, type, 64);
    dti_json_free(&doc);
}

static dt_status show_model(void *arg, const char *revision, const char *commit)
{
    const listing *l = arg;
    const bool is_main = strcmp(revision, main_branch) == 0;
    char folder[DTI_PATH_BYTES], name[2 * sizeof *l->snapshots.name], type[64];

    DT_TRY(snapshot_path(l->repo, commit, folder));
    if (!is_folder(folder)) return DT_OK;
    (void)snprintf(name, sizeof name, "%s%s%s", l->name, is_main ? "" : "@",
                   is_main ? "" : revision);
    for (size_t i = 0; i < l->snapshots.n; i++)
        if (strcmp(l->snapshots.name[i], commit) == 0) l->snapshots.name[i][0] = '\0';
    read_type(folder, type);
    DT_TRY(l->fn(l->arg, &(dt_hub_model){ name, folder, type }));
    return DT_OK;
}

/* "models--org--name" -> "org/name"; a name may hold "--" behind the first. */
static void spell(const char *folder, char name[256])
{
    const char *from = folder + sizeof prefix - 1, *two = strstr(from, "--");
    const int org = two != NULL ? (int)(two - from) : 0;

    (void)snprintf(name, 256, "%.*s%s%s", org, from, two != NULL ? "/" : "",
                   two != NULL ? two + 2 : from);
}

static dt_status show_repo(const char *cache, const char *folder, listing *l)
{
    char repo[DTI_PATH_BYTES], path[DTI_PATH_BYTES], name[256];
    dt_status st;

    DT_TRY(dti_folder_path(repo, cache, folder));
    DT_TRY(dti_folder_path(path, repo, "snapshots"));
    spell(folder, name);
    l->repo = repo;
    l->name = name;
    DT_TRY(read_names(path, &l->snapshots));
    st = each_ref(repo, "", 0, show_model, l);
    for (size_t i = 0; st == DT_OK && i < l->snapshots.n; i++) {
        char commit[COMMIT_BYTES];
        if (l->snapshots.name[i][0] == '\0' || strlen(l->snapshots.name[i]) >= sizeof commit)
            continue;
        (void)snprintf(commit, sizeof commit, "%.64s", l->snapshots.name[i]);
        st = show_model(l, commit, commit);
    }
    dti_free(l->snapshots.name);
    return st;
}

dt_status dt_hub_each(const char *cache, dt_hub_fn fn, void *arg)
{
    listing l = { .fn = fn, .arg = arg };
    dt_status st = DT_OK;
    names folders;

    DT_CHECK(cache != NULL && fn != NULL, DT_ERR_ARG, "cache or fn is NULL");
    DT_TRY(read_names(cache, &folders));
    for (size_t i = 0; st == DT_OK && i < folders.n; i++)
        if (strncmp(folders.name[i], prefix, sizeof prefix - 1) == 0)
            st = show_repo(cache, folders.name[i], &l);
    dti_free(folders.name);
    return st;
}
