/* Two-level segregated fit over ranges that live elsewhere.
 *
 * Sizes are counted in units of GPU_RANGE_ALIGN_BYTES. A class is (first, second): below 32 units a
 * class for every size; above, each power of two is cut into 32 classes. A bit per class that has
 * a free range finds one in constant time.
 *
 * A node is one range, used or free. The nodes of a region are linked in the order of their
 * offsets. Splitting leaves the left part in its node and merging keeps the left node, so that the
 * first node of a region stays the same for as long as the region is here. Nodes come from chunks
 * that are kept until the allocator goes, so freeing a range never needs memory. */
#include "runtime/range.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define SECOND_BITS 5
#define SECOND_COUNT (1u << SECOND_BITS)
#define UNIT_BITS 9
#define FIRST_COUNT (64u - UNIT_BITS - SECOND_BITS + 1u)
#define CHUNK_NODES 255u

static_assert(GPU_RANGE_ALIGN_BYTES == 1u << UNIT_BITS, "units are counted by shifting");
static_assert(FIRST_COUNT <= 64, "one word holds the first level");

struct gpu_range_node {
    uint64_t byte_offset;
    uint64_t byte_count;
    struct gpu_range_node *left, *right; /* neighbours in the region, or NULL */
    /* Free nodes: the list of their class. Unused nodes: `next` links the spare ones. */
    struct gpu_range_node *next, *previous;
    uint32_t region;
    bool is_free;
};

struct chunk {
    struct chunk *next;
    struct gpu_range_node nodes[CHUNK_NODES];
};

struct gpu_range_allocator {
    uint64_t bytes_used, bytes_total;
    uint64_t first_mask;
    uint32_t second_mask[FIRST_COUNT];
    struct gpu_range_node *lists[FIRST_COUNT][SECOND_COUNT];
    struct gpu_range_node *spare;
    struct chunk *chunks;
    struct gpu_range_node **regions; /* the first node of each */
    uint32_t region_count, region_room;
};

struct class {
    uint32_t first, second;
};

static unsigned log2_floor(uint64_t value) {
    return 63u - (unsigned)__builtin_clzll(value);
}

/* The class that a free range of so many units is kept in. */
static struct class class_of(uint64_t units) {
    if (units < SECOND_COUNT) {
        return (struct class){0, (uint32_t)units};
    }
    unsigned power = log2_floor(units);
    return (struct class){power - SECOND_BITS + 1,
                          (uint32_t)(units >> (power - SECOND_BITS)) & (SECOND_COUNT - 1)};
}

/* The lowest class all of whose ranges have at least so many units. */
static struct class class_above(uint64_t units) {
    if (units >= SECOND_COUNT) {
        units += (UINT64_C(1) << (log2_floor(units) - SECOND_BITS)) - 1;
    }
    return class_of(units);
}

static void list_insert(struct gpu_range_allocator *allocator, struct gpu_range_node *node) {
    struct class class = class_of(node->byte_count >> UNIT_BITS);
    struct gpu_range_node **head = &allocator->lists[class.first][class.second];
    node->is_free = true;
    node->previous = NULL;
    node->next = *head;
    if (*head != NULL) {
        (*head)->previous = node;
    }
    *head = node;
    allocator->second_mask[class.first] |= 1u << class.second;
    allocator->first_mask |= UINT64_C(1) << class.first;
}

static void list_remove(struct gpu_range_allocator *allocator, struct gpu_range_node *node) {
    node->is_free = false;
    if (node->next != NULL) {
        node->next->previous = node->previous;
    }
    if (node->previous != NULL) {
        node->previous->next = node->next;
        return;
    }
    struct class class = class_of(node->byte_count >> UNIT_BITS);
    allocator->lists[class.first][class.second] = node->next;
    if (node->next == NULL) {
        allocator->second_mask[class.first] &= ~(1u << class.second);
        if (allocator->second_mask[class.first] == 0) {
            allocator->first_mask &= ~(UINT64_C(1) << class.first);
        }
    }
}

static struct gpu_range_node *list_find(const struct gpu_range_allocator *allocator,
                                        uint64_t units) {
    struct class own = class_of(units);
    struct gpu_range_node *head = allocator->lists[own.first][own.second];
    if (head != NULL && head->byte_count >> UNIT_BITS >= units) {
        return head; /* as tight as it gets, and common: a program frees and asks again */
    }
    struct class class = class_above(units);
    if (class.first < FIRST_COUNT) {
        uint32_t second = allocator->second_mask[class.first] & (~0u << class.second);
        if (second == 0 && class.first + 1 < FIRST_COUNT) {
            uint64_t first = allocator->first_mask & (~UINT64_C(0) << (class.first + 1));
            if (first != 0) {
                class.first = (uint32_t)__builtin_ctzll(first);
                second = allocator->second_mask[class.first];
            }
        }
        if (second != 0) {
            return allocator->lists[class.first][__builtin_ctz(second)];
        }
    }
    /* Before saying that nothing fits: the own class may hold a range that does. Out-of-memory is
     * exact, and what follows it (a new slab, a wait) is dearer than this search. */
    for (struct gpu_range_node *node = head; node != NULL; node = node->next) {
        if (node->byte_count >> UNIT_BITS >= units) {
            return node;
        }
    }
    return NULL;
}

static struct gpu_range_node *node_take(struct gpu_range_allocator *allocator) {
    if (allocator->spare == NULL) {
        struct chunk *chunk = malloc(sizeof *chunk);
        if (chunk == NULL) {
            return NULL;
        }
        chunk->next = allocator->chunks;
        allocator->chunks = chunk;
        for (uint32_t i = CHUNK_NODES; i-- > 0;) {
            chunk->nodes[i].next = allocator->spare;
            allocator->spare = &chunk->nodes[i];
        }
    }
    struct gpu_range_node *node = allocator->spare;
    allocator->spare = node->next;
    return node;
}

static void node_give(struct gpu_range_allocator *allocator, struct gpu_range_node *node) {
    node->is_free = true; /* a second free of the range is then seen as such */
    node->next = allocator->spare;
    allocator->spare = node;
}

/* `right` becomes part of `left`, its neighbour. Neither is in a list. */
static void merge(struct gpu_range_allocator *allocator, struct gpu_range_node *left,
                  struct gpu_range_node *right) {
    left->byte_count += right->byte_count;
    left->right = right->right;
    if (left->right != NULL) {
        left->right->left = left;
    }
    node_give(allocator, right);
}

struct gpu_range_allocator *gpu_range_allocator_create(void) {
    return calloc(1, sizeof(struct gpu_range_allocator));
}

void gpu_range_allocator_destroy(struct gpu_range_allocator *allocator) {
    if (allocator == NULL) {
        return;
    }
    struct chunk *chunk = allocator->chunks;
    while (chunk != NULL) {
        struct chunk *next = chunk->next;
        free(chunk);
        chunk = next;
    }
    free(allocator->regions);
    free(allocator);
}

bool gpu_range_region_add(struct gpu_range_allocator *allocator, uint32_t region,
                          uint64_t byte_count) {
    assert(byte_count >= GPU_RANGE_ALIGN_BYTES);
    if (allocator->region_count == allocator->region_room) {
        uint32_t room = allocator->region_room == 0 ? 16 : allocator->region_room * 2;
        struct gpu_range_node **regions = realloc(allocator->regions, room * sizeof *regions);
        if (regions == NULL) {
            return false;
        }
        allocator->regions = regions;
        allocator->region_room = room;
    }
    struct gpu_range_node *node = node_take(allocator);
    if (node == NULL) {
        return false;
    }
    memset(node, 0, sizeof *node);
    node->region = region;
    node->byte_count = byte_count & ~(uint64_t)(GPU_RANGE_ALIGN_BYTES - 1);
    list_insert(allocator, node);
    allocator->regions[allocator->region_count++] = node;
    allocator->bytes_total += node->byte_count;
    return true;
}

uint32_t gpu_range_region_take_free(struct gpu_range_allocator *allocator, uint64_t *byte_count) {
    uint32_t found = allocator->region_count;
    for (uint32_t i = 0; i < allocator->region_count; i++) {
        const struct gpu_range_node *node = allocator->regions[i];
        /* Free neighbours are always merged, so a first node without one is all of its region. */
        if (node->is_free && node->right == NULL &&
            (found == allocator->region_count ||
             node->byte_count < allocator->regions[found]->byte_count)) {
            found = i;
        }
    }
    if (found == allocator->region_count) {
        return 0;
    }
    struct gpu_range_node *node = allocator->regions[found];
    uint32_t region = node->region;
    *byte_count = node->byte_count;
    allocator->bytes_total -= node->byte_count;
    list_remove(allocator, node);
    node_give(allocator, node);
    allocator->regions[found] = allocator->regions[--allocator->region_count];
    return region;
}

uint32_t gpu_range_region_at(const struct gpu_range_allocator *allocator, uint32_t place,
                             uint64_t *byte_count) {
    *byte_count = 0;
    if (place >= allocator->region_count) {
        return 0;
    }
    for (const struct gpu_range_node *node = allocator->regions[place]; node; node = node->right) {
        *byte_count += node->byte_count;
    }
    return allocator->regions[place]->region;
}

bool gpu_range_alloc(struct gpu_range_allocator *allocator, uint64_t byte_count,
                     struct gpu_range *range) {
    assert(byte_count > 0);
    if (byte_count > allocator->bytes_total) {
        return false; /* also keeps the rounding below from overflowing */
    }
    uint64_t units = (byte_count + GPU_RANGE_ALIGN_BYTES - 1) >> UNIT_BITS;
    uint64_t rounded = units << UNIT_BITS;
    struct gpu_range_node *node = list_find(allocator, units);
    if (node == NULL) {
        return false;
    }
    struct gpu_range_node *rest = NULL;
    if (node->byte_count > rounded) {
        rest = node_take(allocator);
        if (rest == NULL) {
            return false;
        }
    }
    list_remove(allocator, node);
    if (rest != NULL) {
        rest->region = node->region;
        rest->byte_offset = node->byte_offset + rounded;
        rest->byte_count = node->byte_count - rounded;
        rest->left = node;
        rest->right = node->right;
        if (rest->right != NULL) {
            rest->right->left = rest;
        }
        node->right = rest;
        node->byte_count = rounded;
        list_insert(allocator, rest);
    }
    allocator->bytes_used += rounded;
    range->region = node->region;
    range->byte_offset = node->byte_offset;
    range->byte_count = rounded;
    range->node = node;
    return true;
}

void gpu_range_free(struct gpu_range_allocator *allocator, const struct gpu_range *range) {
    struct gpu_range_node *node = range->node;
    assert(!node->is_free && node->region == range->region &&
           node->byte_offset == range->byte_offset && node->byte_count == range->byte_count);
    allocator->bytes_used -= node->byte_count;
    if (node->right != NULL && node->right->is_free) {
        list_remove(allocator, node->right);
        merge(allocator, node, node->right);
    }
    if (node->left != NULL && node->left->is_free) {
        struct gpu_range_node *left = node->left;
        list_remove(allocator, left);
        merge(allocator, left, node);
        node = left;
    }
    list_insert(allocator, node);
}

uint64_t gpu_range_bytes_used(const struct gpu_range_allocator *allocator) {
    return allocator->bytes_used;
}

uint64_t gpu_range_bytes_total(const struct gpu_range_allocator *allocator) {
    return allocator->bytes_total;
}
