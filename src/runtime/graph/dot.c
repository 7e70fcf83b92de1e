/* A graph as text for Graphviz. */
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

static void put_node(struct writer *writer, const struct graph_body *body, uint32_t index) {
    const struct graph_node *node = &body->nodes[index];
    put(writer, "  n%u [label=\"", index);
    put_quoted(writer, node->label);
    if (node->site.source) {
        put(writer, "\\n");
        put_quoted(writer, node->site.source);
        put(writer, ":%d", node->site.line);
    }
    put(writer, "\"];\n");
}

static void put_edge(struct writer *writer, const struct graph_body *body, uint32_t to,
                     const struct graph_edge *edge) {
    const struct gpu_block *block = body->tracks[edge->track].block;
    put(writer, "  n%u -> n%u [label=\"%s%s%s", edge->from, to,
        edge->reasons & GPU_EDGE_RAW ? "RAW " : "", edge->reasons & GPU_EDGE_WAR ? "WAR " : "",
        edge->reasons & GPU_EDGE_WAW ? "WAW " : "");
    if (block->label[0]) {
        put_quoted(writer, block->label);
    } else {
        put(writer, "allocation %llu", (unsigned long long)block->number);
    }
    put(writer, "\"];\n");
}

size_t gpu_graph_dot(const struct gpu_graph *graph, char *text, size_t room) {
    const struct graph_body *body = gpu_graph_body(graph);
    struct gpu_graph_info info;
    GPU_ENTER(gpu_graph_device(graph));
    gpu_graph_info(graph, &info);
    struct writer writer = {.text = text, .room = room};
    put(&writer, "digraph \"");
    put_quoted(&writer, info.label[0] ? info.label : "graph");
    put(&writer, "\" {\n  node [shape=box, fontname=\"sans-serif\"];\n"
                 "  edge [fontname=\"sans-serif\", fontsize=10];\n");
    for (uint32_t i = 0; i < body->node_count; i++) {
        put_node(&writer, body, i);
    }
    for (uint32_t i = 0; i < body->node_count; i++) {
        for (uint32_t k = 0; k < body->nodes[i].edge_count; k++) {
            put_edge(&writer, body, i, &body->edges[body->nodes[i].edge_first + k]);
        }
    }
    put(&writer, "}\n");
    return writer.length;
}
