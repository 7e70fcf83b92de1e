/* Part of fake_cuda.c: graphs, and the capture of streams into them. Nodes keep what they do and
 * what they follow; refused is what a driver refuses, and a refusal on a stream that is captured
 * ends the capture. A graph's nodes are done in the order in which they were made. */

enum { CAPTURE_UNSUPPORTED = 900, CAPTURE_INVALIDATED = 901, ILLEGAL_STATE = 401 };
enum kind { KERNEL, COPY, SET, EMPTY };

struct node_params { /* CUDA_KERNEL_NODE_PARAMS_v2 */
    const char *function;
    unsigned grid[3], block[3], shared;
    void **params, **extra;
    void *kernel, *context;
};
struct node {
    struct graph *graph;
    size_t number;
    enum kind kind;
    size_t dep_count;
    struct node **deps;
    struct node_params params;
    unsigned char args[64];
    size_t args_bytes;
    bool has_extra;
    uint64_t dst, src; /* copies and sets */
    size_t bytes, elem_bytes;
    unsigned element;
};
struct graph {
    struct node **nodes;
    size_t count;
    bool is_exec;
    void *uploaded_on;
};
struct capture {
    void *stream; /* NULL: free */
    struct graph *graph;
    struct node **deps;
    size_t dep_count;
    bool is_invalid;
};
/* Kept here, so that what a lost device leaves behind is no leak of the test's. */
static struct graph *graphs[512];
static struct capture captures[16];

API int fake_graph_launches, fake_graph_updates, fake_graph_uploads;
API int fake_capture_mode = -1;
API int fake_capture_refused;       /* calls that a capture forbids */
API const struct graph *fake_graph; /* the one instantiated last */

static result move(uint64_t dst, uint64_t src, size_t bytes);
static result set(uint64_t dst, const void *element, size_t elem_bytes, size_t count);
static result run(const char *function, const unsigned grid[3], const unsigned block[3],
                  unsigned shared, void **extra);
static bool is_function(const char *function);

static struct graph *graph_make(void) {
    size_t slot = 0;
    while (graphs[slot] != NULL) {
        slot++;
    }
    return graphs[slot] = calloc(1, sizeof *graphs[slot]);
}
static void graph_free(struct graph *graph) {
    for (size_t slot = 0; slot < sizeof graphs / sizeof graphs[0]; slot++) {
        graphs[slot] = graphs[slot] == graph ? NULL : graphs[slot];
    }
    for (size_t i = 0; i < graph->count; i++) {
        free(graph->nodes[i]->deps);
        free(graph->nodes[i]);
    }
    fake_graph = fake_graph == graph ? NULL : fake_graph;
    free(graph->nodes);
    free(graph);
}
static bool is_graph(const struct graph *graph, bool is_exec) {
    for (size_t slot = 0; slot < sizeof graphs / sizeof graphs[0]; slot++) {
        if (graph != NULL && graphs[slot] == graph) {
            return graph->is_exec == is_exec;
        }
    }
    return false;
}
/* Nodes of the graph, each once? */
static bool are_deps(const struct graph *graph, struct node *const *deps, size_t count) {
    bool *is_taken = calloc(graph->count + 1, 1), good = true;
    for (size_t i = 0; i < count && good; i++) {
        good = deps[i]->graph == graph && !is_taken[deps[i]->number];
        is_taken[deps[i]->number] = true;
    }
    free(is_taken);
    return good;
}
static struct node *node_add(struct graph *graph, const struct node *what, struct node *const *deps,
                             size_t count) {
    struct node *made = malloc(sizeof *made);
    *made = *what;
    made->graph = graph;
    made->number = graph->count;
    made->dep_count = count;
    made->deps = malloc((count + 1) * sizeof *deps);
    if (count > 0) {
        memcpy(made->deps, deps, count * sizeof *deps);
    }
    graph->nodes = realloc(graph->nodes, (graph->count + 1) * sizeof *graph->nodes);
    return graph->nodes[graph->count++] = made;
}

/* ---- captures ---- */

static struct capture *capture_of(const void *stream) {
    for (size_t i = 0; i < sizeof captures / sizeof captures[0]; i++) {
        if (stream != NULL && captures[i].stream == stream) {
            return &captures[i];
        }
    }
    return NULL;
}
/* Of a stream, or (NULL) of all: true if there was one. */
static bool capture_invalidate(const void *stream) {
    bool was = false;
    for (size_t i = 0; i < sizeof captures / sizeof captures[0]; i++) {
        if (captures[i].stream != NULL && (stream == NULL || captures[i].stream == stream)) {
            captures[i].is_invalid = was = true;
            fake_capture_refused++;
        }
    }
    return was;
}
static void capture_over(struct capture *capture, bool keeps_graph) {
    if (!keeps_graph) {
        fake_live--;
        graph_free(capture->graph);
    }
    free(capture->deps);
    memset(capture, 0, sizeof *capture);
}
static void capture_follow(struct capture *capture, struct node *const *deps, size_t count) {
    capture->deps = realloc(capture->deps, (count + 1) * sizeof *deps);
    if (count > 0) {
        memcpy(capture->deps, deps, count * sizeof *deps);
    }
    capture->dep_count = count;
}
static result capture_add(struct capture *capture, const struct node *what) {
    struct node *made = node_add(capture->graph, what, capture->deps, capture->dep_count);
    capture_follow(capture, &made, 1);
    return OK;
}

/* First in every call that puts work on a stream. */
static result begin_work(const char *name, void *stream) {
    struct capture *capture = capture_of(stream);
    result answered = answer(name);
    if (answered == OK && current != &context_object) {
        answered = NO_CONTEXT;
    }
    if (answered == OK && stream == NULL) {
        answered = INVALID;
    }
    if (answered != OK && capture != NULL) {
        (void)capture_invalidate(stream);
    }
    return answered == OK && capture != NULL && capture->is_invalid ? CAPTURE_INVALIDATED
                                                                    : answered;
}
#define BEGIN_WORK(stream)                                                                         \
    do {                                                                                           \
        result begun = begin_work(__func__, stream);                                               \
        if (begun != OK) {                                                                         \
            return begun;                                                                          \
        }                                                                                          \
    } while (0)

API result cuStreamBeginCapture_v2(void *stream, int mode) {
    BEGIN_CURRENT;
    struct capture *capture = captures;
    while (capture->stream != NULL) {
        capture++;
    }
    if (stream == NULL || capture_of(stream) != NULL || mode < 0 || mode > 2) {
        return INVALID;
    }
    fake_capture_mode = mode;
    fake_live++;
    capture->stream = stream;
    capture->graph = graph_make();
    return OK;
}
API result cuStreamEndCapture(void *stream, struct graph **graph) {
    BEGIN_CURRENT;
    struct capture *capture = capture_of(stream);
    if (capture == NULL) {
        return ILLEGAL_STATE;
    }
    bool is_invalid = capture->is_invalid;
    *graph = is_invalid ? NULL : capture->graph;
    capture_over(capture, !is_invalid);
    return is_invalid ? CAPTURE_INVALIDATED : OK;
}
API result cuStreamGetCaptureInfo_v3(void *stream, int *status, uint64_t *number,
                                     struct graph **graph, struct node *const **deps,
                                     const void **edges, size_t *dep_count) {
    static const uint64_t no_data[4096]; /* a CUgraphEdgeData has 8 bytes */
    BEGIN_CURRENT;
    const struct capture *capture = capture_of(stream);
    *status = capture == NULL ? 0 : capture->is_invalid ? 2 : 1;
    if (*status == 1) {
        *graph = capture->graph;
        *deps = capture->deps;
        *edges = no_data;
        *dep_count = capture->dep_count;
    }
    return number == NULL && stream != NULL ? OK : INVALID;
}
API result cuStreamUpdateCaptureDependencies_v2(void *stream, struct node **deps, const void *edges,
                                                size_t count, unsigned flags) {
    BEGIN_CURRENT;
    struct capture *capture = capture_of(stream);
    if (capture == NULL || capture->is_invalid) {
        return ILLEGAL_STATE;
    }
    if (deps == NULL || edges != NULL || flags != 1 || !are_deps(capture->graph, deps, count)) {
        return INVALID;
    }
    capture_follow(capture, deps, count);
    return OK;
}

/* ---- graphs ---- */

static result put(struct node *node, const struct node_params *params) {
    size_t bytes = params->extra != NULL ? *(size_t *)params->extra[3] : 0;
    if (params->params != NULL || params->kernel != NULL || params->context != NULL ||
        !is_function(params->function) || params->block[0] * params->block[1] > 1024 ||
        bytes > sizeof node->args) {
        return INVALID;
    }
    node->kind = KERNEL;
    node->params = *params;
    node->params.extra = NULL;
    node->has_extra = params->extra != NULL;
    node->args_bytes = bytes;
    if (node->has_extra) {
        memcpy(node->args, params->extra[1], bytes);
    }
    return OK;
}
API result cuGraphCreate(struct graph **graph, unsigned flags) {
    BEGIN_CURRENT;
    fake_live++;
    return *graph = graph_make(), flags == 0 ? OK : INVALID;
}
API result cuGraphDestroy(struct graph *graph) {
    BEGIN_CURRENT;
    if (!is_graph(graph, false)) {
        return INVALID;
    }
    fake_live--;
    graph_free(graph);
    return OK;
}
API result cuGraphAddKernelNode_v2(struct node **node, struct graph *graph,
                                   struct node *const *deps, size_t count,
                                   const struct node_params *params) {
    BEGIN_CURRENT;
    struct node made = {.kind = KERNEL};
    if (!is_graph(graph, false) || !are_deps(graph, deps, count) || put(&made, params) != OK) {
        return INVALID;
    }
    return *node = node_add(graph, &made, deps, count), OK;
}
API result cuGraphAddEmptyNode(struct node **node, struct graph *graph, struct node *const *deps,
                               size_t count) {
    BEGIN_CURRENT;
    struct node made = {.kind = EMPTY};
    if (!is_graph(graph, false) || !are_deps(graph, deps, count)) {
        return INVALID;
    }
    return *node = node_add(graph, &made, deps, count), OK;
}
API result cuGraphInstantiateWithFlags(struct graph **exec, struct graph *graph,
                                       unsigned long long flags) {
    BEGIN_CURRENT;
    if (!is_graph(graph, false) || flags != 0) {
        return INVALID;
    }
    *exec = graph_make();
    (*exec)->is_exec = true;
    for (size_t i = 0; i < graph->count; i++) {
        (void)node_add(*exec, graph->nodes[i], NULL, 0);
    }
    fake_live++;
    fake_graph = graph;
    return OK;
}
API result cuGraphExecKernelNodeSetParams_v2(struct graph *exec, const struct node *node,
                                             const struct node_params *params) {
    BEGIN_CURRENT;
    fake_graph_updates++;
    /* A real driver may look at the function that it was, and at the graph that it was made of. */
    return is_graph(exec, true) && is_graph(node->graph, false) && node->number < exec->count &&
                   is_function(exec->nodes[node->number]->params.function) &&
                   node->params.function != NULL
               ? put(exec->nodes[node->number], params)
               : INVALID;
}
API result cuGraphExecDestroy(struct graph *exec) {
    BEGIN_CURRENT;
    if (!is_graph(exec, true)) {
        return INVALID;
    }
    fake_live--;
    graph_free(exec);
    return OK;
}
API result cuGraphUpload(struct graph *exec, void *stream) {
    BEGIN_WORK(stream);
    fake_graph_uploads++;
    return is_graph(exec, true) ? (exec->uploaded_on = stream, OK) : INVALID;
}
static result node_run(struct node *node) {
    void *extra[] = {(void *)1, node->args, (void *)2, &node->args_bytes, NULL};
    const struct node_params *p = &node->params;
    switch (node->kind) {
    case KERNEL:
        return run(p->function, p->grid, p->block, p->shared, node->has_extra ? extra : NULL);
    case COPY:
        return move(node->dst, node->src, node->bytes);
    case SET:
        return set(node->dst, &node->element, node->elem_bytes, node->bytes / node->elem_bytes);
    default:
        return OK;
    }
}
API result cuGraphLaunch(struct graph *exec, void *stream) {
    BEGIN_WORK(stream);
    result answered = is_graph(exec, true) ? OK : INVALID;
    fake_graph_launches++;
    for (size_t i = 0; answered == OK && i < exec->count; i++) {
        answered = node_run(exec->nodes[i]);
    }
    return answered;
}

/* ---- for tests: the graph instantiated last ---- */

/* "kern set4(0) copy(0,1)": its nodes and what each follows. */
API void fake_graph_text(char *text, size_t bytes) {
    size_t used = 0;
    text[0] = '\0';
    for (size_t i = 0; fake_graph != NULL && i < fake_graph->count && used + 100 < bytes; i++) {
        const struct node *node = fake_graph->nodes[i];
        used += (size_t)snprintf(text + used, bytes - used, "%s%s", i > 0 ? " " : "",
                                 node->kind == KERNEL ? node->params.function
                                 : node->kind == COPY ? "copy"
                                 : node->kind == SET  ? "set"
                                                      : "empty");
        for (size_t d = 0; d < node->dep_count && used + 100 < bytes; d++) {
            used += (size_t)snprintf(text + used, bytes - used, "%s%zu", d == 0 ? "(" : ",",
                                     node->deps[d]->number);
        }
        used += (size_t)snprintf(text + used, bytes - used, "%s", node->dep_count > 0 ? ")" : "");
    }
}
API size_t fake_graph_nodes(void) {
    return fake_graph != NULL ? fake_graph->count : 0;
}
API bool fake_graph_is_empty(size_t number) {
    return fake_graph->nodes[number]->kind == EMPTY;
}
/* How many nodes it follows, and the one at `index` among them. */
API size_t fake_graph_deps(size_t number, size_t index, size_t *dep) {
    const struct node *node = fake_graph->nodes[number];
    if (index < node->dep_count) {
        *dep = node->deps[index]->number;
    }
    return node->dep_count;
}
