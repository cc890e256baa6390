/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DTI_IO_STATUS_H
#define DTI_IO_STATUS_H

#include <dtensor/base.h>

/* Of a call to the system that failed with `error`: DT_ERR_MEMORY where the process or the machine
 * has run out of something (memory, open files), which is no fault of the file; else DT_ERR_IO. */
dt_status dti_io_status(int error);

#endif
