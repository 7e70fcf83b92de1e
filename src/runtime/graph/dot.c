/* A graph as text for Graphviz. */
#include <assert.h>
#include <stdarg.h>
#include <stdio.h>

#include "runtime/graph/state.h"

/* Text that is counted also where there is no room for it. */
struct writer {
    char *text;
    size_t room, length;
};

static void put(struct writer *writer, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
static void put(struct writer *writer, const char *format, ...) {
    va_list values;
    va_start(values, format);
    bool has_room = writer->length < writer->room;
    int bytes = vsnprintf(has_room ? writer->text + writer->length : NULL,
                          has_room ? writer->room - writer->length : 0, format, values);
    va_end(values);
    writer->length += bytes > 0 ? (size_t)bytes : 0;
}

static void put_quoted(struct writer *writer, const char *text) {
    for (; *text; text++) {
        put(writer, *text == '"' || *text == '\\' ? "\\%c" : "%c", *text);
    }
}

/* Nodes are named by their places: n5, and in the second body of that n5_1_0. */
#define PLACE_BYTES (2u * 11u * (GPU_CONTROL_DEPTH_MAX + 1u))

static void put_body(struct writer *writer, const struct graph_body *body, const char *place);

static void put_node(struct writer *writer, const struct graph_node *node, const char *place) {
    put(writer, "  n%s [%slabel=\"", place, node->control ? "shape=diamond, " : "");
    put_quoted(writer, node->label);
    if (node->site.source) {
        put(writer, "\\n");
        put_quoted(writer, node->site.source);
        put(writer, ":%d", node->site.line);
    }
    put(writer, "\"];\n");
}

/* A cluster for each body, hung from the node by its first one. */
static void put_control(struct writer *writer, const struct graph_control *control,
                        const char *place) {
    static const char *const branches[] = {"then", "else"};
    char name[24], inner[PLACE_BYTES];
    for (uint32_t i = 0; i < control->body_count; i++) {
        snprintf(name, sizeof name, "%u", i + 1);
        int length = snprintf(inner, sizeof inner, "%s_%u_", place, i);
        assert(length < (int)sizeof inner);
        (void)length;
        put(writer, "  subgraph cluster%s_%u {\n  label=\"%s\";\n", place, i,
            control->kind == GPU_CONTROL_WHILE ? "while"
            : control->kind == GPU_CONTROL_IF  ? branches[i]
                                               : name);
        put_body(writer, &control->bodies[i], inner);
        put(writer, "  }\n  n%s -> n%s0 [style=dashed];\n", place, inner);
    }
}

static void put_edge(struct writer *writer, const struct graph_body *body, const char *place,
                     uint32_t to, const struct graph_edge *edge) {
    const struct gpu_block *block = body->tracks[edge->track].block;
    put(writer, "  n%s%u -> n%s%u [label=\"%s%s%s", place, edge->from, place, to,
        edge->reasons & GPU_EDGE_RAW ? "RAW " : "", edge->reasons & GPU_EDGE_WAR ? "WAR " : "",
        edge->reasons & GPU_EDGE_WAW ? "WAW " : "");
    if (block->label[0]) {
        put_quoted(writer, block->label);
    } else {
        put(writer, "allocation %llu", (unsigned long long)block->number);
    }
    put(writer, "\"];\n");
}

static void put_body(struct writer *writer, const struct graph_body *body, const char *place) {
    char own[PLACE_BYTES];
    for (uint32_t i = 0; i < body->node_count; i++) {
        int length = snprintf(own, sizeof own, "%s%u", place, i);
        assert(length < (int)sizeof own);
        (void)length;
        put_node(writer, &body->nodes[i], own);
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

size_t gpu_graph_dot(const struct gpu_graph *graph, char *text, size_t room) {
    struct gpu_graph_info info;
    GPU_ENTER(gpu_graph_device(graph));
    gpu_graph_info(graph, &info);
    struct writer writer = {.text = text, .room = room};
    put(&writer, "digraph \"");
    put_quoted(&writer, info.label[0] ? info.label : "graph");
    put(&writer, "\" {\n  node [shape=box, fontname=\"sans-serif\"];\n"
                 "  edge [fontname=\"sans-serif\", fontsize=10];\n");
    put_body(&writer, gpu_graph_body(graph), "");
    put(&writer, "}\n");
    return writer.length;
}
