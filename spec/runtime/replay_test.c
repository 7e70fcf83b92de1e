/* What launches of graphs tell the device about themselves: whether somebody has a handle on them,
 * and whether they will do for the launch before. */
#include <stdlib.h>

#include "backend/tap.h"
#include "runtime/flight.h"
#include "runtime/graph/state.h"
#include "runtime/watchdog.h"
#include "runtime/work.h"

static struct tap tap;
static struct gpu_device *device;
static struct gpu_error error;

static void need(gpulua_status status, const char *what) {
    if (status) {
        printf("# %s: %s\n", what, error.message);
        tap_check(&tap, false, what);
        exit(tap_finish(&tap));
    }
}

static struct gpu_stream *new_stream(void) {
    struct gpu_stream *stream = NULL;
    need(gpu_stream_create(device, &(struct gpu_stream_info){0}, &stream, &error), "a stream");
    return stream;
}

static void fill(struct gpu_stream *stream, struct gpu_capture *capture, struct gpu_block *block) {
    const struct gpu_submit submit = {.stream = stream, .capture = capture};
    const struct gpu_ref ref = {block, 0, 64, GPU_TYPE_I32};
    const int32_t value = 3;
    need(gpu_work_fill(&submit, &ref, &value, NULL, &error), "a fill");
}

static struct gpu_graph *capture_fill(struct gpu_stream *stream, struct gpu_block *block) {
    const struct gpu_submit submit = {.stream = stream};
    struct gpu_capture *capture = NULL;
    struct gpu_graph *graph = NULL;
    need(gpu_capture_create(&submit, NULL, &capture, &error), "a capture");
    fill(stream, capture, block);
    need(gpu_capture_finish(capture, &graph, &error), "a graph");
    gpu_capture_release(capture);
    return graph;
}

static unsigned launch(struct gpu_graph *graph, struct gpu_stream *stream, struct gpu_op **op) {
    const struct gpu_submit submit = {.stream = stream};
    need(gpu_graph_launch(graph, &submit, op, &error), "a launch");
    const struct gpu_flight *flight = &device->flight;
    return flight->ops[(flight->op_count - 1) % GPU_FLIGHT_OPS_MAX].flags;
}

enum { UNHELD = WIRE_FLAG_UNHELD, COVERS = WIRE_FLAG_COVERS };

static void check_flags(struct gpu_block *block, struct gpu_block *other_block) {
    struct gpu_stream *stream = new_stream(), *other = new_stream();
    struct gpu_graph *graph = capture_fill(stream, block);
    struct gpu_graph *another = capture_fill(stream, other_block);
    struct gpu_op *op = NULL;
    tap_check(&tap, launch(graph, stream, NULL) == UNHELD,
              "a launch says that nobody has a handle on it");
    tap_check(&tap, launch(graph, stream, NULL) == (UNHELD | COVERS),
              "the next one of its graph and stream will do for it");
    tap_check(&tap, launch(graph, other, NULL) == UNHELD, "one of another stream will not");
    tap_check(&tap, launch(another, stream, NULL) == UNHELD, "nor one of another graph");
    (void)launch(graph, stream, NULL);
    fill(stream, NULL, block);
    tap_check(&tap, launch(graph, stream, NULL) == UNHELD, "nor one behind something else");
    graph->version++;
    tap_check(&tap, launch(graph, stream, NULL) == UNHELD, "nor one of the graph once changed");
    tap_check(&tap, launch(graph, stream, &op) == COVERS, "one with a handle says that it has one");
    tap_check(&tap, launch(graph, stream, NULL) == UNHELD,
              "the next one will not do for it as long as it has");
    gpu_op_release(op);
    gpu_op_retain(op = stream->tail);
    tap_check(&tap, launch(graph, stream, NULL) == UNHELD,
              "nor for one that somebody has a handle on since");
    gpu_op_release(op);
    device->watchdog.term_ns = 1000000000;
    tap_check(&tap, launch(graph, stream, NULL) == COVERS,
              "with a watchdog, which looks at each, none says that nobody does");
    device->watchdog.term_ns = 0;
    device->stats.limit_ops_in_flight = 100;
    tap_check(&tap, launch(graph, stream, NULL) == COVERS,
              "nor where so few may be in flight that one more waits for the oldest");
    device->stats.limit_ops_in_flight = GPU_OPS_IN_FLIGHT_MAX;
    gpu_graph_release(graph);
    gpu_graph_release(another);
    gpu_stream_release(stream);
    gpu_stream_release(other);
}

/* While code is loaded only words tell what is over, and one may be of so many. */
static void check_patience(struct gpu_block *block) {
    struct gpu_stream *stream = new_stream();
    struct gpu_graph *graph = capture_fill(stream, block);
    struct gpu_op *op = NULL;
    const struct gpu_watchdog *watchdog = &device->watchdog;
    need(gpu_device_wait_idle(device, -1, &error), "all is over");
    (void)launch(graph, stream, &op);
    need(gpu_op_set_deadline(op, 10, &error), "a deadline");
    int64_t more_ns = watchdog->deadlines[0].over_ns - watchdog->deadlines[0].at_ns;
    tap_check(&tap, more_ns == (GPU_REPLAYS_SUSPECTED_MAX - 1) * INT64_C(10000000000),
              "a deadline waits for as many launches as one word may be of");
    device->watchdog.term_ns = 1000000000;
    need(gpu_op_set_deadline(op, 10, &error), "another one");
    more_ns = watchdog->deadlines[0].over_ns - watchdog->deadlines[0].at_ns;
    tap_check(&tap, more_ns == (GPU_SUSPECTS_PER_STREAM_MAX - 1) * INT64_C(10000000000),
              "which are fewer with a watchdog");
    device->watchdog.term_ns = 0;
    gpu_op_release(op);
    gpu_graph_release(graph);
    gpu_stream_release(stream);
}

int main(void) {
    struct gpu_device_info info = {.name = "cpu", .isolation = GPULUA_ISOLATE_NONE};
    struct gpu_block_info block_info = {.byte_count = 256, .label = "block"};
    struct gpu_block *block = NULL, *other = NULL;
    need(gpu_device_open(&info, &device, &error), "the CPU device opens");
    need(gpu_block_create(device, &block_info, &block, &error), "a block");
    need(gpu_block_create(device, &block_info, &other, &error), "another");
    check_flags(block, other);
    check_patience(block);
    gpu_block_release(block);
    gpu_block_release(other);
    gpu_device_close(device, 1000);
    gpu_device_release(device);
    return tap_finish(&tap);
}
