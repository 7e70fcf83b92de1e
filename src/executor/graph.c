/* Graphs: their nodes come as records of work, and are put on the backend's recording stream as
 * work is put on any other. What goes wrong on the way is said once, by the answer to GRAPH_END.
 *
 * Where launches are verified by hashes each of them has to run alone: a graph is then the list of
 * its records, which are run in the order of their numbers. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "executor/executor.h"

static struct executor_graph *row_of(struct wire_executor *executor, uint32_t number) {
    struct executor_graph *row = gpu_executor_row(&executor->graphs, number);
    return row != NULL && row->is_there ? row : NULL;
}

/* Only the first failure counts: the rest follow from it. */
static void note_failure(struct executor_graph *row, struct backend_error *error) {
    if (row->failure.status == GPULUA_OK) {
        row->failure = *error;
        row->failure.log = NULL;
    }
    free(error->log);
    error->log = NULL;
}

/* ---- putting together ---- */

void gpu_executor_graph_begin(struct wire_executor *executor, const struct wire_record *record) {
    if (executor->device == NULL) {
        return;
    }
    gpu_executor_graph_destroy(executor, record->object);
    struct executor_graph *row =
        gpu_executor_row_make(&executor->graphs, record->object, EXECUTOR_OBJECTS_MAX);
    if (row == NULL) {
        return; /* its end finds no row, and says so */
    }
    *row = (struct executor_graph){.is_there = true};
    struct backend_error error;
    gpu_backend_error_init(&error);
    gpulua_status status = GPULUA_OK;
    if (executor->verify != NULL) {
        row->records = calloc(record->u.graph.node_count + 1u, sizeof *row->records);
        row->record_capacity = record->u.graph.node_count;
        if (row->records == NULL) {
            status = gpu_backend_fail(&error, GPULUA_OUT_OF_MEMORY, 0, "no host memory");
        }
    } else if (executor->ops->graph_begin == NULL) {
        status = gpu_backend_fail(&error, GPULUA_UNSUPPORTED, 0, "this device has no graphs");
    } else {
        status = executor->ops->graph_begin(executor->device, &row->graph, &row->stream, &error);
    }
    if (status != GPULUA_OK) {
        row->graph = NULL;
        note_failure(row, &error);
    }
}

static gpulua_status keep_record(struct executor_graph *row, const struct wire_record *record,
                                 struct backend_error *error) {
    struct wire_record *copy =
        row->node_count < row->record_capacity ? malloc(record->length_bytes) : NULL;
    if (copy == NULL) {
        return gpu_backend_fail(error, GPULUA_OUT_OF_MEMORY, 0, "no host memory for a node");
    }
    memcpy(copy, record, record->length_bytes);
    row->records[row->node_count] = copy;
    return GPULUA_OK;
}

static gpulua_status begin_node(struct wire_executor *executor, struct executor_graph *row,
                                const struct wire_record *record, struct backend_error *error) {
    const struct wire_wait *waits = gpu_wire_record_waits(record);
    uint32_t deps[WIRE_WAITS_MAX];
    for (uint32_t i = 0; i < record->wait_count; i++) {
        if (waits[i].seq >= row->node_count) {
            return gpu_backend_fail(error, GPULUA_INVALID_ARGUMENT, 0,
                                    "node %" PRIu32 " of a graph waits for node %" PRIu64,
                                    row->node_count, waits[i].seq);
        }
        deps[i] = (uint32_t)waits[i].seq;
    }
    return executor->ops->graph_node(row->graph, deps, record->wait_count, error);
}

void gpu_executor_graph_node(struct wire_executor *executor, const struct wire_record *record) {
    struct executor_graph *row = row_of(executor, (uint32_t)(record->seq >> 32));
    if (row == NULL || row->failure.status != GPULUA_OK) {
        return;
    }
    struct backend_error error;
    gpu_backend_error_init(&error);
    gpulua_status status;
    if (row->is_ready || (uint32_t)record->seq != row->node_count) {
        status = gpu_backend_fail(&error, GPULUA_INVALID_ARGUMENT, 0,
                                  "node %" PRIu32 " of a graph that has %" PRIu32,
                                  (uint32_t)record->seq, row->node_count);
    } else if (executor->verify != NULL) {
        status = keep_record(row, record, &error);
    } else {
        bool prints = false;
        status = begin_node(executor, row, record, &error);
        if (status == GPULUA_OK) {
            status = gpu_executor_do(executor, record, row->stream, &prints, &error);
        }
        row->prints |= prints;
    }
    if (status != GPULUA_OK) {
        note_failure(row, &error);
    }
    row->node_count++;
}

gpulua_status gpu_executor_graph_end(struct wire_executor *executor,
                                     const struct wire_record *record,
                                     struct wire_graph_facts *facts, struct backend_error *error) {
    struct executor_graph *row = row_of(executor, record->object);
    if (row == NULL) {
        return gpu_backend_fail(error, GPULUA_OUT_OF_MEMORY, 0, "graph %" PRIu32 " is not there",
                                record->object);
    }
    gpulua_status status = row->failure.status;
    if (status != GPULUA_OK) {
        *error = row->failure;
    } else if (executor->verify == NULL) {
        status = executor->ops->graph_end(row->graph, &facts->device_bytes, error);
    }
    row->is_ready = status == GPULUA_OK;
    if (status != GPULUA_OK) {
        gpu_executor_graph_destroy(executor, record->object);
    }
    return status;
}

/* ---- launching ---- */

static gpulua_status run_records(struct wire_executor *executor, const struct executor_graph *row,
                                 const struct wire_record *launch, struct backend_stream *stream,
                                 bool *prints, struct backend_error *error) {
    gpulua_status status = GPULUA_OK;
    for (uint32_t i = 0; i < row->node_count && status == GPULUA_OK; i++) {
        bool node_prints = false;
        row->records[i]->stream = launch->stream;
        row->records[i]->seq = launch->seq;
        status = gpu_executor_do(executor, row->records[i], stream, &node_prints, error);
        *prints |= node_prints;
    }
    return status;
}

gpulua_status gpu_executor_graph_launch(struct wire_executor *executor,
                                        const struct wire_record *record,
                                        struct backend_stream *stream, bool *prints,
                                        struct backend_error *error) {
    const struct executor_graph *row = row_of(executor, record->object);
    if (row == NULL || !row->is_ready) {
        return gpu_backend_fail(error, GPULUA_INVALID_ARGUMENT, 0, "graph %" PRIu32 " is not there",
                                record->object);
    }
    if (executor->verify != NULL) {
        return record->opcode == WIRE_OP_GRAPH_UPLOAD
                   ? GPULUA_OK
                   : run_records(executor, row, record, stream, prints, error);
    }
    if (record->opcode == WIRE_OP_GRAPH_UPLOAD) {
        return executor->ops->graph_upload(stream, row->graph, error);
    }
    *prints = row->prints;
    return executor->ops->graph_launch(stream, record->seq, row->graph, error);
}

/* ---- the end ---- */

void gpu_executor_graph_destroy(struct wire_executor *executor, uint32_t number) {
    struct executor_graph *row = row_of(executor, number);
    if (row == NULL) {
        return;
    }
    for (uint32_t i = 0; row->records != NULL && i < row->node_count; i++) {
        free(row->records[i]);
    }
    free(row->records);
    struct backend_graph *graph = row->graph;
    *row = (struct executor_graph){0};
    if (graph != NULL) {
        gpu_executor_bury(executor, NULL, graph);
    }
}
