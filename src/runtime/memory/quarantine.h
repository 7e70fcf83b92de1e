/* Freed memory that is kept from being used again for a while, oldest out first: a guard's, and in
 * check mode that of the slabs. */
#ifndef GPU_RUNTIME_MEMORY_QUARANTINE_H
#define GPU_RUNTIME_MEMORY_QUARANTINE_H

#include "runtime/memory/stack.h"

/* A grant in a list; whoever keeps it embeds this as its first member. */
struct gpu_kept {
    struct gpu_kept *next, **link;
    struct gpu_grant grant;
};

struct gpu_kept_list {
    struct gpu_kept *head, **tail;
    uint64_t byte_count; /* of all its grants */
};

static inline void gpu_kept_init(struct gpu_kept_list *list) {
    list->head = NULL;
    list->tail = &list->head;
    list->byte_count = 0;
}

/* As the newest. */
static inline void gpu_kept_put(struct gpu_kept_list *list, struct gpu_kept *kept) {
    kept->next = NULL;
    kept->link = list->tail;
    *list->tail = kept;
    list->tail = &kept->next;
    list->byte_count += kept->grant.byte_count;
}

static inline void gpu_kept_take(struct gpu_kept_list *list, struct gpu_kept *kept) {
    *kept->link = kept->next;
    if (kept->next) {
        kept->next->link = kept->link;
    } else {
        list->tail = kept->link;
    }
    list->byte_count -= kept->grant.byte_count;
}

#endif
