/* How long a command takes from start to exit: `startup REPEATS COMMAND...` prints the median in
 * milliseconds. */
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>

extern char **environ;

static double now_ms(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e3 + (double)time.tv_nsec / 1e6;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    int repeats = argc > 2 ? atoi(argv[1]) : 0;
    double *times = repeats > 0 ? calloc((size_t)repeats, sizeof *times) : NULL;
    if (!times) {
        fputs("usage: startup REPEATS COMMAND...\n", stderr);
        return 2;
    }
    for (int i = 0; i < repeats; i++) {
        pid_t child;
        int status = 0;
        double start = now_ms();
        if (posix_spawnp(&child, argv[2], NULL, NULL, argv + 2, environ) != 0 ||
            waitpid(child, &status, 0) < 0 || status != 0) {
            fprintf(stderr, "%s failed\n", argv[2]);
            free(times);
            return 1;
        }
        times[i] = now_ms() - start;
    }
    qsort(times, (size_t)repeats, sizeof *times, by_value);
    printf("%.3f\n", times[repeats / 2]);
    free(times);
    return 0;
}
