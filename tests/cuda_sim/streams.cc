/* SPDX-License-Identifier: Apache-2.0
 *
 * Streams, events and graphs of the simulated device. Work runs on the thread that starts it or,
 * with DTENSOR_SIM_LATE=1, on the one that first waits for it: what forgets to wait then finds that
 * nothing has happened. A stream whose kernels wait for those of others has a thread; late work of
 * it is begun when somebody waits for it, or when such a kernel has waited for a while. */
#include "sim.h"

#include <deque>
#include <thread>

using namespace dti_sim;

namespace dti_sim
{

/* Work in order. Whoever waits runs it, one piece at a time and one thread at a time. */
class lane
{
  public:
    explicit lane(int device) : device(device) {}
    ~lane()
    {
        stop();
    }
    const int device;

    uint64_t push(work op, bool spins);
    uint64_t issued()
    {
        std::lock_guard<std::mutex> hold(lock_);
        return issued_;
    }
    void wait(uint64_t ticket);
    bool has_done(uint64_t ticket);
    bool has_thread()
    {
        std::lock_guard<std::mutex> hold(lock_);
        return worker_.joinable();
    }
    void hurry()
    {
        std::lock_guard<std::mutex> hold(lock_);
        if (worker_.joinable()) want(issued_);
    }
    void stop();

  private:
    void want(uint64_t ticket);
    void serve();
    void run_one(std::unique_lock<std::mutex> &hold);
    std::mutex lock_;
    std::condition_variable changed_;
    std::deque<work> queue_;
    uint64_t issued_ = 0, done_ = 0, wanted_ = 0;
    bool busy_ = false, stopping_ = false;
    std::thread worker_;
};

uint64_t lane::push(work op, bool spins)
{
    std::lock_guard<std::mutex> hold(lock_);

    queue_.push_back(std::move(op));
    issued_++;
    if (spins && !worker_.joinable()) worker_ = std::thread([this] { serve(); });
    if (!chosen().late) want(issued_);
    changed_.notify_all();
    return issued_;
}

void lane::wait(uint64_t ticket)
{
    std::unique_lock<std::mutex> hold(lock_);

    want(ticket);
    while (done_ < ticket) {
        if (busy_ || worker_.joinable())
            changed_.wait(hold);
        else
            run_one(hold);
    }
}

/* Lets one piece run, so that those who ask again and again get an answer. */
bool lane::has_done(uint64_t ticket)
{
    std::unique_lock<std::mutex> hold(lock_);

    if (done_ >= ticket) return true;
    want(ticket);
    if (!busy_ && !worker_.joinable()) run_one(hold);
    return false;
}

void lane::stop()
{
    {
        std::lock_guard<std::mutex> hold(lock_);
        stopping_ = true;
        changed_.notify_all();
    }
    if (worker_.joinable()) worker_.join();
}

/* With the lock held: somebody waits for what was issued up to there. */
void lane::want(uint64_t ticket)
{
    if (ticket <= wanted_) return;
    wanted_ = ticket;
    changed_.notify_all();
}

/* The stream's own thread, which does what is wanted. */
void lane::serve()
{
    std::unique_lock<std::mutex> hold(lock_);

    for (;;) {
        if (!queue_.empty() && !busy_ && done_ < wanted_)
            run_one(hold);
        else if (stopping_)
            return;
        else
            changed_.wait(hold);
    }
}

void lane::run_one(std::unique_lock<std::mutex> &hold)
{
    const work op = std::move(queue_.front());

    queue_.pop_front();
    busy_ = true;
    hold.unlock();
    if (lasting() == cudaSuccess) op();
    hold.lock();
    busy_ = false;
    done_++;
    changed_.notify_all();
}

/* What is recorded. Work of all streams that take part stands in the order in which it was issued,
 * which is one of the orders that events allow. */
struct capture {
    cudaStream_t origin;
    std::vector<work> ops;
    std::vector<cudaStream_t> streams;
    bool broken = false, spins = false;
};

static thread_local int captures_begun;
static thread_local cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;

static std::mutex lanes_lock;
static std::vector<std::weak_ptr<lane>> &lanes()
{
    static auto *list = new std::vector<std::weak_ptr<lane>>;
    return *list;
}

} // namespace dti_sim

struct dti_sim_stream {
    std::shared_ptr<lane> order;
    std::shared_ptr<capture> recording;
    uint64_t n_recorded; /* pieces of work in the recording, */
    uint64_t n_joined;   /* and those that another stream waits for */
};

/* What an event stands for; others may wait for it while its owner records it anew. */
struct moment {
    std::shared_ptr<lane> order; /* NULL: never recorded */
    uint64_t ticket;
    std::shared_ptr<capture> recording; /* recorded in a capture: */
    cudaStream_t stream;
    uint64_t n_recorded;
};

struct dti_sim_event {
    std::mutex lock;
    moment last;
    moment now()
    {
        std::lock_guard<std::mutex> hold(lock);
        return last;
    }
};

struct dti_sim_graph {
    std::shared_ptr<const std::vector<work>> ops;
    bool spins;
};

bool dti_sim::is_capturing()
{
    return captures_begun > 0 && capture_mode != cudaStreamCaptureModeRelaxed;
}

cudaError_t dti_sim::enqueue(cudaStream_t stream, work op, bool spins)
{
    if (lasting() != cudaSuccess) return lasting();
    if (stream == nullptr) {
        if (is_capturing()) return cudaErrorStreamCaptureUnsupported;
        op();
        return lasting();
    }
    if (stream->recording != nullptr) {
        stream->recording->ops.push_back(std::move(op));
        stream->recording->spins = stream->recording->spins || spins;
        stream->n_recorded++;
        return cudaSuccess;
    }
    const uint64_t ticket = stream->order->push(std::move(op), spins);
    if (!chosen().late && !stream->order->has_thread()) stream->order->wait(ticket);
    return lasting();
}

/* The streams of a device; of all devices if it is -1. */
static std::vector<std::shared_ptr<lane>> lanes_of(int device)
{
    std::vector<std::shared_ptr<lane>> found;
    std::lock_guard<std::mutex> hold(lanes_lock);

    for (const auto &weak : lanes())
        if (auto l = weak.lock())
            if (device < 0 || l->device == device) found.push_back(l);
    return found;
}

void dti_sim::drain_device(int device)
{
    for (const auto &l : lanes_of(device)) l->wait(l->issued());
}

void dti_sim::hurry()
{
    for (const auto &l : lanes_of(-1)) l->hurry();
}

cudaError_t cudaDeviceSynchronize(void)
{
    int device = 0;

    if (is_capturing()) return say(cudaErrorStreamCaptureUnsupported);
    (void)cudaGetDevice(&device);
    drain_device(device);
    return say(lasting());
}

/* --- streams ---------------------------------------------------------------------------------*/

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned)
{
    int device = 0;

    (void)cudaGetDevice(&device);
    *out = new dti_sim_stream{ std::make_shared<lane>(device), nullptr, 0, 0 };
    std::lock_guard<std::mutex> hold(lanes_lock);
    lanes().push_back((*out)->order);
    return say(cudaSuccess);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    if (stream == nullptr) return say(cudaErrorInvalidResourceHandle);
    stream->order->wait(stream->order->issued());
    stream->order->stop();
    {
        std::lock_guard<std::mutex> hold(lanes_lock);
        auto &list = lanes();
        for (size_t i = 0; i < list.size(); i++)
            if (list[i].expired() || list[i].lock() == stream->order) {
                list[i--] = list.back();
                list.pop_back();
            }
    }
    delete stream;
    return cudaSuccess;
}

/* Nobody may wait for what is only recorded; the recording is of no use then. */
static bool breaks_capture(cudaStream_t stream)
{
    if (stream == nullptr || stream->recording == nullptr) return false;
    stream->recording->broken = true;
    return true;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    if (breaks_capture(stream)) return say(cudaErrorStreamCaptureUnsupported);
    if (stream != nullptr) stream->order->wait(stream->order->issued());
    return say(lasting());
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    if (breaks_capture(stream)) return say(cudaErrorStreamCaptureUnsupported);
    if (lasting() != cudaSuccess || stream == nullptr) return say(lasting());
    return stream->order->has_done(stream->order->issued()) ? say(lasting())
                                                            : say(cudaErrorNotReady);
}

/* Within a recording a wait is order alone; a stream that waits for one that records joins it. */
static cudaError_t wait_while_recording(cudaStream_t stream, const moment &m)
{
    const moment *const event = &m;

    if (event->recording == nullptr) return cudaErrorStreamCaptureIsolation;
    if (stream->recording != nullptr && stream->recording != event->recording)
        return cudaErrorStreamCaptureIsolation;
    if (event->recording->origin == nullptr) return cudaErrorStreamCaptureIsolation;
    if (stream->recording == nullptr) {
        stream->recording = event->recording;
        stream->n_recorded = 0;
        stream->n_joined = 0;
        event->recording->streams.push_back(stream);
    }
    stream->n_recorded++;
    if (event->stream != stream && event->stream->n_joined < event->n_recorded)
        event->stream->n_joined = event->n_recorded;
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned)
{
    if (stream == nullptr || event == nullptr) return say(cudaErrorInvalidResourceHandle);
    const moment m = event->now();
    if (stream->recording != nullptr || m.recording != nullptr)
        return say(wait_while_recording(stream, m));
    if (m.order == nullptr || m.order == stream->order) return say(lasting());
    const std::shared_ptr<lane> order = m.order;
    const uint64_t ticket = m.ticket;
    return say(enqueue(stream, [order, ticket] { order->wait(ticket); }));
}

/* --- events ----------------------------------------------------------------------------------*/

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned)
{
    *out = new dti_sim_event{ {}, moment{ nullptr, 0, nullptr, nullptr, 0 } };
    return say(cudaSuccess);
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    delete event;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    if (event == nullptr || stream == nullptr) return say(cudaErrorInvalidResourceHandle);
    std::lock_guard<std::mutex> hold(event->lock);
    event->last = moment{ stream->order, stream->order->issued(), stream->recording, stream,
                          stream->n_recorded };
    return say(stream->recording != nullptr ? cudaSuccess : lasting());
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    if (event == nullptr) return say(cudaErrorInvalidResourceHandle);
    const moment m = event->now();
    if (m.recording != nullptr) return say(cudaErrorStreamCaptureUnsupported);
    if (lasting() != cudaSuccess || m.order == nullptr) return say(lasting());
    return m.order->has_done(m.ticket) ? say(lasting()) : say(cudaErrorNotReady);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    if (event == nullptr) return say(cudaErrorInvalidResourceHandle);
    const moment m = event->now();
    if (m.recording != nullptr) return say(cudaErrorStreamCaptureUnsupported);
    if (m.order != nullptr) m.order->wait(m.ticket);
    return say(lasting());
}

/* --- graphs ----------------------------------------------------------------------------------*/

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode)
{
    if (stream == nullptr || stream->recording != nullptr)
        return say(cudaErrorStreamCaptureUnsupported);
    stream->recording = std::make_shared<capture>();
    stream->recording->origin = stream;
    stream->recording->streams.push_back(stream);
    stream->n_recorded = stream->n_joined = 0;
    captures_begun++;
    return say(lasting());
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *out)
{
    *out = nullptr;
    if (stream == nullptr || stream->recording == nullptr || stream->recording->origin != stream)
        return say(cudaErrorStreamCaptureUnmatched);
    const std::shared_ptr<capture> c = stream->recording;
    bool joined = true;
    for (cudaStream_t s : c->streams) {
        joined = joined && (s == stream || s->n_joined >= s->n_recorded);
        s->recording = nullptr;
    }
    c->origin = nullptr; /* over: its events are of no use any more */
    captures_begun--;
    if (c->broken) return say(cudaErrorStreamCaptureInvalidated);
    if (!joined) return say(cudaErrorStreamCaptureUnjoined);
    *out = new dti_sim_graph{ std::make_shared<std::vector<work>>(std::move(c->ops)), c->spins };
    return say(cudaSuccess);
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus *out)
{
    *out = cudaStreamCaptureStatusNone;
    if (stream != nullptr && stream->recording != nullptr)
        *out = stream->recording->broken ? cudaStreamCaptureStatusInvalidated
                                         : cudaStreamCaptureStatusActive;
    return cudaSuccess;
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode *mode)
{
    std::swap(*mode, capture_mode);
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long)
{
    *out = nullptr;
    if (graph == nullptr) return say(cudaErrorInvalidValue);
    *out = new dti_sim_graph{ graph->ops, graph->spins };
    return say(cudaSuccess);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream)
{
    if (graph == nullptr) return say(cudaErrorInvalidValue);
    const auto ops = graph->ops;
    return say(enqueue(
        stream,
        [ops] {
            for (const work &op : *ops)
                if (lasting() == cudaSuccess) op();
        },
        graph->spins));
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    delete graph;
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph)
{
    delete graph;
    return cudaSuccess;
}
