/* Conditional nodes of graphs: their records, and what is done with them where launches are
 * verified by hashes, and a graph is the list of its records. */
#include <inttypes.h>

#include "executor/verify.h"

/* ---- putting together ---- */

gpulua_status gpu_executor_control_prepare(struct wire_executor *executor,
                                           struct backend_error *error) {
    const struct backend_ops *ops = executor->ops;
    if (ops->graph_control == NULL) {
        return gpu_backend_fail(error, GPULUA_UNSUPPORTED, 0,
                                "this device has no conditional nodes");
    }
    return ops->graph_control_prepare != NULL ? ops->graph_control_prepare(executor->device, error)
                                              : GPULUA_OK;
}

static gpulua_status check(const struct wire_record *record, struct backend_error *error) {
    uint32_t kind = record->u.control.kind, elem_bytes = record->u.control.elem_bytes;
    uint32_t body_max = kind == WIRE_CONTROL_SWITCH ? WIRE_CONTROL_BODIES_MAX
                        : kind == WIRE_CONTROL_IF   ? 2
                                                    : 1;
    bool is_good = kind <= WIRE_CONTROL_SWITCH && record->u.control.body_count >= 1 &&
                   record->u.control.body_count <= body_max && elem_bytes >= 1 && elem_bytes <= 8 &&
                   (elem_bytes & (elem_bytes - 1)) == 0;
    return is_good ? GPULUA_OK
                   : gpu_backend_fail(error, GPULUA_INVALID_ARGUMENT, 0,
                                      "a conditional node of kind %" PRIu32 " with %" PRIu32
                                      " bodies and a value of %" PRIu32 " bytes",
                                      kind, record->u.control.body_count, elem_bytes);
}

gpulua_status gpu_executor_control_put(struct wire_executor *executor, struct executor_graph *row,
                                       const struct wire_record *record,
                                       struct backend_error *error) {
    if (record->opcode == WIRE_OP_BODY_END) {
        return row->depth > 0 ? executor->ops->graph_body_end(row->graph, error) : GPULUA_OK;
    }
    gpulua_status status = check(record, error);
    struct backend_control control = {.kind = (enum wire_control_kind)record->u.control.kind,
                                      .elem_bytes = record->u.control.elem_bytes,
                                      .body_count = record->u.control.body_count};
    if (status == GPULUA_OK) {
        status = gpu_executor_resolve(executor, record->u.control.address, control.elem_bytes,
                                      &control.address, error);
    }
    return status == GPULUA_OK ? executor->ops->graph_control(row->graph, &control, error) : status;
}

gpulua_status gpu_executor_control_follow(struct executor_graph *row,
                                          const struct wire_record *record,
                                          struct backend_error *error) {
    if (record->opcode == WIRE_OP_BODY_END) {
        if (row->depth == 0) {
            return gpu_backend_fail(error, GPULUA_INVALID_ARGUMENT, 0, "the end of no body");
        }
        row->bodies[row->depth].node_count = 0;
        row->depth -= row->bodies[row->depth].more-- == 0;
        return GPULUA_OK;
    }
    row->bodies[row->depth].node_count++;
    if (record->opcode != WIRE_OP_CONTROL) {
        return GPULUA_OK;
    }
    if (row->depth == WIRE_CONTROL_DEPTH_MAX) {
        return gpu_backend_fail(error, GPULUA_INVALID_ARGUMENT, 0,
                                "more than %u bodies within each other", WIRE_CONTROL_DEPTH_MAX);
    }
    gpulua_status status = check(record, error);
    row->depth++;
    row->bodies[row->depth].node_count = 0;
    row->bodies[row->depth].more = record->u.control.body_count - 1;
    return status;
}

/* ---- records one after another ---- */

struct run {
    struct wire_executor *executor;
    const struct executor_graph *row;
    const struct wire_record *launch;
    struct backend_stream *stream;
    bool prints;
};

/* Behind the end of the body that begins there. */
static uint32_t behind_body(const struct executor_graph *row, uint32_t at) {
    for (uint32_t ends = 1; ends > 0; at++) {
        const struct wire_record *record = row->records[at];
        ends += record->opcode == WIRE_OP_CONTROL ? record->u.control.body_count : 0;
        ends -= record->opcode == WIRE_OP_BODY_END;
    }
    return at;
}

uint32_t gpu_executor_records_find(const struct executor_graph *row, uint32_t node) {
    uint32_t at = 0;
    for (uint32_t i = 0; i < node; i++) {
        const struct wire_record *record = row->records[at++];
        uint32_t bodies = record->opcode == WIRE_OP_CONTROL ? record->u.control.body_count : 0;
        for (uint32_t k = 0; k < bodies; k++) {
            at = behind_body(row, at);
        }
    }
    return at;
}

static gpulua_status choose(const struct run *run, const struct wire_record *record,
                            uint32_t *number, struct backend_error *error) {
    const struct backend_launch on = {.stream = run->stream, .seq = run->launch->seq};
    uint32_t elem_bytes = record->u.control.elem_bytes;
    unsigned char value[8] = {0};
    uint64_t address = 0;
    gpulua_status status =
        gpu_executor_resolve(run->executor, record->u.control.address, elem_bytes, &address, error);
    if (status == GPULUA_OK) {
        status = gpu_verify_read(run->executor, &on, value, address, elem_bytes, error);
    }
    *number = gpu_wire_control_choose(record->u.control.kind, record->u.control.body_count, value,
                                      elem_bytes);
    return status;
}

/* A kernel has failed and the executor has been told: the rest of the launch is left out. */
static bool has_failed(const struct run *run) {
    return gpu_executor_failed_find(run->executor, run->launch->stream, run->launch->seq) != 0;
}

static gpulua_status run_body(struct run *run, uint32_t at, struct backend_error *error);

static gpulua_status run_control(struct run *run, uint32_t at, struct backend_error *error) {
    const struct wire_record *record = run->row->records[at];
    bool is_loop = record->u.control.kind == WIRE_CONTROL_WHILE;
    gpulua_status status;
    uint32_t number;
    while ((status = choose(run, record, &number, error)) == GPULUA_OK &&
           number < record->u.control.body_count && !has_failed(run)) {
        uint32_t first = at + 1;
        for (uint32_t i = 0; i < number; i++) {
            first = behind_body(run->row, first);
        }
        status = run_body(run, first, error);
        if (status != GPULUA_OK || !is_loop) {
            break;
        }
    }
    return status;
}

/* Up to its end; a graph's is the end of the list. */
static gpulua_status run_body(struct run *run, uint32_t at, struct backend_error *error) {
    gpulua_status status = GPULUA_OK;
    while (status == GPULUA_OK && at < run->row->node_count && !has_failed(run)) {
        struct wire_record *record = run->row->records[at];
        if (record->opcode == WIRE_OP_BODY_END) {
            break;
        }
        if (record->opcode == WIRE_OP_CONTROL) {
            status = run_control(run, at++, error);
            for (uint32_t i = 0; i < record->u.control.body_count; i++) {
                at = behind_body(run->row, at);
            }
            continue;
        }
        bool prints = false;
        record->stream = run->launch->stream;
        record->seq = run->launch->seq;
        status = gpu_executor_do(run->executor, record, run->stream, &prints, error);
        run->prints |= prints;
        at++;
    }
    return status;
}

gpulua_status gpu_executor_records_run(struct wire_executor *executor,
                                       const struct executor_graph *row,
                                       const struct wire_record *launch,
                                       struct backend_stream *stream, bool *prints,
                                       struct backend_error *error) {
    struct run run = {.executor = executor, .row = row, .launch = launch, .stream = stream};
    gpulua_status status = run_body(&run, 0, error);
    *prints |= run.prints;
    return status;
}
