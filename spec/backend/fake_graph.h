/* Part of fake_cuda.c: graphs, and the capture of streams into them. Nodes keep what they do and
 * what they follow; refused is what a driver refuses, and a refusal on a stream that is captured
 * ends the capture. A graph's nodes are done in the order in which they were made. */

enum {
    CAPTURE_UNSUPPORTED = 900,
    CAPTURE_INVALIDATED = 901,
    UNMATCHED = 903,
    UNJOINED = 904,
    WRONG_THREAD = 908,
    ILLEGAL_STATE = 401
};
enum kind { KERNEL, COPY, SET, EMPTY, CONDITIONAL };
enum { IF, WHILE, SWITCH, BODIES_MAX = 64 };

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
    uint64_t handle; /* conditional nodes */
    int type;
    unsigned body_count;
    struct graph *bodies[BODIES_MAX]; /* owned by the one that was not copied */
};
struct graph {
    struct node **nodes;
    size_t count;
    bool is_exec, is_body;
    void *uploaded_on;
};
/* What kernels set and conditional nodes look at; a handle is the index, and 1. */
static struct condition {
    const struct graph *graph;
    bool is_used, is_set;
    unsigned value;
} conditions[4096];
static size_t condition_count;
enum { FORKS_MAX = 8 };
struct capture {
    void *stream;       /* NULL: free */
    const void *thread; /* that began it */
    int mode;
    const void *forks[FORKS_MAX]; /* streams that have become part of it */
    bool is_joined[FORKS_MAX];
    struct graph *graph;
    struct node **deps;
    size_t dep_count;
    bool is_invalid;
};
/* Kept here, so that what a lost device leaves behind is no leak of the test's. */
static struct graph *graphs[512];
static struct capture captures[16];
static __thread int thread_mode; /* fake_capture.h */

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
        struct node *node = graph->nodes[i];
        for (unsigned b = 0; node->kind == CONDITIONAL && !graph->is_exec && b < node->body_count;
             b++) {
            graph_free(node->bodies[b]);
        }
        free(node->deps);
        free(node);
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
        for (size_t k = 0; k < FORKS_MAX && stream != NULL; k++) {
            if (captures[i].stream != NULL && captures[i].forks[k] == stream) {
                return &captures[i];
            }
        }
    }
    return NULL;
}
/* Of a stream, or (NULL) of all: true if there was one. */
static bool capture_invalidate(const void *stream) {
    bool was = false;
    for (size_t i = 0; i < sizeof captures / sizeof captures[0]; i++) {
        if (captures[i].stream != NULL && (stream == NULL || capture_of(stream) == &captures[i])) {
            captures[i].is_invalid = was = true;
            fake_capture_refused++;
        }
    }
    return was;
}
static void capture_over(struct capture *capture, bool keeps_graph) {
    if (!keeps_graph && !capture->graph->is_body) {
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

/* What a lost device has left behind. */
static void graphs_forget(void) {
    for (size_t i = 0; i < sizeof captures / sizeof captures[0]; i++) {
        free(captures[i].deps);
    }
    memset(captures, 0, sizeof captures);
    for (size_t slot = 0; slot < sizeof graphs / sizeof graphs[0]; slot++) {
        if (graphs[slot] != NULL && !graphs[slot]->is_body) {
            graph_free(graphs[slot]);
        }
    }
    condition_count = 0;
}

/* First in every call that puts work on a stream. */
static result begin_work(const char *name, void *stream) {
    struct capture *capture = capture_of(stream);
    result answered = answer(name);
    answered = answered == OK ? check_current() : answered;
    answered = answered == OK ? check_handle(stream) : answered;
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
    capture->thread = &thread_mode;
    capture->mode = mode;
    capture->graph = graph_make();
    return OK;
}
API result cuStreamBeginCaptureToGraph(void *stream, struct graph *graph, struct node *const *deps,
                                       const void *edges, size_t count, int mode) {
    BEGIN_CURRENT;
    struct capture *capture = captures;
    while (capture->stream != NULL) {
        capture++;
    }
    if (stream == NULL || capture_of(stream) != NULL || mode != 2 || !is_graph(graph, false) ||
        !graph->is_body || deps != NULL || edges != NULL || count != 0) {
        return INVALID;
    }
    capture->stream = stream;
    capture->thread = &thread_mode;
    capture->mode = mode;
    capture->graph = graph;
    return OK;
}
API result cuStreamEndCapture(void *stream, struct graph **graph) {
    BEGIN_CURRENT;
    struct capture *capture = capture_of(stream);
    if (capture == NULL) {
        return ILLEGAL_STATE;
    }
    if (capture->mode != 2 && capture->thread != &thread_mode) {
        return WRONG_THREAD;
    }
    if (capture->stream != stream) {
        capture->is_invalid = true;
        return UNMATCHED;
    }
    bool is_invalid = capture->is_invalid, is_unjoined = false;
    for (size_t i = 0; i < FORKS_MAX; i++) {
        is_unjoined |= capture->forks[i] != NULL && !capture->is_joined[i];
    }
    *graph = is_invalid || is_unjoined ? NULL : capture->graph;
    capture_over(capture, *graph != NULL);
    return is_invalid ? CAPTURE_INVALIDATED : is_unjoined ? UNJOINED : OK;
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
    if (deps == NULL || edges != NULL || flags > 1) {
        return INVALID;
    }
    size_t kept = flags == 0 ? capture->dep_count : 0; /* 0: more of them, 1: these */
    struct node **all = malloc((kept + count + 1) * sizeof *all);
    for (size_t i = 0; i < kept + count; i++) {
        all[i] = i < kept ? capture->deps[i] : deps[i - kept];
    }
    bool is_good = are_deps(capture->graph, all, kept + count);
    if (is_good) {
        capture_follow(capture, all, kept + count);
    }
    free(all);
    return is_good ? OK : INVALID;
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
    BEGIN;
    if (!is_graph(graph, false) || graph->is_body) {
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
API result cuGraphConditionalHandleCreate(uint64_t *handle, const struct graph *graph,
                                          const void *context, unsigned value, unsigned flags) {
    BEGIN_CURRENT;
    if (!is_graph(graph, false) || context != current || value != 0 || flags != 0 ||
        condition_count == sizeof conditions / sizeof conditions[0]) {
        return INVALID;
    }
    conditions[condition_count] = (struct condition){.graph = graph};
    return *handle = ++condition_count, OK;
}
struct any_params { /* CUgraphNodeParams */
    int type, reserved[3];
    uint64_t handle;
    int kind;
    unsigned size;
    struct graph **bodies;
    void *context;
    long long rest[26];
};
API result cuGraphAddNode_v2(struct node **node, struct graph *graph, struct node *const *deps,
                             const void *edges, size_t count, struct any_params *params) {
    BEGIN_CURRENT;
    unsigned most = params->kind == SWITCH                        ? BODIES_MAX
                    : params->kind == IF && fake_version >= 12080 ? 2
                                                                  : 1;
    if (!is_graph(graph, false) || !are_deps(graph, deps, count) || edges != NULL ||
        params->type != 13 || params->handle == 0 || params->handle > condition_count ||
        conditions[params->handle - 1].graph != graph || conditions[params->handle - 1].is_used ||
        params->context != current || params->size < 1 || params->size > most ||
        params->kind < IF || params->kind > SWITCH ||
        (params->kind == SWITCH && fake_version < 12080)) {
        return INVALID;
    }
    struct node made = {.kind = CONDITIONAL,
                        .handle = params->handle,
                        .type = params->kind,
                        .body_count = params->size};
    conditions[params->handle - 1].is_used = true;
    for (unsigned b = 0; b < params->size; b++) {
        made.bodies[b] = graph_make();
        made.bodies[b]->is_body = true;
    }
    *node = node_add(graph, &made, deps, count);
    params->bodies = (*node)->bodies;
    return OK;
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
/* The driver's structs, as far as copies and sets in one dimension fill them in. */
struct copy_params { /* CUDA_MEMCPY3D */
    size_t src_place[4];
    int src_type;
    const void *src_host;
    uint64_t src_device;
    void *src_array, *reserved0;
    size_t src_pitch, src_height, dst_place[4];
    int dst_type;
    void *dst_host;
    uint64_t dst_device;
    void *dst_array, *reserved1;
    size_t dst_pitch, dst_height, width, height, depth;
};
struct set_params { /* CUDA_MEMSET_NODE_PARAMS */
    uint64_t dst;
    size_t pitch;
    unsigned value, elem_bytes;
    size_t width, height;
};
static bool is_node(const struct node *node, enum kind kind) {
    return node != NULL && is_graph(node->graph, false) && node->kind == kind;
}
/* The node of the executable graph, if it is of the kind. */
static struct node *exec_node(struct graph *exec, const struct node *node, enum kind kind) {
    fake_graph_updates++;
    return is_graph(exec, true) && is_node(node, kind) && node->number < exec->count
               ? exec->nodes[node->number]
               : NULL;
}
API result cuGraphGetNodes(struct graph *graph, struct node **nodes, size_t *count) {
    BEGIN_CURRENT;
    if (!is_graph(graph, false)) {
        return INVALID;
    }
    for (size_t i = 0; i < *count && i < graph->count; i++) {
        nodes[i] = graph->nodes[i];
    }
    return *count = graph->count, OK;
}
API result cuGraphNodeGetType(struct node *node, int *type) {
    static const int types[] = {[KERNEL] = 0, [COPY] = 1, [SET] = 2, [EMPTY] = 5};
    BEGIN_CURRENT;
    return node != NULL && is_graph(node->graph, false) ? (*type = types[node->kind], OK) : INVALID;
}
API result cuGraphKernelNodeGetParams_v2(struct node *node, struct node_params *params) {
    static void *extra[5];
    BEGIN_CURRENT;
    if (!is_node(node, KERNEL)) {
        return INVALID;
    }
    *params = node->params;
    memcpy(extra, (void *[]){(void *)1, node->args, (void *)2, &node->args_bytes, NULL},
           sizeof extra);
    params->extra = node->has_extra ? extra : NULL;
    return OK;
}
API result cuGraphMemcpyNodeGetParams(struct node *node, struct copy_params *params) {
    BEGIN_CURRENT;
    if (!is_node(node, COPY)) {
        return INVALID;
    }
    *params = (struct copy_params){.src_device = node->src,
                                   .dst_device = node->dst,
                                   .width = node->bytes,
                                   .height = 1,
                                   .depth = 1};
    return OK;
}
API result cuGraphExecMemcpyNodeSetParams(struct graph *exec, struct node *node,
                                          const struct copy_params *params, void *context) {
    BEGIN_CURRENT;
    struct node *own = exec_node(exec, node, COPY);
    if (own == NULL || params->height != 1 || params->width == 0 || context != current ||
        is_virtual(own->dst) != is_virtual(params->dst_device) ||
        is_virtual(own->src) != is_virtual(params->src_device)) {
        return INVALID; /* "if the memory operands' mappings changed" */
    }
    own->dst = params->dst_device;
    own->src = params->src_device;
    own->bytes = params->width;
    return OK;
}
API result cuGraphMemsetNodeGetParams(struct node *node, struct set_params *params) {
    BEGIN_CURRENT;
    if (!is_node(node, SET)) {
        return INVALID;
    }
    *params = (struct set_params){.dst = node->dst,
                                  .value = node->element,
                                  .elem_bytes = (unsigned)node->elem_bytes,
                                  .width = node->bytes / node->elem_bytes,
                                  .height = 1};
    return OK;
}
API result cuGraphExecMemsetNodeSetParams(struct graph *exec, struct node *node,
                                          const struct set_params *params, void *context) {
    BEGIN_CURRENT;
    struct node *own = exec_node(exec, node, SET);
    if (own == NULL || params->height != 1 || params->width == 0 || context != current ||
        params->elem_bytes != own->elem_bytes) {
        return INVALID;
    }
    own->dst = params->dst;
    own->element = params->value;
    own->bytes = params->width * params->elem_bytes;
    return OK;
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
static result control_run(const struct node *node);
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
    case CONDITIONAL:
        return control_run(node);
    default:
        return OK;
    }
}
static result body_run(const struct graph *graph) {
    result answered = OK;
    for (size_t i = 0; answered == OK && i < graph->count; i++) {
        answered = node_run(graph->nodes[i]);
    }
    return answered;
}
/* A number that no kernel has set since the launch, or the pass before, is not to be relied on. */
static result control_run(const struct node *node) {
    struct condition *condition = &conditions[node->handle - 1];
    result answered = OK;
    while (answered == OK && condition->is_set) {
        unsigned value = condition->value;
        unsigned chosen = node->type == SWITCH ? value : value != 0 ? 0 : node->type == IF ? 1 : 64;
        condition->is_set = false;
        if (chosen >= node->body_count) {
            return OK;
        }
        answered = body_run(node->bodies[chosen]);
        if (node->type != WHILE) {
            return answered;
        }
    }
    return answered == OK ? INVALID : answered;
}
static result condition_set(uint64_t handle, unsigned value) {
    if (handle == 0 || handle > condition_count) {
        return INVALID;
    }
    conditions[handle - 1].value = value;
    return conditions[handle - 1].is_set = true, OK;
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

/* "kern set4(0) while(1){copy} empty(0,2)": its nodes, what each follows, and bodies. */
static size_t text_put(const struct graph *graph, char *text, size_t used, size_t bytes) {
    static const char *const names[] = {"if", "while", "switch"};
    for (size_t i = 0; i < graph->count && used + 100 < bytes; i++) {
        const struct node *node = graph->nodes[i];
        used += (size_t)snprintf(text + used, bytes - used, "%s%s", i > 0 ? " " : "",
                                 node->kind == KERNEL        ? node->params.function
                                 : node->kind == COPY        ? "copy"
                                 : node->kind == SET         ? "set"
                                 : node->kind == CONDITIONAL ? names[node->type]
                                                             : "empty");
        for (size_t d = 0; d < node->dep_count && used + 100 < bytes; d++) {
            used += (size_t)snprintf(text + used, bytes - used, "%s%zu", d == 0 ? "(" : ",",
                                     node->deps[d]->number);
        }
        used += (size_t)snprintf(text + used, bytes - used, "%s", node->dep_count > 0 ? ")" : "");
        for (unsigned b = 0; node->kind == CONDITIONAL && b < node->body_count; b++) {
            used += (size_t)snprintf(text + used, bytes - used, "{");
            used = text_put(node->bodies[b], text, used, bytes);
            used += (size_t)snprintf(text + used, bytes - used, "}");
        }
    }
    return used;
}
API void fake_graph_text(char *text, size_t bytes) {
    text[0] = '\0';
    if (fake_graph != NULL) {
        (void)text_put(fake_graph, text, 0, bytes);
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
