/* executor/completion.c against a model: a backend whose streams are queues that the test works off
 * item by item, in any order that streams and events allow. Random work says of itself that nobody
 * holds it, or that it will do for what was before it, and waits for other work. Then whatever is
 * done comes behind all that it waits for, nothing counts as over before it is, whoever waits hears
 * of it as soon as can be, and what runs is among those that a loss would name. The twin forgets
 * the events that are owed. Where there is no memory for events and waits now and then, all of that
 * holds but for how soon. */
#include <pthread.h>

#include "executor/executor.h"
#include "runtime/error.h"
#include "wire/client.h"

static struct tap tap;

/* ---- the backend ---- */

enum kind { WORK, WAIT, EVENT, WORD };
struct item {
    enum kind kind;
    uint64_t number; /* of the work on its stream; of the event's record; what the word becomes */
    struct backend_event *event;
    _Atomic uint64_t *word;
};
struct backend_device {
    const struct backend_ops *ops;
};
struct backend_event {
    uint64_t recorded, fired;
    struct backend_event *next;
};
#define ITEMS_MAX 8192u
struct backend_stream {
    uint32_t slot, head, count;
    bool works;                   /* on the item in front of the head */
    struct item items[ITEMS_MAX]; /* a ring */
};

static struct backend_device queue_device;
static struct backend_stream *streams[CLIENT_STREAMS + 1];
static struct backend_event *events; /* all: waits for those that are gone may be pending */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int words_left; /* so many can be written yet; negative: any number */
static bool lacks_memory, works_when_asked;
static uint64_t lack_state;
static uint32_t lack; /* so many calls more fail */

static bool fails(struct backend_error *error) {
    lack_state = lack_state * UINT64_C(6364136223846793005) + 1442695040888963407u;
    uint32_t random = (uint32_t)(lack_state >> 33);
    lack = lack > 0 ? lack - 1 : random % 32 == 0 ? random / 32 % 40 : 0;
    return lacks_memory && lack > 0 &&
           gpu_backend_fail(error, GPULUA_OUT_OF_MEMORY, 0, "no memory") != GPULUA_OK;
}

static void put(struct backend_stream *stream, struct item item) {
    pthread_mutex_lock(&lock);
    if (stream->count < ITEMS_MAX) {
        stream->items[(stream->head + stream->count++) % ITEMS_MAX] = item;
    } else {
        printf("# a queue is full\n");
        exit(1);
    }
    pthread_mutex_unlock(&lock);
}

static gpulua_status device_open(const struct backend_open_info *info,
                                 struct backend_device **device, struct backend_error *error) {
    (void)info;
    (void)error;
    *device = &queue_device;
    return GPULUA_OK;
}
static void device_close(struct backend_device *device) {
    (void)device;
}
static void device_facts(struct backend_device *device, struct wire_device_facts *facts) {
    (void)device;
    facts->has_words = 1;
}
static gpulua_status device_status(struct backend_device *device, struct backend_error *error) {
    (void)device;
    (void)error;
    return GPULUA_OK;
}
static gpulua_status slab_create(struct backend_device *device, uint64_t bytes,
                                 struct backend_slab **slab, uint64_t *address,
                                 struct backend_error *error) {
    (void)bytes;
    (void)error;
    *slab = (struct backend_slab *)(void *)device;
    *address = 512; /* nobody looks */
    return GPULUA_OK;
}
static void slab_destroy(struct backend_device *device, struct backend_slab *slab) {
    (void)device;
    (void)slab;
}
static gpulua_status stream_create(struct backend_device *device, uint32_t slot, int priority,
                                   struct backend_stream **stream, struct backend_error *error) {
    (void)device;
    (void)priority;
    (void)error;
    pthread_mutex_lock(&lock);
    *stream = streams[slot] = calloc(1, sizeof **stream);
    streams[slot]->slot = slot;
    pthread_mutex_unlock(&lock);
    return GPULUA_OK;
}
static void step_all(struct backend_stream *stream);
static void stream_destroy(struct backend_device *device, struct backend_stream *stream) {
    (void)device;
    step_all(stream); /* marks behind the last work */
    pthread_mutex_lock(&lock);
    streams[stream->slot] = NULL;
    pthread_mutex_unlock(&lock);
    free(stream);
}
static gpulua_status stream_word(struct backend_stream *stream, _Atomic uint64_t *word,
                                 uint64_t value, struct backend_error *error) {
    if (words_left == 0) {
        return gpu_backend_fail(error, GPULUA_UNSUPPORTED, 0, "no words");
    }
    words_left--;
    put(stream, (struct item){.kind = WORD, .number = value, .word = word});
    return GPULUA_OK;
}
static gpulua_status event_create(struct backend_device *device, struct backend_event **event,
                                  struct backend_error *error) {
    (void)device;
    if (fails(error)) {
        return GPULUA_OUT_OF_MEMORY;
    }
    *event = calloc(1, sizeof **event);
    (*event)->next = events;
    events = *event;
    return GPULUA_OK;
}
static void event_destroy(struct backend_device *device, struct backend_event *event) {
    (void)device;
    (void)event;
}
static gpulua_status event_record(struct backend_event *event, struct backend_stream *stream,
                                  struct backend_error *error) {
    if (fails(error)) {
        return GPULUA_OUT_OF_MEMORY;
    }
    pthread_mutex_lock(&lock);
    uint64_t number = ++event->recorded;
    pthread_mutex_unlock(&lock);
    put(stream, (struct item){.kind = EVENT, .number = number, .event = event});
    return GPULUA_OK;
}
static gpulua_status stream_wait(struct backend_stream *stream, struct backend_event *event,
                                 struct backend_error *error) {
    if (fails(error)) {
        return GPULUA_OUT_OF_MEMORY;
    }
    put(stream, (struct item){.kind = WAIT, .number = event->recorded, .event = event});
    return GPULUA_OK;
}
static void step_some(void);
static enum backend_query event_query(struct backend_event *event, struct backend_error *error) {
    (void)error;
    step_some();
    pthread_mutex_lock(&lock);
    bool is_done = event->fired >= event->recorded;
    pthread_mutex_unlock(&lock);
    return is_done ? BACKEND_DONE : BACKEND_PENDING;
}
static enum backend_query stream_query(struct backend_stream *stream, struct backend_error *error) {
    (void)error;
    step_some();
    pthread_mutex_lock(&lock);
    bool is_done = stream->count == 0 && !stream->works;
    pthread_mutex_unlock(&lock);
    return is_done ? BACKEND_DONE : BACKEND_PENDING;
}
static gpulua_status fill(struct backend_stream *stream, uint64_t seq, uint64_t dst,
                          const void *element, uint32_t elem_bytes, uint64_t elem_count,
                          struct backend_error *error) {
    (void)dst;
    (void)element;
    (void)elem_bytes;
    (void)elem_count;
    (void)error;
    put(stream, (struct item){.kind = WORK, .number = seq});
    return GPULUA_OK;
}
static const struct backend_ops queue_ops = {.version = GPU_BACKEND_VERSION,
                                             .name = "queue",
                                             .device_open = device_open,
                                             .device_close = device_close,
                                             .device_facts = device_facts,
                                             .device_status = device_status,
                                             .slab_create = slab_create,
                                             .slab_destroy = slab_destroy,
                                             .stream_create = stream_create,
                                             .stream_destroy = stream_destroy,
                                             .stream_word = stream_word,
                                             .stream_wait = stream_wait,
                                             .event_create = event_create,
                                             .event_destroy = event_destroy,
                                             .event_record = event_record,
                                             .event_query = event_query,
                                             .stream_query = stream_query,
                                             .fill = fill};

/* Instead of backend/registry.c's. */
const struct backend_ops *const gpu_backend_table[] = {&queue_ops, NULL};
const struct backend_ops *gpu_backend_find(const char *name) {
    return strcmp(name, queue_ops.name) == 0 ? &queue_ops : NULL;
}

/* ---- the model ---- */

enum { UNHELD = WIRE_FLAG_UNHELD, COVERS = WIRE_FLAG_COVERS, NEEDS_MAX = 3, SEQS_MAX = 1 << 16 };
#define PENDING_MAX 150u /* fewer than there are events, so that each may still be there */
struct noted {
    uint8_t flags, need_count;
    struct {
        uint32_t slot;
        uint64_t seq, last; /* that is done, of what is waited for and before it */
    } needs[NEEDS_MAX];
    uint64_t last_good; /* it, or what is before it: what can be done of that */
};
static struct noted noted[CLIENT_STREAMS][SEQS_MAX];
static struct client *client;
static uint64_t done[CLIENT_STREAMS]; /* the newest work that is */
static uint64_t random_state;
static bool has_words;
/* What must not be: work before what it waits for; counted as over and is not; a wait that lasts
 * longer than the work; work that runs and no loss would name. */
static uint64_t early, over_early, late, unnamed;

static uint32_t pick(uint32_t limit) {
    random_state = random_state * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return (uint32_t)(random_state >> 33) % limit;
}

/* As is_suspected in runtime/completion.c has it, from the first that nobody knows the end of. */
static bool would_be_named(uint32_t slot, uint64_t seq) {
    uint32_t count = 0;
    uint64_t first =
        client_is_over(client, slot, seq) ? seq : gpu_wire_page_done(client->link->page, slot) + 1;
    for (uint64_t i = first; i < seq; i++) {
        count += noted[slot][i].flags != (UNHELD | COVERS);
    }
    return count < GPU_SUSPECTS_PER_STREAM_MAX && seq - first < GPU_REPLAYS_SUSPECTED_MAX;
}

/* Of what that work is to be behind, itself or by way of what has failed. */
static uint64_t missing(uint32_t slot, uint64_t seq) {
    const struct noted *work = &noted[slot][seq];
    uint64_t count = 0;
    for (uint32_t i = 0; i < work->need_count; i++) {
        uint32_t other = work->needs[i].slot;
        count += done[other] < work->needs[i].last;
        for (uint64_t k = work->needs[i].last + 1; k <= work->needs[i].seq; k++) {
            count += missing(other, k);
        }
    }
    return count;
}

static void do_work(uint32_t slot, uint64_t seq) {
    for (uint64_t i = done[slot] + 1; i <= seq; i++) { /* the others have failed */
        early += missing(slot, i);
    }
    unnamed += has_words && !would_be_named(slot, seq);
    over_early += client_is_over(client, slot, seq);
    done[slot] = seq;
}

/* The next item of a stream. False: there is none, or it waits for another stream. */
static bool step(struct backend_stream *stream) {
    pthread_mutex_lock(&lock);
    struct item item = {.kind = WORK};
    bool moves = stream != NULL && stream->count > 0;
    if (moves) {
        item = stream->items[stream->head];
        moves = item.kind != WAIT || item.event->fired >= item.number;
    }
    if (moves) {
        stream->head = (stream->head + 1) % ITEMS_MAX;
        stream->count--;
        stream->works = item.kind == WORK;
        if (item.kind == EVENT && item.event->fired < item.number) {
            item.event->fired = item.number;
        }
    }
    pthread_mutex_unlock(&lock);
    if (moves && item.kind == WORK) {
        do_work(stream->slot, item.number);
        pthread_mutex_lock(&lock);
        stream->works = false;
        pthread_mutex_unlock(&lock);
    } else if (moves && item.kind == WORD) {
        atomic_store(item.word, item.number);
    }
    return moves;
}

static void step_all(struct backend_stream *stream) {
    while (step(stream)) {}
}

/* Where nobody else works things off while the executor waits. */
static void step_some(void) {
    for (uint32_t slot = 0; works_when_asked && slot < CLIENT_STREAMS; slot++) {
        (void)step(streams[slot]);
    }
}

/* Until nothing moves: is all done? */
static bool step_everything(void) {
    bool moves, is_empty;
    do {
        moves = false;
        is_empty = true;
        for (uint32_t slot = 0; slot < CLIENT_STREAMS; slot++) {
            moves |= step(streams[slot]);
            pthread_mutex_lock(&lock);
            is_empty &= streams[slot] == NULL || streams[slot]->count == 0;
            pthread_mutex_unlock(&lock);
        }
    } while (moves);
    return is_empty;
}

/* One stream up to the work behind that, and others as far as it waits for them. */
static void step_until(uint32_t slot, uint64_t seq) {
    struct backend_stream *stream = streams[slot];
    while (stream->count > 0) {
        const struct item *next = &stream->items[stream->head];
        if (next->kind == WORK && next->number > seq) {
            return;
        }
        for (uint32_t other = 1; !step(stream) && other < CLIENT_STREAMS; other++) {
            (void)step(streams[(slot + other) % CLIENT_STREAMS]);
        }
    }
}

static void submit(uint32_t slot, unsigned flags) {
    bool is_good = pick(40) != 0;
    uint64_t seq = client->seq[slot] + 1;
    struct noted *work = &noted[slot][seq];
    struct client_record out = client_record(WIRE_OP_FILL, 0);
    *work = (struct noted){.flags = (uint8_t)flags,
                           .last_good = is_good ? seq : noted[slot][seq - 1].last_good};
    out.record.flags = (uint8_t)flags;
    out.record.u.fill.dst = gpu_wire_address(is_good ? 1 : 99, 0); /* there is no slab 99 */
    out.record.u.fill.elem_count = out.record.u.fill.elem_bytes = 4;
    for (uint32_t count = pick(3) == 0 ? pick(NEEDS_MAX + 1) : 0; work->need_count < count;) {
        uint32_t other = (slot + 1 + pick(CLIENT_STREAMS - 1)) % CLIENT_STREAMS;
        uint64_t newest = client->seq[other], back = pick(pick(2) == 0 ? 3 : PENDING_MAX);
        uint64_t wanted = newest > back ? newest - back : newest;
        client_wait_on(&out, other, wanted, WIRE_WAIT_ORDER);
        work->needs[work->need_count].slot = other;
        work->needs[work->need_count].seq = wanted;
        work->needs[work->need_count++].last = noted[other][wanted].last_good;
    }
    client_submit(client, &out, slot);
}

static void submit_some(void) {
    static const uint8_t kinds[] = {0, 0, UNHELD, COVERS, UNHELD | COVERS, UNHELD | COVERS};
    uint32_t slot = pick(CLIENT_STREAMS);
    uint32_t count = pick(12) == 0 ? pick(100) : 1;
    unsigned flags = count > 1 ? UNHELD | COVERS : kinds[pick(sizeof kinds)];
    while (count-- > 0 && client->seq[slot] < done[slot] + PENDING_MAX) {
        submit(slot, flags);
    }
}

/* The last one that is over with it, as far as nobody is to wait for more. */
static uint64_t covering(uint32_t slot, uint64_t seq) {
    while (seq < client->seq[slot] && noted[slot][seq].last_good == seq &&
           (noted[slot][seq].flags & UNHELD) != 0 && (noted[slot][seq + 1].flags & COVERS) != 0) {
        seq++;
    }
    return seq;
}

static void await_some(void) {
    uint32_t slot = pick(CLIENT_STREAMS);
    uint64_t known = gpu_wire_page_done(client->link->page, slot), newest = client->seq[slot];
    if (known < newest) {
        uint64_t wanted = known + 1 + pick((uint32_t)(newest - known));
        gpu_wire_link_want(client->link, slot, wanted);
        client->link->ops->poll(client->link);
        if (pick(2) == 0) {
            return; /* who asked does not wait for it */
        }
        step_until(slot, covering(slot, wanted));
        client->link->ops->poll(client->link);
        late += !lacks_memory && !client_is_over(client, slot, wanted);
        gpu_wire_link_want(client->link, slot, 0);
    }
}

static void look_at_page(void) {
    for (uint32_t slot = 0; slot < CLIENT_STREAMS; slot++) {
        uint64_t known = gpu_wire_page_done(client->link->page, slot);
        over_early += done[slot] < noted[slot][known].last_good;
    }
}

/* Its slot is used again. */
static void make_anew(uint32_t slot) {
    if (gpu_wire_page_done(client->link->page, slot) == client->seq[slot]) {
        struct client_record out = client_record(WIRE_OP_STREAM_DESTROY, 0);
        out.record.stream = slot;
        client_publish(client, &out);
        out = client_record(WIRE_OP_STREAM_CREATE, 0);
        out.record.stream = slot;
        client_publish(client, &out);
    }
}

static bool all_is_over(void) {
    bool is_over = true;
    for (uint32_t slot = 0; slot < CLIENT_STREAMS; slot++) {
        gpu_wire_link_want(client->link, slot, client->seq[slot]);
    }
    client->link->ops->poll(client->link);
    bool is_done = step_everything();
    client->link->ops->poll(client->link);
    gpu_wire_link_drain(client->link);
    for (uint32_t slot = 0; slot < CLIENT_STREAMS; slot++) {
        is_over &= client_is_over(client, slot, client->seq[slot]);
    }
    return is_done && is_over;
}

enum protection { AS_IT_IS, TWIN };

/* Of one seed. False: it does not end. */
static bool run(enum wire_transport transport, enum protection protection, int words,
                uint64_t seed) {
    struct wire_error error = {.status = GPULUA_OK};
    client_options = protection == TWIN ? "backend queue\nunsettled\n" : "backend queue\n";
    random_state = lack_state = seed;
    works_when_asked = lacks_memory && transport == WIRE_TRANSPORT_INLINE;
    words_left = words;
    has_words = words < 0;
    memset(done, 0, sizeof done);
    client = client_create(transport, &error);
    if (client == NULL || client_open_device(client) != GPULUA_OK) {
        return false;
    }
    for (int i = 0; i < 3000; i++) {
        uint32_t kind = pick(10);
        if (kind < 5) {
            submit_some();
        } else if (kind < 8) {
            for (uint32_t count = pick(40); count > 0; count--) {
                (void)step(streams[pick(CLIENT_STREAMS)]);
            }
        } else if (kind == 8 && transport == WIRE_TRANSPORT_INLINE && protection == AS_IT_IS) {
            await_some();
        } else if (pick(10) == 0 && transport == WIRE_TRANSPORT_INLINE) {
            make_anew(pick(CLIENT_STREAMS));
        } else {
            client->link->ops->poll(client->link);
            gpu_wire_link_drain(client->link);
        }
        look_at_page();
    }
    bool ends = all_is_over();
    for (int i = 0; i < 20000 && !ends && protection == AS_IT_IS; i++) { /* on another thread */
        gpu_wire_nap_ns(1000000);
        ends = all_is_over();
    }
    (void)step_everything();
    if (ends) {
        ends = client_close(client);
    } else { /* lost, or the close would wait for what nobody knows the end of */
        struct client_record out = client_record(WIRE_OPCODE_COUNT, 0);
        client_publish(client, &out);
        client_destroy(client);
    }
    while (events != NULL) {
        struct backend_event *event = events;
        events = event->next;
        free(event);
    }
    return ends;
}

/* Of the seeds, a quarter where sanitizers watch, who slow all of it down and look for what other
 * seeds do as well. */
static void test(enum wire_transport transport, int words, int seeds, const char *how) {
    char line[160];
    seeds = TAP_IS_SANITIZED ? (seeds + 3) / 4 : seeds;
    bool ends = true;
    early = over_early = late = unnamed = 0;
    for (int seed = 1; seed <= seeds && ends; seed++) {
        ends = run(transport, AS_IT_IS, words, (uint64_t)seed);
    }
    printf("# %s: %llu early, %llu over early, %llu late, %llu unnamed\n", how,
           (unsigned long long)early, (unsigned long long)over_early, (unsigned long long)late,
           (unsigned long long)unnamed);
    snprintf(line, sizeof line, "%s: work comes behind all that it waits for", how);
    tap_check(&tap, early == 0, line);
    snprintf(line, sizeof line, "%s: nothing is over before it is", how);
    tap_check(&tap, over_early == 0, line);
    snprintf(line, sizeof line, "%s: who waits hears of it, and waits for no more", how);
    tap_check(&tap, ends && late == 0, line);
    snprintf(line, sizeof line, "%s: a loss would name what runs", how);
    tap_check(&tap, unnamed == 0, line);
}

int main(void) {
    test(WIRE_TRANSPORT_INLINE, -1, 200, "inline");
    test(WIRE_TRANSPORT_THREAD, -1, 20, "thread");
    test(WIRE_TRANSPORT_INLINE, 50, 50, "inline, after some words none can be written");
    test(WIRE_TRANSPORT_THREAD, 50, 10, "thread, after some words none can be written");
    lacks_memory = true;
    test(WIRE_TRANSPORT_INLINE, -1, 40, "inline, at times without memory");
    test(WIRE_TRANSPORT_THREAD, -1, 5, "thread, at times without memory");
    test(WIRE_TRANSPORT_INLINE, 50, 20, "inline, at times without memory, later without words");
    lacks_memory = false;
    early = 0;
    for (uint64_t seed = 1; seed <= 20 && early == 0; seed++) {
        (void)run(WIRE_TRANSPORT_INLINE, TWIN, -1, seed);
    }
    tap_check(&tap, early > 0, "twin: without the events that are owed, work comes too early");
    return tap_finish(&tap);
}
