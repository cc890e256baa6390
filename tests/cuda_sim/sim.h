/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside the simulated device. */
#ifndef DTI_SIM_H
#define DTI_SIM_H

#include <cuda_runtime.h>

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace dti_sim
{

/* What the environment chooses. */
struct options {
    int n_devices; /* DTENSOR_SIM_DEVICES, 1 */
    bool down;     /* DTENSOR_SIM_ORDER=down: threads and blocks run from the last to the first */
    bool protect;  /* DTENSOR_SIM_PROTECT is not 0: the host cannot touch device memory */
    bool late;     /* DTENSOR_SIM_LATE=1: work starts when somebody waits for it */
};
const options &chosen();

/* --- errors ----------------------------------------------------------------------------------*/

/* Remembers the error for cudaGetLastError() and returns it. */
cudaError_t say(cudaError_t error);

/* A failed launch, which lasts until cudaDeviceReset(); the text goes to cudaGetErrorString(). */
void fail_for_good(const std::string &text);
cudaError_t lasting(); /* that failure, or cudaSuccess */

/* --- memory ----------------------------------------------------------------------------------*/

struct memory_info {
    cudaMemoryType type;
    int device;
    size_t left; /* bytes from the pointer to the end of its memory */
};
memory_info find_memory(const void *p);
size_t used_bytes(); /* of devices */

enum : size_t { DEVICE_BYTES = (size_t)8 << 30, SHARED_BYTES = 228 * 1024 };

/* While one of these lives, device memory can be read and written. */
class opened
{
  public:
    opened();
    ~opened();
    opened(const opened &) = delete;
    opened &operator=(const opened &) = delete;
};

/* --- order -----------------------------------------------------------------------------------*/

struct capture; /* what is recorded into a graph */
typedef std::function<void()> work;

/* Runs, queues or records it. The error of a stream that cannot take it. From the first piece on
 * that `spins`, a stream has a thread of its own, and nobody waits for it who has not asked to. */
cudaError_t enqueue(cudaStream_t stream, work op, bool spins = false);
void hurry();        /* lets all streams run that have a thread, as a device would by itself */
bool is_capturing(); /* this thread has begun a capture that is under way */
void drain_device(int device);

/* --- kernels ---------------------------------------------------------------------------------*/

/* One launch, on this thread; false if it failed. */
bool run_grid(const launch_order &order);

/* Ends the launch that runs on this thread; called from a fibre. */
[[noreturn]] void fault(const char *format, ...) __attribute__((format(printf, 1, 2)));

} // namespace dti_sim

#endif
