/* What kernels report (see kernel/gpulua_kernel.h), and whose reports are looked at by whom.
 *
 * Reports lie in rows of host memory. A launch whose kernel has a gpulua_ctx has one until it is
 * over and nothing depends on it any more: what is pending behind it keeps it, so that a kernel
 * that starts late does not find what somebody else has written there meanwhile. The device sets a
 * mark at the beginning of a row, which is all that is looked at as long as nothing fails; it does
 * so before the operation is over, so whoever has seen that an operation is over and then looks
 * here sees whether it, or anything in front of it, has failed. */
#include "runtime/report.h"

#include <assert.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define REPORTS_PER_ROW 256u /* the first is the row's mark */
#define REPORT_ARGS 8u
#define REPORT_CHARS 144u
#define STATE_THERE 2u

/* As gpulua_kernel.h has it. */
struct written {
    _Atomic uint32_t state;
    uint32_t line;
    uint32_t block[3], thread[3];
    uint32_t index;
    uint32_t arg_count;
    uint8_t kinds[REPORT_ARGS];
    uint64_t args[REPORT_ARGS];
    char format[REPORT_CHARS];
};
static_assert(sizeof(struct written) == 256, "as kernels have it");

struct gpu_report {
    uint32_t refs;
    struct gpu_report_row *row;
    struct gpu_report *next; /* of the free list; or of the same operation */
    struct gpu_op *op;       /* borrowed; NULL: over, or not submitted */
    struct gpu_report_of of;
    uint64_t number;         /* what the kernel puts into its word; of no other launch */
    struct written *written; /* in the row's block */
};

struct gpu_report_row {
    struct gpu_report_row *next;
    struct gpu_device *device; /* borrowed */
    struct gpu_block *block;   /* retained: host memory, the reports */
    struct gpu_block *words;   /* retained: memory of the device, a word for each */
    uint32_t live;
    struct gpu_report reports[REPORTS_PER_ROW];
};

/* ---- taking ---- */

/* Words have whatever the memory had before: numbers that nobody else comes upon need no clearing,
 * also in the next life of the device. */
static uint64_t first_number(void) {
    uint64_t number;
    return getrandom(&number, sizeof number, 0) == sizeof number ? number
                                                                 : (uint64_t)gpu_clock_ns();
}

static gpulua_status add_row(struct gpu_device *device, struct gpu_error *error) {
    struct gpu_report_row *row = calloc(1, sizeof *row);
    if (!row) {
        return gpu_error_set(error, GPULUA_OUT_OF_MEMORY, "no host memory for reports of kernels");
    }
    struct gpu_block_info info = {.byte_count = REPORTS_PER_ROW * sizeof(struct written),
                                  .label = "reports",
                                  .is_host = true,
                                  .is_hidden = true};
    struct gpu_block_info words = {.byte_count = REPORTS_PER_ROW * sizeof(uint64_t),
                                   .label = "reports",
                                   .is_hidden = true,
                                   .keeping = GPU_KEEP_SPACE};
    gpulua_status status = gpu_block_create(device, &info, &row->block, error);
    if (status == GPULUA_OK) {
        status = gpu_block_create(device, &words, &row->words, error);
    }
    if (status) {
        gpu_block_release(row->block);
        free(row);
        return status;
    }
    row->device = device;
    struct written *all = gpu_block_host_bytes(row->block);
    memset(all, 0, info.byte_count);
    for (uint32_t i = 0; i < REPORTS_PER_ROW; i++) {
        row->reports[i] = (struct gpu_report){.row = row, .written = &all[i]};
        all[i].index = i;
    }
    for (uint32_t i = REPORTS_PER_ROW - 1; i > 0; i--) {
        row->reports[i].next = device->report_free;
        device->report_free = &row->reports[i];
    }
    if (device->report_number == 0) {
        device->report_number = first_number();
    }
    row->next = device->report_rows;
    device->report_rows = row;
    return GPULUA_OK;
}

gpulua_status gpu_report_take(struct gpu_device *device, const struct gpu_report_of *of,
                              struct gpu_report **report, struct gpu_error *error) {
    gpulua_status status = device->report_free ? GPULUA_OK : add_row(device, error);
    if (status) {
        return status;
    }
    struct gpu_report *made = device->report_free;
    device->report_free = made->next;
    made->refs = 1;
    made->next = NULL;
    made->op = NULL;
    made->of = *of;
    made->number = ++device->report_number;
    atomic_store_explicit(&made->written->state, 0, memory_order_relaxed);
    made->row->live++;
    device->report_count++;
    *report = made;
    return GPULUA_OK;
}

struct gpu_report *gpu_report_retain(struct gpu_report *report) {
    report->refs++;
    return report;
}

void gpu_report_release(struct gpu_report *report) {
    if (!report || --report->refs > 0) {
        return;
    }
    struct gpu_device *device = report->row->device;
    report->next = device->report_free;
    device->report_free = report;
    report->row->live--;
    device->report_count--;
}

void gpu_report_link(struct gpu_report *report, struct gpu_report *next) {
    report->next = next;
}

void gpu_reports_release(struct gpu_report *report) {
    for (struct gpu_report *next; report; report = next) {
        next = report->next;
        gpu_report_release(report);
    }
}

/* Where kernels find the word of a launch. */
static uint64_t word_of(const struct gpu_report *report) {
    return report->row->words->address +
           (uint64_t)(report - report->row->reports) * sizeof(uint64_t);
}

uint32_t gpu_report_relocs(uint32_t need_count, uint16_t relocs[GPU_REPORT_RELOCS_MAX]) {
    uint32_t count = 0;
    relocs[count++] = offsetof(struct gpu_report_context, report);
    relocs[count++] = offsetof(struct gpu_report_context, own.word);
    relocs[count++] = offsetof(struct gpu_report_context, whole.word); /* 0 stays 0 */
    for (uint32_t i = 0; i < need_count; i++) {
        relocs[count++] = (uint16_t)(offsetof(struct gpu_report_context, needs) +
                                     i * sizeof(struct gpu_report_need));
    }
    return count;
}

void gpu_report_context(const struct gpu_report *report, const struct gpu_report *whole,
                        struct gpu_report *const *needs, uint32_t need_count,
                        struct gpu_report_context *context) {
    const struct gpu_report_row *row = report->row;
    uint64_t index = (uint64_t)(report - row->reports);
    memset(context, 0, sizeof *context);
    context->report = row->block->address + index * sizeof(struct written);
    context->own.word = word_of(report);
    context->own.number = report->number;
    if (whole) {
        context->whole.word = word_of(whole);
        context->whole.number = whole->number;
    }
    for (uint32_t i = 0; i < need_count; i++) {
        context->needs[i].word = word_of(needs[i]);
        context->needs[i].number = needs[i]->number;
    }
}

void gpu_reports_close(struct gpu_device *device) {
    while (device->report_rows) {
        struct gpu_report_row *row = device->report_rows;
        device->report_rows = row->next;
        assert(row->live == 0);
        gpu_block_release(row->block);
        gpu_block_release(row->words);
        free(row);
    }
    device->report_free = NULL;
}

gpulua_status gpu_reports_prepare(struct gpu_device *device, struct gpu_error *error) {
    return device->report_rows ? GPULUA_OK : add_row(device, error);
}

/* ---- who depends on whom ---- */

static void need(struct gpu_report *needs[GPU_REPORT_NEEDS_MAX], uint32_t *count,
                 struct gpu_report *report) {
    for (uint32_t i = 0; i < *count; i++) {
        if (needs[i] == report) {
            return;
        }
    }
    if (report && *count < GPU_REPORT_NEEDS_MAX) {
        needs[(*count)++] = report;
    }
}

uint32_t gpu_report_needs(const struct gpu_device *device, const struct gpu_waits *waits,
                          struct gpu_report *needs[GPU_REPORT_NEEDS_MAX]) {
    const struct gpu_op *ops[WIRE_WAITS_MAX];
    uint32_t op_count = 0, count = 0;
    for (uint32_t i = 0; i < waits->count; i++) {
        const struct wire_wait *wait = &waits->items[i];
        struct gpu_point point = {.slot = wait->stream, .seq = wait->seq};
        const struct gpu_op *op =
            wait->flags & WIRE_WAIT_DEPENDS ? gpu_op_find_pending(device, point) : NULL;
        if (op && op->has_extras) {
            ops[op_count++] = op;
            need(needs, &count, op->report); /* if it skips itself, its word says so */
        }
    }
    /* Then what is in front of those without a report; of a kernel that has one it matters only
     * where that does not ask whether to skip itself. */
    for (int has_report = 0; has_report <= 1; has_report++) {
        for (uint32_t i = 0; i < op_count; i++) {
            for (uint32_t k = 0; k < ops[i]->need_count; k++) {
                need(needs, &count, !ops[i]->report == !has_report ? ops[i]->needs[k] : NULL);
            }
        }
    }
    return count;
}

void gpu_report_attach(struct gpu_op *op, const struct gpu_waits *waits,
                       struct gpu_report *report) {
    op->need_count = gpu_report_needs(op->device, waits, op->needs);
    for (uint32_t i = 0; i < op->need_count; i++) {
        gpu_report_retain(op->needs[i]);
    }
    op->report = report;
    for (struct gpu_report *own = report; own; own = own->next) {
        gpu_report_retain(own)->op = op;
    }
    op->has_extras = report || op->need_count > 0;
}

void gpu_report_detach(struct gpu_op *op) {
    for (struct gpu_report *own = op->report; own; own = own->next) {
        own->op = NULL;
    }
    gpu_reports_release(op->report);
    op->report = NULL;
    while (op->need_count > 0) {
        gpu_report_release(op->needs[--op->need_count]);
    }
}

/* ---- reading ---- */

struct printed {
    char *to;
    size_t room; /* with the NUL */
};

__attribute__((format(printf, 2, 3))) static void print(struct printed *printed, const char *format,
                                                        ...) {
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(printed->to, printed->room, format, arguments);
    va_end(arguments);
    size_t used = length < 0                       ? 0
                  : (size_t)length < printed->room ? (size_t)length
                                                   : printed->room - 1;
    printed->to += used;
    printed->room -= used;
}

#define WIDTH_MAX 99 /* and precision: the device must not keep us busy */

/* A conversion: "%-8.3hd". */
struct spec {
    char flags[8];
    int width, precision; /* -1: none */
    int byte_count;       /* 1, 2: hh, h; 0: as it was given */
    char conversion;
};

struct values {
    const struct written *written;
    uint32_t next, count;
};

static bool take_value(struct values *values, uint8_t *kind, uint64_t *bits) {
    if (values->next >= values->count) {
        return false;
    }
    *kind = values->written->kinds[values->next];
    *bits = values->written->args[values->next++];
    return true;
}

static const char *read_number(const char *at, struct values *values, int *number) {
    uint8_t kind;
    uint64_t bits = 0;
    int64_t value = 0;
    if (*at == '*') {
        (void)take_value(values, &kind, &bits);
        value = (int64_t)bits;
        at++;
    }
    for (; *at >= '0' && *at <= '9'; at++) {
        value = value > WIDTH_MAX ? value : value * 10 + (*at - '0');
    }
    *number = value < 0 ? 0 : value > WIDTH_MAX ? WIDTH_MAX : (int)value;
    return at;
}

/* Behind the conversion; NULL: it is none. */
static const char *read_spec(const char *at, struct values *values, struct spec *spec) {
    size_t flag_count = 0;
    *spec = (struct spec){.width = -1, .precision = -1};
    for (at++; *at != '\0' && strchr("-+ #0", *at); at++) {
        if (flag_count + 1 < sizeof spec->flags && !strchr(spec->flags, *at)) {
            spec->flags[flag_count++] = *at;
        }
    }
    if (*at == '*' || (*at >= '1' && *at <= '9')) {
        at = read_number(at, values, &spec->width);
    }
    if (*at == '.') {
        at = read_number(at + 1, values, &spec->precision);
    }
    for (; *at != '\0' && strchr("hlLqjzt", *at); at++) {
        spec->byte_count = *at != 'h' ? 0 : spec->byte_count == 2 ? 1 : 2;
    }
    spec->conversion = *at;
    return *at != '\0' && strchr("diuoxXfFeEgGaAcps", *at) ? at + 1 : NULL;
}

static uint64_t narrow(uint64_t bits, int byte_count, bool is_signed) {
    if (byte_count == 0) {
        return bits;
    }
    unsigned shift = 64u - 8u * (unsigned)byte_count;
    return is_signed ? (uint64_t)((int64_t)(bits << shift) >> shift) : bits << shift >> shift;
}

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
static void print_value(struct printed *printed, const struct spec *spec, uint8_t kind,
                        uint64_t bits) {
    char format[32], text[32];
    bool is_text = true, is_real = false;
    double real;
    memcpy(&real, &bits, sizeof real);
    if (spec->conversion == 's') {
        snprintf(text, sizeof text, "?");
    } else if (spec->conversion == 'p' || kind == 'p') {
        snprintf(text, sizeof text, "0x%llx", (unsigned long long)bits);
    } else if (spec->conversion == 'c') {
        snprintf(text, sizeof text, "%c", bits >= 32 && bits < 127 ? (int)bits : '?');
    } else {
        is_text = false;
        is_real = kind == 'f' || strchr("fFeEgGaA", spec->conversion);
    }
    size_t used = (size_t)snprintf(format, sizeof format, "%%%s", spec->flags);
    if (spec->width >= 0) {
        used += (size_t)snprintf(format + used, sizeof format - used, "%d", spec->width);
    }
    if (spec->precision >= 0 && !is_text) {
        used += (size_t)snprintf(format + used, sizeof format - used, ".%d", spec->precision);
    }
    if (is_text) {
        snprintf(format + used, sizeof format - used, "s");
        print(printed, format, text);
    } else if (is_real) { /* also what is real where an integer is wanted, and the reverse */
        bool is_wanted = strchr("fFeEgGaA", spec->conversion) != NULL;
        snprintf(format + used, sizeof format - used, "%c", is_wanted ? spec->conversion : 'g');
        print(printed, format,
              kind == 'f'                  ? real
              : kind == 'u' || kind == 'U' ? (double)bits
                                           : (double)(int64_t)bits);
    } else {
        bool is_signed = spec->conversion == 'd' || spec->conversion == 'i';
        int byte_count = spec->byte_count ? spec->byte_count : kind == 'I' || kind == 'U' ? 4 : 0;
        snprintf(format + used, sizeof format - used, "ll%c", spec->conversion);
        print(printed, format, (unsigned long long)narrow(bits, byte_count, is_signed));
    }
}
#pragma GCC diagnostic pop

/* The device wrote it: nothing of it is believed. */
static void print_message(struct printed *printed, const struct written *written) {
    char format[REPORT_CHARS];
    memcpy(format, written->format, sizeof format);
    format[sizeof format - 1] = '\0';
    uint32_t count = written->arg_count < REPORT_ARGS ? written->arg_count : REPORT_ARGS;
    struct values values = {.written = written, .count = count};
    print(printed, "%s", format[0] == '\0' ? "(no message)" : "");
    for (const char *at = format; *at;) {
        size_t length = strcspn(at, "%");
        print(printed, "%.*s", (int)length, at);
        at += length;
        if (at[0] == '%' && at[1] == '%') {
            print(printed, "%%");
            at += 2;
        } else if (*at == '%') {
            struct spec spec;
            uint8_t kind;
            uint64_t bits;
            const char *behind = read_spec(at, &values, &spec);
            if (behind && take_value(&values, &kind, &bits)) {
                print_value(printed, &spec, kind, bits);
                at = behind;
            } else {
                print(printed, "%%");
                at++;
            }
        }
    }
}

static void fail(struct gpu_op *op, const struct gpu_report *report) {
    const struct written *written = report->written;
    char message[1024], what[600];
    struct printed printed = {what, sizeof what};
    print_message(&printed, written);
    const uint32_t *b = written->block, *t = written->thread;
    char of[240] = "", own[64], kernel[64];
    (void)gpu_label_copy(own, sizeof own, op->label);
    (void)gpu_label_copy(kernel, sizeof kernel, report->of.label ? report->of.label : op->label);
    const struct gpu_site *site = &report->of.site;
    if (report->of.label && site->source) {
        snprintf(of, sizeof of, " of graph '%s' (%.100s:%d)", own, site->source, site->line);
    } else if (report->of.label) {
        snprintf(of, sizeof of, " of graph '%s'", own);
    }
    snprintf(message, sizeof message,
             "kernel '%s'%s failed in line %u of %.128s, block (%u,%u,%u), thread (%u,%u,%u): %s",
             kernel, of, written->line, report->of.source, b[0], b[1], b[2], t[0], t[1], t[2],
             what);
    gpu_op_fail(op, GPULUA_KERNEL_FAILED, 0, message);
}

static bool is_marked(struct gpu_report_row *row) {
    _Atomic uint32_t *mark = &row->reports[0].written->state;
    if (row->live == 0 || atomic_load_explicit(mark, memory_order_acquire) == 0) {
        return false;
    }
    /* First, so that what comes while we look sets it again. */
    atomic_exchange_explicit(mark, 0, memory_order_acq_rel);
    return true;
}

/* In the order of submission; one that is being submitted is the last. */
static uint64_t order_of(const struct gpu_op *op) {
    return op->number ? op->number : UINT64_MAX;
}

/* Of one operation, in the order of its launches. */
static bool is_before(const struct gpu_report *a, const struct gpu_report *b) {
    uint64_t of_a = order_of(a->op), of_b = order_of(b->op);
    return of_a < of_b || (of_a == of_b && a->number < b->number);
}

/* Of a graph's launch one that belongs in front of it may come still: over is what was so before
 * anybody began to look here. */
static bool is_early(struct gpu_device *device, const struct gpu_report *report) {
    const struct gpu_op *op = report->op;
    bool is_early =
        report->of.label && (op->number == 0 || op->seq > device->done[op->stream->slot]);
    device->has_early_reports |= is_early;
    return is_early;
}

/* The one submitted first that has failed and is not known to. */
static struct gpu_report *find_failed(struct gpu_device *device) {
    struct gpu_report *found = NULL;
    for (struct gpu_report_row *row = device->report_rows; row; row = row->next) {
        for (uint32_t i = 1; i < REPORTS_PER_ROW; i++) {
            struct gpu_report *report = &row->reports[i];
            const struct gpu_op *op = report->op;
            if (op && !op->failure && (!found || is_before(report, found)) &&
                atomic_load_explicit(&report->written->state, memory_order_acquire) ==
                    STATE_THERE &&
                !is_early(device, report)) {
                found = report;
            }
        }
    }
    return found;
}

void gpu_reports_look(struct gpu_device *device) {
    bool has_failed = device->has_early_reports;
    device->has_early_reports = false;
    for (struct gpu_report_row *row = device->report_rows; row; row = row->next) {
        has_failed |= is_marked(row);
    }
    struct gpu_report *report;
    bool is_changed = false; /* and not spread yet */
    while (has_failed && (report = find_failed(device))) {
        struct gpu_op *op = report->op;
        if (is_changed && op->need_count > 0) { /* it may have read what one of them wrote */
            gpu_failures_spread(device);
            is_changed = false;
        }
        if (!op->failure) { /* else what it says is no news */
            fail(op, report);
            is_changed = true;
        }
    }
    if (is_changed) {
        gpu_failures_spread(device);
    }
}
