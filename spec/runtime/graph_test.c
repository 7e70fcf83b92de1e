/* The edges of graphs, against a model that looks at every pair of nodes; and captures that have
 * ended. */
#include <stdlib.h>
#include <string.h>

#include "backend/tap.h"
#include "runtime/graph/state.h"

static struct tap tap;

enum { NODES = 120, USES = 3, BLOCKS = 4, BYTES = 64, SEEDS = 300 };

static uint64_t state;
static uint32_t below(uint32_t limit) {
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return (uint32_t)((state * UINT64_C(0x2545F4914F6CDD1D)) >> 40) % limit;
}

static bool conflicts(const struct gpu_use *a, const struct gpu_use *b) {
    return a->block == b->block && a->byte_begin < b->byte_end && b->byte_begin < a->byte_end &&
           ((a->access | b->access) & GPU_WRITE);
}

/* before[i][k]: node k goes before node i, by way of other edges than the direct one, or of any. */
static bool before[NODES][NODES], direct[NODES][NODES], is_edge[NODES][NODES];

static void read_edges(const struct graph_body *body) {
    memset(is_edge, 0, sizeof is_edge);
    memset(before, 0, sizeof before);
    for (uint32_t i = 0; i < body->node_count; i++) {
        for (uint32_t e = 0; e < body->nodes[i].edge_count; e++) {
            uint32_t from = body->edges[body->nodes[i].edge_first + e].from;
            is_edge[i][from] = true;
        }
        for (uint32_t k = 0; k < i; k++) {
            for (uint32_t m = k; m < i && !before[i][k]; m++) {
                before[i][k] = is_edge[i][m] && (m == k || before[m][k]);
            }
        }
    }
}

static bool is_implied(uint32_t i, uint32_t k) {
    for (uint32_t m = k + 1; m < i; m++) {
        if (is_edge[i][m] && before[m][k]) {
            return true;
        }
    }
    return false;
}

static void check_program(struct gpu_block **blocks, uint32_t seed, uint32_t *unordered,
                          uint32_t *needless, uint32_t *implied) {
    struct graph_body body = {0};
    struct gpu_use uses[NODES][USES];
    uint32_t use_counts[NODES];
    struct wire_record record = {.length_bytes = sizeof record, .opcode = WIRE_OP_MARK};
    struct gpu_site site = {0};
    state = seed * UINT64_C(0x9E3779B97F4A7C15) | 1;
    memset(direct, 0, sizeof direct);
    for (uint32_t i = 0; i < NODES; i++) {
        use_counts[i] = 1 + below(USES);
        for (uint32_t u = 0; u < use_counts[i]; u++) {
            uint32_t begin = below(BYTES - 1), length = 1 + below(seed % 3 == 0 ? BYTES : 8);
            uint32_t end = begin + length < BYTES ? begin + length : BYTES;
            uint8_t access = (uint8_t)(1 + below(3));
            uses[i][u] = (struct gpu_use){
                .block = blocks[below(BLOCKS)], .byte_begin = begin, .byte_end = end};
            uses[i][u].access = access;
        }
        for (uint32_t k = 0; k < i; k++) {
            for (uint32_t u = 0; u < use_counts[i] * use_counts[k]; u++) {
                direct[i][k] |= conflicts(&uses[i][u / use_counts[k]], &uses[k][u % use_counts[k]]);
            }
        }
        if (!gpu_graph_add(&body, &record, 0, "node", &site, uses[i], use_counts[i])) {
            abort();
        }
    }
    read_edges(&body);
    for (uint32_t i = 0; i < NODES; i++) {
        for (uint32_t k = 0; k < i; k++) {
            *unordered += direct[i][k] && !before[i][k];
            *needless += is_edge[i][k] && !direct[i][k];
            *implied += is_edge[i][k] && is_implied(i, k);
        }
    }
    gpu_graph_body_finish(&body);
}

static void check_edges(struct gpu_device *device) {
    struct gpu_block *blocks[BLOCKS];
    struct gpu_block_info info = {.byte_count = BYTES, .label = "block"};
    struct gpu_error error;
    for (uint32_t i = 0; i < BLOCKS; i++) {
        if (gpu_block_create(device, &info, &blocks[i], &error)) {
            tap_check(&tap, false, "a block");
            return;
        }
    }
    uint32_t unordered = 0, needless = 0, implied = 0;
    for (uint32_t seed = 1; seed <= SEEDS; seed++) {
        check_program(blocks, seed, &unordered, &needless, &implied);
    }
    tap_check(&tap, unordered == 0, "nodes that conflict are ordered");
    tap_check(&tap, needless == 0, "an edge is a conflict");
    tap_check(&tap, implied == 0, "no edge follows from others");
    for (uint32_t i = 0; i < BLOCKS; i++) {
        gpu_block_release(blocks[i]);
    }
}

/* What a launch of all uses as one operation: read from outside, or only after the graph itself has
 * written it. */
static void check_uses(struct gpu_device *device) {
    struct gpu_block_info info = {.byte_count = BYTES, .label = "block"};
    struct gpu_block *block;
    struct gpu_error error;
    struct graph_body body = {0};
    struct wire_record record = {.length_bytes = sizeof record, .opcode = WIRE_OP_MARK};
    struct gpu_site site = {0};
    if (gpu_block_create(device, &info, &block, &error)) {
        tap_check(&tap, false, "a block");
        return;
    }
    const struct gpu_use program[] = {{block, 0, 32, GPU_WRITE},
                                      {block, 8, 16, GPU_READ},
                                      {block, 32, 64, GPU_READ},
                                      {block, 32, 64, GPU_WRITE},
                                      {block, 0, 32, GPU_READ_WRITE}};
    for (size_t i = 0; i < sizeof program / sizeof *program; i++) {
        tap_check(&tap, gpu_graph_add(&body, &record, 0, "node", &site, &program[i], 1), "a node");
    }
    const struct graph_track *track = &body.tracks[0];
    tap_check(&tap, body.track_count == 1 && track->use_count == 2, "two ranges of one block");
    tap_check(&tap, track->uses[0].access == GPU_WRITE, "what the graph writes first is an output");
    tap_check(&tap, track->uses[1].access == GPU_READ_WRITE, "what it reads first is an input");
    gpu_graph_body_finish(&body);
    gpu_block_release(block);
}

static void check_ended(struct gpu_device *device) {
    struct gpu_stream *stream;
    struct gpu_error error = {0};
    struct gpu_capture *capture = NULL;
    struct gpu_graph *graph = NULL;
    struct gpu_block_info info = {.byte_count = BYTES, .label = "block"};
    struct gpu_block *block = NULL;
    const uint8_t zero = 0;
    tap_check(&tap,
              !gpu_device_task_stream(device, 0, &stream, &error) &&
                  !gpu_block_create(device, &info, &block, &error),
              "a stream and a block");
    struct gpu_submit submit = {.stream = stream, .label = "step"};
    struct gpu_ref ref = {block, 0, BYTES, GPU_TYPE_U8};
    tap_check(&tap, !gpu_capture_create(&submit, NULL, &capture, &error), "a capture");
    struct gpu_submit inside = {.stream = stream, .capture = capture};
    tap_check(&tap, !gpu_work_fill(&inside, &ref, &zero, NULL, &error), "a node");
    tap_check(&tap, gpu_capture_count(capture) == 1 && gpu_capture_is_active(capture), "is there");
    gpu_capture_cancel(capture);
    gpu_capture_cancel(capture);
    tap_check(&tap, gpu_work_fill(&inside, &ref, &zero, NULL, &error) == GPULUA_CAPTURE_INVALIDATED,
              "work submitted into a capture that has ended is refused");
    tap_check(&tap, strstr(error.message, "fill") != NULL, "by name");
    tap_check(&tap,
              gpu_capture_finish(capture, &graph, &error) == GPULUA_CAPTURE_INVALIDATED && !graph,
              "it does not become a graph");
    gpu_capture_release(capture);
    struct gpu_op *op = NULL;
    tap_check(&tap, !gpu_work_fill(&submit, &ref, &zero, &op, &error), "the stream goes on");
    tap_check(&tap, !gpu_op_wait(op, INT64_C(10000000000), &error) && !gpu_op_status(op), "ends");
    gpu_op_release(op);
    gpu_block_release(block);
}

int main(void) {
    struct gpu_device_info info = {.name = "cpu", .isolation = GPULUA_ISOLATE_NONE};
    struct gpu_device *device = NULL;
    struct gpu_error error = {0};
    if (gpu_device_open(&info, &device, &error)) {
        tap_check(&tap, false, "the CPU device opens");
        return tap_finish(&tap);
    }
    check_edges(device);
    check_uses(device);
    check_ended(device);
    gpu_device_close(device, 1000);
    gpu_device_release(device);
    return tap_finish(&tap);
}
