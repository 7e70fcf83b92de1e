/* What has become of a device, for those who want to hear of all of it, each at their own pace:
 * a list whose entries live as long as somebody has not gone past them.
 *
 * What happens while there is no memory for an entry is late: it comes into the list when there is
 * some. Meanwhile it is one loss and one return, the newest: of more losses their number is told,
 * and a return that is over is left out. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/recovery.h"

struct gpu_news {
    uint32_t refs;
    struct gpu_news *next; /* retained; NULL: it is the newest */
    bool is_loss;
    struct gpu_error error;   /* of a loss */
    struct gpu_failure *loss; /* retained: the same, as what was pending has failed with; or NULL */
};

static void release(struct gpu_news *news) {
    while (news && --news->refs == 0) {
        struct gpu_news *next = news->next;
        gpu_error_finish(&news->error);
        gpu_failure_release(news->loss);
        free(news);
        news = next;
    }
}

static struct gpu_news *create(void) {
    struct gpu_news *news = calloc(1, sizeof *news);
    if (news) {
        news->refs = 1;
    }
    return news;
}

/* Takes the reference. */
static void append(struct gpu_device *device, struct gpu_news *news) {
    struct gpu_news *newest = device->recovery.news;
    news->refs++; /* the device's, and that of the one before */
    newest->next = news;
    device->recovery.news = news;
    release(newest);
}

static void fill(struct gpu_news *news, const struct gpu_error *loss) {
    gpu_error_finish(&news->error);
    gpu_failure_release(news->loss);
    news->loss = NULL;
    news->is_loss = loss != NULL;
    if (loss) {
        gpu_error_copy(&news->error, loss);
    }
}

bool gpu_news_init(struct gpu_device *device) { /* the first says nothing */
    struct gpu_recovery *recovery = &device->recovery;
    recovery->news = create();
    recovery->late_loss.news = create();
    recovery->late_return.news = create();
    return recovery->news && recovery->late_loss.news && recovery->late_return.news;
}

void gpu_news_finish(struct gpu_device *device) {
    struct gpu_recovery *recovery = &device->recovery;
    release(recovery->news);
    release(recovery->late_loss.news);
    release(recovery->late_return.news);
    recovery->news = recovery->late_loss.news = recovery->late_return.news = NULL;
}

/* False: there is no memory for another one in its place. */
static bool append_late(struct gpu_device *device, struct gpu_late_news *late) {
    if (late->count == 0) {
        return true;
    }
    struct gpu_news *made = create();
    if (!made) {
        return false;
    }
    if (late->count > 1) {
        char *text = late->news->error.message;
        size_t length = strlen(text);
        snprintf(text + length, sizeof late->news->error.message - length,
                 "; it had been lost %u more time%s: there was no memory to tell of that",
                 late->count - 1, late->count > 2 ? "s" : "");
    }
    append(device, late->news);
    *late = (struct gpu_late_news){.news = made};
    return true;
}

static bool append_all_late(struct gpu_device *device) {
    return append_late(device, &device->recovery.late_loss) &&
           append_late(device, &device->recovery.late_return);
}

void gpu_news_add(struct gpu_device *device, const struct gpu_error *loss) {
    struct gpu_recovery *recovery = &device->recovery;
    struct gpu_news *made = append_all_late(device) ? create() : NULL;
    if (made) {
        fill(made, loss);
        append(device, made);
        return;
    }
    struct gpu_late_news *late = loss ? &recovery->late_loss : &recovery->late_return;
    fill(late->news, loss);
    late->count = loss ? late->count + 1 : 1;
    if (loss) {
        recovery->late_return.count = 0;
    }
}

void gpu_news_add_failure(struct gpu_device *device) {
    struct gpu_recovery *recovery = &device->recovery;
    struct gpu_news *news = recovery->late_return.count > 0 ? recovery->late_return.news
                            : recovery->late_loss.count > 0 ? recovery->late_loss.news
                                                            : recovery->news;
    if (news->is_loss && recovery->loss) {
        gpu_failure_release(news->loss);
        news->loss = gpu_failure_retain(recovery->loss);
    }
}

struct gpu_news *gpu_device_news(struct gpu_device *device) {
    GPU_ENTER(device);
    (void)append_all_late(device);
    device->recovery.news->refs++;
    return device->recovery.news;
}

bool gpu_device_has_news(struct gpu_device *device, const struct gpu_news *seen) {
    GPU_ENTER(device);
    (void)(seen->next || append_all_late(device));
    return seen->next != NULL;
}

bool gpu_device_next_news(struct gpu_device *device, struct gpu_news **seen,
                          struct gpu_error *loss) {
    GPU_ENTER(device);
    struct gpu_news *news = (*seen)->next;
    news->refs++;
    release(*seen);
    *seen = news;
    if (news->is_loss) {
        gpu_error_copy(loss, &news->error);
        if (news->loss) {
            gpu_error_copy_suspects(loss, &news->loss->error);
        }
    }
    return news->is_loss;
}

void gpu_device_leave_news(struct gpu_device *device, struct gpu_news **seen) {
    GPU_ENTER_WHOLE(device);
    release(*seen);
    *seen = NULL;
}
