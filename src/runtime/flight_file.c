/* The flight of a device that is lost, in a file: written while the loss is found out, whoever
 * finds it, before anything is restored. */
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/flight.h"
#include "runtime/state.h"

#define FILES_MAX 20u /* of one program: a device may come up again and again */
#define PATH_BYTES 4096u

static atomic_uint file_count;

uint32_t gpu_flight_files(void) {
    return atomic_load(&file_count);
}

char *gpu_flight_folder(const char *path) {
    return path && path[0] != '/' ? getcwd(NULL, 0) : NULL;
}

/* Returns why it could not be written; NULL: it is. */
static const char *write_file(struct gpu_device *device, const char *path,
                              struct gpu_error *error) {
    char *text = NULL;
    size_t byte_count = 0;
    if (gpu_flight_text(device, &text, &byte_count, error)) {
        return error->message;
    }
    errno = 0;
    FILE *file = fopen(path, "we");
    bool is_whole = file && fwrite(text, 1, byte_count, file) == byte_count;
    is_whole = file && fclose(file) == 0 && is_whole;
    free(text);
    return is_whole ? NULL : strerror(errno);
}

void gpu_flight_write(struct gpu_device *device) {
    if (!device->flight_path || device->flight_losses == device->stats.losses) {
        return;
    }
    device->flight_losses = device->stats.losses;
    char path[PATH_BYTES], whole[2 * PATH_BYTES], line[PATH_BYTES + 400], full[48];
    struct gpu_error error = {0};
    uint32_t number = atomic_fetch_add(&file_count, 1) + 1;
    snprintf(path, sizeof path, number > 1 ? "%s.%u" : "%s", device->flight_path, number);
    snprintf(whole, sizeof whole, "%s%s%s", device->flight_folder ? device->flight_folder : "",
             device->flight_folder ? "/" : "", path);
    snprintf(full, sizeof full, "there are %u files of flights already", FILES_MAX);
    const char *reason = number > FILES_MAX ? full : write_file(device, whole, &error);
    if (device->on_log) {
        snprintf(line, sizeof line,
                 reason ? "device %s is lost: what it was given last could not be written into "
                          "%s: %.300s"
                        : "device %s is lost: what it was given last is in %s",
                 device->title, path, reason);
        device->on_log(device->log_user, line);
    }
    gpu_error_finish(&error);
}
