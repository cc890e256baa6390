/* SPDX-License-Identifier: Apache-2.0
 *
 * Names under which processes meet, and who is found there. */
#define _GNU_SOURCE /* ucred */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "mesh/comm/sockets.h"

/* --- SipHash-2-4 --------------------------------------------------------------------------------
 *
 * Names can be listed by everybody (/proc/net/unix), so that of one process must not give away the
 * next one's: a keyed hash, whose values say nothing of each other to who has not the key. */

typedef struct key {
    uint64_t low, high;
} key;

static uint64_t turn(uint64_t x, int by)
{
    return x << by | x >> (64 - by);
}

static void stir(uint64_t v[4], int rounds)
{
    for (int i = 0; i < rounds; i++) {
        v[0] += v[1], v[1] = turn(v[1], 13) ^ v[0], v[0] = turn(v[0], 32);
        v[2] += v[3], v[3] = turn(v[3], 16) ^ v[2];
        v[0] += v[3], v[3] = turn(v[3], 21) ^ v[0];
        v[2] += v[1], v[1] = turn(v[1], 17) ^ v[2], v[2] = turn(v[2], 32);
    }
}

static uint64_t hash(key k, const char *text)
{
    const size_t bytes = strlen(text);
    uint64_t v[4] = { k.low ^ 0x736f6d6570736575u, k.high ^ 0x646f72616e646f6du,
                      k.low ^ 0x6c7967656e657261u, k.high ^ 0x7465646279746573u };

    for (size_t at = 0; at <= bytes; at += 8) { /* the last word has the length at its end */
        uint64_t word = 0;
        for (size_t i = 0; i < 8 && at + i < bytes; i++)
            word |= (uint64_t)(unsigned char)text[at + i] << 8 * i;
        if (at + 8 > bytes) word |= (uint64_t)bytes << 56;
        v[3] ^= word;
        stir(v, 2);
        v[0] ^= word;
    }
    v[2] ^= 0xff;
    stir(v, 4);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}

/* --- names --------------------------------------------------------------------------------------
 */

static const char *variable(const char *name)
{
    const char *text = getenv(name);

    return text != NULL ? text : "";
}

socklen_t dti_sockets_name(int process, struct sockaddr_un *out)
{
    const char *secret = variable("TORCHELASTIC_RUN_ID");
    const key k = { hash((key){ 1, 2 }, secret), hash((key){ 3, 4 }, secret) };
    char job[1024];
    int n;

    (void)snprintf(job, sizeof job, "%d/%.32s/%.32s/%s", process, variable("MASTER_PORT"),
                   variable("TORCHELASTIC_RESTART_COUNT"), variable("MASTER_ADDR"));
    *out = (struct sockaddr_un){ .sun_family = AF_UNIX };
    n = snprintf(out->sun_path + 1, sizeof out->sun_path - 1, /* what begins with 0 is no file */
                 "dtensor/%.32s/%016llx/%d", variable("MASTER_PORT"),
                 (unsigned long long)hash(k, job), process);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

/* --- who is there -------------------------------------------------------------------------------
 */

static bool ask(int socket, struct ucred *who)
{
    socklen_t bytes = sizeof *who;

    return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, who, &bytes) == 0;
}

bool dti_sockets_is_mine(int socket)
{
    struct ucred who;

    return ask(socket, &who) && who.uid == geteuid();
}

void dti_sockets_holder(int socket, char text[DTI_HOLDER_BYTES])
{
    char path[64], program[32] = "";
    struct ucred who;
    FILE *f;

    (void)snprintf(text, DTI_HOLDER_BYTES, "somebody who does not answer");
    if (!ask(socket, &who) || who.pid == 0) return;
    (void)snprintf(path, sizeof path, "/proc/%lld/comm", (long long)who.pid);
    f = fopen(path, "r");
    if (f != NULL) {
        if (fgets(program, sizeof program, f) != NULL) program[strcspn(program, "\n")] = '\0';
        (void)fclose(f);
    }
    for (char *p = program; *p != '\0'; p++)
        if (*p < ' ' || *p > '~') *p = '?';
    (void)snprintf(text, DTI_HOLDER_BYTES, "process %lld%s%s%s of user %lld", (long long)who.pid,
                   program[0] != '\0' ? " (" : "", program, program[0] != '\0' ? ")" : "",
                   (long long)who.uid);
}
