/* SPDX-License-Identifier: Apache-2.0
 *
 * In the place of mhd.c where libmicrohttpd was not found. */
#include "service/http/server.h"

#include "base/error.h"

dt_status dti_daemon_start(dt_server *s)
{
    (void)s;
    DT_FAIL(DT_ERR_UNSUPPORTED,
            "this build has no HTTP server; build again where libmicrohttpd is installed (on "
            "Debian: apt-get install libmicrohttpd-dev), with -DDT_WITH_HTTP=ON");
}

void dti_daemon_quiesce(dt_server *s)
{
    (void)s;
}

void dti_daemon_stop(dt_server *s)
{
    (void)s;
}

bool dt_server_is_built(void)
{
    return false;
}
