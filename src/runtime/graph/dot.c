/* A graph as text for Graphviz. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ranges/ranges.h"
#include "runtime/graph/state.h"
#include "runtime/trace.h"
#include "runtime/writer.h"

/* What a node took in the newest launch that is known, of all its pieces; ns from its begin. */
struct took {
    int64_t begun_ns, ended_ns; /* both 0: not known */
};

/* As any tool may show it. */
static void put_quoted(struct gpu_writer *writer, const char *text) {
    char shown[GPU_RANGE_TEXT_BYTES];
    (void)gpu_range_text(shown, sizeof shown, text, strlen(text));
    for (const char *at = shown; *at; at++) {
        gpu_put(writer, *at == '"' || *at == '\\' ? "\\%c" : "%c", *at);
    }
}

/* Nodes are named by their places: n5, and in the second body of that n5_1_0. */
#define PLACE_BYTES (2u * 11u * (GPU_CONTROL_DEPTH_MAX + 1u))

static void put_body(struct gpu_writer *writer, const struct graph_body *body, const char *place,
                     const struct took *took);

static void put_took(struct gpu_writer *writer, const struct took *took) {
    gpu_put(writer, "\\n%.1f us, from %.1f us on", (double)(took->ended_ns - took->begun_ns) / 1e3,
            (double)took->begun_ns / 1e3);
}

static void put_node(struct gpu_writer *writer, const struct graph_node *node, const char *place,
                     const struct took *took) {
    gpu_put(writer, "  n%s [%slabel=\"", place, node->control ? "shape=diamond, " : "");
    put_quoted(writer, node->label);
    if (node->site.source) {
        gpu_put(writer, "\\n");
        put_quoted(writer, node->site.source);
        gpu_put(writer, ":%d", node->site.line);
    }
    if (took && took->ended_ns != 0) {
        put_took(writer, took);
    }
    gpu_put(writer, "\"];\n");
}

/* A cluster for each body, hung from the node by its first one. */
static void put_control(struct gpu_writer *writer, const struct graph_control *control,
                        const char *place) {
    static const char *const branches[] = {"then", "else"};
    char name[24], inner[PLACE_BYTES];
    for (uint32_t i = 0; i < control->body_count; i++) {
        snprintf(name, sizeof name, "%u", i + 1);
        int length = snprintf(inner, sizeof inner, "%s_%u_", place, i);
        assert(length < (int)sizeof inner);
        (void)length;
        gpu_put(writer, "  subgraph cluster%s_%u {\n  label=\"%s\";\n", place, i,
                control->kind == GPU_CONTROL_WHILE ? "while"
                : control->kind == GPU_CONTROL_IF  ? branches[i]
                                                   : name);
        put_body(writer, &control->bodies[i], inner, NULL);
        gpu_put(writer, "  }\n  n%s -> n%s0 [style=dashed];\n", place, inner);
    }
}

static void put_edge(struct gpu_writer *writer, const struct graph_body *body, const char *place,
                     uint32_t to, const struct graph_edge *edge) {
    const struct gpu_block *block = body->tracks[edge->track].block;
    gpu_put(writer, "  n%s%u -> n%s%u [label=\"%s%s%s", place, edge->from, place, to,
            edge->reasons & GPU_EDGE_RAW ? "RAW " : "", edge->reasons & GPU_EDGE_WAR ? "WAR " : "",
            edge->reasons & GPU_EDGE_WAW ? "WAW " : "");
    if (block->label[0]) {
        put_quoted(writer, block->label);
    } else {
        gpu_put(writer, "allocation %llu", (unsigned long long)block->number);
    }
    gpu_put(writer, "\"];\n");
}

/* `took`: of each node; NULL: nothing is known. */
static void put_body(struct gpu_writer *writer, const struct graph_body *body, const char *place,
                     const struct took *took) {
    char own[PLACE_BYTES];
    for (uint32_t i = 0; i < body->node_count; i++) {
        int length = snprintf(own, sizeof own, "%s%u", place, i);
        assert(length < (int)sizeof own);
        (void)length;
        put_node(writer, &body->nodes[i], own, took ? &took[i] : NULL);
        if (body->nodes[i].control) {
            put_control(writer, body->nodes[i].control, own);
        }
    }
    for (uint32_t i = 0; i < body->node_count; i++) {
        for (uint32_t k = 0; k < body->nodes[i].edge_count; k++) {
            put_edge(writer, body, place, i, &body->edges[body->nodes[i].edge_first + k]);
        }
    }
}

/* Of each node, malloc'ed; NULL: nothing is known. */
static struct took *times_of(const struct gpu_graph *graph) {
    const struct gpu_trace *trace = graph->device->trace;
    struct gpu_traced_op op;
    bool is_known = trace && graph->traced != 0 && graph->traced_version == graph->version &&
                    gpu_trace_newest_of(trace, graph, &op) && op.graph == graph->traced;
    is_known = is_known && op.node_last != 0 && !op.lacks_nodes;
    struct took *took = is_known ? calloc(graph->body.node_count, sizeof *took) : NULL;
    for (uint64_t row = took ? op.node_last : 0; row != 0;) {
        const struct gpu_traced_node *node = gpu_trace_node(trace, row);
        struct took *of = &took[node->node];
        int64_t begun_ns = node->begun_ns - op.begun_ns, ended_ns = node->ended_ns - op.begun_ns;
        of->begun_ns = of->ended_ns == 0 || begun_ns < of->begun_ns ? begun_ns : of->begun_ns;
        of->ended_ns = ended_ns > of->ended_ns ? ended_ns : of->ended_ns;
        row = node->before;
    }
    return took;
}

size_t gpu_graph_dot(const struct gpu_graph *graph, char *text, size_t room) {
    struct gpu_graph_info info;
    GPU_ENTER(gpu_graph_device(graph));
    gpu_graph_info(graph, &info);
    struct gpu_writer writer = {.text = text, .room = room};
    gpu_put(&writer, "digraph \"");
    put_quoted(&writer, info.label[0] ? info.label : "graph");
    gpu_put(&writer, "\" {\n  node [shape=box, fontname=\"sans-serif\"];\n"
                     "  edge [fontname=\"sans-serif\", fontsize=10];\n");
    struct took *took = times_of(graph);
    put_body(&writer, gpu_graph_body(graph), "", took);
    free(took);
    gpu_put(&writer, "}\n");
    return writer.length;
}
