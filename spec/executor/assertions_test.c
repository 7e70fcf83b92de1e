/* executor/assertions.c: failed assertions of kernels, out of what the driver prints. */
#include "executor/assertions.h"

#include <stdlib.h>
#include <string.h>

#include "backend/tap.h"

static struct tap tap;

/* What is said once `text` has been printed, in pieces of so many bytes. */
static const char *said(const char *text, size_t piece) {
    static char out[EXECUTOR_ASSERTION_BYTES + 32];
    struct executor_assertions assertions;
    gpu_executor_assertions_init(&assertions);
    size_t bytes = strlen(text);
    for (size_t at = 0; at < bytes; at += piece) {
        gpu_executor_assertions_hear(&assertions, text + at,
                                     bytes - at < piece ? bytes - at : piece);
    }
    return gpu_executor_assertions_say(&assertions, out, sizeof out) ? out : "(nothing)";
}

static void test_forms(void) {
    static const struct {
        const char *printed, *wanted, *what;
    } cases[] = {
        {"kernels.cu:7: void k(int *, float *): block: [1,2,0], thread: [3,0,5] Assertion `i < n` "
         "failed.\n",
         "assertion `i < n' failed at kernels.cu:7, block (1,2,0), thread (3,0,5), in void k(int "
         "*, float *)",
         "as the driver prints it"},
        {"a.cu:12: void helper(T) [with T = int]: block: [0,0,0], thread: [0,0,0] Assertion `x > 0 "
         "&& \"positive\"` failed.\r\n",
         "assertion `x > 0 && \"positive\"' failed at a.cu:12, block (0,0,0), thread (0,0,0), in "
         "void helper(T) [with T = int]",
         "in a template"},
        {"spec/a.lua:12:7: void k(): block: [0,0,0], thread: [0,0,0] Assertion `x` failed.\n",
         "assertion `x' failed at spec/a.lua:12:7, block (0,0,0), thread (0,0,0), in void k()",
         "in a source of a script"},
        {"C:\\a b\\k.cu:91: block: [26,0,0], thread: [85,0,0] Assertion `false` failed.\n",
         "assertion `false' failed at C:\\a b\\k.cu:91, block (26,0,0), thread (85,0,0)",
         "without a function, in a file with a colon"},
        {"k.cu:9: void a::k(int): block: [0,0,0], thread: [0,0,0] Assertion `a::b ? x[ block: [1]] "
         ": "
         "`q`` failed.\n",
         "assertion `a::b ? x[ block: [1]] : `q`' failed at k.cu:9, block (0,0,0), thread (0,0,0), "
         "in void a::k(int)",
         "with everything that it is cut at in its expression"},
        {"k: block: [0,0,0], thread: [0,0,0] Assertion `x` failed.\n",
         "k: block: [0,0,0], thread: [0,0,0] Assertion `x` failed.", "of another form: as it came"},
        {"main.c:7: main: Assertion `x' failed.\n", "(nothing)", "of a program: no kernel's"},
        {"k.cu:7: void k(): block: [0,0,0], thread: [0,0,0] Assertion `x` failed.", "(nothing)",
         "a line that has not ended"},
        {"", "(nothing)", "nothing at all"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        tap_equal(&tap, said(cases[i].printed, 4096), cases[i].wanted, cases[i].what);
        bool same = true;
        for (size_t piece = 1; piece < 40; piece++) {
            same = same && strcmp(said(cases[i].printed, piece), cases[i].wanted) == 0;
        }
        tap_check(&tap, same, "and cut anywhere");
    }
}

static void test_many(void) {
    char *text = malloc(200000), *at = text;
    at += sprintf(at, "something else\n");
    for (int i = 0; i < 1000; i++) {
        at += sprintf(at,
                      "k.cu:7: void k(): block: [0,0,0], thread: [%d,0,0] Assertion `x` "
                      "failed.\nnoise %d\n",
                      i, i);
    }
    tap_equal(&tap, said(text, 1000),
              "assertion `x' failed at k.cu:7, block (0,0,0), thread (0,0,0), in void k(), and 999 "
              "more",
              "the first of a thousand, and how many");
    free(text);
}

static void test_long(void) {
    static char text[20000], name[9000];
    memset(name, 'f', sizeof name - 1);
    snprintf(text, sizeof text,
             "%.1500s.cu:7: void k(): block: [0,0,0], thread: [1,0,0] Assertion `%.300s` failed.\n",
             name, name);
    const char *got = said(text, 100);
    tap_check(&tap,
              strlen(got) < EXECUTOR_ASSERTION_BYTES &&
                  strstr(got, "fff...' failed at fff") != NULL &&
                  strstr(got, "...:7, block (0,0,0), thread (1,0,0), in void k()") != NULL,
              "long names are cut and say so, and the place is there");
    snprintf(text, sizeof text,
             "%s\nk.cu:7: void k(): block: [0,0,0], thread: [0,0,0] Assertion `x` failed.\n", name);
    tap_check(&tap, strstr(said(text, 7), "assertion `x' failed at k.cu:7") == said(text, 7),
              "a line without end does no harm to the next");
}

int main(void) {
    test_forms();
    test_many();
    test_long();
    return tap_finish(&tap);
}
