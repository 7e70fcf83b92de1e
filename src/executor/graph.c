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
    } else if (record->u.graph.control_count == 0 ||
               (status = gpu_executor_control_prepare(executor, &error)) == GPULUA_OK) {
        status = executor->ops->graph_begin(executor->device, &row->graph, &row->stream, &error);
    }
    if (status != GPULUA_OK) {
        row->graph = NULL;
        note_failure(row, &error);
    }
}

static struct wire_record *copy_record(const struct wire_record *record) {
    struct wire_record *copy = malloc(record->length_bytes);
    if (copy != NULL) {
        memcpy(copy, record, record->length_bytes);
    }
    return copy;
}

static gpulua_status keep_record(struct executor_graph *row, const struct wire_record *record,
                                 struct backend_error *error) {
    struct wire_record *copy = row->node_count < row->record_capacity ? copy_record(record) : NULL;
    if (copy == NULL) {
        return gpu_backend_fail(error, GPULUA_OUT_OF_MEMORY, 0, "no host memory for a node");
    }
    row->records[row->node_count] = copy;
    return GPULUA_OK;
}

static gpulua_status begin_node(struct wire_executor *executor, struct executor_graph *row,
                                const struct wire_record *record, struct backend_error *error) {
    const struct wire_wait *waits = gpu_wire_record_waits(record);
    uint32_t deps[WIRE_WAITS_MAX], number = row->bodies[row->depth].node_count;
    for (uint32_t i = 0; i < record->wait_count; i++) {
        if (waits[i].seq >= number) {
            return gpu_backend_fail(error, GPULUA_INVALID_ARGUMENT, 0,
                                    "node %" PRIu32 " of a graph waits for node %" PRIu64, number,
                                    waits[i].seq);
        }
        deps[i] = (uint32_t)waits[i].seq;
    }
    return executor->ops->graph_node(row->graph, deps, record->wait_count, error);
}

static void forget_bad(struct executor_bad_node **link) {
    struct executor_bad_node *bad = *link;
    *link = bad->next;
    free(bad->record);
    free(bad);
}

/* Launches fail as long as there are nodes that could not be changed: until each of them is. */
static void note_patch(struct executor_graph *row, const struct wire_record *record,
                       gpulua_status status, struct backend_error *error) {
    struct executor_bad_node **link = &row->bad;
    while (*link != NULL && (*link)->node != (uint32_t)record->seq) {
        link = &(*link)->next;
    }
    if (*link != NULL) {
        forget_bad(link);
    }
    if (status != GPULUA_OK) {
        note_failure(row, error);
        struct wire_record *copy = copy_record(record);
        struct executor_bad_node *bad = copy != NULL ? malloc(sizeof *bad) : NULL;
        if (bad == NULL) {
            row->fails_for_good = true;
            free(copy);
            return;
        }
        while (*link != NULL) {
            link = &(*link)->next;
        }
        *bad = (struct executor_bad_node){.node = (uint32_t)record->seq, .record = copy};
        *link = bad;
    } else if (row->bad == NULL && !row->fails_for_good) {
        gpu_backend_error_init(&row->failure);
    }
}

/* What a node of a graph that is there does from the next launch on. */
static gpulua_status patch(struct wire_executor *executor, struct executor_graph *row,
                           const struct wire_record *record, struct backend_error *error) {
    uint32_t node = (uint32_t)record->seq;
    gpulua_status status;
    if (node >= row->bodies[0].node_count) {
        status = gpu_backend_fail(error, GPULUA_INVALID_ARGUMENT, 0,
                                  "node %" PRIu32 " of a graph that has %" PRIu32, node,
                                  row->bodies[0].node_count);
    } else if (executor->verify != NULL) {
        struct wire_record *copy = copy_record(record);
        status = copy != NULL ? GPULUA_OK
                              : gpu_backend_fail(error, GPULUA_OUT_OF_MEMORY, 0,
                                                 "no host memory for a node");
        if (copy != NULL) {
            uint32_t at = gpu_executor_records_find(row, node);
            free(row->records[at]);
            row->records[at] = copy;
        }
    } else {
        bool prints = false, is_launch = record->opcode == WIRE_OP_LAUNCH;
        status = executor->ops->graph_patch(row->graph, node, is_launch, error);
        if (status == GPULUA_OK) {
            status = gpu_executor_do(executor, record, row->stream, &prints, error);
            status = executor->ops->graph_patched(row->graph, status, error);
        }
    }
    return status;
}

/* What they failed with may have passed, as when there was no memory. */
static void patch_again(struct wire_executor *executor, struct executor_graph *row) {
    struct backend_error error;
    if (!row->fails_for_good) {
        gpu_backend_error_init(&row->failure);
    }
    for (struct executor_bad_node **link = &row->bad; *link != NULL;) {
        gpu_backend_error_init(&error);
        if (patch(executor, row, (*link)->record, &error) == GPULUA_OK) {
            forget_bad(link);
        } else {
            note_failure(row, &error);
            link = &(*link)->next;
        }
    }
}

static gpulua_status put_node(struct wire_executor *executor, struct executor_graph *row,
                              const struct wire_record *record, struct backend_error *error) {
    if (record->opcode == WIRE_OP_BODY_END) {
        return gpu_executor_control_put(executor, row, record, error);
    }
    gpulua_status status = begin_node(executor, row, record, error);
    if (status == GPULUA_OK && record->opcode == WIRE_OP_CONTROL) {
        return gpu_executor_control_put(executor, row, record, error);
    }
    bool prints = false;
    if (status == GPULUA_OK) {
        status = gpu_executor_do(executor, record, row->stream, &prints, error);
    }
    row->prints |= prints;
    return status;
}

void gpu_executor_graph_node(struct wire_executor *executor, const struct wire_record *record) {
    struct executor_graph *row = row_of(executor, (uint32_t)(record->seq >> 32));
    if (record->opcode == WIRE_OP_GRAPH_LAUNCH || record->opcode == WIRE_OP_GRAPH_UPLOAD ||
        record->opcode == WIRE_OP_STREAM_TAKE) {
        gpu_executor_lose(executor, 0, "a command record makes no sense");
        return;
    }
    struct backend_error error;
    gpu_backend_error_init(&error);
    gpulua_status status;
    if (row != NULL && row->is_ready) {
        status = patch(executor, row, record, &error);
        note_patch(row, record, status, &error);
        return;
    }
    if (row == NULL || row->failure.status != GPULUA_OK) {
        return;
    }
    if ((uint32_t)record->seq != row->node_count) {
        status = gpu_backend_fail(&error, GPULUA_INVALID_ARGUMENT, 0,
                                  "node %" PRIu32 " of a graph that has %" PRIu32,
                                  (uint32_t)record->seq, row->node_count);
    } else if (executor->verify != NULL) {
        status = keep_record(row, record, &error);
    } else {
        status = put_node(executor, row, record, &error);
    }
    if (status == GPULUA_OK) {
        status = gpu_executor_control_follow(row, record, &error);
    }
    if (status != GPULUA_OK) {
        note_failure(row, &error);
    }
    row->node_count++;
}

gpulua_status gpu_executor_graph_end(struct wire_executor *executor,
                                     const struct wire_record *record,
                                     struct backend_error *error) {
    struct executor_graph *row = row_of(executor, record->object);
    if (row == NULL) {
        return gpu_backend_fail(error, GPULUA_OUT_OF_MEMORY, 0, "graph %" PRIu32 " is not there",
                                record->object);
    }
    if (row->is_ready) {
        return gpu_backend_fail(error, GPULUA_INVALID_ARGUMENT, 0, "graph %" PRIu32 " has ended",
                                record->object);
    }
    gpulua_status status = row->failure.status;
    if (status != GPULUA_OK) {
        *error = row->failure;
    } else if (row->depth > 0) {
        status = gpu_backend_fail(error, GPULUA_INVALID_ARGUMENT, 0, "a body has no end");
    } else if (executor->verify == NULL) {
        status = executor->ops->graph_end(row->graph, error);
    }
    row->is_ready = status == GPULUA_OK;
    if (status != GPULUA_OK) {
        gpu_executor_graph_destroy(executor, record->object);
    }
    return status;
}

/* ---- launching ---- */

gpulua_status gpu_executor_graph_launch(struct wire_executor *executor,
                                        const struct wire_record *record,
                                        struct backend_stream *stream, bool *prints,
                                        struct backend_error *error) {
    struct executor_graph *row = row_of(executor, record->object);
    if (row == NULL || !row->is_ready) {
        return gpu_backend_fail(error, GPULUA_INVALID_ARGUMENT, 0, "graph %" PRIu32 " is not there",
                                record->object);
    }
    if (__builtin_expect(row->failure.status != GPULUA_OK, 0)) {
        patch_again(executor, row);
    }
    if (row->failure.status != GPULUA_OK) {
        *error = row->failure;
        return row->failure.status;
    }
    if (executor->verify != NULL) {
        return record->opcode == WIRE_OP_GRAPH_UPLOAD
                   ? GPULUA_OK
                   : gpu_executor_records_run(executor, row, record, stream, prints, error);
    }
    row->last = (struct executor_use){record->stream, record->seq};
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
    while (row->bad != NULL) {
        forget_bad(&row->bad);
    }
    struct backend_graph *graph = row->graph;
    struct executor_use last = row->last;
    *row = (struct executor_graph){0};
    if (graph != NULL) {
        gpu_executor_bury_graph(executor, graph, last);
    }
}
