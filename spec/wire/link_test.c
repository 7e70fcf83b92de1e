/* wire/, executor/ and the CPU device's streams, over all transports: order, failures, replies,
 * sleeping and waking. */
#include "wire/client.h"

static struct tap tap;
static const char *transport_name;

static void check(bool good, const char *what) {
    char line[256];
    snprintf(line, sizeof line, "%s: %s", transport_name, what);
    tap_check(&tap, good, line);
}

static struct client_record make_launch(uint32_t kernel, int32_t arg) {
    struct client_record out = client_record(WIRE_OP_LAUNCH, 0);
    client_set_launch(&out, kernel, 4, 1);
    out.record.u.launch.args_bytes = 4;
    client_payload(&out, &arg, 4);
    return out;
}

/* ---- */

static void facts(struct client *client) {
    struct client_record out = client_record(WIRE_OP_MEMORY_INFO, 0);
    bool good = client_request(client, &out) == GPULUA_OK;
    const struct wire_memory_facts *memory = client_body(client);
    check(good && memory->bytes_total > 0 && memory->bytes_free <= memory->bytes_total,
          "memory has a size");
    out = client_record(WIRE_OP_SLAB_CREATE, 2);
    out.record.u.slab.bytes = UINT64_C(1) << 50;
    check(client_request(client, &out) == GPULUA_OUT_OF_MEMORY,
          "a slab larger than the machine is out of memory");
    out = client_record(WIRE_OP_SLAB_CREATE, 0);
    out.record.u.slab.bytes = 4096;
    check(client_request(client, &out) != GPULUA_OK, "slab 0 is refused");
    out = client_record(WIRE_OP_OPEN, 0);
    client_payload(&out, "backend cpu\n", 13);
    check(client_request(client, &out) == GPULUA_INVALID_ARGUMENT, "a second OPEN is refused");
    out = client_record(WIRE_OP_KERNEL_GET, 9);
    out.record.u.kernel.module = 77;
    client_payload(&out, "add", 4);
    check(client_request(client, &out) == GPULUA_INVALID_ARGUMENT &&
              strstr(client_text(client), "77") != NULL,
          "a kernel of no module is refused by name");
    out = client_record(WIRE_OP_KERNEL_GET, 9);
    out.record.u.kernel.module = 1;
    client_payload(&out, "missing", 8);
    check(client_request(client, &out) == GPULUA_INVALID_ARGUMENT, "a kernel that is not there");
}

static void compile_errors(struct client *client) {
    check(client_compile(client, 2, "__global__ void k(int n) { this is no C }\n") ==
                  GPULUA_COMPILE_FAILED &&
              strstr(client_text(client), "client.cu") != NULL,
          "a source that does not compile: its log names the source");
    check(client_compile(client, 2, "__global__ void k(int *p) { *p = 1; }\n") == GPULUA_OK,
          "the module's number can be used again");
    struct client_record out = client_record(WIRE_OP_MODULE_UNLOAD, 2);
    client_publish(client, &out);
    out = client_record(WIRE_OP_KERNEL_GET, 10);
    out.record.u.kernel.module = 2;
    client_payload(&out, "add", 4);
    check(client_request(client, &out) == GPULUA_INVALID_ARGUMENT, "an unloaded module is gone");
}

/* A log longer than a reply is cut, and says so. */
static void long_log(struct client *client) {
    char *text = malloc(100000);
    size_t length = (size_t)sprintf(text, "__global__ void k(int n) {\n");
    for (int i = 0; i < 1000; i++) { /* a line of its own for each: twice what a reply holds */
        length += (size_t)sprintf(text + length, "this is no C long log %d;\n", i);
    }
    sprintf(text + length, "}\n");
    int status = client_compile(client, 2, text);
    uint32_t i = (uint32_t)(client->request % CLIENT_REQUESTS);
    check(status == GPULUA_COMPILE_FAILED &&
              client->results[i].text_bytes == WIRE_REPLY_TEXT_BYTES_MAX &&
              strstr(client->results[i].text_end, "cut here") != NULL,
          "a compiler's log that is longer than a reply says that it was cut");
    free(text);
}

static void global_variable(struct client *client) {
    struct client_record out = client_record(WIRE_OP_GLOBAL_GET, 3);
    out.record.u.kernel.module = 1;
    client_payload(&out, "counter", 8);
    bool good = client_request(client, &out) == GPULUA_OK;
    const struct wire_global_facts *global = client_body(client);
    check(good && global->bytes == 16, "a variable of a module has its size");
    out = client_record(WIRE_OP_FILL, 0);
    out.record.u.fill.dst = gpu_wire_address(3, 4);
    out.record.u.fill.elem_count = 2;
    out.record.u.fill.elem_bytes = 4;
    out.record.u.fill.pattern[0] = 41;
    client_submit(client, &out, 0);
    out = client_record(WIRE_OP_COPY, 0);
    out.record.u.copy.dst = gpu_wire_address(1, 400);
    out.record.u.copy.src = gpu_wire_address(3, 0);
    out.record.u.copy.bytes = 16;
    client_submit(client, &out, 0);
    const int *got = client_read(client, 0, 100, 4);
    check(got != NULL && got[0] == 0 && got[1] == 41 && got[2] == 41 && got[3] == 0,
          "and is a slab like any other");
}

static void copies(struct client *client) {
    static const uint32_t sizes[] = {1, 2, 4, 8, 16};
    bool good = true;
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        uint32_t elem_bytes = sizes[s];
        uint64_t count = 100003;
        struct client_record out = client_record(WIRE_OP_FILL, 0);
        out.record.u.fill.dst = gpu_wire_address(1, elem_bytes);
        out.record.u.fill.elem_count = count;
        out.record.u.fill.elem_bytes = elem_bytes;
        out.record.u.fill.pattern[0] = UINT64_C(0x8877665544332211);
        out.record.u.fill.pattern[1] = UINT64_C(0x1122334455667788);
        client_submit(client, &out, 0);
        const uint8_t *got =
            (const uint8_t *)client_read(client, 0, 0, (elem_bytes * (count + 2) + 3) / 4);
        for (uint64_t i = 0; good && got != NULL && i < elem_bytes * count; i++) {
            good =
                got[elem_bytes + i] == ((const uint8_t *)out.record.u.fill.pattern)[i % elem_bytes];
        }
        good = good && got != NULL;
    }
    check(good, "fills of every element size, split over workers");

    uint64_t bytes = (UINT64_C(3) << 20) + 12;
    uint32_t *host = (uint32_t *)(void *)(client->link->arena + (UINT64_C(1) << 24));
    for (uint64_t i = 0; i < bytes / 4; i++) {
        host[i] = (uint32_t)(i * 2654435761u);
    }
    struct client_record out = client_record(WIRE_OP_UPLOAD, 0);
    out.record.u.copy.dst = gpu_wire_address(1, 0);
    out.record.u.copy.src = UINT64_C(1) << 24;
    out.record.u.copy.bytes = bytes;
    client_submit(client, &out, 0);
    out = client_record(WIRE_OP_COPY, 0);
    out.record.u.copy.dst = gpu_wire_address(1, UINT64_C(4) << 20);
    out.record.u.copy.src = gpu_wire_address(1, 0);
    out.record.u.copy.bytes = bytes;
    client_submit(client, &out, 0);
    const int *got = client_read(client, 0, UINT64_C(1) << 20, bytes / 4);
    check(got != NULL && memcmp(got, host, bytes) == 0, "3 MiB up, across and down unchanged");

    client_fill(client, 0, 0, 4096, 5);
    client_add(client, 0, 1, 4000, 7);
    got = client_read(client, 0, 0, 4096);
    check(got != NULL && got[0] == 5 && got[1] == 12 && got[4000] == 12 && got[4001] == 5,
          "a launch over several blocks, its address resolved");
}

static void bad_work(struct client *client) {
    uint32_t before = client->failure_count;
    struct client_record out = client_record(WIRE_OP_COPY, 0);
    out.record.u.copy.dst = gpu_wire_address(1, CLIENT_SLAB_BYTES - 8);
    out.record.u.copy.src = gpu_wire_address(1, 0);
    out.record.u.copy.bytes = 16;
    uint64_t seq = client_submit(client, &out, 0);
    check(client_wait(client, 0, seq) && client->failure_count == before + 1 &&
              client->failures[before].status == GPULUA_OUT_OF_BOUNDS &&
              client->failures[before].seq == seq,
          "a copy over the end of a slab fails, and is over");
    out = client_record(WIRE_OP_DOWNLOAD, 0);
    out.record.u.copy.dst = UINT64_MAX - 64;
    out.record.u.copy.src = gpu_wire_address(1, 0);
    out.record.u.copy.bytes = 16;
    seq = client_submit(client, &out, 0);
    check(client_wait(client, 0, seq) && client->failure_count == before + 2,
          "a download outside the arena fails");
    out = client_record(WIRE_OP_MARK, 0);
    seq = client_submit(client, &out, 300);
    check(client_wait(client, 300, seq) && client->failure_count == before + 3,
          "work on a stream that was never made fails");
    out = make_launch(KERNEL_FAILS, 0);
    out.record.u.launch.block[0] = 1025;
    seq = client_submit(client, &out, 0);
    check(client_wait(client, 0, seq) && client->failure_count == before + 4 &&
              client->failures[before + 3].status == GPULUA_INVALID_ARGUMENT,
          "a block of 1,025 threads fails");
}

/* Three streams, each behind the one before; the first held up by a flag. */
static void waits(struct client *client) {
    client_fill(client, 0, 0, 64, 0);
    client_wait(client, 0, client->seq[0]);
    client_wait_flag(client, 0, 0);
    uint64_t first = client_fill(client, 0, 16, 1, 7);
    struct client_record out = client_record(WIRE_OP_COPY, 0);
    out.record.u.copy.dst = gpu_wire_address(1, 17 * 4);
    out.record.u.copy.src = gpu_wire_address(1, 16 * 4);
    out.record.u.copy.bytes = 4;
    client_wait_on(&out, 0, first, WIRE_WAIT_ORDER | WIRE_WAIT_DEPENDS);
    uint64_t second = client_submit(client, &out, 1);
    out = client_record(WIRE_OP_LAUNCH, 0);
    client_wait_on(&out, 1, second, WIRE_WAIT_ORDER);
    client_set_add(&out, 17, 1, 10);
    uint64_t third = client_submit(client, &out, 2);
    uint64_t skipper = client_mark(client, 3, 9, 12345);
    check(client_wait(client, 3, skipper), "a wait for what was never submitted is no wait");
    check(!client_wait_ms(client, 2, third, 30) && !client_is_over(client, 1, second) &&
              !client_is_over(client, 0, first),
          "nothing behind a running kernel starts, on any stream");
    client_fill(client, 3, 0, 1, 1);
    check(client_wait(client, 2, third) && client_wait(client, 1, second),
          "when it ends, what waits goes on, in order");
    check(client_read_is(client, 2, 17, 17), "and has seen what it waited for");
}

/* A skipped record holds the stream back like any other. */
static void skipping_keeps_order(struct client *client) {
    client_fill(client, 0, 0, 64, 0);
    client_wait(client, 0, client->seq[0]);
    client_wait_flag(client, 0, 0);
    uint64_t slow = client_fill(client, 0, 20, 1, 1);
    struct client_record out = client_record(WIRE_OP_FILL, 0);
    out.record.flags = WIRE_FLAG_SKIP;
    out.record.u.fill.dst = gpu_wire_address(1, 21 * 4);
    out.record.u.fill.elem_count = 1;
    out.record.u.fill.elem_bytes = 4;
    out.record.u.fill.pattern[0] = 99;
    client_wait_on(&out, 0, slow, WIRE_WAIT_ORDER);
    client_submit(client, &out, 1);
    uint64_t last = client_fill(client, 1, 20, 1, 2);
    check(!client_wait_ms(client, 1, last, 20), "a skipped record still waits");
    client_fill(client, 3, 0, 1, 1);
    client_wait(client, 1, last);
    check(client_read_is(client, 1, 20, 2) && client_read_is(client, 1, 21, 0),
          "and what is behind it stays behind; it did not run itself");
}

static uint64_t fill_behind(struct client *client, uint32_t stream, uint64_t index, int value,
                            uint32_t other, uint64_t seq) {
    struct client_record out = client_record(WIRE_OP_FILL, 0);
    out.record.u.fill.dst = gpu_wire_address(1, index * 4);
    out.record.u.fill.elem_count = 1;
    out.record.u.fill.elem_bytes = 4;
    out.record.u.fill.pattern[0] = (uint32_t)value;
    client_wait_on(&out, other, seq, WIRE_WAIT_DEPENDS | (other != stream ? WIRE_WAIT_ORDER : 0u));
    return client_submit(client, &out, stream);
}

static void failures(struct client *client) {
    struct client_record out;
    client_fill(client, 0, 0, 64, 0);
    client_wait(client, 0, client->seq[0]);
    uint32_t before = client->failure_count;
    out = make_launch(1000, 0); /* no such kernel: found out at once */
    uint64_t failed = client_submit(client, &out, 0);
    uint64_t skipped = fill_behind(client, 1, 30, 1, 0, failed);
    uint64_t too = fill_behind(client, 2, 31, 1, 1, skipped);
    uint64_t free_of_it = fill_behind(client, 2, 32, 1, 5, 1);
    check(client_wait(client, 2, too) && client_wait(client, 2, free_of_it),
          "a failed operation and what depends on it end");
    check(client->failure_count == before + 1 && client->failures[before].seq == failed &&
              client->failures[before].stream == 0,
          "one failure is reported: the root's");
    check(client_read_is(client, 2, 30, 0) && client_read_is(client, 2, 31, 0) &&
              client_read_is(client, 2, 32, 1),
          "dependents were skipped through two streams, others not");
    out = client_record(WIRE_OP_FORGET_FAILURES, 0);
    out.record.u.failures.count = client->failure_count;
    client_publish(client, &out);
    uint64_t again = fill_behind(client, 1, 33, 5, 0, failed);
    uint64_t third = fill_behind(client, 1, 34, 6, 2, too);
    client_wait(client, 1, third);
    check(client_is_over(client, 1, again) && client_read_is(client, 1, 33, 5) &&
              client_read_is(client, 1, 34, 6),
          "forgotten: what depends on them is the script's own business");
    /* A count that stops short of the second failure forgets the first only. */
    out = make_launch(1000, 0);
    uint64_t one = client_submit(client, &out, 0);
    out = make_launch(1000, 0);
    uint64_t two = client_submit(client, &out, 0);
    client_wait(client, 0, two);
    out = client_record(WIRE_OP_FORGET_FAILURES, 0);
    out.record.u.failures.count = client->failure_count - 1;
    client_publish(client, &out);
    fill_behind(client, 1, 35, 1, 0, one);
    fill_behind(client, 1, 36, 1, 0, two);
    check(client_read_is(client, 1, 35, 1) && client_read_is(client, 1, 36, 0),
          "forgetting counts failures one by one");
    out = client_record(WIRE_OP_FORGET_FAILURES, 0);
    out.record.u.failures.count = client->failure_count;
    client_publish(client, &out);
}

/* What a device finds out later: its failure is there when the word is. */
static void failure_before_word(struct client *client) {
    bool good = true;
    uint32_t before = client->failure_count;
    for (uint32_t i = 0; i < 300 && good; i++) {
        struct client_record out = make_launch(KERNEL_FAILS, (int32_t)(i % 4));
        uint64_t seq = client_submit(client, &out, i % 4);
        gpu_wire_link_want(client->link, i % 4, seq);
        uint64_t end_ns = gpu_wire_now_ns() + UINT64_C(20000000000);
        while (!client_is_over(client, i % 4, seq) && gpu_wire_now_ns() < end_ns) {
            client->link->ops->poll(client->link);
        }
        gpu_wire_link_drain(client->link);
        good = client->failure_count == before + i + 1;
    }
    check(good, "300 failing kernels: each failure is there as soon as the word is");
    struct client_record out = client_record(WIRE_OP_FORGET_FAILURES, 0);
    out.record.u.failures.count = client->failure_count;
    client_publish(client, &out);
    check(client_read_is(client, 0, 32, 1), "and the device goes on");
}

static void wanted_before_long(struct client *client) {
    client_fill(client, 0, 0, 64, 0);
    client_wait(client, 0, client->seq[0]);
    bool good = true;
    for (int round = 0; round < 20 && good; round++) {
        client_fill(client, 3, 0, 1, 0);
        client_wait(client, 3, client->seq[3]);
        uint64_t short_seq = client_fill(client, 0, 40, 1, round);
        uint64_t long_seq = client_wait_flag(client, 0, 0);
        good = client_wait_ms(client, 0, short_seq, 20000) && !client_is_over(client, 0, long_seq);
        client_fill(client, 3, 0, 1, 1);
        good = good && client_wait(client, 0, long_seq);
    }
    check(good, "waiting for one operation is not waiting for the long one behind it");
}

/* Also when there are more behind it than events were held at first. */
static void wanted_before_many(struct client *client) {
    client_fill(client, 0, 0, 64, 0);
    client_wait(client, 0, client->seq[0]);
    client_wait_flag(client, 0, 0);
    uint64_t wanted = client_fill(client, 0, 40, 1, 9);
    client_wait_flag(client, 0, 1);
    for (int i = 0; i < 1500; i++) {
        client_fill(client, 0, 41, 1, i);
    }
    client_fill(client, 3, 0, 1, 1);
    check(client_wait_ms(client, 0, wanted, 20000) && !client_is_over(client, 0, wanted + 1),
          "nor for 1,500 behind that");
    client_fill(client, 3, 1, 1, 1);
    check(client_wait(client, 0, client->seq[0]) && client_read_is(client, 0, 41, 1499),
          "which end in their turn");
}

/* Sleeps with a long time limit: a lost wake-up shows as a long round. */
static void sleep_and_wake(struct client *client) {
    uint32_t rounds = 10000;
    uint64_t slowest_ns = 0;
    bool good = true;
    for (uint32_t i = 0; i < rounds && good; i++) {
        uint32_t stream = i % 4;
        uint64_t start_ns = gpu_wire_now_ns();
        uint64_t seq = client_fill(client, stream, 50 + stream, 1, (int)i);
        gpu_wire_link_want(client->link, stream, seq);
        while (!client_is_over(client, stream, seq) && good) {
            if (!client->link->ops->arm(client->link)) {
                struct pollfd entry = {.fd = client->link->poll_fd, .events = POLLIN};
                good = poll(&entry, 1, 5000) == 1;
            }
            client->link->ops->disarm(client->link);
            gpu_wire_link_drain(client->link);
        }
        if (i % 3 == 0) {
            usleep(i % 400); /* at times the executor is asleep, at times it spins */
        }
        uint64_t round_ns = gpu_wire_now_ns() - start_ns;
        slowest_ns = round_ns > slowest_ns ? round_ns : slowest_ns;
    }
    check(good, "10,000 sleeps: every one is ended by its word");
    printf("# slowest round %llu us\n", (unsigned long long)(slowest_ns / 1000));
    bool is_quiet = false;
    for (int tries = 0; tries < 5 && !is_quiet; tries++) { /* the last one may be told of late */
        struct pollfd entry = {.fd = client->link->poll_fd, .events = POLLIN};
        client->link->ops->arm(client->link);
        is_quiet = poll(&entry, 1, 20) == 0;
        client->link->ops->disarm(client->link);
    }
    check(is_quiet, "with nothing to wait for, nothing wakes");
}

/* Processor time of a process so far, in clock ticks. */
static long ticks_of(int pid) {
    char path[64];
    char text[512] = "";
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *file = fopen(path, "r");
    if (file != NULL) {
        size_t length = fread(text, 1, sizeof text - 1, file);
        text[length] = '\0';
        fclose(file);
    }
    const char *fields = strrchr(text, ')');
    long user = -1;
    long system = 0;
    if (fields == NULL || sscanf(fields, ") %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %ld %ld",
                                 &user, &system) != 2) {
        return -1;
    }
    return user + system;
}

static void idle_costs_nothing(struct client *client) {
    int pid = gpu_wire_link_pid(client->link);
    pid = pid != 0 ? pid : (int)getpid();
    bool is_idle = false;
    for (int tries = 0; tries < 3 && !is_idle; tries++) { /* a sanitizer may have its own to do */
        client_wait(client, 0, client_fill(client, 0, 0, 1, 1));
        usleep(50000);
        long before = ticks_of(pid);
        usleep(1000000);
        long spent = ticks_of(pid) - before;
        is_idle = before >= 0 && spent * 20 <= sysconf(_SC_CLK_TCK);
    }
    check(is_idle, "with nothing to do, a device takes no processor time");
}

/* What waiting takes while the device is at work, in thousandths of a processor; the kernel takes
 * none. */
static long waiting_takes(struct client *client, uint32_t rounds, int32_t us) {
    int pid = gpu_wire_link_pid(client->link);
    struct client_record out = client_record(WIRE_OP_LAUNCH, 0);
    client_set_launch(&out, KERNEL_NAP, 1, 1);
    out.record.u.launch.args_bytes = 4;
    client_payload(&out, &us, 4);
    long before = ticks_of((int)getpid()) + (pid != 0 ? ticks_of(pid) : 0);
    uint64_t start_ns = gpu_wire_now_ns();
    for (uint32_t i = 0; i < rounds; i++) {
        client_wait(client, 0, client_submit(client, &out, 0));
    }
    uint64_t spent_ns = gpu_wire_now_ns() - start_ns;
    long ticks = ticks_of((int)getpid()) + (pid != 0 ? ticks_of(pid) : 0) - before;
    return (long)(1e12 * (double)ticks / (double)sysconf(_SC_CLK_TCK) / (double)spent_ns);
}

/* Rounds so far apart that it goes to sleep between them: how often it is awake again when the next
 * one begins. */
static int awake_rounds(struct client *client, int rounds, useconds_t apart_us(int round)) {
    int awake = 0;
    for (int i = 0; i < rounds; i++) {
        usleep(apart_us(i));
        awake += atomic_load(&client->link->page->executor_sleeps) == 0;
        client_wait(client, 0, client_fill(client, 0, 0, 1, i));
    }
    return awake;
}

static useconds_t regular(int round) {
    (void)round;
    return 8000;
}

static useconds_t irregular(int round) {
    static const useconds_t apart_us[] = {3000, 11000, 5000, 19000, 2000, 8000};
    return apart_us[round % 6];
}

static void rhythm(struct client *client) {
    int without = awake_rounds(client, 48, irregular);
    int with = 0;
    /* A busy machine wakes it late, and one with a sanitizer most of the time. */
    for (int i = 0; i < 5 || (i < 25 && with < 5); i++) {
        int now = awake_rounds(client, 48, regular);
        with = now > with ? now : with;
        if (with >= 24) {
            break;
        }
    }
    printf("# awake in %d of 48 rounds that are like each other, %d of others\n", with, without);
    check(with >= 5, "one that works in rounds finds the executor awake");
}

static void many_operations(struct client *client) {
    client_fill(client, 0, 0, 64, 0);
    client_wait(client, 0, client->seq[0]);
    client_wait_flag(client, 0, 0);
    uint64_t early = 0;
    for (uint32_t i = 0; i < 3000; i++) { /* beyond the events held, below the queue's end */
        uint64_t seq = client_add(client, 0, 60, 1, 1);
        early = i == 10 ? seq : early;
    }
    uint64_t behind_early = client_mark(client, 1, 0, early);
    uint64_t behind_all = client_mark(client, 2, 0, client->seq[0]);
    check(!client_wait_ms(client, 1, behind_early, 20),
          "a wait on one of 3,000 queued operations holds, its event long recycled");
    client_fill(client, 3, 0, 1, 1);
    check(client_wait(client, 2, behind_all) && client_wait(client, 1, behind_early), "and ends");
    check(client_read_is(client, 2, 60, 3000), "all 3,000 have run");
    client_fill(client, 0, 61, 4, 0);
    client_wait(client, 0, client->seq[0]);
    for (uint32_t i = 0; i < 40000; i++) { /* more than queue and ring hold */
        client_add(client, i % 4, 61 + i % 4, 1, 1);
    }
    bool good = true;
    for (uint32_t s = 0; s < 4; s++) {
        good = client_read_is(client, s, 61 + s, 10000) && good;
    }
    check(good, "40,000 launches in one go: none lost");
}

/* The script publishes on and on and never asks for replies: neither side may wait for ever. */
static void full_rings(struct client *client) {
    uint32_t before = client->result_count;
    uint32_t count = 30000;
    for (uint32_t i = 0; i < count; i++) {
        struct client_record out = client_record(WIRE_OP_MEMORY_INFO, 0);
        if (i % 4 != 0) {
            out.record.opcode = WIRE_OP_KERNEL_GET;
            out.record.u.kernel.module = 999;
            client_payload(&out, "no such kernel", 15);
        }
        out.record.seq = ++client->request;
        client_publish(client, &out);
    }
    uint64_t end_ns = gpu_wire_now_ns() + UINT64_C(60000000000);
    while (client->result_count < before + count && gpu_wire_now_ns() < end_ns) {
        client_sleep(client, 100);
        gpu_wire_link_drain(client->link);
    }
    check(client->result_count == before + count, "30,000 requests: 30,000 replies");
    before = client->failure_count;
    for (uint32_t i = 0; i < 20000; i++) {
        struct client_record out = make_launch(i % 2 ? KERNEL_FAILS : 1000, 1);
        client_submit(client, &out, i % 4);
    }
    bool good = true;
    for (uint32_t s = 0; s < 4; s++) {
        good = client_wait(client, s, client->seq[s]) && good;
    }
    check(good && client->failure_count == before + 20000, "20,000 failures, all reported");
    struct client_record out = client_record(WIRE_OP_FORGET_FAILURES, 0);
    out.record.u.failures.count = client->failure_count;
    client_publish(client, &out);
}

static void module_in_use(struct client *client) {
    bool good = client_compile(client, 5, client_source) == GPULUA_OK;
    struct client_record out = client_record(WIRE_OP_KERNEL_GET, 20);
    out.record.u.kernel.module = 5;
    client_payload(&out, "spin", 5);
    good = good && client_request(client, &out) == GPULUA_OK;
    int64_t ns = 30000000;
    out = client_record(WIRE_OP_LAUNCH, 0);
    client_set_launch(&out, 20, 1, 1);
    out.record.u.launch.args_bytes = 8;
    client_payload(&out, &ns, 8);
    uint64_t seq = client_submit(client, &out, 0);
    out = client_record(WIRE_OP_MODULE_UNLOAD, 5);
    client_publish(client, &out);
    uint64_t behind = client_fill(client, 0, 33, 1, 34);
    check(good && !client_is_over(client, 0, seq) && client_wait(client, 0, behind) &&
              client_read_is(client, 0, 33, 34),
          "a module unloaded under a running kernel stays until it ends");
    uint32_t before = client->failure_count;
    out = make_launch(20, 0);
    seq = client_submit(client, &out, 0);
    check(client_wait(client, 0, seq) && client->failure_count == before + 1,
          "its kernels cannot be launched any more");
}

static void streams_come_and_go(struct client *client) {
    bool good = true;
    for (uint32_t i = 0; i < 200 && good; i++) {
        struct client_record out = client_record(WIRE_OP_STREAM_CREATE, 0);
        out.record.stream = 40 + i % 3;
        out.record.u.stream.priority = -(int32_t)(i % 7);
        client_publish(client, &out);
        uint64_t seq = client_fill(client, 40 + i % 3, 70, 1, (int)i);
        good = client_wait(client, 40 + i % 3, seq);
        out = client_record(WIRE_OP_STREAM_DESTROY, 0);
        out.record.stream = 40 + i % 3;
        client_publish(client, &out);
    }
    check(good && client_read_is(client, 0, 70, 199), "slots are used again and go on counting");
    uint32_t before = client->failure_count;
    struct client_record out = client_record(WIRE_OP_MARK, 0);
    uint64_t seq = client_submit(client, &out, 40);
    check(client_wait(client, 40, seq) && client->failure_count == before + 1,
          "work on a destroyed stream fails");
}

/* Random waits among streams; every operation checks that what it waited for is over. */
static void random_program(struct client *client) {
    uint32_t state = 99;
    bool good = true;
    uint64_t base = 1000;
    client_fill(client, 0, base, 4096, 0);
    client_wait(client, 0, client->seq[0]);
    uint64_t last[CLIENT_STREAMS] = {0};
    for (uint32_t i = 0; i < 4000; i++) {
        state = state * 1664525u + 1013904223u;
        uint32_t stream = (state >> 8) % CLIENT_STREAMS;
        uint32_t other = (state >> 16) % CLIENT_STREAMS;
        /* One cell that all streams write, each behind the last writer: a chain. */
        struct client_record out = client_record(WIRE_OP_LAUNCH, 0);
        for (uint32_t s = 0; s < CLIENT_STREAMS; s++) {
            if (s != stream && last[s] != 0) {
                client_wait_on(&out, s, last[s], WIRE_WAIT_ORDER);
                last[s] = 0;
            }
        }
        client_set_add(&out, base, 1, 1);
        last[stream] = client_submit(client, &out, stream);
        if (other != stream) {
            client_add(client, other, base + 1 + other * 16, 16, 1);
        }
    }
    for (uint32_t s = 0; s < CLIENT_STREAMS; s++) {
        good = client_wait(client, s, client->seq[s]) && good;
    }
    check(good && client_read_is(client, 0, base, 4000),
          "4,000 unprotected increments of one cell over 8 streams, none lost");
}

/* The twin: without the wait the later launch is overtaken, so the checks of order can fail. */
static void order_twin(struct client *client) {
    client_fill(client, 0, 0, 64, 0);
    client_wait(client, 0, client->seq[0]);
    client_wait_flag(client, 0, 0);
    uint64_t slow = client_fill(client, 0, 20, 1, 1);
    uint64_t fast = client_fill(client, 1, 20, 1, 2);
    bool is_early = client_wait_ms(client, 1, fast, 20000) && !client_is_over(client, 0, slow);
    client_fill(client, 3, 0, 1, 1);
    client_wait(client, 0, slow);
    check(is_early && client_read_is(client, 0, 20, 1),
          "without a wait the later of two fills is overtaken");
}

static void requests_without_device(enum wire_transport transport) {
    struct wire_error error = {.status = GPULUA_OK};
    struct client *client = client_create(transport, &error);
    check(client != NULL, "a link opens without a device");
    if (client == NULL) {
        printf("# %s\n", error.message);
        return;
    }
    static const enum wire_opcode opcodes[] = {WIRE_OP_SLAB_CREATE, WIRE_OP_MODULE_COMPILE,
                                               WIRE_OP_MODULE_LOAD, WIRE_OP_KERNEL_GET,
                                               WIRE_OP_GLOBAL_GET,  WIRE_OP_MEMORY_INFO};
    bool good = true;
    for (size_t i = 0; i < sizeof opcodes / sizeof opcodes[0]; i++) {
        struct client_record out = client_record(opcodes[i], 1);
        good = client_request(client, &out) == GPULUA_NO_DEVICE && good;
    }
    check(good, "every request is answered before OPEN");
    struct client_record out = client_record(WIRE_OP_OPEN, 0);
    client_payload(&out, "backend abacus\n", 16);
    check(client_request(client, &out) == GPULUA_UNSUPPORTED &&
              strstr(client_text(client), "abacus") != NULL,
          "an unknown backend is refused by name");
    out = client_record(WIRE_OP_OPEN, 0);
    client_payload(&out, "backend cpu\nordinal 3\n", 23);
    check(client_request(client, &out) == GPULUA_NO_DEVICE, "cpu:3 is not there");
    out = client_record(WIRE_OP_MARK, 0);
    uint64_t seq = client_submit(client, &out, 0);
    check(client_wait(client, 0, seq) && client->failure_count == 1 &&
              client->failures[0].status == GPULUA_NO_DEVICE,
          "work without a device fails, and is over");
    check(client_open_device(client) == GPULUA_OK, "after that a device opens");
    check(client_close(client), "and closes");
}

static void publish_nonsense(struct client *client, uint32_t kind) {
    struct client_record out = client_record(WIRE_OP_NOP, 0);
    if (kind == 0) {
        out.record.opcode = 200;
    } else if (kind == 1) { /* as if it was over before it began */
        client_fill(client, 0, 0, 1, 1);
        out.record.opcode = WIRE_OP_MARK;
        out.record.seq = client->seq[0];
    } else {
        out.record.opcode = WIRE_OP_GRAPH_LAUNCH;
        out.record.flags = WIRE_FLAG_NODE;
    }
    client_publish(client, &out);
}

static void nonsense_record(enum wire_transport transport, uint32_t kind) {
    static const char *const names[] = {
        "a record of an opcode that there is not loses the device, once",
        "so does work whose number does not rise", "so does a graph that is to be a node"};
    struct client *client = client_open(transport);
    if (client == NULL) {
        check(false, "opens");
        return;
    }
    publish_nonsense(client, kind);
    struct client_record out;
    uint64_t seq = client_fill(client, 0, 0, 1, 1);
    check(!client_wait_ms(client, 0, seq, 5000) && client->lost_count == 1, names[kind]);
    out = client_record(WIRE_OP_MEMORY_INFO, 0);
    check(client_request(client, &out) == GPULUA_DEVICE_LOST, "requests are answered with that");
    check(atomic_load(&client->link->page->state) == WIRE_STATE_LOST, "and the page says so");
    check(client_close(client), "CLOSE is answered all the same");
}

/* Closed with work under way: it is finished first. */
static void close_waits(enum wire_transport transport) {
    struct client *client = client_open(transport);
    if (client == NULL) {
        check(false, "opens");
        return;
    }
    for (uint32_t i = 0; i < 4; i++) {
        client_spin(client, i, 20000000);
    }
    struct client_record out = client_record(WIRE_OP_CLOSE, 0);
    bool good = client_request(client, &out) == GPULUA_OK;
    for (uint32_t i = 0; i < 4; i++) {
        good = good && client_is_over(client, i, client->seq[i]);
    }
    check(good, "CLOSE is answered when all work is over");
    check(atomic_load(&client->link->page->state) == WIRE_STATE_CLOSED, "the page says closed");
    client_destroy(client);
    check(true, "and the link closes");
}

/* What has to do with waiting, however ends are found out. */
static void waiting(struct client *client) {
    waits(client);
    skipping_keeps_order(client);
    failures(client);
    failure_before_word(client);
    wanted_before_long(client);
    wanted_before_many(client);
    module_in_use(client);
    streams_come_and_go(client);
    random_program(client);
}

static void end(struct client *client, enum wire_transport transport) {
    check(client->lost_count == 0, "the device was well throughout");
    check(client_close(client), "CLOSE is answered");
    close_waits(transport);
    for (uint32_t kind = 0; kind < 3; kind++) {
        nonsense_record(transport, kind);
    }
}

/* What a node does from the next launch on. */
static void put_fill(struct client *client, uint32_t node, uint32_t slab, uint64_t index,
                     int value) {
    struct client_record out = client_record(WIRE_OP_FILL, 0);
    out.record.flags = WIRE_FLAG_NODE;
    out.record.seq = gpu_wire_node_seq(1, node);
    out.record.u.fill.dst = gpu_wire_address(slab, index * 4);
    out.record.u.fill.elem_count = 1;
    out.record.u.fill.elem_bytes = 4;
    out.record.u.fill.pattern[0] = (uint32_t)value;
    client_publish(client, &out);
}

static bool launch_graph(struct client *client, bool is_well) {
    struct client_record out = client_record(WIRE_OP_GRAPH_LAUNCH, 1);
    uint32_t before = client->failure_count;
    uint64_t seq = client_submit(client, &out, 0);
    return client_wait(client, 0, seq) && client->failure_count == before + !is_well &&
           (is_well || (client->failures[before % CLIENT_FAILURES].seq == seq &&
                        client->failures[before % CLIENT_FAILURES].status != GPULUA_OK));
}

static bool holds(struct client *client, int first, int second) {
    const int *got = client_read(client, 0, 300, 2);
    return got != NULL && got[0] == first && got[1] == second;
}

static void graph_patches(struct client *client) {
    struct client_record begin = client_record(WIRE_OP_GRAPH_BEGIN, 1);
    begin.record.u.graph.node_count = 2;
    client_publish(client, &begin);
    put_fill(client, 0, 1, 300, 1);
    put_fill(client, 1, 1, 301, 2);
    struct client_record finish = client_record(WIRE_OP_GRAPH_END, 1);
    check(client_request(client, &finish) == GPULUA_OK && launch_graph(client, true) &&
              holds(client, 1, 2),
          "a graph of two nodes");
    check(client_request(client, &finish) == GPULUA_INVALID_ARGUMENT && launch_graph(client, true),
          "which ends once");
    put_fill(client, 0, 9, 300, 3); /* there is no such slab */
    put_fill(client, 1, 1, 301, 4);
    check(launch_graph(client, false) && launch_graph(client, false) && holds(client, 1, 2),
          "a node that cannot be changed fails the launches from then on");
    put_fill(client, 1, 1, 301, 5);
    check(launch_graph(client, false), "also if another one can be");
    put_fill(client, 0, 1, 300, 6);
    check(launch_graph(client, true) && holds(client, 6, 5),
          "until it is changed, and others have changed meanwhile");
    put_fill(client, 0, 9, 300, 7);
    put_fill(client, 1, 9, 301, 7);
    put_fill(client, 0, 1, 300, 8);
    check(launch_graph(client, false), "two such nodes fail them");
    put_fill(client, 1, 1, 301, 9);
    check(launch_graph(client, true) && holds(client, 8, 9), "until both are changed");
    struct client_record copy = client_record(WIRE_OP_COPY, 0);
    copy.record.flags = WIRE_FLAG_NODE;
    copy.record.seq = gpu_wire_node_seq(1, 0);
    copy.record.u.copy.dst = gpu_wire_address(1, 300 * 4);
    copy.record.u.copy.src = gpu_wire_address(1, 301 * 4);
    copy.record.u.copy.bytes = 4;
    client_publish(client, &copy);
    check(launch_graph(client, false), "a node does not become work of another kind");
    put_fill(client, 0, 1, 300, 10);
    check(launch_graph(client, true) && holds(client, 10, 9), "and goes on as what it is");
    struct client_record destroy = client_record(WIRE_OP_GRAPH_DESTROY, 1);
    client_publish(client, &destroy);
}

/* What only check mode hears of. */
static void blocks(struct client *client) {
    static const enum wire_opcode opcodes[] = {WIRE_OP_BLOCK_CREATE, WIRE_OP_BLOCK_WRITTEN,
                                               WIRE_OP_BLOCK_OVER, WIRE_OP_BLOCK_FREE};
    for (uint32_t i = 0; i < sizeof opcodes / sizeof opcodes[0]; i++) {
        struct client_record out = client_record(opcodes[i], 0);
        out.record.u.block.address = gpu_wire_address(1, 0);
        out.record.u.block.bytes = 64;
        out.record.u.block.number = 1;
        client_publish(client, &out);
    }
    client_fill(client, 0, 7, 1, 77);
    check(client_read_is(client, 0, 7, 77), "blocks are passed over without check mode");
}

static void run(enum wire_transport transport) {
    transport_name = transport == WIRE_TRANSPORT_INLINE   ? "inline"
                     : transport == WIRE_TRANSPORT_THREAD ? "thread"
                                                          : "process";
    requests_without_device(transport);
    struct client *client = client_open(transport);
    check(client != NULL, "opens, compiles, loads");
    if (client == NULL) {
        return;
    }
    facts(client);
    compile_errors(client);
    long_log(client);
    copies(client);
    global_variable(client);
    bad_work(client);
    graph_patches(client);
    blocks(client);
    waiting(client);
    if (CLIENT_IS_TSAN) {
        tap_skip(&tap, "without a wait the later of two fills is overtaken",
                 "the sanitizer reports such races");
    } else {
        order_twin(client);
    }
    many_operations(client);
    full_rings(client);
    sleep_and_wake(client);
    idle_costs_nothing(client);
    if (transport != WIRE_TRANSPORT_INLINE) { /* nobody is there to sleep */
        rhythm(client);
    }
    end(client, transport);
}

/* The device writes no words: all that has to do with waiting. */
static void run_without_words(enum wire_transport transport, bool is_block) {
    static long asking; /* what waiting for 2 ms takes where somebody asks */
    static const char *const names[][3] = {
        [false] = {[WIRE_TRANSPORT_INLINE - 1] = "inline, event",
                   [WIRE_TRANSPORT_PROCESS - 1] = "process, event",
                   [WIRE_TRANSPORT_THREAD - 1] = "thread, event"},
        [true] = {[WIRE_TRANSPORT_INLINE - 1] = "inline, block",
                  [WIRE_TRANSPORT_PROCESS - 1] = "process, block",
                  [WIRE_TRANSPORT_THREAD - 1] = "thread, block"}};
    transport_name = names[is_block][transport - 1];
    client_options =
        is_block ? "backend cpu\ncompletion block\n" : "backend cpu\ncompletion event\n";
    struct client *client = client_open(transport);
    check(client != NULL, "opens, compiles, loads");
    if (client == NULL) {
        return;
    }
    waiting(client);
    many_operations(client);
    sleep_and_wake(client);
    idle_costs_nothing(client);
    /* What others leave of the processors differs: what takes little does so once at least, and
     * what takes much most of the time. */
    long many = waiting_takes(client, 250, 2000), once = waiting_takes(client, 1, 1000000);
    for (int tries = 0; tries < 2; tries++) {
        if (!is_block || many * 2 >= asking) {
            long now = waiting_takes(client, 250, 2000);
            many = (now < many) == is_block ? now : many;
        }
        if (once > (is_block ? 20 : 150)) {
            long now = waiting_takes(client, 1, 1000000);
            once = now < once ? now : once;
        }
    }
    printf("# waiting for 2 ms takes %ld thousandths of a processor, for 1 s %ld\n", many, once);
    check(once <= (is_block ? 20 : 150), "waiting for a second takes next to no processor time");
    if (!is_block) {
        asking = many;
    } else if (CLIENT_IS_SANITIZED) {
        tap_skip(&tap, "waiting for 2 ms takes less than half of it where nobody asks",
                 "the sanitizer takes more");
    } else {
        check(many * 2 < asking, "waiting for 2 ms takes less than half of it where nobody asks");
    }
    bool is_untouched = true;
    for (uint32_t slot = 0; slot < WIRE_STREAMS_MAX; slot++) {
        is_untouched = is_untouched && atomic_load(&client->link->page->device_done[slot]) == 0;
    }
    check(is_untouched, "and the device has written no word");
    end(client, transport);
}

int main(int argc, char **argv) {
    /* link_test [inline | thread | process] */
    static const struct {
        const char *name;
        enum wire_transport transport;
    } all[] = {{"inline", WIRE_TRANSPORT_INLINE},
               {"thread", WIRE_TRANSPORT_THREAD},
               {"process", WIRE_TRANSPORT_PROCESS}};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        if (argc < 2 || strcmp(argv[1], all[i].name) == 0) {
            run(all[i].transport);
        }
    }
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        if (argc < 2 || strcmp(argv[1], all[i].name) == 0) {
            run_without_words(all[i].transport, false);
            run_without_words(all[i].transport, true);
        }
    }
    return tap_finish(&tap);
}
