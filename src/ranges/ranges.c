#include "ranges/ranges.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#ifdef GPULUA_NVTX3
#include <nvtx3/nvToolsExt.h>
#endif

bool gpu_ranges_are_on;

static const char *const name_table[GPU_RANGE_KIND_COUNT] = {
#define X(id, name, about) name,
    GPU_RANGE_TABLE(X)
#undef X
};

const char *gpu_range_kind_name(enum gpu_range_kind kind) {
    return name_table[kind];
}

bool gpu_ranges_wanted(const char *setting) {
    static const char *const offs[] = {"", "0", "false", "off"};
    bool is_wanted = setting != NULL;
    for (size_t i = 0; is_wanted && i < sizeof offs / sizeof offs[0]; i++) {
        is_wanted = strcmp(setting, offs[i]) != 0;
    }
    return is_wanted;
}

/* ---- texts ---- */

/* Bytes of the character at `text`, of at most byte_count; 0: it is none. No surrogates, nothing
 * longer than it has to be (RFC 3629). */
static size_t character_bytes(const unsigned char *text, size_t byte_count) {
    unsigned char first = text[0];
    size_t length = first < 0x80                     ? 1
                    : first >= 0xc2 && first <= 0xdf ? 2
                    : first >= 0xe0 && first <= 0xef ? 3
                    : first >= 0xf0 && first <= 0xf4 ? 4
                                                     : 0;
    if (length == 0 || length > byte_count) {
        return 0;
    }
    for (size_t i = 1; i < length; i++) {
        if ((text[i] & 0xc0) != 0x80) {
            return 0;
        }
    }
    bool is_odd = (first == 0xe0 && text[1] < 0xa0) || (first == 0xed && text[1] > 0x9f) ||
                  (first == 0xf0 && text[1] < 0x90) || (first == 0xf4 && text[1] > 0x8f);
    return is_odd ? 0 : length;
}

/* What a terminal may take for a command: C0, DEL, and C1 in UTF-8; and what makes text look like
 * another one: ends of lines and paragraphs (U+2028, U+2029), and the marks of its direction
 * (U+061C, U+200E, U+200F, U+202A to U+202E, U+2066 to U+2069). */
static bool is_control(const unsigned char *text, size_t length) {
    if (length == 3 && text[0] == 0xe2) {
        return (text[1] == 0x80 &&
                (text[2] == 0x8e || text[2] == 0x8f || (text[2] >= 0xa8 && text[2] <= 0xae))) ||
               (text[1] == 0x81 && text[2] >= 0xa6 && text[2] <= 0xa9);
    }
    return (length == 1 && (text[0] < 0x20 || text[0] == 0x7f)) ||
           (length == 2 && text[0] == 0xc2 && text[1] < 0xa0) ||
           (length == 2 && text[0] == 0xd8 && text[1] == 0x9c);
}

size_t gpu_range_text(char *to, size_t room, const char *text, size_t byte_count) {
    static const char replacement[] = "\xef\xbf\xbd";
    size_t used = 0;
    for (size_t at = 0; at < byte_count;) {
        const unsigned char *from = (const unsigned char *)text + at;
        size_t length = character_bytes(from, byte_count - at);
        bool is_fine = length > 0 && !is_control(from, length);
        const char *put = is_fine ? text + at : replacement;
        size_t put_bytes = is_fine ? length : sizeof replacement - 1;
        if (used + put_bytes >= room) {
            break;
        }
        memcpy(to + used, put, put_bytes);
        used += put_bytes;
        at += length > 0 ? length : 1;
    }
    to[used] = '\0';
    return used;
}

/* ---- telling ---- */

#ifdef GPULUA_NVTX3

static nvtxDomainHandle_t domain;

static void set_up(void) {
    domain = nvtxDomainCreateA("gpulua");
    for (uint32_t i = 0; i < GPU_RANGE_KIND_COUNT; i++) {
        nvtxDomainNameCategoryA(domain, i + 1, name_table[i]);
    }
    gpu_ranges_are_on = true;
}

bool gpu_ranges_are_built(void) {
    return true;
}

void gpu_ranges_enable(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, set_up);
}

struct message {
    char text[GPU_RANGE_TEXT_BYTES + 32];
};

static nvtxEventAttributes_t describe(struct message *message, enum gpu_range_kind kind,
                                      const char *label, size_t byte_count, uint64_t payload) {
    char *at = message->text;
    if (kind != GPU_RANGE_SCRIPT) {
        at += snprintf(at, 32, "gpulua.%s%s", name_table[kind], label ? " " : "");
    }
    (void)gpu_range_text(at, GPU_RANGE_TEXT_BYTES, label ? label : "", byte_count);
    nvtxEventAttributes_t event = {.version = NVTX_VERSION,
                                   .size = NVTX_EVENT_ATTRIB_STRUCT_SIZE,
                                   .category = (uint32_t)kind + 1,
                                   .payloadType = NVTX_PAYLOAD_TYPE_UNSIGNED_INT64,
                                   .payload.ullValue = payload,
                                   .messageType = NVTX_MESSAGE_TYPE_ASCII,
                                   .message.ascii = message->text};
    return event;
}

/* That nobody listens (-2) is no error. */
void gpu_range_do_push(enum gpu_range_kind kind, const char *label, uint64_t payload) {
    struct message message;
    nvtxEventAttributes_t event =
        describe(&message, kind, label, label ? strlen(label) : 0, payload);
    (void)nvtxDomainRangePushEx(domain, &event);
}

void gpu_range_do_pop(void) {
    (void)nvtxDomainRangePop(domain);
}

uint64_t gpu_range_do_start(enum gpu_range_kind kind, const char *label, size_t byte_count,
                            uint64_t payload) {
    struct message message;
    nvtxEventAttributes_t event = describe(&message, kind, label, byte_count, payload);
    return nvtxDomainRangeStartEx(domain, &event);
}

void gpu_range_do_end(uint64_t range) {
    nvtxDomainRangeEnd(domain, range);
}

#else

bool gpu_ranges_are_built(void) {
    return false;
}
void gpu_ranges_enable(void) {}
void gpu_range_do_push(enum gpu_range_kind kind, const char *label, uint64_t payload) {
    (void)kind, (void)label, (void)payload;
}
void gpu_range_do_pop(void) {}
uint64_t gpu_range_do_start(enum gpu_range_kind kind, const char *label, size_t byte_count,
                            uint64_t payload) {
    (void)kind, (void)label, (void)byte_count, (void)payload;
    return 0;
}
void gpu_range_do_end(uint64_t range) {
    (void)range;
}

#endif
