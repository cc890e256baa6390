/* SPDX-License-Identifier: Apache-2.0
 *
 * A program with an HTTP server inside: a model behind the OpenAI API, beside whatever else the
 * program does. Without a number of seconds it ends at once:
 *   26_serve [folder [seconds]] */
#include <dtensor.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void print_line(void *arg, const char *line)
{
    fprintf(arg, "%s\n", line);
}

static dt_status serve(dt_service *service, dt_served *loaded, unsigned seconds)
{
    const dt_server_model models[] = { { "small", loaded, 0, NULL } };
    dt_server_options options = DT_SERVER_OPTIONS_INIT;
    dt_server *server;

    options.service = service; /* for /metrics */
    options.port = 0;          /* any that is free */
    options.max_requests = 8;  /* one more is told to come back */
    options.log = print_line;  /* never says what was asked */
    options.log_arg = stderr;
    DT_TRY(dt_server_start(&options, models, 1, &server));
    printf("http://127.0.0.1:%d/v1\n", dt_server_port(server));
    (void)fflush(stdout);
    (void)sleep(seconds); /* the program's own work */
    dt_server_stop(&server, 10000);
    return DT_OK;
}

int main(int argc, char **argv)
{
    const char *folder = argc > 1 ? argv[1] : "examples/checkpoint";
    dt_service *service = NULL;
    dt_served *model = NULL;
    dt_status st = DT_OK;

    if (!dt_server_is_built()) {
        printf("this build has no HTTP server\n");
        return 0;
    }
    st = dt_service_start(NULL, &service);
    if (st == DT_OK) st = dt_service_load(service, folder, NULL, &model);
    if (st == DT_OK) st = serve(service, model, argc > 2 ? (unsigned)atoi(argv[2]) : 0);
    if (st != DT_OK) fprintf(stderr, "%s\n", dt_last_error()->message);
    (void)dt_service_unload(&model);
    (void)dt_service_stop(&service);
    return st == DT_OK ? 0 : 1;
}
