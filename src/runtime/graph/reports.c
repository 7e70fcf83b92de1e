/* Kernels that report (report.c) as nodes: each launch of the graph has a report of its own for
 * each of them, and the device's nodes get it as another argument before the launch. */
#include <string.h>

#include "runtime/graph/state.h"
#include "runtime/report.h"

/* ---- who depends on whom ---- */

static void need(struct graph_needs *needs, uint32_t reporter) {
    for (uint32_t i = 0; i < needs->count; i++) {
        if (needs->reporters[i] == reporter) {
            return;
        }
    }
    if (needs->count < GPU_REPORT_NEEDS_MAX) {
        needs->reporters[needs->count++] = reporter;
    }
}

/* As gpu_report_needs has it for operations: first what reports itself, then what is in front of
 * nodes that do not, then what is in front of those that do. */
static void collect_needs(const struct graph_body *body, struct graph_needs *needs) {
    for (uint32_t i = 0; i < body->found_count; i++) {
        uint32_t reporter = body->nodes[body->found[i].from].reporter;
        if (body->found[i].reads && reporter != GPU_NODE_NONE) {
            need(needs, reporter);
        }
    }
    for (int reports = 0; reports <= 1; reports++) {
        for (uint32_t i = 0; i < body->found_count; i++) {
            const struct graph_node *from = &body->nodes[body->found[i].from];
            if (!body->found[i].reads || from->needs == GPU_NODE_NONE ||
                (from->reporter != GPU_NODE_NONE) != (reports == 1)) {
                continue;
            }
            const struct graph_needs *behind = &body->needs[from->needs];
            for (uint32_t k = 0; k < behind->count; k++) {
                need(needs, behind->reporters[k]);
            }
        }
    }
}

bool gpu_graph_note_reports(struct graph_body *body, uint32_t number) {
    struct graph_node *node = &body->nodes[number];
    node->reporter = node->needs = GPU_NODE_NONE;
    bool reports = node->kernel && gpu_kernel_signature(node->kernel)->has_context;
    struct graph_needs needs = {.count = 0};
    if (body->reporter_count > 0) {
        collect_needs(body, &needs);
    }
    if (needs.count > 0) {
        if (!gpu_graph_grow((void **)&body->needs, &body->needs_capacity, body->needs_count,
                            sizeof *body->needs)) {
            return false;
        }
        node->needs = body->needs_count;
        body->needs[body->needs_count++] = needs;
    }
    if (reports) {
        if (!gpu_graph_grow((void **)&body->reporters, &body->reporter_capacity,
                            body->reporter_count, sizeof *body->reporters)) {
            return false;
        }
        node->reporter = body->reporter_count;
        body->reporters[body->reporter_count++] = (struct graph_reporter){.node = number};
    }
    return true;
}

/* ---- launching ---- */

gpulua_status gpu_graph_take_reports(struct gpu_graph *graph, struct gpu_report **first,
                                     struct gpu_error *error) {
    struct graph_body *body = &graph->body;
    gpulua_status status = GPULUA_OK;
    *first = NULL;
    for (uint32_t i = 0; i < body->reporter_count && status == GPULUA_OK; i++) {
        struct graph_reporter *reporter = &body->reporters[i];
        const struct graph_node *node = &body->nodes[reporter->node];
        const struct gpu_report_of of = {
            .source = node->kernel->source, .label = node->label, .site = node->site};
        status = gpu_report_take(graph->device, &of, &reporter->report, error);
        if (status == GPULUA_OK) {
            gpu_report_link(reporter->report, *first);
            *first = reporter->report;
        }
    }
    /* What is behind the launch looks at one word of all of it; one node's own will do. */
    if (status == GPULUA_OK && body->reporter_count > 1) {
        const struct gpu_report_of of = {.source = ""};
        struct gpu_report *whole;
        status = gpu_report_take(graph->device, &of, &whole, error);
        if (status == GPULUA_OK) {
            gpu_report_link(whole, *first);
            *first = whole;
        }
    }
    if (status) {
        gpu_reports_release(*first);
        *first = NULL;
    }
    return status;
}

/* The node's record with what its kernel gets now; that of the graph has nothing there. `outside`:
 * what the launch depends on. */
static gpulua_status send_report(struct gpu_graph *graph, const struct graph_reporter *reporter,
                                 const struct gpu_report *whole, struct gpu_report *const *outside,
                                 uint32_t outside_count, struct gpu_error *error) {
    const struct graph_body *body = &graph->body;
    const struct graph_node *node = &body->nodes[reporter->node];
    const struct gpu_signature *signature = gpu_kernel_signature(node->kernel);
    struct gpu_report *needs[GPU_REPORT_NEEDS_MAX];
    uint32_t count = 0;
    if (node->needs != GPU_NODE_NONE) {
        for (; count < body->needs[node->needs].count; count++) {
            needs[count] = body->reporters[body->needs[node->needs].reporters[count]].report;
        }
    }
    for (uint32_t i = 0; i < outside_count && count < GPU_REPORT_NEEDS_MAX; i++) {
        needs[count++] = outside[i];
    }
    struct gpu_report_context context;
    gpu_report_context(reporter->report, whole, needs, count, &context);
    struct wire_record *record = gpu_graph_patch_record(graph, reporter->node);
    memcpy((uint8_t *)(record + 1) + signature->params[signature->param_count].byte_offset,
           &context, sizeof context);
    return gpu_device_publish(graph->device, record, error);
}

gpulua_status gpu_graph_send_reports(struct gpu_graph *graph, const struct gpu_report *first,
                                     const struct gpu_waits *waits, struct gpu_error *error) {
    struct gpu_report *outside[GPU_REPORT_NEEDS_MAX];
    uint32_t count = gpu_report_needs(graph->device, waits, outside);
    const struct gpu_report *whole = graph->body.reporter_count > 1 ? first : NULL;
    gpulua_status status = GPULUA_OK;
    for (uint32_t i = 0; i < graph->body.reporter_count && status == GPULUA_OK; i++) {
        status = send_report(graph, &graph->body.reporters[i], whole, outside, count, error);
    }
    return status;
}
