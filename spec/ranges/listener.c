/* What a profiler would see: a library that NVTX loads (NVTX_INJECTION64_PATH) and that writes each
 * call into the file GPULUA_RANGES_SEEN, a line each, its columns apart by tabs:
 *   process, thread, ns, what, domain, category, id, payload, message
 * Its bytes are written at once and in order, so that they are there whatever ends the process. */
#include <fcntl.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <nvtx3/nvToolsExt.h>

#define EXPORT __attribute__((visibility("default")))
#define DOMAINS_MAX 8
#define CATEGORIES_MAX 64

static int file = -1;
static _Atomic uint64_t next_range = 1;
static char domains[DOMAINS_MAX][64];
static _Atomic uint32_t domain_count;
static char categories[CATEGORIES_MAX][64];

static void say(const char *what, nvtxDomainHandle_t domain, uint32_t category, uint64_t id,
                uint64_t payload, const char *message) {
    char line[1024];
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    int length = snprintf(
        line, sizeof line, "%d\t%ld\t%lld\t%s\t%s\t%s\t%" PRIu64 "\t%" PRIu64 "\t%s\n",
        (int)getpid(), syscall(SYS_gettid), (long long)now.tv_sec * 1000000000ll + now.tv_nsec,
        what, domain ? (const char *)domain : "",
        category < CATEGORIES_MAX ? categories[category] : "?", id, payload, message);
    if (length > 0 && (size_t)length < sizeof line && write(file, line, (size_t)length) != length) {
        abort();
    }
}

static const char *message_of(const nvtxEventAttributes_t *event) {
    return event->messageType == NVTX_MESSAGE_TYPE_ASCII ? event->message.ascii : "?";
}

static uint64_t payload_of(const nvtxEventAttributes_t *event) {
    return event->payloadType == NVTX_PAYLOAD_TYPE_UNSIGNED_INT64 ? event->payload.ullValue : 0;
}

static nvtxDomainHandle_t NVTX_API domain_create(const char *name) {
    uint32_t at = domain_count++;
    if (at >= DOMAINS_MAX) {
        abort();
    }
    snprintf(domains[at], sizeof domains[at], "%s", name);
    say("domain", (nvtxDomainHandle_t)(void *)domains[at], 0, 0, 0, "");
    return (nvtxDomainHandle_t)(void *)domains[at];
}

static void NVTX_API name_category(nvtxDomainHandle_t domain, uint32_t category, const char *name) {
    if (category < CATEGORIES_MAX) {
        snprintf(categories[category], sizeof categories[category], "%s", name);
    }
    say("category", domain, category, category, 0, name);
}

static nvtxRangeId_t NVTX_API range_start(nvtxDomainHandle_t domain,
                                          const nvtxEventAttributes_t *event) {
    uint64_t id = next_range++;
    say("start", domain, event->category, id, payload_of(event), message_of(event));
    return id;
}

static void NVTX_API range_end(nvtxDomainHandle_t domain, nvtxRangeId_t id) {
    say("end", domain, 0, id, 0, "");
}

static int NVTX_API range_push(nvtxDomainHandle_t domain, const nvtxEventAttributes_t *event) {
    say("push", domain, event->category, 0, payload_of(event), message_of(event));
    return 0;
}

static int NVTX_API range_pop(nvtxDomainHandle_t domain) {
    say("pop", domain, 0, 0, 0, "");
    return 0;
}

EXPORT int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_table);
EXPORT int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_table) {
    const char *path = getenv("GPULUA_RANGES_SEEN");
    const NvtxExportTableCallbacks *callbacks = get_table(NVTX_ETID_CALLBACKS);
    NvtxFunctionTable table = NULL;
    unsigned int count = 0;
    if (!path || !callbacks ||
        !callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &count) ||
        count <= NVTX_CBID_CORE2_DomainCreateA) {
        return 0;
    }
    file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    *table[NVTX_CBID_CORE2_DomainCreateA] = (NvtxFunctionPointer)domain_create;
    *table[NVTX_CBID_CORE2_DomainNameCategoryA] = (NvtxFunctionPointer)name_category;
    *table[NVTX_CBID_CORE2_DomainRangeStartEx] = (NvtxFunctionPointer)range_start;
    *table[NVTX_CBID_CORE2_DomainRangeEnd] = (NvtxFunctionPointer)range_end;
    *table[NVTX_CBID_CORE2_DomainRangePushEx] = (NvtxFunctionPointer)range_push;
    *table[NVTX_CBID_CORE2_DomainRangePop] = (NvtxFunctionPointer)range_pop;
    return file >= 0;
}
