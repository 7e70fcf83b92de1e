/* A CUPTI without a GPU, for tracer_test.c: the test says which calls there were and when their
 * work was done, and in which order a flush brings that. Records lie where CUPTI 13.0 has them. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define API __attribute__((visibility("default")))
enum { OK = 0, INVALID = 1, MAX_LIMIT_REACHED = 12 };
enum { KERNEL = 10, MEMCPY = 1, MEMSET = 2 };

/* What the test sets and reads. */
API char fake_fail_name[64]; /* the call that fails ... */
API int fake_fail_code;      /* ... with this code */
API unsigned fake_version = 130001;
API int fake_enabled; /* kinds */
API int fake_subscribed;
API uint64_t (*fake_clock)(void);
static void (*request)(uint8_t **buffer, size_t *bytes, size_t *records);
static void (*completed)(void *context, uint32_t stream, uint8_t *buffer, size_t bytes,
                         size_t valid);

static struct record { uint8_t bytes[256]; } activities[4096];
static int activity_count;
static uint32_t call_number;

static int answer(const char *name) {
    if (fake_fail_code != 0 && strcmp(name, fake_fail_name) == 0) {
        int code = fake_fail_code;
        fake_fail_code = 0;
        return code;
    }
    return OK;
}

API int cuptiGetVersion(uint32_t *version) {
    *version = fake_version;
    return answer(__func__);
}
API int cuptiGetResultString(int result, const char **text) {
    *text = result == MAX_LIMIT_REACHED ? "FAKE_LIMIT" : "FAKE_ERROR";
    return OK;
}
API int cuptiActivityRegisterCallbacks(void (*asks)(uint8_t **, size_t *, size_t *),
                                       void (*ends)(void *, uint32_t, uint8_t *, size_t, size_t)) {
    request = asks;
    completed = ends;
    return answer(__func__);
}
API int cuptiActivityRegisterTimestampCallback(uint64_t (*clock)(void)) {
    fake_clock = clock;
    return answer(__func__);
}
API int cuptiActivityEnable(int kind) {
    (void)kind;
    int result = answer(__func__);
    fake_enabled += result == OK;
    return result;
}
API int cuptiActivityDisable(int kind) {
    (void)kind;
    fake_enabled -= fake_enabled > 0;
    return OK;
}
static void (*call_back)(void *user, int domain, uint32_t id, const void *data);
API int cuptiSubscribe(void **subscriber, void (*function)(void *, int, uint32_t, const void *),
                       void *user) {
    (void)user;
    call_back = function;
    *subscriber = &call_back;
    int result = answer(__func__);
    fake_subscribed += result == OK;
    return result;
}
API int cuptiUnsubscribe(void *subscriber) {
    fake_subscribed--;
    return subscriber == &call_back ? OK : INVALID;
}
static int is_watched[4];
API int cuptiEnableCallback(uint32_t enable, void *subscriber, int domain, uint32_t id) {
    (void)subscriber;
    if (domain == 1 && id < 4) {
        is_watched[id] = (int)enable;
    }
    return answer(__func__);
}
API int cuptiEnableDomain(uint32_t enable, void *subscriber, int domain) {
    (void)subscriber;
    return enable == 1 && domain == 2 ? answer(__func__) : INVALID;
}
API int cuptiGetCallbackName(int domain, uint32_t id, const char **name) {
    static const char *const names[] = {"", "cuInit", "cuLaunchKernel", "cuGraphLaunch"};
    *name = domain == 1 && id < 4 ? names[id] : "";
    return domain == 1 && id < 4 ? OK : INVALID;
}

static void put(struct record *record, size_t at, const void *value, size_t bytes) {
    memcpy(record->bytes + at, value, bytes);
}

/* A call of the driver (1 to 3 of the names above), whose number is returned. */
API uint32_t fake_call(uint32_t id) {
    struct record data = {0};
    uint32_t number = ++call_number;
    put(&data, 64, &number, sizeof number);
    for (int site = 0; site < 2 && is_watched[id]; site++) {
        put(&data, 0, &site, sizeof site);
        call_back(NULL, 1, id, data.bytes);
    }
    return number;
}
/* Each node counts as so many of the driver's, of which its handle is the last. */
API uint32_t fake_node_step = 1;
static const void *seen[16];
static uint64_t ids[16], next;
/* Nodes of another graph are counted from 0. */
API void fake_next_graph(void) {
    memset(seen, 0, sizeof seen);
    next = 0;
}
API int cuptiGetGraphNodeId(const void *node, uint64_t *id) {
    size_t at = 0;
    while (at < 15 && seen[at] != NULL && seen[at] != node) {
        at++;
    }
    if (seen[at] == NULL) {
        seen[at] = node;
        ids[at] = (next += fake_node_step) - 1;
    }
    *id = UINT64_C(5) << 32 | ids[at];
    return answer(__func__);
}
/* Work that it has led to; of a graph with its number and that of the driver's node, from 0. */
API uint32_t fake_node, fake_graph = 6;
API void fake_work(uint32_t kind, uint32_t number, uint64_t begin, uint64_t end) {
    struct record *record = &activities[activity_count++];
    uint64_t node = (uint64_t)fake_graph << 32 | fake_node;
    put(record, kind == KERNEL ? 144 : 64, &node, sizeof node);
    put(record, 0, &kind, sizeof kind);
    put(record, 16, &begin, sizeof begin);
    put(record, 24, &end, sizeof end);
    put(record, kind == KERNEL ? 92 : 44, &number, sizeof number);
}

static void bring(const struct record *records, int count) {
    for (int at = 0; at < count;) {
        uint8_t *buffer = NULL;
        size_t bytes = 0, most = 1;
        request(&buffer, &bytes, &most);
        if (buffer == NULL) {
            return;
        }
        size_t some = bytes / sizeof *records;
        some = some < (size_t)(count - at) ? some : (size_t)(count - at);
        memcpy(buffer, records + at, some * sizeof *records);
        completed(NULL, 0, buffer, bytes, some * sizeof *records);
        at += (int)some;
    }
}

API int cuptiActivityFlushAll(uint32_t flag) {
    (void)flag;
    bring(activities, activity_count);
    activity_count = 0;
    return answer(__func__);
}
API int cuptiActivityGetNextRecord(uint8_t *buffer, size_t valid, void **record) {
    uint8_t *next = *record == NULL ? buffer : (uint8_t *)*record + sizeof(struct record);
    if (next + sizeof(struct record) > buffer + valid) {
        return MAX_LIMIT_REACHED;
    }
    *record = next;
    return OK;
}
