/* executor/completion.c and sleeper.c over backend/cuda and fake_cuda.c: with completion = "event"
 * and "block" the driver writes no words, and what it answers to the third question, in the middle
 * of a wait, is the loss of the device. */
#include "wire/client.h"

#ifdef GPULUA_CUDA

#include "backend/fake_driver.h"

static struct tap tap;
static char about[64];

static void check(bool good, const char *what) {
    char line[256];
    snprintf(line, sizeof line, "%s: %s", about, what);
    tap_check(&tap, good, line);
}

enum completion { WORD, EVENT, BLOCK };

static struct client *open_fake(enum wire_transport transport, enum completion completion) {
    static const char *const options[] = {[WORD] = "backend cuda\n",
                                          [EVENT] = "backend cuda\ncompletion event\n",
                                          [BLOCK] = "backend cuda\ncompletion block\n"};
    static const char *const names[] = {[WORD] = "word", [EVENT] = "event", [BLOCK] = "block"};
    struct wire_error error = {.status = GPULUA_OK};
    snprintf(about, sizeof about, "%s, %s",
             transport == WIRE_TRANSPORT_INLINE ? "inline" : "thread", names[completion]);
    client_options = options[completion];
    FAKE(volatile int, pending) = 0;
    FAKE(volatile int, words) = 0;
    FAKE(volatile int, sleep_code) = 0;
    FAKE(int, sticky) = FAKE(int, fail_code) = FAKE(int, fail_more) = 0;
    struct client *client = client_create(transport, &error);
    if (client != NULL && client_open_device(client) != GPULUA_OK) {
        printf("# %s\n", client_text(client));
        client_destroy(client);
        client = NULL;
    }
    check(client != NULL, "opens");
    return client;
}

/* Asleep until then: how often the driver was asked. */
static int queries_while_asleep(struct client *client, int ms) {
    uint64_t end_ns = gpu_wire_now_ns() + (uint64_t)ms * 1000000u;
    int before = FAKE(volatile int, queries);
    while (gpu_wire_now_ns() < end_ns) {
        client_sleep(client, (int)((end_ns - gpu_wire_now_ns()) / 1000000u) + 1);
    }
    return FAKE(volatile int, queries) - before;
}

static bool eventually(bool (*is)(void)) {
    uint64_t end_ns = gpu_wire_now_ns() + UINT64_C(5000000000);
    while (!is() && gpu_wire_now_ns() < end_ns) {
        usleep(1000);
    }
    return is();
}

static bool one_sleeps(void) {
    return FAKE(volatile int, sleeps) == 1;
}

static bool none_sleeps(void) {
    return FAKE(volatile int, sleeps) == 0;
}

/* ---- */

static void test_words(enum wire_transport transport, enum completion completion) {
    struct client *client = open_fake(transport, completion);
    if (client == NULL) {
        return;
    }
    bool good = true;
    for (int i = 0; i < 100; i++) {
        uint64_t seq = client_fill(client, (uint32_t)i % 4, 0, 4, i);
        good = (i % 3 != 0 || client_wait(client, (uint32_t)i % 4, seq)) && good;
    }
    for (uint32_t stream = 0; stream < 4; stream++) {
        good = client_wait(client, stream, client->seq[stream]) && good;
    }
    check(good, "what is over is found to be");
    if (completion == WORD) {
        check(FAKE(volatile int, words) > 0, "and the device writes words");
    } else {
        check(FAKE(volatile int, words) == 0, "and the device writes none");
    }
    check(FAKE(int, event_flags) == (completion == BLOCK ? 3 : 2),
          "events are such that who waits for them sleeps, where anybody will");
    check(client_close(client), "closes");
}

/* A fill that nobody waits for becomes known to be over all the same. */
static void end_unwanted(struct client *client, const char *what) {
    FAKE(volatile int, pending) = 1;
    uint64_t seq = client_fill(client, 0, 0, 4, 1);
    usleep(20000);
    check(!client_is_over(client, 0, seq), "pending is not over");
    FAKE(volatile int, pending) = 0;
    uint64_t end_ns = gpu_wire_now_ns() + UINT64_C(5000000000);
    while (!client_is_over(client, 0, seq) && gpu_wire_now_ns() < end_ns) {
        usleep(1000);
    }
    check(client_is_over(client, 0, seq), what);
    check(client_close(client), "closes");
}

/* Of what nobody waits for, too, the end becomes known, also without a record that comes behind. */
static void test_unwanted(enum completion completion) {
    struct client *client = open_fake(WIRE_TRANSPORT_THREAD, completion);
    if (client == NULL) {
        return;
    }
    end_unwanted(client, "its end is known without anybody who waits");
}

/* A driver that turns out to write no words, too. */
static void test_wordless(void) {
    struct client *client = open_fake(WIRE_TRANSPORT_THREAD, WORD);
    if (client == NULL) {
        return;
    }
    fail_next("cuStreamWriteValue64_v2", 801, 0);
    end_unwanted(client, "where no word can be written an end is known without anybody who waits");
}

/* Inline every eighth operation is a reason to ask. */
static void test_unwanted_inline(enum completion completion) {
    struct client *client = open_fake(WIRE_TRANSPORT_INLINE, completion);
    if (client == NULL) {
        return;
    }
    for (int i = 0; i < 30; i++) {
        client_fill(client, 0, 0, 4, i);
    }
    check(client_is_over(client, 0, 24), "of 30 operations that nobody waits for 24 are known");
    check(client_close(client), "closes");
}

static void test_asleep(enum wire_transport transport) {
    struct client *client = open_fake(transport, EVENT);
    int asked = 0;
    for (enum completion completion = EVENT; client != NULL && completion <= BLOCK; completion++) {
        FAKE(volatile int, pending) = 1;
        uint64_t seq = client_fill(client, 0, 0, 4, 1);
        gpu_wire_link_want(client->link, 0, seq);
        (void)queries_while_asleep(client, 50);
        int queries = queries_while_asleep(client, 400);
        printf("# %s: the driver is asked %d times in 400 ms\n", about, queries);
        if (completion == EVENT) {
            asked = queries;
            check(none_sleeps(), "no thread sleeps in the driver");
        } else {
            check(one_sleeps(), "a thread sleeps in the driver");
            check(queries * 3 < asked, "which hardly anybody asks meanwhile");
        }
        FAKE(volatile int, pending) = 0;
        check(client_wait_ms(client, 0, seq, 20000) && eventually(none_sleeps), "and it ends");
        check(client_close(client), "closes");
        client = completion == EVENT ? open_fake(transport, BLOCK) : NULL;
    }
}

/* The place of an event that a thread sleeps for is needed for another record, and then its stream
 * goes: it stays what it was until the thread is back. */
static void test_kept(void) {
    long before = FAKE(long, live);
    struct client *client = open_fake(WIRE_TRANSPORT_THREAD, BLOCK);
    if (client == NULL) {
        return;
    }
    long open_live = FAKE(long, live);
    FAKE(volatile int, pending) = 1;
    uint64_t seq = client_fill(client, 5, 0, 4, 1);
    check(!client_wait_ms(client, 5, seq, 20) && eventually(one_sleeps), "a thread sleeps");
    for (int i = 0; i < 17000; i++) { /* more than there are ever events */
        client_fill(client, 5, 0, 4, 1);
    }
    struct client_record out = client_record(WIRE_OP_MEMORY_INFO, 0);
    check(client_request(client, &out) == GPULUA_OK && one_sleeps(),
          "the executor goes on, and the thread sleeps on");
    out = client_record(WIRE_OP_STREAM_DESTROY, 0);
    out.record.stream = 5;
    client_publish(client, &out); /* which a runtime does not before all is over */
    out = client_record(WIRE_OP_MEMORY_INFO, 0);
    check(client_request(client, &out) == GPULUA_OK && one_sleeps(), "also without the stream");
    FAKE(volatile int, pending) = 0;
    check(eventually(none_sleeps), "until it is woken");
    check(client_wait(client, 1, client_fill(client, 1, 0, 4, 1)), "others are waited for");
    bool is_gone = false;
    for (int i = 0; i < 20000 && !is_gone; i++) { /* by then 1's event came, and 5 went */
        out = client_record(WIRE_OP_MEMORY_INFO, 0);
        (void)client_request(client, &out);
        is_gone = FAKE(volatile long, live) == open_live + CLIENT_IS_TSAN; /* client_synchronise */
        usleep(1000);
    }
    check(is_gone, "its event goes when it is back");
    check(client_close(client), "closes");
    check(FAKE(long, live) == before, "and all events are gone");
    check(FAKE(int, sleep_misuses) == 0, "none of them too early, none with another record");
}

static void test_fails(enum wire_transport transport, enum completion completion) {
    struct client *client = open_fake(transport, completion);
    if (client == NULL) {
        return;
    }
    FAKE(volatile int, pending) = 1;
    uint64_t seq = client_fill(client, 0, 0, 4, 1);
    check(!client_wait_ms(client, 0, seq, 60) && client->lost_count == 0, "pending");
    uint64_t start_ns = gpu_wire_now_ns();
    fail_next("cuEventQuery", 700, 0);
    FAKE(volatile int, sleep_code) = 700;
    check(!client_wait_ms(client, 0, seq, 20000) && client->lost_count == 1,
          "then failed: the device is lost");
    check(strstr(client->lost_text, "ILLEGAL_ADDRESS") != NULL, "with the driver's words");
    printf("# %s: told after %llu us\n", about,
           (unsigned long long)(gpu_wire_now_ns() - start_ns) / 1000u);
    struct client_record out = client_record(WIRE_OP_MEMORY_INFO, 0);
    check(client_request(client, &out) == GPULUA_DEVICE_LOST, "as is said from then on");
    check(client_close(client), "closes");
    FAKE(int, sticky) = 0;
}

/* Of some faults a driver tells who asks after work that is pending, and nobody else: that is asked
 * after, too, where a word is to come behind it. */
static void test_hidden(void) {
    struct client *client = open_fake(WIRE_TRANSPORT_INLINE, WORD);
    if (client == NULL) {
        return;
    }
    FAKE(volatile int, pending) = 1;
    uint64_t seq = client_fill(client, 0, 0, 4, 1);
    check(!client_wait_ms(client, 0, seq, 60) && client->lost_count == 0, "pending, with a word");
    FAKE(volatile int, hidden_code) = 700;
    gpu_wire_link_want(client->link, 0, seq);
    client_sleep(client, 1);
    client->link->ops->poll(client->link);
    gpu_wire_link_drain(client->link);
    check(client->lost_count == 1,
          "a fault that only a question after what is pending finds is told of behind one sleep");
    FAKE(volatile int, hidden_code) = 0;
    FAKE(volatile int, pending) = 0;
    check(client_close(client), "closes");
    FAKE(int, sticky) = 0;
}

/* A driver that cannot wait is asked instead, with pauses. */
static void test_useless(void) {
    struct client *client = open_fake(WIRE_TRANSPORT_THREAD, BLOCK);
    if (client == NULL) {
        return;
    }
    FAKE(volatile int, pending) = 1;
    FAKE(volatile int, sleep_code) = 801;
    uint64_t seq = client_fill(client, 0, 0, 4, 1);
    gpu_wire_link_want(client->link, 0, seq);
    (void)queries_while_asleep(client, 50);
    int queries = queries_while_asleep(client, 200);
    printf("# asked %d times in 200 ms\n", queries);
    check(queries < 4000, "a driver that cannot wait is asked with pauses");
    FAKE(volatile int, pending) = 0;
    check(client_wait_ms(client, 0, seq, 20000) && client->lost_count == 0, "and its work ends");
    check(client_close(client), "closes");
}

static struct client *loading;

static bool says_so(void) {
    return atomic_load(&loading->link->page->is_loading) != 0;
}

static bool is_done(void) {
    return !says_so();
}

static uint64_t fill_flagged(struct client *client, uint32_t stream, unsigned flags) {
    struct client_record out = client_record(WIRE_OP_FILL, 0);
    out.record.flags = (uint8_t)flags;
    out.record.u.fill.dst = gpu_wire_address(1, 0);
    out.record.u.fill.elem_count = 4;
    out.record.u.fill.elem_bytes = 4;
    return client_submit(client, &out, stream);
}

/* Events that were put behind work since it was asked last. */
static int new_events(void) {
    static int before;
    int since = FAKE(int, records) - before;
    before = FAKE(int, records);
    return since;
}

/* Behind what nobody has a handle on there is an event when it is of use. */
static void test_owed(enum completion completion) {
    enum { UNHELD = WIRE_FLAG_UNHELD, COVERS = WIRE_FLAG_COVERS };
    struct client *client = open_fake(WIRE_TRANSPORT_INLINE, completion);
    if (client == NULL) {
        return;
    }
    FAKE(volatile int, pending) = 1;
    (void)new_events();
    fill_flagged(client, 0, 0);
    check(new_events() == 1, "behind an operation there is an event");
    fill_flagged(client, 0, UNHELD);
    if (completion != WORD) {
        check(new_events() == 1, "also behind one that nobody holds, where no words are written");
        FAKE(volatile int, pending) = 0;
        check(client_close(client), "closes");
        return;
    }
    check(new_events() == 0, "behind one that nobody holds there is none yet");
    uint64_t covered = fill_flagged(client, 0, UNHELD | COVERS);
    fill_flagged(client, 0, UNHELD | COVERS);
    check(new_events() == 0, "nor behind those that the next one will do for");
    fill_flagged(client, 0, 0);
    check(new_events() == 2, "another one has it recorded first, and its own");
    uint64_t asked = fill_flagged(client, 0, UNHELD);
    gpu_wire_link_want(client->link, 0, asked);
    client->link->ops->poll(client->link);
    check(new_events() == 1 && !client_is_over(client, 0, asked), "who asks has it recorded");
    client->link->ops->poll(client->link);
    fill_flagged(client, 0, UNHELD | COVERS);
    check(new_events() == 0, "once");
    gpu_wire_link_want(client->link, 0, 0);

    struct client_record out = client_record(WIRE_OP_MARK, 0);
    client_wait_on(&out, 0, client->seq[0], WIRE_WAIT_ORDER);
    client_submit(client, &out, 1);
    check(new_events() == 2 && FAKE(void *, waited_for) != NULL,
          "work of another stream that waits for it has it recorded");
    fill_flagged(client, 0, UNHELD);
    out = client_record(WIRE_OP_MARK, 0);
    client_wait_on(&out, 0, asked, WIRE_WAIT_ORDER);
    client_submit(client, &out, 1);
    check(new_events() == 1, "but not work that waits for an older one, which has its own");
    client->link->ops->poll(client->link);
    check(!client_is_over(client, 0, covered), "what is covered is pending");
    FAKE(volatile int, pending) = 0;
    check(client_wait(client, 0, covered), "and over with the one that covers it");

    int words = FAKE(volatile int, words);
    (void)new_events(); /* under ThreadSanitizer waits put marks */
    for (int i = 0; i < 80; i++) {
        fill_flagged(client, 0, UNHELD | COVERS);
    }
    check(new_events() == 0 && FAKE(volatile int, words) == words + 1,
          "behind 64 that count as one there is a word");
    for (int i = 0; i < 80; i++) {
        fill_flagged(client, 1, UNHELD);
    }
    check(new_events() == 79 && FAKE(volatile int, words) == words + 11,
          "behind every eighth that does not");
    check(client_wait(client, 0, client->seq[0]), "and the last of many is over");
    FAKE(volatile int, pending) = 1;
    fill_flagged(client, 0, UNHELD);
    (void)new_events();
    out = client_record(WIRE_OP_STREAM_NATIVE, 0);
    check(client_request(client, &out) == GPULUA_OK && new_events() == 1,
          "who gets the stream's own handle has it recorded first");
    asked = fill_flagged(client, 0, UNHELD);
    out = client_record(WIRE_OP_STREAM_GIVE, 0);
    out.record.u.foreign.stream = ((const struct wire_stream_facts *)client_body(client))->native;
    out.record.u.foreign.seq = asked;
    check(client_request(client, &out) == GPULUA_OK && new_events() == 1,
          "and a stream that waits for it");
    fill_flagged(client, 0, UNHELD);
    fail_next("cuEventRecord", 700, 0);
    gpu_wire_link_want(client->link, 0, client->seq[0]);
    client->link->ops->poll(client->link);
    gpu_wire_link_drain(client->link);
    check(client->lost_count == 1, "where none can be recorded the device is lost");
    check(client_close(client), "closes");
    FAKE(int, sticky) = 0;
}

static struct client_record fill_by_kernel(void) {
    struct client_record out = client_record(WIRE_OP_FILL, 0);
    out.record.u.fill.dst = gpu_wire_address(1, 0);
    out.record.u.fill.elem_count = 4;
    out.record.u.fill.elem_bytes = 8;
    out.record.u.fill.pattern[0] = 1; /* two words, which takes a kernel */
    return out;
}

/* Without memory for a call that puts work behind other work, or its end: the device stays, nobody
 * runs ahead, and ends are known all the same. */
static void test_short(const char *call, enum completion completion) {
    struct client *client = open_fake(WIRE_TRANSPORT_THREAD, completion);
    if (client == NULL) {
        return;
    }
    char line[128];
    FAKE(volatile int, pending) = 1;
    FAKE(int, fail_more) = 1 << 30;
    fail_next(call, 2, 0);
    uint64_t first = client_fill(client, 0, 0, 4, 1);
    usleep(20000);
    int runs = FAKE(volatile int, runs);
    struct client_record out = fill_by_kernel();
    client_wait_on(&out, 0, first, WIRE_WAIT_ORDER);
    uint64_t second = client_submit(client, &out, 1);
    usleep(20000);
    gpu_wire_link_drain(client->link);
    snprintf(line, sizeof line, "without memory for %s nobody runs ahead", call);
    check(FAKE(volatile int, runs) == runs && !client_is_over(client, 0, first), line);
    FAKE(volatile int, pending) = 0;
    snprintf(line, sizeof line, "without memory for %s work ends, and is known to", call);
    check(client_wait_ms(client, 0, first, 20000) && client_wait_ms(client, 1, second, 20000) &&
              FAKE(volatile int, runs) == runs + 1,
          line);
    FAKE(int, fail_more) = FAKE(int, fail_code) = 0;
    check(client_wait(client, 2, client_fill(client, 2, 0, 4, 1)), "with memory all is as before");
    snprintf(line, sizeof line, "without memory for %s nothing fails and the device stays", call);
    check(client->lost_count == 0 && client->failure_count == 0, line);
    check(client_close(client), "closes");
}

/* What a host's capture refuses is refused, and neither done without the wait nor waited for. */
static void test_refused_wait(void) {
    struct client *client = open_fake(WIRE_TRANSPORT_THREAD, WORD);
    if (client == NULL) {
        return;
    }
    FAKE(volatile int, pending) = 1;
    uint64_t first = client_fill(client, 0, 0, 4, 1);
    usleep(20000);
    int runs = FAKE(volatile int, runs);
    fail_next("cuStreamWaitEvent", 905, 0); /* CUDA_ERROR_STREAM_CAPTURE_ISOLATION */
    struct client_record out = fill_by_kernel();
    client_wait_on(&out, 0, first, WIRE_WAIT_ORDER);
    client_submit(client, &out, 1);
    for (int i = 0; i < 2000 && client->failure_count == 0; i++) {
        gpu_wire_link_drain(client->link);
        usleep(1000);
    }
    check(client->failure_count == 1 && client->lost_count == 0 && FAKE(volatile int, runs) == runs,
          "work whose wait a host's capture refuses fails at once, and is not done");
    FAKE(volatile int, pending) = 0;
    check(client_wait(client, 2, client_fill(client, 2, 0, 4, 1)), "other work goes on");
    check(client_wait(client, 0, first) && client_close(client), "closes");
}

/* Nobody gets what lies in front of an event that is still to be recorded. */
static void test_short_native(void) {
    struct client *client = open_fake(WIRE_TRANSPORT_INLINE, WORD);
    if (client == NULL) {
        return;
    }
    FAKE(volatile int, pending) = 1;
    FAKE(int, fail_more) = 1 << 30;
    fail_next("cuEventRecord", 2, 0);
    uint64_t seq = client_fill(client, 0, 0, 4, 1);
    struct client_record out = client_record(WIRE_OP_STREAM_NATIVE, 0);
    check(client_request(client, &out) == GPULUA_OUT_OF_MEMORY,
          "nobody gets the own handle of a stream that owes an event for want of memory");
    out = client_record(WIRE_OP_STREAM_GIVE, 0);
    out.record.u.foreign.stream = 1;
    out.record.u.foreign.seq = seq;
    check(client_request(client, &out) == GPULUA_OUT_OF_MEMORY, "nor is put behind it");
    FAKE(int, fail_more) = FAKE(int, fail_code) = 0;
    check(client_request(client, &out) == GPULUA_OK, "until it can be recorded");
    FAKE(volatile int, pending) = 0;
    check(client_wait(client, 0, seq) && client->lost_count == 0 && client_close(client), "closes");
}

/* What is behind work whose end nobody can ever know is not done. */
static void test_owed_fails(void) {
    struct client *client = open_fake(WIRE_TRANSPORT_INLINE, WORD);
    if (client == NULL) {
        return;
    }
    FAKE(volatile int, pending) = 1;
    fill_flagged(client, 0, WIRE_FLAG_UNHELD);
    fail_next("cuEventRecord", 1, 0);
    int runs = FAKE(volatile int, runs);
    struct client_record out = fill_by_kernel();
    client_submit(client, &out, 0);
    gpu_wire_link_drain(client->link);
    check(client->lost_count == 1, "an event that is owed and cannot be recorded: lost");
    check(FAKE(volatile int, runs) == runs,
          "and the work in front of which it was to be is not done");
    check(client_close(client), "closes");
}

/* The executor waits for the driver then: the device has to tell what is over by itself, and a
 * watchdog to know that only what has a word is told. */
static void test_loading(void) {
    struct client *client = loading = open_fake(WIRE_TRANSPORT_THREAD, WORD);
    if (client == NULL) {
        return;
    }
    static const char image[] = ".version 7.0\n.target sm_50\n";
    struct client_record out = client_record(WIRE_OP_MODULE_LOAD, 9);
    uint64_t offset = UINT64_C(1) << 22;
    memcpy(client->link->arena + offset, image, sizeof image);
    out.record.u.module.arena_offset = offset;
    out.record.u.module.bytes = sizeof image;
    out.record.seq = ++client->request;
    FAKE(volatile int, load_waits) = 1;
    int words = FAKE(volatile int, words);
    uint64_t seq = client_fill(client, 0, 0, 4, 1);
    client_publish(client, &out);
    check(eventually(says_so), "while it loads code it says so");
    check(FAKE(volatile int, words) == words + 1 && client_is_over(client, 0, seq),
          "behind what was before there is a word");
    usleep(20000);
    check(says_so(), "for as long as it takes");
    FAKE(volatile int, load_waits) = 0;
    check(eventually(is_done), "no longer");
    check(client_wait(client, 0, client_fill(client, 0, 0, 4, 2)), "and it works as before");
    check(client_close(client), "closes");
}

int main(void) {
    if (!build()) {
        tap_skip(&tap, "a driver without a GPU", "no C compiler");
        return tap_finish(&tap);
    }
    for (enum completion completion = WORD; completion <= BLOCK; completion++) {
        test_words(WIRE_TRANSPORT_INLINE, completion);
        test_words(WIRE_TRANSPORT_THREAD, completion);
        test_owed(completion);
    }
    for (enum completion completion = EVENT; completion <= BLOCK; completion++) {
        test_unwanted(completion);
        test_unwanted_inline(completion);
        test_fails(WIRE_TRANSPORT_INLINE, completion);
        test_fails(WIRE_TRANSPORT_THREAD, completion);
    }
    test_hidden();
    test_wordless();
    test_owed_fails();
    for (enum completion completion = WORD; completion <= BLOCK; completion++) {
        test_short("cuEventRecord", completion);
        test_short("cuEventCreate", completion);
        test_short("cuStreamWaitEvent", completion);
    }
    test_refused_wait();
    test_short_native();
    test_asleep(WIRE_TRANSPORT_INLINE);
    test_asleep(WIRE_TRANSPORT_THREAD);
    test_kept();
    test_useless();
    test_loading();
    remove_folder();
    return tap_finish(&tap);
}

#else

int main(void) {
    static struct tap tap;
    tap_skip(&tap, "completion over a driver without a GPU", "this build has no CUDA backend");
    return tap_finish(&tap);
}

#endif
