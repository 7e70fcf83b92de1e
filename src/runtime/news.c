/* What has become of a device, for those who want to hear of all of it, each at their own pace:
 * a list whose entries live as long as somebody has not gone past them. */
#include <stdlib.h>

#include "runtime/recovery.h"

struct gpu_news {
    uint32_t refs;
    struct gpu_news *next; /* retained; NULL: it is the newest */
    struct gpu_news *room; /* owned: of the newest, for the next; NULL: there was no memory */
    bool is_loss;
    struct gpu_error error;   /* of a loss */
    struct gpu_failure *loss; /* retained: the same, as what was pending has failed with; or NULL */
};

static void release(struct gpu_news *news) {
    while (news && --news->refs == 0) {
        struct gpu_news *next = news->next;
        gpu_error_finish(&news->error);
        gpu_failure_release(news->loss);
        free(news->room);
        free(news);
        news = next;
    }
}

bool gpu_news_init(struct gpu_device *device) { /* the first says nothing */
    struct gpu_news *first = device->recovery.news = calloc(1, sizeof *first);
    if (first) {
        first->refs = 1;
        first->room = calloc(1, sizeof *first);
    }
    return first && first->room;
}

void gpu_news_finish(struct gpu_device *device) {
    release(device->recovery.news);
    device->recovery.news = NULL;
}

void gpu_news_add(struct gpu_device *device, const struct gpu_error *loss) {
    struct gpu_news *newest = device->recovery.news;
    struct gpu_news *made = newest->room ? newest->room : calloc(1, sizeof *made);
    newest->room = NULL;
    if (!made) {
        return; /* for the second time in a row: nobody hears of it */
    }
    made->room = calloc(1, sizeof *made);
    made->refs = 2; /* the device's, and that of the one before */
    made->is_loss = loss != NULL;
    if (loss) {
        gpu_error_copy(&made->error, loss);
    }
    newest->next = made;
    release(newest);
    device->recovery.news = made;
}

void gpu_news_add_failure(struct gpu_device *device) {
    struct gpu_news *news = device->recovery.news;
    if (news->is_loss && device->recovery.loss) {
        gpu_failure_release(news->loss);
        news->loss = gpu_failure_retain(device->recovery.loss);
    }
}

struct gpu_news *gpu_device_news(struct gpu_device *device) {
    GPU_ENTER(device);
    device->recovery.news->refs++;
    return device->recovery.news;
}

bool gpu_device_has_news(const struct gpu_device *device, const struct gpu_news *seen) {
    GPU_ENTER(device);
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
        if (news->loss && !loss->suspects) {
            gpu_error_copy_suspects(loss, &news->loss->error);
        }
    }
    return news->is_loss;
}

void gpu_device_leave_news(struct gpu_device *device, struct gpu_news **seen) {
    GPU_ENTER(device);
    release(*seen);
    *seen = NULL;
}
