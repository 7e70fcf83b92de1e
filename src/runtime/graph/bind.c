/* Other buffers and numbers in the places of a graph, by name. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/graph/state.h"

/* ---- texts ---- */

/* What fits is written; the rest is left out, and the text says so. */
struct list {
    char text[400];
    size_t length;
    bool is_cut;
};

static void list_add(struct list *list, const char *item) {
    size_t bytes = strlen(item);
    if (list->is_cut || list->length + bytes + 8 > sizeof list->text) {
        list->is_cut = true;
        return;
    }
    list->length += (size_t)snprintf(list->text + list->length, sizeof list->text - list->length,
                                     "%s%s", list->length > 0 ? ", " : "", item);
}

static const char *list_text(struct list *list) {
    if (list->length == 0) {
        return "nothing that has a name";
    }
    if (list->is_cut) {
        snprintf(list->text + list->length, sizeof list->text - list->length, ", ...");
    }
    return list->text;
}

/* ---- a node's places ---- */

static const char *kernel_name(const struct graph_node *node) {
    return node->kernel ? gpu_kernel_name(node->kernel) : node->label;
}

static bool is_named(const struct graph_node *node, const char *name, size_t bytes) {
    const char *kernel = kernel_name(node);
    return (strlen(node->label) == bytes && memcmp(node->label, name, bytes) == 0) ||
           (strlen(kernel) == bytes && memcmp(kernel, name, bytes) == 0);
}

static void param_name(const struct graph_node *node, uint32_t index, char *text, size_t room) {
    const struct gpu_param *param =
        node->kernel ? &gpu_kernel_signature(node->kernel)->params[index] : NULL;
    if (!param) {
        snprintf(text, room, "%s", index == 0 ? "dst" : "src");
    } else if (param->name[0]) {
        snprintf(text, room, "%s", param->name);
    } else {
        snprintf(text, room, "%u", (unsigned)param->number);
    }
}

/* The place of the n-th parameter, which is no structure; GPU_NODE_NONE: there is none. */
static uint32_t find_number(const struct graph_node *node, unsigned long number) {
    if (!node->kernel) {
        return number <= node->ref_count ? (uint32_t)number - 1 : GPU_NODE_NONE;
    }
    const struct gpu_signature *signature = gpu_kernel_signature(node->kernel);
    for (uint32_t i = 0; i < signature->param_count && i < node->ref_count; i++) {
        if (signature->params[i].number == number && !strchr(signature->params[i].name, '.')) {
            return i;
        }
    }
    return GPU_NODE_NONE;
}

/* The imaginary part of a library's factor, which comes and goes with it. */
static bool is_imaginary(const struct graph_node *node, uint32_t index) {
    const char *name = node->kernel && node->record->u.launch.is_library
                           ? gpu_kernel_signature(node->kernel)->params[index].name
                           : "";
    size_t bytes = strlen(name);
    return bytes > 3 && strcmp(name + bytes - 3, "_im") == 0;
}

/* What a library's call is given decides which memory it reaches to, which nobody would check
 * again: so of that only what its signature has names for, and no pointer that was NULL. */
static bool is_place(const struct graph_body *body, const struct graph_node *node, uint32_t index) {
    if (!node->kernel || !node->record->u.launch.is_library) {
        return true;
    }
    const struct gpu_param *param = &gpu_kernel_signature(node->kernel)->params[index];
    return param->name[0] && !is_imaginary(node, index) &&
           (param->kind == GPU_PARAM_SCALAR || body->refs[node->ref_first + index].ref.block);
}

/* Where that of the factor is, if numbers of the call are complex; else `index`. */
static uint32_t find_imaginary(const struct graph_body *body, const struct graph_node *node,
                               uint32_t index) {
    bool is_complex = false;
    for (uint32_t i = 0; i < node->ref_count; i++) {
        const struct gpu_ref *ref = &body->refs[node->ref_first + i].ref;
        is_complex =
            is_complex || (ref->block && (ref->type == GPU_TYPE_C64 || ref->type == GPU_TYPE_C128));
    }
    return is_complex && index + 1 < node->ref_count && is_imaginary(node, index + 1) ? index + 1
                                                                                      : index;
}

/* GPU_NODE_NONE: it has no such place. By name first: a parameter may be called 2, or so. */
static uint32_t find_param(const struct graph_body *body, const struct graph_node *node,
                           const char *name) {
    char own[64];
    for (uint32_t i = 0; i < node->ref_count; i++) {
        param_name(node, i, own, sizeof own);
        if (strcmp(own, name) == 0 && is_place(body, node, i)) {
            return i;
        }
    }
    char *end;
    unsigned long number = strtoul(name, &end, 10);
    uint32_t place = name[0] >= '1' && name[0] <= '9' && *end == '\0' ? find_number(node, number)
                     : node->kernel ? gpu_signature_find(gpu_kernel_signature(node->kernel), name)
                                    : GPU_NODE_NONE;
    return place != GPU_NODE_NONE && is_place(body, node, place) ? place : GPU_NODE_NONE;
}

/* ---- names in order ---- */

struct gpu_graph_names {
    uint32_t count;
    struct graph_name {
        const char *text;
        uint32_t at; /* of the nodes, or of the refs */
        bool is_ref;
    } list[]; /* by text, nodes first, then by place */
};

size_t gpu_graph_names_bytes(const struct gpu_graph *graph) {
    size_t count = 2 * (size_t)graph->body.node_count + graph->body.refs_taken;
    return sizeof(struct gpu_graph_names) + count * sizeof(struct graph_name);
}

static int compare_names(const void *a, const void *b) {
    const struct graph_name *of_a = a, *of_b = b;
    int order = of_a->text == of_b->text ? 0 : strcmp(of_a->text, of_b->text);
    if (order == 0) {
        order = (int)of_a->is_ref - (int)of_b->is_ref;
    }
    return order != 0 ? order : of_a->at < of_b->at ? -1 : of_a->at > of_b->at;
}

const struct gpu_graph_names *gpu_graph_names_make(const struct gpu_graph *graph, void *memory) {
    GPU_ENTER(graph->device);
    const struct graph_body *body = &graph->body;
    struct gpu_graph_names *names = memory;
    names->count = 0;
    for (uint32_t i = 0; i < body->node_count; i++) {
        const struct graph_node *node = &body->nodes[i];
        const char *kernel = kernel_name(node);
        names->list[names->count++] = (struct graph_name){.text = node->label, .at = i};
        if (strcmp(node->label, kernel) != 0) {
            names->list[names->count++] = (struct graph_name){.text = kernel, .at = i};
        }
    }
    for (uint32_t i = 0; i < body->refs_taken; i++) {
        if (body->refs[i].origin != 0) {
            names->list[names->count++] =
                (struct graph_name){.text = body->refs[i].name, .at = i, .is_ref = true};
        }
    }
    qsort(names->list, names->count, sizeof *names->list, compare_names);
    return names;
}

/* The first one that is not before (text, is_ref), or is behind all that are the same. */
static uint32_t bound(const struct gpu_graph_names *names, const char *text, size_t bytes,
                      bool is_ref, bool is_behind) {
    uint32_t low = 0, high = names->count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        const struct graph_name *name = &names->list[middle];
        int order = strncmp(name->text, text, bytes);
        if (order == 0 && name->text[bytes] != '\0') {
            order = 1;
        }
        if (order == 0) {
            order = (int)name->is_ref - (int)is_ref;
        }
        if (order < (is_behind ? 1 : 0)) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

/* ---- finding ---- */

struct search {
    const struct graph_body *body;
    const struct gpu_graph_names *names; /* NULL: there are none */
    struct gpu_graph_place place;
    uint32_t found;
    struct list candidates;
};

/* What may have a name: all, or those that have it. */
struct choice {
    const struct gpu_graph_names *names;
    uint32_t first, count;
};

static struct choice choose(const struct search *search, const char *name, size_t bytes,
                            bool is_ref) {
    if (!search->names) {
        return (struct choice){.count =
                                   is_ref ? search->body->refs_taken : search->body->node_count};
    }
    uint32_t first = bound(search->names, name, bytes, is_ref, false);
    uint32_t past = bound(search->names, name, bytes, is_ref, true);
    return (struct choice){.names = search->names, .first = first, .count = past - first};
}

/* The k-th of them, from 0 on. */
static uint32_t chosen(const struct choice *choice, uint32_t k) {
    return choice->names ? choice->names->list[choice->first + k].at : k;
}

/* Was it among those in front of the k-th? */
static bool has_origin(const struct search *search, const struct choice *choice, uint32_t k,
                       const char *name, uint64_t origin) {
    for (uint32_t i = 0; i < k; i++) {
        const struct graph_ref *ref = &search->body->refs[chosen(choice, i)];
        if (ref->origin == origin && gpu_label_is(ref->name, ref->is_name_cut, name)) {
            return true;
        }
    }
    return false;
}

static void find_label(struct search *search, const char *name) {
    const struct graph_body *body = search->body;
    uint64_t origin = 0;
    char kept[GPU_BLOCK_LABEL_BYTES];
    (void)gpu_label_copy(kept, sizeof kept, name);
    struct choice choice = choose(search, kept, strlen(kept), true);
    for (uint32_t k = 0; k < choice.count && !search->candidates.is_cut; k++) {
        const struct graph_ref *ref = &body->refs[chosen(&choice, k)];
        if (ref->origin == 0 || ref->origin == origin ||
            !gpu_label_is(ref->name, ref->is_name_cut, name) ||
            (origin != 0 && has_origin(search, &choice, k, name, ref->origin))) {
            continue;
        }
        origin = ref->origin;
        search->found++;
        search->place = (struct gpu_graph_place){
            .origin = origin, .is_many = true, .type = ref->type, .byte_count = ref->byte_count};
        char text[160];
        snprintf(text, sizeof text, "the buffer '%s' (allocation %llu, %llu bytes)", name,
                 (unsigned long long)origin, (unsigned long long)ref->byte_count);
        list_add(&search->candidates, text);
    }
}

/* "label.param", "label#3.param", where the parameter begins behind `dot`. */
static void find_param_at(struct search *search, const char *name, const char *dot) {
    size_t bytes = (size_t)(dot - name);
    uint64_t wanted = 0;
    const char *sharp = memrchr(name, '#', bytes); /* a label may have some of its own */
    char *end = NULL;
    uint64_t number = sharp ? strtoull(sharp + 1, &end, 10) : 0;
    if (sharp && end == dot && sharp[1] >= '1' && sharp[1] <= '9') {
        wanted = number;
        bytes = (size_t)(sharp - name);
    }
    struct choice choice = choose(search, name, bytes, false);
    uint32_t occurrence = 0, k = 0;
    if (choice.names && wanted > 0) { /* there is one */
        k = wanted <= choice.count ? (uint32_t)wanted - 1 : choice.count;
        occurrence = k;
        choice.count = k < choice.count ? k + 1 : k;
    }
    for (; k < choice.count; k++) {
        uint32_t i = chosen(&choice, k);
        const struct graph_node *node = &search->body->nodes[i];
        if (!is_named(node, name, bytes) || (++occurrence != wanted && wanted != 0)) {
            continue;
        }
        uint32_t index = find_param(search->body, node, dot + 1);
        bool is_known = search->found > 0 && !search->place.is_many && search->place.node == i &&
                        search->place.index == index;
        if (index == GPU_NODE_NONE || is_known) {
            continue;
        }
        const struct graph_ref *ref = &search->body->refs[node->ref_first + index];
        search->found++;
        search->place = (struct gpu_graph_place){
            .node = i,
            .index = index,
            .index_im = find_imaginary(search->body, node, index),
            .param = node->kernel ? &gpu_kernel_signature(node->kernel)->params[index] : NULL,
            .type = ref->ref.block ? ref->ref.type : GPU_TYPE_COUNT,
            .byte_count = ref->ref.byte_count};
        char text[200];
        snprintf(text, sizeof text, "'%.*s#%u.%s'", (int)bytes, name, occurrence, dot + 1);
        list_add(&search->candidates, text);
    }
}

/* Labels may have dots, and so have the parts of structures. */
static void find_param_of(struct search *search, const char *name) {
    const char *dot = strrchr(name, '.');
    for (; dot && dot != name; dot = memrchr(name, '.', (size_t)(dot - name))) {
        find_param_at(search, name, dot);
    }
}

static void list_node(struct list *list, const struct graph_body *body, uint32_t at) {
    const struct graph_node *node = &body->nodes[at];
    uint32_t occurrence = 1;
    for (uint32_t i = 0; i < at; i++) {
        occurrence += is_named(&body->nodes[i], node->label, strlen(node->label));
    }
    for (uint32_t i = 0; i < node->ref_count && !list->is_cut; i++) {
        char param[64], text[200];
        if (!is_place(body, node, i)) {
            continue;
        }
        param_name(node, i, param, sizeof param);
        snprintf(text, sizeof text, "'%s#%u.%s'", node->label, occurrence, param);
        list_add(list, text);
    }
}

static void list_all(struct list *list, const struct graph_body *body) {
    for (uint32_t i = 0; i < body->refs_taken && !list->is_cut; i++) {
        bool is_new = body->refs[i].name[0] != '\0';
        for (uint32_t k = 0; k < i && is_new; k++) {
            is_new = body->refs[k].origin != body->refs[i].origin;
        }
        if (is_new) {
            char text[160];
            snprintf(text, sizeof text, "'%s'", body->refs[i].name);
            list_add(list, text);
        }
    }
    for (uint32_t i = 0; i < body->node_count && !list->is_cut; i++) {
        list_node(list, body, i);
    }
}

/* What lies in the bodies of conditional nodes stays: they may be another graph's, too. From 0 on,
 * each buffer that they use; NULL: no more. */
struct control_uses {
    const struct graph_body *body;
    uint32_t node, use;
};

static const struct gpu_block *control_uses_next(struct control_uses *at) {
    for (; at->node < at->body->node_count; at->node++, at->use = 0) {
        const struct graph_node *node = &at->body->nodes[at->node];
        if (node->control && at->use < node->use_count) {
            return at->body->uses[node->use_first + at->use++].block;
        }
    }
    return NULL;
}

static bool is_label_in_control(const struct graph_body *body, const char *name) {
    struct control_uses uses = {.body = body};
    const struct gpu_block *used;
    do {
        used = control_uses_next(&uses);
    } while (used && !gpu_label_is(used->label, used->is_label_cut, name));
    return used != NULL;
}

static gpulua_status refuse_control(const char *name, struct gpu_error *error) {
    return gpu_error_set(error, GPULUA_UNSUPPORTED,
                         "bind of '%s': a conditional node uses the buffer, and those cannot be "
                         "bound; graph:update makes the graph anew",
                         name);
}

gpulua_status gpu_graph_find(const struct gpu_graph *graph, const struct gpu_graph_names *names,
                             const char *name, struct gpu_graph_place *place,
                             struct gpu_error *error) {
    GPU_ENTER(graph->device);
    struct search search = {.body = &graph->body, .names = names};
    if (name[0] != '\0') {
        find_label(&search, name);
        find_param_of(&search, name);
    }
    if (search.found == 1) {
        *place = search.place;
        return GPULUA_OK;
    }
    if (search.found > 1) {
        return gpu_error_set(
            error, GPULUA_INVALID_ARGUMENT, "'%s' is ambiguous in the graph%s%s: it may be %s",
            name, graph->label[0] ? " " : "", graph->label, list_text(&search.candidates));
    }
    if (name[0] != '\0' && is_label_in_control(&graph->body, name)) {
        return refuse_control(name, error);
    }
    struct list list = {.length = 0};
    list_all(&list, &graph->body);
    return gpu_error_set(error, GPULUA_INVALID_ARGUMENT, "the graph%s%s has no '%s'; it has %s",
                         graph->label[0] ? " " : "", graph->label, name, list_text(&list));
}

/* ---- binding ---- */

/* Those of buffers first, by what they stood for; then those of one place, by node and place. */
static int compare_binds(const void *a, const void *b) {
    const struct gpu_graph_place *of_a = &((const struct gpu_graph_bind *)a)->place;
    const struct gpu_graph_place *of_b = &((const struct gpu_graph_bind *)b)->place;
    if (of_a->is_many != of_b->is_many) {
        return of_a->is_many ? -1 : 1;
    }
    if (of_a->is_many) {
        return of_a->origin < of_b->origin ? -1 : of_a->origin > of_b->origin;
    }
    if (of_a->node != of_b->node) {
        return of_a->node < of_b->node ? -1 : 1;
    }
    return of_a->index < of_b->index ? -1 : of_a->index > of_b->index;
}

/* In that order. */
static gpulua_status check_twice(const struct gpu_graph_bind *binds, uint32_t count,
                                 struct gpu_error *error) {
    for (uint32_t i = 1; i < count; i++) {
        if (compare_binds(&binds[i - 1], &binds[i]) == 0) {
            bool is_first = strcmp(binds[i - 1].name, binds[i].name) < 0;
            return gpu_error_set(
                error, GPULUA_INVALID_ARGUMENT, "bind: '%s' and '%s' are the same place",
                binds[is_first ? i - 1 : i].name, binds[is_first ? i : i - 1].name);
        }
    }
    return GPULUA_OK;
}

struct changes {
    const struct gpu_graph_bind *binds; /* in that order */
    uint32_t count;
};

/* The first one that is not before that; the two kinds are asked for as they are compared. */
static uint32_t first_bind(const struct changes *changes, const struct gpu_graph_place *place) {
    const struct gpu_graph_bind wanted = {.place = *place};
    uint32_t low = 0, high = changes->count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (compare_binds(&changes->binds[middle], &wanted) < 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

static const struct gpu_graph_bind *bind_of(const struct changes *changes, uint64_t origin) {
    const struct gpu_graph_place wanted = {.is_many = true, .origin = origin};
    uint32_t i = first_bind(changes, &wanted);
    const struct gpu_graph_bind *bind = i < changes->count ? &changes->binds[i] : NULL;
    return bind && bind->place.is_many && bind->place.origin == origin ? bind : NULL;
}

static void change(void *user, uint32_t node, uint32_t index, struct graph_ref *ref,
                   union gpu_scalar *scalar) {
    const struct changes *changes = user;
    const struct gpu_graph_bind *of_all = bind_of(changes, ref->origin);
    if (of_all) {
        ref->ref.block = of_all->ref.block;
        ref->ref.byte_offset += of_all->ref.byte_offset - ref->byte_begin;
        ref->byte_begin = of_all->ref.byte_offset;
    }
    /* One place goes before all of a buffer. */
    const struct gpu_graph_place wanted = {.node = node};
    for (uint32_t i = first_bind(changes, &wanted); i < changes->count; i++) {
        const struct gpu_graph_bind *bind = &changes->binds[i];
        if (bind->place.node != node) {
            break;
        }
        if (bind->place.index_im == index && bind->place.index != index) {
            *scalar = bind->scalar_im;
        }
        if (bind->place.index != index) {
            continue;
        }
        if (bind->place.param && bind->place.param->kind == GPU_PARAM_SCALAR) {
            *scalar = bind->scalar;
            continue;
        }
        *ref = (struct graph_ref){.ref = bind->ref, .name = ""};
        if (bind->ref.block) { /* it stands for itself from now on */
            const char *name = gpu_device_intern(bind->ref.block->device, bind->ref.block->label);
            ref->name = name ? name : ""; /* without memory for it, it cannot be bound by it */
            ref->is_name_cut = bind->ref.block->is_label_cut;
            ref->origin = bind->ref.block->number;
            ref->byte_count = bind->ref.block->byte_count;
            ref->type = bind->ref.block->type;
        }
    }
}

static gpulua_status check_control(const struct graph_body *body, const struct changes *changes,
                                   struct gpu_error *error) {
    struct control_uses uses = {.body = body};
    const struct gpu_block *used;
    while ((used = control_uses_next(&uses))) {
        const struct gpu_graph_bind *bind = bind_of(changes, used->number);
        if (bind) {
            return refuse_control(bind->name, error);
        }
    }
    return GPULUA_OK;
}

static gpulua_status check(const struct gpu_graph *graph, const struct gpu_graph_bind *bind,
                           struct gpu_error *error) {
    const struct gpu_graph_place *place = &bind->place;
    if (!bind->ref.block) {
        return GPULUA_OK; /* a scalar */
    }
    if (bind->ref.block->device != graph->device) {
        char what[160];
        snprintf(what, sizeof what, "bind of '%.120s'", bind->name);
        return gpu_ref_check(&bind->ref, graph->device, what, error);
    }
    if (place->byte_count == 0) {
        return GPULUA_OK; /* a pointer that was NULL: the launch checks the rest */
    }
    if (place->type != GPU_TYPE_COUNT && bind->ref.type != place->type) {
        return gpu_error_set(error, GPULUA_INVALID_ARGUMENT,
                             "bind of '%s': a buffer of %s in the place of one of %s", bind->name,
                             gpu_type_name(bind->ref.type), gpu_type_name(place->type));
    }
    if (bind->ref.byte_count != place->byte_count) {
        return gpu_error_set(error, GPULUA_INVALID_ARGUMENT,
                             "bind of '%s': %llu bytes in the place of %llu", bind->name,
                             (unsigned long long)bind->ref.byte_count,
                             (unsigned long long)place->byte_count);
    }
    return GPULUA_OK;
}

/* Numbers change no use, and so no edge: a node gets them in its arguments, and nothing else. */
static gpulua_status bind_scalars(struct gpu_graph *graph, const struct gpu_graph_bind *binds,
                                  uint32_t count, struct gpu_graph_change *changed,
                                  struct gpu_error *error) {
    gpulua_status status = gpu_device_check(graph->device, error);
    bool *is_changed = calloc(count + 1, sizeof *is_changed);
    *changed = (struct gpu_graph_change){0};
    if (status == GPULUA_OK && !is_changed) {
        status = gpu_error_set(error, GPULUA_OUT_OF_MEMORY, "no host memory for a bind");
    }
    for (uint32_t i = 0; i < count && status == GPULUA_OK; i++) {
        const struct gpu_param *param = binds[i].place.param;
        uint8_t *args = (uint8_t *)(graph->body.nodes[binds[i].place.node].record + 1);
        is_changed[i] =
            memcmp(args + param->byte_offset, binds[i].scalar.bytes, param->byte_count) != 0;
        memcpy(args + param->byte_offset, binds[i].scalar.bytes, param->byte_count);
    }
    for (uint32_t i = 0; i < count && status == GPULUA_OK; i++) {
        bool is_sent = !is_changed[i]; /* by a later one for the same node */
        for (uint32_t k = i + 1;
             k < count && !is_sent && binds[k].place.node == binds[i].place.node; k++) {
            is_sent = is_changed[k];
        }
        if (!is_sent) {
            gpu_graph_patch(graph, binds[i].place.node, NULL, changed);
        }
    }
    free(is_changed);
    graph->version += changed->patched > 0;
    return status;
}

gpulua_status gpu_graph_bind(struct gpu_graph *graph, const struct gpu_submit *submit,
                             struct gpu_graph_bind *binds, uint32_t count,
                             struct gpu_graph_change *changed, struct gpu_error *error) {
    GPU_ENTER(graph->device);
    qsort(binds, count, sizeof *binds, compare_binds);
    struct changes changes = {.binds = binds, .count = count};
    gpulua_status status = check_twice(binds, count, error);
    if (status == GPULUA_OK) {
        status = check_control(&graph->body, &changes, error);
    }
    struct gpu_capture *capture = NULL;
    bool are_scalars = true;
    for (uint32_t i = 0; i < count && status == GPULUA_OK; i++) {
        const struct gpu_param *param = binds[i].place.param;
        are_scalars = are_scalars && param && param->kind == GPU_PARAM_SCALAR &&
                      !graph->body.nodes[binds[i].place.node].record->u.launch.is_library;
        status = check(graph, &binds[i], error);
    }
    if (status == GPULUA_OK && are_scalars) {
        return bind_scalars(graph, binds, count, changed, error);
    }
    if (status == GPULUA_OK) {
        status = gpu_capture_again(graph, submit, &capture, error);
    }
    if (status == GPULUA_OK) {
        status =
            gpu_graph_submit_again(&graph->body, capture, submit, false, change, &changes, error);
    }
    if (status == GPULUA_OK) {
        status = gpu_graph_update(graph, capture, true, changed, error);
    }
    gpu_capture_release(capture);
    return status;
}
