/* A host in twenty lines: runs a script, or standard input, until its last task is over. */
#include <gpulua.h>
#include <stdio.h>

static void on_error(void *failed, const gpulua_error *error) {
    fprintf(stderr, "minimal: %s\n", error->message);
    *(int *)failed = 1;
}

int main(int argc, char **argv) {
    int failed = 0;
    gpulua_config config;
    gpulua_config_init(&config);
    config.on_error = on_error;
    config.user = &failed;
    gpulua *g = gpulua_new(&config);
    if (!g || gpulua_load_file(g, argc > 1 ? argv[1] : NULL)) {
        on_error(&failed, gpulua_last_error(g));
    }
    while (g && gpulua_step(g, -1) > 0) {}
    gpulua_close(g);
    return failed;
}
