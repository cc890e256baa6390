/* SPDX-License-Identifier: Apache-2.0
 *
 * The program of workers: dtensor_worker, beside the modules. Functions of a user's come from the
 * modules that dt_service_options names. */
#include <dtensor/service.h>
#include <stdio.h>

int main(void)
{
    const int ended = dt_service_work(NULL, NULL);

    if (ended < 0) (void)fprintf(stderr, "dtensor_worker: a service starts it\n");
    return ended < 0 ? 2 : ended;
}
